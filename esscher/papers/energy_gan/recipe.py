"""Calibrating energy-based GANs (Dai et al., 2017): does the discriminator know the density? In the plane, costs are normalised
on a grid and compared with the known density; on images, the measures are a linear probe on the discriminator's features and
the distance of the mean images. `paper` has the steps, rates, weights and gates of the released code."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.storage import read_tensors, write_file, write_tensors
from esscher.papers.energy_gan.objectives import EnergyGan, Gan, Gate, energy
from esscher.papers.energy_gan.tables import ABOUT_CLAIMS, DIVERGENCES, EXACT, MAIN, PAPER, judge_claims
from esscher.papers.games.calibration import Calibration, Constant, NeighbourEntropy, VariationalEntropy
from esscher.papers.games.evaluation import (
    PUBLISHED_FLOOR,
    Grid,
    divergence,
    mean_image_rmse,
    planar_panels,
    probe_error,
    sort_by_energy,
)
from esscher.papers.games.networks import ADAM, ImageNets, PlanarNets, players, train_game
from esscher.papers.games.points import (
    DRAWS,
    PROCESSES,
    GaussianMixture2d,
    Points,
    as_points,
    read_or_split,
    released_points,
    to_pixels,
    two_spirals,
    with_unit_covariance,
)
from esscher.papers.sources import CIFAR, MNIST, local_or_hub
from esscher.papers.study import ROW_FILE, Row, Rows, StudyContext, cached_json, means_over_seeds, select
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import figure_from_file, save_figure, save_image_grid
from esscher.training.config import OptimizerConfig, TrainingConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROBES = [
    {"model": model, "probe": error}
    for model, error in (("EGAN-Ent-NN", 1.19), ("EGAN-Const", 1.34), ("GAN", 1.26), ("random", 3.41))
]
PANELS_FILE, PLANE_FILE = "shown.safetensors", "plane.json"
SHOWN_DRAWS = 2_000
FOUR, SPIRALS, NN, VI = "four Gaussians", "two spirals", "EGAN-Ent-NN", "EGAN-Ent-VI"
CALIBRATIONS: Mapping[str, Calibration] = {"EGAN-Const": Constant(), VI: VariationalEntropy(), NN: NeighbourEntropy()}
MODELS = ("GAN", *CALIBRATIONS)
MADE, MEAN, RANKED = "made.png", "mean.png", "ranked.png"
IMAGE_MODELS = ("random", *MODELS)
RANKED_CLASS, RANKED_EACH = 1, 24  # the ones, as published
DRAWN = 1_000
MEANING = (
    "data is the true density, emp the training draws, gen the generator's draws, disc the cost as an energy, normalised over "
    "the grid. As published, 1e-8 is added to probabilities within logarithms, but for `exact KL(disc||data)`. A divergence "
    "between two known distributions is exact for the networks of its row."
)


def run(context: StudyContext) -> dict[str, Any]:
    """All games on all processes and images, with every seed, and the options with one seed."""
    for name in planar_names(context.seeds):
        make_row(context, *name)
    plane = summarise_plane(context)
    sections = [Section("Claims", ABOUT_CLAIMS, [Table("Claims", plane["claims"])])]
    sections += [_plane_section(context, process, plane["rows"]) for process in PROCESSES]
    tried = list(OPTIONS)[: 2 if context.scale == "smoke" else None]
    options = select([make_option_row(context, option, 0) for option in tried], ("option", "process", "model", *MAIN))
    sections.append(Section("Thesis and code", "One difference at a time, with one seed.", [Table("Divergences", options)]))
    image_rows = []
    for images in image_games(context.scale):
        of_images = [make_image_row(context, images, model, seed) for seed in range(context.seeds) for model in IMAGE_MODELS]
        sections.append(_images_section(context, images, of_images))
        image_rows += of_images
    about = "Errors of linear probes on MNIST, from the thesis."
    sections.append(Section("Published probes", about, [Table("Probes", PROBES)]))
    about = "Four games on processes in the plane whose density is known, and on images."
    short = select(plane["rows"], ("process", "model", "seed", "steps", *MAIN))
    tables = {**plane, "rows": short, "options": options, "images": image_rows, "paper": PAPER}
    return context.publish("Calibrated energy GANs", about, sections, tables)


def planar_names(seeds: int) -> list[tuple[str, str, int]]:
    """The rows of the plane in the order in which they are made: a process after the other, and there a seed."""
    return [(process, model, seed) for process in PROCESSES for seed in range(seeds) for model in MODELS]


def summarise_plane(context: StudyContext) -> dict[str, Any]:
    """The tables of the rows that have been made, also as `plane.json`, and a picture of each process whose first seed was made
    in this folder; the rest of the run may not have been made yet."""
    names = planar_names(context.seeds)
    made = [name for name in names if (game_folder(context, *name) / ROW_FILE).exists()]
    rows = [make_row(context, *name) for name in made]
    for process in PROCESSES:
        figure = _panels(context, process)
        if figure is not None:
            save_figure(figure, context.out / f"{process.replace(' ', '-')}.png")
    over = means_over_seeds(rows, ("process", "model"), (*DIVERGENCES, EXACT))
    plane = {"rows": rows, "over seeds": over, "claims": judge_claims(rows)}
    text = json.dumps({**plane, "missing": len(names) - len(made)}, indent=1, default=Estimate.to_dict)
    write_file(context.out / PLANE_FILE, text.encode())
    return plane


def _panels(context: StudyContext, process: str) -> "Figure | None":
    """Energies and draws of the games on a process, with the first seed; None if a game was not played in this folder."""
    files = {model: game_folder(context, process, model, 0) / PANELS_FILE for model in MODELS}
    if not all(file.exists() for file in files.values()):
        return None
    return planar_panels({model: read_tensors(file) for model, file in files.items()})


def _plane_section(context: StudyContext, process: str, rows: Rows) -> Section:
    """The divergences of a process, and the picture of its first seed."""
    meaning = "Above, energies up to 12 nats; below, data in red and generated points in blue. Seed 0."
    figure = _panels(context, process)
    pictures = [] if figure is None else [Picture(figure, meaning)]
    table = Table("Divergences", [row for row in rows if row["process"] == process], MEANING)
    return Section(process, "A cost that knows the density has the colours of the truth.", [*pictures, table])


def _images_section(context: StudyContext, images: str, rows: Rows) -> Section:
    """The rows of all games on some images, and the pictures of the first seed."""
    about = "The error of a linear probe, and the distance of the mean generated image from the mean test image."
    ranking = "test images of class 1, of lowest energy above, of highest below"
    contents = {MADE: "draws", MEAN: "the mean of test images and of draws", RANKED: ranking}
    pictures = [
        Picture(figure_from_file(context.run_dir(images, model) / file), f"{model}: {content}.")
        for model in IMAGE_MODELS
        for file, content in contents.items()
    ]
    return Section(images, "", [Table("Games", rows, about), *pictures])


@dataclass(frozen=True, kw_only=True)
class PlanarGameSettings:
    """How a game is played on one process, with points of the released code, unless a `truth` is drawn from; `reference`, if
    not None, is the density that it is compared with."""

    process: str
    truth: GaussianMixture2d | None = None
    reference: GaussianMixture2d | None = None
    objective: Gan | EnergyGan
    training: TrainingConfig
    optimizers: Mapping[str, OptimizerConfig] = field(default_factory=dict)
    nets: PlanarNets
    draws: int = DRAWS
    cells: int = 100


def planar_game_settings(scale: str, process: str, model: str) -> PlanarGameSettings:
    """The settings of a row at a scale."""
    if process not in PROCESSES or model not in MODELS:
        raise ValueError(f"There is no row {process!r}, {model!r}; known are {', '.join(PROCESSES)} and {', '.join(MODELS)}.")
    return _published(process, model) if scale == "paper" else _small(process, model, smoke=scale == "smoke")


def _small(process: str, model: str, *, smoke: bool) -> PlanarGameSettings:
    """Rates, small initial weights and a gate under which the generator keeps up. They were found on processes of other points
    than these, but for the noise of the inference net, which is of seed 100 of the four Gaussians, and none of seeds 0 to 2."""
    training = replace(
        ADAM, steps={SPIRALS: 6_000}.get(process, 1_800), batch_size=500, learning_rate=5e-4, schedule="exponential",
        stable_ratio=0.4, min_lr_ratio=0.05, save_every=600, log_every=100,
    )  # fmt: skip
    generator = OptimizerConfig(lr_scale=1.0 if model == "GAN" else 10.0, momentum=0.0)
    nets, optimizers = PlanarNets(std=0.03, generator_std=0.03), players(generator, OptimizerConfig(momentum=0.0))
    gate = Gate(-10.0, 0.1)  # with -1 a generator that is too wide for a flat cost is updated alone for ever
    objective = Gan() if model == "GAN" else EnergyGan(CALIBRATIONS[model], gate=gate)
    if model == VI:  # wide initial draws, a generator slow enough to be followed, and noise before the inference net
        objective = EnergyGan(CALIBRATIONS[model], gate=Gate(-math.inf, 0.1), inference_only_steps=1)
        training = replace(training, steps=2 * (training.steps or 0), learning_rate=1e-3)
        nets = PlanarNets(std=0.03, generator_std=0.3, inference_noise_std=2.0)
        optimizers = players(OptimizerConfig(3.0, momentum=0.0), OptimizerConfig(momentum=0.0))
        optimizers["inference"] = OptimizerConfig(2.0, momentum=0.5)
    settings = PlanarGameSettings(
        process=process, reference=published_reference(process), objective=objective, training=training,
        optimizers=optimizers, nets=nets,
    )  # fmt: skip
    if not smoke:
        return settings
    tiny = replace(training, steps=20, batch_size=50, save_every=20, log_every=10, learning_rate=5e-4)
    return replace(settings, training=tiny, nets=replace(nets, width=16), draws=2_000, cells=20)


def _published(process: str, model: str) -> PlanarGameSettings:
    """As released; for the two games that were not, the settings of the others. Temperatures are scale times batch."""
    spirals, reference = process == SPIRALS, published_reference(process)
    if model == "GAN":
        training = TrainingConfig(epochs=500, batch_size=500, learning_rate=1e-3, optimizer="adagrad", max_grad_norm=None)
        nets = PlanarNets(std=0.01, generator_std=0.125)
        return PlanarGameSettings(process=process, reference=reference, objective=Gan(), training=training, nets=nets)
    calibration = NeighbourEntropy(form="variance") if model == NN else CALIBRATIONS[model]
    temperature = {FOUR: 0.5, "biased pair": 0.15, SPIRALS: 0.25}[process]
    gate = Gate(-0.2 if process == "biased pair" else -10.0, 0.1)
    margin = None if process == FOUR else 10.0
    training = replace(
        ADAM, epochs=500 if spirals else 100, batch_size=500, learning_rate=2e-4, schedule="exponential",
        stable_ratio=0.4 if spirals else 0.1, min_lr_ratio=0.99**300 if spirals else 0.985**90,
    )  # fmt: skip
    return PlanarGameSettings(
        process=process,
        reference=reference,
        objective=EnergyGan(calibration, temperature, gate=gate, margin=margin),
        training=training,
        optimizers=players(OptimizerConfig(10.0, momentum=0.0), OptimizerConfig(momentum=0.0)),
        nets=PlanarNets(std=0.1, generator_std=0.01) if spirals else PlanarNets(std=0.01, generator_std=0.001),
    )


def published_reference(process: str) -> GaussianMixture2d | None:
    """The density that the thesis compares with, if it is not that of the points: wider Gaussians for the spirals."""
    return with_unit_covariance(two_spirals()) if process == SPIRALS else None


def make_row(context: StudyContext, process: str, model: str, seed: int) -> Row:
    """The divergences of one game."""
    settings = planar_game_settings(context.scale, process, model)
    return play(settings, process, model, seed, game_folder(context, process, model, seed))


def game_folder(context: StudyContext, process: str, model: str, seed: int) -> Path:
    """The run folder of a row."""
    return context.run_dir(process.lower().replace(" ", "-"), model, seed)


def play(settings: PlanarGameSettings, process: str, model: str, seed: int, run_dir: Path) -> Row:
    """Train one game and compare all distributions on the grid, unless its row exists; panels stay in the run folder."""

    def make() -> Row:
        if settings.truth is None:
            truth, data = PROCESSES[process](), released_points(process, settings.draws)
        else:
            truth, data = settings.truth, settings.truth.draw(settings.draws, rng=SeededRng(0, "data", process))
        game = settings.nets.build(inference=model == VI, rng=SeededRng(seed, "networks"))
        objective, optimizers = settings.objective, settings.optimizers
        steps = train_game(objective, game, data, settings.training, optimizers, seed=seed, folder=run_dir)
        grid = Grid.around(data, settings.cells)
        with torch.no_grad():
            draws = Points(game.generator.draw(settings.draws, rng=SeededRng(seed, "draws")))
        cells = {
            "disc": grid.density(-energy(game, grid.centres, objective.temperature)),
            "data": grid.density((settings.reference or truth).log_density(grid.centres)),
            "gen": grid.histogram(draws),
            "emp": grid.histogram(data),
        }
        panels = {"true energy": -cells["data"].log_prob, "energy": -cells["disc"].log_prob, "box": grid.box}
        points = {"draws": draws.values[:SHOWN_DRAWS], "data": data.values[:SHOWN_DRAWS]}
        write_tensors(run_dir / PANELS_FILE, {**panels, **points})
        divergences = {f"KL({p}||{q})": divergence(cells[p], cells[q], PUBLISHED_FLOOR) for p, q in permutations(cells, 2)}
        divergences[EXACT] = divergence(cells["disc"], cells["data"])
        return {"process": process, "model": model, "seed": seed, "steps": steps, "divergences": divergences}

    row = cached_json(run_dir / ROW_FILE, make)
    divergences = row.pop("divergences")
    return {**row, **divergences}


Change = Callable[[PlanarGameSettings], PlanarGameSettings]


def _with_objective(**fields: Any) -> Change:
    """A change of some fields of the objective."""

    def change(settings: PlanarGameSettings) -> PlanarGameSettings:
        return replace(settings, objective=replace(settings.objective, **fields))

    return change


OPTIONS: Mapping[str, tuple[str, str, Change]] = {
    "direction over the pooled variance (ours)": (FOUR, NN, lambda settings: settings),
    "direction of length 1 (thesis)": (FOUR, NN, _with_objective(calibration=NeighbourEntropy(form="unit"))),
    "direction over each variance (code)": (FOUR, NN, _with_objective(calibration=NeighbourEntropy(form="variance"))),
    "the code's temperature, 0.5": (FOUR, NN, _with_objective(temperature=0.5)),
    "no gate (thesis)": (FOUR, NN, _with_objective(gate=None)),
    "margin of 10 (code)": (FOUR, NN, _with_objective(margin=10.0)),
    "penalty of large costs (code, CIFAR-10)": (FOUR, NN, _with_objective(smoothness=0.01)),
    "whole log-deviation (ours)": (FOUR, VI, lambda settings: settings),
    "half of the log-deviation (code)": (FOUR, VI, _with_objective(calibration=VariationalEntropy("released"))),
    "deviation at most 1 (thesis, C.5.1)": (FOUR, VI, _with_objective(calibration=VariationalEntropy(bound=1.0))),
    "no noise before the inference net (thesis)": (
        FOUR, VI, lambda settings: replace(settings, nets=replace(settings.nets, inference_noise_std=0.0)),
    ),
    "spirals of 50 Gaussians an arm, judged by identity covariances (code)": (SPIRALS, NN, lambda settings: settings),
    "judged by their own covariances": (SPIRALS, NN, lambda settings: replace(settings, reference=None)),
    "spirals of 100 Gaussians an arm (thesis), judged by their own covariances": (
        SPIRALS, NN, lambda settings: replace(settings, truth=two_spirals("thesis"), reference=None),
    ),
}  # fmt: skip


def make_option_row(context: StudyContext, option: str, seed: int) -> Row:
    """The divergences of a game with one option changed; the first option of a group is the row as it is."""
    if option not in OPTIONS:
        raise ValueError(f"There is no option {option!r}; known are {'; '.join(OPTIONS)}.")
    process, model, change = OPTIONS[option]
    folder = f"{''.join(letter if letter.isalnum() else '-' for letter in option.lower())}-seed{seed}"
    settings = change(planar_game_settings(context.scale, process, model))
    return {"option": option, **play(settings, process, model, seed, context.out / "options" / folder)}


@dataclass(frozen=True, kw_only=True)
class ImageGanStudy:
    """Games on one set of images: the objective and the optimisers of each."""

    source: str
    nets: ImageNets
    training: TrainingConfig
    games: Mapping[str, tuple[Gan | EnergyGan, Mapping[str, OptimizerConfig]]]
    probe_images: int = 5_000  # training images of the linear probe


def image_games(scale: str) -> dict[str, ImageGanStudy]:
    """The games of a scale by the name of their images; `small` leaves MNIST out if it was not found."""
    if scale == "paper":
        return _published_images()
    training = replace(ADAM, steps=1_500, batch_size=100, learning_rate=2e-4, log_every=100)
    games = _games(EnergyGan(gate=Gate(-1.2, 0.1)), 1.0, OptimizerConfig(10.0, momentum=0.0), OptimizerConfig(momentum=0.0))
    nets = ImageNets(image=(1, 8, 8), width=16, features=64)
    digits = ImageGanStudy(source="digits", nets=nets, training=training, games=games)
    if scale == "smoke":
        tiny = replace(training, steps=4, batch_size=40, log_every=2)
        nets = ImageNets(image=(1, 8, 8), width=4, features=8, noise_size=4)
        return {"digits": replace(digits, nets=nets, training=tiny, probe_images=200)}
    if not MNIST.exists():
        return {"digits": digits}
    wide = EnergyGan(gate=Gate(-10.0, 0.1))  # with -1.2 the generator diverges into noise and the discriminator always rests
    games = _games(wide, 1.0, OptimizerConfig(10.0, momentum=0.0), OptimizerConfig(momentum=0.0))
    training = replace(training, steps=2_500, save_every=500)
    nets = ImageNets(width=16, form="thesis")
    return {"digits": digits, "MNIST": ImageGanStudy(source=str(MNIST), nets=nets, training=training, games=games)}


def _games(
    plain: EnergyGan, temperature: float, generator: OptimizerConfig, discriminator: OptimizerConfig
) -> dict[str, tuple[Gan | EnergyGan, Mapping[str, OptimizerConfig]]]:
    """The GAN, and the energy GAN with each calibration; `temperature` is that of the neighbours' entropy."""
    optimizers = players(generator, discriminator)
    return {
        "GAN": (Gan(), players(OptimizerConfig(momentum=0.5), OptimizerConfig(momentum=0.5))),
        "EGAN-Const": (plain, optimizers),
        VI: (replace(plain, calibration=VariationalEntropy(), temperature=0.1), optimizers),
        NN: (replace(plain, calibration=NeighbourEntropy(form="unit"), temperature=temperature), optimizers),
    }


