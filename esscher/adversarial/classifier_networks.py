"""The networks of Dai et al. (2017b) for classes of images from few labels: classifier, generator, inference net.

    DenseNets    of MNIST: layers of 1000, 500, 250, 250 and 250 units with noise before each; images in [0, 1]
    ConvNets     of SVHN (width 64) and CIFAR-10 (width 96): nine convolutions and a mean over places; images in [-1, 1]

The classifier has one logit for each class; "generated" has none, or 0. Its weights are normed, and so are those of the
generator's last layer: `settle_game` sets them by images. Noise of generators is uniform. Images are [N, C, H, W].
The inference nets are ours, with the units of the generator; only the one of CIFAR-10 was published, in words.
"""

from dataclasses import dataclass
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from esscher.adversarial.networks import Discriminator, Game, Generator, Noisy
from esscher.adversarial.weight_norm import Normed, settle
from esscher.randomness import Seeded

SLOPE = 0.2  # of a rectifier below 0
SMALL = 0.1  # deviation of what the convolutional nets' last layers first give


@dataclass(frozen=True)
class DenseNets:
    """Fully connected networks of images of this size (channels, rows, columns).

    With `centred` a hidden layer of the generator is normed after its activation, not before: means of softplus, all above 0,
    drive all pixels to one side within a few large steps, where a sigmoid has no gradient.
    """

    image: tuple[int, int, int] = (1, 28, 28)
    hidden: tuple[int, ...] = (1000, 500, 250, 250, 250)
    generator: tuple[int, ...] = (500, 500)
    noise_size: int = 100
    input_noise: float = 0.3
    noise: float = 0.5
    centred: bool = False

    def build(self, *, classes: int, inference: bool = False, rng: Seeded) -> Game:
        """A game of images."""
        pixels = self.image[0] * self.image[1] * self.image[2]
        with rng.governs_torch():
            layers: list[nn.Module] = [nn.Flatten()]
            for number, (size, after) in enumerate(pairwise((pixels, *self.hidden))):
                layers += [Noisy(self.noise if number else self.input_noise), Normed(nn.Linear(size, after)), nn.ReLU()]
            head = nn.Sequential(Noisy(self.noise), Normed(nn.Linear(self.hidden[-1], classes), learns=True))
            made: list[nn.Module] = []
            for size, after in pairwise((self.noise_size, *self.generator)):
                norm: list[nn.Module] = [nn.BatchNorm1d(after), nn.Softplus()]
                made += [nn.Linear(size, after, bias=False), *(reversed(norm) if self.centred else norm)]
            made += [Normed(nn.Linear(self.generator[-1], pixels)), nn.Sigmoid(), nn.Unflatten(1, self.image)]
            read: list[nn.Module] = [nn.Flatten()]
            for size, after in pairwise((pixels, *reversed(self.generator))):
                read += [nn.Linear(size, after), nn.ReLU()]
            encoder = nn.Sequential(*read, nn.Linear(self.generator[0], 2 * self.noise_size)) if inference else None
        generator = Generator(nn.Sequential(*made), self.noise_size, "uniform")
        return Game(generator, Discriminator(nn.Sequential(*layers), head), encoder)


@dataclass(frozen=True)
class ConvNets:
    """Convolutional networks of square images whose side is a multiple of 8; `whole_maps` drops features of all places."""

    image: tuple[int, int, int] = (3, 32, 32)
    width: int = 64
    generator: int = 512
    noise_size: int = 100
    input_noise: float = 0.05
    input_dropout: float = 0.15
    dropout: float = 0.5
    whole_maps: bool = True

    def build(self, *, classes: int, inference: bool = False, rng: Seeded) -> Game:
        """A game of images."""
        with rng.governs_torch():
            w = 2 * self.width
            head = Normed(nn.Linear(w, classes), spread=SMALL, learns=True)
            discriminator = Discriminator(self._body(), head)
            generator = Generator(self._generator(), self.noise_size, "uniform")
            encoder = self._inference() if inference else None
        return Game(generator, discriminator, encoder)

    def _body(self) -> nn.Sequential:
        n, w, c = self.width, 2 * self.width, self.image[0]
        dropped = nn.Dropout2d if self.whole_maps else nn.Dropout
        layers: list[nn.Module] = [Noisy(self.input_noise), nn.Dropout2d(self.input_dropout)]
        for size, after, kernel, stride, padding in (
            (c, n, 3, 1, 1), (n, n, 3, 1, 1), (n, n, 3, 2, 1), (n, w, 3, 1, 1), (w, w, 3, 1, 1), (w, w, 3, 2, 1),
            (w, w, 3, 1, 0), (w, w, 1, 1, 0), (w, w, 1, 1, 0),
        ):  # fmt: skip
            layers += [Normed(nn.Conv2d(size, after, kernel, stride, padding)), nn.LeakyReLU(SLOPE)]
            if stride == 2:
                layers.append(dropped(self.dropout))
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def _generator(self) -> nn.Sequential:
        g, side = self.generator, self.image[1] // 8
        layers: list[nn.Module] = [
            nn.Linear(self.noise_size, g * side * side, bias=False), nn.BatchNorm1d(g * side * side), nn.ReLU(),
            nn.Unflatten(1, (g, side, side)),
        ]  # fmt: skip
        for size in (g, g // 2):
            grown = nn.ConvTranspose2d(size, size // 2, 5, 2, 2, 1, bias=False)
            layers += [grown, nn.BatchNorm2d(size // 2), nn.ReLU()]
        last = Normed(nn.ConvTranspose2d(g // 4, self.image[0], 5, 2, 2, 1), spread=SMALL)
        return nn.Sequential(*layers, last, nn.Tanh())

    def _inference(self) -> nn.Sequential:
        g, side = self.generator, self.image[1] // 8
        layers: list[nn.Module] = []
        for size, after in pairwise((self.image[0], g // 4, g // 2, g)):
            layers += [nn.Conv2d(size, after, 5, 2, 2), nn.BatchNorm2d(after), nn.LeakyReLU(SLOPE)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(g * side * side, 2 * self.noise_size))


def settle_game(game: Game, points: Float[Tensor, "N *S"], *, rng: Seeded) -> None:
    """Set the normed weights of the classifier by points, and those of the generator by as many draws of noise."""
    settle(game.discriminator, points, rng=rng.stream("discriminator"))
    settle(game.generator, game.generator.draw_noise(len(points), rng=rng), rng=rng.stream("generator"))
