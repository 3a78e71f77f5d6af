"""Which sequences an update sees: a function of (seed, step), so that it needs no memory.

The data are read as one endless stream of epochs, each in an order of its own; update `step` takes the next
`batch_size` of it. No sequence is left out at an epoch's end, and no batch is smaller than the others. Or batches are of so
many tokens (`Bucketed`): sequences alike in length together, in an order of batches that is another in every epoch.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.randomness import Seeded


@dataclass(frozen=True)
class Order:
    """The order of `count` sequences in batches of `batch_size`, given by a seed."""

    count: int
    batch_size: int
    seed: int

    def steps(self, epochs: int) -> int:
        """Updates in so many epochs."""
        return math.ceil(epochs * self.count / self.batch_size)

    def batch(self, step: int) -> Int[Tensor, "{self.batch_size}"]:
        """The numbers of the sequences that update `step` sees."""
        pieces, first, missing = [], step * self.batch_size, self.batch_size
        while missing:
            epoch, place = divmod(first, self.count)
            pieces.append(_epoch(self.seed, epoch, self.count)[place : place + missing])
            first, missing = first + len(pieces[-1]), missing - len(pieces[-1])
        return torch.cat(pieces)


@dataclass(frozen=True, eq=False)
class Bucketed:
    """The order of sequences of these lengths in batches of at most `tokens`, padding counted, given by a seed.

    A sequence that is longer than that has a batch of its own.
    """

    lengths: Int[Tensor, "N"]
    tokens: int
    seed: int

    def steps(self, epochs: int) -> int:
        """Updates in so many epochs."""
        return epochs * len(self.ends)

    def batch(self, step: int) -> Int[Tensor, "K"]:
        """The numbers of the sequences that update `step` sees."""
        epoch, place = divmod(step, len(self.ends))
        number = int(_epoch(self.seed, epoch, len(self.ends))[place])
        first = self.ends[number - 1] if number else 0
        return self._sorted(epoch)[first : self.ends[number]]

    @cached_property
    def ends(self) -> list[int]:
        """Where each batch ends among the sequences by length, the same in every epoch."""
        ends, first = [], 0
        for place, length in enumerate(self.lengths.sort().values.tolist()):
            if place > first and (place - first + 1) * length > self.tokens:
                ends.append(place)
                first = place
        return [*ends, len(self.lengths)]

    @property
    def smallest(self) -> int:
        """The fewest sequences of a batch."""
        return min(last - first for first, last in pairwise([0, *self.ends]))

    def _sorted(self, epoch: int) -> Int[Tensor, "N"]:
        """All sequences by length, those of one length in the order of the epoch."""
        order = _epoch(self.seed, epoch, len(self.lengths))
        return order[self.lengths[order].argsort(stable=True)]


@lru_cache(maxsize=4)
def _epoch(seed: int, number: int, count: int) -> Int[Tensor, "{count}"]:
    return Seeded(seed).stream("epoch", number).permutation(count)
