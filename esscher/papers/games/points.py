"""Points of a continuous space with optional class labels: images, and processes in the plane whose density is known.

    four Gaussians     centres at (+-v, +-v), equal weights, a random covariance each
    biased pair        centres at (v, v) and (-v, -v), weights 0.1 and 0.9, variance 5
    two spirals        equal Gaussians along two arms
    four spins         four arms around the origin, each a class of narrow Gaussians
    two circles        a circle within a circle, each a class of narrow Gaussians

The first three are those of the released code of Dai et al. (2017): the same seeds, in the same order of draws, so that v is
7.66 and 3.49, and `released_points` are its training points. The last two, which the thesis (C.4) shows without numbers, are
ours. Pixels of images, 0 to 255, are scaled to [pixel_min, 1]. Letters: N points; D numbers of a point in the plane; M
Gaussians; C channels, H rows, W columns of an image.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.randomness import Rng, SeededRng
from esscher.data.images import ImageArray, read_images, split_images


@dataclass(frozen=True, eq=False)
class Points:
    """N points, [N, D] or [N, C, H, W], and their classes if known."""

    values: Float[Tensor, "N *S"]
    labels: Int[Tensor, "N"] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, chosen: Any) -> "Points":
        return Points(self.values[chosen], None if self.labels is None else self.labels[chosen])

    def to(self, device: torch.device | str) -> "Points":
        return Points(self.values.to(device), None if self.labels is None else self.labels.to(device))

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that identify these points."""
        return (self.values,) if self.labels is None else (self.values, self.labels)


@dataclass(frozen=True, eq=False)
class SemiSupervisedSplits:
    """Few labelled points, many unlabelled ones, and labelled points for validation and test."""

    labelled: Points
    unlabelled: Points
    validation: Points
    test: Points


def as_points(images: ImageArray, pixel_min: float = 0.0) -> Points:
    """Images as points [N, C, H, W], with their classes if known."""
    values = torch.tensor(images.values).permute(0, 3, 1, 2).float().div(255).mul(1 - pixel_min).add(pixel_min)
    return Points(values, None if images.labels is None else torch.tensor(images.labels))


def to_pixels(values: Float[Tensor, "N C H W"], pixel_min: float) -> NDArray[np.uint8]:
    """Images with pixels from `pixel_min` to 1 as N H W C bytes."""
    scaled = (values.double() - pixel_min) / (1 - pixel_min) * 255
    return scaled.round().clamp(0, 255).permute(0, 2, 3, 1).cpu().numpy().astype(np.uint8)


def read_or_split(source: str) -> tuple[ImageArray, ImageArray]:
    """The training and test images of a source; a tenth is split off where it has no test images."""
    images, test = read_images(source)
    if test is None:
        images, _, test = split_images(images, held_out=0.1, test=True)
    return images, test


def semi_supervised_splits(
    images: ImageArray,
    test: ImageArray,
    labels: int,
    *,
    held_out: int = 0,
    pixel_min: float = 0.0,
    disjoint: bool = True,
    rng: Rng,
) -> SemiSupervisedSplits:
    """Label equally many random images of each class; `held_out` other images are for validation. With `disjoint` the labelled
    images are not among the unlabelled ones (the released code for MNIST; not for SVHN)."""
    points = as_points(images, pixel_min)
    if points.labels is None:
        raise ValueError(f"{images.source} states no classes. Nothing was learnt; choose images that have them.")
    classes = 1 + int(points.labels.max())
    order = rng.permutation(len(points))
    rest = order[held_out:]
    by_class = [rest[points.labels[rest] == number] for number in range(classes)]
    each, fewest = labels // classes, min(len(members) for members in by_class)
    if labels % classes or not 0 < each <= fewest:
        raise ValueError(
            f"{labels} labels are to be shared equally by {classes} classes of at least {fewest} images. Nothing was learnt; "
            f"choose a multiple of {classes}, up to {classes * fewest}."
        )
    labelled = torch.cat([members[:each] for members in by_class])
    unlabelled = rest[~torch.isin(rest, labelled)] if disjoint else rest
    return SemiSupervisedSplits(
        points.rows(labelled), Points(points.values[unlabelled]), points.rows(order[:held_out]), as_points(test, pixel_min)
    )


DRAWS = 100_000  # of the published experiments
SPIRAL_ANGLES = (120.0, 480.0)  # degrees, from the first Gaussian of an arm to the last
SPIRAL_ARM_STD = 0.45  # standard deviation of a spiral's arm
SPIRAL_GAUSSIANS = {"thesis": 100, "released": 50}  # on each arm


@dataclass(frozen=True, eq=False)
class GaussianMixture2d:
    """A mixture of Gaussians in the plane; each is a class of its own, or belongs to its `component_class`."""

    weight: Float[Tensor, "M"]
    mean: Float[Tensor, "M 2"]
    variance: Float[Tensor, "M 2"]
    component_class: Int[Tensor, "M"] | None = None

    @property
    def classes(self) -> int:
        return len(self.weight) if self.component_class is None else 1 + int(self.component_class.max())

    def draw(self, count: int, *, rng: SeededRng) -> Points:
        """Independent points with their classes."""
        component = rng.categorical(self.weight.log()[None], count)[0]
        values = self.mean[component] + self.variance[component].sqrt() * rng.normal(count, 2).double()
        return Points(values.float(), component if self.component_class is None else self.component_class[component])

    def draw_per_class(self, per_class: int, *, rng: SeededRng) -> Points:
        """As many points of each class."""
        points = self.draw(50 * per_class * self.classes, rng=rng)
        assert points.labels is not None
        chosen = [(points.labels == number).nonzero()[:per_class, 0] for number in range(self.classes)]
        return points.rows(torch.cat(chosen))

    def log_density(self, x: Float[Tensor, "N 2"]) -> Float[Tensor, "N"]:
        """log p(x), in double precision."""
        square = (x.double()[:, None] - self.mean).square() / self.variance
        log_part = -0.5 * (square + self.variance.log() + math.log(2 * math.pi)).sum(-1)
        return torch.logsumexp(log_part + self.weight.log(), -1)


