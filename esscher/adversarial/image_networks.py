"""Convolutional networks of energy GANs on images: two convolutions of stride 2 down to features, two back up from noise.

The thesis of Dai (2020, B.9) tells their kind and not all of their sizes, so sizes are ours; initial weights, slopes, noise and
outputs are those of the released code: 10 numbers of noise and images in [0, 1] for digits; 100 numbers, images in [-1, 1] and
an energy that is softplus(-score) for CIFAR-10. Images are [N, C, H, W], their sides multiples of 4.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from esscher.adversarial.networks import Discriminator, Game, Generator
from esscher.randomness import Seeded

SLOPE = 0.2
KERNEL = (4, 2, 1)  # side, stride, padding: half of the side, or twice
CONVOLUTION, LINEAR = 0.05, 0.005  # deviations of first weights


class Positive(nn.Module):
    """A score as an energy above 0 that falls as the score rises."""

    def forward(self, x: Float[Tensor, "N *S"]) -> Float[Tensor, "N *S"]:
        return softplus(-x)


@dataclass(frozen=True)
class ImageNets:
    """Networks of images of this size; `low` is the least number of a pixel, and `positive` the energy of CIFAR-10's code."""

    image: tuple[int, int, int] = (1, 28, 28)
    width: int = 32
    features: int = 128
    noise_size: int = 10
    low: float = 0.0
    positive: bool = False

    def build(self, *, inference: bool = False, rng: Seeded) -> Game:
        """A game of images, with an inference net if wanted."""
        with rng.governs_torch():
            head: list[nn.Module] = [nn.Linear(self.features, 1), *([Positive()] if self.positive else [])]
            discriminator = Discriminator(self._read(self.features, last=True), nn.Sequential(*head))
            generator = Generator(self._made(), self.noise_size)
            encoder = self._read(2 * self.noise_size, last=False) if inference else None
            for network in (discriminator, generator, encoder):
                _begin(network)
        return Game(generator, discriminator, encoder)

    def _read(self, size: int, *, last: bool) -> nn.Sequential:
        channels, rows, columns = self.image
        w = self.width
        layers: list[nn.Module] = [nn.Conv2d(channels, w, *KERNEL), nn.LeakyReLU(SLOPE)]
        layers += [nn.Conv2d(w, 2 * w, *KERNEL), nn.LeakyReLU(SLOPE), nn.Flatten()]
        layers += [nn.Linear(2 * w * (rows // 4) * (columns // 4), size), *([nn.LeakyReLU(SLOPE)] if last else [])]
        return nn.Sequential(*layers)

    def _made(self) -> nn.Sequential:
        channels, rows, columns = self.image
        w, places = self.width, (rows // 4) * (columns // 4)
        return nn.Sequential(
            nn.Linear(self.noise_size, 2 * w * places), nn.BatchNorm1d(2 * w * places), nn.ReLU(),
            nn.Unflatten(1, (2 * w, rows // 4, columns // 4)),
            nn.ConvTranspose2d(2 * w, w, *KERNEL), nn.BatchNorm2d(w), nn.ReLU(),
            nn.ConvTranspose2d(w, channels, *KERNEL), nn.Sigmoid() if self.low == 0 else nn.Tanh(),
        )  # fmt: skip


def _begin(network: nn.Module | None) -> None:
    """First weights as released, biases 0."""
    for layer in network.modules() if network is not None else ():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            nn.init.normal_(layer.weight, std=LINEAR if isinstance(layer, nn.Linear) else CONVOLUTION)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
