"""What every sampler returns.

The contract, which `esscher.testing.assert_draws_follow` checks for each of them by exact enumeration:
for every prompt and every function f of the point,

    E[ mean_n exp(log_weight[n]) f(x[n]) ] = Z E_p[f]      when `estimates_z`,
    E[ mean_n exp(log_weight[n]) f(x[n]) ] = E_p[f]        otherwise.

Points stay on the device of the prompts; weights and log-probabilities are float64 on the CPU, where estimators
work. A sampler that keeps the contract only in the limit (a pool of finite size, a chain of finite length) says so in its
docstring.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.randomness import Rng
from esscher.space import Sequences, concatenate
from esscher.target import Tilted


@dataclass(frozen=True)
class Draws:
    """Weighted points, N for each of P prompts."""

    x: Sequences  # P * N rows, prompt-major
    log_weight: Float[Tensor, "P N"]
    log_base: Float[Tensor, "P N"]  # log a(x), known from drawing: never score a draw again
    estimates_z: bool
    independent: bool  # of each other, given the prompt: true for importance draws, false for particles
    cost: int  # sequences drawn from the proposal, the honest price
    info: Mapping[str, Tensor] = field(default_factory=dict)  # what a person may want to see

    def log_z(self) -> Float[Tensor, "P"]:
        """log of the mean weight for each prompt: an estimate of log Z, in float64."""
        if not self.estimates_z:
            raise ValueError(
                "These draws follow p but carry no estimate of log Z: they come from a sampler that discards its "
                "normaliser (Pool, Rejection, Metropolis). Use Importance or Particles to estimate log Z."
            )
        return torch.logsumexp(self.log_weight.double(), -1) - math.log(self.log_weight.shape[1])

    def expect(self, values: Float[Tensor, "P N"]) -> Float[Tensor, "P"]:
        """Self-normalised estimate of E_p[values] for each prompt."""
        share = torch.softmax(self.log_weight.double(), -1)
        return (share * torch.where(share > 0, values, 0.0)).sum(-1)

    def effective(self) -> Float[Tensor, "P"]:
        """Effective sample size for each prompt: (sum w)^2 / sum w^2."""
        share = torch.softmax(self.log_weight.double(), -1)
        return 1 / (share**2).sum(-1)

    def prompts(self) -> Sequences:
        """The prompt of each row of weights."""
        return self.x.rows(slice(0, None, self.log_weight.shape[1])).prompts()

    def columns(self, chosen: slice) -> "Draws":
        """Some of the draws of every prompt; they cost their share, and what was proposed is left behind."""
        prompts, draws = self.log_weight.shape
        rows = torch.arange(prompts * draws).view(prompts, draws)[:, chosen].reshape(-1)
        log_weight, log_base = self.log_weight[:, chosen], self.log_base[:, chosen]
        cost = round(self.cost * log_weight.shape[1] / draws)
        return Draws(self.x.rows(rows), log_weight, log_base, self.estimates_z, self.independent, cost)


def side_by_side(parts: Sequence[Draws]) -> Draws:
    """Draws of the same prompts as one; `info` is joined where all parts have it."""
    prompts = len(parts[0].log_weight)
    x, ends = concatenate([part.x for part in parts]), 0
    rows = []
    for part in parts:
        rows.append(torch.arange(ends, ends + len(part.x)).view(prompts, -1))
        ends += len(part.x)
    shared = set.intersection(*(set(part.info) for part in parts))
    return Draws(
        x.rows(torch.cat(rows, 1).reshape(-1)),
        torch.cat([part.log_weight for part in parts], 1),
        torch.cat([part.log_base for part in parts], 1),
        estimates_z=all(part.estimates_z for part in parts),
        independent=all(part.independent for part in parts),
        cost=sum(part.cost for part in parts),
        info={name: torch.cat([part.info[name] for part in parts]) for name in sorted(shared)},
    )


@runtime_checkable
class Sampler(Protocol):
    """A frozen dataclass of settings; calling it draws."""

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws: ...
