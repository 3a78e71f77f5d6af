"""Calibrated energy GANs on images (Dai et al., 2017, B.5.2, B.8.4, B.8.5): games on digits and MNIST, whose discriminators are
probed by linear classifiers after each convolution, and games on the ones of MNIST alone, which stand for a digit of NIST and
rank generated and real images by energy. `paper` has the steps, rates, weights and gates of the released code."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from esscher.core.randomness import SeededRng
from esscher.core.storage import write_tensors
from esscher.papers.energy_gan.image_tables import (
    MEAN_IMAGE,
    PROBES,
    PUBLISHED_PROBES,
    RANDOM,
    RANKED_MODELS,
    RANKING_FILE,
    RANKING_PICTURE,
    keep,
)
from esscher.papers.energy_gan.objectives import EnergyGan, Gan, Gate
from esscher.papers.energy_gan.ranking import measure_ranking, rank, ranking_tensors
from esscher.papers.energy_gan.tables import CONST, GAN, MODELS, NN, VI
from esscher.papers.games.calibration import NeighbourEntropy, VariationalEntropy
from esscher.papers.games.evaluation import mean_image_rmse, probe_error
from esscher.papers.games.networks import ADAM, Game, ImageNets, players, train_game
from esscher.papers.games.points import Points, as_points, read_or_split, to_pixels
from esscher.papers.sources import CIFAR, MNIST, local_or_hub
from esscher.papers.study import ROW_FILE, Row, StudyContext, cached_json
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import figure_from_file, save_image_grid
from esscher.training.config import OptimizerConfig, TrainingConfig

MADE, MEANS = "made.png", "mean.png"
DRAWN = 1_000
ONES = "ones of MNIST"
Games = Mapping[str, tuple[Gan | EnergyGan, Mapping[str, OptimizerConfig]]]


@dataclass(frozen=True, kw_only=True)
class ImageGanStudy:
    """Games on one set of images: the objective and the optimisers of each. With a `digit` they are played on its images alone,
    and as many generated as real test images are ranked; otherwise features are probed."""

    source: str
    nets: ImageNets
    training: TrainingConfig
    games: Games
    digit: int | None = None
    probe_images: int = 5_000  # training images of the linear probe
    ranked_each: int = 500  # generated images, and real ones
    extremes: int = 100  # images of lowest, and of highest energy

    @property
    def models(self) -> tuple[str, ...]:
        """The games that are played; `random` are discriminators that were not trained."""
        return (RANDOM, *MODELS) if self.digit is None else RANKED_MODELS


def run(context: StudyContext) -> dict[str, Any]:
    """All games on all images, a seed after the other; tables and figure are written after every row."""
    for name in image_names(context):
        make_image_row(context, *name)
        tables = summarise_images(context)
    studies = image_games(context.scale)
    sections = [_section(context, images, study, tables) for images, study in studies.items()]
    about = "What linear probes find in discriminators of images, and how these rank images of one digit."
    return context.publish("Calibrated energy GANs on images", about, sections, {**tables, "paper": PUBLISHED_PROBES})


def image_names(context: StudyContext) -> list[tuple[str, str, int]]:
    """The rows in the order in which they are made: a seed after the other, and there all games on each set of images."""
    studies = image_games(context.scale).items()
    return [(images, model, seed) for seed in range(context.seeds) for images, study in studies for model in study.models]


def image_folder(context: StudyContext, images: str, model: str, seed: int = 0) -> Path:
    """The run folder of a row."""
    return context.run_dir(images.lower().replace(" ", "-"), model, seed)


def summarise_images(context: StudyContext) -> dict[str, list[Row]]:
    """The tables of the rows that have been made, also as `images.json`; the rest of the run may not have been made yet."""
    names = image_names(context)
    made = [name for name in names if (image_folder(context, *name) / ROW_FILE).exists()]
    rows = [make_image_row(context, *name) for name in made]
    ranked = [images for images, study in image_games(context.scale).items() if study.digit is not None]
    rankings = {model: image_folder(context, ranked[0], model) / RANKING_FILE for model in RANKED_MODELS} if ranked else {}
    return keep(context.out, rows, len(names) - len(made), rankings)


def _section(context: StudyContext, images: str, study: ImageGanStudy, tables: Mapping[str, list[Row]]) -> Section:
    """The numbers and effects of some images, and pictures of the first seed."""
    kind = "probe" if study.digit is None else "ranking"
    about = "Errors in % after each convolution block, averaged over 7 x 7 places, and of all features of the last."
    if study.digit is not None:
        about = "Root mean square distances from the mean training image; shares of real images in %."
    parts: list[Any] = [
        Table(title, [row for row in tables[name] if row["images"] == images], meaning)
        for title, name, meaning in (("Games", f"{kind}s", about), ("Effects", f"{kind} effects", ""))
    ]
    for model in study.models:
        for file, content in ((MADE, "draws"), (MEANS, "the mean of test images and of draws")):
            picture = image_folder(context, images, model) / file
            parts += [Picture(figure_from_file(picture), f"{model}: {content}. Seed 0.")] if picture.exists() else []
    ranking = context.out / RANKING_PICTURE
    if study.digit is not None and ranking.exists():
        parts.append(Picture(figure_from_file(ranking), "Images by energy, real ones in a box. Seed 0."))
    return Section(images, "", parts)


def image_games(scale: str) -> dict[str, ImageGanStudy]:
    """The games of a scale by the name of their images; `small` leaves MNIST out if it was not found."""
    if scale == "paper":
        return _published_images()
    training = replace(ADAM, steps=1_500, batch_size=100, learning_rate=2e-4, log_every=100)
    generator, discriminator = OptimizerConfig(10.0, momentum=0.0), OptimizerConfig(momentum=0.0)
    games = _games(EnergyGan(gate=Gate(-1.2, 0.1)), 1.0, generator, discriminator)
    nets = ImageNets(image=(1, 8, 8), width=16, features=64)
    digits = ImageGanStudy(source="digits", nets=nets, training=training, games=games)
    if scale == "smoke":
        tiny = replace(training, steps=4, batch_size=40, log_every=2)
        nets = ImageNets(image=(1, 8, 8), width=4, features=8, noise_size=4)
        digits = replace(digits, nets=nets, training=tiny, probe_images=200)
        thesis = replace(nets, form="thesis")
        return {"digits": digits, "ones of digits": replace(digits, nets=thesis, digit=1, ranked_each=10, extremes=4)}
    if not MNIST.exists():
        return {"digits": digits}
    wide = EnergyGan(gate=Gate(-10.0, 0.1))  # with -1.2 the generator diverges into noise and the discriminator always rests
    games, nets = _games(wide, 1.0, generator, discriminator), ImageNets(width=16, form="thesis")
    longer = replace(training, steps=2_500, save_every=500)
    mnist = ImageGanStudy(source=str(MNIST), nets=nets, training=longer, games=games)
    ones = replace(mnist, digit=1, training=replace(training, save_every=500))
    return {"digits": digits, "MNIST": mnist, ONES: ones}


def _games(plain: EnergyGan, temperature: float, generator: OptimizerConfig, discriminator: OptimizerConfig) -> Games:
    """The GAN, and the energy GAN with each calibration; `temperature` is that of the neighbours' entropy."""
    optimizers = players(generator, discriminator)
    return {
        GAN: (Gan(), players(OptimizerConfig(momentum=0.5), OptimizerConfig(momentum=0.5))),
        CONST: (plain, optimizers),
        VI: (replace(plain, calibration=VariationalEntropy(), temperature=0.1), optimizers),
        NN: (replace(plain, calibration=NeighbourEntropy(form="unit"), temperature=temperature), optimizers),
    }


