"""How well a new classifier tells draws of a model from data: draws of the base, and draws of the tilted model.

A new network is trained by noise contrast, one draw for each sequence, and tested on prompts that it was not trained on: once
with draws of the base and once with draws of the tilted model, from the same initial weights. Draws that have the distribution
of the data leave it an accuracy of 1/2. No classifier can be right more often than 1/2 + half the total variation between
model and data, so the accuracy is a lower bound on the distance, as tight as the classifier is good. Draws of the tilted model
come from a finite pool, which leaves them a little nearer the base. Data that the energy was trained on make the tilted model
look better than it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.progress import current_progress
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences
from esscher.core.target import Base, Tilted
from esscher.energies.config import EnergyConfig
from esscher.energies.features import Decode
from esscher.energies.network import NetworkEnergy, build_energy
from esscher.estimators.intervals import Statistic
from esscher.estimators.populations import Name, Populations
from esscher.networks.transformer_config import TransformerConfig
from esscher.objectives.noise_contrastive import NoiseContrast, StoredNegatives
from esscher.reports.plots import intervals, save_figure
from esscher.reports.report import Report
from esscher.samplers.scoring import log_weight
from esscher.training.evaluation import HeldOut
from esscher.training.trainer import Trainer
from esscher.workflow.analyses import Analysis, comparison_data, draw_populations, ess_notes
from esscher.workflow.config.analyse import DiscriminateConfig
from esscher.workflow.model import Model
from esscher.workflow.subsets import random_rows, split_by_prompt

AGAINST: tuple[Name, ...] = ("base", "joint")


@dataclass(frozen=True)
class DiscriminateResult:
    """By the kind of draws; `gap` is the accuracy against draws of the base minus that against draws of the tilted model."""

    accuracy: Mapping[Name, Estimate]
    false_positives: Mapping[Name, Estimate]  # share of the draws taken for data
    gap: Estimate
    ess: Estimate  # of the draws after a prompt, for the tilted model
    sequences: Mapping[str, int]  # for training, validation and test


@dataclass(frozen=True)
class ClassifierSplits:
    """The same kinds of populations for the three uses, with no prompt in common."""

    learn: Populations
    choose: Populations
    judge: Populations


def analyse_discriminate(model: Model, settings: DiscriminateConfig) -> Analysis[DiscriminateResult]:
    """Train and test classifiers that tell draws of a model from data.

    Args:
        model: A tilted model.
        settings: The data, the classifier, and its training.

    Returns:
        Accuracies for draws of the base and of the tilted model, and the report.
    """
    (x, description), seed = comparison_data(model, settings.source), settings.training.seed
    result = discriminate(model.target, x, settings, decode=model.decode(), rng=SeededRng(seed))
    facts: dict[str, Any] = {
        "model": model.name, "energy": model.energy_name, "data": description, "seed": seed,
        "sequences": " ".join(f"{name} {count:,}" for name, count in result.sequences.items()),
        "accuracy_base_minus_joint": result.gap, "ess": result.ess,
    }  # fmt: skip
    if settings.plot is not None:
        accuracies = {f"{name} draws": value for name, value in result.accuracy.items()}
        label = "accuracy of a new classifier against data"
        figure = intervals(accuracies, label=label, truth=0.5, truth_label="indistinguishable")
        facts["plot"] = save_figure(figure, Path(settings.plot))
    rows = [
        {"draws of": name, "accuracy": result.accuracy[name], "false positive rate": result.false_positives[name]}
        for name in result.accuracy
    ]
    return Analysis(result, Report("esscher analyse discriminate", facts, {"against_data": rows}, ess_notes(result.ess)))


def discriminate(
    target: Tilted, x: Sequences, settings: DiscriminateConfig, *, decode: Decode | None = None, rng: SeededRng
) -> DiscriminateResult:
    """Train a classifier for each kind of draws and test it.

    Args:
        target: A tilted model.
        x: The data.
        settings: How much is compared, the classifier, and its training.
        decode: The base's function from tokens to text, for a classifier that reads text.
        rng: Where everything random comes from.

    Returns:
        Accuracies, false positives and the effective sample size.
    """
    say = current_progress().say
    x = random_rows(x, settings.sequences, rng=rng.stream("sequences"))
    config = classifier_config(settings, int(x.start.max()) + target.space.max_length)
    classifiers = {  # before anything is drawn, so that a mistake in their settings costs nothing
        name: build_energy(config, target.base, decode=decode, rng=rng.stream("classifier")) for name in AGAINST
    }
    parts = split_by_prompt(x, (settings.validation, settings.test), rng=rng.stream("split"))
    names = ("learn", "choose", "judge")
    pools = ClassifierSplits(
        *(
            draw_populations(target, part, settings.draws, rng=rng.stream("draws", name), say=say)
            for name, part in zip(names, parts, strict=True)
        )
    )
    rates: dict[Name, ClassifierRates] = {}
    for name in AGAINST:
        say(f"Training a classifier of data against draws of the {name}.")
        energy = classifiers[name]
        train_classifier(energy, target.base, pools, name, settings, rng=rng.stream("learn", name))
        rates[name] = classify_draws(energy, target.base, pools.judge, name)
    sizes = {use: len(part) for use, part in zip(("training", "validation", "test"), parts, strict=True)}
    return _summary(pools.judge, rates, sizes, settings.confidence)


def classifier_config(settings: DiscriminateConfig, positions: int) -> EnergyConfig:
    """The classifier of the settings; a Transformer of its own reads as many positions as there are."""
    config = settings.classifier
    if isinstance(config.network, TransformerConfig):
        return replace(config, network=replace(config.network, max_positions=positions))
    return config


def train_classifier(
    energy: NetworkEnergy,
    base: Base,
    pools: ClassifierSplits,
    name: Name,
    settings: DiscriminateConfig,
    *,
    rng: SeededRng,
) -> None:
    """Train the classifier in place; it ends with the weights that were best on the validation prompts."""
    objective = NoiseContrast(_table(pools.learn, name, rng=rng.stream("learn")))
    held_out = HeldOut(NoiseContrast(_table(pools.choose, name, rng=rng.stream("choose"))), pools.choose.data.x)
    Trainer(settings.training)(objective, Tilted(base, energy), pools.learn.data.x, modules=energy, validation=held_out)
    energy.to(pools.learn.data.x.tokens.device).eval()


@dataclass(frozen=True)
class ClassifierRates:
    """Shares taken for data among the data and among the draws, as functions of the replicates' counts."""

    of_data: Statistic
    of_draws: Statistic

    def accuracy(self, *counts: Tensor) -> Float[Tensor, ""]:
        return (1 + self.of_data(*counts) - self.of_draws(*counts)) / 2


