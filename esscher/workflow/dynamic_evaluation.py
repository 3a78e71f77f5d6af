"""Dynamic evaluation, `esscher measure --dynamic`: the weights learn from the text that they are measured on.

Each piece of the text is scored before the weights learn from it. A base with a memory reads the text as one stream and learns
after each segment; any other base learns after each sequence. The same pieces are scored without learning (static), so that the
difference, what learning saves, is known far better than either number.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.bases.network import NetworkBase
from esscher.core.estimate import Estimate
from esscher.core.progress import current_progress
from esscher.data.config import SourceConfig
from esscher.data.splits import read_raw_splits, read_splits
from esscher.data.text import TextStream, raw_stream, text_stream
from esscher.estimators.intervals import ratio_of_sums
from esscher.estimators.long_context import stream_warnings
from esscher.estimators.perplexity import as_bits, as_perplexity, nonnegative
from esscher.hub import SavedBase
from esscher.networks.network import StreamingNetwork
from esscher.reports.report import Report
from esscher.training.dynamic_config import DynamicConfig
from esscher.training.dynamic_evaluation import (
    GradientStatistics,
    SegmentScorer,
    collect_statistics,
    grad_without_cudnn,
    load_statistics,
    save_statistics,
    score_dynamic,
    score_static,
    sequence_scorer,
    stream_scorer,
    weights_digest,
    with_progress,
)
from esscher.training.stream_batches import TokenStream
from esscher.workflow.config.measure import MeasureConfig
from esscher.workflow.measure_stream import base_with_span, read_model_stream
from esscher.workflow.model import Model
from esscher.workflow.run_folder import trained_chunking


@dataclass(frozen=True)
class ScoredText:
    """A text in the pieces after which the weights learn, and the sizes by unit of its tokens or sequences."""

    scorer: SegmentScorer
    units: Mapping[str, Tensor]
    description: str
    is_stream: bool

    @property
    def tokens(self) -> int:
        return int(self.units["token"].sum())

    def log_probs(self, pieces: list[Tensor]) -> Float[Tensor, "N"]:
        """The log-probability of each token of a stream, or of each sequence."""
        return torch.cat(pieces) if self.is_stream else torch.stack([piece.sum() for piece in pieces])

    def per_unit(self, total: Float[Tensor, "N"], settings: MeasureConfig) -> dict[str, Estimate]:
        """Nats per unit. Replicates are blocks of neighbours, because learning makes sequences depend on each other, too."""
        estimates, counted = {}, "tokens" if self.is_stream else "sequences"
        for name, size in self.units.items():
            unit = f"nats per {name}"
            if settings.fixed:
                estimates[name] = Estimate.exact(float(total.sum() / size.sum()), method="exact, fixed text", unit=unit)
            else:
                estimates[name] = ratio_of_sums(
                    total, size.double(), confidence=settings.confidence, counted=counted, unit=unit
                )
        return estimates


@dataclass(frozen=True)
class DynamicMeasurement:
    """Nats by unit without and with learning, the bits that learning saves, and how the text was read."""

    static: Mapping[str, Estimate]
    dynamic: Mapping[str, Estimate]
    bits_saved: Mapping[str, Estimate]
    measured_on: str
    read_as: str
    statistics: str
    warnings: list[str]

    @property
    def nats_by_model(self) -> dict[str, Mapping[str, Estimate]]:
        return {"base": self.static, "dynamic": self.dynamic}

    def report(self, model: Model, settings: MeasureConfig) -> Report:
        """A row for each unit."""
        perplexity, bits, static = as_perplexity(self.dynamic), as_bits(self.dynamic), as_perplexity(self.static)
        rows = [
            {
                "per": unit,
                "perplexity": perplexity[unit],
                "bits": bits[unit],
                "static_perplexity": static[unit],
                "bits_saved": self.bits_saved[unit],
            }
            for unit in self.dynamic
        ]
        facts = {
            "model": model.name, "data": settings.source.source, "measured_on": self.measured_on, "read_as": self.read_as,
            "rule": str(settings.adapt), "statistics": self.statistics,
        }  # fmt: skip
        notes = [
            "perplexity and bits: each piece is scored before the weights learn from it; static perplexity and bits saved: the "
            "same reading without learning.",
            f"bits saved: {self.bits_saved['token'].method}",
            *self.warnings,
        ]
        return Report("esscher measure --dynamic", facts, {"perplexities": rows}, notes)


def measure_dynamic(model: Model, settings: MeasureConfig) -> DynamicMeasurement:
    """Perplexities of the base on a text without and with learning from it, and what learning saves.

    Args:
        model: A base; its weights are not changed.
        settings: The data, and in `adapt` how the weights learn.

    Returns:
        Nats by unit, bits saved, and how the text was read. Gradient statistics are kept in the folder of the model.
    """
    model, config, say = _checked(model, settings), settings.adapt, current_progress().say
    text = _test_text(model, settings)
    statistics, description = gradient_statistics_for(model, config)
    static = text.log_probs(score_static(model.base, with_progress(text.scorer, "without learning", text.tokens, say)))
    scorer = with_progress(text.scorer, "learning", text.tokens, say)
    dynamic = text.log_probs(score_dynamic(model.base, scorer, config, statistics))
    return DynamicMeasurement(
        {name: nonnegative(nats) for name, nats in text.per_unit(-static, settings).items()},
        {name: nonnegative(nats) for name, nats in text.per_unit(-dynamic, settings).items()},
        as_bits(text.per_unit(dynamic - static, settings)),
        text.description,
        f"one stream, learnt from after every {config.segment} tokens"
        if text.is_stream
        else "learnt from after every sequence",
        description,
        stream_warnings(dynamic, text.units["token"]) if text.is_stream and not settings.fixed else [],
    )


def gradient_statistics_for(model: Model, config: DynamicConfig) -> tuple[GradientStatistics | None, str]:
    """The gradient statistics that a rule needs, from the file in the model's folder, or collected and kept there.

    Args:
        model: The base, loaded from a folder or not.
        config: The rule; sgd needs no statistics.

    Returns:
        The statistics, None for sgd, and a description of them.
    """
    if config.rule == "sgd":
        return None, "none"
    pieces = f"{config.columns}x{config.segment}" if has_memory(model.base) else str(config.columns)
    file = None if model.folder is None else model.folder / f"gradients-{pieces}.safetensors"
    claim: dict[str, Any] = {"weights": weights_digest(model.base), "batches": config.batches}
    if file is not None and file.is_file():
        statistics, saved = load_statistics(file, claim if config.text is None else {**claim, "text": config.text})
        return statistics, _describe_statistics(statistics, saved["text"], file)
    scorer, name, tokens = _training_text(model, config)
    base = copy.deepcopy(model.base).eval()
    with grad_without_cudnn():
        scores = with_progress(scorer, "gradient statistics", tokens, current_progress().say)(base)
        statistics = collect_statistics(base, scores, batches=config.batches)
    if file is not None:
        save_statistics(file, statistics, {**claim, "text": name})
    return statistics, _describe_statistics(statistics, name, file)


def has_memory(base: SavedBase) -> bool:
    """Whether a base reads streams."""
    return isinstance(base, NetworkBase) and isinstance(base.network, StreamingNetwork)


def _checked(model: Model, settings: MeasureConfig) -> Model:
    """The model with the attention span of the settings; one that cannot learn from a text is refused."""
    for refused, name in (
        (model.is_tilted, "energy"),
        (model.fsdp, "fsdp"),
        (settings.source.target is not None and has_memory(model.base), "data.target"),
    ):
        if refused:
            raise ValueError(
                f"{name} has no meaning with dynamic, where the base learns from a text. Nothing was measured; leave it out."
            )
    if has_memory(model.base) and model.chunking != trained_chunking(model.trained):
        raise ValueError(
            "A base with a memory learns from one stream, which is not cut. Nothing was measured; leave prompt_tokens, "
            "max_length and eos out."
        )
    if settings.stream.attention_span is None and settings.stream.clamp_len is None:
        return model
    return replace(model, base=base_with_span(model, settings.stream))


def _test_text(model: Model, settings: MeasureConfig) -> ScoredText:
    if has_memory(model.base):
        stream = read_model_stream(model, settings.source)
        return ScoredText(stream_scorer(stream.tokens[None], settings.adapt.segment), stream.units(), str(stream), True)
    encoded = model.data.read(settings.source, model.trained)
    return ScoredText(sequence_scorer(encoded.x, 1), encoded.units, str(encoded), False)


def _training_text(model: Model, config: DynamicConfig) -> tuple[SegmentScorer, str, int]:
    """The text to collect gradients from, its name, and its tokens."""
    run = model.trained
    if config.text is None and (run is None or run.data.motif is not None):
        raise ValueError(
            f"The rule {config.rule!r} needs gradient statistics of {model.name}, and the folder does not say which "
            "text the model "
            f"was trained on. Nothing was measured; name the text (adapt.text), or use the rule sgd."
        )
    name = config.text or ("" if run is None else run.data.source)
    if has_memory(model.base):
        columns = TokenStream(_training_stream(model, config).tokens, config.segment).columns(config.columns)
        return stream_scorer(columns, config.segment), name, columns.numel()
    if run is not None and config.text is None:
        x = model.data.read_splits(run.data, run).train
    else:
        x = model.data.read(SourceConfig(name), None).x
    return sequence_scorer(x, config.columns), name, int(x.lengths.sum())


def _training_stream(model: Model, config: DynamicConfig) -> TextStream:
    """The text of the settings, or the one that the model was trained on, as one stream."""
    run = model.trained
    if config.text is not None or run is None:
        return read_model_stream(model, SourceConfig(config.text or ""))
    if run.data.split == "raw":
        return raw_stream(read_raw_splits(run.data)[0], model.tokenizer)
    return text_stream(read_splits(run.data).train.texts, model.tokenizer, ends=run.length.ends)


def _describe_statistics(statistics: GradientStatistics, text: str, file: Path | None) -> str:
    return f"{statistics.batches:,} gradients on {text}" + ("" if file is None else f", in {file.name}")
