"""Importance sampling, whose draws from a proposal q have the weights a(x) exp(-E(x)) / q(x), and its limit without randomness:
exhaustive enumeration of a small space."""

import math
from dataclasses import dataclass

import torch

from esscher.core.draws import Draws, check_target, checked_sampler
from esscher.core.randomness import Rng
from esscher.core.space import Sequences
from esscher.core.target import Base, Tilted
from esscher.exact.enumeration import enumerate_points
from esscher.samplers.proposals import propose
from esscher.samplers.scoring import log_prob, log_weight


@checked_sampler
@dataclass(frozen=True)
class Importance:
    """Independent weighted draws, whose weights average to Z."""

    proposal: Base | None = None
    """The base to draw from; None is the base of the target."""

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        return propose(target, prompts, draws, self.proposal, rng=rng)


@dataclass(frozen=True)
class Exhaustive:
    """Every point after each prompt, weighted by its exact probability; `draws` and `rng` are ignored."""

    @torch.no_grad()
    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        x = enumerate_points(check_target(target, prompts), prompts)
        log_base = log_prob(target.base, x).view(len(prompts), -1)
        log_tilt = log_base + log_weight(target, x).view(len(prompts), -1) + math.log(log_base.shape[1])
        return Draws(x, log_tilt, log_base, estimates_z=True, independent=False, cost=len(x))
