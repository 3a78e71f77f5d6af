"""The studies of the recipe on few labels: points with few labels, networks, the models and their weights, at each scale. Loss
weights are ours where networks or density differ from the published ones; at `paper` they are those of the released code."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from esscher.bases.network import NetworkBase
from esscher.core.randomness import SeededRng
from esscher.data.config import DataConfig, ImageConfig
from esscher.hub import load_base
from esscher.networks.pixelcnn_config import PixelCnnPlusPlusConfig
from esscher.networks.registry import NetworkConfig
from esscher.papers.bad_gan.networks import ConvNets, DenseNets
from esscher.papers.bad_gan.objective import ComplementGanConfig, Density, ImageDensity, LowDensity
from esscher.papers.games.networks import ADAM, PlanarNets, players
from esscher.papers.games.points import LABELLED_PROCESSES, SemiSupervisedSplits, read_or_split, semi_supervised_splits
from esscher.papers.sources import CIFAR, MNIST, SVHN, local_or_hub, missing_message
from esscher.papers.study import Study
from esscher.training.collectives import exists_on_main_process
from esscher.training.config import OptimizerConfig, TrainingConfig
from esscher.workflow.config.train import TrainRun
from esscher.workflow.train import train_base

MNIST_100, TWO_FEATURES = "MNIST, 100 labels", "two circles, two features"
THRESHOLD_IMAGES = 2_000  # the images that the threshold of LD is computed from


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

    def density(self, sets: SemiSupervisedSplits, out: Path, quantile: float) -> Density:
        """The known log-density, and its quantile over the unlabelled points."""
        log_density = LABELLED_PROCESSES[self.case]().log_density
        return log_density, float(torch.quantile(log_density(sets.unlabelled.values), quantile))


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """Images, and the training run of a base that learns their density, in a folder that all studies of these images share. The
    threshold is a quantile of the density of unlabelled images, or, as released, of the test images."""

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

    def density(self, sets: SemiSupervisedSplits, out: Path, quantile: float) -> Density:
        """The log-density of a base that is trained on first use, and its quantile over the images of the threshold."""
        folder = out / f"density-{Path(self.base.data.source).name}"
        if not exists_on_main_process(folder / "config.json"):
            train_base(replace(self.base, out=str(folder), resume=True))
        base, _ = load_base(folder)
        assert isinstance(base, NetworkBase)
        density = ImageDensity(base, self.pixel_min)
        images = {"unlabelled": sets.unlabelled, "test": sets.test}[self.threshold].values[:THRESHOLD_IMAGES]
        return density, density.quantile(images, quantile)


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
        digits = _digits(smoke=True)
        return [_plane("four spins", smoke=True), _two_features(smoke=True), digits, _longer(digits, 12, 6)], []
    if scale == "paper":
        return [_published_mnist(), _published_svhn(), _published_cifar()], []
    studies = [*(_plane(case) for case in LABELLED_PROCESSES), _two_features(), *_options(), _digits()]
    if not MNIST.exists():
        return studies, [missing_message(MNIST)]
    return [*studies, _mnist(), _longer(_mnist(), 80_000, 2_000)], []


FM, LABELS_ONLY, IDEAL = "FM", "labels only", "ideal complement"
LINEAR = replace(ADAM, schedule="linear", stable_ratio=2 / 3, keep_best=False)
PLANE = ComplementGanConfig(labelled_batch_size=8)
RELEASED = ComplementGanConfig(labelled_batch_size=50, matching="mean-square", unlabelled_weight=0.5)
PAPER_LD = LowDensity(1e-4, start_step=9_000, probability=0.1, max_points=30)


def _models(
    plain: ComplementGanConfig, low_density: LowDensity = PAPER_LD, *, pull_away: float = 0.8, variational: float = 1e-2
) -> dict[str, ComplementGanConfig | None]:
    """Feature matching by itself and with each further term of the generator; the defaults are published."""
    return {
        LABELS_ONLY: None,
        FM: plain,
        "FM + VI": replace(plain, variational=variational),
        "FM + PT": replace(plain, pull_away=pull_away),
        "FM + LD": replace(plain, low_density=low_density),
    }


def _ablations(plain: ComplementGanConfig, low_density: LowDensity = PAPER_LD) -> dict[str, ComplementGanConfig]:
    """The other rows of Table C.2 on MNIST: LD with the entropy of classes, and with thresholds at other quantiles."""
    low = replace(plain, low_density=low_density)
    thresholds = {
        f"FM + LD, {100 * quantile:.0f} % quantile": replace(low, low_density=replace(low_density, quantile=quantile))
        for quantile in (0.02, 0.2, 1.0)
    }
    return {"FM + LD + Ent": replace(low, conditional_entropy=0.1), **thresholds}


def _longer(study: FewLabelStudy, steps: int, evaluate_every: int) -> FewLabelStudy:
    """FM and FM + PT of a study with more updates and all else as it is; the schedule keeps its shape."""
    training = replace(study.training, steps=steps, evaluate_every=evaluate_every, save_every=evaluate_every)
    models = {name: study.models[name] for name in (FM, "FM + PT")}
    return replace(study, name=f"{study.name}, {steps:,} updates", models=models, training=training)


def _released_optimizers(lr_scale: float = 1.0, beta2: float = 0.999) -> dict[str, OptimizerConfig]:
    """Adam's betas as released; `lr_scale` is the generator's rate over the classifier's."""
    return players(OptimizerConfig(lr_scale, 0.0, beta2), OptimizerConfig(1.0, 0.5, beta2))


