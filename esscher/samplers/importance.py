"""Importance sampling: draw from a proposal, weigh by a(x) exp(-E(x)) / q(x).

The samplers that choose among independent candidates (Pool, Rejection, QuasiRejection, Metropolis) all
start from these weighted draws.
"""

from dataclasses import dataclass

import torch

from esscher.draws import Draws
from esscher.randomness import Rng
from esscher.samplers.ancestral import draw
from esscher.samplers.scores import log_prob, log_weight
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
        log_base = log_proposal if self.proposal is None else log_prob(target.base, x).view(log_proposal.shape)
        log_tilt = log_weight(target, x).view(log_proposal.shape) + log_base - log_proposal
        return Draws(x, log_tilt, log_base, estimates_z=True, independent=True, cost=len(x))
