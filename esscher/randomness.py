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

WHOLE_UP_TO = 64  # columns whose cumulative sum is cheap enough to take whole


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
        uniform = torch.rand(len(log_weight), draws, dtype=torch.float64, generator=self._generator)
        return _invert(log_weight, uniform.to(log_weight.device))

    def accept(self, log_probability: Float[Tensor, "*S"]) -> Bool[Tensor, "*S"]:
        uniform = torch.rand(log_probability.shape, dtype=torch.float64, generator=self._generator)
        return uniform.to(log_probability.device) < log_probability.double().exp()

    def permutation(self, count: int) -> Int[Tensor, "{count}"]:
        return torch.randperm(count, generator=self._generator)

    @contextmanager
    def governs_torch(self) -> Iterator[None]:
        """Within it, torch's own generators (dropout, initial weights) follow this source; outside they are untouched."""
        with torch.random.fork_rng():
            torch.random.manual_seed(self._number)
            yield


def _invert(log_weight: Float[Tensor, "B V"], uniform: Float[Tensor, "B N"]) -> Int[Tensor, "B N"]:
    """The inverse distribution function; a row without any weight, or with one that is not a number, gives column 0."""
    width, draws = log_weight.shape[1], uniform.shape[1]
    largest = log_weight.amax(-1, keepdim=True)
    usable = largest.isfinite()
    shift = torch.where(usable, largest, 0.0)
    block = math.isqrt(width - 1) + 1
    if width <= WHOLE_UP_TO or draws * block >= width:
        cumulative = (log_weight - shift).double().exp_().cumsum(-1)
        column = _first_above(cumulative, uniform * cumulative[:, -1:])
    else:
        column = _invert_by_blocks(log_weight, shift, uniform, block)
    return torch.where(usable, column, 0)


def _invert_by_blocks(
    log_weight: Float[Tensor, "B V"], shift: Float[Tensor, "B 1"], uniform: Float[Tensor, "B N"], block: int
) -> Int[Tensor, "B N"]:
    """The same in two levels: blocks of about sqrt(V) columns, then columns of one block.

    A cumulative sum over a large vocabulary is the dear part of drawing a token; block totals cost one
    vectorised pass in the precision of the weights, and both levels are short enough for float64.
    """
    rows, width = log_weight.shape
    weight = log_weight.new_empty(rows, -(-width // block), block)
    flat = weight.view(rows, -1)
    torch.sub(log_weight, shift, out=flat[:, :width]).exp_()
    flat[:, width:] = 0.0
    cumulative = weight.sum(-1).double().cumsum(-1)
    point = uniform * cumulative[:, -1:]
    chosen = _first_above(cumulative, point)
    before = torch.where(chosen > 0, cumulative.gather(1, (chosen - 1).clamp(min=0)), 0.0)
    inner = weight.gather(1, chosen[..., None].expand(-1, -1, block)).double().cumsum(-1)
    inside = _first_above(inner, (point - before)[..., None])[..., 0]
    return chosen * block + inside


def _first_above(cumulative: Float[Tensor, "*S K"], point: Float[Tensor, "*S N"]) -> Int[Tensor, "*S N"]:
    """The first entry above each point, which therefore has weight; rounding never leads past the last such entry."""
    below_total = torch.minimum(point, torch.nextafter(cumulative[..., -1:], torch.zeros_like(cumulative[..., -1:])))
    return torch.searchsorted(cumulative, below_total, right=True).clamp(max=cumulative.shape[-1] - 1)
