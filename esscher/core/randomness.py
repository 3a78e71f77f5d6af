"""Random number generators: the `Rng` protocol of all randomness in the library, and `SeededRng`.

An `Rng` offers a few finite choices, so that a test can run a sampler on *every* outcome (`esscher.testing.every_outcome`).
Streams of `SeededRng` are keyed by path, not by position: `SeededRng(0).stream("step", 7, "rank", 1)` is the same whatever was
drawn before, so training resumes exactly. Numbers are generated on the CPU: a seed gives the same draws on every device.
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

MAX_SINGLE_PASS_WEIGHTS = 2**15  # up to here one cumulative sum is faster than two levels of blocks
MIN_BLOCKED_WIDTH = 64  # columns up to which there are no blocks
UNIFORM_STEP = 2.0**-53  # spacing of torch's uniform float64 numbers


@runtime_checkable
class Rng(Protocol):
    """The random choices that a sampler may make."""

    def categorical(self, log_weight: Float[Tensor, "B V"], draws: int = 1) -> Int[Tensor, "B {draws}"]:
        """`draws` independent columns for each row, column v with probability proportional to exp(log_weight)."""
        ...

    def bernoulli(self, log_probability: Float[Tensor, "*S"]) -> Bool[Tensor, "*S"]:
        """True with the given probability, independently for each entry; probabilities above 1 count as 1."""
        ...

    def permutation(self, count: int) -> Int[Tensor, "{count}"]:
        """The numbers below `count` in a random order."""
        ...

    def stream(self, *path: int | str) -> "Rng":
        """An independent generator, the same for the same path whatever was drawn before."""
        ...


class SeededRng:
    """A generator that is a function of a seed and a path of names and numbers."""

    def __init__(self, seed: int, *path: int | str):
        self.seed, self.path = seed, path
        name = repr((seed, *path)).encode()
        self._number = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little", signed=True)
        self._generator = torch.Generator().manual_seed(self._number)

    def __repr__(self) -> str:
        return f"SeededRng{(self.seed, *self.path)}"

    def stream(self, *path: int | str) -> "SeededRng":
        return SeededRng(self.seed, *self.path, *path)

    def categorical(self, log_weight: Float[Tensor, "B V"], draws: int = 1) -> Int[Tensor, "B {draws}"]:
        uniform = torch.rand(len(log_weight), draws, dtype=torch.float64, generator=self._generator).add_(UNIFORM_STEP)
        return _invert(log_weight, uniform.to(log_weight.device))

    def bernoulli(self, log_probability: Float[Tensor, "*S"]) -> Bool[Tensor, "*S"]:
        uniform = torch.rand(log_probability.shape, dtype=torch.float64, generator=self._generator)
        return uniform.to(log_probability.device) < log_probability.double().exp()

    def permutation(self, count: int) -> Int[Tensor, "{count}"]:
        return torch.randperm(count, generator=self._generator)

    def uniform(self, *shape: int) -> Float[Tensor, "*shape"]:
        """Independent numbers between 0 and 1."""
        return torch.rand(shape, generator=self._generator)

    def normal(self, *shape: int) -> Float[Tensor, "*shape"]:
        """Independent standard normal numbers."""
        return torch.randn(shape, generator=self._generator)

    @contextmanager
    def fork_torch_rng(self) -> Iterator[None]:
        """Seed torch's global generators (dropout, initial weights) within the block; restore them after it."""
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices):
            torch.random.manual_seed(self._number)
            yield


def require_seeded(rng: Rng) -> SeededRng:
    """The rng, which must have a seed: initial weights are no finite choice."""
    if not isinstance(rng, SeededRng):
        raise ValueError(f"Initial weights are drawn from a seed, not from {rng!r}. Nothing was built; pass SeededRng(seed).")
    return rng


def _invert(log_weight: Float[Tensor, "B V"], uniform: Float[Tensor, "B N"]) -> Int[Tensor, "B N"]:
    """Sample by the inverse distribution function; a row without weight, or with NaN, gives column 0."""
    (rows, width), draws = log_weight.shape, uniform.shape[1]
    block = math.isqrt(width - 1) + 1
    if rows * width <= MAX_SINGLE_PASS_WEIGHTS or width <= MIN_BLOCKED_WIDTH or draws * block >= width:
        cumulative = log_weight.softmax(-1, dtype=torch.float64).cumsum(-1)
        return _searchsorted(cumulative, uniform * cumulative[:, -1:])
    return _invert_by_blocks(log_weight, uniform, block)


def _invert_by_blocks(log_weight: Float[Tensor, "B V"], uniform: Float[Tensor, "B N"], block: int) -> Int[Tensor, "B N"]:
    """The same in two levels, blocks of about sqrt(V) columns and columns of one block, because cumulative sums over a large
    vocabulary in float64 dominate the cost of drawing tokens for many rows."""
    padded = pad(log_weight, (0, -log_weight.shape[1] % block), value=-torch.inf)
    weight = torch.softmax(padded, -1, out=padded).view(len(padded), -1, block)
    cumulative = weight.sum(-1).cumsum(-1, dtype=torch.float64)
    point = uniform * cumulative[:, -1:]
    chosen = _searchsorted(cumulative, point)
    before = pad(cumulative, (1, 0)).gather(1, chosen)
    inner = weight.gather(1, chosen[..., None].expand(-1, -1, block)).cumsum(-1, dtype=torch.float64)
    rest = torch.minimum(point - before, inner[..., -1])  # the two totals of a block are rounded differently
    return chosen * block + _searchsorted(inner, rest[..., None])[..., 0]


def _searchsorted(cumulative: Float[Tensor, "*S K"], point: Float[Tensor, "*S N"]) -> Int[Tensor, "*S N"]:
    """Index of the first entry not below each point, which has weight because points are above 0; 0 in rows of NaN."""
    return torch.searchsorted(cumulative, point) % cumulative.shape[-1]
