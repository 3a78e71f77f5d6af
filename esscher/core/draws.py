"""`Draws`, the weighted sample that every sampler returns, and the `Sampler` protocol.

Contract (`esscher.testing.assert_draws_follow`): for every prompt and every function f of the point,

    E[ mean_n exp(log_weight[n]) f(x[n]) ] = Z E_p[f]      when `estimates_z`,
    E[ mean_n exp(log_weight[n]) f(x[n]) ] = E_p[f]        otherwise.

Points stay on the device of the prompts; weights and log-probabilities are float64 on the CPU. A sampler that meets the
contract only in the limit (SIR with finitely many candidates, a finite chain) says so in its docstring.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.core.randomness import Rng
from esscher.core.space import Sequences, concatenate
from esscher.core.target import Tilted


@dataclass(frozen=True)
class Draws:
    """Weighted points, N for each of P prompts."""

    x: Sequences  # P * N rows, prompt-major
    log_weight: Float[Tensor, "P N"]
    log_base: Float[Tensor, "P N"]  # log a(x), computed while drawing: never score a draw again
    estimates_z: bool
    independent: bool  # of each other, given the prompt: true for importance draws, false for particles
    cost: int  # sequences drawn from the proposal
    info: Mapping[str, Tensor] = field(default_factory=dict)  # diagnostics of the sampler

    def log_z(self) -> Float[Tensor, "P"]:
        """log of the mean weight for each prompt: an estimate of log Z, in float64."""
        if not self.estimates_z:
            raise ValueError(
                "These draws follow p but carry no estimate of log Z: they come from a sampler that discards its "
                "normaliser (SIR, Rejection, Metropolis). Use Importance or Particles to estimate log Z."
            )
        return torch.logsumexp(self.log_weight.double(), -1) - math.log(self.log_weight.shape[1])

    def expect(self, values: Float[Tensor, "P N"]) -> Float[Tensor, "P"]:
        """Self-normalised estimate of E_p[values] for each prompt."""
        share = torch.softmax(self.log_weight.double(), -1)
        return (share * torch.where(share > 0, values, 0.0)).sum(-1)

    def ess(self) -> Float[Tensor, "P"]:
        """Effective sample size for each prompt: (sum w)^2 / sum w^2."""
        return ess(torch.softmax(self.log_weight.double(), -1))

    def prompts(self) -> Sequences:
        """The prompt of each row of weights."""
        return self.x.rows(slice(0, None, self.log_weight.shape[1])).prompts()

    def columns(self, chosen: slice) -> "Draws":
        """The chosen draws of every prompt, with their share of the cost and without `info`."""
        prompts, draws = self.log_weight.shape
        rows = torch.arange(prompts * draws).view(prompts, draws)[:, chosen].reshape(-1)
        log_weight, log_base = self.log_weight[:, chosen], self.log_base[:, chosen]
        cost = round(self.cost * log_weight.shape[1] / draws)
        return Draws(self.x.rows(rows), log_weight, log_base, self.estimates_z, self.independent, cost)

    @classmethod
    def cat(cls, parts: "Sequence[Draws]", dim: int) -> "Draws":
        """Concatenate along prompts (`dim=0`, without `info`) or along draws of the same prompts (`dim=1`). Along draws, `info`
        keeps the names that all parts have."""
        x, info = concatenate([part.x for part in parts]), {}
        if dim == 1:
            rows = torch.split(torch.arange(len(x)), [len(part.x) for part in parts])
            x = x.rows(torch.cat([part_rows.view(len(parts[0].log_weight), -1) for part_rows in rows], 1).reshape(-1))
            shared = set.intersection(*(set(part.info) for part in parts))
            info = {name: torch.cat([part.info[name] for part in parts]) for name in sorted(shared)}
        return cls(
            x,
            torch.cat([part.log_weight for part in parts], dim),
            torch.cat([part.log_base for part in parts], dim),
            estimates_z=all(part.estimates_z for part in parts),
            independent=all(part.independent for part in parts),
            cost=sum(part.cost for part in parts),
            info=info,
        )


def ess(share: Float[Tensor, "*S N"]) -> Float[Tensor, "*S"]:
    """Effective sample size of normalised weights: 1 / sum share^2."""
    return 1 / (share**2).sum(-1)


@runtime_checkable
class Sampler(Protocol):
    """A frozen dataclass of settings; calling it draws."""

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws: ...
