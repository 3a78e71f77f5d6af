"""The settings of bases of images, without torch: pixels one after the other, each from those before it.

`image` is the number of rows, columns and channels; training takes them from its data. With `classes` the first symbol of a
prompt is the class of the image, a number after the last level. Widths are those of one channel.
"""

from dataclasses import dataclass

from esscher.networks.output_config import OutputConfig, check_sizes


@dataclass(frozen=True)
class StackConfig(OutputConfig):
    """What stacks of masked convolutions have in common: the first of side `first`, then `layers` of side `kernel`."""

    width: int = 32
    layers: int = 7
    dropout: float = 0.0
    image: tuple[int, int, int] = (28, 28, 1)
    classes: int = 0
    first: int = 7
    kernel: int = 3

    def __post_init__(self) -> None:
        check_image(self.image, self.classes)
        check_sizes(self.width, self.layers, self.dropout)
        for side in (self.first, self.kernel):
            if side < 1 or side % 2 == 0:
                raise ValueError(f"A convolution reads squares with a pixel in the middle, so of an odd side, not {side}.")
        self.check_output(shared=None, width=self.width)


@dataclass(frozen=True)
class PixelCnnConfig(StackConfig):
    """PixelCNN (van den Oord et al. 2016): residual blocks that are half as wide inside. Some pixels above and to the right are
    never seen: its blind spot."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 2:
            raise ValueError(f"A block is half as wide inside, so the width is even, not {self.width}.")


@dataclass(frozen=True)
class GatedPixelCnnConfig(StackConfig):
    """Gated PixelCNN (van den Oord et al. 2016): a stack that sees the rows above and one that sees the pixels to the left, so
    that there is no blind spot; gates in place of rectifiers."""


@dataclass(frozen=True)
class PixelCnnPlusPlusConfig:
    """PixelCNN++ (Salimans et al. 2017), its defaults those of CIFAR-10: two streams of gated residual blocks, `layers` at each
    of `scales` sizes of the image, each half of the one before; a mixture of `mixtures` discretised logistics; weight norm."""

    width: int = 160
    layers: int = 5
    dropout: float = 0.5
    image: tuple[int, int, int] = (32, 32, 3)
    classes: int = 0
    scales: int = 3
    mixtures: int = 10

    def __post_init__(self) -> None:
        check_image(self.image, self.classes)
        check_sizes(self.width, self.layers, self.dropout)
        if self.scales < 1 or self.mixtures < 1:
            raise ValueError(f"There is at least one scale and one logistic, not {self.scales} and {self.mixtures}.")
        rows, columns, _ = self.image
        if rows % self.coarsest or columns % self.coarsest:
            raise ValueError(
                f"Images of {rows} x {columns} pixels cannot be halved {self.scales - 1} times; have fewer scales, or pad them."
            )

    @property
    def coarsest(self) -> int:
        """Side of the squares that become one place at the last scale."""
        return 2 ** (self.scales - 1)


def check_image(image: tuple[int, int, int], classes: int) -> None:
    """Refuse images without pixels."""
    if len(image) != 3 or min(image) < 1:
        raise ValueError(f"An image has rows, columns and channels, at least one of each, not {image}.")
    if classes < 0:
        raise ValueError(f"There are 0 classes or more, not {classes}.")
