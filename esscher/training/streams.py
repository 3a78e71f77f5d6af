"""Training on one long ordered text: it is split into columns, and an update reads the next segment of every column.

    column 0   |segment 0|segment 1|segment 2| ...      Each column has a memory of what it read before, without gradient.
    column 1   |segment 0|segment 1|segment 2| ...      Memories are empty at the start of every epoch, and nowhere else:
    ...                                                 the end of a text clears nothing.

There are `batch_size` columns, shared by the processes and read in `accumulate` groups of them, as sequences are. Segments have
`segment` tokens; or lengths by chance (Merity et al. 2018): a normal number around `segment`, around half of it once in
twenty, so that segments begin elsewhere in every epoch. The learning rate is multiplied by a segment's share of the usual
length, so that every token counts alike. What it leaves out: the tokens that fill no column, fewer than there are columns.

In windows a segment is followed by tokens that the next one holds again (`esscher.data.windows`), and the memory takes the
segment alone. With `both_ways` the second half of every group of columns is read from its end to its beginning.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from accelerate import Accelerator
from jaxtyping import Float, Int
from torch import Tensor

from esscher.bases.carried import Carried
from esscher.bases.network import NetworkBase
from esscher.data.windows import Windows
from esscher.networks.network import Memory
from esscher.randomness import Rng, Seeded
from esscher.settings.training import TrainingConfig
from esscher.space import Sequences
from esscher.target import Tilted
from esscher.training.batches import fingerprint

HALF_RATE, SPREAD, SHORTEST = 0.05, 5.0, 5  # of lengths by chance
MEMORY = "memory"


@dataclass(frozen=True)
class Stream:
    """Tokens in order, and how long a segment of them is."""

    tokens: Int[Tensor, "N"]
    segment: int
    lengths: Literal["fixed", "random"] = "fixed"
    windows: Windows | None = None
    both_ways: bool = False

    def __post_init__(self) -> None:
        if self.segment < 1:
            raise ValueError(f"A segment has at least one token, not {self.segment}.")
        if self.windows is not None and (self.windows.fresh != self.segment or self.lengths != "fixed"):
            raise ValueError(f"Windows go on by segments of one length, {self.segment}, not by {self.windows.fresh}.")

    def __len__(self) -> int:
        return len(self.tokens)

    def columns(self, count: int) -> Int[Tensor, "{count} C"]:
        """The stream in so many columns of one length, in order; the last tokens, too few for a column each, are left out."""
        length = len(self) // count
        if length == 0:
            raise ValueError(
                f"A stream of {len(self):,} tokens cannot be read in {count} columns. Nothing was read; give more text, or "
                f"fewer columns (batch_size)."
            )
        return self.tokens[: count * length].view(count, length)


class Plan:
    """Where each update finds its segment: a function of the seed and the step, by the ends of the segments of each epoch."""

    def __init__(self, stream: Stream, length: int, seed: int):
        self.stream, self.length, self.seed = stream, length, seed
        self._ends: list[list[int]] = []  # of every epoch so far
        self._steps = [0]  # updates before each epoch

    def place(self, step: int) -> tuple[int, int]:
        """The first position of the segment of an update, and the one after its last."""
        while self._steps[-1] <= step:
            self._grow()
        epoch = bisect_right(self._steps, step) - 1
        number, ends = step - self._steps[epoch], self._ends[epoch]
        return (ends[number - 1] if number else 0), ends[number]

    def steps(self, epochs: int) -> int:
        """Updates of so many epochs."""
        while len(self._ends) < epochs:
            self._grow()
        return self._steps[epochs]

    def _grow(self) -> None:
        """One epoch more."""
        segment, epoch = self.stream.segment, len(self._ends)
        if self.stream.lengths == "fixed":
            ends = [*range(segment, self.length, segment), self.length]
        else:
            ends = _random_ends(self.length, segment, Seeded(self.seed).stream("segments", epoch))
        self._ends.append(ends)
        self._steps.append(self._steps[-1] + len(ends))


class Columns:
    """A stream as the updates of a run read it, and the memories of its columns."""

    def __init__(self, stream: Stream, target: Tilted, config: TrainingConfig, accelerator: Accelerator):
        self.stream, self.target, self.config, self.accelerator = stream, target, config, accelerator
        self.base = network_of(target)
        if config.batch_tokens is not None:
            raise ValueError(
                f"A stream is read in columns, batch_size of them, not in batches of batch_tokens = {config.batch_tokens}. "
                f"Nothing was trained; leave batch_tokens out."
            )
        self.columns = stream.columns(config.batch_size)
        self.plan = Plan(stream, planned_length(stream, config.batch_size), config.seed)
        own = torch.arange(config.batch_size)[accelerator.process_index :: accelerator.num_processes]
        self.groups = own.chunk(config.accumulate)
        if stream.both_ways and any(len(rows) % 2 for rows in self.groups):
            raise ValueError(
                f"Half of the columns that are read together run the other way, and {max(map(len, self.groups))} have no half. "
                f"Nothing was trained; choose batch_size, accumulate and processes that leave an even number."
            )
        self.memories: list[Memory] = [self.base.open(len(rows)) for rows in self.groups]

    def steps(self, epochs: int) -> int:
        return self.plan.steps(epochs)

    def scale(self, step: int) -> float:
        first, last = self.plan.place(step)
        return (last - first) / self.stream.segment

    def tokens(self, step: int) -> int:
        first, last = self.plan.place(step)
        return (last - first) * self.config.batch_size

    def parts(self, step: int) -> Iterator[tuple[Tilted, Sequences]]:
        first, last = self.plan.place(step)
        for number, rows in enumerate(self.groups):
            memory = self.base.open(len(rows)) if first == 0 else self.memories[number]
            carried = Carried(self.base, memory, last - first)
            x = segments(self._rows(step, number, rows, first, last).to(self.accelerator.device))
            yield Tilted(carried, self.target.energy), x
            self.memories[number] = carried.memory_after(x)

    def _rows(self, step: int, number: int, rows: Int[Tensor, "B"], first: int, last: int) -> Int[Tensor, "B L"]:
        """What a group of columns reads at an update."""
        columns, windows = self.columns[rows], self.stream.windows
        if self.stream.both_ways:
            straight, turned = columns.chunk(2)
            columns = torch.cat([straight, turned.flip(1)])
        if windows is None:
            return columns[:, first:last]
        place = ("window", step, "group", number, "rank", self.accelerator.process_index)
        return windows.rows(columns, first, rng=Seeded(self.config.seed).stream(*place))

    def fingerprint(self) -> str:
        stream = self.stream
        settings = [stream.segment, stream.lengths == "random"]
        if stream.windows is not None or stream.both_ways:
            settings += [0 if stream.windows is None else stream.windows.length, stream.both_ways]
        return fingerprint(stream.tokens, torch.tensor(settings))

    def saved(self) -> dict[str, Tensor]:
        whole = self.accelerator.gather if self.accelerator.num_processes > 1 else lambda part: part
        return {
            f"{MEMORY}/{number}/{place}": whole(part.contiguous())
            for number, memory in enumerate(self.memories)
            for place, part in enumerate(memory)
        }

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        for number, rows in enumerate(self.groups):
            parts = [saved[f"{MEMORY}/{number}/{place}"] for place in range(len(self.memories[number]))]
            first = self.accelerator.process_index * len(rows)
            self.memories[number] = tuple(part[first : first + len(rows)].to(self.accelerator.device) for part in parts)


def planned_length(stream: Stream, columns: int) -> int:
    """Tokens of a column that are read as segments; the last window of one ends with it."""
    length, windows = len(stream) // columns, stream.windows
    if windows is None:
        return length
    count = (length - windows.shared) // windows.fresh
    if count < 1:
        raise ValueError(
            f"A column of {length:,} tokens is too short for a window of {windows.length}. Nothing was read; give more text, "
            f"or fewer columns (batch_size)."
        )
    return count * windows.fresh


def segments(tokens: Int[Tensor, "B L"]) -> Sequences:
    """Segments of streams as points without prompts."""
    length = torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
    return Sequences(tokens, torch.zeros_like(length), length)


def network_of(target: Tilted) -> NetworkBase:
    """The base of a target, which must be a network to carry a memory."""
    if not isinstance(target.base, NetworkBase):
        raise ValueError(
            f"A {type(target.base).__name__} has no memory that goes from segment to segment. Nothing was read; use a network "
            f"base, or cut the text into chunks."
        )
    return target.base


def length_weights(segment: int) -> Float[Tensor, "K"]:
    """log of the probability of each length by chance, the shortest first."""
    shortest = min(SHORTEST, segment)
    ends = torch.arange(shortest, segment + int(8 * SPREAD), dtype=torch.float64) + 1  # a number is cut to whole tokens
    below = sum(
        share * torch.special.ndtr((ends - centre) / SPREAD)
        for share, centre in ((1 - HALF_RATE, segment), (HALF_RATE, segment / 2))
    )
    assert isinstance(below, Tensor)
    return torch.diff(below, prepend=torch.zeros(1, dtype=torch.float64)).clamp(min=1e-300).log()


def _random_ends(length: int, segment: int, rng: Rng) -> list[int]:
    log_weight, shortest, last, ends = length_weights(segment)[None], min(SHORTEST, segment), 0, []
    for block in range(length):
        drawn = rng.stream("block", block).categorical(log_weight, length // segment + 1)[0] + shortest
        ends += (last + drawn.cumsum(0)).tolist()
        last = ends[-1]
        if last >= length:
            break
    return [*(end for end in ends if end < length), length]
