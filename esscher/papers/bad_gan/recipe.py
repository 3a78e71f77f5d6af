"""Good semi-supervised learning that requires a bad GAN (Dai et al., 2017b): what a generator between the classes is worth. A
row is a model with one draw of the labels; test labels are read once, with the last weights. `small` takes a quarter of an hour
a row, with loss weights of ours where networks or density differ; `paper` has the settings of the released code."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from esscher.bases.network import NetworkBase
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.storage import read_tensors, write_tensors
from esscher.data.config import DataConfig, ImageConfig
from esscher.hub import load_base
from esscher.networks.pixelcnn_config import PixelCnnPlusPlusConfig
from esscher.networks.registry import NetworkConfig
from esscher.papers.bad_gan.networks import ConvNets, DenseNets, data_dependent_init_game
from esscher.papers.bad_gan.objective import ComplementGan, ComplementGanConfig, Density, ImageDensity, LowDensity, Supervised
from esscher.papers.games.evaluation import Grid, boundary_panels, error_rate
from esscher.papers.games.networks import ADAM, Game, PlanarNets, eval_in_batches, players, train_game
from esscher.papers.games.points import (
    LABELLED_PROCESSES,
    Points,
    SemiSupervisedSplits,
    read_or_split,
    semi_supervised_splits,
    to_pixels,
)
from esscher.papers.sources import CIFAR, MNIST, SVHN, local_or_hub, missing_message
from esscher.papers.study import Row, Rows, Study, StudyContext, mean_estimate, means_over_seeds
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import figure_from_file, save_figure, save_image_grid
from esscher.training.collectives import exists_on_main_process
from esscher.training.config import OptimizerConfig, TrainingConfig
from esscher.workflow.config.train import TrainRun
from esscher.workflow.train import train_base

QUANTILE, THRESHOLD_IMAGES = 0.1, 2_000  # the published threshold; the images that it is computed from


@dataclass(frozen=True)
class PlanarSource:
    """Points of the plane along curves, with few labels of each class."""

    case: str
    per_class: int
    count: int = 2_000

    def sets(self, draw: int) -> SemiSupervisedSplits:
        process, rng = LABELLED_PROCESSES[self.case](), SeededRng(draw, "points", self.case)
        others = [process.draw(self.count, rng=rng.stream(name)) for name in ("unlabelled", "validation", "test")]
        return SemiSupervisedSplits(process.draw_per_class(self.per_class, rng=rng.stream("labelled")), *others)

    def density(self, sets: SemiSupervisedSplits, folder: Path) -> Density:
        log_density = LABELLED_PROCESSES[self.case]().log_density
        return log_density, float(torch.quantile(log_density(sets.unlabelled.values), QUANTILE))


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """Images, and the training run of a base that learns their density. The threshold is a quantile of the density of
    unlabelled images, or, as released, of the test images."""

    base: TrainRun
    labels: int
    held_out: int
    pixel_min: float = 0.0
    disjoint: bool = True
    threshold: Literal["unlabelled", "test"] = "unlabelled"

    def sets(self, draw: int) -> SemiSupervisedSplits:
        images, test = read_or_split(self.base.data.source)
        return semi_supervised_splits(
            images, test, self.labels, held_out=self.held_out, pixel_min=self.pixel_min, disjoint=self.disjoint,
            rng=SeededRng(draw, "labels"),
        )  # fmt: skip

    def density(self, sets: SemiSupervisedSplits, folder: Path) -> Density:
        if not exists_on_main_process(folder / "config.json"):
            train_base(replace(self.base, out=str(folder), resume=True))
        base, _ = load_base(folder)
        assert isinstance(base, NetworkBase)
        density = ImageDensity(base, self.pixel_min)
        images = {"unlabelled": sets.unlabelled, "test": sets.test}[self.threshold].values[:THRESHOLD_IMAGES]
        return density, density.quantile(images, QUANTILE)


@dataclass(frozen=True, kw_only=True)
class FewLabelStudy(Study[ComplementGanConfig | None]):
    """Points and classifiers of them; a model without the settings of a game learns from the labels alone."""

    point_source: PlanarSource | ImageSource
    nets: PlanarNets | DenseNets | ConvNets
    training: TrainingConfig
    supervised_steps: int  # of a classifier that learns from the labels alone
    optimizers: Mapping[str, OptimizerConfig]
    init_data: Literal["labelled", "unlabelled"] = "unlabelled"


def few_label_studies(scale: str) -> tuple[list[FewLabelStudy], list[str]]:
    """The studies of a scale, and a message if MNIST was not found."""
    if scale == "smoke":
        return [_plane("four spins", smoke=True), _digits(smoke=True)], []
    if scale == "paper":
        return [_published_mnist(), _published_svhn(), _published_cifar()], []
    studies = [*(_plane(case) for case in LABELLED_PROCESSES), *_options(), _digits()]
    if not MNIST.exists():
        return studies, [missing_message(MNIST)]
    return [*studies, _mnist()], []


LINEAR = replace(ADAM, schedule="linear", stable_ratio=2 / 3, keep_best=False)
PLANE = ComplementGanConfig(labelled_batch_size=8)
RELEASED = ComplementGanConfig(labelled_batch_size=50, matching="mean-square", unlabelled_weight=0.5)
PAPER_LD = LowDensity(1e-4, start_step=9_000, probability=0.1, max_points=30)


def _models(
    plain: ComplementGanConfig, low_density: LowDensity = PAPER_LD, *, pull_away: float = 0.8, variational: float = 1e-2
) -> dict[str, ComplementGanConfig | None]:
    """Feature matching by itself and with each further term of the generator; the defaults are published."""
    return {
        "labels only": None,
        "FM": plain,
        "FM + VI": replace(plain, variational=variational),
        "FM + PT": replace(plain, pull_away=pull_away),
        "FM + LD": replace(plain, low_density=low_density),
    }


def _released_optimizers(lr_scale: float = 1.0, beta2: float = 0.999) -> dict[str, OptimizerConfig]:
    """Adam's betas as released; `lr_scale` is the generator's rate over the classifier's."""
    return players(OptimizerConfig(lr_scale, 0.0, beta2), OptimizerConfig(1.0, 0.5, beta2))


