"""Batches of one long token stream: it is split into columns, and an update reads the next segment of every column.

Each of the `batch_size` columns has a memory, without gradient, which is reset at the start of every epoch and not at the end
of a text. Segments have `segment` tokens, or random lengths (Merity et al. 2018): normal around `segment`, or around half of it
once in twenty. The learning rate is scaled by the length of a segment over the usual one, so every token has equal weight. With
`windows` a segment is followed by tokens that the next one has again (`esscher.data.text`), and only the segment enters the
memory. With `bidirectional` the second half of every group of columns is read backwards. Left out: tokens that fill no column.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from accelerate import Accelerator
from jaxtyping import Float, Int
from torch import Tensor

from esscher.bases.network import NetworkBase
from esscher.bases.wrappers import WithMemory
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import Sequences
from esscher.core.storage import digest
from esscher.core.target import Tilted
from esscher.data.text import SegmentPairWindows
from esscher.networks.network import Memory
from esscher.training.config import TrainingConfig

HALF_LENGTH_PROBABILITY, LENGTH_STD, MIN_SEGMENT = 0.05, 5.0, 5  # of random lengths
MEMORY = "memory"


@dataclass(frozen=True)
class TokenStream:
    """Tokens in order, and how they are divided into segments."""

    tokens: Int[Tensor, "N"]
    segment: int
    lengths: Literal["fixed", "random"] = "fixed"
    windows: SegmentPairWindows | None = None
    bidirectional: bool = False

    def __post_init__(self) -> None:
        if self.segment < 1:
            raise ValueError(f"A segment has at least one token, not {self.segment}.")
        if self.windows is not None and (self.windows.fresh != self.segment or self.lengths != "fixed"):
            raise ValueError(f"Windows advance by segments of fixed length, {self.segment}, not by {self.windows.fresh}.")

    def __len__(self) -> int:
        return len(self.tokens)

    def columns(self, count: int) -> Int[Tensor, "{count} C"]:
        """The stream in `count` columns of equal length, in order; the tokens that are left over are dropped."""
        length = len(self) // count
        if length == 0:
            raise ValueError(
                f"A stream of {len(self):,} tokens cannot be read in {count} columns. "
                "Nothing was read; give more text, or a lower batch_size."
            )
        return self.tokens[: count * length].view(count, length)


class SegmentSchedule:
    """The segment of each update, as a function of the seed and the step."""

    def __init__(self, stream: TokenStream, length: int, seed: int):
        self.stream, self.length, self.seed = stream, length, seed
        self._ends: list[list[int]] = []  # ends of the segments, for each epoch so far
        self._steps = [0]  # updates before each epoch

    def place(self, step: int) -> tuple[int, int]:
        """Start and stop of the segment that an update reads."""
        while self._steps[-1] <= step:
            self._add_epoch()
        epoch = bisect_right(self._steps, step) - 1
        number, ends = step - self._steps[epoch], self._ends[epoch]
        return (ends[number - 1] if number else 0), ends[number]

    def steps(self, epochs: int) -> int:
        while len(self._ends) < epochs:
            self._add_epoch()
        return self._steps[epochs]

    def _add_epoch(self) -> None:
        segment, rng = self.stream.segment, SeededRng(self.seed).stream("segments", len(self._ends))
        fixed = [*range(segment, self.length, segment), self.length]
        ends = fixed if self.stream.lengths == "fixed" else _random_ends(self.length, segment, rng)
        self._ends.append(ends)
        self._steps.append(self._steps[-1] + len(ends))


class StreamBatches:
    """A stream as the updates of a run read it, with the memories of its columns."""

    def __init__(self, stream: TokenStream, target: Tilted, config: TrainingConfig, accelerator: Accelerator):
        self.stream, self.target, self.config, self.accelerator = stream, target, config, accelerator
        self.base = require_network_base(target)
        if config.batch_tokens is not None:
            raise ValueError(
                f"A stream is read in columns, batch_size of them, not in batches of batch_tokens = {config.batch_tokens}. "
                f"Nothing was trained; leave batch_tokens out."
            )
        self.columns = stream.columns(config.batch_size)
        self.plan = SegmentSchedule(stream, segmented_length(stream, config.batch_size), config.seed)
        local_columns = torch.arange(config.batch_size)[accelerator.process_index :: accelerator.num_processes]
        self.groups = local_columns.chunk(config.gradient_accumulation_steps)
        if stream.bidirectional and any(len(rows) % 2 for rows in self.groups):
            raise ValueError(
                f"Half of the columns that are read together run backwards, and {max(map(len, self.groups))} columns have no "
                f"half. Nothing was trained; choose batch_size, gradient_accumulation_steps and processes that leave an even "
                f"number."
            )
        self.memories: list[Memory] = [self.base.init_memory(len(rows)) for rows in self.groups]

    def steps(self, epochs: int) -> int:
        return self.plan.steps(epochs)

    def lr_scale(self, step: int) -> float:
        first, last = self.plan.place(step)
        return (last - first) / self.stream.segment

    def tokens(self, step: int) -> int:
        first, last = self.plan.place(step)
        return (last - first) * self.config.batch_size

    def micro_batches(self, step: int) -> Iterator[tuple[Tilted, Sequences]]:
        first, last = self.plan.place(step)
        for number, rows in enumerate(self.groups):
            memory = self.base.init_memory(len(rows)) if first == 0 else self.memories[number]
            with_memory = WithMemory(self.base, memory, last - first)
            x = segment_sequences(self._rows(step, number, rows, first, last).to(self.accelerator.device))
            yield Tilted(with_memory, self.target.energy), x
            self.memories[number] = with_memory.memory_after(x)

    def _rows(self, step: int, number: int, rows: Int[Tensor, "B"], first: int, last: int) -> Int[Tensor, "B L"]:
        """The tokens that a group of columns reads at an update."""
        columns, windows = self.columns[rows], self.stream.windows
        if self.stream.bidirectional:
            forward, backward = columns.chunk(2)
            columns = torch.cat([forward, backward.flip(1)])
        if windows is None:
            return columns[:, first:last]
        place = ("window", step, "group", number, "rank", self.accelerator.process_index)
        return windows.rows(columns, first, rng=SeededRng(self.config.seed).stream(*place))

    def fingerprint(self) -> str:
        stream = self.stream
        settings = [stream.segment, stream.lengths == "random"]
        if stream.windows is not None or stream.bidirectional:
            settings += [0 if stream.windows is None else stream.windows.length, stream.bidirectional]
        return digest({"tokens": stream.tokens, "settings": torch.tensor(settings)})

    def state_dict(self) -> dict[str, Tensor]:
        gather = self.accelerator.gather if self.accelerator.num_processes > 1 else lambda part: part
        return {
            f"{MEMORY}/{number}/{place}": gather(part.contiguous())
            for number, memory in enumerate(self.memories)
            for place, part in enumerate(memory)
        }

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        for number, rows in enumerate(self.groups):
            parts = [saved[f"{MEMORY}/{number}/{place}"] for place in range(len(self.memories[number]))]
            first = self.accelerator.process_index * len(rows)
            self.memories[number] = tuple(part[first : first + len(rows)].to(self.accelerator.device) for part in parts)


def segmented_length(stream: TokenStream, columns: int) -> int:
    """Tokens of a column that are read as segments, so that the last window ends within the column."""
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


def segment_sequences(tokens: Int[Tensor, "B L"]) -> Sequences:
    """Segments as points without prompts."""
    length = torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
    return Sequences(tokens, torch.zeros_like(length), length)


def require_network_base(target: Tilted) -> NetworkBase:
    """The base of a target, which must be a network, because only these have a memory."""
    if not isinstance(target.base, NetworkBase):
        base = f"A {type(target.base).__name__} has no memory from segment to segment"
        raise ValueError(f"{base}. Nothing was read; use a network base, or cut the text into chunks.")
    return target.base


def segment_length_log_probs(segment: int) -> Float[Tensor, "K"]:
    """log-probability of each random length, the shortest first."""
    shortest = min(MIN_SEGMENT, segment)
    ends = torch.arange(shortest, segment + int(8 * LENGTH_STD), dtype=torch.float64) + 1  # lengths are rounded down
    below = sum(
        share * torch.special.ndtr((ends - centre) / LENGTH_STD)
        for share, centre in ((1 - HALF_LENGTH_PROBABILITY, segment), (HALF_LENGTH_PROBABILITY, segment / 2))
    )
    assert isinstance(below, Tensor)
    return torch.diff(below, prepend=torch.zeros(1, dtype=torch.float64)).clamp(min=1e-300).log()


def _random_ends(length: int, segment: int, rng: Rng) -> list[int]:
    log_weight, shortest, last, ends = segment_length_log_probs(segment)[None], min(MIN_SEGMENT, segment), 0, []
    for block in range(length):
        drawn = rng.stream("block", block).categorical(log_weight, length // segment + 1)[0] + shortest
        ends += (last + drawn.cumsum(0)).tolist()
        last = ends[-1]
        if last >= length:
            break
    return [*(end for end in ends if end < length), length]
