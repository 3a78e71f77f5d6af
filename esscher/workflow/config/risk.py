"""The settings of `esscher risk`, without torch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from esscher.core.config import Texts, check_at_least
from esscher.core.truncation import Truncation
from esscher.energies.event_spec import parse_event


@dataclass(frozen=True)
class RiskConfig(Truncation):
    """How likely it is that a model produces a text with an event, for one prompt or as the mean over prompts, with an interval
    and a verdict. Direct draws come first; if the event is too rare for them, particles climb a ladder of levels of a score
    that leads to it, in independent runs.

    An event is a declared feature, such as contains:dragon or matches:^Once; a number with a bound, such as count:the>=12,
    tokens>=100 or classifier[label=toxic]:folder>=0.9; phrases:one,another or phrases:@file; or
    readability[index=smog]<=4. In Python it may be a function of a text."""

    event: str | Callable[[str], Any]
    """The event, such as contains:dragon or count:the>=12."""
    prompt: Texts = field(default=(), kw_only=True)
    """Text to continue; may be given several times. By default none."""
    prompts: str | None = field(default=None, kw_only=True)
    """File with a prompt a line. The lines are the population: the interval is for their mean, not for other prompts."""
    at_least: float = field(default=1.0, kw_only=True)
    """In Python: the value of a function from which on the event happens."""
    draws: int = field(default=20_000, kw_only=True)
    """Budget, in sequences' worth of tokens that the base draws or reads."""
    minutes: float | None = field(default=None, kw_only=True)
    """Budget in minutes instead, as many draws as the first ones suggest."""
    runs: int = field(default=12, kw_only=True)
    """Independent runs of the ladder, from whose spread the interval comes; of particles twice as many."""
    confidence: float = field(default=0.95, kw_only=True)
    """Coverage of the interval."""
    texts: int = field(default=4, kw_only=True)
    """How many texts with the event to show."""
    out: str | None = field(default=None, kw_only=True)
    """Folder for the report, the plot of the ladder, the texts with the event, and what --resume needs."""
    resume: bool = field(default=False, kw_only=True)
    """Go on with an interrupted run in the folder."""
    seed: int = field(default=0, kw_only=True)
    """Seed of everything random; printed back."""

    def __post_init__(self) -> None:
        for name, least in (("draws", 1000), ("runs", 4), ("texts", 0), ("minutes", 0)):
            check_at_least(self, least, name, note=" Nothing was drawn.")
        if isinstance(self.prompt, str):
            raise ValueError(f"prompt is a list of texts, and {self.prompt!r} is one text. Nothing was drawn; write a list.")
        if self.prompt and self.prompts is not None:
            raise ValueError("Prompts are named, or are the lines of a file. Nothing was drawn; leave one of both out.")
        if isinstance(self.event, str):
            parse_event(self.event)
