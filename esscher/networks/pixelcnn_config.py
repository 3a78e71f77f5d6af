"""Settings of networks of images, without torch. Widths are per channel of the image. With `classes` the first symbol of a
prompt is the class of the image, a number after the last pixel value."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from esscher.heads.config import HeadConfig, Modality, WidthScaling, check_choice, check_sizes

Upsampling = Literal["2x2", "2x3"]


@dataclass(frozen=True)
class PixelConfig(WidthScaling):
    """Settings shared by all networks of images."""

    modality: ClassVar[Modality] = "image"

    layers: int
    """Number of layers after the first convolution."""
    dropout: float = 0.0
    """Dropout rate inside each block."""
    image: tuple[int, int, int] = (28, 28, 1)
    """Rows, columns and channels of an image; training takes them from the data."""
    classes: int = 0
    """Number of image classes to condition on; 0: unconditional. Training takes it from the data."""

    def check_image(self) -> None:
        """Refuse images without pixels, negative numbers of classes, and networks without units or layers."""
        if len(self.image) != 3 or min(self.image) < 1:
            raise ValueError(f"An image has rows, columns and channels, at least one of each, not {self.image}.")
        if self.classes < 0:
            raise ValueError(f"There are 0 classes or more, not {self.classes}.")
        check_sizes(self.width, self.layers, self.dropout)


@dataclass(frozen=True)
class MaskedStackConfig(PixelConfig, HeadConfig):
    """Settings shared by stacks of masked convolutions."""

    width: int = 32
    layers: int = 7
    first_kernel_size: int = 7
    """Side of the first convolution."""
    kernel_size: int = 3
    """Side of all further convolutions."""

    def __post_init__(self) -> None:
        self.check_image()
        for side in (self.first_kernel_size, self.kernel_size):
            if side < 1 or side % 2 == 0:
                raise ValueError(f"A convolution is centred on a pixel, so its kernel size is odd, not {side}.")
        self.check_head(shared=None)


@dataclass(frozen=True)
class PixelCnnConfig(MaskedStackConfig):
    """PixelCNN (van den Oord et al. 2016): residual blocks; pixels further to the right than above are never seen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 2:
            raise ValueError(f"A block is half as wide inside, so the width is even, not {self.width}.")

    @property
    def width_multiple(self) -> int:
        return 2


@dataclass(frozen=True)
class GatedPixelCnnConfig(MaskedStackConfig):
    """Gated PixelCNN (van den Oord et al. 2016): a vertical and a horizontal stack with gates, without blind spot."""


@dataclass(frozen=True)
class PixelCnnPlusPlusConfig(PixelConfig):
    """PixelCNN++ (Salimans et al. 2017) with the published sizes for CIFAR-10: two streams of gated residual blocks at several
    scales, a mixture of discretized logistics, weight normalization."""

    width: int = 160
    layers: int = 5
    """Number of blocks of each stream at each scale, on the way down."""
    dropout: float = 0.5
    image: tuple[int, int, int] = (32, 32, 3)
    scales: int = 3
    """Number of resolutions, each half of the one before."""
    mixtures: int = 10
    """Number of logistics of the output mixture."""
    upsampling: Upsampling = "2x2"
    """Kernel of the transposed convolution that doubles the resolution of the stream of rows; published is 2x3, in which every
    second column also reads the position to its right. The stream of pixels has 2x2."""

    def __post_init__(self) -> None:
        self.check_image()
        check_choice("upsampling", self.upsampling, get_args(Upsampling))
        if self.scales < 1 or self.mixtures < 1:
            raise ValueError(f"There is at least one scale and one logistic, not {self.scales} and {self.mixtures}.")
        rows, columns, _ = self.image
        if rows % self.downsampling_factor or columns % self.downsampling_factor:
            raise ValueError(
                f"Images of {rows} x {columns} pixels cannot be halved {self.scales - 1} times; have fewer scales, or pad them."
            )

    @property
    def downsampling_factor(self) -> int:
        """Side of the squares of pixels that are one position at the coarsest scale."""
        return 2 ** (self.scales - 1)
