"""Resampling from a pool: draw n candidates, keep one with probability proportional to its weight."""

from dataclasses import dataclass, field

import torch

from esscher.draws import Draws, Sampler
from esscher.randomness import Rng
from esscher.samplers.importance import Importance
from esscher.space import Sequences
from esscher.target import Tilted


@dataclass(frozen=True)
class Pool:
    """Each draw is one survivor of its own `pool` candidates; biased towards the base at a finite pool."""

    pool: int
    candidates: Sampler = field(default_factory=Importance)

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        pools = self.candidates(target, prompts, draws * self.pool, rng=rng)
        log_weight = pools.log_weight.view(len(prompts) * draws, self.pool)
        if bool((log_weight == -torch.inf).all(-1).any()):
            raise ValueError(
                f"A pool of {self.pool} candidates has no weight at all: the energy forbids every one of them. The "
                f"draws were dropped; raise `pool`, or propose from a base that meets the constraint more often."
            )
        pick = torch.arange(len(log_weight), device=log_weight.device) * self.pool + rng.categorical(log_weight)[:, 0]
        shape = (len(prompts), draws)
        log_base = pools.log_base.reshape(-1)[pick].view(shape)
        zeros = torch.zeros_like(log_base)
        info = {"effective": 1 / (torch.softmax(log_weight.double(), -1) ** 2).sum(-1).view(shape)}
        return Draws(pools.x.rows(pick), zeros, log_base, estimates_z=False, independent=True, cost=pools.cost, info=info)
