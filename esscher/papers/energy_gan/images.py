"""Calibrated energy GANs on images: games on a set of images with a seed, and what they have learnt.

Measured are the error of a linear probe on the discriminator's features, and the distance of the mean generated image from the
mean test image; drawn are generated images, mean images, and the test images of one class from low energy to high. `random` is
the discriminator before training. `paper` has the rates, weights and gates of the released code.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from esscher.core.randomness import SeededRng
from esscher.papers.energy_gan.objectives import EnergyGan, Gan, Gate
from esscher.papers.games.calibration import Constant, NeighbourEntropy, VariationalEntropy
from esscher.papers.games.evaluation import mean_image_rmse, probe_error, sort_by_energy
from esscher.papers.games.networks import Game, ImageNets
from esscher.papers.games.points import Points, as_points, read_or_split, to_pixels
from esscher.papers.games.training import ADAM, players, train_game
from esscher.papers.sources import MNIST, cifar, mnist
from esscher.papers.study import Row, StudyContext
from esscher.reports.plots import save_image_grid
from esscher.training.config import OptimizerConfig, TrainingConfig

MADE, MEAN, RANKED = "made.png", "mean.png", "ranked.png"
IMAGE_MODELS = ("random", "GAN", "EGAN-Const", "EGAN-Ent-VI", "EGAN-Ent-NN")
RANKED_CLASS, RANKED_EACH = 1, 24  # the ones, as published
DRAWN = 1_000


@dataclass(frozen=True, kw_only=True)
class ImageGameSettings:
    """How games are played on one set of images; `temperature` and `variational` are those of the two entropies."""

    name: str
    source: str
    nets: ImageNets
    training: TrainingConfig
    temperature: float
    variational: float = 0.1
    gate: Gate | None
    generator: OptimizerConfig
    discriminator: OptimizerConfig
    smoothness: float = 0.0
    probe_images: int = 5_000  # training images of the linear probe

    def names_for_seed(self, seed: int) -> tuple[str, ...]:
        """All models are trained with every seed."""
        return IMAGE_MODELS

    def objective(self, model: str) -> Gan | EnergyGan:
        objectives: dict[str, Gan | EnergyGan] = {
            "GAN": Gan(),
            "EGAN-Const": EnergyGan(Constant(), gate=self.gate, smoothness=self.smoothness),
            "EGAN-Ent-VI": EnergyGan(VariationalEntropy(), self.variational, self.gate, smoothness=self.smoothness),
            "EGAN-Ent-NN": EnergyGan(NeighbourEntropy(form="unit"), self.temperature, self.gate, smoothness=self.smoothness),
        }
        return objectives[model]

    def optimizers(self, model: str) -> dict[str, OptimizerConfig]:
        if model == "GAN":
            return players(OptimizerConfig(momentum=0.5), OptimizerConfig(momentum=0.5))
        return players(self.generator, self.discriminator)


def image_games(scale: str) -> dict[str, ImageGameSettings]:
    """The games of a scale by the name of their images; `small` leaves MNIST out if it was not found."""
    if scale == "paper":
        return {"MNIST": _published_mnist(), "CIFAR-10": _published_cifar()}
    training = replace(ADAM, steps=1_500, batch_size=100, learning_rate=2e-4, log_every=100)
    digits = ImageGameSettings(
        name="digits", source="digits", nets=ImageNets(image=(1, 8, 8), width=16, features=64), training=training,
        temperature=1.0, gate=Gate(-1.2, 0.1), generator=OptimizerConfig(10.0, momentum=0.0),
        discriminator=OptimizerConfig(1.0, momentum=0.0),
    )  # fmt: skip
    if scale == "smoke":
        tiny = replace(training, steps=4, batch_size=40, log_every=2)
        nets = ImageNets(image=(1, 8, 8), width=4, features=8, noise_size=4)
        return {"digits": replace(digits, nets=nets, training=tiny, probe_images=200)}
    if not MNIST.exists():
        return {"digits": digits}
    larger = replace(
        digits, name="MNIST", source=str(MNIST), nets=ImageNets(), training=replace(training, steps=2_500, save_every=500),
        gate=Gate(-10.0, 0.1),  # with -1.2 the generator diverges into noise at once, and the discriminator is never updated
    )  # fmt: skip
    return {"digits": digits, "MNIST": larger}


def _published_mnist() -> ImageGameSettings:
    training = replace(ADAM, epochs=20, batch_size=200, learning_rate=1e-4, schedule="exponential", min_lr_ratio=0.8**20)
    return ImageGameSettings(
        name="MNIST", source=mnist(), nets=ImageNets(width=64, features=1024), training=training, temperature=4.0,
        gate=Gate(-1.2, 0.1), generator=OptimizerConfig(25.0, momentum=0.0), discriminator=OptimizerConfig(1.0, momentum=0.0),
    )  # fmt: skip


def _published_cifar() -> ImageGameSettings:
    training = TrainingConfig(
        epochs=100, batch_size=100, learning_rate=2e-4, optimizer="adam", max_grad_norm=500.0, weight_decay=1e-5,
        schedule="linear", stable_ratio=0.5,
    )  # fmt: skip
    nets = ImageNets(image=(3, 32, 32), width=128, features=1024, noise_size=100, pixel_min=-1.0, positive=True)
    return ImageGameSettings(
        name="CIFAR-10", source=cifar(), nets=nets, training=training, temperature=4.0, gate=None,
        generator=OptimizerConfig(1.0, momentum=0.5), discriminator=OptimizerConfig(0.1, momentum=0.5), smoothness=0.01,
    )  # fmt: skip


def make_image_row(context: StudyContext, images: str, model: str, seed: int) -> Row:
    """Train and evaluate one game, unless its row exists."""
    games = image_games(context.scale)
    if images not in games or model not in IMAGE_MODELS:
        raise ValueError(f"There is no row {images!r}, {model!r}; known are {', '.join(games)} and {', '.join(IMAGE_MODELS)}.")

    def make(plan: ImageGameSettings, model: str, seed: int) -> Row:
        run_dir = context.run_dir(images, model, seed)
        train, test = (as_points(part, plan.nets.pixel_min) for part in read_or_split(plan.source))
        game = plan.nets.build(inference=model == "EGAN-Ent-VI", rng=SeededRng(seed, "networks"))
        steps = 0
        if model != "random":
            objective, optimizers = plan.objective(model), plan.optimizers(model)
            steps = train_game(objective, game, Points(train.values), plan.training, optimizers, seed=seed, folder=run_dir)
        return {
            "images": images,
            "model": model,
            "seed": seed,
            "steps": steps,
            **_evaluate(plan, game, train, test, seed, run_dir),
        }

    return context.row(games[images], model, seed, make)


@torch.no_grad()
def _evaluate(plan: ImageGameSettings, game: Game, train: Points, test: Points, seed: int, run_dir: Path) -> Row:
    """Measure a trained game and save its pictures."""
    game.generator.eval()
    made, pixel_min = Points(game.generator.draw(DRAWN, rng=SeededRng(seed, "draws"))), plan.nets.pixel_min
    save_image_grid(run_dir / MADE, to_pixels(made.values[:64], pixel_min))
    save_image_grid(run_dir / MEAN, to_pixels(torch.stack([test.values.mean(0), made.values.mean(0)]), pixel_min), 2)
    assert test.labels is not None
    ranked = test.rows(test.labels == RANKED_CLASS)
    order = sort_by_energy(game, ranked)
    extremes = torch.cat([order[:RANKED_EACH], order[-RANKED_EACH:]])
    save_image_grid(run_dir / RANKED, to_pixels(ranked.values[extremes], pixel_min), 12)
    with torch.enable_grad():
        probe = probe_error(game, train.rows(slice(0, plan.probe_images)), test)
    return {"probe": probe, "mean image": mean_image_rmse(made, test)}
