"""The loss on held-out data, with its interval.

Batches are the replicates, because an objective gives one number for a batch; they are small, so that there
are many. Of a stream, blocks of consecutive segments are, because neighbours depend on each other. The same dice
are thrown at every evaluation, so that two evaluations differ by what was learnt.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.bases.carried import Carried
from esscher.estimate import Estimate
from esscher.estimators.blocks import BLOCKS
from esscher.estimators.intervals import interval
from esscher.objective import Objective
from esscher.randomness import Rng
from esscher.space import Sequences
from esscher.target import Tilted
from esscher.training.batches import Rows, trim
from esscher.training.streams import Stream, network_of, segments

LEVEL = 0.95
FEWEST = 20  # batches that an interval wants


@dataclass(frozen=True)
class HeldOut:
    """Data that are not learnt from, and the objective that is evaluated on them."""

    objective: Objective[Any, Any]
    data: Sequences | Rows

    @torch.no_grad()
    def losses(
        self, target: Any, *, batch_size: int, device: torch.device | str, step: int, only: slice, rng: Rng
    ) -> list[tuple[float, int]]:
        """(loss, count) of some of the batches of the data, in order."""
        size = max(1, min(batch_size, len(self.data) // FEWEST))
        firsts = range(0, len(self.data), size)
        found = []
        for number in range(len(firsts))[only]:
            rows = self.data.rows(slice(firsts[number], firsts[number] + size))
            part = (trim(rows) if isinstance(rows, Sequences) else rows).to(device)
            loss = self.objective(target, part, rng=rng.stream("batch", number), step=step)
            value = loss.value if isinstance(loss.value, Tensor) else sum(loss.value.values())
            found.append((float(value), loss.count))
        return found


@dataclass(frozen=True)
class HeldOutStream:
    """A stream that is not learnt from, read with memory in at most `columns` columns, and the objective evaluated on it."""

    objective: Objective
    data: Stream
    columns: int = 10

    @torch.no_grad()
    def losses(
        self, target: Tilted, *, batch_size: int, device: torch.device | str, step: int, only: slice, rng: Rng
    ) -> list[tuple[float, int]]:
        """(loss, count) of blocks of consecutive segments, of some of the columns."""
        base, segment = network_of(target), self.data.segment
        count = max(1, min(self.columns, len(self.data) // (segment * FEWEST)))
        rows = self.data.columns(count)[only].to(device)
        memory, found = base.open(len(rows)), []
        for number, first in enumerate(range(0, rows.shape[1], segment) if len(rows) else ()):
            carried, x = Carried(base, memory), segments(rows[:, first : first + segment])
            loss = self.objective(Tilted(carried, target.energy), x, rng=rng.stream("batch", number), step=step)
            value = loss.value if isinstance(loss.value, Tensor) else sum(loss.value.values())
            found.append((float(value), loss.count))
            memory = carried.memory_after(x)
        return _blocks(found)


Validation = Sequences | Stream | HeldOut | HeldOutStream | Callable[[], Estimate]
"""Held-out data, alone or with an objective of their own; or any number that shall become small."""


def _blocks(losses: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """At most 40 means over neighbours, with their counts."""
    size, total = max(1, math.ceil(len(losses) / BLOCKS[0])), []
    for first in range(0, len(losses), size):
        some = losses[first : first + size]
        count = sum(one for _, one in some)
        total.append((sum(loss * one for loss, one in some) / count, count))
    return total


def mean_loss(losses: Sequence[tuple[float, int]], *, draws: int) -> Estimate:
    """The mean over all counted units; its interval is of the ratio of sums over batches."""
    value = torch.tensor([loss for loss, _ in losses], dtype=torch.float64)
    count = torch.tensor([count for _, count in losses], dtype=torch.float64)

    def ratio(times: Float[Tensor, "1 n"]) -> Tensor:
        return (times[0] * value * count).sum() / (times[0] * count).sum()

    if len(losses) < 2:
        only = float(ratio(torch.ones(1, len(losses), dtype=torch.float64)))
        return Estimate(only, -math.inf, math.inf, LEVEL, draws, "one batch: no interval")
    return interval(ratio, [(1, len(losses))], level=LEVEL, draws=draws, method="ratio over batches")
