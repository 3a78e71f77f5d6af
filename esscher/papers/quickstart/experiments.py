"""The two experiments of the quick start.

Strings that must contain a motif: a base trained on few of them misses the motif, features of the whole string restore it, and
a student distilled from the tilted model is a plain model that has it. The entropy is known, and no model can do better.

Docstrings: a deliberately small base, and an energy that is a network over the whole text. The network starts from the weights
of a larger plain model, because an energy must bring what the base lacks and learns nothing in minutes from random weights.
"""

from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from esscher.core.estimate import Estimate
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import empty_prompts
from esscher.core.target import Tilted
from esscher.data.config import DataConfig, LengthConfig, TokenizerConfig
from esscher.energies.declared_features import features_from_specs
from esscher.energies.feature_spec import FeatureSpec
from esscher.energies.serialization import SavedLogLinear, base_digest, save_energy
from esscher.estimators.measure import Measurement, measure_with_draws
from esscher.estimators.perplexity import cross_entropy
from esscher.hub import ModelCard, save_base
from esscher.networks.recurrent_config import LstmConfig
from esscher.networks.transformer_config import TransformerConfig
from esscher.papers.study import Row
from esscher.samplers.ancestral import draw
from esscher.samplers.importance import Importance
from esscher.training.config import TrainingConfig
from esscher.workflow.config.distil import DistilConfig
from esscher.workflow.config.tilt import ContrastConfig, ContrastTraining, FitConfig, TiltRun
from esscher.workflow.config.train import TrainRun
from esscher.workflow.distil import DistillationResult, distil
from esscher.workflow.tilt import ContrastResult, FitResult, fit_feature_weights, tilt_model
from esscher.workflow.train import TrainResult, train_base

SHOWN = 5  # strings of each model
CANDIDATES = 64


@dataclass(frozen=True, kw_only=True)
class StringScale:
    """Size of the experiment on strings."""

    motif: str
    length: int
    strings: int  # to learn from
    epochs: int
    width: int
    draws: int  # to fit weights and estimate log Z
    distil_sequences: int


@dataclass(frozen=True, kw_only=True)
class TextScale:
    """Size of the experiment on docstrings; `larger` is the model that the energy starts from."""

    steps: int
    width: int
    larger_steps: int
    larger_width: int
    energy_steps: int
    draws: int  # to estimate log Z


@dataclass(frozen=True)
class Student:
    """A plain model that learnt from the tilted one."""

    folder: Path
    distilled: DistillationResult
    nats: Estimate
    samples: list[str]


@dataclass(frozen=True)
class TiltedStrings:
    """The models of the experiment on strings; `samples` are strings of the base and of the tilted model."""

    motif: str
    base: TrainResult
    tilted: FitResult
    measured: Measurement
    samples: dict[str, list[str]]
    energy: Path
    student: Student

    @property
    def entropy(self) -> Estimate:
        """The entropy of the process, per symbol."""
        return dict(self.base.splits.truth)["entropy of the process"]

    def nats(self) -> dict[str, Estimate]:
        """Nats per symbol of the models."""
        assert self.measured.tilted is not None
        models = {"base": self.measured.base["token"], "tilted": self.measured.tilted["token"]}
        return {**models, "distilled": self.student.nats}


def tilted_strings(scale: StringScale, out: Path, seed: int) -> TiltedStrings:
    """Train on few strings, tilt by the absence of the motif and by irrelevant features, measure, and distil."""
    middle = len(scale.motif) // 2
    declared = (
        FeatureSpec("lacks", scale.motif, name="motif absent"),
        FeatureSpec("lacks", scale.motif[:middle], name="first half of it absent"),
        FeatureSpec("starts-with", "0", name="begins with 0"),
        FeatureSpec("lacks", scale.motif[::-1][:middle], name="another string absent"),
    )
    rng = SeededRng(seed).stream("tilt")
    base = train_base(replace(_string_run(scale, out, seed), resume=True))
    features = features_from_specs(declared, base.splits.tokenizer.decode)
    fitted = fit_feature_weights(base.base, features, base.splits.train, {}, FitConfig(draws=scale.draws), rng=rng)
    measured = measure_with_draws(fitted.draws, fitted.target, base.splits.test, units=base.splits.units)
    saved = SavedLogLinear(declared, fitted.fit.weights, str(base.folder), base_digest(base.base), fitted.log_z, seed)
    energy = save_energy(base.folder / "energy", saved)
    samples = _samples(base, measured, rng)
    return TiltedStrings(scale.motif, base, fitted, measured, samples, energy, _student(base, fitted, scale, seed))


def _string_run(scale: StringScale, out: Path, seed: int) -> TrainRun:
    return TrainRun(
        out=str(out / "motif"),
        data=DataConfig(source=f"motif:{scale.motif}", size=scale.strings, length=scale.length),
        base=LstmConfig(width=scale.width),
        training=TrainingConfig(epochs=scale.epochs, batch_size=50, patience=20, seed=seed),
    )


