"""What training minimises: `objective(target, data, rng=rng, step=step) -> Loss`. An objective is a frozen dataclass whose
fields are its settings; `step` counts updates. With the `Exhaustive` sampler in it, its gradient is exact."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """A scalar to minimise, or one for each of several modules by name, and numbers to log. `count` is the number of units that
    the value is a mean over: the weight of this part of a batch among the others."""

    value: Tensor | Mapping[str, Tensor]
    metrics: Mapping[str, float] = field(default_factory=dict)
    count: int = 1

    @property
    def values(self) -> Mapping[str | None, Tensor]:
        """The scalar of each module; of all modules together under None."""
        return {None: self.value} if isinstance(self.value, Tensor) else dict(self.value.items())


@runtime_checkable
class Objective(Protocol):
    """The loss of a target on a batch: mostly of a `Tilted` on `Sequences`, of a scorer on labelled rows in fine-tuning."""

    def __call__(self, target: Any, data: Any, *, rng: Any, step: int = 0) -> Loss: ...
