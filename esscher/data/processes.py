"""Data drawn from a process whose truth is known: sets of the sizes of the global autoregressive models' paper.

The process is any base, most often a motif process of `esscher.exact.languages`.
"""

from dataclasses import dataclass

from esscher.randomness import Rng
from esscher.samplers.ancestral import draw
from esscher.space import Sequences, empty_prompts
from esscher.target import Base

TEST = 5000


@dataclass(frozen=True)
class ProcessSets:
    """Points to learn from, to choose by, and to judge by."""

    train: Sequences
    validation: Sequences
    test: Sequences


def validation_size(size: int) -> int:
    """A quarter of the training points, but at least 500 and at most 2000."""
    return min(max(size // 4, 500), 2000)


def draw_sets(process: Base, size: int, *, test: int = TEST, rng: Rng) -> ProcessSets:
    """`size` training points, a validation set to match, and `test` points, each from its own stream of `rng`.

    The test points are the same whatever `size` is.
    """
    if size < 1 or test < 1:
        raise ValueError(f"A set has at least one point: {size} to learn from and {test} to judge by were asked for.")
    sizes = {"train": size, "validation": validation_size(size), "test": test}
    return ProcessSets(**{name: _draw(process, count, rng.stream(name)) for name, count in sizes.items()})


def _draw(process: Base, count: int, rng: Rng) -> Sequences:
    return draw(process, empty_prompts(1), count, rng=rng)[0]
