"""The gradient of the entropy at generated points, by nearest neighbours and by an inference net (Dai et al., 2017, B.8.3).

The generator's loss moves a point x along minus (gradient of the cost + temperature * g), where g stands for the gradient of
log p_gen at x. Of games in the plane p_gen is not known; g is compared with the gradient of the data's log-density, which it
is where the generator has learnt the data, and with the gradient of the cost, which it cancels at the optimum. Of an affine map
of normal noise p_gen is known, and so is the posterior that an inference net learns: x + s e, with normal e, has

    z | x + s e   normal with mean M (x + s e - b), M = A' (A A' + s^2)^-1, and independent parts if A = rotation * diag(a)

Letters: N points in the plane; Z numbers of noise; A the matrix of the map, b its offset, s the noise before the net.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.storage import read_tensors, write_file, write_tensors
from esscher.papers.energy_gan.recipe import game_folder, planar_game_settings, train_planar_game
from esscher.papers.energy_gan.tables import NN, VI, above_zero, differences, mean_over_seeds
from esscher.papers.games.calibration import Calibration, NeighbourEntropy, VariationalEntropy
from esscher.papers.games.evaluation import gradient_panels
from esscher.papers.games.networks import Discriminator, Game, GaussianNoise, Generator
from esscher.papers.games.points import PROCESSES, GaussianMixture2d
from esscher.papers.study import Row, Rows, StudyContext, cached_json, mean_estimate, means_over_seeds
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import save_figure

NEIGHBOURS, INFERENCE = "nearest neighbours", "inference net"
ESTIMATORS = {NN: (NEIGHBOURS,), VI: (INFERENCE, NEIGHBOURS)}  # in a game, its own estimator first
COSINE, LENGTH, LEFT = "cosine with the data's", "length over the cost's", "left of the cost's"
MEASURES = (COSINE, LENGTH, LEFT)
BATCH, BATCHES, SHOWN = 500, 20, 400
ROWS_FILE, PANELS_FILE = "gradients_rows.json", "gradients.safetensors"
KNOWN_FILE, TABLES_FILE = "known_gradients.json", "gradients.json"
AFFINE_SCALES, AFFINE_ANGLE, AFFINE_OFFSET = (1.0, 3.0), math.pi / 6, (2.0, -1.0)
NOISES = (0.5, 2.0)  # before the inference net of the affine generator
ABOUT = (
    "Means over generated points: the cosine of the estimated gradient with that of the data's log-density, its length over "
    "that of the cost's gradient, and the length of their sum, which is 0 at the optimum, over that of the cost's gradient."
)


def run(context: StudyContext) -> dict[str, Any]:
    """The affine generator, then both games on all processes with every seed; what there is, is written after every row."""
    for name in gradient_names(context):
        make_gradient_rows(context, *name)
        tables = summarise_gradients(context)
    pictures = [Picture(gradient_panels(_panels(context, process)), f"{process}. Seed 0.") for process in PROCESSES]
    sections = [
        Section("Known density", "An affine map of normal noise.", [Table("Gradients", tables["known"])]),
        Section("Games", ABOUT, [Table("Games", tables["games"]), Table("Effects", tables["effects"]), *pictures]),
    ]
    return context.publish("Entropy gradients", "Nearest neighbours and inference nets.", sections, {**tables, "paper": []})


def gradient_names(context: StudyContext) -> list[tuple[str, str, int]]:
    """The games in the order in which they are played: a process after the other, and there a seed."""
    return [(process, model, seed) for process in PROCESSES for seed in range(context.seeds) for model in ESTIMATORS]


def picture_name(process: str) -> str:
    """The file of a process's arrows."""
    return f"gradients-{process.replace(' ', '-')}.png"


def make_gradient_rows(context: StudyContext, process: str, model: str, seed: int) -> list[Row]:
    """The gradients of one game by each of its estimators; the game is that of the recipe `energy-gan`, and is resumed or
    played in the folder of its row. The points and arrows of the figure stay there too."""
    settings = planar_game_settings(context.scale, process, model)
    run_dir = game_folder(context, process, model, seed)

    def make() -> list[Row]:
        truth, data, game, steps = train_planar_game(settings, model, seed, run_dir)
        batches = [_batch_gradients(game, model, truth, seed, batch) for batch in range(BATCHES)]
        weight = settings.objective.temperature
        tensors = {name: batches[0][name][:SHOWN] for name in ("points", "cost", "data's")}
        shown = {**tensors, "entropy": weight * batches[0][ESTIMATORS[model][0]][:SHOWN], "data": data.values[:SHOWN]}
        write_tensors(run_dir / PANELS_FILE, shown)
        about = {"process": process, "model": model, "seed": seed, "steps": steps}
        return [{**about, "estimator": name} | _measures(batches, name, weight) for name in ESTIMATORS[model]]

    rows: list[Row] = cached_json(run_dir / ROWS_FILE, make)
    return rows