def classify_draws(energy: NetworkEnergy, base: Base, pops: Populations, name: Name) -> ClassifierRates:
    """The classifier's verdicts: negative energy means data. All draws count, those of the joint by their weight."""
    classifier = Tilted(base, energy)
    taken = {who: (log_weight(classifier, pops[who].x) > 0).double() for who in ("data", name)}
    return ClassifierRates(pops.ratio("data", taken["data"]), pops.ratio(name, taken[name]))


def classifier_accuracy(pops: Populations, rates: ClassifierRates, *, confidence: float = 0.95) -> Estimate:
    """How often the classifier is right when data and draws are equally many."""
    return pops.share(rates.accuracy, confidence=confidence, method="accuracy at even odds on unseen prompts")


def _summary(
    pops: Populations, rates: Mapping[Name, ClassifierRates], sizes: Mapping[str, int], confidence: float
) -> DiscriminateResult:
    base, joint = rates["base"], rates["joint"]
    return DiscriminateResult(
        accuracy={name: classifier_accuracy(pops, rate, confidence=confidence) for name, rate in rates.items()},
        false_positives={
            name: pops.share(rate.of_draws, confidence=confidence, method="share of draws taken for data")
            for name, rate in rates.items()
        },
        gap=pops.estimate(
            lambda *counts: base.accuracy(*counts) - joint.accuracy(*counts),
            confidence=confidence,
            method="difference of accuracies",
        ),
        ess=pops.ess(confidence=confidence),
        sequences=sizes,
    )


def _table(pops: Populations, name: Name, *, rng: SeededRng) -> StoredNegatives:
    """The draws to be told from data, from which noise contrast picks."""
    drawn: Draws = pops.draws if name == "base" else pops.joint_draws(rng=rng)
    return StoredNegatives(drawn.x, drawn.log_base)
