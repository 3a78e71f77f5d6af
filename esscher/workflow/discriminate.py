"""How well a new classifier tells draws of a model from data: draws of the base, and draws of the tilted model.

A new network is trained by noise contrast, one draw for each sequence, from the same initial weights for both kinds of draws,
and tested on prompts that it was not trained on. Draws that have the distribution of the data leave it an accuracy of 1/2. No
classifier is right more often than 1/2 + half the total variation between model and data, so the accuracy is a lower bound on
the distance, as tight as the classifier is good. Draws of the tilted model come from a finite pool, which leaves them a little
nearer the base. Data that the energy was trained on make the tilted model look better than it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from esscher.core.estimate import Estimate
from esscher.core.progress import current_progress
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences
from esscher.core.target import Base, Tilted
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
from esscher.workflow.config.analyse import ClassifierTraining, DiscriminateConfig
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
        {"draws of": name, "accuracy": accuracy, "false positive rate": result.false_positives[name]}
        for name, accuracy in result.accuracy.items()
    ]
    return Analysis(result, Report("esscher analyse discriminate", facts, {"against_data": rows}, ess_notes(result.ess)))


def discriminate(
    target: Tilted, x: Sequences, settings: DiscriminateConfig, *, decode: Decode | None = None, rng: SeededRng
) -> DiscriminateResult:
    """Train a classifier for each kind of draws and test it; one that reads text needs the base's `decode` from tokens."""
    say, config, confidence = current_progress().say, settings.classifier, settings.confidence
    x = random_rows(x, settings.sequences, rng=rng.stream("sequences"))
    if isinstance(config.network, TransformerConfig):  # one of its own reads as many positions as there are
        config = replace(config, network=replace(config.network, max_positions=int(x.start.max()) + target.space.max_length))
    classifiers = {  # before anything is drawn, so that a mistake in their settings costs nothing
        name: build_energy(config, target.base, decode=decode, rng=rng.stream("classifier")) for name in AGAINST
    }
    parts = split_by_prompt(x, (settings.validation, settings.test), rng=rng.stream("split"))
    learn, choose, judge = (
        draw_populations(target, part, settings.draws, rng=rng.stream("draws", use), say=say)
        for use, part in zip(("learn", "choose", "judge"), parts, strict=True)
    )
    rates: dict[Name, tuple[Statistic, Statistic]] = {}
    for name, energy in classifiers.items():
        say(f"Training a classifier of data against draws of the {name}.")
        train_classifier(energy, target.base, learn, choose, name, settings.training, rng=rng.stream("learn", name))
        rates[name] = classifier_rates(energy, target.base, judge, name)
    base, joint = rates["base"][0], rates["joint"][0]
    method, false_method = "accuracy at even odds on unseen prompts", "share of draws taken for data"
    return DiscriminateResult(
        {name: judge.share(right, confidence=confidence, method=method) for name, (right, _) in rates.items()},
        {name: judge.share(wrong, confidence=confidence, method=false_method) for name, (_, wrong) in rates.items()},
        judge.estimate(
            lambda *counts: base(*counts) - joint(*counts), confidence=confidence, method="difference of accuracies"
        ),
        judge.ess(confidence=confidence),
        {use: len(part) for use, part in zip(("training", "validation", "test"), parts, strict=True)},
    )


def train_classifier(
    energy: NetworkEnergy,
    base: Base,
    learn: Populations,
    choose: Populations,
    name: Name,
    training: ClassifierTraining,
    *,
    rng: SeededRng,
) -> None:
    """Train the classifier in place on `learn`; it ends with the weights that were best on `choose`."""
    objectives = []
    for use, pops in (("learn", learn), ("choose", choose)):
        draws = pops.draws if name == "base" else pops.joint_draws(rng=rng.stream(use))
        objectives.append(NoiseContrast(StoredNegatives(draws.x, draws.log_base)))
    x, held_out = learn.data.x, HeldOut(objectives[1], choose.data.x)
    Trainer(training)(objectives[0], Tilted(base, energy), x, modules=energy, validation=held_out)
    energy.to(x.tokens.device).eval()


def classifier_rates(energy: NetworkEnergy, base: Base, pops: Populations, name: Name) -> tuple[Statistic, Statistic]:
    """Accuracy where data and draws are equally many, and the share of draws taken for data; weights of the joint count."""
    classifier = Tilted(base, energy)
    both: tuple[Name, Name] = ("data", name)
    of_data, of_draws = (pops.ratio(which, (log_weight(classifier, pops[which].x) > 0).double()) for which in both)

    def accuracy(*counts: Tensor) -> Float[Tensor, ""]:
        return (1 + of_data(*counts) - of_draws(*counts)) / 2

    return accuracy, of_draws
