"""Samples of replicates drawn with replacement (Efron, 1979), as counts: how often each replicate occurs in each of them."""

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.randomness import Rng

AT_ONCE = 2**22  # counts that are held at a time


def bootstrap_counts(size: int, samples: int, *, rng: Rng) -> Float[Tensor, "{samples} {size}"]:
    """Samples of `size` replicates, each of as many."""
    chosen = rng.categorical(torch.zeros(1, size, dtype=torch.float64), samples * size).view(samples, size)
    return torch.zeros(samples, size, dtype=torch.float64).scatter_add(1, chosen, torch.ones_like(chosen, dtype=torch.float64))