def _published_images() -> dict[str, ImageGanStudy]:
    """The released settings, those of NIST; the ones of MNIST have as many updates as 20 epochs of a digit of NIST."""
    training = replace(ADAM, epochs=20, batch_size=200, learning_rate=1e-4, schedule="exponential", min_lr_ratio=0.8**20)
    gate, fast = Gate(-1.2, 0.1), OptimizerConfig(25.0, momentum=0.0)
    games = _games(EnergyGan(gate=gate), 4.0, fast, OptimizerConfig(momentum=0.0))
    nets = ImageNets(width=64, form="thesis")
    mnist = ImageGanStudy(source=local_or_hub(MNIST), nets=nets, training=training, games=games)
    ones = replace(mnist, digit=1, training=replace(training, epochs=None, steps=7_400))
    training = replace(
        ADAM, epochs=100, batch_size=100, learning_rate=2e-4, max_grad_norm=500.0, weight_decay=1e-5, schedule="linear",
        stable_ratio=0.5,
    )  # fmt: skip
    nets = ImageNets(image=(3, 32, 32), width=128, features=1024, noise_size=100, pixel_min=-1.0, positive=True)
    games = _games(EnergyGan(smoothness=0.01), 4.0, OptimizerConfig(momentum=0.5), OptimizerConfig(0.1, momentum=0.5))
    cifar = ImageGanStudy(source=local_or_hub(CIFAR), nets=nets, training=training, games=games)
    return {"MNIST": mnist, ONES: ones, "CIFAR-10": cifar}


