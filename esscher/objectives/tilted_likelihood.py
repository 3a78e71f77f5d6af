"""Maximum likelihood of a tilted model, for any energy, with log Z from weighted draws.

    -log p(x | c) = -log a(x | c) + E(x | c) + log Z(c),      the gradient of log Z(c) is -E_p[gradient of E]

The expectation is taken over the sampler's draws by their normalised weights, so its bias falls as 1 / draws, and as the
effective sample size does when the energy grows: `effective` is among the metrics. With `Exhaustive` it is exact. Rows
with equal prompts share their draws. A sampler that gives up its normaliser (Pool, Rejection, Metropolis) serves for the
gradient; the value then lacks log Z.
"""

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.draws import Draws, Sampler
from esscher.objective import Loss
from esscher.randomness import Rng
from esscher.samplers.importance import Importance
from esscher.space import Sequences, distinct_prompts
from esscher.target import Tilted


@dataclass(frozen=True)
class TiltedLikelihood:
    """The mean over sequences of E(x) + log Z; with `train_base` also of -log a(x), and both learn.

    `draws` are those of each different prompt.
    """

    sampler: Sampler = field(default_factory=Importance)
    draws: int = 64
    train_base: bool = False

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise ValueError(f"log Z is estimated from at least 1 draw, not {self.draws}.")

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        if len(data) == 0:
            raise ValueError("There is no sequence to learn from. Nothing was computed; give some data.")
        prompts, which = distinct_prompts(data)
        drawn = self.sampler(target, prompts, self.draws, rng=rng)
        log_z = self._log_z(target, drawn)[which]
        log_score = self._log_score(target, data)
        value = (log_z - log_score).mean()
        metrics = {
            "log_score": float(log_score.detach().mean()),
            "log_z": float(log_z.detach().mean()),
            "effective": float(drawn.effective().mean()),
        }
        return Loss(value, metrics, len(data))

    def _log_z(self, target: Tilted, drawn: Draws) -> Float[Tensor, "P"]:
        """log of the mean weight; its gradient is the mean gradient of the log score under the normalised weights.

        Points without weight are left out, because an infinite energy has no gradient.
        """
        device = drawn.x.tokens.device
        log_weight = drawn.log_weight.to(device)
        kept = (log_weight > -torch.inf).view(-1)
        if not bool(kept.view(log_weight.shape).any(-1).all()):
            raise ValueError(
                f"All {log_weight.shape[1]} draws of a prompt are forbidden by the energy. Nothing was learnt from this batch; "
                f"raise `draws`, or soften the energy."
            )
        log_score = self._log_score(target, drawn.x.rows(kept))
        change = torch.zeros_like(log_weight).view(-1).masked_scatter(kept, log_score - log_score.detach())
        return torch.logsumexp(log_weight + change.view(log_weight.shape), -1) - math.log(log_weight.shape[1])

    def _log_score(self, target: Tilted, x: Sequences) -> Float[Tensor, "B"]:
        """What is to be learnt of log a(x) - E(x)."""
        return (target.log_score(x) if self.train_base else target.log_weight(x)).double()
