"""Good semi-supervised learning that requires a bad GAN (Dai et al., 2017b): what a generator between the classes is worth. A
row is a model with one draw of the labels; test labels are read once, with the last weights. Validation points only make a
curve."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.storage import read_tensors, write_tensors
from esscher.papers.bad_gan.networks import data_dependent_init_game
from esscher.papers.bad_gan.objective import ComplementGan, Supervised
from esscher.papers.bad_gan.studies import FewLabelStudy, PlanarSource, few_label_studies
from esscher.papers.games.evaluation import Grid, boundary_panels, error_rate
from esscher.papers.games.networks import Game, eval_in_batches, train_game
from esscher.papers.games.points import Points, SemiSupervisedSplits, to_pixels
from esscher.papers.study import Row, Rows, StudyContext, mean_estimate, means_over_seeds
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import figure_from_file, save_figure, save_image_grid

PREDICTIONS_FILE = "predictions.safetensors"
INIT_POINTS, SHOWN, CELLS = 500, 64, 100
BASELINE = "FM"
PAPER = [
    {"points": points, "model": model, "error": error, "unit": unit}
    for points, unit, rows in (
        ("MNIST, 100 labels", "of 10,000", {"FM": 85.0, "FM + VI": 86.5, "FM + LD": 79.5, "FM + LD + Ent": 89.2}),
        ("SVHN, 1,000 labels", "%",
         {"FM": 6.83, "FM + VI": 5.29, "FM + PT": 4.63, "FM + PT + Ent": 4.25, "FM + PT + LD + Ent": 4.19}),
        ("CIFAR-10, 4,000 labels", "%", {"FM": 16.14, "FM + VI": 14.41, "FM + VI + Ent": 15.82}),
    )
    for model, error in rows.items()
]  # fmt: skip
MEANING = "Test points that are misclassified by the last weights; test labels are read once, when a row is done."


def run(context: StudyContext) -> dict[str, Any]:
    """All models of the scale, with every draw of labels."""
    studies, missing = few_label_studies(context.scale)
    rows = [make_row(context, study.name, *name) for study in studies for name in context.names(study)]
    over = over_draws(context, rows)
    over_table = Table("Over draws of labels", over, "Saved: against FM, point by point.")
    results = Section("Results", MEANING, [Table("Models", rows), over_table])
    about = "A classifier by itself, and beside generators of what lies between the classes."
    sections = [results, *(_section(context, study) for study in studies)]
    return context.publish("Few labels", about, sections, {"rows": rows, "over draws": over, "paper": PAPER}, missing)


def make_row(context: StudyContext, study_name: str, model: str, draw: int) -> Row:
    """The test error of one model of a study with one draw of labels."""
    study = _find(context.scale, study_name, model)
    row = context.row(study.name, model, draw, partial(train_and_predict, study, model, draw))
    predictions = read_tensors(context.run_dir(study.name, model, draw) / PREDICTIONS_FILE)
    return {**row, "error": error_rate(predictions["wrong"])}


def make_density(context: StudyContext, study_name: str) -> float:
    """Train the density that all rows of a study with LD share, and return its threshold for the first draw of labels."""
    study = _find(context.scale, study_name, None)
    return study.point_source.density(study.point_source.sets(0), context.out / study.name / "density")[1]


def _find(scale: str, study_name: str, model: str | None) -> FewLabelStudy:
    studies, missing = few_label_studies(scale)
    study = next((study for study in studies if study.name == study_name), None)
    if study is None or (model is not None and model not in study.models):
        names = "; ".join(f"{study.name}: {', '.join(study.models)}" for study in studies)
        raise ValueError(
            f"There is no row {study_name!r}, {model!r} at {scale}; known are {names}. {' '.join(missing)}".strip()
        )
    return study


def train_and_predict(study: FewLabelStudy, model: str, draw: int, run_dir: Path) -> Row:
    """Train one model with one draw of labels; predictions and generated points stay in the run folder."""
    sets, config = study.point_source.sets(draw), study.models[model]
    inference, labels = config is not None and config.variational > 0, sets.labelled.labels
    assert labels is not None
    game = study.nets.build(classes=1 + int(labels.max()), inference=inference, rng=SeededRng(draw, "networks"))
    init_points = getattr(sets, study.init_data).values[:INIT_POINTS]
    data_dependent_init_game(game, init_points, rng=SeededRng(draw, "settling"))

    def validation_error() -> Estimate:
        return error_rate(_predict(game, sets.validation)["wrong"])

    train = partial(
        train_game, optimizers=study.optimizers, seed=draw, folder=run_dir,
        validation=validation_error if len(sets.validation) else None,
    )  # fmt: skip
    if config is None:
        batch_size = min(study.training.batch_size, len(sets.labelled))
        training = replace(study.training, epochs=None, steps=study.supervised_steps, batch_size=batch_size)
        steps = train(Supervised(), game, sets.labelled, training, names=("discriminator",))
    else:
        density = study.point_source.density(sets, run_dir.parent / "density") if config.low_density else None
        steps = train(ComplementGan(sets.labelled, config, density), game, sets.unlabelled, study.training)
    write_tensors(run_dir / PREDICTIONS_FILE, {**_predict(game, sets.test), **_pictured(game, sets, draw)})
    return {"points": study.name, "model": model, "draw": draw, "steps": steps}


def _predict(game: Game, points: Points) -> dict[str, Tensor]:
    """The predicted class of each point, and 1 where it is wrong, else 0."""
    assert points.labels is not None
    predicted = eval_in_batches(game.discriminator, points.values, 1_000).argmax(-1)
    return {"predicted": predicted, "wrong": predicted.cpu().ne(points.labels).long()}


@torch.no_grad()
def _pictured(game: Game, sets: SemiSupervisedSplits, draw: int) -> dict[str, Tensor]:
    """Generated points; in the plane also labelled and unlabelled points, and the class of every cell with the box."""
    planar = sets.test.values.ndim == 2
    made = game.generator.draw(1_000 if planar else SHOWN, rng=SeededRng(draw, "shown"))
    if not planar:
        return {"made": made}
    grid, labels = Grid.around(sets.unlabelled, CELLS), sets.labelled.labels
    assert labels is not None
    classes = eval_in_batches(game.discriminator, grid.centres).argmax(-1)
    data = {"labelled": sets.labelled.values, "labels": labels, "data": sets.unlabelled.values}
    return {"made": made, "classes": classes, "box": grid.box, **data}


def over_draws(context: StudyContext, rows: Rows) -> list[Row]:
    """Mean errors over draws of labels, and what each model saves against feature matching, if there are several draws."""
    compared = [{**row, "saved": None if row["model"] == BASELINE else errors_saved(context, row)} for row in rows]
    return means_over_seeds(compared, ("points", "model"), ("error", "saved"))


def errors_saved(context: StudyContext, row: Mapping[str, Any]) -> Estimate:
    """Errors that a model saves against feature matching with the same labels, in percent of the test points."""
    run_dirs = (context.run_dir(row["points"], model, row["draw"]) for model in (row["model"], BASELINE))
    errors, baseline = (read_tensors(run_dir / PREDICTIONS_FILE)["wrong"].double() for run_dir in run_dirs)
    return mean_estimate(100 * (baseline - errors), method="points as pairs", unit="%")


def _section(context: StudyContext, study: FewLabelStudy) -> Section:
    """Validation errors, and boundaries or generated images, of the first draw."""
    shown = {model: read_tensors(context.run_dir(study.name, model) / PREDICTIONS_FILE) for model in study.models}
    parts = context.learning_curves(study.name, study.models, "validation error, %", "While learning, draw 0.")
    source = study.point_source
    if isinstance(source, PlanarSource):
        figure = boundary_panels(shown)
        save_figure(figure, context.out / f"{study.name.replace(' ', '-')}.png")
        parts.append(Picture(figure, "Classes; labelled points ringed, generated ones black. Draw 0."))
        return Section(study.name, "", parts)
    for model, tensors in shown.items():
        if study.models[model] is not None:
            file = context.run_dir(study.name, model) / "made.png"
            save_image_grid(file, to_pixels(tensors["made"], source.pixel_min))
            parts.append(Picture(figure_from_file(file), f"{model}: generated images."))
    return Section(study.name, "", parts)