def string_rows(strings: TiltedStrings, seed: int) -> list[Row]:
    """Nats per symbol of each model, what tilting saved, and the entropy."""
    assert strings.measured.reduction is not None
    nats = [*strings.nats().items(), ("saved by tilting", strings.measured.reduction["token"]), *strings.base.splits.truth]
    return [{"data": "motif strings", "model": name, "nats per token": value, "seed": seed} for name, value in nats]


def _student(base: TrainResult, tilted: FitResult, scale: StringScale, seed: int) -> Student:
    """Distil in two stages: from draws of the base, then from draws of the first student."""
    folder, student = base.folder / "student", deepcopy(base.base)
    distilled = distil(
        tilted.target, student, empty_prompts(1),
        DistilConfig("cyclical", scale.distil_sequences, 2 * scale.distil_sequences, stages=2),
        TrainingConfig(epochs=2, batch_size=50, learning_rate=2e-3, schedule="linear", seed=seed),
        candidates=tilted.draws, folder=folder / "checkpoints", resume=True,
    )  # fmt: skip
    nats = cross_entropy(Tilted(student), base.splits.test, units=base.splits.units)["token"]
    tokenizer = base.splits.tokenizer
    save_base(folder, student, tokenizer, ModelCard("Student of the tilted motif model", results=[("cross-entropy", nats)]))
    drawn, _ = draw(student, empty_prompts(1), SHOWN, rng=SeededRng(seed).stream("student"))
    return Student(folder, distilled, nats, tokenizer.decode(drawn.points()))


def _samples(base: TrainResult, measured: Measurement, rng: Rng) -> dict[str, list[str]]:
    """Strings of the base, and of the tilted model: resampled by weight from the draws that it was measured with."""
    assert measured.draws is not None
    plain, _ = draw(base.base, empty_prompts(1), SHOWN, rng=rng.stream("plain"))
    chosen = rng.stream("chosen").categorical(measured.draws.log_weight, SHOWN)[0]
    decode = base.splits.tokenizer.decode
    return {"base": decode(plain.points()), "tilted": decode(measured.draws.x.rows(chosen).points())}


@dataclass(frozen=True)
class TiltedTexts:
    """The models of the experiment on docstrings; `ranked` are candidates of the base, the likeliest when tilted first."""

    base: TrainResult
    larger: TrainResult
    energy_result: ContrastResult
    energy: Path
    ranked: list[Row]

    def nats(self) -> dict[str, Estimate]:
        """Nats per token of the models, and what tilting saved on the same texts."""
        measured = self.energy_result.measured
        assert measured.tilted is not None and measured.reduction is not None
        nats = {"base": measured.base, "tilted": measured.tilted, "saved by tilting": measured.reduction}
        return {name: value["token"] for name, value in nats.items()}


def tilted_texts(scale: TextScale, out: Path, seed: int) -> TiltedTexts:
    """Train the base and the larger model, tilt, measure, and rank draws of the base."""
    base = train_base(replace(_text_run(out, scale.steps, scale.width, layers=1, seed=seed), resume=True))
    larger = train_base(
        replace(_text_run(out / "larger", scale.larger_steps, scale.larger_width, layers=3, seed=seed), resume=True)
    )
    energy = out / "energy"
    training = ContrastTraining(steps=scale.energy_steps, learning_rate=5e-4, warmup_steps=20, evaluate_every=50, seed=seed)
    contrast = ContrastConfig(draws=scale.draws)
    run = TiltRun(out=str(energy), start=str(larger.folder), contrast=contrast, training=training, resume=True)
    result = tilt_model(base.model, run).details
    assert isinstance(result, ContrastResult)
    return TiltedTexts(base, larger, result, energy, _ranked(base, result, seed))


def _text_run(out: Path, steps: int, width: int, *, layers: int, seed: int) -> TrainRun:
    return TrainRun(
        out=str(out),
        tokenizer=TokenizerConfig("bpe", 800),
        length=LengthConfig(tokens=64),
        base=TransformerConfig(width=width, layers=layers, heads=4, feedforward=3 * width),
        training=TrainingConfig(
            steps=steps, learning_rate=2e-3, schedule="cosine", warmup_steps=steps // 20, evaluate_every=200, seed=seed
        ),
    )


def text_rows(texts: TiltedTexts, seed: int) -> list[Row]:
    """Nats per token of both models, and what tilting saved."""
    nats = texts.nats().items()
    return [{"data": "docstrings", "model": name, "nats per token": value, "seed": seed} for name, value in nats]


def _ranked(base: TrainResult, result: ContrastResult, seed: int) -> list[Row]:
    """Draws of the base with their energy and their normalised weight."""
    drawn = Importance()(result.target, empty_prompts(1), CANDIDATES, rng=SeededRng(seed).stream("ranked"))
    log_weight, log_base = drawn.log_weight[0], drawn.log_base[0]
    share, texts = torch.softmax(log_weight, -1), base.splits.tokenizer.decode(drawn.x.points())
    return [
        {"share": float(share[row]), "energy": -float(log_weight[row]), "log base": float(log_base[row]), "text": texts[row]}
        for row in share.argsort(descending=True).tolist()
    ]
