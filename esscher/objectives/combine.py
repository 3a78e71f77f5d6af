"""Weighted sums of objectives, with weights that may change as training goes on.

Combine((Part("likelihood", Likelihood()), Part("contrast", other, weight=Ramp(0.0, 0.5, begin=100, end=400))))
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from esscher.objective import Loss, Objective
from esscher.randomness import Rng
from esscher.space import Sequences
from esscher.target import Tilted

Schedule = Callable[[int], float]
"""The weight of a part as a function of the step."""


def at_step(weight: float | Schedule, step: int) -> float:
    """The weight at a step, whether it changes or not."""
    return weight(step) if callable(weight) else weight


@dataclass(frozen=True)
class Ramp:
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
class Part:
    """One objective of a sum, with the name that its metrics carry."""

    name: str
    objective: Objective
    weight: float | Schedule = 1.0


@dataclass(frozen=True)
class Combine:
    """The sum of its parts, for each player by itself; a part of weight 0 is not computed.

    Parts that count different units are put together over the rows of a batch.
    """

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        if len(set(names)) != len(names) or not names:
            raise ValueError(f"A sum needs parts with different names, not {names}.")

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        weights = {part.name: at_step(part.weight, step) for part in self.parts}
        active = [part for part in self.parts if weights[part.name] != 0]
        if not active:
            raise ValueError(f"All parts have weight 0 at step {step}: {', '.join(weights)}. Nothing was computed.")
        losses = {part.name: part.objective(target, data, rng=rng, step=step) for part in active}
        metrics = {f"{name}/{key}": value for name, loss in losses.items() for key, value in loss.metrics.items()}
        metrics |= {f"{name}/weight": weight for name, weight in weights.items()}
        counts = {loss.count for loss in losses.values()}
        value = _sum({name: loss.value for name, loss in losses.items()}, weights)
        return Loss(value, metrics, counts.pop() if len(counts) == 1 else len(data))


def _sum(values: Mapping[str, Tensor | Mapping[str, Tensor]], weights: Mapping[str, float]) -> Tensor | dict[str, Tensor]:
    """One sum, or one for each player."""
    plain = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    if len(plain) == len(values):
        return sum((weights[name] * value for name, value in plain.items()), start=next(iter(plain.values())).new_zeros(()))
    if plain:
        raise ValueError(f"The parts {', '.join(plain)} have one value, the others one for each player. Make them alike.")
    total: dict[str, Tensor] = {}
    for name, value in values.items():
        assert not isinstance(value, Tensor)
        for player, own in value.items():
            total[player] = total[player] + weights[name] * own if player in total else weights[name] * own
    return total
