"""Dynamic evaluation, `esscher measure --dynamic`: each piece of a text is scored before the weights learn from it.

A base with a memory reads the text as one stream and learns after each segment; any other base learns after each sequence. The
same pieces are also scored without learning, so the interval of the difference is much narrower than that of either number.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.bases.network import NetworkBase
from esscher.core.estimate import Estimate
from esscher.core.progress import current_progress
from esscher.core.space import Sequences
from esscher.core.storage import digest, module_tensors
from esscher.data.config import SourceConfig
from esscher.data.splits import read_raw_splits, read_splits
from esscher.data.text import raw_stream, text_stream
from esscher.estimators.intervals import ratio_of_sums
from esscher.estimators.long_context import stream_warnings
from esscher.estimators.perplexity import as_bits, as_perplexity, nonnegative
from esscher.networks.network import StreamingNetwork
from esscher.reports.report import Report
from esscher.training import dynamic_evaluation as dynamic
from esscher.training.config import DynamicConfig
from esscher.training.stream_batches import TokenStream
from esscher.workflow.calibration import FORWARD_SHARE, peak_memory, reading, scoring
from esscher.workflow.config.measure import MeasureConfig
from esscher.workflow.cost import Cost, before_start
from esscher.workflow.model import Model
from esscher.workflow.run_folder import trained_chunking


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
        columns = {
            "perplexity": as_perplexity(self.dynamic), "bits": as_bits(self.dynamic),
            "static_perplexity": as_perplexity(self.static), "bits_saved": self.bits_saved,
        }  # fmt: skip
        rows = [{"per": unit} | {name: values[unit] for name, values in columns.items()} for unit in self.dynamic]
        facts = {
            "measured_on": self.measured_on, "data": settings.source.source, "read_as": self.read_as, "model": model.name,
            "device": model.placement, "rule": str(settings.adapt), "statistics": self.statistics,
        }  # fmt: skip
        notes = [
            "perplexity and bits: each piece is scored before the weights learn from it; static perplexity and bits saved: the "
            "same reading without learning.",
            *self.warnings,
        ]
        return Report(
            "esscher measure --dynamic",
            facts,
            {"perplexities": rows},
            notes,
            details=("read_as", "rule", "statistics"),
            tables_first=True,
        )


def measure_dynamic(model: Model, settings: MeasureConfig) -> DynamicMeasurement:
    """Perplexities of a base without and with learning from the text, and the bits saved; `model` is not changed."""
    streams, config, say = _has_memory(model), settings.adapt, current_progress().say
    units: Mapping[str, Tensor]
    _refuse_settings(model, settings, streams)
    if settings.stream.attention_span is not None or settings.stream.clamp_len is not None:
        model = replace(model, base=model.streaming_base(settings.stream.attention_span, settings.stream.clamp_len))
    if streams:
        stream = model.read_stream(settings.source)
        scorer, units, measured_on = dynamic.stream_scorer(stream.tokens[None], config.segment), stream.units(), str(stream)
        counted, read_as = "tokens", f"one stream, learnt from after every {config.segment} tokens"
    else:
        encoded = model.data.read(settings.source, model.trained)
        scorer, units, measured_on = dynamic.sequence_scorer(encoded.x, 1), encoded.units, str(encoded)
        counted, read_as = "sequences", "learnt from after every sequence"
    tokens = int(units["token"].sum())
    before_start(lambda: _cost(model, tokens if streams else len(encoded), tokens, config, None if streams else encoded.x))
    statistics, description = gradient_statistics_for(model, config)

    def log_probs(pieces: list[Tensor]) -> Float[Tensor, "N"]:
        """Of each token of a stream, or of each sequence."""
        return torch.cat(pieces) if streams else torch.stack([piece.sum() for piece in pieces])

    def per_unit(total: Float[Tensor, "N"]) -> dict[str, Estimate]:
        """Nats per unit. Replicates are blocks of neighbours, because learning makes sequences depend on each other, too."""
        return {
            name: Estimate.exact(float(total.sum() / size.sum()), method="exact, fixed text", unit=f"nats per {name}")
            if settings.fixed
            else ratio_of_sums(total, size.double(), confidence=settings.confidence, counted=counted, unit=f"nats per {name}")
            for name, size in units.items()
        }

    fixed_scorer, learning_scorer = (
        dynamic.with_progress(scorer, what, tokens, say) for what in ("without learning", "learning")
    )
    static = log_probs(dynamic.score_static(model.base, fixed_scorer))
    learnt = log_probs(dynamic.score_dynamic(model.base, learning_scorer, config, statistics))
    before, after = ({name: nonnegative(nats) for name, nats in per_unit(-scores).items()} for scores in (static, learnt))
    saved = as_bits(per_unit(learnt - static))
    warnings = stream_warnings(learnt, units["token"]) if streams and not settings.fixed else []
    return DynamicMeasurement(before, after, saved, measured_on, read_as, description, warnings)


def _cost(model: Model, pieces: int, tokens: int, config: DynamicConfig, x: Sequences | None) -> Cost:
    """The text is read twice, once with a gradient and an update for each piece."""
    if x is not None:
        static = scoring("without learning", model.target, x)
    else:
        base = model.streaming_base()
        text = torch.zeros(min(pieces, 8 * config.segment), dtype=torch.long)
        static = reading("without learning", base, text, tokens, 1, config.segment)
    learning = replace(static, name="learning", each=static.each.scaled(1 + 1 / FORWARD_SHARE))
    notes = (
        () if config.rule == "sgd" else ("Gradients of the training text are collected once before, and kept in the folder.",)
    )
    memory, facts = peak_memory(model.base), {"device": model.placement}
    return Cost("esscher measure --dynamic", (static, learning), None, 0, memory, notes, facts)


def gradient_statistics_for(model: Model, config: DynamicConfig) -> tuple[dynamic.GradientStatistics | None, str]:
    """The gradient statistics that a rule needs (None for sgd), kept in a file in the model's folder, and their description."""
    if config.rule == "sgd":
        return None, "none"
    pieces = f"{config.columns}x{config.segment}" if _has_memory(model) else str(config.columns)
    shared = model.packaged_name is not None  # in a cache, where nothing is written
    file = None if model.folder is None or shared else model.folder / f"gradients-{pieces}.safetensors"
    claim: dict[str, Any] = {"weights": digest(module_tensors(model.base)), "batches": config.batches}
    if file is not None and file.is_file():
        statistics, saved = dynamic.load_statistics(file, claim if config.text is None else {**claim, "text": config.text})
        name = saved["text"]
    else:
        scorer, name, tokens = _training_text(model, config)
        base = copy.deepcopy(model.base).eval()
        with dynamic.grad_without_cudnn():
            scores = dynamic.with_progress(scorer, "gradient statistics", tokens, current_progress().say)(base)
            statistics = dynamic.collect_statistics(base, scores, batches=config.batches)
        if file is not None:
            dynamic.save_statistics(file, statistics, {**claim, "text": name})
    return statistics, f"{statistics.batches:,} gradients on {name}" + ("" if file is None else f", in {file.name}")


