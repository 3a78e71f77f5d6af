"""Rows of the recipe on calibrated energy GANs on images: a game on a set of images with a seed, and what it has learnt.

Told are the error of a linear probe on the discriminator's features and how far the mean of generated images is from that of
test images; drawn are generated images, the mean image, and the test images of one class from low energy to high. `random` is
the discriminator before it learns. `small` is what one core does in minutes; `paper` has the rates, weights and gates of the
released code. Everything is kept in the run folder, and a finished row is not made again.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.adversarial.calibration import Constant, NeighbourEntropy, VariationalEntropy
from esscher.adversarial.energy_gan import EnergyGan, Gan, Gate
from esscher.adversarial.image_networks import ImageNets
from esscher.adversarial.networks import Game
from esscher.adversarial.points import Points
from esscher.adversarial.probes import by_energy, mean_gap, probe_error
from esscher.data.image_points import as_points
from esscher.data.images import read_images, split_images
from esscher.randomness import Seeded
from esscher.recipes.rows import ROW, kept, place_of
from esscher.recipes.sources import MNIST, cifar, mnist
from esscher.reports.pictures import save_grid
from esscher.settings.training import Pace, TrainingConfig
from esscher.training.trainer import Trainer

MADE, MEAN, RANKED = "made.png", "mean.png", "ranked.png"
MODELS = ("random", "GAN", "EGAN-Const", "EGAN-Ent-VI", "EGAN-Ent-NN")
RANKED_CLASS, RANKED_EACH = 1, 24  # the ones, as published
DRAWN = 1_000


@dataclass(frozen=True)
class ImageGame:
    """How games are played on one set of images; `probed` images teach the linear probe."""

    source: str
    nets: ImageNets
    training: TrainingConfig
    temperature: float
    variational: float
    gate: Gate | None
    generator: Pace
    discriminator: Pace
    smoothness: float = 0.0
    probed: int = 5_000

    def objective(self, model: str) -> Gan | EnergyGan:
        games: dict[str, Gan | EnergyGan] = {
            "GAN": Gan(),
            "EGAN-Const": EnergyGan(Constant(), gate=self.gate, smoothness=self.smoothness),
            "EGAN-Ent-VI": EnergyGan(VariationalEntropy(), self.variational, self.gate, smoothness=self.smoothness),
            "EGAN-Ent-NN": EnergyGan(NeighbourEntropy(form="unit"), self.temperature, self.gate, smoothness=self.smoothness),
        }
        return games[model]

    def paces(self, model: str) -> dict[str, Pace]:
        if model == "GAN":
            return {"generator": Pace(momentum=0.5), "discriminator": Pace(momentum=0.5)}
        paces = {"generator": self.generator, "discriminator": self.discriminator}
        return {**paces, "inference": self.generator} if model == "EGAN-Ent-VI" else paces


def image_games(scale: str) -> dict[str, ImageGame]:
    """The games of a scale by the name of their images; MNIST is left out of `small` where it is not here."""
    training = TrainingConfig(steps=1_500, batch_size=100, learning_rate=2e-4, optimiser="adam", clip=None, log_every=100)
    fast, slow = Pace(10.0, 0.0), Pace(1.0, 0.0)
    digits = ImageGame("digits", ImageNets((1, 8, 8), 16, 64), training, 1.0, 0.1, Gate(-1.2, 0.1), fast, slow)
    if scale == "smoke":
        tiny = replace(training, steps=4, batch_size=40, log_every=2)
        return {"digits": replace(digits, nets=ImageNets((1, 8, 8), 4, 8, 4), training=tiny, probed=200)}
    if scale == "paper":
        return {"MNIST": _published_digits(), "CIFAR-10": _published_cifar()}
    if not MNIST.exists():
        return {"digits": digits}
    larger = replace(
        digits, source=str(MNIST), nets=ImageNets(), training=replace(training, steps=2_500, save_every=500),
        gate=Gate(-10.0, 0.1),  # with -1.2 the generator runs off into noise at once, and the discriminator waits for ever
    )  # fmt: skip
    return {"digits": digits, "MNIST": larger}


def _published_digits() -> ImageGame:
    training = TrainingConfig(
        epochs=20, batch_size=200, learning_rate=1e-4, optimiser="adam", clip=None, schedule="exponential", lowest=0.8**20
    )
    nets = ImageNets(width=64, features=1024)
    return ImageGame(mnist(), nets, training, 4.0, 0.1, Gate(-1.2, 0.1), Pace(25.0, 0.0), Pace(1.0, 0.0))


def _published_cifar() -> ImageGame:
    training = TrainingConfig(
        epochs=100, batch_size=100, learning_rate=2e-4, optimiser="adam", clip=500.0, weight_decay=1e-5, schedule="linear",
        hold=0.5,
    )  # fmt: skip
    nets = ImageNets((3, 32, 32), 128, 1024, 100, -1.0, positive=True)
    return ImageGame(cifar(), nets, training, 4.0, 0.1, None, Pace(1.0, 0.5), Pace(0.1, 0.5), smoothness=0.01)


def make_image_row(scale: str, images: str, model: str, seed: int, out: Path) -> dict[str, Any]:
    """What one game has learnt, from the folder if it is there."""
    games = image_games(scale)
    if images not in games or model not in MODELS:
        raise ValueError(f"There is no row {images!r}, {model!r}; known are {', '.join(games)} and {', '.join(MODELS)}.")
    place, plan = place_of(out / images, model, seed), games[images]

    def make() -> dict[str, Any]:
        train, test = _points(plan)
        game = plan.nets.build(inference=model == "EGAN-Ent-VI", rng=Seeded(seed, "networks"))
        steps = 0
        if model != "random":
            training = replace(plan.training, seed=seed)
            steps = Trainer(training)(
                plan.objective(model), game, Points(train.values), modules=game.players, paces=plan.paces(model), folder=place,
                resume=True,
            ).steps  # fmt: skip
        told = _told(plan, game, train, test, seed, place)
        return {"images": images, "model": model, "seed": seed, "steps": steps, **told}

    return kept(place / ROW, make)


def _points(plan: ImageGame) -> tuple[Points, Points]:
    pictures, test = read_images(plan.source)
    if test is None:
        pictures, _, test = split_images(pictures, held_out=0.1, test=True)
    return as_points(pictures, plan.nets.low), as_points(test, plan.nets.low)


@torch.no_grad()
def _told(plan: ImageGame, game: Game, train: Points, test: Points, seed: int, place: Path) -> dict[str, Any]:
    """Numbers and pictures of a game at rest."""
    game.generator.eval()
    made = Points(game.generator.draw(DRAWN, rng=Seeded(seed, "draws")))
    low = plan.nets.low
    save_grid(place / MADE, pixels(made.values[:64], low))
    save_grid(place / MEAN, pixels(torch.stack([test.values.mean(0), made.values.mean(0)]), low), 2)
    assert test.labels is not None
    ones = test.rows(test.labels == RANKED_CLASS)
    order = by_energy(game, ones)
    shown = torch.cat([order[:RANKED_EACH], order[-RANKED_EACH:]])
    save_grid(place / RANKED, pixels(ones.values[shown], low), 12)
    with torch.enable_grad():
        probe = probe_error(game, train.rows(slice(0, plan.probed)), test)
    return {"probe": probe, "mean image": mean_gap(made, test)}


def pixels(images: Tensor, low: float) -> NDArray[np.uint8]:
    """Numbers from `low` to 1 as N H W C bytes."""
    values = (images.double() - low) / (1 - low) * 255
    return values.round().clamp(0, 255).permute(0, 2, 3, 1).cpu().numpy().astype(np.uint8)
