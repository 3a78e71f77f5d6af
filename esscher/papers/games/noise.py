"""Random numbers of the generators of continuous points, beside the finite choices of the core's `Rng`."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from esscher.core.randomness import Rng


@runtime_checkable
class ContinuousRng(Rng, Protocol):
    """Also numbers without a finite list of outcomes; `esscher.core.randomness.SeededRng` has them."""

    def uniform(self, *shape: int) -> Float[Tensor, "*shape"]:
        """Independent numbers between 0 and 1."""
        ...

    def normal(self, *shape: int) -> Float[Tensor, "*shape"]:
        """Independent standard normal numbers."""
        ...

    def stream(self, *path: int | str) -> "ContinuousRng": ...
