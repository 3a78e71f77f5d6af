"""A base of images as a log-density of continuous images, which a generator can be kept away from (LD of Dai et al. 2017b).

A base gives probabilities to levels; between two levels the log-probability of a value is interpolated, and later values are
read after the number itself (`PixelNetwork.interpolated`). At the levels it is the base's own log-probability, and everywhere
it has a gradient. Images larger than the base's by a whole factor are shrunk by the mean of squares.
Letters: N images, C channels, H rows, W columns.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import avg_pool2d

from esscher.bases.network import NetworkBase
from esscher.networks.pixel_network import PixelNetwork

AT_ONCE = 100  # images whose density is computed together


@dataclass(frozen=True, eq=False)
class ImageDensity:
    """The log-density that a base of images, at rest, gives to images with numbers from `low` to 1."""

    base: NetworkBase
    low: float = 0.0

    def __post_init__(self) -> None:
        network = self.base.network
        if not isinstance(network, PixelNetwork) or network.given:
            raise ValueError(
                f"A density of images wants a base of images without classes, which {type(network).__name__} is not here. "
                f"Nothing was computed; train a pixelcnn, gated-pixelcnn or pixelcnn++ without images.classes."
            )
        self.base.eval().requires_grad_(False)

    def __call__(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N"]:
        network = self.base.network
        assert isinstance(network, PixelNetwork)
        side = images.shape[2] // network.height
        if tuple(images.shape[1:]) != (network.channels, side * network.height, side * network.columns):
            raise ValueError(
                f"The base has images of {network.channels, network.height, network.columns}, and these are of "
                f"{tuple(images.shape[1:])}, no multiple of that. Nothing was computed."
            )
        small = avg_pool2d(images, side) if side > 1 else images
        levels = (small - self.low) / (1 - self.low) * (network.vocab_size - 1)
        return network.interpolated(levels.permute(0, 2, 3, 1)).double().sum((1, 2, 3))

    @torch.no_grad()
    def quantile(self, images: Float[Tensor, "N C H W"], share: float) -> float:
        """The log-density below which this share of the images lies."""
        found = torch.cat([self(part) for part in torch.split(images, AT_ONCE)])
        return float(torch.quantile(found, share))
