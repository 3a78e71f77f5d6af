"""The self-energy of a base: minus the logsumexp of its logits, which softmax ignores and E-Forcing trains.

With f the logits, E(x) = -logsumexp f before the last token of x, so that a(x) exp(-E(x)) = q(x_<T) exp f(x_T | x_<T) is the
p_T of `esscher.objectives.exposure_bias`. `twist` is the logsumexp after a prefix, the optimal twist where logsumexps are log
density ratios of data and model. A logsumexp that was never trained means nothing. E-Forcing does not see a constant that is
added to all logits of a position, so logsumexps of different positions cannot be compared: where sequences have different
lengths, `normalised_self_energy` divides by the mean of each position (docs/why/eforcing.md). Dropout acts as in scoring: call
`eval()` on the base.
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from esscher.bases.logits import LogsumexpBase, log_probs_and_logsumexp
from esscher.core.chunking import Chunking
from esscher.core.space import Sequences, point_values
from esscher.core.target import Base
from esscher.energies.features import Decode
from esscher.heads.chunked_log_softmax import LOGITS_PER_CHUNK

SELF = "self"
TOKENS_AT_ONCE = 2**15


@dataclass(frozen=True)
class SelfEnergy:
    """Minus the logsumexp of the base's logits before the last token of a point, less `log_means` of that position (0 if there
    are none, the last of them after the last one); 0 for an empty point."""

    base: Base
    log_means: tuple[float, ...] = ()

    @property
    def vocab_size(self) -> int:
        return self.base.space.vocab_size

    def __call__(self, x: Sequences) -> Float[Tensor, "B"]:
        return -self._logsumexp_at(x, torch.maximum(x.stop - 1, x.start))

    def twist(self, x: Sequences) -> Float[Tensor, "B"]:
        """The logsumexp of the logits of the next token after each prefix."""
        longer = pad(torch.where(x.inside, x.tokens, 0), (0, 1))  # any next token has the same logsumexp
        return self._logsumexp_at(Sequences(longer, x.start, x.stop + 1), x.stop)

    def _logsumexp_at(self, x: Sequences, column: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
        """The logsumexp of one column of each row; 0 where the column is not inside the row."""
        inside, width = column < x.stop, x.tokens.shape[1]
        pieces = x.split(rows_per_pass(self.base, width)) or [x]
        logsumexps = [log_probs_and_logsumexp(self.base, piece)[1] for piece in pieces]
        if width == 0:
            return torch.cat(logsumexps).sum(-1)
        at_column = torch.cat(logsumexps).gather(1, column.clamp(max=width - 1)[:, None])[:, 0]
        if self.log_means:
            means = torch.tensor(self.log_means, dtype=at_column.dtype, device=at_column.device)
            at_column = at_column - means[(column - x.start).clamp(max=len(means) - 1)]
        return torch.where(inside, at_column, 0.0)


@torch.no_grad()
def normalised_self_energy(base: Base, draws: Sequences) -> SelfEnergy:
    """The self-energy with exp logsumexp of each position divided by its mean over the draws of the base that reach it; the
    draws follow the prompts that it will be used for. Where all points have one length, this changes no distribution."""
    width = int(draws.lengths.max()) if len(draws) else 0
    if width == 0:
        raise ValueError(
            "There is no draw to normalise a self-energy with. Nothing was computed; draw some points of the base."
        )
    pieces = draws.split(rows_per_pass(base, draws.tokens.shape[1]))
    logsumexps = torch.cat([point_values(x, log_probs_and_logsumexp(base, x)[1], width).double() for x in pieces])
    reached = torch.arange(width, device=logsumexps.device) < draws.lengths[:, None]
    log_sums = torch.where(reached, logsumexps, -torch.inf).logsumexp(0)
    return SelfEnergy(base, tuple((log_sums - reached.sum(0).log()).tolist()))


def rows_per_pass(base: Base, width: int) -> int:
    """Rows of `width` tokens that one pass should hold; far fewer if the base keeps all logits of all positions."""
    logits = 1 if isinstance(base, LogsumexpBase) else base.space.vocab_size
    return max(1, min(TOKENS_AT_ONCE // max(1, width), LOGITS_PER_CHUNK // (max(1, width) * logits)))


@dataclass(frozen=True)
class SavedSelfEnergy:
    """The energy `self`, in place of a saved one: every base has one, and no folder is needed."""

    chunking: Chunking = field(default_factory=Chunking)

    def energy(self, decode: Decode | None = None, base: Base | None = None) -> SelfEnergy:
        """The self-energy of this base."""
        if base is None:
            raise ValueError("The energy 'self' is computed from the logits of a base. Nothing was loaded; give the base too.")
        return SelfEnergy(base)

    def check_base(self, base: nn.Module) -> None:
        """Accept every base."""


def is_self_energy(energy: str | Path | None) -> bool:
    """Whether this is the word for the self-energy; an error if it is also the folder of an energy."""
    if energy is None or str(energy) != SELF:
        return False
    if (Path(SELF) / "config.json").is_file():
        raise ValueError(
            f"{SELF!r} names the self-energy of the base, and there is a folder of that name with an energy. Nothing was "
            f"loaded; give the whole path of the folder ({Path(SELF).resolve()}), or rename it."
        )
    return True
