"""E-Forcing (Anonymous, 2023) on images: PixelCNN, Gated PixelCNN and PixelCNN++, each by likelihood and by E-Forcing.

The weights of E-Forcing decay over positions and sum to about 3, as in the other recipes; without the likelihood of prefixes
(not at `small`) they are ten times as large. E-Forcing begins late, because it draws whole images at every update; likelihood
gets as many updates. Nats per image are reported as is usual for binarised MNIST.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from esscher.bases.network import NetworkBase, with_prompt_tokens
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.storage import read_tensors, write_tensors
from esscher.core.target import Tilted
from esscher.data.config import DataConfig, ImageConfig
from esscher.data.splits import evenly_spaced_rows, read_image_splits
from esscher.networks.pixelcnn_config import GatedPixelCnnConfig, PixelCnnConfig, PixelCnnPlusPlusConfig
from esscher.networks.registry import NetworkConfig
from esscher.objectives.config import EForcingConfig, ObjectiveConfig
from esscher.papers.eforcing.language import FORCED, ONCE, PLAIN
from esscher.papers.sources import CIFAR, MNIST, local_or_hub, missing_message
from esscher.papers.study import Row, Study, StudyContext, count_parameters, mean_estimate, means_over_seeds, run_with_seed
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import figure_from_file, save_image_grid
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.scoring import log_prob
from esscher.training.config import TrainingConfig
from esscher.workflow.config.train import TrainRun
from esscher.workflow.model import load
from esscher.workflow.train import train_base

SCORES, SAMPLES, COMPLETED = "scores.safetensors", "samples.png", "completed.png"
COMPLETED_IMAGES, COMPLETIONS_EACH = 8, 6
BITS = {"method": "images as a sample", "unit": "bits per dimension"}
PIXELCNN, GATED, PLUS = "PixelCNN", "Gated PixelCNN", "PixelCNN++"
PAPER = [
    {"images": images, "model": model, "test": test, "train": train, "unit": "bits per dimension"}
    for images, rows in {
        "MNIST": (("PixelCNN", 0.17, 0.13), ("PixelCNN, E-Forcing", 0.15, 0.12), ("Gated PixelCNN", 0.14, 0.11),
                  ("Gated PixelCNN, E-Forcing", 0.12, 0.10)),
        "CIFAR-10": (("PixelCNN", 3.14, 3.08), ("PixelCNN, E-Forcing", 3.07, 2.98), ("Gated PixelCNN", 3.03, 2.90),
                     ("Gated PixelCNN, E-Forcing", 2.97, 2.87)),
    }.items()
    for model, test, train in rows
] + [
    {"images": "MNIST, binarised", "model": "PixelCNN (van den Oord et al. 2016)", "test": 81.3, "unit": "nats per image"}
]  # fmt: skip
MEANING = (
    "Bits per dimension of test images and of as many training images, with an interval for other images; saved: against "
    "likelihood, the same network and seed, image by image."
)


@dataclass(frozen=True, kw_only=True)
class ImageStudy(Study[TrainRun]):
    """Images and models of them, named "network, objective"; seeds after the first leave out the second form of E-Forcing."""

    grid_images: int = 64  # samples in the grid of a model
    test_limit: int | None = None  # test images, the first ones; None is all

    def names_for_seed(self, seed: int) -> tuple[str, ...]:
        return tuple(model for model in self.models if not (seed and model.endswith(ONCE)))

    def baseline_of(self, model: str) -> str:
        """The model of the same network that is trained by likelihood."""
        return f"{model.partition(', ')[0]}, {PLAIN}"


def run(context: StudyContext) -> dict[str, Any]:
    """All models of the scale, with every seed."""
    studies, missing = image_studies(context.scale)
    rows: list[Row] = []
    for study in studies:
        of_study = context.rows(study, partial(train_and_measure, study))
        rows += [{**row, "saved": _saved(context, study, row)} for row in of_study]
    over = means_over_seeds(rows, ("images", "model"), ("test", "train", "nats", "saved"))
    results = Section("Results", MEANING, [Table("Models", rows), Table("Over seeds", over)])
    sections = [results, *(_section(context, study) for study in studies)]
    about = "One network and set of images, and several training objectives."
    return context.publish("E-Forcing on images", about, sections, {"rows": rows, "over seeds": over, "paper": PAPER}, missing)


def train_and_measure(study: ImageStudy, model: str, seed: int, run_dir: Path) -> Row:
    """Train a model, score test and training images, and draw its grids."""
    result = train_base(run_with_seed(study.models[model], run_dir, seed))
    test = result.splits.test.rows(slice(0, study.test_limit))
    images = {"test": test, "train": evenly_spaced_rows(result.splits.train, len(test))}
    scores = {part: log_prob(result.base, x) for part, x in images.items()}
    write_tensors(run_dir / SCORES, {part: score.double() for part, score in scores.items()})
    _draw_grids(study, run_dir, seed)
    nats_per_bit = result.base.space.max_length * math.log(2)
    return {
        "images": study.name, "model": model, "seed": seed, "parameters": count_parameters(result.base),
        "steps": result.record.steps,
        **{part: mean_estimate(-score.double() / nats_per_bit, **BITS) for part, score in scores.items()},
        "nats": mean_estimate(-scores["test"], method=BITS["method"], unit="nats per image"),
    }  # fmt: skip


def _saved(context: StudyContext, study: ImageStudy, row: Mapping[str, Any]) -> Estimate | None:
    """Bits per dimension that a model saves against likelihood with the same seed, image by image."""
    baseline = study.baseline_of(row["model"])
    if baseline == row["model"]:
        return None
    run_dirs = [context.run_dir(study.name, model, row["seed"]) for model in (row["model"], baseline)]
    scores, baseline_scores = (read_tensors(run_dir / SCORES)["test"] for run_dir in run_dirs)
    size = row["nats"].value / row["test"].value / math.log(2)
    return mean_estimate((scores - baseline_scores) / (size * math.log(2)), **BITS)


def _draw_grids(study: ImageStudy, run_dir: Path, seed: int) -> None:
    """Save a grid of samples and one of completed halves."""
    model, rng, run = load(run_dir), SeededRng(seed).stream("grids"), next(iter(study.models.values()))
    assert isinstance(model.base, NetworkBase)
    images = model.images
    samples = Ancestral()(model.target, images.class_prompts().x, study.grid_images, rng=rng.stream("samples"))
    save_image_grid(run_dir / SAMPLES, images.codec.decode(samples.x))
    test = read_image_splits(run.data, run.images)[2].rows(slice(0, COMPLETED_IMAGES))
    halves = images.completion_prompts(images.encode(test))
    assert halves.prompt_tokens is not None
    rest = Tilted(with_prompt_tokens(model.base, halves.prompt_tokens))
    completed = Ancestral()(rest, halves.x, COMPLETIONS_EACH, rng=rng.stream("completed"))
    grid = images.grid(completed.x, halves)
    save_image_grid(run_dir / COMPLETED, grid.reshape(-1, *images.codec.image), grid.shape[1])


def _section(context: StudyContext, study: ImageStudy) -> Section:
    """Validation losses, samples and completed halves of the first seed."""
    captions = {SAMPLES: "draws.", COMPLETED: "an image, its upper half, and what was drawn after that."}
    grids = [
        Picture(figure_from_file(context.run_dir(study.name, model) / file), f"{model}: {caption}")
        for model in study.models
        for file, caption in captions.items()
    ]
    losses = context.learning_curves(study.name, study.models, "validation, nats per dimension")
    return Section(study.name, "", [*losses, *grids])


def image_studies(scale: str) -> tuple[list[ImageStudy], list[str]]:
    """The studies of a scale, and a message if MNIST was not found."""
    if scale == "smoke":
        return [_smoke()], []
    if scale == "paper":
        return _published(), []
    if not MNIST.exists():
        return [_digits()], [missing_message(MNIST)]
    return [_digits(), _mnist_levels(), _mnist_binarised()], []


def forcing(decay: float, *, after: int) -> EForcingConfig:
    """E-Forcing whose weights sum to 3 over infinitely many positions."""
    return EForcingConfig(after_steps=after, weight=round(3.0 * (1 - decay), 6), decay=decay)


def with_objectives(
    run: TrainRun, bases: Mapping[str, NetworkConfig], forced: EForcingConfig, *, once: bool = False
) -> dict[str, TrainRun]:
    """Every network by likelihood and by E-Forcing; with `once` also by E-Forcing with tokens counted once."""
    objectives: dict[str, ObjectiveConfig] = {PLAIN: run.objective, FORCED: forced}
    if once:
        objectives[ONCE] = replace(forced, weight=round(10.0 * forced.weight, 6), counts="once")
    return {
        f"{name}, {objective}": replace(run, base=base, objective=config)
        for name, base in bases.items()
        for objective, config in objectives.items()
    }


DIGITS = TrainRun(
    "",
    data=DataConfig("digits", held_out=0.1),
    training=TrainingConfig(
        steps=2_400, batch_size=32, learning_rate=2e-3, warmup_steps=50, evaluate_every=200, swa_start=0.5, log_every=100
    ),
)


def _digits() -> ImageStudy:
    """8 x 8 pixels of 16 levels, about 1,440 training images."""
    bases: dict[str, NetworkConfig] = {
        PIXELCNN: PixelCnnConfig(width=32, layers=4, dropout=0.2, first_kernel_size=5),
        GATED: GatedPixelCnnConfig(width=24, layers=4, dropout=0.2, first_kernel_size=5),
        PLUS: PixelCnnPlusPlusConfig(width=24, layers=1, dropout=0.2, scales=2, mixtures=5),
    }
    return ImageStudy(name="digits, 16 levels", models=with_objectives(DIGITS, bases, forcing(0.97, after=1_600)))


def _mnist(images: ImageConfig, *, steps: int, evaluate_every: int, batch_size: int = 32, log_every: int = 100) -> TrainRun:
    training = TrainingConfig(
        steps=steps, batch_size=batch_size, learning_rate=2e-3, warmup_steps=100, evaluate_every=evaluate_every, swa_start=0.8,
        log_every=log_every,
    )  # fmt: skip
    return TrainRun("", data=DataConfig(str(MNIST)), training=training, images=images)


def _mnist_levels() -> ImageStudy:
    """14 x 14 pixels of 4 levels, about one epoch."""
    images = ImageConfig(4, shrink=2)
    bases: dict[str, NetworkConfig] = {
        PIXELCNN: PixelCnnConfig(width=32, layers=5),
        GATED: GatedPixelCnnConfig(width=16, layers=5, first_kernel_size=5),
    }
    plus = {PLUS: PixelCnnPlusPlusConfig(width=16, layers=1, dropout=0.0, scales=2, mixtures=5)}
    models = {
        **with_objectives(_mnist(images, steps=2_000, evaluate_every=500), bases, forcing(0.99, after=1_750)),
        **with_objectives(_mnist(images, steps=1_200, evaluate_every=300), plus, forcing(0.99, after=1_050)),
    }
    return ImageStudy(name="MNIST, 14 x 14, 4 levels", models=models)


def _mnist_binarised() -> ImageStudy:
    """28 x 28 pixels, black or white, drawn once by their brightness."""
    run = _mnist(ImageConfig(binarize="random"), steps=2_600, evaluate_every=650, batch_size=16, log_every=50)
    bases: dict[str, NetworkConfig] = {
        PIXELCNN: PixelCnnConfig(width=32, layers=5),
        GATED: GatedPixelCnnConfig(width=16, layers=5),
    }
    return ImageStudy(name="MNIST, binarised", models=with_objectives(run, bases, forcing(0.9975, after=2_450)))


def _smoke() -> ImageStudy:
    training = TrainingConfig(steps=10, batch_size=16, learning_rate=1e-2, evaluate_every=5, log_every=5)
    run = replace(DIGITS, training=training, images=ImageConfig(binarize="threshold", most=400))
    bases: dict[str, NetworkConfig] = {
        PIXELCNN: PixelCnnConfig(width=8, layers=1, first_kernel_size=3),
        GATED: GatedPixelCnnConfig(width=8, layers=1, first_kernel_size=3),
        PLUS: PixelCnnPlusPlusConfig(width=4, layers=1, dropout=0.0, scales=2, mixtures=2),
    }
    models = with_objectives(run, bases, forcing(0.97, after=5), once=True)
    return ImageStudy(name="digits, binarised", models=models, grid_images=9, test_limit=40)


def _published() -> list[ImageStudy]:
    """MNIST and CIFAR-10 with 256 levels. Batches of 4,096 values, Adam and a patience of 20 evaluations are those of the paper
    on E-Forcing; networks are those of their own papers, whose sizes on MNIST were not published."""
    adam = TrainingConfig(epochs=200, optimizer="adam", learning_rate=1e-3, max_grad_norm=None)
    training, plus = replace(adam, batch_tokens=4_096, patience=20), replace(adam, batch_size=16, swa_start=0.9)
    small = {PIXELCNN: PixelCnnConfig(width=128, layers=7), GATED: GatedPixelCnnConfig(width=64, layers=7)}
    large = {
        PIXELCNN: PixelCnnConfig(width=86, layers=15),  # about 256 features in all
        GATED: GatedPixelCnnConfig(width=128, layers=15, kernel_size=5),
    }
    studies = []
    for name, folder, bases, size in (("MNIST", MNIST, small, 784), ("CIFAR-10", CIFAR, large, 3_072)):
        forced = replace(forcing(round(1 - 2 / size, 5), after=0), after_steps=None, after_epochs=15)
        run = TrainRun("", data=DataConfig(local_or_hub(folder)), training=training, images=ImageConfig(256))
        models = with_objectives(run, bases, forced, once=True)
        if name == "CIFAR-10":
            published = {PLUS: PixelCnnPlusPlusConfig(upsampling="2x3")}
            models |= with_objectives(replace(run, training=plus), published, forced, once=True)
        studies.append(ImageStudy(name=name, models=models))
    return studies
