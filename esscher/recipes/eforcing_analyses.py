"""What E-Forcing does to a language model beside its perplexity: exposure bias; and what an energy adds, its own or another."""

import math
from pathlib import Path
from typing import Any

from esscher.cut import Cut
from esscher.estimate import Estimate
from esscher.recipes.rows import kept, place_of
from esscher.recipes.stream_studies import StreamStudy
from esscher.settings.exposure import ExposureSettings
from esscher.settings.tilt import ContrastConfig, ContrastTraining, TiltRun
from esscher.training.processes import is_made
from esscher.verbs.exposure import TextSource, find_exposure
from esscher.verbs.measure import Measuring, measure_text
from esscher.verbs.models import load_model
from esscher.verbs.tilt import tilt
from esscher.verbs.training_data import read_splits

OWN = Cut(max_length=20, given=30)


def exposure_row(study: StreamStudy, model: str, folder: Path, places: int) -> dict[str, Any]:
    """The ratio of a model of the first seed beside the one that the study names, and the mean bounds of both."""
    against = place_of(folder, study.against, 0)

    def find() -> dict[str, Estimate]:
        settings = ExposureSettings(sequences=places)
        found = find_exposure(place_of(folder, model, 0), TextSource(), settings, against=against)
        assert found.ratio is not None and found.baseline is not None
        return {"ratio": found.ratio.ratio, "bound": found.model.mean, f"bound, {study.against}": found.baseline.mean}

    return {"text": study.name, "model": model, **kept(place_of(folder, model, 0) / "exposure.json", find)}


def own_row(study: StreamStudy, model: str, folder: Path, sequences: int) -> dict[str, Any]:
    """A model and the level of its own logits as an energy."""
    place = place_of(folder, model, 0)
    row = kept(place / "own.json", lambda: _tilted(study, model, place, "own", sequences))
    return {"text": study.name, "of": model, "energy": "its own level", **row}


def residual_row(study: StreamStudy, model: str, folder: Path, sequences: int, steps: int) -> dict[str, Any]:
    """A model and a network that starts from its weights and learns to tell its draws from the data."""
    place = place_of(folder, model, 0)

    def find() -> dict[str, Estimate]:
        return _tilted(study, model, place, residual_energy(place, place / "energy", steps, OWN), sequences)

    return {"text": study.name, "of": model, "energy": "a network", **kept(place / "residual.json", find)}


def residual_energy(place: Path, folder: Path, steps: int, cut: Cut | None = None) -> Path:
    """The folder of an energy that starts from a model's own weights and learns by noise contrast, made if it is not there."""
    if not is_made(folder / "config.json"):
        training = ContrastTraining(steps=steps, batch_size=64, evaluate_every=max(1, steps // 4))
        contrast, cut = ContrastConfig(draws=64, held_out=min(256, 4 * steps)), cut or Cut()
        settings = TiltRun(str(folder), training=training, contrast=contrast, max_length=cut.max_length, given=cut.given)
        tilt(str(place), settings, resume=True)
    return folder


def _tilted(study: StreamStudy, model: str, place: Path, energy: str | Path, sequences: int) -> dict[str, Estimate]:
    """Perplexity of continuations of 20 tokens after 30, of the first seed and tilted by an energy."""
    texts = read_splits(study.models[model].data).test.texts
    judged = load_model(place, energy, OWN)
    found = measure_text(judged, judged.read(texts), Measuring(sequences=sequences)).found
    assert found.tilted is not None and found.saved is not None
    sides = {"model": found.base["token"], "tilted": found.tilted["token"]}
    return {**{name: one.map(math.exp, unit="per token") for name, one in sides.items()}, "saved": found.saved["token"]}
