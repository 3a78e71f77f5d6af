"""Which sequences an update sees: a function of (seed, step, process), so that it needs no memory.

The data are read as one endless stream of epochs, each in an order of its own; update `step` takes the next
`batch_size` of it. No sequence is left out at an epoch's end, and no batch is smaller than the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.randomness import Seeded
from esscher.space import Sequences


@dataclass(frozen=True)
class Order:
    """The order of `count` sequences in batches of `batch_size`, given by a seed."""

    count: int
    batch_size: int
    seed: int

    def batch(self, step: int) -> Int[Tensor, "{self.batch_size}"]:
        """The numbers of the sequences that update `step` sees."""
        pieces, first, missing = [], step * self.batch_size, self.batch_size
        while missing:
            epoch, place = divmod(first, self.count)
            pieces.append(_epoch(self.seed, epoch, self.count)[place : place + missing])
            first, missing = first + len(pieces[-1]), missing - len(pieces[-1])
        return torch.cat(pieces)


@lru_cache(maxsize=4)
def _epoch(seed: int, number: int, count: int) -> Int[Tensor, "{count}"]:
    return Seeded(seed).stream("epoch", number).permutation(count)


def passes(data: Sequences, rows: Int[Tensor, "B"], *, rank: int, processes: int, count: int) -> Iterator[Sequences]:
    """The share of a process in a batch, in `count` passes of sequences alike in length, so that little is padding."""
    own = rows[rank::processes]
    for part in own[data.stop[own].argsort(stable=True)].chunk(count):
        yield trim(data.rows(part))


def trim(x: Sequences) -> Sequences:
    """The same rows without columns that are padding for all of them."""
    return Sequences(x.tokens[:, : int(x.stop.max()) if len(x) else 0], x.start, x.stop)
