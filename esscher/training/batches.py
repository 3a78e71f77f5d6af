"""Which data each update reads: batches as a function of (seed, step), so that there is no state to save.

`ShuffledOrder` reads endless epochs, each in its own order; no row is left out, and all batches have one size. `LengthBuckets`
makes batches of at most so many tokens from rows of similar length.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import torch
from accelerate import Accelerator
from jaxtyping import Int
from torch import Tensor

from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences
from esscher.core.storage import digest
from esscher.training.config import TrainingConfig


@dataclass(frozen=True)
class ShuffledOrder:
    """The order of `count` rows in batches of `batch_size`."""

    count: int
    batch_size: int
    seed: int

    def steps(self, epochs: int) -> int:
        return math.ceil(epochs * self.count / self.batch_size)

    def batch(self, step: int) -> Int[Tensor, "{self.batch_size}"]:
        """The indices of the rows that update `step` reads."""
        parts, first, missing = [], step * self.batch_size, self.batch_size
        while missing:
            epoch, place = divmod(first, self.count)
            parts.append(_epoch_permutation(self.seed, epoch, self.count)[place : place + missing])
            first, missing = first + len(parts[-1]), missing - len(parts[-1])
        return torch.cat(parts)


@dataclass(frozen=True, eq=False)
class LengthBuckets:
    """The order of rows of these lengths in batches of at most `tokens`, padding included; a longer row is a batch alone."""

    lengths: Int[Tensor, "N"]
    tokens: int
    seed: int

    def steps(self, epochs: int) -> int:
        return epochs * len(self.ends)

    def batch(self, step: int) -> Int[Tensor, "K"]:
        """The indices of the rows that update `step` reads: of the rows sorted by length, ties in the order of the epoch."""
        epoch, place = divmod(step, len(self.ends))
        number = int(_epoch_permutation(self.seed, epoch, len(self.ends))[place])
        order = _epoch_permutation(self.seed, epoch, len(self.lengths))
        by_length = order[self.lengths[order].argsort(stable=True)]
        return by_length[self.ends[number - 1] if number else 0 : self.ends[number]]

    @cached_property
    def ends(self) -> list[int]:
        """Where each batch ends among the rows sorted by length; the same in every epoch."""
        ends, first = [], 0
        for place, length in enumerate(self.lengths.sort().values.tolist()):
            if place > first and (place - first + 1) * length > self.tokens:
                ends.append(place)
                first = place
        return [*ends, len(self.lengths)]

    @property
    def smallest(self) -> int:
        """The fewest rows of a batch."""
        return min(last - first for first, last in pairwise([0, *self.ends]))


@lru_cache(maxsize=4)
def _epoch_permutation(seed: int, number: int, count: int) -> Int[Tensor, "{count}"]:
    return SeededRng(seed).stream("epoch", number).permutation(count)


@runtime_checkable
class RowData(Protocol):
    """Data in rows that are not `Sequences`, such as sequences with labels."""

    def __len__(self) -> int: ...

    def rows(self, chosen: Any) -> "RowData": ...

    def to(self, device: torch.device | str) -> "RowData": ...

    def tensors(self) -> tuple[Tensor, ...]:
        """The whole content, for a fingerprint."""
        ...


class ShuffledBatches:
    """The batches of a run, in an order that is a function of the seed. `StreamBatches` has the same methods."""

    def __init__(self, data: Sequences | RowData, target: Any, config: TrainingConfig, accelerator: Accelerator):
        self.data, self.target, self.config, self.accelerator = data, target, config, accelerator
        self.order = batch_order(data, config)
        if isinstance(self.order, LengthBuckets) and self.order.smallest < accelerator.num_processes:
            raise ValueError(
                f"Batches of batch_tokens = {config.batch_tokens} have as few as {self.order.smallest} sequences, too few for "
                f"{accelerator.num_processes} processes. Nothing was trained; raise batch_tokens, or leave it out."
            )

    def steps(self, epochs: int) -> int:
        """Updates in so many epochs."""
        return self.order.steps(epochs)

    def lr_scale(self, step: int) -> float:
        """Factor of the learning rate at an update."""
        return 1.0

    def tokens(self, step: int) -> int:
        """Tokens of an update on all processes together; rows, for data without tokens."""
        rows = self.order.batch(step)
        return int(self.data.rows(rows).lengths.sum()) if isinstance(self.data, Sequences) else len(rows)

    def micro_batches(self, step: int) -> Iterator[tuple[Any, Sequences | RowData]]:
        """The target and the data of each pass of this process; called once for each update, in order."""
        local_rows = self.order.batch(step)[self.accelerator.process_index :: self.accelerator.num_processes]
        for part in split_into_micro_batches(self.data, local_rows, self.config.gradient_accumulation_steps):
            yield self.target, part.to(self.accelerator.device)

    def fingerprint(self) -> str:
        """A hash of the data."""
        data = self.data
        tensors = (data.tokens, data.start, data.stop) if isinstance(data, Sequences) else data.tensors()
        return digest({str(number): tensor for number, tensor in enumerate(tensors)})

    def state_dict(self) -> dict[str, Tensor]:
        """What the next update needs of those before it, from all processes; all of them must call it."""
        return {}

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""


def batch_order(data: Sequences | RowData, config: TrainingConfig) -> ShuffledOrder | LengthBuckets:
    """Batches of `batch_size` rows or, with `batch_tokens`, of sequences with so many tokens."""
    if config.batch_tokens is None:
        return ShuffledOrder(len(data), config.batch_size, config.seed)
    if not isinstance(data, Sequences):
        raise ValueError(
            f"{type(data).__name__} have no tokens to make batches of batch_tokens = {config.batch_tokens}. Nothing was "
            f"trained; give batch_size instead."
        )
    return LengthBuckets(data.stop.cpu(), config.batch_tokens, config.seed)


def split_into_micro_batches(data: Sequences | RowData, rows: Int[Tensor, "B"], count: int) -> Iterator[Sequences | RowData]:
    """Rows in `count` passes; sequences of similar length together, so that there is little padding."""
    if isinstance(data, Sequences):
        rows = rows[data.stop[rows].argsort(stable=True)]
    for part in rows.chunk(count):
        chosen = data.rows(part)
        yield chosen.without_padding() if isinstance(chosen, Sequences) else chosen
