"""What a base is trained to minimise, without torch: the kind of objective and its settings."""

import math
from dataclasses import dataclass, fields
from typing import Literal

from esscher.settings.data import check_choices

OWN: dict[str, tuple[str, ...]] = {
    "likelihood": (),
    "eforcing": ("after_epochs", "after_steps", "weight", "decay", "negatives", "inner", "clip", "counts"),
    "scheduled-sampling": ("after_epochs", "after_steps", "share", "rise_epochs", "form"),
    "permuted": ("one_in", "spans", "longest_span"),
    "denoising": ("hidden",),
}
"""The settings that each kind has."""
ANY_ORDER = ("permuted", "denoising")
"""The kinds that train a base to predict in any order."""


@dataclass(frozen=True)
class ObjectiveConfig:
    """The objective: its kind, and the settings of that kind."""

    kind: Literal["likelihood", "eforcing", "scheduled-sampling", "permuted", "denoising"] = "likelihood"
    """What is minimised. eforcing and scheduled-sampling begin as likelihood and add to it; permuted is the likelihood of an
    xlnet in orders by chance, denoising that of tokens hidden from it."""
    after_epochs: int | None = None
    """Epochs of plain likelihood first."""
    after_steps: int | None = None
    """The same in updates."""
    weight: float = 0.3
    """eforcing: weight of the energy at the first position of a point."""
    decay: float = 0.9
    """eforcing: what it is multiplied by from position to position."""
    negatives: int | None = None
    """eforcing: most tokens of a draw; as many as a point has if not given."""
    inner: Literal["exact", "sampled"] = "exact"
    """eforcing: the next token of a draw in expectation, or as drawn."""
    clip: float | None = None
    """eforcing: largest weight of a draw, in multiples of the mean."""
    counts: Literal["again", "once"] = "again"
    """eforcing: whether a token of the data counts again at every later position, as published, or once."""
    share: float = 0.25
    """scheduled-sampling: share of own tokens once it has risen."""
    rise_epochs: int = 1
    """scheduled-sampling: epochs over which it rises in a straight line."""
    form: Literal["passes", "steps"] = "passes"
    """scheduled-sampling: own tokens in one pass more, given the data before them; or step by step, given own ones."""
    one_in: float = 6.0
    """permuted: one token in so many is predicted (K)."""
    spans: Literal["words", "pieces", "none"] = "words"
    """permuted: targets are spans of words, as published; of pieces, as in the released program; or single tokens."""
    longest_span: int = 5
    """permuted: most words or pieces of a span."""
    hidden: float = 0.15
    """denoising: share of the tokens that are hidden."""

    def __post_init__(self) -> None:
        check_choices(self)
        if self.after_epochs is not None and self.after_steps is not None:
            raise ValueError(
                f"Plain likelihood lasts after_epochs = {self.after_epochs}, or after_steps = {self.after_steps}; give one of "
                f"them."
            )
        for name in ("after_epochs", "after_steps", "weight"):
            value = getattr(self, name)
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} is at least 0, not {value}.")
        for name in ("negatives", "rise_epochs", "one_in", "longest_span"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is at least 1, not {value}.")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay lies in (0, 1], not {self.decay}.")
        if self.clip is not None and not self.clip >= 1:
            raise ValueError(f"clip is at least 1, not {self.clip}.")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share lies in [0, 1], not {self.share}.")
        if not 0 < self.hidden <= 1:
            raise ValueError(f"hidden lies in (0, 1], not {self.hidden}.")
        for one in fields(self):
            if one.name != "kind" and one.name not in OWN[self.kind] and getattr(self, one.name) != one.default:
                raise ValueError(f"The objective {self.kind} has no {one.name}; leave it out, or choose another kind.")
