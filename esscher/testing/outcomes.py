"""Run a random function on every outcome of its choices, for exact expectations."""

import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.core.randomness import Rng

Result = TypeVar("Result")


def every_outcome(run: Callable[[Rng], Result]) -> Iterator[tuple[float, Result]]:
    """Yield (probability, result) for all outcomes of the random choices of `run(rng)`; the probabilities sum to 1.

    The number of outcomes is the product over all choices, so keep vocabulary, length and draws tiny.
    """
    pending: list[list[tuple[int, ...]]] = [[]]
    while pending:
        replay = _ScriptedRng(pending.pop(), pending)
        result = run(replay)
        if replay.probability > 0:
            yield replay.probability, result


class _ScriptedRng:
    """An `Rng` that replays a script, and appends to `pending` every alternative beyond the end of the script."""

    def __init__(self, script: list[tuple[int, ...]], pending: list[list[tuple[int, ...]]]):
        self.script, self.pending, self.step, self.probability = script, pending, 0, 1.0

    def categorical(self, log_weight: Float[Tensor, "B V"], draws: int = 1) -> Int[Tensor, "B {draws}"]:
        share = torch.softmax(log_weight.double(), -1)
        if self.step == len(self.script):
            possible = [[v for v in range(share.shape[1]) if row[v] > 0] for row in share.tolist() for _ in range(draws)]
            options = list(itertools.product(*possible))
            self.pending += [[*self.script, option] for option in options[1:]]
            self.script.append(options[0])
        pick = torch.tensor(self.script[self.step], dtype=torch.long).view(len(share), draws)
        self.step += 1
        self.probability *= float(share.gather(1, pick).prod())
        return pick

    def bernoulli(self, log_probability: Float[Tensor, "*S"]) -> Bool[Tensor, "*S"]:
        yes = log_probability.double().exp().clamp(max=1).reshape(-1)
        return self.categorical(torch.stack([1 - yes, yes], -1).log())[:, 0].bool().view(log_probability.shape)

    def permutation(self, count: int) -> Int[Tensor, "{count}"]:
        orders = list(itertools.permutations(range(count)))
        return torch.tensor(orders[int(self.categorical(torch.zeros(1, len(orders))))])

    def stream(self, *path: int | str) -> "_ScriptedRng":
        return self
