"""A base's own energy: the level of its logits, which softmax does not see and E-Forcing teaches.

With f the logits and lse = logsumexp f their level, E(x) = -lse before the last token of x, so that

    a(x) exp(-E(x)) = q(x_<T) exp f(x_T | x_<T)

is the p_T of `esscher.objectives.eforcing`: no network beside the base, and no pass that drawing would not need anyway. `after`
tells the level that follows a prefix, the guess of what it will come to: where levels are log density ratios of data
and model, as they are taught to be, exp(level) is a martingale under the base and no guess is better.

A level that was never taught says nothing of the kind, whatever it is. Nor does anything tie the levels of different
positions to each other: each has a constant of its own, so where points end at different lengths the energy weighs these, too.
Dropout acts as in scoring: call `eval()` on the base.
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from esscher.bases.logits import LevelBase, scores_and_levels
from esscher.cut import Cut
from esscher.energies.reading import Decode
from esscher.heads.softmax import LOGITS_AT_ONCE
from esscher.space import Sequences
from esscher.target import Base

OWN = "own"
TOKENS_AT_ONCE = 2**15


@dataclass(frozen=True)
class OwnLevel:
    """Minus the level of the base's logits before the last token of a point; 0 for a point of no token."""

    base: Base

    @property
    def vocab_size(self) -> int:
        return self.base.space.vocab_size

    def __call__(self, x: Sequences) -> Float[Tensor, "B"]:
        """E(x) of each row; a gradient goes through it to the base."""
        return -self._level(x, torch.maximum(x.stop - 1, x.start))

    def after(self, x: Sequences) -> Float[Tensor, "B"]:
        """The level of the logits that follow a prefix: those of its next token, which need not be there."""
        inside = torch.arange(x.tokens.shape[1], device=x.tokens.device) < x.stop[:, None]
        longer = pad(torch.where(inside, x.tokens, 0), (0, 1))  # whatever the next token is, its level is the same
        return self._level(Sequences(longer, x.start, x.stop + 1), x.stop)

    def _level(self, x: Sequences, column: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
        """That of one column of each row, 0 where the column is not before the row's end."""
        inside, width = column < x.stop, x.tokens.shape[1]
        at_once = rows_for_levels(self.base, width)
        levels = [
            scores_and_levels(self.base, x.rows(slice(first, first + at_once)))[1]
            for first in range(0, max(1, len(x)), at_once)
        ]
        if width == 0:
            return torch.cat(levels).sum(-1)
        found = torch.cat(levels).gather(1, column.clamp(max=width - 1)[:, None])[:, 0]
        return torch.where(inside, found, 0.0)


def rows_for_levels(base: Base, width: int) -> int:
    """Rows of so many tokens that one pass should hold; far fewer where the base keeps all logits of all positions."""
    logits = 1 if isinstance(base, LevelBase) else base.space.vocab_size
    return max(1, min(TOKENS_AT_ONCE // max(1, width), LOGITS_AT_ONCE // (max(1, width) * logits)))


@dataclass(frozen=True)
class SavedLevel:
    """The energy `own`, in the place of one that is kept in a folder: it belongs to every base, and is kept with it."""

    cut: Cut = field(default_factory=Cut)

    def energy(self, decode: Decode | None = None, base: Base | None = None) -> OwnLevel:
        """The level of this base."""
        if base is None:
            raise ValueError("The energy 'own' is the level of a base's own logits. Nothing was loaded; give the base too.")
        return OwnLevel(base)

    def check_base(self, base: nn.Module) -> None:
        """Every base has its own level."""


def named_own(energy: str | Path | None) -> bool:
    """Whether this is the word for the model's own level; an error where it is the folder of an energy, too."""
    if energy is None or str(energy) != OWN:
        return False
    if (Path(OWN) / "config.json").is_file():
        raise ValueError(
            f"{OWN!r} means the level of the model's own logits, and there is a folder of that name with an energy. Nothing "
            f"was loaded; give the whole path of the folder ({Path(OWN).resolve()}), or rename it."
        )
    return True
