"""Calibrated energy GANs on images: games on a set of images with a seed, and what they have learnt.

Measured are the error of a linear probe on the discriminator's features, and the distance of the mean generated image from the
mean test image; drawn are generated images, mean images, and the test images of one class from low energy to high. `random` is
the discriminator before training. `paper` has the rates, weights and gates of the released code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from esscher.core.randomness import SeededRng
from esscher.papers.energy_gan.objectives import EnergyGan, Gan, Gate
from esscher.papers.games.calibration import NeighbourEntropy, VariationalEntropy
from esscher.papers.games.evaluation import mean_image_rmse, probe_error, sort_by_energy
from esscher.papers.games.networks import ImageNets
from esscher.papers.games.points import Points, as_points, read_or_split, to_pixels
from esscher.papers.games.training import ADAM, players, train_game
from esscher.papers.sources import CIFAR, MNIST, local_or_hub
from esscher.papers.study import Row, StudyContext
from esscher.reports.plots import save_image_grid
from esscher.training.config import OptimizerConfig, TrainingConfig

MADE, MEAN, RANKED = "made.png", "mean.png", "ranked.png"
IMAGE_MODELS = ("random", "GAN", "EGAN-Const", "EGAN-Ent-VI", "EGAN-Ent-NN")
RANKED_CLASS, RANKED_EACH = 1, 24  # the ones, as published
DRAWN = 1_000
Setup = tuple[Gan | EnergyGan, dict[str, OptimizerConfig]]


@dataclass(frozen=True, kw_only=True)
class ImageGanStudy:
    """Games on one set of images: the objective and the optimisers of each."""

    name: str
    source: str
    nets: ImageNets
    training: TrainingConfig
    games: Mapping[str, Setup]
    probe_images: int = 5_000  # training images of the linear probe


def image_games(scale: str) -> dict[str, ImageGanStudy]:
    """The games of a scale by the name of their images; `small` leaves MNIST out if it was not found."""
    if scale == "paper":
        return {"MNIST": _published_mnist(), "CIFAR-10": _published_cifar()}
    training = replace(ADAM, steps=1_500, batch_size=100, learning_rate=2e-4, log_every=100)
    optimizers = players(OptimizerConfig(10.0, momentum=0.0), OptimizerConfig(momentum=0.0))
    digits = ImageGanStudy(
        name="digits", source="digits", nets=ImageNets(image=(1, 8, 8), width=16, features=64), training=training,
        games=_games(EnergyGan(gate=Gate(-1.2, 0.1)), 1.0, optimizers),
    )  # fmt: skip
    if scale == "smoke":
        tiny = replace(training, steps=4, batch_size=40, log_every=2)
        nets = ImageNets(image=(1, 8, 8), width=4, features=8, noise_size=4)
        return {"digits": replace(digits, nets=nets, training=tiny, probe_images=200)}
    if not MNIST.exists():
        return {"digits": digits}
    wide = EnergyGan(gate=Gate(-10.0, 0.1))  # with -1.2 the generator diverges into noise and the discriminator always rests
    larger = replace(
        digits, name="MNIST", source=str(MNIST), nets=ImageNets(), training=replace(training, steps=2_500, save_every=500),
        games=_games(wide, 1.0, optimizers),
    )  # fmt: skip
    return {"digits": digits, "MNIST": larger}


def _games(plain: EnergyGan, temperature: float, optimizers: dict[str, OptimizerConfig]) -> dict[str, Setup]:
    """The GAN, and the energy GAN with each calibration; `temperature` is that of the neighbours' entropy."""
    return {
        "GAN": (Gan(), players(OptimizerConfig(momentum=0.5), OptimizerConfig(momentum=0.5))),
        "EGAN-Const": (plain, optimizers),
        "EGAN-Ent-VI": (replace(plain, calibration=VariationalEntropy(), temperature=0.1), optimizers),
        "EGAN-Ent-NN": (replace(plain, calibration=NeighbourEntropy(form="unit"), temperature=temperature), optimizers),
    }


def _published_mnist() -> ImageGanStudy:
    training = replace(ADAM, epochs=20, batch_size=200, learning_rate=1e-4, schedule="exponential", min_lr_ratio=0.8**20)
    optimizers = players(OptimizerConfig(25.0, momentum=0.0), OptimizerConfig(momentum=0.0))
    return ImageGanStudy(
        name="MNIST", source=local_or_hub(MNIST), nets=ImageNets(width=64, features=1024), training=training,
        games=_games(EnergyGan(gate=Gate(-1.2, 0.1)), 4.0, optimizers),
    )  # fmt: skip


def _published_cifar() -> ImageGanStudy:
    training = replace(
        ADAM, epochs=100, batch_size=100, learning_rate=2e-4, max_grad_norm=500.0, weight_decay=1e-5, schedule="linear",
        stable_ratio=0.5,
    )  # fmt: skip
    nets = ImageNets(image=(3, 32, 32), width=128, features=1024, noise_size=100, pixel_min=-1.0, positive=True)
    optimizers = players(OptimizerConfig(momentum=0.5), OptimizerConfig(0.1, momentum=0.5))
    return ImageGanStudy(
        name="CIFAR-10", source=local_or_hub(CIFAR), nets=nets, training=training,
        games=_games(EnergyGan(smoothness=0.01), 4.0, optimizers),
    )  # fmt: skip


def make_image_row(context: StudyContext, images: str, model: str, seed: int) -> Row:
    """Train and evaluate one game, unless its row exists."""
    games = image_games(context.scale)
    if images not in games or model not in IMAGE_MODELS:
        raise ValueError(f"There is no row {images!r}, {model!r}; known are {', '.join(games)} and {', '.join(IMAGE_MODELS)}.")
    return context.row(images, model, seed, partial(_play, games[images], model, seed))


def _play(study: ImageGanStudy, model: str, seed: int, run_dir: Path) -> Row:
    """Train a game, measure it and save its pictures."""
    pixel_min, steps = study.nets.pixel_min, 0
    train, test = (as_points(part, pixel_min) for part in read_or_split(study.source))
    game = study.nets.build(inference=model == "EGAN-Ent-VI", rng=SeededRng(seed, "networks"))
    if model != "random":
        objective, optimizers = study.games[model]
        steps = train_game(objective, game, Points(train.values), study.training, optimizers, seed=seed, folder=run_dir)
    game.generator.eval()
    with torch.no_grad():
        draws = Points(game.generator.draw(DRAWN, rng=SeededRng(seed, "draws")))
    save_image_grid(run_dir / MADE, to_pixels(draws.values[:64], pixel_min))
    save_image_grid(run_dir / MEAN, to_pixels(torch.stack([test.values.mean(0), draws.values.mean(0)]), pixel_min), 2)
    ranked = test.rows(test.labels == RANKED_CLASS)
    order = sort_by_energy(game, ranked)
    extremes = torch.cat([order[:RANKED_EACH], order[-RANKED_EACH:]])
    save_image_grid(run_dir / RANKED, to_pixels(ranked.values[extremes], pixel_min), 12)
    row = {"images": study.name, "model": model, "seed": seed, "steps": steps}
    probe = probe_error(game, train.rows(slice(0, study.probe_images)), test)
    return {**row, "probe": probe, "mean image": mean_image_rmse(draws, test)}
