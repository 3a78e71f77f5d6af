"""The settings of images, without torch: how they become points."""

from dataclasses import dataclass
from typing import Literal

from esscher.settings.data import check_choices

DIGITS = "digits"


@dataclass(frozen=True)
class ImageConfig:
    """How images become points: pixel values in raster order, channels of a pixel in order."""

    levels: int = 16
    """Values that a channel of a pixel may have, 2 to 256."""
    binarised: Literal["threshold", "random"] | None = None
    """Two levels: cut in the middle, or drawn once by brightness, as is usual for binarised MNIST."""
    classes: bool = False
    """The class of an image is given, as the first symbol of a prompt."""
    shrink: int = 1
    """Side of the squares that become one pixel, by their mean."""
    most: int | None = None
    """Learn from only so many images, the first ones."""

    def __post_init__(self) -> None:
        check_choices(self)
        if not 2 <= self.levels <= 256:
            raise ValueError(f"A value has 2 to 256 levels, not {self.levels}.")
        if self.shrink < 1 or (self.most is not None and self.most < 1):
            raise ValueError(f"shrink and most are at least 1: {self.shrink}, {self.most}.")
