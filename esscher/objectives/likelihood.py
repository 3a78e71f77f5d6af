"""Maximum likelihood of the base, the energy left aside."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from esscher.bases.network import LogitBase, Penalised
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
        counted = data.counted
        tokens = int(counted.sum())
        if tokens == 0:
            raise ValueError(f"None of the {len(data)} sequences has a token to learn from: their points are empty.")
        if self.label_smoothing == 0:
            nll = -target.base.log_probs(data).sum() / tokens
            return _with_penalty(target.base, nll, float(nll.detach()), tokens)
        if not isinstance(target.base, LogitBase):
            raise ValueError(
                f"Label smoothing needs the whole distribution at every position, and {type(target.base).__name__} has "
                f"no `logits`. Nothing was computed; use label_smoothing=0, or a network base."
            )
        logits, answer = target.base.logits(data)[counted], data.tokens[counted]
        value = cross_entropy(logits, answer, label_smoothing=self.label_smoothing)
        with torch.no_grad():
            nll = cross_entropy(logits, answer)
        return _with_penalty(target.base, value, float(nll), tokens)


def _with_penalty(base: Base, value: Tensor, nll: float, tokens: int) -> Loss:
    """The loss, and what a base that says so adds to it for the pass it was made by."""
    penalty = base.penalty() if isinstance(base, Penalised) else None
    if penalty is None:
        return Loss(value, {"nll": nll}, tokens)
    return Loss(value + penalty, {"nll": nll, "penalty": float(penalty.detach())}, tokens)