def _density_run(source: str, base: NetworkConfig, training: TrainingConfig, images: ImageConfig) -> TrainRun:
    data = DataConfig(source, held_out=0.1) if source == "digits" else DataConfig(source)
    return TrainRun("", data=data, base=base, training=training, images=images)


def _plane(case: str, *, smoke: bool = False) -> FewLabelStudy:
    steps = 20 if smoke else 4_000
    training = replace(
        LINEAR, steps=steps, batch_size=100, learning_rate=2e-3, evaluate_every=steps // 4, log_every=steps // 20
    )
    return FewLabelStudy(
        name=case, point_source=PlanarSource(case, per_class=4), nets=PlanarNets(width=16 if smoke else 100),
        models={"labels only": None, "FM": PLANE, "FM + LD": replace(PLANE, low_density=LowDensity(0.3))}, training=training,
        supervised_steps=steps // 4, optimizers=_released_optimizers(),
    )  # fmt: skip


def _options() -> list[FewLabelStudy]:
    """Differences between the paper and its code in the plane, one at a time; "four spins" itself is as in the paper."""
    study = _plane("four spins")
    seldom = replace(PLANE, low_density=LowDensity(0.3, probability=0.1, max_points=30))
    models: dict[str, dict[str, ComplementGanConfig | None]] = {
        "half the unlabelled loss (code)": {"FM": replace(PLANE, unlabelled_weight=0.5)},
        "mean square of features (code, MNIST)": {"FM": replace(PLANE, matching="mean-square")},
        "mean absolute difference (code, SVHN)": {"FM": replace(PLANE, matching="absolute")},
        "other points for the generator (code, MNIST)": {"FM": replace(PLANE, separate_generator_batch=True)},
        "density seldom, for 30 points (code)": {"FM": PLANE, "FM + LD": seldom},
        "density over all points (thesis, C.3)": {"FM + LD": replace(PLANE, low_density=LowDensity(0.3, mean_over="all"))},
        "entropy of the classes (code)": {"FM + Ent": replace(PLANE, conditional_entropy=0.1)},
        "entropy among all classes (thesis, C.5)": {"FM + Ent": replace(PLANE, conditional_entropy=0.1, entropy_over="all")},
    }
    doubled = {"other points for the generator (code, MNIST)": replace(study.training, batch_size=200)}
    return [
        replace(study, name=f"four spins, {name}", models=changed, training=doubled.get(name, study.training))
        for name, changed in models.items()
    ]


