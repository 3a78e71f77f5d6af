"""Points of a continuous space: rows of numbers, and the class of each where it is known.

Letters: N rows; D numbers of a point in the plane; C channels, H rows and W columns of an image.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Points:
    """N points, [N, D] or [N, C, H, W], and their classes."""

    values: Float[Tensor, "N *S"]
    labels: Int[Tensor, "N"] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, chosen: Any) -> "Points":
        return Points(self.values[chosen], None if self.labels is None else self.labels[chosen])

    def to(self, device: torch.device | str) -> "Points":
        return Points(self.values.to(device), None if self.labels is None else self.labels.to(device))

    def tensors(self) -> tuple[Tensor, ...]:
        """All that tells these points from others."""
        return (self.values,) if self.labels is None else (self.values, self.labels)
