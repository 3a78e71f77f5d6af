"""Random number generators: the `Rng` protocol of all randomness in the library, and `SeededRng`.

An `Rng` offers a few finite choices, so that a test can run a sampler on *every* outcome (`esscher.testing.every_outcome`).
Streams of `SeededRng` are keyed by path, not by position: `SeededRng(0).stream("step", 7, "rank", 1)` is the same whatever was
drawn before, so training resumes exactly. Numbers are generated on the CPU: a seed gives the same draws on every device. Those
of the tokens of many sequences are generated and uploaded for `STEPS_PER_BLOCK` steps at once (docs/why/accelerators.md).
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

from esscher.core.device import widest_float

MAX_SINGLE_PASS_WEIGHTS = 2**15  # up to here one cumulative sum is faster than two levels of blocks
MIN_BLOCKED_WIDTH = 64  # columns up to which there are no blocks
UNIFORM_STEP = 2.0**-53  # spacing of torch's uniform float64 numbers
STEPS_PER_BLOCK = 8  # steps whose random numbers are generated, and sent to an accelerator, at once


class TokenRng(Protocol):
    """The random choices of sequences that are drawn together, one token a step. The choices of a sequence depend on the seed,
    the step and its number only: not on the sequences that were dropped, nor on when."""

    def categorical(self, log_weight: Float[Tensor, "A V"]) -> Int[Tensor, "A"]:
        """One column for each sequence that is left, or for the first of them, with probability proportional to
        exp(log_weight)."""
        ...

    def keep(self, index: Int[Tensor, "K"]) -> None:
        """Drop all sequences but these."""
        ...


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

    def tokens(self, sequences: int, device: torch.device) -> TokenRng:
        """The choices of sequences that are drawn together on a device."""
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
        return _invert(log_weight, uniform.to(log_weight.device, widest_float(log_weight.device)))

    def bernoulli(self, log_probability: Float[Tensor, "*S"]) -> Bool[Tensor, "*S"]:
        uniform = torch.rand(log_probability.shape, dtype=torch.float64, generator=self._generator)
        dtype = widest_float(log_probability.device)
        return uniform.to(log_probability.device, dtype) < log_probability.to(dtype).exp()

    def permutation(self, count: int) -> Int[Tensor, "{count}"]:
        return torch.randperm(count, generator=self._generator)

    def tokens(self, sequences: int, device: torch.device) -> "SeededTokens":
        return SeededTokens(self._generator, sequences, device)

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


class SeededTokens:
    """The `TokenRng` of a seed. Each block of steps uses as many random numbers as there were sequences at the start, so that
    the numbers used do not depend on when sequences are dropped, nor, within a block, on when the last one ends."""

    def __init__(self, generator: torch.Generator, sequences: int, device: torch.device):
        self._generator, self._sequences, self._device = generator, sequences, device
        self._left: Int[Tensor, "A"] | None = None  # the sequences that are left; None is all
        self._block = list[Tensor]()

    def categorical(self, log_weight: Float[Tensor, "A V"]) -> Int[Tensor, "A"]:
        if not self._block:
            uniform = torch.rand(STEPS_PER_BLOCK, self._sequences, dtype=torch.float64, generator=self._generator)
            uniform = uniform.add_(UNIFORM_STEP).to(self._device, widest_float(self._device))
            self._block = self._rows(uniform, self._left)
        return _invert(log_weight, self._block.pop()[: len(log_weight)])[:, 0]

    def keep(self, index: Int[Tensor, "K"]) -> None:
        self._left = index if self._left is None else self._left[index]
        if self._block:
            self._block = self._rows(torch.stack(self._block[::-1])[..., 0], index)

    @staticmethod
    def _rows(uniform: Float[Tensor, "S B"], index: Int[Tensor, "K"] | None) -> list[Float[Tensor, "K 1"]]:
        """The numbers of some sequences, those of the last step first."""
        return list((uniform if index is None else uniform[:, index])[..., None].unbind())[::-1]


def require_seeded(rng: Rng) -> SeededRng:
    """The rng, which must have a seed: initial weights are no finite choice."""
    if not isinstance(rng, SeededRng):
        raise ValueError(f"Initial weights are drawn from a seed, not from {rng!r}. Nothing was built; pass SeededRng(seed).")
    return rng


def _invert(log_weight: Float[Tensor, "B V"], uniform: Float[Tensor, "B N"]) -> Int[Tensor, "B N"]:
    """Sample by the inverse distribution function; a row without weight, or with NaN, gives column 0."""
    (rows, width), draws = log_weight.shape, uniform.shape[1]
    block = math.isqrt(width - 1) + 1
    is_small = rows * width <= MAX_SINGLE_PASS_WEIGHTS or width <= MIN_BLOCKED_WIDTH or draws * block >= width
    if is_small or log_weight.device.type != "cpu":  # blocks take thrice as many kernels
        cumulative = log_weight.softmax(-1, dtype=uniform.dtype).cumsum(-1)
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
