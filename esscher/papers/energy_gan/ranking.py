"""The ranking of generated and real images by energy (Dai et al., 2017, B.5.2, B.8.4): how far those of lowest and of highest
energy are from the mean image, how many of them are real, and their figure. A distance is the root mean square over pixels.
Letters: N images, C channels, H rows, W columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.estimate import Estimate
from esscher.estimators.intervals import interval, proportion, ratio
from esscher.papers.games.evaluation import CONFIDENCE, sort_by_energy
from esscher.papers.games.networks import Game
from esscher.papers.games.points import Points, to_pixels
from esscher.papers.study import Row, mean_estimate
from esscher.reports.plots import blank_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FURTHER = "highest further than lowest"
RANKING_COLUMNS = ("distance of lowest", "distance of highest", FURTHER, "real among lowest", "real among highest")
AS_SAMPLE = "images as a sample"
BOX = (232, 108, 32)  # of a real image


@dataclass(frozen=True, eq=False)
class Ranking:
    """Images by rising energy, which of them are real, and the mean image that they are compared with."""

    images: Float[Tensor, "N C H W"]
    real: Bool[Tensor, "N"]
    mean_image: Float[Tensor, "C H W"]

    @property
    def distance(self) -> Float[Tensor, "N"]:
        """Of each image from the mean image."""
        return (self.images - self.mean_image).double().square().flatten(1).mean(-1).sqrt()


def rank(game: Game, generated: Points, real: Points, mean_image: Float[Tensor, "C H W"]) -> Ranking:
    """Generated and real images together, by rising energy."""
    images = torch.cat([generated.values, real.values])
    is_real = torch.arange(len(images)) >= len(generated)
    order = sort_by_energy(game, Points(images))
    return Ranking(images[order], is_real[order], mean_image)


def measure_ranking(ranking: Ranking, extremes: int) -> Row:
    """The distances of the `extremes` images of lowest and of highest energy, their difference, and the share of real images
    among both; intervals are for other images of these ranks."""
    if not 2 <= extremes <= len(ranking.images) // 2:
        raise ValueError(f"{extremes} images at either end are wanted of {len(ranking.images)}; want 2 to half of them.")
    ends = {"lowest": slice(0, extremes), "highest": slice(-extremes, None)}
    distances = {end: ranking.distance[chosen] for end, chosen in ends.items()}
    measures = {f"distance of {end}": mean_estimate(values, method=AS_SAMPLE) for end, values in distances.items()}
    measures[FURTHER] = _difference(distances["highest"], distances["lowest"])
    return measures | {f"real among {end}": _share(ranking.real[chosen]) for end, chosen in ends.items()}


def _difference(left: Float[Tensor, "n"], right: Float[Tensor, "m"]) -> Estimate:
    """The mean of one sample minus that of another one."""

    def statistic(of_left: Tensor, of_right: Tensor) -> Tensor:
        return ratio(left)(of_left) - ratio(right)(of_right)

    sources = [(1, len(left)), (1, len(right))]
    images = len(left) + len(right)
    return interval(statistic, sources, confidence=CONFIDENCE, n=images, method=AS_SAMPLE, counted="images")


def _share(chosen: Bool[Tensor, "n"]) -> Estimate:
    """The share of chosen images in percent."""
    n, mean = len(chosen), ratio(chosen.double())
    share = proportion(mean, [(1, n)], confidence=CONFIDENCE, n=n, method=AS_SAMPLE, counted="images")
    return share.map(lambda value: 100 * value, unit="%")


def ranking_tensors(ranking: Ranking, extremes: int, pixel_min: float) -> dict[str, Tensor]:
    """What the figure of a ranking needs: both ends as bytes, which of them are real, and the mean image."""
    shown = {"lowest": ranking.images[:extremes], "highest": ranking.images[-extremes:], "mean": ranking.mean_image[None]}
    pixels = {name: torch.from_numpy(to_pixels(images, pixel_min)) for name, images in shown.items()}
    return {**pixels, "lowest real": ranking.real[:extremes], "highest real": ranking.real[-extremes:]}


def ranking_panels(rankings: Mapping[str, Mapping[str, Tensor]]) -> "Figure":
    """A row for each game, made of `ranking_tensors`: the images of lowest and of highest energy, real ones in a box, and the
    mean image."""
    figure = blank_figure(9.6, 4.2 * len(rankings))
    axes = figure.subplots(len(rankings), 3, squeeze=False, width_ratios=(4, 4, 1))
    for row, (name, shown) in zip(axes, rankings.items(), strict=True):
        for axis, end in zip(row, ("lowest", "highest"), strict=False):
            axis.imshow(image_tiles(shown[end].numpy(), shown[f"{end} real"].numpy()), interpolation="nearest")
            axis.set_title(f"{name}, {end} energy", fontsize=10)
        row[2].imshow(shown["mean"][0, :, :, 0], cmap="gray", vmin=0, vmax=255)
        row[2].set_title("mean image", fontsize=10)
    for axis in axes.flat:
        axis.set_axis_off()
    return figure


def image_tiles(images: NDArray[np.uint8], boxed: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """N H W 1 images as one of three channels, in rows of about sqrt(N), a black pixel apart, where `boxed` with a frame."""
    count, height, width, _ = images.shape
    columns = int(np.ceil(np.sqrt(count)))
    tiles = np.zeros((columns * int(np.ceil(count / columns)), height + 4, width + 4, 3), np.uint8)
    tiles[:count, 1:-1, 1:-1][boxed] = BOX
    tiles[:count, 2:-2, 2:-2] = images
    return tiles.reshape(-1, columns, height + 4, width + 4, 3).swapaxes(1, 2).reshape(-1, columns * (width + 4), 3)
