"""Rows of the recipe on images: a model with a seed, judged by images it never saw and by some that it learnt from.

The log-probability of every image is kept in the run folder, so that models are compared image by image and a finished row is
not made again; so are its grids, draws and completed halves.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from esscher.estimate import Estimate
from esscher.randomness import Seeded
from esscher.recipes.image_studies import ImageStudy
from esscher.recipes.rows import ROW, kept, mean_of, place_of, run_at, size_of
from esscher.reports.pictures import save_grid
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.scores import log_prob
from esscher.storage import read_tensors, write_tensors
from esscher.verbs.models import load_model
from esscher.verbs.paint import drawn_images, paint_images, prompts_of_classes
from esscher.verbs.subsets import evenly
from esscher.verbs.train import train
from esscher.verbs.training_images import read_image_sets

SCORES, SAMPLES, COMPLETED = "scores.safetensors", "samples.png", "completed.png"
GIVEN, WAYS = 8, 6  # images that are completed, and how often each


def run_studies(studies: Sequence[ImageStudy], out: Path, seeds: int) -> list[dict[str, Any]]:
    """All rows of all studies, with every seed."""
    rows = []
    for study in studies:
        folder = out / study.name
        made = [make_row(study, model, seed, folder) for seed in range(seeds) for model in study.of_seed(seed)]
        rows += [{**row, "saved": _saved(study, row, folder)} for row in made]
    return rows


def make_row(study: ImageStudy, model: str, seed: int, folder: Path) -> dict[str, Any]:
    """The row of one model, trained, judged and drawn from, or from the folder if that was done."""
    place = place_of(folder, model, seed)

    def make() -> dict[str, Any]:
        result = train(run_at(study.models[model], place, seed), resume=True)
        test = result.points.test.rows(slice(0, study.most))
        scores = {"test": log_prob(result.base, test), "train": log_prob(result.base, evenly(result.points.train, len(test)))}
        write_tensors(place / SCORES, {name: score.double() for name, score in scores.items()})
        _draw(study, place, seed)
        size = result.base.space.max_length
        return {
            "images": study.name,
            "model": model,
            "seed": seed,
            "parameters": size_of(result.base),
            "steps": result.record.steps,
            "test": _bits(scores["test"], size),
            "train": _bits(scores["train"], size),
            "nats": _mean(-scores["test"], "nats per image"),
        }

    return kept(place / ROW, make)


def _saved(study: ImageStudy, row: Mapping[str, Any], folder: Path) -> Estimate | None:
    """Bits per dimension that a model saves against likelihood, image by image, with the same seed."""
    against = study.against(row["model"])
    if against == row["model"]:
        return None
    own, other = (read_tensors(place_of(folder, one, row["seed"]) / SCORES)["test"] for one in (row["model"], against))
    size = row["nats"].value / row["test"].value / math.log(2)
    return _mean((own - other) / (size * math.log(2)), "bits per dimension")


def _draw(study: ImageStudy, place: Path, seed: int) -> None:
    """Both grids of a model."""
    model, rng, data = load_model(place), Seeded(seed).stream("grids"), next(iter(study.models.values()))
    shown, _ = drawn_images(model, model.target, Ancestral(), prompts_of_classes(model), study.shown, rng=rng.stream("samples"))
    save_grid(place / SAMPLES, shown)
    test = read_image_sets(data.data, data.images)[2].rows(slice(0, GIVEN))
    painted, _ = paint_images(model, model.target, Ancestral(), test, None, WAYS, rng=rng.stream("completed"))
    save_grid(place / COMPLETED, painted, WAYS + 2)


def _bits(score: Tensor, size: int) -> Estimate:
    return _mean(-score.double() / (size * math.log(2)), "bits per dimension")


def _mean(values: Tensor, unit: str) -> Estimate:
    """The mean over images, with an interval for other images."""
    return mean_of(values, method="images as a sample", unit=unit)
