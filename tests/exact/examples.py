"""Spaces and unnormalised automata that the tests of the laboratory share."""

import torch

from esscher.exact.automaton import Weighted
from esscher.space import Space

SPACES = {"fixed length": Space(3, 4), "end symbol": Space(3, 4, eos=0), "end symbol last": Space(3, 5, eos=2)}


def random_weighted(space: Space, *, states: int = 5, seed: int = 11, read: bool = False) -> Weighted:
    """Weights far from normalised, a fifth of them 0, and weights for being cut."""
    generator = torch.Generator().manual_seed(seed)
    emit = 2 * torch.randn(states, space.vocab_size, generator=generator, dtype=torch.float64) + 1
    emit = emit.masked_fill(torch.rand(emit.shape, generator=generator) < 0.2, -torch.inf)
    emit[torch.arange(states), torch.arange(states) % space.vocab_size] = 0.5  # no state without a way on
    move = torch.randint(states, emit.shape, generator=generator)
    final = torch.randn(states, generator=generator, dtype=torch.float64)
    other = torch.randint(states, emit.shape, generator=generator) if read else None
    return Weighted(emit, move, space, final, other)
