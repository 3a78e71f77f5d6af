"""Twists with random weights, which know nothing of any energy: weights must be proper with them, too."""

import torch

from esscher.core.randomness import SeededRng
from esscher.core.target import Base
from esscher.energies.config import TwistConfig
from esscher.energies.twist import LearntTwist, build_twist


def random_twist(base: Base, *, memory: int | None = 4, offset: float = 0.0, scale: float = 1.0, seed: int = 0) -> LearntTwist:
    twist = build_twist(TwistConfig(width=8, memory=memory), base, rng=SeededRng(seed)).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in twist.output.parameters():
            weight.copy_(scale * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
        for weight in twist.position.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    twist.offset = offset
    return twist