def _published_images() -> dict[str, ImageGanStudy]:
    training = replace(ADAM, epochs=20, batch_size=200, learning_rate=1e-4, schedule="exponential", min_lr_ratio=0.8**20)
    gate, fast = Gate(-1.2, 0.1), OptimizerConfig(25.0, momentum=0.0)
    games = _games(EnergyGan(gate=gate), 4.0, fast, OptimizerConfig(momentum=0.0))
    nets = ImageNets(width=64, form="thesis")
    mnist = ImageGanStudy(source=local_or_hub(MNIST), nets=nets, training=training, games=games)
    training = replace(
        ADAM, epochs=100, batch_size=100, learning_rate=2e-4, max_grad_norm=500.0, weight_decay=1e-5, schedule="linear",
        stable_ratio=0.5,
    )  # fmt: skip
    nets = ImageNets(image=(3, 32, 32), width=128, features=1024, noise_size=100, pixel_min=-1.0, positive=True)
    games = _games(EnergyGan(smoothness=0.01), 4.0, OptimizerConfig(momentum=0.5), OptimizerConfig(0.1, momentum=0.5))
    return {"MNIST": mnist, "CIFAR-10": ImageGanStudy(source=local_or_hub(CIFAR), nets=nets, training=training, games=games)}


def make_image_row(context: StudyContext, images: str, model: str, seed: int) -> Row:
    """Train and evaluate one game, unless its row exists."""
    games = image_games(context.scale)
    if images not in games or model not in IMAGE_MODELS:
        raise ValueError(f"There is no row {images!r}, {model!r}; known are {', '.join(games)} and {', '.join(IMAGE_MODELS)}.")
    row = {"images": images, "model": model, "seed": seed}
    return context.row(images, model, seed, lambda run_dir: {**row, **_play_images(games[images], model, seed, run_dir)})


def _play_images(study: ImageGanStudy, model: str, seed: int, run_dir: Path) -> Row:
    """Train a game, measure it and save its pictures."""
    pixel_min, steps = study.nets.pixel_min, 0
    train, test = (as_points(part, pixel_min) for part in read_or_split(study.source))
    game = study.nets.build(inference=model == VI, rng=SeededRng(seed, "networks"))
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
    probe = probe_error(game, train.rows(slice(0, study.probe_images)), test)
    return {"steps": steps, "probe": probe, "mean image": mean_image_rmse(draws, test)}