def _density_run(source: str, base: NetworkConfig, training: TrainingConfig, images: ImageConfig) -> TrainRun:
    data = DataConfig(source, held_out=0.1) if source == "digits" else DataConfig(source)
    return TrainRun("", data=data, base=base, training=training, images=images)


def _plane(case: str, *, smoke: bool = False) -> FewLabelStudy:
    """Four labels of each class; the ideal complement leaves out where 99 % of the data are."""
    steps = 20 if smoke else 4_000
    training = replace(
        LINEAR, steps=steps, batch_size=100, learning_rate=2e-3, evaluate_every=steps // 4, log_every=steps // 20
    )
    return FewLabelStudy(
        name=case, point_source=PlanarSource(case, per_class=4), nets=PlanarNets(width=16 if smoke else 100),
        models={
            LABELS_ONLY: None, FM: PLANE, "FM + LD": replace(PLANE, low_density=LowDensity(0.3)),
            IDEAL: replace(PLANE, complement_quantile=0.01),
        },
        training=training, supervised_steps=steps // 4, optimizers=_released_optimizers(),
    )  # fmt: skip


def _two_features(*, smoke: bool = False) -> FewLabelStudy:
    """FM on two circles with two features, which can be drawn (Figure C.3)."""
    study = _plane("two circles", smoke=smoke)
    assert isinstance(study.nets, PlanarNets)
    return replace(study, name=TWO_FEATURES, models={FM: PLANE}, nets=replace(study.nets, features=2))


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
    """8 x 8 pixels, two labels of each class; at `smoke` also with the models that only MNIST has otherwise."""
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
    plain = replace(RELEASED, labelled_batch_size=20)
    models = _models(plain, low_density, pull_away=0.1, variational=1e-3)
    return FewLabelStudy(
        name="digits, 20 labels", point_source=ImageSource(base=density, labels=20, held_out=200), nets=nets,
        models={**models, **_ablations(plain, low_density)} if smoke else models,
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
    plain = replace(RELEASED, unlabelled_weight=2.0)
    return FewLabelStudy(
        name=MNIST_100, point_source=ImageSource(base=density, labels=100, held_out=5_000),
        nets=DenseNets(hidden=(500, 250, 250, 250), generator=(300, 300), norm_after_activation=True), training=training,
        models={**_models(plain, low_density, pull_away=0.1, variational=1e-3), **_ablations(plain, low_density)},
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
    return FewLabelStudy(
        name=MNIST_100, point_source=_published_source(local_or_hub(MNIST), 100), nets=DenseNets(),
        models={**_models(plain), **_ablations(plain)}, training=training, supervised_steps=20_000,
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
