"""The networks of a game: a generator of points from noise, a discriminator that gives each point a cost, an inference net.

    generator        noise -> point; it draws its own noise, of a normal or a uniform law
    discriminator    point -> cost, low where points are real: an energy; `features` are its last hidden layer
    inference net    point -> mean and log of the standard deviation of the noise that made it

The fully connected ones are those of Dai et al. (2017) for the plane. Letters: N points, Z numbers of noise, F features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from esscher.randomness import Continuous, Seeded

Noise = Literal["normal", "uniform"]


class Generator(nn.Module):
    """A network that turns noise into points."""

    def __init__(self, network: nn.Module, noise_size: int, noise: Noise = "normal"):
        super().__init__()
        self.network, self.noise_size, self.noise = network, noise_size, noise

    def forward(self, z: Float[Tensor, "N Z"]) -> Float[Tensor, "N *S"]:
        return self.network(z)

    def draw_noise(self, count: int, *, rng: Continuous) -> Float[Tensor, "N Z"]:
        """Noise for so many points, where the weights are."""
        drawn = rng.normal if self.noise == "normal" else rng.uniform
        return drawn(count, self.noise_size).to(next(self.parameters()).device)

    def draw(self, count: int, *, rng: Continuous) -> Float[Tensor, "N *S"]:
        """So many points."""
        return self(self.draw_noise(count, rng=rng))


class Discriminator(nn.Module):
    """Features of a point, and a linear head on them: one number, the cost, or one for each of several classes."""

    def __init__(self, body: nn.Module, head: nn.Module):
        super().__init__()
        self.body, self.head = body, head

    def features(self, x: Float[Tensor, "N *S"]) -> Float[Tensor, "N F"]:
        return self.body(x)

    def forward(self, x: Float[Tensor, "N *S"]) -> Tensor:
        return self.head(self.body(x)).squeeze(-1)


class Noisy(nn.Module):
    """Adds normal noise in training."""

    def __init__(self, deviation: float):
        super().__init__()
        self.deviation = deviation

    def forward(self, x: Float[Tensor, "N *S"]) -> Float[Tensor, "N *S"]:
        return x + self.deviation * torch.randn_like(x) if self.training else x


@dataclass(frozen=True)
class Game:
    """The networks that play; the inference net plays only where an entropy is bounded by it."""

    generator: Generator
    discriminator: Discriminator
    inference: nn.Module | None = None

    @property
    def players(self) -> Mapping[str, nn.Module]:
        """The networks by their names."""
        found = {"generator": self.generator, "discriminator": self.discriminator, "inference": self.inference}
        return {name: network for name, network in found.items() if network is not None}


@dataclass(frozen=True)
class PlanarNets:
    """Sizes and initial weights of fully connected networks; normal weights of these deviations, biases 0.

    A deviation of None is He's, sqrt(2 / inputs). The released code has 0.01 and 0.001 (for its spirals 0.1 and 0.01).
    `blur` is the deviation of noise that is added to points before the inference net reads them, whose
    weights are He's, and 0 in its last layer: it begins with a standard normal, whatever the points are.
    """

    width: int = 128
    noise_size: int = 4
    deviation: float | None = None
    generator_deviation: float | None = None
    blur: float = 0.0

    def build(self, *, inference: bool = False, classes: int = 1, rng: Seeded) -> Game:
        """A game in the plane, with an inference net if wanted."""
        w, z = self.width, self.noise_size
        with rng.governs_torch():
            generator = Generator(dense([z, w, w, 2], self.generator_deviation, norms=True), z)
            body = nn.Sequential(dense([2, w, w], self.deviation), nn.ReLU())
            head = dense([w, classes], self.deviation)
            read = dense([2, w, w, 2 * z], None)
            nn.init.zeros_(read[-1].weight)  # type: ignore[arg-type]
            encoder = nn.Sequential(Noisy(self.blur), read) if inference else None
        return Game(generator, Discriminator(body, head), encoder)


def dense(sizes: Sequence[int], deviation: float | None, *, norms: bool = False) -> nn.Sequential:
    """Linear layers with rectifiers between them, after batch norm if `norms`."""
    layers: list[nn.Module] = []
    for number, (size, after) in enumerate(pairwise(sizes)):
        if number:
            layers += [nn.BatchNorm1d(size, eps=1e-6), nn.ReLU()] if norms else [nn.ReLU()]
        linear = nn.Linear(size, after)
        nn.init.normal_(linear.weight, std=(2 / size) ** 0.5 if deviation is None else deviation)
        nn.init.zeros_(linear.bias)
        layers.append(linear)
    return nn.Sequential(*layers)


@torch.no_grad()
def in_pieces(network: nn.Module, x: Tensor, size: int = 10_000) -> Tensor:
    """What a network, at rest, makes of many rows."""
    was = network.training
    network.eval()
    found = torch.cat([network(x[first : first + size]) for first in range(0, len(x), size)])
    network.train(was)
    return found
