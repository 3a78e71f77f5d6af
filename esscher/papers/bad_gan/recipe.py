"""Good semi-supervised learning that requires a bad GAN (Dai et al., 2017b): what a generator between the classes is worth. A
row is a model with one draw of the labels; test labels are read once, with the last weights. `small` takes a quarter of an hour
a row of MNIST, and an hour a row of 80,000 updates; the studies are in `studies.py`."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.storage import read_tensors, write_tensors
from esscher.papers.bad_gan.effects import ABOVE, BOUNDARY, ERROR, GENERATED, MAX_LOG_P, PAPER, THRESHOLD, effects, keep
from esscher.papers.bad_gan.networks import data_dependent_init_game
from esscher.papers.bad_gan.objective import (
    ComplementGan,
    ComplementGanConfig,
    LowDensity,
    Supervised,
    UniformComplement,
    log_densities,
)
from esscher.papers.bad_gan.regions import boundary_share, feature_view, planar_view, region_panels
from esscher.papers.bad_gan.studies import TWO_FEATURES, FewLabelStudy, PlanarSource, few_label_studies
from esscher.papers.games.evaluation import Grid, boundary_panels, error_rate
from esscher.papers.games.networks import Game, Generator, eval_in_batches, train_game
from esscher.papers.games.points import Points, SemiSupervisedSplits, to_pixels
from esscher.papers.study import ROW_FILE, Row, StudyContext, means_over_seeds
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import figure_from_file, save_figure, save_image_grid

PREDICTIONS_FILE = "predictions.safetensors"
INIT_POINTS, GENERATED_POINTS, SHOWN = 500, 1_000, 64
MEANING = "Test points that are misclassified by the last weights; test labels are read once, when a row is done."
REGIONS = "Draw 0. Labelled points are crosses; generated points black; the boundary of what is taken for real white."


def run(context: StudyContext) -> dict[str, Any]:
    """All models of the scale, with every draw of labels."""
    studies, missing = few_label_studies(context.scale)
    rows = [make_row(context, study.name, *name) for study in studies for name in context.names(study)]
    keep(context, studies)
    claims, over = effects(rows), means_over_seeds(rows, ("points", "model"))
    tables = [Table("Models", rows), Table("Over draws of labels", over), Table("Effects", claims, "Points saved, by draw.")]
    about = "A classifier by itself, and beside generators of what lies between the classes."
    sections = [Section("Results", MEANING, tables), *(_section(context, study) for study in studies)]
    return context.publish("Few labels", about, sections, {"rows": rows, "effects": claims, "paper": PAPER}, missing)


def make_row(context: StudyContext, study_name: str, model: str, draw: int) -> Row:
    """The test error of one model of a study with one draw of labels, and how dense its generated points are; after a new row,
    the file of all rows and the pictures of the study are written anew."""
    study = _find(context.scale, study_name, model)
    is_new = not (context.run_dir(study.name, model, draw) / ROW_FILE).exists()
    row: Row = context.row(study.name, model, draw, partial(train_and_predict, study, model, draw))
    if is_new:
        keep(context, few_label_studies(context.scale)[0])
        planar_pictures(context, study)
    return row


def make_density(context: StudyContext, study_name: str) -> float:
    """Train the density that all rows of the same images share, and return its threshold for the first draw of labels."""
    study = _find(context.scale, study_name, None)
    return study.point_source.density(study.point_source.sets(0), context.out, LowDensity().quantile)[1]


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
        sampler: Generator | UniformComplement = game.generator  # of untrained weights
    else:
        objective = _objective(study, config, sets, run_dir.parents[1])
        names = None if objective.complement is None else ("discriminator",)
        steps = train(objective, game, sets.unlabelled, study.training, names=names)
        sampler = objective.complement or game.generator
    made, predictions = sampler.draw(GENERATED_POINTS, rng=SeededRng(draw, "shown")).detach(), _predict(game, sets.test)
    view = planar_view(game, sets, made) if sets.test.values.ndim == 2 else {"made": made}
    write_tensors(run_dir / PREDICTIONS_FILE, {**predictions, **view})
    row = {"points": study.name, "model": model, "draw": draw, "steps": steps, ERROR: error_rate(predictions["wrong"])}
    if config is None:
        return row
    boundary = {BOUNDARY: boundary_share(view)} if "log odds" in view else {}
    return {**row, **boundary, **_density_of(study, sets, made, run_dir.parents[1])}


def _objective(study: FewLabelStudy, config: ComplementGanConfig, sets: SemiSupervisedSplits, out: Path) -> ComplementGan:
    """The game of a model, with the density that LD or the ideal complement needs."""
    source, complement = study.point_source, None
    density = source.density(sets, out, config.low_density.quantile) if config.low_density else None
    if config.complement_quantile is not None:
        box = Grid.around(sets.unlabelled)
        complement = UniformComplement(box.low, box.high, source.density(sets, out, config.complement_quantile))
    return ComplementGan(sets.labelled, config, density, complement)


def _density_of(study: FewLabelStudy, sets: SemiSupervisedSplits, made: Tensor, out: Path) -> Row:
    """The largest log-density of so many generated points, which grows with their number, the published threshold, and the
    percentage of generated points above it."""
    log_density, threshold = study.point_source.density(sets, out, LowDensity().quantile)
    log_p = log_densities(log_density, made)
    above = error_rate((log_p > threshold).long())
    return {GENERATED: len(made), MAX_LOG_P: float(log_p.max()), THRESHOLD: threshold, ABOVE: above}


def _predict(game: Game, points: Points) -> dict[str, Tensor]:
    """The predicted class of each point, and 1 where it is wrong, else 0."""
    assert points.labels is not None
    predicted = eval_in_batches(game.discriminator, points.values, 1_000).argmax(-1)
    return {"predicted": predicted, "wrong": predicted.cpu().ne(points.labels).long()}


def planar_pictures(context: StudyContext, study: FewLabelStudy) -> list[Path]:
    """Write the regions of the games of a planar study that have been played with the first draw, or the space of two
    features; studies of single options have no picture of their own."""
    source = study.point_source
    if not isinstance(source, PlanarSource) or study.name not in (source.case, TWO_FEATURES):
        return []
    files = {model: context.run_dir(study.name, model) / PREDICTIONS_FILE for model in study.models if study.models[model]}
    views = {model: read_tensors(file) for model, file in files.items() if file.exists()}
    name = f"{source.case.replace(' ', '-')}-regions.png"
    if study.name == TWO_FEATURES:
        views = {
            words: view for model, shown in views.items() for words, view in ((model, shown), ("features", feature_view(shown)))
        }
        name = f"{source.case.replace(' ', '-')}-features.png"
    return [save_figure(region_panels(views), context.out / name)] if views else []


def _section(context: StudyContext, study: FewLabelStudy) -> Section:
    """Validation errors, and boundaries or generated images, of the first draw."""
    files = {model: context.run_dir(study.name, model) / PREDICTIONS_FILE for model in study.models}
    shown = {model: read_tensors(file) for model, file in files.items() if file.exists()}  # rows may be kept without
    parts = context.learning_curves(study.name, study.models, "validation error, %", "While learning, draw 0.")
    source = study.point_source
    if isinstance(source, PlanarSource):
        if shown:
            figure = boundary_panels(shown)
            save_figure(figure, context.out / f"{study.name.replace(' ', '-')}.png")
            parts.append(Picture(figure, "Classes; labelled points ringed, generated ones black. Draw 0."))
            parts += [Picture(figure_from_file(file), REGIONS) for file in planar_pictures(context, study)]
        return Section(study.name, "", parts)
    for model, tensors in shown.items():
        if study.models[model] is not None:
            file = context.run_dir(study.name, model) / "made.png"
            save_image_grid(file, to_pixels(tensors["made"][:SHOWN], source.pixel_min))
            parts.append(Picture(figure_from_file(file), f"{model}: generated images."))
    return Section(study.name, "", parts)