def _digits(*, smoke: bool = False) -> FewLabelStudy:
    """8 x 8 pixels, two labels of each class."""
    steps = 6 if smoke else 2_000
    training = replace(LINEAR, steps=steps, batch_size=100, learning_rate=2e-3, evaluate_every=250, log_every=100)
    base = PixelCnnPlusPlusConfig(width=16, layers=1, dropout=0.2, scales=2, mixtures=5)
    density_training = TrainingConfig(
        steps=1_000, batch_size=32, learning_rate=2e-3, warmup_steps=50, evaluate_every=250, swa_start=0.5
    )
    nets = DenseNets(
        image=(1, 8, 8), hidden=(256, 128, 64), generator=(128, 128), noise_size=50, input_noise=0.2, noise=0.3,
        norm_after_activation=True,
    )  # fmt: skip
    if smoke:
        training = replace(training, evaluate_every=3, log_every=3)
        base = PixelCnnPlusPlusConfig(width=4, layers=1, dropout=0.0, scales=2, mixtures=2)
        density_training = replace(density_training, steps=2, evaluate_every=2, swa_start=None)
        nets = DenseNets(image=(1, 8, 8), hidden=(32, 16), generator=(16, 16), noise_size=8)
    density = _density_run("digits", base, density_training, ImageConfig(16))
    low_density = LowDensity(1e-3, start_step=steps // 10, probability=0.5, max_points=30)
    return FewLabelStudy(
        name="digits, 20 labels", point_source=ImageSource(base=density, labels=20, held_out=200), nets=nets,
        models=_models(replace(RELEASED, labelled_batch_size=20), low_density, pull_away=0.1, variational=1e-3),
        training=training, supervised_steps=steps // 2, optimizers=_released_optimizers(0.5),
    )  # fmt: skip


def _mnist() -> FewLabelStudy:
    """Half the published widths on MNIST, a sixtieth of the published updates, and a density of 14 x 14 pixels, 16 levels.

    With the published norms and Adam's published betas, which average over ten thousand updates, pixels saturate at once in so
    short a run; so norms follow the activations and betas are (0.5, 0.999). The weight of the unlabelled loss (four times the
    published one) and the faster generator were chosen on held-out training images.
    """
    training = replace(
        LINEAR, steps=20_000, batch_size=100, learning_rate=4e-3, evaluate_every=500, save_every=1_000, log_every=100
    )
    density = _density_run(
        str(MNIST),
        PixelCnnPlusPlusConfig(width=16, layers=1, dropout=0.0, scales=2, mixtures=5),
        TrainingConfig(steps=2_000, batch_size=32, learning_rate=2e-3, warmup_steps=100, evaluate_every=1_000, swa_start=0.8),
        ImageConfig(16, shrink=2),
    )
    low_density = LowDensity(4e-4, start_step=1_600, probability=0.1, max_points=30)
    return FewLabelStudy(
        name="MNIST, 100 labels", point_source=ImageSource(base=density, labels=100, held_out=5_000),
        nets=DenseNets(hidden=(500, 250, 250, 250), generator=(300, 300), norm_after_activation=True), training=training,
        models=_models(replace(RELEASED, unlabelled_weight=2.0), low_density, pull_away=0.1, variational=1e-3),
        supervised_steps=1_500, optimizers=players(OptimizerConfig(1.5, momentum=0.5), OptimizerConfig(momentum=0.5)),
    )  # fmt: skip


def _published_source(source: str, labels: int, *, pixel_min: float = 0.0, disjoint: bool = True) -> ImageSource:
    training = replace(ADAM, epochs=200, batch_size=16, learning_rate=1e-3, swa_start=0.9)
    density = _density_run(source, PixelCnnPlusPlusConfig(upsampling="2x3"), training, ImageConfig(256))
    return ImageSource(base=density, labels=labels, held_out=0, pixel_min=pixel_min, disjoint=disjoint)


def _published_mnist() -> FewLabelStudy:
    """A batch of 200 is 100 images for the classifier and 100 others for the generator."""
    training = replace(LINEAR, steps=1_200_000, batch_size=200, learning_rate=3e-3, evaluate_every=6_000, log_every=1_000)
    plain = replace(RELEASED, labelled_batch_size=100, separate_generator_batch=True)
    entropy = replace(plain, low_density=PAPER_LD, conditional_entropy=0.1)
    return FewLabelStudy(
        name="MNIST, 100 labels", point_source=_published_source(local_or_hub(MNIST), 100), nets=DenseNets(),
        models={**_models(plain), "FM + LD + Ent": entropy}, training=training, supervised_steps=20_000,
        optimizers=_released_optimizers(1 / 3, 0.9999),
    )  # fmt: skip


def _published_svhn() -> FewLabelStudy:
    source = local_or_hub(SVHN)
    training = replace(LINEAR, epochs=900, batch_size=64, learning_rate=1e-3, min_lr_ratio=0.1, log_every=500)
    plain = replace(RELEASED, labelled_batch_size=64, matching="absolute")
    entropy = replace(plain, pull_away=0.8, conditional_entropy=0.1)
    return FewLabelStudy(
        name="SVHN, 1,000 labels", point_source=_published_source(source, 1_000, pixel_min=-1.0, disjoint=False),
        nets=ConvNets(width=64), models={**_models(plain), "FM + PT + Ent": entropy}, training=training,
        supervised_steps=20_000, optimizers=_released_optimizers(), init_data="labelled",
    )  # fmt: skip


def _published_cifar() -> FewLabelStudy:
    training = replace(LINEAR, epochs=1_200, batch_size=100, learning_rate=6e-4, log_every=500)
    source = _published_source(local_or_hub(CIFAR), 4_000, pixel_min=-1.0, disjoint=False)
    return FewLabelStudy(
        name="CIFAR-10, 4,000 labels", point_source=source,
        nets=ConvNets(width=96, input_dropout=0.2, spatial_dropout=False), training=training,
        models=_models(replace(RELEASED, labelled_batch_size=100, matching="absolute")),
        supervised_steps=50_000, optimizers=_released_optimizers(0.5), init_data="labelled",
    )  # fmt: skip


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
