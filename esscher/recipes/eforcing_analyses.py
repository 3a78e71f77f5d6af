"""What E-Forcing does to a language model beside its perplexity: exposure bias, and the model's level used as an energy."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from esscher.cut import Cut
from esscher.estimate import Estimate
from esscher.recipes.stream_rows import Study, place_of
from esscher.storage import write_json
from esscher.training.exposure import TextSource, find_exposure
from esscher.training.exposure_config import ExposureSettings
from esscher.training.material import read_splits
from esscher.training.measuring import Measuring, measure_text
from esscher.training.models import load_model

OWN = Cut(max_length=20, given=30)


def exposure_row(study: Study, model: str, folder: Path, places: int) -> dict[str, Any]:
    """The ratio of a model of the first seed beside the one that the study names, and the mean bounds of both."""
    against = place_of(folder, study.against, 0)

    def find() -> dict[str, Estimate]:
        settings = ExposureSettings(sequences=places)
        found = find_exposure(place_of(folder, model, 0), TextSource(), settings, against=against)
        assert found.ratio is not None and found.baseline is not None
        return {"ratio": found.ratio.ratio, "bound": found.model.mean, f"bound, {study.against}": found.baseline.mean}

    return {"text": study.name, "model": model, **_kept(place_of(folder, model, 0) / "exposure.json", find)}


def own_row(study: Study, model: str, folder: Path, sequences: int) -> dict[str, Any]:
    """Perplexity of continuations of 20 tokens after 30, by the model and tilted by the level of its own logits."""
    place = place_of(folder, model, 0)

    def find() -> dict[str, Estimate]:
        texts = read_splits(study.models[model].data).test.texts
        found = measure_text(load_model(place, "own", OWN), texts, Measuring(sequences=sequences)).found
        assert found.tilted is not None and found.saved is not None
        sides = {"model": found.base["token"], "tilted by its level": found.tilted["token"]}
        return {
            **{name: one.map(math.exp, unit="per token") for name, one in sides.items()},
            "saved": found.saved["token"],
        }

    return {"text": study.name, "of": model, **_kept(place / "own.json", find)}


def _kept(file: Path, find: Callable[[], dict[str, Estimate]]) -> dict[str, Estimate]:
    """The numbers of a file, which is made if it is not there."""
    if not file.is_file():
        write_json(file, {name: found.to_dict() for name, found in find().items()})
    return {name: Estimate(**found) for name, found in json.loads(file.read_text(encoding="utf8")).items()}
