"""Measuring a model on one long text that it reads with its memory: `esscher measure` of a model that learnt from streams.

The text is read in several columns at once where it is long; how is told in `esscher.estimators.streams`. The number is
that of one reading from left to right as far as the columns' warm-up reaches, and exactly that with one column.
"""

from dataclasses import dataclass
from typing import Any

from esscher.bases.network import NetworkBase
from esscher.data.streams import TextStream
from esscher.estimate import Estimate
from esscher.estimators.perplexity import Test, as_bits, as_perplexity
from esscher.estimators.streams import SEGMENT, WARM, doubts, read_stream, stream_cross_entropy

TOKENS_A_COLUMN, MOST_COLUMNS = 20 * WARM, 16


@dataclass(frozen=True)
class StreamMeasuring:
    """How to read: None leaves the number of columns to the length of the text, one for each 20,480 tokens and at most 16."""

    streams: int | None = None
    segment: int = SEGMENT
    warm: int = WARM
    test: Test = "sample"
    level: float = 0.95

    def columns(self, tokens: int) -> int:
        """Columns for a text of so many tokens."""
        return self.streams or max(1, min(MOST_COLUMNS, tokens // TOKENS_A_COLUMN))


@dataclass(frozen=True)
class MeasuredStream:
    """Nats by unit, and how the text was read."""

    nats: dict[str, Estimate]
    columns: int
    settings: StreamMeasuring
    warnings: list[str]

    @property
    def read_as(self) -> str:
        """How the text was read, in words."""
        how = (
            f"{self.columns} columns, each after {self.settings.warm:,} tokens before it" if self.columns > 1 else "one column"
        )
        return f"{how}, {self.settings.segment:,} tokens at a time"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each unit."""
        perplexity, bits = as_perplexity(self.nats), as_bits(self.nats)
        return [{"per": unit, "perplexity": perplexity[unit], "bits": bits[unit]} for unit in self.nats]


def measure_stream(base: NetworkBase, text: TextStream, settings: StreamMeasuring) -> MeasuredStream:
    """Cross-entropy of a text under a base with a memory, per token, word, character and byte."""
    columns, units = settings.columns(len(text)), text.units()
    score = read_stream(base, text.tokens, streams=columns, segment=settings.segment, warm=settings.warm)
    nats = stream_cross_entropy(score, units, test=settings.test, level=settings.level)
    doubtful = doubts(score, units["token"]) if settings.test == "sample" else []
    return MeasuredStream(nats, columns, settings, doubtful)
