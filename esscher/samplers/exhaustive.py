"""The sampler without chance: every point of a small space, weighted by its exact probability.

In an objective it turns the stochastic gradient into the exact one.
"""

import math
from dataclasses import dataclass

import torch

from esscher.draws import Draws
from esscher.exact.enumeration import enumerate_points
from esscher.randomness import Rng
from esscher.samplers.scores import log_prob, log_weight
from esscher.space import Sequences
from esscher.target import Tilted


@dataclass(frozen=True)
class Exhaustive:
    """All points after each prompt; `draws` and `rng` are not needed and are ignored."""

    @torch.no_grad()
    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        x = enumerate_points(target.space, prompts)
        log_base = log_prob(target.base, x).view(len(prompts), -1)
        log_tilt = log_base + log_weight(target, x).view(len(prompts), -1) + math.log(log_base.shape[1])
        return Draws(x, log_tilt, log_base, estimates_z=True, independent=False, cost=len(x))
