"""Maximum likelihood of the base, the energy left aside."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.bases.logits import LogitBase, of_logits, scores_and_levels
from esscher.networks.network import Penalised
from esscher.objective import Loss
from esscher.randomness import Rng
from esscher.space import Sequences
from esscher.target import Base, Tilted


@dataclass(frozen=True)
class Likelihood:
    """Mean negative log-likelihood per counted token.

    With `label_smoothing` the data's token is believed only to that much less than 1, and the rest is spread
    evenly over the vocabulary. A base that penalises its activations in training has the penalty added.
    """

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"Label smoothing lies in [0, 1), not {self.label_smoothing}.")

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        tokens = tokens_of(data)
        if self.label_smoothing == 0:
            score = target.base.log_probs(data)
            value = -score.sum() / tokens
        else:
            value, score, _ = self.and_levels(target.base, data)
        return loss_of(target.base, value, {"nll": float(-score.detach().sum() / tokens)}, tokens)

    def and_levels(self, base: Base, data: Sequences) -> tuple[Float[Tensor, ""], Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        """The value without a penalty, the log-probabilities, and the levels of the logits they are of: all of one pass."""
        tokens = tokens_of(data)
        if self.label_smoothing == 0:
            score, level = scores_and_levels(base, data)
            return -score.sum() / tokens, score, level
        if not isinstance(base, LogitBase):
            raise ValueError(
                f"Label smoothing needs the whole distribution at every position, and {type(base).__name__} has "
                f"no `logits`. Nothing was computed; use label_smoothing=0, or a network base."
            )
        logits = base.logits(data)
        score, level = of_logits(logits, data)
        spread = torch.where(data.counted, logits.mean(-1) - level, 0.0)
        believed = (1 - self.label_smoothing) * score + self.label_smoothing * spread
        return -believed.sum() / tokens, score, level


def tokens_of(data: Sequences) -> int:
    """How many tokens the points have, at least one."""
    tokens = int(data.lengths.sum())
    if tokens == 0:
        raise ValueError(f"None of the {len(data)} sequences has a token to learn from: their points are empty.")
    return tokens


def loss_of(base: Base, value: Float[Tensor, ""], metrics: dict[str, float], tokens: int) -> Loss:
    """A value per token as a loss, with what a base that says so adds to it for the pass it was made by."""
    penalty = base.penalty() if isinstance(base, Penalised) else None
    if penalty is None:
        return Loss(value, metrics, tokens)
    return Loss(value + penalty, {**metrics, "penalty": float(penalty.detach())}, tokens)
