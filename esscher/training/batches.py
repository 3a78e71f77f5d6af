"""What each update of a run reads on each process, and what must be remembered of it: rows in a shuffled order need no memory.

Streams, which do, are in `esscher.training.streams`.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from accelerate import Accelerator
from jaxtyping import Int
from torch import Tensor

from esscher.settings.training import TrainingConfig
from esscher.space import Sequences
from esscher.training.order import Bucketed, Order


@runtime_checkable
class Rows(Protocol):
    """Data that are no sequences: points of a continuous space, sequences with labels."""

    def __len__(self) -> int: ...

    def rows(self, chosen: Any) -> "Rows": ...

    def to(self, device: torch.device | str) -> "Rows": ...

    def tensors(self) -> tuple[Tensor, ...]:
        """All that tells these data from others."""
        ...


@runtime_checkable
class Supply(Protocol):
    """The data of a run as its updates see them; `parts` is called once for each update, in order."""

    def steps(self, epochs: int) -> int:
        """Updates in so many epochs."""
        ...

    def scale(self, step: int) -> float:
        """What the learning rate of an update is multiplied by."""
        ...

    def tokens(self, step: int) -> int:
        """Tokens (of points: rows) that an update sees, on all processes together."""
        ...

    def parts(self, step: int) -> Iterator[tuple[Any, Any]]:
        """What this process reads of an update, pass by pass: points, and the target that they are points of."""
        ...

    def fingerprint(self) -> str:
        """One name for the data: other data, another name."""
        ...

    def saved(self) -> dict[str, Tensor]:
        """What the next update needs of those before it, from all processes; called by all of them."""
        ...

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Take back what `saved` gave."""
        ...


class Shuffled:
    """Sequences or other rows in an order that is a function of the seed; the target is whatever the objective knows."""

    def __init__(self, data: Sequences | Rows, target: Any, config: TrainingConfig, accelerator: Accelerator):
        self.data, self.target, self.config, self.accelerator = data, target, config, accelerator
        self.order = order_of(data, config)
        if isinstance(self.order, Bucketed) and self.order.smallest < accelerator.num_processes:
            raise ValueError(
                f"Batches of batch_tokens = {config.batch_tokens} have as few as {self.order.smallest} sequences, too few for "
                f"{accelerator.num_processes} processes. Nothing was trained; raise batch_tokens, or leave it out."
            )

    def steps(self, epochs: int) -> int:
        return self.order.steps(epochs)

    def scale(self, step: int) -> float:
        return 1.0

    def tokens(self, step: int) -> int:
        rows = self.order.batch(step)
        return int(self.data.rows(rows).lengths.sum()) if isinstance(self.data, Sequences) else len(rows)

    def parts(self, step: int) -> Iterator[tuple[Any, Sequences | Rows]]:
        own = self.order.batch(step)[self.accelerator.process_index :: self.accelerator.num_processes]
        for part in passes(self.data, own, self.config.accumulate):
            yield self.target, part.to(self.accelerator.device)

    def fingerprint(self) -> str:
        data = self.data
        return fingerprint(*((data.tokens, data.start, data.stop) if isinstance(data, Sequences) else data.tensors()))

    def saved(self) -> dict[str, Tensor]:
        return {}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Nothing is remembered."""


def order_of(data: Sequences | Rows, config: TrainingConfig) -> Order | Bucketed:
    """In batches of so many rows, or, of sequences, of so many tokens."""
    if config.batch_tokens is None:
        return Order(len(data), config.batch_size, config.seed)
    if not isinstance(data, Sequences):
        raise ValueError(
            f"{type(data).__name__} have no tokens to make batches of batch_tokens = {config.batch_tokens}. Nothing was "
            f"trained; give batch_size instead."
        )
    return Bucketed(data.stop.cpu(), config.batch_tokens, config.seed)


def passes(data: Sequences | Rows, rows: Int[Tensor, "B"], count: int) -> Iterator[Sequences | Rows]:
    """Some rows in `count` passes, of sequences those alike in length together, so that little is padding."""
    if not isinstance(data, Sequences):
        yield from (data.rows(part) for part in rows.chunk(count))
        return
    for part in rows[data.stop[rows].argsort(stable=True)].chunk(count):
        yield trim(data.rows(part))


def trim(x: Sequences) -> Sequences:
    """The same rows without columns that are padding for all of them."""
    return Sequences(x.tokens[:, : int(x.stop.max()) if len(x) else 0], x.start, x.stop)


def fingerprint(*tensors: torch.Tensor) -> str:
    """One name for the content of tensors."""
    found = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        found.update(tensor.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
