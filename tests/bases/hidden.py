"""Random hidden Markov models, and sums over their hidden paths written out, that the tests share."""

import itertools
import math

import torch

from esscher.bases.hidden_markov import HiddenMarkov
from esscher.core.space import Sequences, Space

SPACES = {"fixed length": Space(3, 4), "end symbol": Space(3, 4, eos=0), "end symbol last": Space(3, 3, eos=2)}


def random_model(space: Space, *, states: int = 3, seed: int = 5, zeros: bool = False) -> HiddenMarkov:
    generator = torch.Generator().manual_seed(seed)

    def table(*shape: int) -> torch.Tensor:
        raw = 1.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
        return torch.log_softmax(raw, -1)

    emission = table(states, space.vocab_size)
    if zeros:  # each hidden state has a token that it cannot emit
        emission[torch.arange(states), torch.arange(states) % space.vocab_size] = -torch.inf
        emission = torch.log_softmax(emission, -1)
    return HiddenMarkov(table(states), table(states, states), emission, space)


def path_sums(model: HiddenMarkov, row: list[int]) -> dict[tuple[int, ...], float]:
    """The probability of a row of tokens together with each hidden path, by multiplying."""
    initial, transition, emission = (table.exp().tolist() for table in (model.initial, model.transition, model.emission))
    joint = {}
    for path in itertools.product(range(model.states), repeat=len(row)):
        steps = [initial[path[0]], *(transition[a][b] for a, b in itertools.pairwise(path))] if row else []
        joint[path] = math.prod(steps) * math.prod(emission[z][v] for z, v in zip(path, row, strict=True))
    return joint


def rows_of(x: Sequences) -> list[list[int]]:
    return [tokens[:stop] for tokens, stop in zip(x.tokens.tolist(), x.stop.tolist(), strict=True)]
