"""The first half of the quick start: strings that must contain a motif, where the entropy is known and nothing goes below it.

A base trained on few of them misses the motif; features of the whole string give it back, and a student distilled from the
tilted model has it as a plain model.
"""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esscher.energies.declaration import Declared
from esscher.energies.declared import declared_features
from esscher.energies.origin import base_digest
from esscher.energies.saved import SavedEnergy, save_energy
from esscher.estimate import Estimate
from esscher.estimators.measured import Measured, measure_by
from esscher.estimators.perplexity import cross_entropy
from esscher.hub import Card, save_base
from esscher.randomness import Rng, Seeded
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

SHOWN = 5  # strings of each model


@dataclass(frozen=True)
class StringScale:
    """The process, strings to learn from, epochs and width of the base; draws to fit weights and to tell log Z by; strings that
    the student learns from."""

    motif: str
    length: int
    strings: int
    epochs: int
    width: int
    draws: int
    distilled: int


@dataclass(frozen=True)
class Student:
    """A plain model that learnt from the tilted one."""

    folder: Path
    distilled: Distilled
    nats: Estimate
    samples: list[str]


@dataclass(frozen=True)
class TiltedStrings:
    """What was done and found; `samples` are strings of the base and of the tilted model."""

    motif: str
    base: TrainResult
    tilted: FittedEnergy
    measured: Measured
    samples: dict[str, list[str]]
    energy: Path
    student: Student

    @property
    def entropy(self) -> Estimate:
        """That of the process, per symbol."""
        return dict(self.base.points.truth)["entropy of the process"]

    def nats(self) -> dict[str, Estimate]:
        """Nats per symbol of the models."""
        assert self.measured.tilted is not None
        models = {"base": self.measured.base["token"], "tilted": self.measured.tilted["token"]}
        return {**models, "distilled": self.student.nats}


def tilted_strings(scale: StringScale, out: Path, seed: int) -> TiltedStrings:
    """Train on few strings; tilt by whether the motif is absent, and by facts that should not matter; measure, and distil."""
    settings = TrainRun(
        out=str(out / "motif"),
        data=DataConfig(source=f"motif:{scale.motif}", size=scale.strings, length=scale.length),
        base=BaseChoice(kind="lstm", width=scale.width),
        training=TrainingConfig(epochs=scale.epochs, batch_size=50, patience=20, seed=seed),
    )
    middle = len(scale.motif) // 2
    declared = (
        Declared("lacks", scale.motif, name="motif absent"),
        Declared("lacks", scale.motif[:middle], name="first half of it absent"),
        Declared("starts-with", "0", name="begins with 0"),
        Declared("lacks", scale.motif[::-1][:middle], name="another string absent"),
    )
    rng = Seeded(seed).stream("tilt")
    base = train(settings, resume=True)
    features = declared_features(declared, base.points.tokenizer.decode)
    found = fit_energy(base.base, features, base.points.train, {}, FitConfig(draws=scale.draws), rng=rng, quiet=False)
    measured = measure_by(found.draws, found.target, base.points.test, units=base.points.units)
    saved = SavedEnergy(declared, found.fit.weights, str(base.folder), base_digest(base.base), found.log_z, seed)
    energy = save_energy(base.folder / "energy", saved)
    samples = _samples(base, measured, rng)
    return TiltedStrings(scale.motif, base, found, measured, samples, energy, _student(base, found, scale, seed))


def string_rows(half: TiltedStrings, seed: int) -> list[dict[str, Any]]:
    """The rows of the recipe's table: nats per symbol of each model, what tilting saved, and the entropy."""
    assert half.measured.saved is not None
    told = [*half.nats().items(), ("saved by tilting", half.measured.saved["token"]), *half.base.points.truth]
    return [{"data": "motif strings", "model": name, "nats per token": value, "seed": seed} for name, value in told]


def _student(base: TrainResult, tilted: FittedEnergy, scale: StringScale, seed: int) -> Student:
    """Two stages: from draws of the base, then from draws of the first student."""
    folder, student = base.folder / "student", deepcopy(base.base)
    found = distil(
        tilted.target,
        student,
        empty_prompts(1),
        DistilConfig("cyclical", scale.distilled, 2 * scale.distilled, stages=2),
        TrainingConfig(epochs=2, batch_size=50, learning_rate=2e-3, schedule="linear", seed=seed),
        candidates=tilted.draws,
        folder=folder / "checkpoints",
        resume=True,
    )
    nats = cross_entropy(Tilted(student), base.points.test, units=base.points.units)["token"]
    tokenizer = base.points.tokenizer
    save_base(folder, student, tokenizer, Card("Student of the tilted motif model", measured=[("cross-entropy", nats)]))
    plain, _ = draw(student, empty_prompts(1), SHOWN, rng=Seeded(seed).stream("student"))
    return Student(folder, found, nats, tokenizer.decode(plain.points()))


def _samples(base: TrainResult, measured: Measured, rng: Rng) -> dict[str, list[str]]:
    """Strings of the base, and of the tilted model: survivors by weight of all draws that were made to measure it."""
    assert measured.draws is not None
    plain, _ = draw(base.base, empty_prompts(1), SHOWN, rng=rng.stream("plain"))
    chosen = rng.stream("chosen").categorical(measured.draws.log_weight, SHOWN)[0]
    decode = base.points.tokenizer.decode
    return {"base": decode(plain.points()), "tilted": decode(measured.draws.x.rows(chosen).points())}
