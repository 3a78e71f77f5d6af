"""`Estimate`: the type of every number that leaves the library, a value with its interval and the method behind both."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Estimate:
    """A value with an interval that covers the truth at the rate `confidence`. `n` is the size of the sample and `counted` says
    of what ("draws", "test sequences"); an exact number has `n` = 0."""

    value: float
    low: float
    high: float
    confidence: float
    n: int
    method: str
    unit: str = ""
    counted: str = "draws"

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high and not math.isnan(self.value):
            raise ValueError(f"An estimate lies inside its interval; got {self.value} outside [{self.low}, {self.high}].")

    @classmethod
    def exact(cls, value: float, *, method: str = "exact", unit: str = "") -> "Estimate":
        """A number without sampling error."""
        return cls(value, value, value, 1.0, 0, method, unit)

    def map(self, increasing: Callable[[float], float], *, unit: str | None = None) -> "Estimate":
        """The estimate of an increasing function of the number; the ends of the interval are mapped too."""
        value, low, high = (increasing(v) for v in (self.value, self.low, self.high))
        return replace(self, value=value, low=low, high=high, unit=self.unit if unit is None else unit)

    def __neg__(self) -> "Estimate":
        return replace(self, value=-self.value, low=-self.high, high=-self.low)

    def covers(self, truth: float) -> bool:
        return self.low <= truth <= self.high

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if self.n == 0:
            return f"{self.value:.5g}{unit} (exact)"
        sample = f"{100 * self.confidence:.6g} %, {self.n:,} {self.counted}, {self.method}"
        low, high = (f"{end:.5g}" if math.isfinite(end) else "unbounded" for end in (self.low, self.high))
        return f"{self.value:.5g}{unit} [{low}, {high}] ({sample})"
