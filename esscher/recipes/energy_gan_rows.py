"""Rows of the recipe on calibrated energy GANs: a game on a process in the plane with a seed, and all its divergences.

A row's networks, its numbers, the energy on the grid and some draws are kept in the run folder, and a finished row is not made
again. `small` is what two cores do in minutes; `paper` has the steps, rates, weights and gates of the released code.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import torch

from esscher.adversarial.calibration import Calibration, Constant, NeighbourEntropy, VariationalEntropy
from esscher.adversarial.energy_gan import EnergyGan, Gan, Gate, energy
from esscher.adversarial.grid import Grid, divergence
from esscher.adversarial.networks import PlanarNets
from esscher.adversarial.planar import DRAWS, PROCESSES, Planar
from esscher.adversarial.points import Points
from esscher.randomness import Seeded
from esscher.recipes.rows import ROW, kept, place_of
from esscher.settings.training import Pace, TrainingConfig
from esscher.storage import read_tensors, write_tensors
from esscher.training.trainer import Trainer

SHOWN = "shown.safetensors"
SHOWN_DRAWS = 2_000
MODELS = ("GAN", "EGAN-Const", "EGAN-Ent-VI", "EGAN-Ent-NN")


@dataclass(frozen=True)
class Planned:
    """How a game is played on one process; `truth` and `judge` if data and density are not those of the process."""

    objective: Gan | EnergyGan
    training: TrainingConfig
    paces: Mapping[str, Pace]
    nets: PlanarNets = field(default_factory=PlanarNets)
    draws: int = DRAWS
    cells: int = 100
    truth: Callable[[], Planar] | None = None
    judge: Callable[[], Planar] | None = None

    @property
    def inference(self) -> bool:
        return isinstance(self.objective.calibration, VariationalEntropy)


def planned(scale: str, process: str, model: str) -> Planned:
    """The settings of a row by scale."""
    if process not in PROCESSES or model not in MODELS:
        raise ValueError(f"There is no row {process!r}, {model!r}; known are {', '.join(PROCESSES)} and {', '.join(MODELS)}.")
    return _published(process, model) if scale == "paper" else _small(process, model, smoke=scale == "smoke")


def _small(process: str, model: str, *, smoke: bool) -> Planned:
    """Rates, small first weights and a gate under which the generator keeps up, found with seed 0 of two processes."""
    gate = Gate(-10.0, 0.1)  # with -1 a generator that is too wide for a flat cost moves alone for ever
    objectives: dict[str, Gan | EnergyGan] = {
        "GAN": Gan(),
        "EGAN-Const": EnergyGan(Constant(), gate=gate),
        "EGAN-Ent-VI": EnergyGan(VariationalEntropy(), gate=Gate(-math.inf, 0.1), alone=1),
        "EGAN-Ent-NN": EnergyGan(NeighbourEntropy(), gate=gate),
    }
    steps = {"two spirals": 6_000}.get(process, 1_800)
    training = TrainingConfig(
        steps=steps, batch_size=500, learning_rate=5e-4, optimiser="adam", clip=None, schedule="exponential", hold=0.4,
        lowest=0.05, save_every=600, log_every=100,
    )  # fmt: skip
    fast = Pace(rate=1.0 if model == "GAN" else 10.0, momentum=0.0)
    plan = Planned(objectives[model], training, _paces(model, fast), PlanarNets(deviation=0.03, generator_deviation=0.03))
    if model == "EGAN-Ent-VI":
        plan = _inferred(plan)
    if not smoke:
        return plan
    tiny = replace(training, steps=20, batch_size=50, save_every=20, log_every=10)
    return replace(plan, training=tiny, nets=replace(plan.nets, width=16), draws=2_000, cells=20)


def _inferred(plan: Planned) -> Planned:
    """With an inference net: wide first draws, a generator that is slow enough to be followed, and noise before the net."""
    training = replace(plan.training, steps=2 * (plan.training.steps or 0), learning_rate=1e-3)
    paces = {"generator": Pace(3.0, 0.0), "discriminator": Pace(1.0, 0.0), "inference": Pace(2.0, 0.5)}
    return replace(plan, training=training, paces=paces, nets=PlanarNets(deviation=0.03, generator_deviation=0.3, blur=0.5))


def _published(process: str, model: str) -> Planned:
    """As released; for the two games that were not, the settings of the others. Temperatures are scale times batch."""
    spirals = process == "two spirals"
    temperature = {"four Gaussians": 0.5, "biased pair": 0.15, "two spirals": 0.25}[process]
    gate = Gate(-0.2 if process == "biased pair" else -10.0, 0.1)
    margin = None if process == "four Gaussians" else 10.0
    kinds: dict[str, Calibration] = {
        "EGAN-Const": Constant(),
        "EGAN-Ent-VI": VariationalEntropy(),
        "EGAN-Ent-NN": NeighbourEntropy(form="variance"),
    }
    if model == "GAN":
        training = TrainingConfig(epochs=500, batch_size=500, learning_rate=1e-3, optimiser="adagrad", clip=None)
        return Planned(Gan(), training, {}, PlanarNets(deviation=0.01, generator_deviation=0.125))
    objective = EnergyGan(kinds[model], temperature, gate=gate, margin=margin)
    training = TrainingConfig(
        epochs=500 if spirals else 100, batch_size=500, learning_rate=2e-4, optimiser="adam", clip=None,
        schedule="exponential", hold=0.4 if spirals else 0.1, lowest=0.99**300 if spirals else 0.985**90,
    )  # fmt: skip
    first = (
        PlanarNets(deviation=0.1, generator_deviation=0.01)
        if spirals
        else PlanarNets(deviation=0.01, generator_deviation=0.001)
    )
    return Planned(objective, training, _paces(model, Pace(rate=10.0, momentum=0.0)), first)


def _paces(model: str, generator: Pace) -> dict[str, Pace]:
    paces = {"generator": generator, "discriminator": Pace(momentum=0.0)}
    return {**paces, "inference": generator} if model == "EGAN-Ent-VI" else paces


def make_row(scale: str, process: str, model: str, seed: int, out: Path) -> dict[str, Any]:
    """The divergences of one game, from the folder if they are there."""
    return play(planned(scale, process, model), process, model, seed, place_of_game(out, process, model, seed))


def play(plan: Planned, process: str, model: str, seed: int, place: Path) -> dict[str, Any]:
    """The same for any plan, in its own folder."""

    def make() -> dict[str, Any]:
        truth = (plan.truth or PROCESSES[process])()
        data = truth.draw(plan.draws, rng=Seeded(0, "data", process))
        game = plan.nets.build(inference=plan.inference, rng=Seeded(seed, "networks"))
        training = replace(plan.training, seed=seed)
        record = Trainer(training)(
            plan.objective, game, data, modules=game.players, paces=plan.paces, folder=place, resume=True
        )
        grid = Grid.around(data, plan.cells)
        with torch.no_grad():
            made = Points(game.generator.draw(plan.draws, rng=Seeded(seed, "draws")))
        costs = energy(game, grid.centres, plan.objective.temperature)
        cells = {
            "data": grid.density((plan.judge or (lambda: truth))().log_density(grid.centres)), "emp": grid.counted(data),
            "gen": grid.counted(made), "disc": grid.density(-costs),
        }  # fmt: skip
        found = {f"{a}||{b}": divergence(cells[a], cells[b]) for a, b in permutations(("disc", "data", "gen", "emp"), 2)}
        shown = {"true energy": -cells["data"].log_prob, "energy": -cells["disc"].log_prob}
        draws = {"draws": made.values[:SHOWN_DRAWS], "data": data.values[:SHOWN_DRAWS]}
        box = torch.tensor([*grid.low, *grid.high], dtype=torch.float64)
        write_tensors(place / SHOWN, {**shown, **draws, "box": box})
        return {"process": process, "model": model, "seed": seed, "steps": record.steps, "divergences": found}

    row = kept(place / ROW, make)
    told = row.pop("divergences")
    return {**row, **{f"KL({name})": told[name] for name in told}}


def shown_of(out: Path, process: str, model: str, seed: int) -> dict[str, torch.Tensor]:
    """What a finished row keeps for its pictures."""
    return read_tensors(place_of_game(out, process, model, seed) / SHOWN)


def place_of_game(out: Path, process: str, model: str, seed: int) -> Path:
    """The folder of a row."""
    return place_of(out / process.lower().replace(" ", "-"), model, seed)
