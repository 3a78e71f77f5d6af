"""Small random targets that many tests share."""

import torch

from esscher.core.space import Sequences, Space
from esscher.core.target import Tilted
from esscher.exact.automaton import Automaton

PROMPTS = [[], [1], [2, 1, 1], [1, 2]]  # different lengths, the empty one among them


def random_automaton(space: Space, *, states: int = 5, seed: int = 7) -> Automaton:
    generator = torch.Generator().manual_seed(seed)
    log_emission = torch.log_softmax(torch.randn(states, space.vocab_size, generator=generator, dtype=torch.float64), -1)
    return Automaton(log_emission, torch.randint(states, (states, space.vocab_size), generator=generator), space)


def taste(space: Space, *, seed: int = 7, scale: float = 1.0):
    """An energy that adds a random number for each token, and one for each pair of equal neighbours."""
    likings = scale * torch.randn(space.vocab_size + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def energy(x: Sequences) -> torch.Tensor:
        liking = likings.to(x.tokens.device)
        single = torch.where(x.counted, liking[x.tokens], 0.0).sum(-1)
        if x.tokens.shape[1] < 2:
            return single
        pair = x.counted[:, 1:] & x.counted[:, :-1] & (x.tokens[:, 1:] == x.tokens[:, :-1])
        return single + liking[-1] * pair.sum(-1)

    return energy


def random_target(space: Space, *, seed: int = 7) -> Tilted:
    return Tilted(random_automaton(space, seed=seed), taste(space, seed=seed + 1))
