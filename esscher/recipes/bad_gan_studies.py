"""What the recipe on few labels studies, by scale: which points, how many labels, which networks, and what generators minimise.

`small` is what one core does in about a quarter of an hour a row; `paper` has the networks, rates and weights of the released
code of Dai et al. (2017b), for a GPU. Weights of the terms at `small` are ours where the networks or the density differ.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from esscher.adversarial.classifier_networks import ConvNets, DenseNets
from esscher.adversarial.complement_gan import Matching
from esscher.adversarial.image_density import ImageDensity
from esscher.adversarial.networks import PlanarNets
from esscher.adversarial.planar_classes import CASES
from esscher.bases.network import NetworkBase
from esscher.data.image_points import FewLabels, few_labels
from esscher.data.images import read_images, split_images
from esscher.hub import load_base
from esscher.randomness import Seeded
from esscher.recipes.sources import DATA, MNIST, cifar, here_or, mnist, not_here
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig
from esscher.settings.images import ImageConfig
from esscher.settings.train import TrainRun
from esscher.settings.training import Pace, TrainingConfig
from esscher.training.processes import is_made
from esscher.verbs.train import train

QUANTILE, OF_DENSITY = 0.1, 2_000  # the published threshold; images that it is taken from
Density = tuple[Callable[[Tensor], Tensor], float]


@dataclass(frozen=True)
class Terms:
    """Weights of what a generator minimises beside feature matching, and of the classifier's conditional entropy."""

    pull_away: float = 0.0
    variational: float = 0.0
    low_density: float = 0.0
    conditional_entropy: float = 0.0


@runtime_checkable
class Supply(Protocol):
    """Where the points of a study come from."""

    def sets(self, draw: int) -> FewLabels:
        """The points with the labels of one draw."""
        ...

    def density(self, sets: FewLabels, folder: Path) -> Density:
        """A log-density of them and its threshold; learnt once, in the folder, where it is not known."""
        ...


@dataclass(frozen=True)
class Curved:
    """Points of the plane along curves, with few labels of each class."""

    case: str
    each: int
    count: int = 2_000

    def sets(self, draw: int) -> FewLabels:
        process, rng = CASES[self.case](), Seeded(draw, "points", self.case)
        some = [process.draw(self.count, rng=rng.stream(name)) for name in ("unlabelled", "validation", "test")]
        return FewLabels(process.draw_few(self.each, rng=rng.stream("labelled")), *some)

    def density(self, sets: FewLabels, folder: Path) -> Density:
        known = CASES[self.case]().process.log_density
        return known, float(torch.quantile(known(sets.unlabelled.values), QUANTILE))


@dataclass(frozen=True)
class Pictured:
    """Images of a source, and how a base learns their density.

    The threshold is a quantile of the density of unlabelled images, or, as released, of the test images.
    """

    source: str
    labels: int
    base: TrainRun
    held_out: int
    low: float = 0.0
    apart: bool = True
    threshold: Literal["unlabelled", "test"] = "unlabelled"

    def sets(self, draw: int) -> FewLabels:
        pictures, test = read_images(self.source)
        if test is None:
            pictures, _, test = split_images(pictures, held_out=0.1, test=True)
        rng = Seeded(draw, "labels")
        return few_labels(pictures, test, self.labels, held_out=self.held_out, low=self.low, apart=self.apart, rng=rng)

    def density(self, sets: FewLabels, folder: Path) -> Density:
        if not is_made(folder / "config.json"):
            train(replace(self.base, out=str(folder)), resume=True)
        base, _ = load_base(folder)
        assert isinstance(base, NetworkBase)
        found = ImageDensity(base, self.low)
        images = {"unlabelled": sets.unlabelled, "test": sets.test}[self.threshold].values[:OF_DENSITY]
        return found, found.quantile(images, QUANTILE)


@dataclass(frozen=True)
class FewLabelStudy:
    """Points, and models of their classes; a model without terms learns from the labels alone.

    `start`, `share` and `points` say when the density counts and for how many generated points.
    """

    name: str
    supply: Supply
    nets: PlanarNets | DenseNets | ConvNets
    classes: int
    models: Mapping[str, Terms | None]
    training: TrainingConfig
    by_labels: TrainingConfig
    paces: Mapping[str, Pace] = field(default_factory=dict)
    labelled: int = 50
    matching: Matching = "mean-square"
    unlabelled: float = 0.5
    fresh: bool = False
    settled_by: Literal["labelled", "unlabelled"] = "unlabelled"
    start: int = 0
    share: float = 1.0
    points: int | None = None


