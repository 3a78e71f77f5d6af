"""Measuring a model that learns from the text it is measured on, beside the same model at rest: `esscher measure --dynamic`.

A base with a memory reads the text as one stream, a segment between two updates. Any other reads it as its sequences, one
between two updates. Both readings cut the text alike, so that their difference is what learning is worth, and it is far
better known than either number.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.bases.network import NetworkBase
from esscher.data.sources import Unit, read_texts
from esscher.data.streams import TextStream, raw_stream, text_stream
from esscher.estimate import Estimate
from esscher.estimators.blocks import ratio_of_sums
from esscher.estimators.perplexity import Test, as_bits, as_perplexity, check_test, clipped
from esscher.estimators.streams import doubts
from esscher.hub import SavedBase
from esscher.networks.network import StreamingNetwork
from esscher.settings.dynamic import DynamicConfig
from esscher.settings.train import TrainRun
from esscher.training.dynamic import Reader, differentiable, read_at_rest, read_learning, said, sequence_reader, stream_reader
from esscher.training.gradient_statistics import (
    GradientStatistics,
    collect_statistics,
    load_statistics,
    save_statistics,
    weights_digest,
)
from esscher.training.streams import Stream
from esscher.verbs.models import Model
from esscher.verbs.run_folder import manner_of, settings_of
from esscher.verbs.training_data import read_raw_splits, read_splits
from esscher.verbs.training_streams import read_stream_of

Say = Callable[[str], None]


@dataclass(frozen=True)
class Text:
    """A text as a model reads it: in tokens or in sequences, each worth some units."""

    reader: Reader
    units: dict[str, Tensor]
    told: str
    streamed: bool

    @property
    def tokens(self) -> int:
        return int(self.units["token"].sum())

    def scores(self, pieces: list[Tensor]) -> Float[Tensor, "N"]:
        """The log-probability of each token of a stream, or of each sequence."""
        return torch.cat(pieces) if self.streamed else torch.stack([piece.sum() for piece in pieces])


@dataclass(frozen=True)
class MeasuredDynamic:
    """Nats by unit at rest and learning, bits that learning saved, and how it was done."""

    at_rest: dict[str, Estimate]
    learning: dict[str, Estimate]
    bits_saved: dict[str, Estimate]
    measured_on: str
    read_as: str
    statistics: str
    warnings: list[str]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each unit."""
        perplexity, bits, before = as_perplexity(self.learning), as_bits(self.learning), as_perplexity(self.at_rest)
        return [
            {
                "per": unit,
                "perplexity": perplexity[unit],
                "bits": bits[unit],
                "perplexity_at_rest": before[unit],
                "bits_saved": self.bits_saved[unit],
            }
            for unit in self.learning
        ]


def measure_dynamic(
    model: Model,
    source: str,
    config: DynamicConfig,
    *,
    column: str = "text",
    unit: Unit | None = None,
    test: Test = "sample",
    level: float = 0.95,
    say: Say = lambda text: None,
) -> MeasuredDynamic:
    """Perplexities of a model on a text at rest and learning, and what learning saved."""
    text = _judged(model, source, column, unit, config)
    statistics, collected = statistics_for(model, config, say=say)
    at_rest = text.scores(read_at_rest(model.base, said(text.reader, "at rest", text.tokens, say)))
    reader = said(text.reader, "learning", text.tokens, say)
    learning = text.scores(read_learning(model.base, reader, config, statistics))
    return MeasuredDynamic(
        {name: clipped(nats) for name, nats in _by_unit(-at_rest, text, test, level).items()},
        {name: clipped(nats) for name, nats in _by_unit(-learning, text, test, level).items()},
        as_bits(_by_unit(learning - at_rest, text, test, level)),
        text.told,
        f"one stream, learnt from after every {config.segment} tokens" if text.streamed else "learnt from after every sequence",
        collected,
        doubts(learning, text.units["token"]) if test == "sample" and text.streamed else [],
    )


