"""Measuring a base with a memory on one long text: `esscher measure` of a model that was trained on streams.

A long text is read in several columns at once, see `esscher.estimators.long_context`. With one column the result is exactly
that of reading from left to right; with several, up to what the memory holds beyond the columns' warm-up.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

from esscher.bases.network import NetworkBase, with_attention_span
from esscher.core.estimate import Estimate
from esscher.data.config import SourceConfig
from esscher.data.splits import read_stream
from esscher.data.text import TextStream
from esscher.estimators.long_context import SEGMENT, WARM, stream_cross_entropy, stream_log_probs, stream_warnings
from esscher.estimators.perplexity import TestSetMode, as_bits, as_perplexity
from esscher.reports.report import Report
from esscher.workflow.config.measure import MeasureConfig, StreamConfig
from esscher.workflow.model import Model
from esscher.workflow.run_folder import stream_settings, trained_chunking

TOKENS_PER_COLUMN, MAX_COLUMNS = 20 * WARM, 16


@dataclass(frozen=True)
class StreamMeasurement:
    """Nats by unit, and how the text was read."""

    nats: Mapping[str, Estimate]
    measured_on: str
    read_as: str
    warnings: list[str]

    @property
    def nats_by_model(self) -> dict[str, Mapping[str, Estimate]]:
        return {"base": self.nats}

    def report(self, model: Model, settings: MeasureConfig) -> Report:
        """A row for each unit."""
        perplexity, bits = as_perplexity(self.nats), as_bits(self.nats)
        rows = [{"per": unit, "perplexity": perplexity[unit], "bits": bits[unit]} for unit in self.nats]
        facts = {
            "model": model.name,
            "data": settings.source.source,
            "measured_on": self.measured_on,
            "read_as": self.read_as,
        }
        notes = [f"base: {self.nats['token'].method}", *self.warnings]
        return Report("esscher measure", facts, {"perplexities": rows}, notes)


def stream_columns(tokens: int) -> int:
    """The number of columns in which a text of so many tokens is read by default."""
    return max(1, min(MAX_COLUMNS, tokens // TOKENS_PER_COLUMN))


def measure_stream(
    base: NetworkBase, text: TextStream, settings: StreamConfig, *, test: TestSetMode = "sample", confidence: float = 0.95
) -> StreamMeasurement:
    """Cross-entropy of a text under a base with a memory, per token, word, character and byte.

    Args:
        base: A network with a memory.
        text: The text.
        settings: How it is read; `attention_span` and `clamp_len` are those of the base.
        test: Whether the intervals are for all text like this one, or for exactly this one.
        confidence: Coverage of the intervals.

    Returns:
        Nats by unit, how the text was read, and warnings.
    """
    columns, segment, units = settings.columns or stream_columns(len(text)), settings.segment or SEGMENT, text.units()
    log_prob = stream_log_probs(base, text.tokens, streams=columns, segment=segment, warm=settings.warmup)
    nats = stream_cross_entropy(log_prob, units, test=test, confidence=confidence)
    warnings = stream_warnings(log_prob, units["token"]) if test == "sample" else []
    how = f"{columns} columns, each after {settings.warmup:,} tokens before it" if columns > 1 else "one column"
    return StreamMeasurement(nats, str(text), f"{how}, {segment:,} tokens at a time", warnings)


def measure_model_stream(model: Model, settings: MeasureConfig) -> StreamMeasurement:
    """The model on the data of the settings as one stream, read as in its training."""
    settings.refuse_sequence_settings("where a text is read as one stream")
    base = base_with_span(model, settings.stream)
    text = read_model_stream(model, settings.source)
    _, length = stream_settings(model.trained)
    stream = replace(settings.stream, segment=settings.stream.segment or length.tokens)
    return measure_stream(base, text, stream, test=settings.test, confidence=settings.confidence)


def reads_stream(model: Model, settings: MeasureConfig) -> bool:
    """Whether the data are read as one stream: if the model was trained so, or a setting of `stream` is given."""
    stream_set = settings.stream != StreamConfig()
    if model.is_tilted or settings.source.target is not None or model.chunking != trained_chunking(model.trained):
        if stream_set:
            raise ValueError(
                "The settings of stream are for one text that a base reads with its memory. Nothing was measured; "
                "leave energy, "
                "data.target, max_length, eos and prompt_tokens out."
            )
        return False
    return stream_set or (model.trained is not None and model.trained.length.stream)


def read_model_stream(model: Model, data: SourceConfig) -> TextStream:
    """A source as one stream, as in the training of the model, if that was on a stream."""
    trained, length = stream_settings(model.trained)
    return read_stream(data.with_defaults(trained), model.tokenizer, raw=trained.split == "raw", ends=length.ends)


def base_with_span(model: Model, settings: StreamConfig) -> NetworkBase:
    """The base, which must have a memory; with the attention span of the settings it is a copy."""
    base = model.streaming_base
    if settings.attention_span is None and settings.clamp_len is None:
        return base
    return with_attention_span(copy.deepcopy(base), attention_span=settings.attention_span, clamp_len=settings.clamp_len)