def make_image_row(context: StudyContext, images: str, model: str, seed: int) -> Row:
    """Train and evaluate one game, unless its row exists."""
    studies = image_games(context.scale)
    if images not in studies or model not in studies[images].models:
        known = "; ".join(f"{name}: {', '.join(study.models)}" for name, study in studies.items())
        raise ValueError(f"There is no row {images!r}, {model!r}; known are {known}.")

    def make() -> Row:
        return {"images": images, "model": model, "seed": seed} | _play_images(studies[images], model, seed, run_dir)

    run_dir = image_folder(context, images, model, seed)
    return cached_json(run_dir / ROW_FILE, make)


def _play_images(study: ImageGanStudy, model: str, seed: int, run_dir: Path) -> Row:
    """Train a game, measure it and save its pictures."""
    pixel_min, steps = study.nets.pixel_min, 0
    train, test = (_of_digit(as_points(part, pixel_min), study.digit) for part in read_or_split(study.source))
    game = study.nets.build(inference=model == VI, rng=SeededRng(seed, "networks"))
    if model != RANDOM:
        objective, optimizers = study.games[model]
        steps = train_game(objective, game, Points(train.values), study.training, optimizers, seed=seed, folder=run_dir)
    game.generator.eval()
    with torch.no_grad():
        draws = Points(game.generator.draw(DRAWN, rng=SeededRng(seed, "draws")))
    save_image_grid(run_dir / MADE, to_pixels(draws.values[:64], pixel_min))
    save_image_grid(run_dir / MEANS, to_pixels(torch.stack([test.values.mean(0), draws.values.mean(0)]), pixel_min), 2)
    row = {"steps": steps, MEAN_IMAGE: mean_image_rmse(draws, test)}
    if study.digit is None:
        return row | _probe(study, game, train.rows(slice(0, study.probe_images)), test)
    chosen = SeededRng(seed, "ranked images").permutation(len(test))[: study.ranked_each]
    ranking = rank(game, draws.rows(slice(0, study.ranked_each)), test.rows(chosen), train.values.mean(0))
    write_tensors(run_dir / RANKING_FILE, ranking_tensors(ranking, study.extremes, pixel_min))
    return row | measure_ranking(ranking, study.extremes)


def _of_digit(points: Points, digit: int | None) -> Points:
    return points if digit is None else points.rows(points.labels == digit)


def _probe(study: ImageGanStudy, game: Game, train: Points, test: Points) -> Row:
    """The errors of linear probes after each convolution block, and of the features."""
    parts = {**study.nets.convolution_blocks(game.discriminator), "features": game.discriminator.body}
    return {name: probe_error(parts[name.removeprefix("probe, ")], train, test) for name in PROBES}