def few_label_studies(scale: str) -> tuple[list[FewLabelStudy], list[str]]:
    """The studies of a scale, and what is left out because its images are not here."""
    if scale == "smoke":
        return [_plane("four spins", smoke=True), _digits(smoke=True)], []
    if scale == "paper":
        return [_published_mnist(), _published_svhn(), _published_cifar()], []
    made = [*(_plane(case) for case in CASES), *_options(), _digits()]
    if not MNIST.exists():
        return made, [not_here(MNIST)]
    return [*made, _mnist()], []


def _models(pull_away: float, variational: float, low_density: float) -> dict[str, Terms | None]:
    return {
        "labels only": None,
        "FM": Terms(),
        "FM + VI": Terms(variational=variational),
        "FM + PT": Terms(pull_away=pull_away),
        "FM + LD": Terms(low_density=low_density),
    }


def _paces(rate: float = 1.0, memory: float = 0.999) -> dict[str, Pace]:
    """Adam's betas as released; the generator's and the inference net's rate over the classifier's."""
    slow = Pace(rate, 0.0, memory)
    return {"generator": slow, "discriminator": Pace(1.0, 0.5, memory), "inference": slow}


def _plane(case: str, *, smoke: bool = False) -> FewLabelStudy:
    steps = 20 if smoke else 4_000
    training = TrainingConfig(
        steps=steps, batch_size=100, learning_rate=2e-3, optimiser="adam", clip=None, schedule="linear", hold=2 / 3,
        evaluate_every=steps // 4, keep_best=False, log_every=steps // 20,
    )  # fmt: skip
    models = {"labels only": None, "FM": Terms(), "FM + LD": Terms(low_density=0.3)}
    classes, nets = CASES[case]().classes, PlanarNets(width=16 if smoke else 100)
    supply = Curved(case, each=4)
    return FewLabelStudy(
        case, supply, nets, classes, models, training, replace(training, steps=steps // 4), _paces(),
        labelled=8, matching="squared", unlabelled=1.0,
    )  # fmt: skip


def _options() -> list[FewLabelStudy]:
    """Differences between the paper and its code in the plane, one at a time; "four spins" itself is as in the paper."""
    plain = _plane("four spins")
    bare: dict[str, Terms | None] = {"FM": Terms()}
    changes: dict[str, FewLabelStudy] = {
        "half of what is said without labels (code)": replace(plain, unlabelled=0.5, models=bare),
        "mean square of features (code, MNIST)": replace(plain, matching="mean-square", models=bare),
        "mean absolute difference (code, SVHN)": replace(plain, matching="absolute", models=bare),
        "other points for the generator (code, MNIST)": replace(
            plain, fresh=True, training=replace(plain.training, batch_size=200), models=bare
        ),
        "density seldom, for 30 points (code)": replace(
            plain, share=0.1, points=30, models={**bare, "FM + LD": plain.models["FM + LD"]}
        ),
    }
    return [replace(study, name=f"four spins, {name}") for name, study in changes.items()]


def _digits(*, smoke: bool = False) -> FewLabelStudy:
    """8 x 8 pixels, two labels of each class."""
    steps = 6 if smoke else 2_000
    training = TrainingConfig(
        steps=steps, batch_size=100, learning_rate=2e-3, optimiser="adam", clip=None, schedule="linear", hold=2 / 3,
        evaluate_every=3 if smoke else 250, keep_best=False, log_every=3 if smoke else 100,
    )  # fmt: skip
    density = TrainRun(
        "", DataConfig("digits", held_out=0.1),
        base=BaseChoice("pixelcnn++", width=16, layers=1, dropout=0.2, scales=2, mixtures=5),
        training=TrainingConfig(steps=1_000, batch_size=32, learning_rate=2e-3, warmup=50, evaluate_every=250, average=0.5),
        images=ImageConfig(16),
    )  # fmt: skip
    nets = DenseNets((1, 8, 8), (256, 128, 64), (128, 128), 50, 0.2, 0.3, centred=True)
    if smoke:
        tiny = BaseChoice("pixelcnn++", width=4, layers=1, dropout=0.0, scales=2, mixtures=2)
        density = replace(density, base=tiny, training=replace(density.training, steps=2, evaluate_every=2, average=None))
        nets = DenseNets((1, 8, 8), (32, 16), (16, 16), 8)
    supply = Pictured("digits", 20, density, held_out=200)
    return FewLabelStudy(
        "digits, 20 labels", supply, nets, 10, _models(0.1, 1e-3, 1e-3), training, replace(training, steps=steps // 2),
        _paces(0.5), labelled=20, start=steps // 10, share=0.5, points=30,
    )  # fmt: skip


def _mnist() -> FewLabelStudy:
    """Half the published widths on MNIST, a sixtieth of the published updates, and a density of 14 x 14 pixels, 16 levels.

    The generator is normed after its activations, and Adam's betas are (0.5, 0.999) for both: with the published ones, which
    remember ten thousand updates, its pixels saturate at once and are not mended in so short a run. What is said without
    labels weighs four times as much as published, and the generator is faster than the classifier, not slower: both were
    found on held-out training images, where they make learning quicker.
    """
    training = TrainingConfig(
        steps=20_000, batch_size=100, learning_rate=4e-3, optimiser="adam", clip=None, schedule="linear", hold=2 / 3,
        evaluate_every=500, save_every=1_000, keep_best=False, log_every=100,
    )  # fmt: skip
    density = TrainRun(
        "", DataConfig(str(MNIST)), base=BaseChoice("pixelcnn++", width=16, layers=1, dropout=0.0, scales=2, mixtures=5),
        training=TrainingConfig(steps=2_000, batch_size=32, learning_rate=2e-3, warmup=100, evaluate_every=1_000, average=0.8),
        images=ImageConfig(16, shrink=2),
    )  # fmt: skip
    fast = Pace(1.5, momentum=0.5)
    paces = {"generator": fast, "discriminator": Pace(momentum=0.5), "inference": fast}
    nets = DenseNets(hidden=(500, 250, 250, 250), generator=(300, 300), centred=True)
    return FewLabelStudy(
        "MNIST, 100 labels", Pictured(str(MNIST), 100, density, held_out=5_000), nets, 10, _models(0.1, 1e-3, 4e-4), training,
        replace(training, steps=1_500, evaluate_every=500), paces, unlabelled=2.0, start=1_600, share=0.1, points=30,
    )  # fmt: skip


def _published_mnist() -> FewLabelStudy:
    """A batch of 200 is 100 images for the classifier and 100 others for the generator."""
    source = mnist()
    training = TrainingConfig(
        steps=1_200_000, batch_size=200, learning_rate=3e-3, optimiser="adam", clip=None, schedule="linear", hold=2 / 3,
        evaluate_every=6_000, keep_best=False, log_every=1_000,
    )  # fmt: skip
    models = {**_models(0.8, 1e-2, 1e-4), "FM + LD + Ent": Terms(low_density=1e-4, conditional_entropy=0.1)}
    return FewLabelStudy(
        "MNIST, 100 labels", Pictured(source, 100, _published_density(source), held_out=0), DenseNets(), 10, models, training,
        replace(training, steps=20_000), _paces(1 / 3, 0.9999), labelled=100, fresh=True, start=9_000, share=0.1, points=30,
    )  # fmt: skip


def _published_svhn() -> FewLabelStudy:
    source = here_or(DATA / "svhn", "ufldl-stanford/svhn:cropped_digits")
    training = TrainingConfig(
        epochs=900, batch_size=64, learning_rate=1e-3, optimiser="adam", clip=None, schedule="linear", hold=2 / 3, lowest=0.1,
        keep_best=False, log_every=500,
    )  # fmt: skip
    models = {**_models(0.8, 1e-2, 1e-4), "FM + PT + Ent": Terms(pull_away=0.8, conditional_entropy=0.1)}
    supply = Pictured(source, 1_000, _published_density(source), held_out=0, low=-1.0, apart=False)
    return FewLabelStudy(
        "SVHN, 1,000 labels", supply, ConvNets(width=64), 10, models, training, replace(training, epochs=None, steps=20_000),
        _paces(), labelled=64, matching="absolute", settled_by="labelled", start=9_000, share=0.1, points=30,
    )  # fmt: skip


def _published_cifar() -> FewLabelStudy:
    source = cifar()
    training = TrainingConfig(
        epochs=1_200, batch_size=100, learning_rate=6e-4, optimiser="adam", clip=None, schedule="linear", hold=2 / 3,
        keep_best=False, log_every=500,
    )  # fmt: skip
    supply = Pictured(source, 4_000, _published_density(source), held_out=0, low=-1.0, apart=False)
    nets = ConvNets(width=96, input_dropout=0.2, whole_maps=False)
    return FewLabelStudy(
        "CIFAR-10, 4,000 labels", supply, nets, 10, _models(0.8, 1e-2, 1e-4), training,
        replace(training, epochs=None, steps=50_000), _paces(0.5), labelled=100, matching="absolute", settled_by="labelled",
        start=9_000, share=0.1, points=30,
    )  # fmt: skip


def _published_density(source: str) -> TrainRun:
    training = TrainingConfig(epochs=200, batch_size=16, optimiser="adam", learning_rate=1e-3, clip=None, average=0.9)
    return TrainRun("", DataConfig(source), base=BaseChoice("pixelcnn++"), training=training, images=ImageConfig(256))
