"""Every number that leaves the library: a value, the interval it lies in, and how both were got."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Estimate:
    """`value` with an interval that covers the truth at the rate `level`; exact when `draws` is 0."""

    value: float
    low: float
    high: float
    level: float
    draws: int
    method: str
    unit: str = ""

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high and not math.isnan(self.value):
            raise ValueError(f"An estimate lies inside its interval; got {self.value} outside [{self.low}, {self.high}].")

    @classmethod
    def exact(cls, value: float, *, method: str = "exact", unit: str = "") -> "Estimate":
        """A number known without chance."""
        return cls(value, value, value, 1.0, 0, method, unit)

    def map(self, increasing: Callable[[float], float], *, unit: str | None = None) -> "Estimate":
        """The estimate of an increasing function of the number."""
        value, low, high = (increasing(v) for v in (self.value, self.low, self.high))
        return replace(self, value=value, low=low, high=high, unit=self.unit if unit is None else unit)

    def covers(self, truth: float) -> bool:
        return self.low <= truth <= self.high

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if self.draws == 0:
            return f"{self.value:.5g}{unit} (exact)"
        chance = f"{100 * self.level:.6g} %, {self.draws:,} draws, {self.method}"
        return f"{self.value:.5g}{unit} [{self.low:.5g}, {self.high:.5g}] ({chance})"
