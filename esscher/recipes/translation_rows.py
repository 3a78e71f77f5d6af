"""Rows of the recipe on translation: a system with a seed, decoded in several ways and judged by its test sentences.

Translations are kept in the folder of the run, a line for each test pair, so that systems are compared line by line and a
finished row is not made again.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from esscher.data.parallel import Pairs
from esscher.estimate import Estimate
from esscher.metrics.comparison import by_length, paired
from esscher.metrics.lengths import word_ratio
from esscher.metrics.metric import metric_of
from esscher.randomness import Rng, Seeded
from esscher.recipes.rows import place_of, run_at
from esscher.recipes.translation_studies import TranslationStudy
from esscher.settings.data import DataConfig
from esscher.settings.exposure import ExposureSettings
from esscher.settings.translate import DecodingConfig
from esscher.storage import write_file
from esscher.training.processes import is_made
from esscher.training.progress import choose_progress
from esscher.verbs.exposure import TextSource, find_exposure
from esscher.verbs.models import Model
from esscher.verbs.run_folder import RESULTS
from esscher.verbs.train import train
from esscher.verbs.training_data import read_parallel
from esscher.verbs.translate import build_decoder, load_translator, translate

BLEU = metric_of("bleu")


def run_studies(studies: Sequence[TranslationStudy], out: Path, seeds: int) -> list[dict[str, Any]]:
    """All systems of all studies, with every seed."""
    rows = []
    for study in studies:
        for seed in range(seeds):
            for system in study.of_seed(seed):
                make_system(study, system, seed, out / study.name)
        rows += [row for seed in range(seeds) for row in rows_of(study, seed, out / study.name)]
    return rows


def make_system(study: TranslationStudy, system: str, seed: int, folder: Path) -> None:
    """Train and decode, unless that was done."""
    place = place_of(folder, system, seed)
    if not is_made(place / RESULTS):
        train(run_at(study.systems[system], place, seed), resume=True)
    test = judged_by(study)
    for name, way in study.ways.items():
        if not is_made(_file(place, name)):
            model = load_translator(place, way.energy)
            write_translations(_file(place, name), model, way.decoding, test, rng=Seeded(seed))


def judged_by(study: TranslationStudy) -> Pairs:
    """The pairs that systems of a study are judged by."""
    test = _pairs(next(iter(study.systems.values())).data)
    return replace(test, sources=test.sources[: study.most], targets=test.targets[: study.most])


def rows_of(study: TranslationStudy, seed: int, folder: Path) -> list[dict[str, Any]]:
    """A row for each system and way to decode, beside the system that the study names."""
    test, rows = judged_by(study), []
    for system in study.of_seed(seed):
        place = place_of(folder, system, seed)
        measured = json.loads((place / RESULTS).read_text(encoding="utf8"))["measured"]
        for way in study.ways:
            said, rng = read_decoded(place, way), Seeded(seed).stream(system, way)
            other = None if system == study.against else read_decoded(place_of(folder, study.against, seed), way)
            rows.append(
                {
                    "pairs": study.name,
                    "system": system,
                    "seed": seed,
                    "decoded": way,
                    **judged(said, other, test, rng=rng),
                    "length": word_ratio(said, test.targets),
                    "perplexity": Estimate(**measured["perplexity per token"]),
                }
            )
    return rows


def judged(said: Sequence[str], other: Sequence[str] | None, test: Pairs, *, rng: Rng) -> dict[str, Any]:
    """BLEU of translations, and what they gain against others, line by line, where there are any."""
    gained = None if other is None else paired(BLEU, said, other, test.targets, rng=rng)
    return {
        "BLEU": BLEU.score(said, test.targets, rng=rng),
        "gained": None if gained is None else gained.difference,
        "p-value": None if gained is None else gained.p_value,
    }


def length_rows(study: TranslationStudy, way: str, folder: Path) -> list[dict[str, Any]]:
    """BLEU by words of the source, of the first seed."""
    test, rows = judged_by(study), []
    for system in study.systems:
        said = read_decoded(place_of(folder, system, 0), way)
        groups = by_length(BLEU, test.sources, said, test.targets, study.bounds, rng=Seeded(0))
        rows += [{"system": system, "words": one.name, "lines": one.lines, "BLEU": one.value} for one in groups]
    return rows


def metric_rows(study: TranslationStudy, way: str, folder: Path) -> list[dict[str, Any]]:
    """Other metrics than BLEU, of the first seed; METEOR where its dictionary is installed."""
    test, rows = judged_by(study), []
    for system in study.systems:
        said = read_decoded(place_of(folder, system, 0), way)
        row: dict[str, Any] = {"system": system}
        for name in ("chrf", "ter", "rougeL", "meteor"):
            try:
                row[name] = metric_of(name).score(said, test.targets, rng=Seeded(0).stream(name))
            except ImportError:
                row[name] = None
        rows.append(row)
    return rows


def exposure_rows(study: TranslationStudy, folder: Path, sequences: int) -> list[dict[str, Any]]:
    """The exposure-bias ratio of each system beside the one that the study names, of the first seed."""
    rows, settings = [], ExposureSettings(sequences=sequences)
    against = place_of(folder, study.against, 0)
    for system in study.systems:
        if system != study.against:
            found = find_exposure(place_of(folder, system, 0), TextSource(), settings, against=against)
            assert found.ratio is not None
            rows.append({"system": system, "ratio": found.ratio.ratio, "bound": found.model.mean})
    return rows


def read_decoded(place: Path, name: str) -> list[str]:
    """The translations of the test pairs."""
    return read_lines(_file(place, name))


def read_lines(file: Path) -> list[str]:
    """The translations of a file."""
    return file.read_text(encoding="utf8").split("\n")[:-1]


@torch.no_grad()
def write_translations(file: Path, model: Model, decoding: DecodingConfig, test: Pairs, *, rng: Rng) -> None:
    """Decode the sources of test pairs, a line for each."""
    say = choose_progress(False).say
    found = translate(
        model, test.sources, build_decoder(decoding, model), rng=rng,
        say=lambda count: say(f"{file.stem}: {count:,} of {len(test):,} test sentences"),
    )  # fmt: skip
    write_file(file, "".join(f"{one.text}\n" for one in found).encode())


@cache
def _pairs(data: DataConfig) -> Pairs:
    assert data.target is not None
    return read_parallel(data, data.target)[2]


def _file(place: Path, name: str) -> Path:
    return place / f"test-{name.replace(' ', '-')}.txt"
