"""Calibrating energy-based GANs (Dai et al., 2017): does the discriminator know the density? Costs of games in the plane are
normalised on a grid and compared with the known density. `paper` has the steps, rates, weights and gates of the released code.
Games on images are in `images`, the gradients of entropies in `gradients`."""

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
from esscher.papers.energy_gan.tables import (
    ABOUT_CLAIMS,
    CONST,
    DIVERGENCES,
    EXACT,
    GAN,
    MAIN,
    MODELS,
    NN,
    PAPER,
    VI,
    judge_claims,
)
from esscher.papers.games.calibration import Calibration, Constant, NeighbourEntropy, VariationalEntropy
from esscher.papers.games.evaluation import (
    PUBLISHED_FLOOR,
    Grid,
    divergence,
    planar_panels,
)
from esscher.papers.games.networks import ADAM, Game, PlanarNets, players, train_game
from esscher.papers.games.points import (
    DRAWS,
    PROCESSES,
    GaussianMixture2d,
    Points,
    released_points,
    two_spirals,
    with_unit_covariance,
)
from esscher.papers.study import ROW_FILE, Row, Rows, StudyContext, cached_json, means_over_seeds, select
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import save_figure
from esscher.training.config import OptimizerConfig, TrainingConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS_FILE, PLANE_FILE = "shown.safetensors", "plane.json"
SHOWN_DRAWS = 2_000
FOUR, SPIRALS = "four Gaussians", "two spirals"
CALIBRATIONS: Mapping[str, Calibration] = {CONST: Constant(), VI: VariationalEntropy(), NN: NeighbourEntropy()}
MEANING = (
    "data is the true density, emp the training draws, gen the generator's draws, disc the cost as an energy, normalised over "
    "the grid. As published, 1e-8 is added to probabilities within logarithms, but for `exact KL(disc||data)`. A divergence "
    "between two known distributions is exact for the networks of its row."
)


def run(context: StudyContext) -> dict[str, Any]:
    """All games on all processes with every seed, and the options with one seed."""
    for name in planar_names(context.seeds):
        make_row(context, *name)
    plane = summarise_plane(context)
    sections = [Section("Claims", ABOUT_CLAIMS, [Table("Claims", plane["claims"])])]
    sections += [_plane_section(context, process, plane["rows"]) for process in PROCESSES]
    tried = list(OPTIONS)[: 2 if context.scale == "smoke" else None]
    options = select([make_option_row(context, option, 0) for option in tried], ("option", "process", "model", *MAIN))
    sections.append(Section("Thesis and code", "One difference at a time, with one seed.", [Table("Divergences", options)]))
    about = "Four games on processes in the plane whose density is known."
    short = select(plane["rows"], ("process", "model", "seed", "steps", *MAIN))
    tables = {**plane, "rows": short, "options": options, "paper": PAPER}
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
    generator = OptimizerConfig(lr_scale=1.0 if model == GAN else 10.0, momentum=0.0)
    nets, optimizers = PlanarNets(std=0.03, generator_std=0.03), players(generator, OptimizerConfig(momentum=0.0))
    gate = Gate(-10.0, 0.1)  # with -1 a generator that is too wide for a flat cost is updated alone for ever
    objective = Gan() if model == GAN else EnergyGan(CALIBRATIONS[model], gate=gate)
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
    if model == GAN:
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


def train_planar_game(
    settings: PlanarGameSettings, model: str, seed: int, run_dir: Path
) -> tuple[GaussianMixture2d, Points, Game, int]:
    """The density of the points, the points, the game after its updates, and their number; the folder's run is resumed."""
    process = settings.process
    if settings.truth is None:
        truth, data = PROCESSES[process](), released_points(process, settings.draws)
    else:
        truth, data = settings.truth, settings.truth.draw(settings.draws, rng=SeededRng(0, "data", process))
    game = settings.nets.build(inference=model == VI, rng=SeededRng(seed, "networks"))
    objective, optimizers = settings.objective, settings.optimizers
    return truth, data, game, train_game(objective, game, data, settings.training, optimizers, seed=seed, folder=run_dir)


def play(settings: PlanarGameSettings, process: str, model: str, seed: int, run_dir: Path) -> Row:
    """Train one game and compare all distributions on the grid, unless its row exists; panels stay in the run folder."""

    def make() -> Row:
        truth, data, game, steps = train_planar_game(settings, model, seed, run_dir)
        grid = Grid.around(data, settings.cells)
        with torch.no_grad():
            draws = Points(game.generator.draw(settings.draws, rng=SeededRng(seed, "draws")))
        cells = {
            "disc": grid.density(-energy(game, grid.centres, settings.objective.temperature)),
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
