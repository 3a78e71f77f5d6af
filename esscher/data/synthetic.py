"""Data drawn from a base, mostly a motif process of `esscher.exact.languages`, in the sizes of Parshakova et al. (2019)."""

from dataclasses import dataclass

from esscher.core.randomness import Rng
from esscher.core.space import Sequences, empty_prompts
from esscher.core.target import Base
from esscher.samplers.ancestral import draw

TEST = 5000


@dataclass(frozen=True)
class SyntheticSplits:
    """Points for training, validation and test."""

    train: Sequences
    validation: Sequences
    test: Sequences


def validation_size(size: int) -> int:
    """A quarter of the training points, but at least 500 and at most 2000."""
    return min(max(size // 4, 500), 2000)


def draw_splits(process: Base, size: int, *, test: int = TEST, rng: Rng) -> SyntheticSplits:
    """`size` training points, a validation set to match, and `test` points, each from its own stream of `rng`.

    The test points are the same whatever `size` is.
    """
    if size < 1 or test < 1:
        raise ValueError(f"A set has at least one point, not {size} for training and {test} for test.")
    sizes = {"train": size, "validation": validation_size(size), "test": test}
    prompt = empty_prompts(1)
    return SyntheticSplits(**{name: draw(process, prompt, count, rng=rng.stream(name))[0] for name, count in sizes.items()})