def equal_gaussians(
    mean: Float[Tensor, "M 2"], std: float, component_class: Int[Tensor, "M"] | None = None
) -> GaussianMixture2d:
    """Gaussians of equal weight and variance."""
    weight = torch.full((len(mean),), 1 / len(mean), dtype=torch.float64)
    return GaussianMixture2d(weight, mean, torch.full_like(mean, std**2), component_class)


def four_gaussians() -> GaussianMixture2d:
    """Four Gaussians of equal weight around the corners of a square; they hardly overlap."""
    return _four_gaussians()[0]


def biased_pair() -> GaussianMixture2d:
    """Two Gaussians, one nine times as heavy as the other."""
    return _biased_pair()[0]


def two_spirals(form: Literal["thesis", "released"] = "released") -> GaussianMixture2d:
    """Two arms of Gaussians: 50 on each in the released code, 100 on each by the text of the thesis."""
    angle = torch.deg2rad(torch.linspace(*SPIRAL_ANGLES, SPIRAL_GAUSSIANS[form], dtype=torch.float64))
    arm = angle[:, None] * torch.stack([-angle.cos(), angle.sin()], -1)
    return equal_gaussians(torch.cat([arm, -arm]), SPIRAL_ARM_STD)


def released_points(process: str, count: int = DRAWS) -> Points:
    """The training points of the released code for one of `PROCESSES`, in a random order that is always the same; with another
    `count`, points that it would have drawn."""
    makers = {"four Gaussians": _four_gaussians, "biased pair": _biased_pair, "two spirals": _two_spirals}
    values = torch.from_numpy(np.concatenate(makers[process](count)[1])).float()
    return Points(values[SeededRng(0, "order of points", process).permutation(len(values))])


Drawn = tuple[GaussianMixture2d, list[NDArray[np.float64]]]  # the process, and points of each of its Gaussians


def _four_gaussians(count: int = DRAWS) -> Drawn:
    random = np.random.RandomState(5)
    counts, v = random.multinomial(count, [0.25] * 4), 10 * random.rand()
    means, variances, points = [], [], []
    for corner, number in zip(((1, 1), (-1, 1), (1, -1), (-1, -1)), counts, strict=True):
        means.append(v * np.array(corner, dtype=np.float64))
        variances.append(10 * random.rand(2))
        points.append(random.multivariate_normal(means[-1], np.diag(variances[-1]), number))
    weight = torch.full((4,), 0.25, dtype=torch.float64)
    return GaussianMixture2d(weight, torch.from_numpy(np.stack(means)), torch.from_numpy(np.stack(variances))), points


def _biased_pair(count: int = DRAWS) -> Drawn:
    random, weight = np.random.RandomState(2), torch.tensor([0.1, 0.9], dtype=torch.float64)
    v, counts = 8 * random.rand(), random.multinomial(count, weight.numpy())
    mean = v * torch.tensor([[1, 1], [-1, -1]], dtype=torch.float64)
    process = GaussianMixture2d(weight, mean, torch.full_like(mean, 5.0))
    return process, _points_of(process, counts, random)


def _two_spirals(count: int = DRAWS) -> Drawn:
    random, process = np.random.RandomState(12345), two_spirals()
    counts = random.multinomial(count, process.weight.numpy())
    return process, _points_of(process, counts, random)


def _points_of(
    process: GaussianMixture2d, counts: NDArray[np.int64], random: np.random.RandomState
) -> list[NDArray[np.float64]]:
    """So many points of each Gaussian."""
    parts = zip(process.mean.numpy(), process.variance.numpy(), counts, strict=True)
    return [random.multivariate_normal(mean, np.diag(variance), number) for mean, variance, number in parts]


def with_unit_covariance(process: GaussianMixture2d) -> GaussianMixture2d:
    """The process with identity covariances, which the released code uses as the true density of its spirals."""
    return replace(process, variance=torch.ones_like(process.variance))


def four_spins() -> GaussianMixture2d:
    """Four arms that wind by half a turn."""
    radius = torch.linspace(0.5, 2, 30, dtype=torch.float64)
    angles = [math.pi * (radius - 0.5) / 1.5 + arm * math.pi / 2 for arm in range(4)]
    arms = [radius[:, None] * torch.stack([angle.cos(), angle.sin()], -1) for angle in angles]
    return equal_gaussians(torch.cat(arms), 0.08, torch.arange(4).repeat_interleave(30))


def two_circles() -> GaussianMixture2d:
    """Circles of radius 1 and 2."""
    angle = 2 * math.pi * torch.arange(60, dtype=torch.float64) / 60
    circle = torch.stack([angle.cos(), angle.sin()], -1)
    return equal_gaussians(torch.cat([circle, 2 * circle]), 0.12, torch.arange(2).repeat_interleave(60))


Process = Callable[[], GaussianMixture2d]
PROCESSES: Mapping[str, Process] = {"four Gaussians": four_gaussians, "biased pair": biased_pair, "two spirals": two_spirals}
LABELLED_PROCESSES: Mapping[str, Process] = {"four spins": four_spins, "two circles": two_circles}
