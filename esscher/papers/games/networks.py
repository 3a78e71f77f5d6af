"""The networks of a game and their training, each with its own optimiser.

    generator        noise -> point; the noise is normal or uniform
    discriminator    point -> cost, low where points are real: an energy; `features` are its last hidden layer
    inference net    point -> mean and log of the standard deviation of the noise that made it

The sizes of `ImageNets` are ours, since Dai (2020, B.9) does not state all; initial weights, slopes, noise and outputs are
those of the released code: 10 numbers of noise and pixels in [0, 1] for digits; 100 numbers, pixels in [-1, 1] and an energy
softplus(-score) for CIFAR-10. Letters: N points, Z numbers of noise, F features; images are [N, C, H, W].
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from esscher.core.estimate import Estimate
from esscher.core.objective import Objective
from esscher.core.randomness import SeededRng
from esscher.papers.games.points import Points
from esscher.training.config import OptimizerConfig, TrainingConfig
from esscher.training.trainer import Trainer

ADAM = TrainingConfig(optimizer="adam", max_grad_norm=None)
SLOPE = 0.2  # of a rectifier below 0
KERNEL = (4, 2, 1)  # side, stride, padding: halves or doubles the side of an image
SAME = (3, 1, 1)  # keeps it
CONVOLUTION, LINEAR = 0.05, 0.005  # deviations of initial weights
Noise = Literal["normal", "uniform"]


class Generator(nn.Module):
    """A network that turns noise into points."""

    def __init__(self, network: nn.Module, noise_size: int, noise: Noise = "normal"):
        super().__init__()
        self.network, self.noise_size, self.noise = network, noise_size, noise

    def forward(self, z: Float[Tensor, "N Z"]) -> Float[Tensor, "N *S"]:
        return self.network(z)

    def draw_noise(self, count: int, *, rng: SeededRng) -> Float[Tensor, "N Z"]:
        """Noise for `count` points, on the device of the weights."""
        sample = rng.normal if self.noise == "normal" else rng.uniform
        return sample(count, self.noise_size).to(next(self.parameters()).device)

    def draw(self, count: int, *, rng: SeededRng) -> Float[Tensor, "N *S"]:
        """Generate `count` points."""
        return self(self.draw_noise(count, rng=rng))


class Discriminator(nn.Module):
    """Features of a point, and a head on them: one number, the cost, or one logit a class."""

    def __init__(self, body: nn.Module, head: nn.Module):
        super().__init__()
        self.body, self.head = body, head

    def features(self, x: Float[Tensor, "N *S"]) -> Float[Tensor, "N F"]:
        return self.body(x)

    def forward(self, x: Float[Tensor, "N *S"]) -> Tensor:
        return self.head(self.body(x)).squeeze(-1)


class GaussianNoise(nn.Module):
    """Adds normal noise in training mode."""

    def __init__(self, std: float):
        super().__init__()
        self.std = std

    def forward(self, x: Float[Tensor, "N *S"]) -> Float[Tensor, "N *S"]:
        return x + self.std * torch.randn_like(x) if self.training else x


@dataclass(frozen=True)
class Game:
    """The networks of a game; the inference net is there only if an entropy is bounded by it."""

    generator: Generator
    discriminator: Discriminator
    inference: nn.Module | None = None

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """The networks by name."""
        networks = {"generator": self.generator, "discriminator": self.discriminator, "inference": self.inference}
        return {name: network for name, network in networks.items() if network is not None}


def players(generator: OptimizerConfig, discriminator: OptimizerConfig) -> dict[str, OptimizerConfig]:
    """The optimisers of a game; the inference net, if there is one, learns like the generator."""
    return {"generator": generator, "discriminator": discriminator, "inference": generator}


def train_game(
    objective: Objective,
    game: Game,
    data: Points,
    training: TrainingConfig,
    optimizers: Mapping[str, OptimizerConfig],
    *,
    seed: int,
    folder: Path,
    names: tuple[str, ...] | None = None,
    validation: Callable[[], Estimate] | None = None,
) -> int:
    """Train the networks of a game, or those of these names, in a folder, resuming there; returns the number of updates."""
    modules = {name: module for name, module in game.modules.items() if names is None or name in names}
    chosen = {name: optimizers[name] for name in modules if name in optimizers}
    return Trainer(replace(training, seed=seed))(
        objective, game, data, modules=modules, optimizer_configs=chosen, validation=validation, folder=folder, resume=True
    ).steps


@dataclass(frozen=True)
class PlanarNets:
    """The fully connected networks of Dai et al. (2017); initial weights are normal with these deviations (None: He's, sqrt(2 /
    inputs)), biases 0.

    The released code has deviations 0.01 and 0.001 (for its spirals 0.1 and 0.01). Noise of deviation `inference_noise_std` is
    added to the inputs of the inference net, whose weights are He's, and 0 in the last layer: it starts as a standard normal.
    With `features` the discriminator ends in a linear layer of that size before its head; 2 features can be drawn.
    """

    width: int = 128
    noise_size: int = 4
    std: float | None = None
    generator_std: float | None = None
    inference_noise_std: float = 0.0
    features: int | None = None

    def build(self, *, inference: bool = False, classes: int = 1, rng: SeededRng) -> Game:
        """A game in the plane."""
        w, z = self.width, self.noise_size
        with rng.fork_torch_rng():
            generator = Generator(mlp([z, w, w, 2], self.generator_std, batch_norm=True), z)
            body = nn.Sequential(mlp([2, w, w], self.std), nn.ReLU())
            if self.features is not None:
                body.append(mlp([w, self.features], self.std))
            head = mlp([self.features or w, classes], self.std)
            posterior = mlp([2, w, w, 2 * z], None)
            nn.init.zeros_(posterior[-1].weight)  # type: ignore[arg-type]
            encoder = nn.Sequential(GaussianNoise(self.inference_noise_std), posterior) if inference else None
        return Game(generator, Discriminator(body, head), encoder)


def mlp(sizes: Sequence[int], std: float | None, *, batch_norm: bool = False) -> nn.Sequential:
    """Linear layers with ReLU, optionally after batch norm, between them."""
    layers: list[nn.Module] = []
    for number, (size, after) in enumerate(pairwise(sizes)):
        if number:
            layers += [nn.BatchNorm1d(size, eps=1e-6), nn.ReLU()] if batch_norm else [nn.ReLU()]
        linear = nn.Linear(size, after)
        nn.init.normal_(linear.weight, std=(2 / size) ** 0.5 if std is None else std)
        nn.init.zeros_(linear.bias)
        layers.append(linear)
    return nn.Sequential(*layers)


@torch.no_grad()
def eval_in_batches(network: nn.Module, x: Tensor, size: int = 10_000) -> Tensor:
    """The outputs of a network in evaluation mode for many rows."""
    was_training = network.training
    network.eval()
    outputs = torch.cat([network(x[first : first + size]) for first in range(0, len(x), size)])
    network.train(was_training)
    return outputs


class SoftplusEnergy(nn.Module):
    """softplus(-score): a positive energy that falls as the score rises."""

    def forward(self, x: Float[Tensor, "N *S"]) -> Float[Tensor, "N *S"]:
        return softplus(-x)


@dataclass(frozen=True)
class ImageNets:
    """Convolutional networks of images of this shape, with sides that are multiples of 4 and pixels in [pixel_min, 1]. With
    `positive` the energy is softplus(-score), as released for CIFAR-10.

    The released ones have two convolutions and a layer of `features`; those of the thesis (B.8.1) have three with batch norm,
    whose outputs, 4 `width` channels of a quarter of each side, are the features.
    """

    image: tuple[int, int, int] = (1, 28, 28)
    width: int = 32
    features: int = 128
    form: Literal["released", "thesis"] = "released"
    noise_size: int = 10
    pixel_min: float = 0.0
    positive: bool = False

    def build(self, *, inference: bool = False, rng: SeededRng) -> Game:
        """A game of images."""
        with rng.fork_torch_rng():
            head: list[nn.Module] = [nn.Linear(self.feature_size, 1), *([SoftplusEnergy()] if self.positive else [])]
            released, posterior = self.form == "released", 2 * self.noise_size
            body = self._encoder(self.features, last=True) if released else self._trunk()
            discriminator = Discriminator(body, nn.Sequential(*head))
            generator = Generator(self._generator() if released else self._wide_generator(), self.noise_size)
            encoder = None
            if inference:
                deep = (self._trunk(), nn.Linear(self.feature_size, posterior))
                encoder = self._encoder(posterior, last=False) if released else nn.Sequential(*deep)
            networks = [discriminator, generator, *([] if encoder is None else [encoder])]
            for layer in nn.ModuleList(networks).modules():
                if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
                    nn.init.normal_(layer.weight, std=LINEAR if isinstance(layer, nn.Linear) else CONVOLUTION)
                    assert layer.bias is not None
                    nn.init.zeros_(layer.bias)
        return Game(generator, discriminator, encoder)

    def convolution_blocks(self, discriminator: Discriminator) -> dict[str, nn.Module]:
        """By name, what a discriminator does to an image up to the end of each convolution block but the features themselves,
        averaged to a quarter of each side, where the last block ends: as many places for every probe."""
        assert isinstance(discriminator.body, nn.Sequential)
        layers, places = list(discriminator.body), (self.image[1] // 4, self.image[2] // 4)
        ends = [end for end, layer in enumerate(layers, 1) if isinstance(layer, nn.LeakyReLU) and end < len(layers) - 1]
        return {
            f"convolution {number}": nn.Sequential(*layers[:end], nn.AdaptiveAvgPool2d(places), nn.Flatten())
            for number, end in enumerate(ends, 1)
        }

    @property
    def feature_size(self) -> int:
        """The number of features of the discriminator, which a probe reads."""
        return self.features if self.form == "released" else 4 * self.width * self._places

    @property
    def _places(self) -> int:
        return (self.image[1] // 4) * (self.image[2] // 4)

    def _trunk(self) -> nn.Sequential:
        """Three convolutions, each with batch norm."""
        w = self.width
        layers: list[nn.Module] = []
        for before, after, kernel in ((self.image[0], w, SAME), (w, 2 * w, KERNEL), (2 * w, 4 * w, KERNEL)):
            layers += [nn.Conv2d(before, after, *kernel), nn.BatchNorm2d(after), nn.LeakyReLU(SLOPE)]
        return nn.Sequential(*layers, nn.Flatten())

    def _wide_generator(self) -> nn.Sequential:
        w, rows, columns = self.width, self.image[1] // 4, self.image[2] // 4
        start = 8 * w * self._places
        return nn.Sequential(
            nn.Linear(self.noise_size, start), nn.BatchNorm1d(start), nn.ReLU(), nn.Unflatten(1, (8 * w, rows, columns)),
            nn.ConvTranspose2d(8 * w, 4 * w, *KERNEL), nn.BatchNorm2d(4 * w), nn.ReLU(),
            nn.ConvTranspose2d(4 * w, 2 * w, *KERNEL), nn.BatchNorm2d(2 * w), nn.ReLU(),
            nn.ConvTranspose2d(2 * w, self.image[0], *SAME), nn.Sigmoid() if self.pixel_min == 0 else nn.Tanh(),
        )  # fmt: skip

    def _encoder(self, size: int, *, last: bool) -> nn.Sequential:
        channels, w = self.image[0], self.width
        layers: list[nn.Module] = [nn.Conv2d(channels, w, *KERNEL), nn.LeakyReLU(SLOPE)]
        layers += [nn.Conv2d(w, 2 * w, *KERNEL), nn.LeakyReLU(SLOPE), nn.Flatten()]
        layers += [nn.Linear(2 * w * self._places, size), *([nn.LeakyReLU(SLOPE)] if last else [])]
        return nn.Sequential(*layers)

    def _generator(self) -> nn.Sequential:
        channels, rows, columns = self.image
        w, places = self.width, self._places
        return nn.Sequential(
            nn.Linear(self.noise_size, 2 * w * places), nn.BatchNorm1d(2 * w * places), nn.ReLU(),
            nn.Unflatten(1, (2 * w, rows // 4, columns // 4)),
            nn.ConvTranspose2d(2 * w, w, *KERNEL), nn.BatchNorm2d(w), nn.ReLU(),
            nn.ConvTranspose2d(w, channels, *KERNEL), nn.Sigmoid() if self.pixel_min == 0 else nn.Tanh(),
        )  # fmt: skip
