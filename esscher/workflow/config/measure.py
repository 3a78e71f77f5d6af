"""The settings of `esscher measure`, without torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from esscher.core.config import check_at_least
from esscher.data.config import SourceConfig
from esscher.samplers.registry import SAMPLERS
from esscher.training.config import DynamicConfig
from esscher.workflow.config.proposal import ProposalConfig


@dataclass(frozen=True)
class StreamConfig:
    """How a long text is read as one stream, with the memory of the model."""

    columns: int | None = None
    """Columns that are read at once; by default one for each 20,480 tokens, and at most 16."""
    segment: int | None = None
    """Tokens that are read at a time; by default as many as in training, else 128."""
    warmup: int = 1024
    """Tokens that a column after the first reads before its first token, to fill its memory."""
    attention_span: int | None = None
    """Number of positions before its own that a Transformer-XL attends to; by default as many as it was trained with."""
    clamp_len: int | None = None
    """Largest distance that a Transformer-XL distinguishes."""


@dataclass(frozen=True)
class MeasureConfig(ProposalConfig):
    """Longer texts than the model's sequences are cut, and counted; end symbols count, prompts do not.

    A model that was trained on a stream reads all texts as one, with its memory; so does any base with a memory when a setting
    of `stream` is given. With `dynamic` the weights learn from the text as it is read (`adapt`). With `data.target` the data
    are sources, and their translations are measured.
    """

    data: SourceConfig | str
    draws: int | None = field(default=None, kw_only=True)
    """Draws for log Z: by default 4000 where all texts have one prompt, else 64 after each; of a ladder, 16 runs."""
    sampler: Annotated[Any, SAMPLERS] | None = field(default=None, kw_only=True)
    """How log Z of a tilted model is estimated: importance by default; ladder, with a run for each draw, for a strong tilt."""
    sequences: int | None = field(default=None, kw_only=True)
    """Test sequences at most, evenly spaced; by default all, of tilted chunks 500."""
    positions: int = field(default=0, kw_only=True)
    """Add the perplexity at each position, on so many of the sequences."""
    position_draws: int = field(default=64, kw_only=True)
    """Draws after each prefix of these sequences, of the base itself."""
    sample_last: bool = field(default=False, kw_only=True)
    """Draw at the last position too, instead of scoring every token of the vocabulary."""
    plot: str | None = field(default=None, kw_only=True)
    """Plot the perplexity by position into this file, such as positions.png."""
    fixed: bool = field(default=False, kw_only=True)
    """The interval for exactly these texts, instead of for all text like them."""
    confidence: float = field(default=0.95, kw_only=True)
    """Coverage of the intervals."""
    stream: StreamConfig = field(default_factory=StreamConfig, kw_only=True)
    dynamic: bool = field(default=False, kw_only=True)
    """Learn from each piece of the text after it was scored, beside the model without learning."""
    adapt: DynamicConfig = field(default_factory=DynamicConfig, kw_only=True)
    out: str | None = field(default=None, kw_only=True)
    """Folder that keeps the draws and the report; an interrupted measurement goes on there."""
    seed: int = field(default=0, kw_only=True)
    """Seed of everything random; printed back."""

    def __post_init__(self) -> None:
        for name, least in (("draws", 2), ("sequences", 2), ("positions", 0), ("position_draws", 2)):
            check_at_least(self, least, name, note=" Nothing was measured.")
        self.check_proposal_share()
        if self.plot is not None and self.positions == 0:
            raise ValueError("plot shows the perplexity by position. Nothing was measured; set positions, too.")
        default = StreamConfig()
        if self.dynamic:
            names = [name for name in ("columns", "segment", "warmup") if getattr(self.stream, name) != getattr(default, name)]
            self.refuse_sequence_settings(
                "with dynamic, which reads a text once (tokens between two updates: adapt.segment)",
                [f"stream.{name}" for name in names],
            )
        elif self.adapt != DynamicConfig():
            raise ValueError("adapt says how to learn from the text. Nothing was measured; set dynamic, too.")

    @property
    def source(self) -> SourceConfig:
        """The data as settings, whether a path or settings were given."""
        return SourceConfig(self.data) if isinstance(self.data, str) else self.data

    @property
    def test(self) -> Literal["fixed", "sample"]:
        """What the intervals are for: exactly these texts, or all text of which they are a sample."""
        return "fixed" if self.fixed else "sample"

    def refuse_sequence_settings(self, where: str, others: Sequence[str] = ()) -> None:
        """Refuse settings that need sequences, where a text is read in one piece."""
        names = [*(name for name in ("draws", "sequences", "positions", "proposal") if getattr(self, name)), *others]
        if names:
            raise ValueError(f"{', '.join(names)} has no meaning {where}. Nothing was measured; leave it out.")
