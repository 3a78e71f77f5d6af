"""The main job on embedded data, in a few minutes: train a base, tilt it with features, measure, sample, report.

First half: strings that must contain a motif, where the entropy is known exactly and nothing can go below it. A
base trained on few of them misses the motif; features of the whole string give it back. Second half: English
docstrings of Python's standard library, the same steps on real text. Each half leaves the folder of a base and
of an energy, which the command line reads; a run that was broken off goes on where it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from esscher.energies.declared import Declared, declared_feature
from esscher.energies.features import Feature, LogLinear, values
from esscher.energies.saved import SavedEnergy, save_energy
from esscher.estimators.measured import Measured, measure
from esscher.estimators.moments import moments
from esscher.objectives.moment_match import MomentFit, match_moments
from esscher.randomness import Rng, Seeded
from esscher.samplers.ancestral import draw
from esscher.samplers.importance import Importance
from esscher.space import empty_prompts
from esscher.storage import digest, module_tensors
from esscher.target import Tilted
from esscher.training.config import BaseChoice, DataConfig, LengthConfig, TokenizerConfig, TrainingConfig, TrainRun
from esscher.training.material import Material
from esscher.training.run import TrainResult, train

TEXT_FEATURES = (
    Declared("ends-with", ".", name="ends with a full stop"),
    Declared("matches", r"^[A-Z]", name="begins with a capital"),
    Declared("matches", r"\b(\w+) \1\b", name="repeats a word at once"),
    Declared("contains", "\n", name="more than one line"),
    Declared("matches", r"^[^()]*(\([^()]*\)[^()]*)*$", name="every bracket closed"),
)


@dataclass(frozen=True)
class Scale:
    """What differs between the scales; draws are those of a base, to fit weights and to estimate log Z with."""

    motif: str
    length: int
    strings: int
    string_epochs: int
    string_width: int
    string_draws: int
    text_steps: int
    text_width: int
    text_draws: int


SCALES = {
    "smoke": Scale("1000101", 12, 500, 12, 48, 8_000, 120, 64, 1_000),
    "small": Scale("10001011111000", 30, 500, 25, 200, 40_000, 600, 192, 4_000),
    "paper": Scale("10001011111000", 30, 5_000, 100, 200, 200_000, 8_000, 384, 20_000),
}


@dataclass(frozen=True)
class Half:
    """What one half did and found."""

    settings: TrainRun
    material: Material
    result: TrainResult
    fit: MomentFit
    measured: Measured
    moments: list[dict[str, Any]]  # of each feature: in the data, in the base's draws, under the tilted model
    samples: dict[str, list[str]]
    energy: Path


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """Both halves for each seed, and a report of the first."""
    from esscher.recipes.quickstart_report import report

    rows, found = [], []
    for seed in range(seeds):
        folder = out if seeds == 1 else out / f"seed-{seed}"
        halves = {"motif strings": strings(SCALES[scale], folder, seed), "docstrings": texts(SCALES[scale], folder, seed)}
        rows += [row for name, half in halves.items() for row in half_rows(name, half, seed)]
        found.append(halves)
    report(out / "report.html", found[0]["motif strings"], found[0]["docstrings"])
    return {"rows": rows, "paper": []}


def strings(scale: Scale, out: Path, seed: int) -> Half:
    """Few strings with a motif; tilted by whether it is absent, and by facts that should not matter."""
    settings = TrainRun(
        out=str(out / "motif"),
        data=DataConfig(source=f"motif:{scale.motif}", size=scale.strings, length=scale.length),
        base=BaseChoice(kind="lstm", width=scale.string_width),
        training=TrainingConfig(epochs=scale.string_epochs, batch_size=50, patience=20, seed=seed),
    )
    half = len(scale.motif) // 2
    features = (
        Declared("lacks", scale.motif, name="motif absent"),
        Declared("lacks", scale.motif[:half], name="first half of it absent"),
        Declared("starts-with", "0", name="begins with 0"),
        Declared("lacks", scale.motif[::-1][:half], name="another string absent"),
    )
    return tilt(settings, features, scale.string_draws)


def texts(scale: Scale, out: Path, seed: int) -> Half:
    """Docstrings; tilted by plain facts about the whole text."""
    settings = TrainRun(
        out=str(out / "docstrings"),
        tokenizer=TokenizerConfig("bpe", 800),
        length=LengthConfig(tokens=64),
        base=BaseChoice(kind="transformer", width=scale.text_width, layers=3, feedforward=3 * scale.text_width),
        training=TrainingConfig(
            steps=scale.text_steps, schedule="cosine", warmup=scale.text_steps // 20, evaluate_every=100, seed=seed
        ),
    )
    return tilt(settings, TEXT_FEATURES, scale.text_draws)


def tilt(settings: TrainRun, declared: Sequence[Declared], draws: int) -> Half:
    """Train, tilt, measure and sample, as the settings say."""
    seed = settings.training.seed
    rng = Seeded(seed).stream("tilt")
    result = train(settings, resume=True)
    material = result.material
    features = [declared_feature(one, material.tokenizer.decode) for one in declared]
    fit = fit_weights(result, material, features, draws, rng=rng.stream("fit"))
    target = Tilted(result.base, LogLinear(features, fit.tensor()))
    measured = measure(target, material.test, Importance(), draws, units=material.units, rng=rng.stream("measure"))
    energy = save_tilt(result, declared, fit, measured, seed)
    moment_rows = feature_moments(features, fit, measured)
    return Half(settings, material, result, fit, measured, moment_rows, show_samples(result, material, measured, rng), energy)


def fit_weights(result: TrainResult, material: Material, features: Sequence[Feature], draws: int, *, rng: Rng) -> MomentFit:
    """Weights under which the base has the features of the training data."""
    drawn, _ = draw(result.base, empty_prompts(1), draws, rng=rng)
    names = [feature.name for feature in features]
    return match_moments(names, values(features, drawn), values(features, material.train))


def feature_moments(features: Sequence[Feature], fit: MomentFit, measured: Measured) -> list[dict[str, Any]]:
    """Each feature's mean in the data and in the base, and its estimate under the tilted model from fresh draws."""
    assert measured.draws is not None
    of_draws: Tensor = values(features, measured.draws.x).view(*measured.draws.log_weight.shape, len(features))
    under = moments(measured.draws, of_draws)
    rows = zip(fit.names, fit.weights, fit.moments_wanted, fit.moments_base, under, strict=True)
    return [
        {"feature": name, "weight": weight, "in the data": data, "in the base": base, "tilted": tilted}
        for name, weight, data, base, tilted in rows
    ]


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


def save_tilt(result: TrainResult, declared: Sequence[Declared], fit: MomentFit, measured: Measured, seed: int) -> Path:
    """The energy as a folder beside its base."""
    assert measured.log_z is not None
    base = digest(module_tensors(result.base))
    saved = SavedEnergy(tuple(declared), fit.weights, str(result.folder), base, measured.log_z, seed)
    return save_energy(result.folder / "energy", saved)


def half_rows(name: str, half: Half, seed: int) -> list[dict[str, Any]]:
    """The rows of the recipe's table: nats per token of base and tilted model, the entropy where it is known."""
    models = {"base": half.measured.base, "tilted": half.measured.tilted or {}}
    rows = [{"data": name, "model": model, "nats per token": found["token"], "seed": seed} for model, found in models.items()]
    if half.measured.saved is not None:
        rows.append({"data": name, "model": "saved by tilting", "nats per token": half.measured.saved["token"], "seed": seed})
    truth = [{"data": name, "model": what, "nats per token": value, "seed": seed} for what, value in half.material.truth]
    return rows + truth
