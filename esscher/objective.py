"""What to minimise: `objective(target, data, rng=rng, step=step) -> Loss`.

An objective is a frozen dataclass whose fields are its settings: samplers, students, moments. It returns a
value to differentiate, or one for each player of a game, and metrics to log. `step` counts updates, for
weights that change with time. With the `Exhaustive` sampler in it, its gradient is the exact one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor

from esscher.randomness import Rng
from esscher.space import Sequences
from esscher.target import Tilted


@dataclass(frozen=True)
class Loss:
    """A scalar to minimise (or one for each player), and numbers worth logging.

    `count` is how many units the value is a mean over: parts of a batch are put together with it as their weight.
    """

    value: Tensor | Mapping[str, Tensor]
    metrics: Mapping[str, float] = field(default_factory=dict)
    count: int = 1


@runtime_checkable
class Objective(Protocol):
    """A frozen dataclass of settings; calling it gives the loss on a batch."""

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss: ...
