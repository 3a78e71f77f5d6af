"""E-Forcing (Anonymous, 2023) on images: PixelCNN, Gated PixelCNN and PixelCNN++, each by likelihood and by E-Forcing.

Measured are bits per dimension of test images and of training images, and nats per image, as is usual for binarised MNIST;
drawn are samples and completed halves. The log-probability of every image is kept in the run folder, so that models are
compared image by image.
"""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from esscher.bases.network import NetworkBase, with_prompt_tokens
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.storage import read_tensors, write_tensors
from esscher.core.target import Tilted
from esscher.data.splits import read_image_splits
from esscher.papers.eforcing.image_studies import ImageStudy, image_studies
from esscher.papers.study import StudyContext, count_parameters, mean_estimate, means_over_seeds, run_with_seed
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import figure_from_file, save_image_grid
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.scoring import log_prob
from esscher.workflow.model import load
from esscher.workflow.subsets import evenly_spaced_rows
from esscher.workflow.train import train_base

SCORES, SAMPLES, COMPLETED = "scores.safetensors", "samples.png", "completed.png"
COMPLETED_IMAGES, COMPLETIONS_EACH = 8, 6
PAPER = [
    {"images": images, "model": model, "test": test, "train": train, "unit": "bits per dimension"}
    for images, rows in {
        "MNIST": (("PixelCNN", 0.17, 0.13), ("PixelCNN, E-Forcing", 0.15, 0.12), ("Gated PixelCNN", 0.14, 0.11),
                  ("Gated PixelCNN, E-Forcing", 0.12, 0.10)),
        "CIFAR-10": (("PixelCNN", 3.14, 3.08), ("PixelCNN, E-Forcing", 3.07, 2.98), ("Gated PixelCNN", 3.03, 2.90),
                     ("Gated PixelCNN, E-Forcing", 2.97, 2.87)),
    }.items()
    for model, test, train in rows
]  # fmt: skip
PAPER.append(
    {"images": "MNIST, binarised", "model": "PixelCNN (van den Oord et al. 2016)", "test": 81.3, "unit": "nats per image"}
)
MEANING = (
    "Bits per dimension of test images and of as many training images, with an interval for other images; saved: against "
    "likelihood, the same network and seed, image by image."
)


def run(context: StudyContext) -> dict[str, Any]:
    """All models of the scale, with every seed."""
    studies, missing = image_studies(context.scale)
    rows: list[dict[str, Any]] = []
    for study in studies:
        of_study = context.rows(study, partial(train_and_measure, study))
        rows += [{**row, "saved": _saved(context, study, row)} for row in of_study]
    over = means_over_seeds(rows, ("images", "model"), ("test", "train", "nats", "saved"))
    results = Section("Results", MEANING, [Table("Models", rows), Table("Over seeds", over)])
    sections = [results, *(_section(context, study) for study in studies)]
    about = "One network and set of images, and several training objectives."
    return context.publish("E-Forcing on images", about, sections, {"rows": rows, "over seeds": over, "paper": PAPER}, missing)


def train_and_measure(study: ImageStudy, model: str, seed: int, run_dir: Path) -> dict[str, Any]:
    """Train a model, score test and training images, and draw its grids."""
    result = train_base(run_with_seed(study.models[model], run_dir, seed))
    test = result.splits.test.rows(slice(0, study.test_limit))
    scores = {
        "test": log_prob(result.base, test),
        "train": log_prob(result.base, evenly_spaced_rows(result.splits.train, len(test))),
    }
    write_tensors(run_dir / SCORES, {name: score.double() for name, score in scores.items()})
    _draw_grids(study, run_dir, seed)
    nats_per_bit = result.base.space.max_length * math.log(2)
    return {
        "images": study.name,
        "model": model,
        "seed": seed,
        "parameters": count_parameters(result.base),
        "steps": result.record.steps,
        **{part: _mean(-score.double() / nats_per_bit, "bits per dimension") for part, score in scores.items()},
        "nats": _mean(-scores["test"], "nats per image"),
    }


def _saved(context: StudyContext, study: ImageStudy, row: Mapping[str, Any]) -> Estimate | None:
    """Bits per dimension that a model saves against likelihood with the same seed, image by image."""
    baseline = study.baseline_of(row["model"])
    if baseline == row["model"]:
        return None
    run_dirs = [context.run_dir(study.name, model, row["seed"]) for model in (row["model"], baseline)]
    scores, baseline_scores = (read_tensors(run_dir / SCORES)["test"] for run_dir in run_dirs)
    size = row["nats"].value / row["test"].value / math.log(2)
    return _mean((scores - baseline_scores) / (size * math.log(2)), "bits per dimension")


def _mean(values: Tensor, unit: str) -> Estimate:
    return mean_estimate(values, method="images as a sample", unit=unit)


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
    grids, completed = [], "an image, its upper half, and what was drawn after that."
    for model in study.models:
        run_dir = context.run_dir(study.name, model)
        grids.append(Picture(figure_from_file(run_dir / SAMPLES), f"{model}: draws."))
        grids.append(Picture(figure_from_file(run_dir / COMPLETED), f"{model}: {completed}"))
    losses = context.learning_curves(study.name, study.models, "validation, nats per dimension")
    return Section(study.name, "", [*losses, *grids])
