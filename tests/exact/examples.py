"""Spaces and unnormalised automata that the tests of the laboratory share."""

import torch

from esscher.core.space import Space
from esscher.exact.automaton import WeightedAutomaton

SPACES = {"fixed length": Space(3, 4), "end symbol": Space(3, 4, eos=0), "end symbol last": Space(3, 5, eos=2)}


def random_weighted(space: Space, *, states: int = 5, seed: int = 11, prompt_next_state: bool = False) -> WeightedAutomaton:
    """Weights far from normalised, a fifth of them 0, and weights for being cut."""
    generator = torch.Generator().manual_seed(seed)
    log_emission = 2 * torch.randn(states, space.vocab_size, generator=generator, dtype=torch.float64) + 1
    log_emission = log_emission.masked_fill(torch.rand(log_emission.shape, generator=generator) < 0.2, -torch.inf)
    log_emission[torch.arange(states), torch.arange(states) % space.vocab_size] = 0.5  # no state without a way on
    next_state = torch.randint(states, log_emission.shape, generator=generator)
    final = torch.randn(states, generator=generator, dtype=torch.float64)
    other = torch.randint(states, log_emission.shape, generator=generator) if prompt_next_state else None
    return WeightedAutomaton(log_emission, next_state, space, final, other)
