"""What to minimise: `objective(target, data, rng=rng, step=step) -> Loss`.

An objective is a frozen dataclass whose fields are its settings: samplers, students, moments. It returns a
value to differentiate, or one for each player of a game, and metrics to log. `step` counts updates, for
weights that change with time. With the `Exhaustive` sampler in it, its gradient is the exact one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor
from typing_extensions import TypeVar

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


Target = TypeVar("Target", contravariant=True, default=Tilted)
Data = TypeVar("Data", contravariant=True, default=Sequences)
Chance = TypeVar("Chance", contravariant=True, default=Rng)


@runtime_checkable
class Objective(Protocol[Target, Data, Chance]):
    """A frozen dataclass of settings; calling it gives the loss on a batch.

    The target is a `Tilted` and the data are sequences, unless it is said otherwise: in a game of networks on points of a
    continuous space (`esscher.adversarial`) they are the game and the points.
    """

    def __call__(self, target: Target, data: Data, *, rng: Chance, step: int = 0) -> Loss: ...