def _has_memory(model: Model) -> bool:
    return isinstance(model.base, NetworkBase) and isinstance(model.base.network, StreamingNetwork)


def _refuse_settings(model: Model, settings: MeasureConfig, streams: bool) -> None:
    """Refuse a model that cannot learn from the text."""
    for refused, name in (
        (model.is_tilted, "energy"),
        (model.fsdp, "fsdp"),
        (settings.source.target is not None and streams, "data.target"),
    ):
        if refused:
            raise ValueError(
                f"{name} has no meaning with dynamic, where the base learns from a text. Nothing was measured; leave it out."
            )
    if streams and model.chunking != trained_chunking(model.trained):
        raise ValueError(
            "A base with a memory learns from one stream, which is not cut. Nothing was measured; leave prompt_tokens, "
            "max_length and eos out."
        )


def _training_text(model: Model, config: DynamicConfig) -> tuple[dynamic.SegmentScorer, str, int]:
    """The text to collect gradients from, by default the one that the model was trained on; its name, and its tokens."""
    run = None if config.text is not None else model.trained
    if config.text is None and (run is None or run.data.is_drawn):
        raise ValueError(
            f"The rule {config.rule!r} needs gradient statistics of {model.name}, and the folder does not say which text the "
            f"model was trained on. Nothing was measured; name the text (adapt.text), or use the rule sgd."
        )
    source = SourceConfig(config.text or "") if run is None else run.data
    if _has_memory(model):
        if run is None:
            stream = model.read_stream(source)
        elif run.data.split == "raw":
            stream = raw_stream(read_raw_splits(run.data).train, model.tokenizer)
        else:
            stream = text_stream(read_splits(run.data).train.texts, model.tokenizer, ends=run.length.ends)
        columns = TokenStream(stream.tokens, config.segment).columns(config.columns)
        return dynamic.stream_scorer(columns, config.segment), source.source, columns.numel()
    x = model.data.read(source, None).x if run is None else model.data.read_splits(run.data, run).train
    return dynamic.sequence_scorer(x, config.columns), source.source, int(x.lengths.sum())