def _batch_gradients(game: Game, model: str, truth: GaussianMixture2d, seed: int, batch: int) -> dict[str, Tensor]:
    """Points of a batch as in an update, the gradients of cost and of the data's log-density, and of each estimator."""
    rng = SeededRng(seed, "gradients", batch)
    z = game.generator.draw_noise(BATCH, rng=rng)
    x = game.generator(z).detach()
    gradients = {"points": x, "cost": _gradient(game.discriminator, x), "data's": _gradient(truth.log_density, x)}
    with rng.stream("noise of the net").fork_torch_rng():
        for name in ESTIMATORS[model]:
            calibration: Calibration = NeighbourEntropy() if name == NEIGHBOURS else VariationalEntropy()
            gradients[name] = entropy_gradient(calibration, game, z, x)
    return gradients


def _gradient(function: Any, x: Float[Tensor, "N 2"]) -> Float[Tensor, "N 2"]:
    """The gradient of a function with one value a point."""
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(function(x).sum(), x)
    return gradient


def entropy_gradient(
    calibration: Calibration, game: Game, z: Float[Tensor, "N Z"], x: Float[Tensor, "N 2"]
) -> Float[Tensor, "N 2"]:
    """What a calibration by entropy takes for the gradient of log p_gen at each point x = g(z)."""
    return len(x) * _gradient(lambda points: calibration(game, z, points), x)


def _measures(batches: list[dict[str, Tensor]], estimator: str, weight: float) -> Row:
    """The measures of an estimator, whose gradients count `weight` times; a batch is a replicate."""
    measured = []
    for gradients in batches:
        cost, entropy = gradients["cost"], weight * gradients[estimator]
        cosine = torch.cosine_similarity(entropy, gradients["data's"], dim=-1).mean()
        lengths = [part.norm(dim=-1).mean() for part in (entropy, cost + entropy)]
        measured.append([cosine, *(length / cost.norm(dim=-1).mean() for length in lengths)])
    columns = torch.tensor(measured, dtype=torch.float64).T
    return {name: mean_estimate(values, method=f"batches of {BATCH}") for name, values in zip(MEASURES, columns, strict=True)}


def affine_game(noise: float) -> Game:
    """A generator x = A z + b of two numbers of normal noise, and the exact posterior of z given x + noise e."""
    cos, sin = math.cos(AFFINE_ANGLE), math.sin(AFFINE_ANGLE)
    rotation = torch.tensor([[cos, -sin], [sin, cos]])
    scale, offset = torch.tensor(AFFINE_SCALES), torch.tensor(AFFINE_OFFSET)
    generator, posterior = nn.Linear(2, 2), nn.Linear(2, 4)
    inverse = (scale / (scale.square() + noise**2))[:, None] * rotation.T  # M
    log_deviation = (noise / (scale.square() + noise**2).sqrt()).log()
    with torch.no_grad():
        generator.weight.copy_(rotation * scale)
        generator.bias.copy_(offset)
        posterior.weight.copy_(torch.cat([inverse, torch.zeros(2, 2)]))
        posterior.bias.copy_(torch.cat([-inverse @ offset, log_deviation]))
    nothing = Discriminator(nn.Identity(), nn.Identity())
    return Game(Generator(generator, 2), nothing, nn.Sequential(GaussianNoise(noise), posterior))


def affine_gradient(game: Game, z: Float[Tensor, "N 2"]) -> Float[Tensor, "N 2"]:
    """The gradient of log p_gen at x = A z + b, which is -A'^-1 z."""
    matrix = game.generator.network.weight
    assert isinstance(matrix, Tensor)
    return -z @ matrix.detach().inverse()


def known_rows(batches: int = BATCHES) -> list[Row]:
    """How well each estimator finds the gradient of the affine generator: cosine and length, means over points."""
    compared: list[tuple[str, Calibration, float, int]] = [
        (NEIGHBOURS, NeighbourEntropy(), 1.0, 1),
        (f"{NEIGHBOURS}, over each variance (code)", NeighbourEntropy(form="variance"), 1.0, 1),
    ]
    for noise in NOISES:
        name = f"{INFERENCE}, exact, noise {noise:g}"
        compared += [(name, VariationalEntropy(), noise, 1), (f"{name}, mean of 100", VariationalEntropy(), noise, 100)]
    return [{"estimator": name} | _known(calibration, noise, times, batches) for name, calibration, noise, times in compared]


