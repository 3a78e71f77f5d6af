"""Weighted sums of objectives, with weights that may change during training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from esscher.core.objective import Loss, Objective
from esscher.core.randomness import Rng
from esscher.core.space import Sequences
from esscher.core.target import Tilted

Schedule = Callable[[int], float]
"""A number as a function of the step."""


@dataclass(frozen=True)
class LinearRamp:
    """`first` until step `begin`, then in a straight line to `last` at step `end`; equal ends make a switch."""

    first: float
    last: float
    begin: int
    end: int

    def __post_init__(self) -> None:
        if self.begin > self.end:
            raise ValueError(f"A ramp ends at step {self.end}, before it begins at {self.begin}.")

    def __call__(self, step: int) -> float:
        if step < self.begin:
            return self.first
        share = 1.0 if step >= self.end else (step - self.begin) / (self.end - self.begin)
        return self.first + share * (self.last - self.first)


@dataclass(frozen=True)
class WeightedObjective:
    """An objective of a sum; its name is the prefix of its metrics."""

    name: str
    objective: Objective
    weight: float | Schedule = 1.0


@dataclass(frozen=True)
class WeightedSum:
    """The weighted sum of its parts, for each module by itself where they have several losses; parts of weight 0 are skipped.
    If the parts count different units, the sum counts the rows of the batch."""

    parts: tuple[WeightedObjective, ...]

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        if len(set(names)) != len(names) or not names:
            raise ValueError(f"A sum needs parts with different names, not {names}.")

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        weights = {part.name: part.weight(step) if callable(part.weight) else part.weight for part in self.parts}
        active = [part for part in self.parts if weights[part.name] != 0]
        if not active:
            raise ValueError(f"All parts have weight 0 at step {step}: {', '.join(weights)}. Nothing was computed.")
        losses = {part.name: part.objective(target, data, rng=rng, step=step) for part in active}
        metrics = {f"{name}/{key}": value for name, loss in losses.items() for key, value in loss.metrics.items()}
        metrics |= {f"{name}/weight": weight for name, weight in weights.items()}
        counts = {loss.count for loss in losses.values()}
        return Loss(_sum(losses, weights), metrics, counts.pop() if len(counts) == 1 else len(data))


def _sum(losses: Mapping[str, Loss], weights: Mapping[str, float]) -> Tensor | dict[str, Tensor]:
    """The weighted sum, or one for each module."""
    plain = [name for name, loss in losses.items() if isinstance(loss.value, Tensor)]
    if plain and len(plain) < len(losses):
        raise ValueError(f"The parts {', '.join(plain)} have one loss, the others one for each module. Make them alike.")
    total: dict[str | None, Tensor] = {}
    for name, loss in losses.items():
        for module, value in loss.values.items():
            total[module] = total[module] + weights[name] * value if module in total else weights[name] * value
    return total[None] if plain else {str(module): value for module, value in total.items()}
