"""Processes in the plane whose points belong to classes that no line parts, with a known density.

    four spins     four arms that wind around the origin, a class each
    two circles    a circle within a circle

Each class is a row of narrow Gaussians along a curve. The thesis (C.4) shows such data and tells no numbers; these are ours.
Letters: N points, M Gaussians.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.adversarial.planar import Planar
from esscher.adversarial.points import Points
from esscher.randomness import Continuous


@dataclass(frozen=True, eq=False)
class PlanarClasses:
    """A mixture of Gaussians each of which belongs to a class."""

    process: Planar
    of: Int[Tensor, "M"]

    @property
    def classes(self) -> int:
        return 1 + int(self.of.max())

    def draw(self, count: int, *, rng: Continuous) -> Points:
        """Independent points with their classes."""
        drawn = self.process.draw(count, rng=rng)
        return Points(drawn.values, self.of[drawn.labels])

    def draw_few(self, each: int, *, rng: Continuous) -> Points:
        """As many points of each class."""
        drawn = self.draw(50 * each * self.classes, rng=rng)
        assert drawn.labels is not None
        chosen = [(drawn.labels == one).nonzero()[:each, 0] for one in range(self.classes)]
        return drawn.rows(torch.cat(chosen))


def along(curves: list[Float[Tensor, "m 2"]], deviation: float) -> PlanarClasses:
    """Gaussians of equal weight along curves, a class for each of these."""
    mean = torch.cat(curves).double()
    of = torch.cat([torch.full((len(curve),), number) for number, curve in enumerate(curves)])
    weight = torch.full((len(mean),), 1 / len(mean), dtype=torch.float64)
    return PlanarClasses(Planar(weight, mean, torch.full((len(mean), 2), deviation**2, dtype=torch.float64)), of)


def four_spins() -> PlanarClasses:
    """Arms that wind by half a turn."""
    radius = torch.linspace(0.5, 2, 30, dtype=torch.float64)
    angles = [math.pi * (radius - 0.5) / 1.5 + arm * math.pi / 2 for arm in range(4)]
    return along([radius[:, None] * torch.stack([angle.cos(), angle.sin()], -1) for angle in angles], 0.08)


def two_circles() -> PlanarClasses:
    """Circles of radius 1 and 2."""
    angle = 2 * math.pi * torch.arange(60, dtype=torch.float64) / 60
    circle = torch.stack([angle.cos(), angle.sin()], -1)
    return along([circle, 2 * circle], 0.12)


CASES: Mapping[str, Callable[[], PlanarClasses]] = {"four spins": four_spins, "two circles": two_circles}
