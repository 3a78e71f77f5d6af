"""The networks of Dai et al. (2017b) for classifying images from few labels: classifier, generator, inference net.

The classifier has one logit a class; "generated" has none, or 0. The classifier and the last layer of the generator use weight
normalisation, initialised from data (`data_dependent_init_game`). Generator noise is uniform. Images are [N, C, H, W]. The
inference nets are ours, with the units of the generator; only that for CIFAR-10 was published, in words.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from esscher.core.randomness import SeededRng
from esscher.papers.games.networks import Discriminator, Game, GaussianNoise, Generator

INIT_STD, EPSILON = 0.05, 1e-6
SLOPE = 0.2  # of a rectifier below 0
LAST_LAYER_STD = 0.1  # initial deviation of the outputs of the convolutional nets
NormedLayer = nn.Linear | nn.Conv2d | nn.ConvTranspose2d


class WeightNorm(nn.Module):
    """Weight normalisation of a linear layer or convolution: weight = scale * direction / sqrt(|direction|^2 + 1e-6). The
    scales of `data_dependent_init` give outputs mean 0 and deviation `init_std`, and stay fixed unless `trainable_scale` (the
    released code of Dai et al. 2017b; all of them learn in Salimans and Kingma 2016)."""

    def __init__(self, layer: NormedLayer, *, init_std: float = 1.0, trainable_scale: bool = False):
        super().__init__()
        self.layer, self.init_std = layer, init_std
        self.axis = 1 if isinstance(layer, nn.ConvTranspose2d) else 0
        nn.init.normal_(layer.weight, std=INIT_STD)
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)
        self.scale = nn.Parameter(torch.ones_like(layer.bias), requires_grad=trainable_scale)

    def weight(self) -> Tensor:
        """The normalised weights."""
        direction = self.layer.weight
        others = [axis for axis in range(direction.ndim) if axis != self.axis]
        norm = (direction.square().sum(others, keepdim=True) + EPSILON).sqrt()
        return direction * (self.scale.view_as(norm) / norm)

    def forward(self, x: Tensor) -> Tensor:
        return functional_call(self.layer, {"weight": self.weight()}, (x,))

    @torch.no_grad()
    def data_dependent_init(self, x: Tensor) -> None:
        """Set scales and biases from the outputs for these inputs."""
        outputs = self.forward(x).transpose(0, 1).flatten(1)
        mean, factor = outputs.mean(1), self.init_std / outputs.std(1).clamp(min=1e-10)
        self.scale.mul_(factor)
        assert self.layer.bias is not None
        self.layer.bias.sub_(mean).mul_(factor)


@torch.no_grad()
def data_dependent_init(network: nn.Module, x: Tensor, *, rng: SeededRng) -> None:
    """Initialise every `WeightNorm` of a network, first to last, in one pass; noise and dropout act as in training."""

    def before(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(layer, WeightNorm)
        layer.data_dependent_init(inputs[0])

    hooks = [layer.register_forward_pre_hook(before) for layer in network.modules() if isinstance(layer, WeightNorm)]
    try:
        with rng.fork_torch_rng():
            network.train()(x)
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True)
class DenseNets:
    """Fully connected networks for MNIST, pixels in [0, 1]; `image` is (channels, rows, columns). With `norm_after_activation`
    the batch norm of a hidden layer of the generator follows its activation: softplus outputs saturate the pixels in a few
    large steps."""

    image: tuple[int, int, int] = (1, 28, 28)
    hidden: tuple[int, ...] = (1000, 500, 250, 250, 250)
    generator: tuple[int, ...] = (500, 500)
    noise_size: int = 100
    input_noise: float = 0.3
    noise: float = 0.5
    norm_after_activation: bool = False

    def build(self, *, classes: int, inference: bool = False, rng: SeededRng) -> Game:
        """A game of images."""
        pixels = math.prod(self.image)
        with rng.fork_torch_rng():
            layers: list[nn.Module] = [nn.Flatten()]
            for number, (size, after) in enumerate(pairwise((pixels, *self.hidden))):
                noise = GaussianNoise(self.noise if number else self.input_noise)
                layers += [noise, WeightNorm(nn.Linear(size, after)), nn.ReLU()]
            logits = WeightNorm(nn.Linear(self.hidden[-1], classes), trainable_scale=True)
            head = nn.Sequential(GaussianNoise(self.noise), logits)
            generator: list[nn.Module] = []
            for size, after in pairwise((self.noise_size, *self.generator)):
                norm: list[nn.Module] = [nn.BatchNorm1d(after), nn.Softplus()]
                generator += [nn.Linear(size, after, bias=False), *(reversed(norm) if self.norm_after_activation else norm)]
            generator += [WeightNorm(nn.Linear(self.generator[-1], pixels)), nn.Sigmoid(), nn.Unflatten(1, self.image)]
            encoder: list[nn.Module] = [nn.Flatten()]
            for size, after in pairwise((pixels, *reversed(self.generator))):
                encoder += [nn.Linear(size, after), nn.ReLU()]
            encoder.append(nn.Linear(self.generator[0], 2 * self.noise_size))
        return Game(
            Generator(nn.Sequential(*generator), self.noise_size, "uniform"),
            Discriminator(nn.Sequential(*layers), head),
            nn.Sequential(*encoder) if inference else None,
        )


@dataclass(frozen=True)
class ConvNets:
    """Convolutional networks of square images whose side is a multiple of 8, for SVHN (width 64) and CIFAR-10 (width 96),
    pixels in [-1, 1]; `spatial_dropout` drops whole feature maps."""

    image: tuple[int, int, int] = (3, 32, 32)
    width: int = 64
    generator: int = 512
    noise_size: int = 100
    input_noise: float = 0.05
    input_dropout: float = 0.15
    dropout: float = 0.5
    spatial_dropout: bool = True

    def build(self, *, classes: int, inference: bool = False, rng: SeededRng) -> Game:
        """A game of images."""
        with rng.fork_torch_rng():
            head = WeightNorm(nn.Linear(2 * self.width, classes), init_std=LAST_LAYER_STD, trainable_scale=True)
            discriminator = Discriminator(self._body(), head)
            generator = Generator(self._generator(), self.noise_size, "uniform")
            encoder = self._inference() if inference else None
        return Game(generator, discriminator, encoder)

    def _body(self) -> nn.Sequential:
        n, w, c = self.width, 2 * self.width, self.image[0]
        dropped = nn.Dropout2d if self.spatial_dropout else nn.Dropout
        layers: list[nn.Module] = [GaussianNoise(self.input_noise), nn.Dropout2d(self.input_dropout)]
        for size, after, kernel, stride, padding in (
            (c, n, 3, 1, 1), (n, n, 3, 1, 1), (n, n, 3, 2, 1), (n, w, 3, 1, 1), (w, w, 3, 1, 1), (w, w, 3, 2, 1),
            (w, w, 3, 1, 0), (w, w, 1, 1, 0), (w, w, 1, 1, 0),
        ):  # fmt: skip
            layers += [WeightNorm(nn.Conv2d(size, after, kernel, stride, padding)), nn.LeakyReLU(SLOPE)]
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
            upsampled = nn.ConvTranspose2d(size, size // 2, 5, 2, 2, 1, bias=False)
            layers += [upsampled, nn.BatchNorm2d(size // 2), nn.ReLU()]
        last = WeightNorm(nn.ConvTranspose2d(g // 4, self.image[0], 5, 2, 2, 1), init_std=LAST_LAYER_STD)
        return nn.Sequential(*layers, last, nn.Tanh())

    def _inference(self) -> nn.Sequential:
        g, side = self.generator, self.image[1] // 8
        layers: list[nn.Module] = []
        for size, after in pairwise((self.image[0], g // 4, g // 2, g)):
            layers += [nn.Conv2d(size, after, 5, 2, 2), nn.BatchNorm2d(after), nn.LeakyReLU(SLOPE)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(g * side * side, 2 * self.noise_size))


def data_dependent_init_game(game: Game, points: Float[Tensor, "N *S"], *, rng: SeededRng) -> None:
    """Initialise the weight norms of the classifier from points, and those of the generator from as many draws of noise."""
    data_dependent_init(game.discriminator, points, rng=rng.stream("discriminator"))
    data_dependent_init(game.generator, game.generator.draw_noise(len(points), rng=rng), rng=rng.stream("generator"))
