"""Processes in the plane whose density is known: mixtures of Gaussians with diagonal covariance.

    four Gaussians     centres at (+-v, +-v), equal weights, a random covariance each
    biased pair        centres at (-v, -v) and (v, v), weights 0.1 and 0.9, variance 5
    two spirals        equal Gaussians along two arms

The numbers of a process are drawn once, with the seeds of the released code of Dai et al. (2017), so every run has the same
processes; the order in which that code draws them is our reading. Letters: N points, M components.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from esscher.adversarial.points import Points
from esscher.randomness import Continuous

DRAWS = 100_000  # of the published experiments
TURNS = 780 / 360 * 2 * math.pi  # the angle of a spiral's end
ACROSS = 0.45  # standard deviation of a spiral's arm


@dataclass(frozen=True, eq=False)
class Planar:
    """A mixture of Gaussians in the plane."""

    weight: Float[Tensor, "M"]
    mean: Float[Tensor, "M 2"]
    variance: Float[Tensor, "M 2"]

    def draw(self, count: int, *, rng: Continuous) -> Points:
        """Independent points; the label of each is its component."""
        component = rng.categorical(self.weight.log()[None], count)[0]
        values = self.mean[component] + self.variance[component].sqrt() * rng.normal(count, 2).double()
        return Points(values.float(), component)

    def log_density(self, x: Float[Tensor, "N 2"]) -> Float[Tensor, "N"]:
        """log p(x), in double precision."""
        square = (x.double()[:, None] - self.mean).square() / self.variance
        log_part = -0.5 * (square + self.variance.log() + math.log(2 * math.pi)).sum(-1)
        return torch.logsumexp(log_part + self.weight.log(), -1)


def four_gaussians() -> Planar:
    """Four Gaussians of equal weight around the corners of a square."""
    numbers = np.random.RandomState(5)
    v = 10 * numbers.rand()
    variance = 10 * torch.from_numpy(numbers.rand(4, 2))
    mean = v * torch.tensor([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)
    return Planar(torch.full((4,), 0.25, dtype=torch.float64), mean, variance)


def biased_pair() -> Planar:
    """Two Gaussians, one nine times as heavy as the other."""
    v = 8 * np.random.RandomState(2).rand()
    mean = v * torch.tensor([[-1, -1], [1, 1]], dtype=torch.float64)
    return Planar(torch.tensor([0.1, 0.9], dtype=torch.float64), mean, torch.full((2, 2), 5.0, dtype=torch.float64))


def two_spirals(form: Literal["thesis", "released"] = "thesis") -> Planar:
    """Two arms of Gaussians: 100 on each in the thesis, 50 on each in the released code."""
    count = {"thesis": 100, "released": 50}[form]
    angle = TURNS * ((torch.arange(count, dtype=torch.float64) + 1) / count).sqrt()
    arm = angle[:, None] * torch.stack([-angle.cos(), angle.sin()], -1)
    mean = torch.cat([arm, -arm])
    weight = torch.full((2 * count,), 0.5 / count, dtype=torch.float64)
    return Planar(weight, mean, torch.full((2 * count, 2), ACROSS**2, dtype=torch.float64))


def blurred(process: Planar) -> Planar:
    """The process with identity covariances: what the released code takes for the true density of its spirals."""
    return Planar(process.weight, process.mean, torch.ones_like(process.variance))


PROCESSES: Mapping[str, Callable[[], Planar]] = {
    "four Gaussians": four_gaussians,
    "biased pair": biased_pair,
    "two spirals": two_spirals,
}
