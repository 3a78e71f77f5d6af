"""Importance sampling: draw from a proposal, weigh by a(x) exp(-E(x)) / q(x).

The samplers that choose among independent candidates (Pool, Rejection, QuasiRejection, Metropolis) all
start from these weighted draws.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.draws import Draws
from esscher.randomness import Rng
from esscher.samplers.ancestral import draw, rows_at_once
from esscher.space import Sequences
from esscher.target import Base, Tilted


@dataclass(frozen=True)
class Importance:
    """Independent draws with weights that average to Z; `proposal` None means the base."""

    proposal: Base | None = None

    @torch.no_grad()
    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        proposal = target.base if self.proposal is None else self.proposal
        x, log_proposal = draw(proposal, prompts, draws, rng=rng)
        log_base = log_proposal
        if self.proposal is not None:
            log_base = _by_rows(lambda rows: target.base.log_probs(rows).sum(-1), x, target).view(log_proposal.shape)
        log_energy = _by_rows(target.log_weight, x, target).view(log_proposal.shape)
        log_weight = log_energy.double() + log_base.double() - log_proposal
        return Draws(x, log_weight, log_base, estimates_z=True, independent=True, cost=len(x))


def _by_rows(score, x: Sequences, target: Tilted) -> Float[Tensor, "B"]:  # type: ignore[no-untyped-def]
    """`score` of many rows, a few at a time."""
    step = rows_at_once(target.space)
    return torch.cat([score(x.rows(slice(first, first + step))) for first in range(0, len(x), step)])
