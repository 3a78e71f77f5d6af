"""Distributions over the cells of a grid in the plane, and how far apart they are.

The grid has as many rows as columns over the box of some points, stretched on each side by half of half its range. A density
and an energy are taken at the centres of cells and normalised over them; points are counted, each in its cell (those outside
in the nearest one). Of what is counted an empty cell is no part of KL(counted || other), and counts as half a point in
KL(other || counted), which would be infinite. Letters: N points, S cells a side, C = S * S.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.adversarial.points import Points
from esscher.estimate import Estimate
from esscher.estimators.intervals import interval

CELLS, STRETCH, EXTRA = 100, 0.5, 0.5
LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Cells:
    """A distribution over C cells: known, or counted from points that lie in these `places`."""

    log_prob: Float[Tensor, "C"]
    places: Int[Tensor, "N"] | None = None

    @property
    def prob(self) -> Float[Tensor, "C"]:
        return self.log_prob.exp()

    @classmethod
    def counted(cls, places: Int[Tensor, "N"], cells: int) -> "Cells":
        """From how many points lie in each cell."""
        return cls(_shares(places, torch.ones(len(places), dtype=torch.float64), cells).log(), places)


@dataclass(frozen=True)
class Grid:
    """S * S cells over a box."""

    low: tuple[float, float]
    high: tuple[float, float]
    side: int = CELLS

    @classmethod
    def around(cls, points: Points, side: int = CELLS) -> "Grid":
        """The grid over the stretched box of some points."""
        low, high = points.values.double().amin(0), points.values.double().amax(0)
        more = STRETCH * (high - low) / 2
        (left, bottom), (right, top) = (low - more).tolist(), (high + more).tolist()
        return cls((left, bottom), (right, top), side)

    @property
    def centres(self) -> Float[Tensor, "C 2"]:
        """The middle of every cell, rows of equal x in turn."""
        x, y = (low + (high - low) * (torch.arange(self.side) + 0.5) / self.side for low, high in self._sides())
        return torch.cartesian_prod(x, y).float()

    def density(self, log_density: Float[Tensor, "C"]) -> Cells:
        """A log-density (or minus an energy), known up to a constant at the centres."""
        return Cells(log_density.double().log_softmax(0))

    def counted(self, points: Points) -> Cells:
        """How often points fall into each cell."""
        return Cells.counted(self._cell(points), self.side**2)

    def _cell(self, points: Points) -> Int[Tensor, "N"]:
        places = [
            ((points.values[:, axis].double() - low) / (high - low) * self.side).long().clamp(0, self.side - 1)
            for axis, (low, high) in enumerate(self._sides())
        ]
        return places[0] * self.side + places[1]

    def _sides(self) -> list[tuple[float, float]]:
        return list(zip(self.low, self.high, strict=True))


def divergence(left: Cells, right: Cells) -> Estimate:
    """KL(left || right) over the cells, exact where both are known.

    The points that were counted are the replicates, those of both if both were. Left out is the bias of counting, about the
    number of cells that are met over twice the number of points.
    """
    sides = (left, right)
    drawn = [side.places for side in sides if side.places is not None]
    if not drawn:
        return Estimate.exact(float(_divergence(left.prob, right.prob)), unit="nats")

    def statistic(*times: Float[Tensor, "1 n"]) -> Tensor:
        given = iter(times)
        cells = len(left.log_prob)
        shares = [s.prob if s.places is None else _shares(s.places, next(given)[0], cells) for s in sides]
        return _divergence(shares[0], shares[1] if right.places is None else shares[1].clamp(min=EXTRA / len(right.places)))

    sources = [(1, len(places)) for places in drawn]
    draws = sum(len(places) for places in drawn)
    return interval(statistic, sources, level=LEVEL, draws=draws, method="points counted in cells", unit="nats")


def _divergence(left: Float[Tensor, "C"], right: Float[Tensor, "C"]) -> Tensor:
    return (torch.xlogy(left, left) - torch.xlogy(left, right)).sum()


def _shares(places: Int[Tensor, "N"], times: Float[Tensor, "N"], cells: int) -> Float[Tensor, "C"]:
    """The share of each cell, when each point counts so many times."""
    count = torch.zeros(cells, dtype=torch.float64).index_add(0, places, times / times.sum())
    return count.clamp(min=0)
