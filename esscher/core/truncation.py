"""How the next-token distribution of a base is truncated, without torch; `esscher.bases.truncated` does it, and stays exact."""

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Truncation:
    """Temperature, top-k and top-p of a base; by default none."""

    temperature: float = 1.0
    """Temperature of the base, which stays normalised."""
    top_k: int | None = None
    """Keep the k most probable tokens at each step."""
    top_p: float | None = None
    """Keep the most probable tokens up to this total probability."""

    @property
    def truncation(self) -> "Truncation":
        """These three settings alone, of a class that has more."""
        return Truncation(**{field.name: getattr(self, field.name) for field in fields(Truncation)})

    @property
    def truncates(self) -> bool:
        """Whether the base is changed at all."""
        return self.truncation != Truncation()

    def changed_settings(self) -> dict[str, Any]:
        """The settings that are not at their defaults, for reports."""
        return {name: value for name, value in vars(self.truncation).items() if value != getattr(Truncation(), name)}
