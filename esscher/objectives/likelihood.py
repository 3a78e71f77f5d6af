"""Maximum likelihood of the base, the energy left aside."""

from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from esscher.bases.network import LogitBase
from esscher.objective import Loss
from esscher.randomness import Rng
from esscher.space import Sequences
from esscher.target import Tilted


@dataclass(frozen=True)
class Likelihood:
    """Mean negative log-likelihood per counted token.

    With `label_smoothing` the data's token is believed only to that much less than 1, and the rest is spread
    evenly over the vocabulary.
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
            return Loss(nll, {"nll": float(nll.detach())}, tokens)
        if not isinstance(target.base, LogitBase):
            raise ValueError(
                f"Label smoothing needs the whole distribution at every position, and {type(target.base).__name__} has "
                f"no `logits`. Nothing was computed; use label_smoothing=0, or a network base."
            )
        logits, answer = target.base.logits(data)[counted], data.tokens[counted]
        value = cross_entropy(logits, answer, label_smoothing=self.label_smoothing)
        with torch.no_grad():
            nll = cross_entropy(logits, answer)
        return Loss(value, {"nll": float(nll)}, tokens)
