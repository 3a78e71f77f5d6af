"""The only door to chance.

Everything random in the library asks an `Rng` for one of its few finite choices, so that a run is
repeated by its seed and a test can replay a sampler on *every* outcome (`esscher.testing.every_outcome`).
`Seeded` is the real one. Streams are counters, not positions: `Seeded(0).stream("step", 7, "rank", 1)`
is the same whatever was drawn before, which is what makes training resume exactly. The dice are thrown
on the CPU, so that a seed means the same on every device.
"""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

WHOLE_UP_TO = 2**15  # weights whose cumulative sums cost less than what it takes to do without most of them
NARROW = 64  # columns that are too few to be parted
SMALLEST = 2.0**-53  # the step of torch's uniform numbers


@runtime_checkable
class Rng(Protocol):
    """The choices that samplers may ask for."""

    def categorical(self, log_weight: Float[Tensor, "B V"], draws: int = 1) -> Int[Tensor, "B {draws}"]:
        """`draws` independent columns for each row, column v with probability proportional to exp(log_weight)."""
        ...

    def accept(self, log_probability: Float[Tensor, "*S"]) -> Bool[Tensor, "*S"]:
        """True with the given probability, each entry by itself; probabilities above 1 count as 1."""
        ...

    def permutation(self, count: int) -> Int[Tensor, "{count}"]:
        """The numbers below `count` in a random order."""
        ...

    def stream(self, *path: int | str) -> "Rng":
        """An independent source, the same for the same path whatever was drawn before."""
        ...


@runtime_checkable
class Continuous(Rng, Protocol):
    """Also numbers without a finite list of outcomes: the noise that generators of continuous points transform."""

    def uniform(self, *shape: int) -> Float[Tensor, "*shape"]:
        """Independent numbers between 0 and 1."""
        ...

    def normal(self, *shape: int) -> Float[Tensor, "*shape"]:
        """Independent standard normal numbers."""
        ...

    def stream(self, *path: int | str) -> "Continuous": ...


class Seeded:
    """Chance from a seed and a path of names and numbers."""

    def __init__(self, seed: int, *path: int | str):
        self.seed, self.path = seed, path
        name = repr((seed, *path)).encode()
        self._number = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little", signed=True)
        self._generator = torch.Generator().manual_seed(self._number)

    def __repr__(self) -> str:
        return f"Seeded{(self.seed, *self.path)}"

    def stream(self, *path: int | str) -> "Seeded":
        return Seeded(self.seed, *self.path, *path)

    def categorical(self, log_weight: Float[Tensor, "B V"], draws: int = 1) -> Int[Tensor, "B {draws}"]:
        uniform = torch.rand(len(log_weight), draws, dtype=torch.float64, generator=self._generator).add_(SMALLEST)
        return _invert(log_weight, uniform.to(log_weight.device))

    def accept(self, log_probability: Float[Tensor, "*S"]) -> Bool[Tensor, "*S"]:
        uniform = torch.rand(log_probability.shape, dtype=torch.float64, generator=self._generator)
        return uniform.to(log_probability.device) < log_probability.double().exp()

    def permutation(self, count: int) -> Int[Tensor, "{count}"]:
        return torch.randperm(count, generator=self._generator)

    def uniform(self, *shape: int) -> Float[Tensor, "*shape"]:
        return torch.rand(shape, generator=self._generator)

    def normal(self, *shape: int) -> Float[Tensor, "*shape"]:
        return torch.randn(shape, generator=self._generator)

    @contextmanager
    def governs_torch(self) -> Iterator[None]:
        """Within it, torch's own generators (dropout, initial weights) follow this source; outside they are untouched."""
        with torch.random.fork_rng():
            torch.random.manual_seed(self._number)
            yield


def _invert(log_weight: Float[Tensor, "B V"], uniform: Float[Tensor, "B N"]) -> Int[Tensor, "B N"]:
    """The inverse distribution function; a row without any weight, or with one that is not a number, gives column 0."""
    (rows, width), draws = log_weight.shape, uniform.shape[1]
    block = math.isqrt(width - 1) + 1
    if rows * width <= WHOLE_UP_TO or width <= NARROW or draws * block >= width:
        cumulative = log_weight.softmax(-1, dtype=torch.float64).cumsum(-1)
        return _first_to_reach(cumulative, uniform * cumulative[:, -1:])
    return _invert_by_blocks(log_weight, uniform, block)


def _invert_by_blocks(log_weight: Float[Tensor, "B V"], uniform: Float[Tensor, "B N"], block: int) -> Int[Tensor, "B N"]:
    """The same in two levels: blocks of about sqrt(V) columns, then columns of one block.

    Cumulative sums over a large vocabulary are the dear part of drawing tokens for many rows; block totals cost one
    vectorised pass in the precision of the weights, and both levels are short enough for float64.
    """
    padded = pad(log_weight, (0, -log_weight.shape[1] % block), value=-torch.inf)
    weight = torch.softmax(padded, -1, out=padded).view(len(padded), -1, block)
    cumulative = weight.sum(-1).cumsum(-1, dtype=torch.float64)
    point = uniform * cumulative[:, -1:]
    chosen = _first_to_reach(cumulative, point)
    before = pad(cumulative, (1, 0)).gather(1, chosen)
    inner = weight.gather(1, chosen[..., None].expand(-1, -1, block)).cumsum(-1, dtype=torch.float64)
    rest = torch.minimum(point - before, inner[..., -1])  # the two totals of a block are rounded differently
    return chosen * block + _first_to_reach(inner, rest[..., None])[..., 0]


def _first_to_reach(cumulative: Float[Tensor, "*S K"], point: Float[Tensor, "*S N"]) -> Int[Tensor, "*S N"]:
    """The first entry that is not below each point, which has weight as points are above 0; nothing reaches NaN: 0."""
    return torch.searchsorted(cumulative, point) % cumulative.shape[-1]
