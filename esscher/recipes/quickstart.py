"""The main job on embedded data, in a few minutes: train a base, tilt it, measure, sample, distil, report.

First half: strings that must contain a motif, where the entropy is known exactly and nothing can go below it. A
base trained on few of them misses the motif; features of the whole string give it back, and a student distilled from
the tilted model has it as a plain model. Second half: English docstrings of Python's standard library, a deliberately small
base, and an energy that is a network reading the whole text (`esscher.recipes.quickstart_texts`). Each half leaves the folder
of a base and of an energy, which the command line reads; a run that was broken off goes on where it was.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from esscher.energies.declared import Declared, declared_features
from esscher.energies.saved import SavedEnergy, base_digest, save_energy
from esscher.estimate import Estimate
from esscher.estimators.measured import Measured, measure_by
from esscher.estimators.perplexity import cross_entropy
from esscher.hub import Card, save_base
from esscher.randomness import Rng, Seeded
from esscher.recipes.quickstart_texts import TextScale, text_rows, tilted_texts
from esscher.samplers.ancestral import draw
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig
from esscher.settings.distil import DistilConfig
from esscher.settings.tilt import FitConfig
from esscher.settings.train import TrainRun
from esscher.settings.training import TrainingConfig
from esscher.space import empty_prompts
from esscher.target import Tilted
from esscher.verbs.distillation import Distilled, distil
from esscher.verbs.fitting import FittedEnergy, fit_energy
from esscher.verbs.train import TrainResult, train
from esscher.verbs.training_data import Material


@dataclass(frozen=True)
class Scale:
    """What differs between the scales; draws are those of a base, to fit weights and to estimate log Z with."""

    motif: str
    length: int
    strings: int
    string_epochs: int
    string_width: int
    string_draws: int
    distilled: int  # strings that the student learns from
    texts: TextScale


SCALES = {
    "smoke": Scale("1000101", 12, 500, 12, 48, 8_000, 1_000, TextScale(40, 32, 60, 64, 10, 400)),
    "small": Scale("10001011111000", 30, 500, 25, 200, 40_000, 10_000, TextScale(500, 64, 800, 160, 150, 4_000)),
    "paper": Scale("10001011111000", 30, 5_000, 100, 200, 200_000, 20_000, TextScale(2_000, 64, 8_000, 384, 4_000, 40_000)),
}


@dataclass(frozen=True)
class Student:
    """A plain model that learnt from the tilted one."""

    folder: Path
    distilled: Distilled
    nats: Estimate
    samples: list[str]


@dataclass(frozen=True)
class Half:
    """What one half did and found."""

    settings: TrainRun
    material: Material
    result: TrainResult
    tilted: FittedEnergy
    measured: Measured
    samples: dict[str, list[str]]
    energy: Path
    student: Student | None = None


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """Both halves for each seed, and a report of the first."""
    from esscher.recipes.quickstart_report import report

    rows, found = [], []
    for seed in range(seeds):
        folder = out if seeds == 1 else out / f"seed-{seed}"
        chosen = SCALES[scale]
        half, text = strings(chosen, folder, seed), tilted_texts(chosen.texts, folder / "docstrings", seed)
        rows += [*half_rows("motif strings", half, seed), *text_rows(text, seed)]
        found.append((half, text))
    report(out / "report.html", *found[0])
    return {"rows": rows, "paper": []}


def strings(scale: Scale, out: Path, seed: int) -> Half:
    """Few strings with a motif; tilted by whether it is absent, and by facts that should not matter."""
    settings = TrainRun(
        out=str(out / "motif"),
        data=DataConfig(source=f"motif:{scale.motif}", size=scale.strings, length=scale.length),
        base=BaseChoice(kind="lstm", width=scale.string_width),
        training=TrainingConfig(epochs=scale.string_epochs, batch_size=50, patience=20, seed=seed),
    )
    middle = len(scale.motif) // 2
    features = (
        Declared("lacks", scale.motif, name="motif absent"),
        Declared("lacks", scale.motif[:middle], name="first half of it absent"),
        Declared("starts-with", "0", name="begins with 0"),
        Declared("lacks", scale.motif[::-1][:middle], name="another string absent"),
    )
    half = tilt(settings, features, scale.string_draws)
    return replace(half, student=make_student(half, scale, seed))


def tilt(settings: TrainRun, declared: Sequence[Declared], draws: int) -> Half:
    """Train, tilt, measure and sample, as the settings say."""
    seed = settings.training.seed
    rng = Seeded(seed).stream("tilt")
    result = train(settings, resume=True)
    material = result.points
    features = declared_features(declared, material.tokenizer.decode)
    found = fit_energy(result.base, features, material.train, {}, FitConfig(draws=draws), rng=rng, quiet=False)
    measured = measure_by(found.draws, found.target, material.test, units=material.units)
    known = base_digest(result.base)
    saved = SavedEnergy(tuple(declared), found.fit.weights, str(result.folder), known, found.log_z, seed)
    energy = save_energy(result.folder / "energy", saved)
    return Half(settings, material, result, found, measured, show_samples(result, material, measured, rng), energy)


def make_student(half: Half, scale: Scale, seed: int) -> Student:
    """Two stages: from draws of the base, then from draws of the first student."""
    folder, student = half.result.folder / "student", deepcopy(half.result.base)
    config = DistilConfig("cyclical", scale.distilled, 2 * scale.distilled, stages=2)
    training = TrainingConfig(epochs=2, batch_size=50, learning_rate=2e-3, schedule="linear", seed=seed)
    found = distil(
        half.tilted.target,
        student,
        empty_prompts(1),
        config,
        training,
        candidates=half.tilted.draws,
        folder=folder / "checkpoints",
        resume=True,
    )
    nats = cross_entropy(Tilted(student), half.material.test, units=half.material.units)["token"]
    tokenizer = half.material.tokenizer
    save_base(folder, student, tokenizer, Card("Student of the tilted motif model", measured=[("cross-entropy", nats)]))
    plain, _ = draw(student, empty_prompts(1), 5, rng=Seeded(seed).stream("student"))
    return Student(folder, found, nats, tokenizer.decode(plain.points()))


def show_samples(result: TrainResult, material: Material, measured: Measured, rng: Rng, count: int = 5) -> dict[str, list[str]]:
    """Texts of the base, and of the tilted model: survivors by weight of all draws that were made to measure it."""
    assert measured.draws is not None
    plain, _ = draw(result.base, empty_prompts(1), count, rng=rng.stream("plain"))
    chosen = rng.stream("chosen").categorical(measured.draws.log_weight, count)[0]
    decode = material.tokenizer.decode
    return {
        "data": decode(material.test.rows(slice(0, count)).points()),
        "base": decode(plain.points()),
        "tilted": decode(measured.draws.x.rows(chosen).points()),
    }


def half_rows(name: str, half: Half, seed: int) -> list[dict[str, Any]]:
    """The rows of the recipe's table: nats per token of base and tilted model, the entropy where it is known."""
    models = {"base": half.measured.base, "tilted": half.measured.tilted or {}}
    rows = [{"data": name, "model": model, "nats per token": found["token"], "seed": seed} for model, found in models.items()]
    if half.student is not None:
        rows.append({"data": name, "model": "distilled", "nats per token": half.student.nats, "seed": seed})
    if half.measured.saved is not None:
        rows.append({"data": name, "model": "saved by tilting", "nats per token": half.measured.saved["token"], "seed": seed})
    truth = [{"data": name, "model": what, "nats per token": value, "seed": seed} for what, value in half.material.truth]
    return rows + truth
