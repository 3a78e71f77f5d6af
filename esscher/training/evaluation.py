"""The loss on held-out data, with its interval; every evaluation uses the same random numbers. The replicates are small
batches, because an objective gives one number for a batch; of a stream, blocks of consecutive, dependent segments."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.bases.wrappers import WithMemory
from esscher.core.estimate import Estimate
from esscher.core.objective import Objective
from esscher.core.randomness import Rng
from esscher.core.space import Sequences
from esscher.core.target import Tilted
from esscher.estimators.intervals import BLOCKS, interval
from esscher.training.batches import RowData
from esscher.training.stream_batches import TokenStream, require_network_base, segment_sequences

CONFIDENCE = 0.95
MIN_BATCHES = 20  # batches that an interval needs


@dataclass(frozen=True)
class HeldOut:
    """The objective to evaluate, and held-out rows, or a held-out stream, read with memory in at most `columns` columns."""

    objective: Objective
    data: Sequences | RowData | TokenStream
    columns: int = 10

    @torch.no_grad()
    def losses(
        self, target: Any, *, batch_size: int, device: torch.device | str, step: int, only: slice, rng: Rng
    ) -> list[tuple[float, int]]:
        """(loss, count) of the batches in `only`, in order; of a stream, of blocks of segments of the columns in `only`."""
        is_stream = isinstance(self.data, TokenStream)
        batches: Iterator[tuple[int, Any, Sequences | RowData]]
        batches = self._segments(target, device, only) if is_stream else self._batches(target, batch_size, device, only)
        losses = []
        for number, batch_target, batch in batches:
            loss = self.objective(batch_target, batch, rng=rng.stream("batch", number), step=step)
            losses.append((float(sum(loss.values.values())), loss.count))
        return _block_means(losses) if is_stream else losses

    def _batches(
        self, target: Any, batch_size: int, device: torch.device | str, only: slice
    ) -> Iterator[tuple[int, Any, Sequences | RowData]]:
        assert not isinstance(self.data, TokenStream)
        size = max(1, min(batch_size, len(self.data) // MIN_BATCHES))
        for number in range(-(-len(self.data) // size))[only]:
            rows = self.data.rows(slice(number * size, (number + 1) * size))
            yield number, target, (rows.without_padding() if isinstance(rows, Sequences) else rows).to(device)

    def _segments(self, target: Tilted, device: torch.device | str, only: slice) -> Iterator[tuple[int, Tilted, Sequences]]:
        assert isinstance(self.data, TokenStream)
        base, segment = require_network_base(target), self.data.segment
        count = max(1, min(self.columns, len(self.data) // (segment * MIN_BATCHES)))
        rows = self.data.columns(count)[only].to(device)
        memory = base.init_memory(len(rows))
        for number, first in enumerate(range(0, rows.shape[1], segment) if len(rows) else ()):
            with_memory, x = WithMemory(base, memory), segment_sequences(rows[:, first : first + segment])
            yield number, Tilted(with_memory, target.energy), x
            memory = with_memory.memory_after(x)


def _block_means(losses: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Means over at most 40 blocks of neighbours, with their counts."""
    size, means = max(1, math.ceil(len(losses) / BLOCKS[0])), []
    for first in range(0, len(losses), size):
        block = losses[first : first + size]
        total = sum(count for _, count in block)
        means.append((sum(loss * count for loss, count in block) / total, total))
    return means


def mean_loss(losses: Sequence[tuple[float, int]], *, n: int, counted: str = "examples") -> Estimate:
    """The mean over all counted units; its interval is that of a ratio of sums over batches."""
    value = torch.tensor([loss for loss, _ in losses], dtype=torch.float64)
    count = torch.tensor([count for _, count in losses], dtype=torch.float64)

    def ratio(times: Float[Tensor, "1 n"]) -> Tensor:
        return (times[0] * value * count).sum() / (times[0] * count).sum()

    if len(losses) < 2:
        only = float(ratio(torch.ones(1, len(losses), dtype=torch.float64)))
        return Estimate(only, -math.inf, math.inf, CONFIDENCE, n, "one batch: no interval", counted=counted)
    return interval(ratio, [(1, len(losses))], confidence=CONFIDENCE, n=n, method="ratio over batches", counted=counted)