def statistics_for(
    model: Model, config: DynamicConfig, *, say: Say = lambda text: None
) -> tuple[GradientStatistics | None, str]:
    """The statistics beside a model, collected if there are none yet, and what to say of them; sgd has none."""
    if config.rule == "sgd":
        return None, "none"
    streamed = has_memory(model.base)
    cut = f"{config.columns}x{config.segment}" if streamed else str(config.columns)
    file = model.folder / f"gradients-{cut}.safetensors"
    claim: dict[str, Any] = {"weights": weights_digest(model.base), "batches": config.batches}
    if file.is_file():
        found, stated = load_statistics(file, claim if config.text is None else {**claim, "text": config.text})
        return found, _told(found, stated["text"], file)
    reader, name, tokens = _learnt(model, config)
    base = copy.deepcopy(model.base).eval()
    with differentiable():
        scores = said(reader, "usual gradients", tokens, say)(base)
        found = collect_statistics(base, scores, batches=config.batches)
    save_statistics(file, found, {**claim, "text": name})
    return found, _told(found, name, file)


def has_memory(base: SavedBase) -> bool:
    """Whether a base reads streams."""
    return isinstance(base, NetworkBase) and isinstance(base.network, StreamingNetwork)


def _judged(model: Model, source: str, column: str, unit: Unit | None, config: DynamicConfig) -> Text:
    """The text to be measured on."""
    if has_memory(model.base):
        data, length = manner_of(model.folder)
        stream = read_stream_of(source, model.tokenizer, replace(data, column=column, unit=unit or data.unit), length)
        return Text(stream_reader(stream.tokens[None], config.segment), stream.units(), str(stream), True)
    made = model.read(read_texts(source, column=column, unit=unit or "line").texts)
    return Text(sequence_reader(made.x, 1), made.units(), str(made), False)


def _learnt(model: Model, config: DynamicConfig) -> tuple[Reader, str, int]:
    """The text to collect gradients from, its name, and its tokens."""
    run = settings_of(model.folder)
    if config.text is None and (run is None or run.data.motif is not None):
        raise ValueError(
            f"The rule {config.rule!r} needs the usual gradients of {model.folder}, and the folder does not say which text it "
            f"learnt from. Nothing was measured; name the text (--adapt.text), or use the rule sgd."
        )
    if has_memory(model.base):
        stream = _training_stream(model, run, config.text)
        columns = Stream(stream.tokens, config.segment).columns(config.columns)
        reader, tokens = stream_reader(columns, config.segment), columns.numel()
    else:
        texts = read_splits(run.data).train if run is not None and config.text is None else read_texts(config.text or "")
        x = model.read(texts.texts).x
        reader, tokens = sequence_reader(x, config.columns), int(x.lengths.sum())
    return reader, config.text or (run.data.source if run is not None else ""), tokens


def _training_stream(model: Model, run: TrainRun | None, text: str | None) -> TextStream:
    """A text in the manner of the model, or the one that it learnt from, by the tokenizer that it has."""
    if text is not None:
        return read_stream_of(text, model.tokenizer, *manner_of(model.folder))
    assert run is not None
    if run.data.split == "raw":
        return raw_stream(read_raw_splits(run.data)[0], model.tokenizer)
    return text_stream(read_splits(run.data).train.texts, model.tokenizer, ends=run.length.ends)


def _by_unit(total: Float[Tensor, "N"], text: Text, test: Test, level: float) -> dict[str, Estimate]:
    """Nats per unit, neighbours being blocks as in a stream, because learning makes sequences depend on each other, too."""
    check_test(test)
    found, of = {}, "tokens" if text.streamed else "sequences"
    for name, size in text.units.items():
        unit = f"nats per {name}"
        if test == "fixed":
            found[name] = Estimate.exact(float(total.sum() / size.sum()), method="exact, fixed text", unit=unit)
        else:
            found[name] = ratio_of_sums(total, size.double(), level=level, of=of, unit=unit)
    return found


def _told(found: GradientStatistics, text: str, file: Path) -> str:
    return f"{found.batches:,} gradients on {text}, in {file.name}"
