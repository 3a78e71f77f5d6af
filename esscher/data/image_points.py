"""Images as points of a continuous space, and the case where the class of only a few of them is told.

Brightness 0 to 255 becomes a number from `low` (0, or -1) to 1. Letters: N images, C channels, H rows, W columns.
"""

from dataclasses import dataclass

import torch

from esscher.adversarial.points import Points
from esscher.data.images import Pictures
from esscher.randomness import Rng


@dataclass(frozen=True, eq=False)
class FewLabels:
    """Images whose class is told, many more without, and those to look at while learning and to judge by."""

    labelled: Points
    unlabelled: Points
    validation: Points
    test: Points


def as_points(pictures: Pictures, low: float = 0.0) -> Points:
    """Images as points [N, C, H, W], with their classes where they are known."""
    values = torch.tensor(pictures.values).permute(0, 3, 1, 2).float().div(255).mul(1 - low).add(low)
    return Points(values, None if pictures.labels is None else torch.tensor(pictures.labels))


def few_labels(
    pictures: Pictures, test: Pictures, labels: int, *, held_out: int = 0, low: float = 0.0, apart: bool = True, rng: Rng
) -> FewLabels:
    """As many labels of each class, of images chosen by chance; `held_out` other images are kept for validation.

    With `apart` the labelled images are not among the unlabelled ones (the released code for MNIST; not for SVHN).
    """
    points = as_points(pictures, low)
    if points.labels is None:
        raise ValueError(f"{pictures.source} states no classes. Nothing was learnt; choose images that have them.")
    classes = 1 + int(points.labels.max())
    order = rng.permutation(len(points))
    rest = order[held_out:]
    of_class = [rest[points.labels[rest] == one] for one in range(classes)]
    each, fewest = labels // classes, min(len(some) for some in of_class)
    if labels % classes or not 0 < each <= fewest:
        raise ValueError(
            f"{labels} labels are to be shared equally by {classes} classes of at least {fewest} images. Nothing was learnt; "
            f"choose a multiple of {classes}, up to {classes * fewest}."
        )
    told = torch.cat([some[:each] for some in of_class])
    others = rest[~torch.isin(rest, told)] if apart else rest
    return FewLabels(points.rows(told), Points(points.values[others]), points.rows(order[:held_out]), as_points(test, low))