def _known(calibration: Calibration, noise: float, times: int, batches: int) -> Row:
    """The measures of one estimator, averaged over so many draws of the noise before the inference net."""
    game, measured = affine_game(noise), []
    for batch in range(batches):
        rng = SeededRng(0, "affine", batch)
        z = game.generator.draw_noise(BATCH, rng=rng)
        truth, x = affine_gradient(game, z), game.generator(z).detach()
        with rng.stream("noise of the net").fork_torch_rng():
            mean = torch.stack([entropy_gradient(calibration, game, z, x) for _ in range(times)]).mean(0)
        cosine = torch.cosine_similarity(mean, truth, dim=-1).mean()
        measured.append([cosine, mean.norm(dim=-1).mean() / truth.norm(dim=-1).mean()])
    cosines, lengths = torch.tensor(measured, dtype=torch.float64).T
    method = f"batches of {BATCH}"
    return {"cosine": mean_estimate(cosines, method=method), "length": mean_estimate(lengths, method=method)}


CLAIMS = (
    ("neighbours point nearer to the data's gradient than the inference net, each in its game", COSINE, (NN, NEIGHBOURS), 1),
    ("the same at the points of EGAN-Ent-VI", COSINE, (VI, NEIGHBOURS), 1),
    ("the inference net's gradient is longer than the cost's", LENGTH, None, 1),
    ("neighbours leave less of the cost's gradient than the inference net, each in its game", LEFT, (NN, NEIGHBOURS), -1),
)  # fmt: skip


def gradient_effects(rows: Rows) -> list[Row]:
    """The effect of each claim of B.8.3 on each process over seeds, above 0 as claimed, and its verdict."""
    table = []
    for claim, measure, against, sign in CLAIMS:
        for process in dict.fromkeys(row["process"] for row in rows):
            net = {seed: sign * value for seed, value in _by_seed(rows, process, (VI, INFERENCE), measure).items()}
            if against is None:
                effect = mean_over_seeds({seed: value - 1 for seed, value in net.items()})
            else:
                others = {seed: sign * value for seed, value in _by_seed(rows, process, against, measure).items()}
                effect = mean_over_seeds(differences(others, net))
            table.append({"claim": claim, "process": process, "effect": effect, "verdict": above_zero(effect)})
    return table


def _by_seed(rows: Rows, process: str, of: tuple[str, str], measure: str) -> dict[int, float]:
    chosen = [row for row in rows if (row["process"], row["model"], row["estimator"]) == (process, *of)]
    return {row["seed"]: row[measure].value for row in chosen}


def _panels(context: StudyContext, process: str) -> Mapping[str, Mapping[str, Tensor]]:
    """The points and arrows of the first seed of the games that were played in this folder."""
    files = {model: game_folder(context, process, model, 0) / PANELS_FILE for model in ESTIMATORS}
    return {model: read_tensors(file) for model, file in files.items() if file.exists()}


def summarise_gradients(context: StudyContext) -> dict[str, list[Row]]:
    """The tables of the rows that have been made, also as `gradients.json`, and a picture of each process whose games of the
    first seed were played in this folder."""
    names = gradient_names(context)
    made = [name for name in names if (game_folder(context, *name) / ROWS_FILE).exists()]
    rows = [row for name in made for row in make_gradient_rows(context, *name)]
    pictured = []
    for process in PROCESSES:
        panels = _panels(context, process)
        if len(panels) == len(ESTIMATORS):
            save_figure(gradient_panels(panels), context.out / picture_name(process))
            pictured.append(process)
    means = means_over_seeds(rows, ("process", "model", "estimator"), MEASURES)
    several = {(row["process"], row["model"], row["estimator"]) for row in means}
    single = [{**row, "seeds": 1} for row in rows if (row["process"], row["model"], row["estimator"]) not in several]
    known = cached_json(context.out / KNOWN_FILE, known_rows)
    tables = {"rows": rows, "known": known, "games": means + single, "effects": gradient_effects(rows)}
    content = {"missing": len(names) - len(made), "pictured": pictured, **tables}
    write_file(context.out / TABLES_FILE, json.dumps(content, indent=1, default=Estimate.to_dict).encode())
    return tables
