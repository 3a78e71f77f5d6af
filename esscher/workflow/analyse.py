"""Analyses of a tilted model: energies, n-grams, next tokens, and classifiers that tell draws from data.

The classifier is trained by noise contrast, one draw per sequence, from the same initial weights for base and tilted model, and
tested on other prompts. Its accuracy is at most 1/2 + TV(model, data) / 2, so it is a lower bound on the distance. Draws of the
tilted model come from a finite pool, which biases them towards the base; use data that the energy was not trained on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from jaxtyping import Float
from torch import Tensor

from esscher.core.estimate import Estimate
from esscher.core.progress import current_progress
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import Sequences, prompts_of, unique_prompts
from esscher.core.target import Base, Tilted, flat
from esscher.data.config import SourceConfig
from esscher.data.splits import random_rows, split_by_prompt
from esscher.energies.features import Decode
from esscher.energies.network import NetworkEnergy, build_energy
from esscher.estimators.continuations import NextTokens, next_tokens
from esscher.estimators.intervals import Statistic
from esscher.estimators.populations import (
    NAMES,
    EnergyComparison,
    Name,
    Populations,
    UniqueNgrams,
    compare_energies,
    populations,
    unique_ngrams,
)
from esscher.estimators.reliability import TOO_FEW
from esscher.networks.transformer_config import TransformerConfig
from esscher.objectives.noise_contrastive import NoiseContrast, StoredNegatives
from esscher.reports import plots
from esscher.reports.report import Report
from esscher.reports.tables import token_name
from esscher.samplers.importance import Importance
from esscher.samplers.scoring import log_weight
from esscher.training.config import TrainingConfig
from esscher.training.evaluation import HeldOut
from esscher.training.resumable import ResumableByDraws
from esscher.training.trainer import Trainer
from esscher.workflow.config.analyse import DiscriminateConfig, EnergiesConfig, NextTokenConfig, NgramsConfig
from esscher.workflow.model import Model
from esscher.workflow.sample import evidence_notes
from esscher.workflow.tilt import energy_data

R = TypeVar("R")


@dataclass(frozen=True)
class Analysis(Generic[R]):
    """What was estimated, and its report."""

    result: R
    report: Report


def draw_populations(target: Tilted, x: Sequences, draws: int, *, rng: Rng) -> Populations:
    """The data `x` beside `draws` weighted draws of the base after each different prompt; after a single one, for each row."""
    if target.energy is flat:
        raise ValueError("There is no energy, so the tilted model is the base. Nothing was drawn; name one with --energy.")
    if len(x) == 0:
        raise ValueError("There is no sequence to compare with. Nothing was drawn; give more data.")
    if draws < 2:
        raise ValueError(
            f"A draw of the tilted model is chosen from at least 2 draws of the base, not {draws}. Nothing was drawn."
        )
    prompts, _ = unique_prompts(x)
    count = draws * len(x) if len(prompts) == 1 else draws
    return populations(x, ResumableByDraws(Importance(), say=current_progress().say)(target, prompts, count, rng=rng))


def comparison_data(model: Model, source: SourceConfig | None) -> tuple[Sequences, str]:
    """The data to compare with as sequences of the model, by default held-out ones, and what to call them."""
    if source is None:
        trained = "energy" if model.is_tilted else "model"
        return model.training_splits(energy_data(model)).test, f"held out of the training data of the {trained}"
    data = model.data.read(source, model.trained)
    return data.x, data.description


def ess_notes(ess: Estimate) -> list[str]:
    """Advice where the draws after a prompt are worth too few."""
    if ess.value >= TOO_FEW:
        return []
    return [
        f"The effective sample size of the draws after a prompt is only {ess.value:.1f}: the numbers of the tilted model "
        f"are biased towards the base; raise --draws."
    ]


def _draw_comparison(model: Model, settings: EnergiesConfig) -> tuple[Populations, dict[str, Any], list[str]]:
    """Draws beside the data, facts on them, and advice where there are too few."""
    (data, description), rng = comparison_data(model, settings.source), SeededRng(settings.seed)
    x = random_rows(data, settings.sequences, rng=rng.stream("sequences"))
    pops = draw_populations(model.target, x, settings.draws, rng=rng.stream("draws"))
    facts = {
        **model.facts, "data": description, "seed": settings.seed, "sequences": len(x),
        "drawn_from_the_base": pops.draws.cost, "ess": pops.ess(),
    }  # fmt: skip
    return pops, facts, [*ess_notes(pops.ess()), *evidence_notes(pops.draws, model.target, model.stored_estimates)]


def analyse_energies(model: Model, settings: EnergiesConfig) -> Analysis[EnergyComparison]:
    """Means, distances and a histogram of the energies of data, base and tilted model."""
    pops, facts, notes = _draw_comparison(model, settings)
    rng = SeededRng(settings.seed).stream("resamples")
    result = compare_energies(model.target, pops, confidence=settings.confidence, rng=rng)
    edges, shares = result.histogram.edges, result.histogram.shares
    if settings.plot is not None:
        figure = plots.step_histograms(edges, shares, label="energy (nats)")
        facts["plot"] = plots.save_figure(figure, Path(settings.plot))
    columns = {"mean": result.mean, "above data": result.above, "distance to data": result.distance}
    tables = {"energies": [{"of": name} | {column: values.get(name) for column, values in columns.items()} for name in NAMES]}
    json_tables = tables | {"histogram": {"edges": edges, **shares}}
    return Analysis(result, Report("esscher analyse energies", facts, tables, notes, json_tables=json_tables))


def analyse_ngrams(model: Model, settings: NgramsConfig) -> Analysis[list[UniqueNgrams]]:
    """The share of different n-grams in data, base and tilted model, for each n up to the longest."""
    pops, facts, notes = _draw_comparison(model, settings)
    result = unique_ngrams(pops, range(1, settings.longest + 1), confidence=settings.confidence)
    if settings.plot is not None:
        lines: dict[str, list[Estimate]] = {name: [row.ratio[name] for row in result] for name in NAMES}
        figure = plots.estimate_lines([row.n for row in result], lines, x="n", y="ratio of unique n-grams")
        facts["plot"] = plots.save_figure(figure, Path(settings.plot))
    rows = [{"n": row.n, **row.ratio, **{f"{name} above data": value for name, value in row.above.items()}} for row in result]
    return Analysis(result, Report("esscher analyse n-grams", facts, {"unique_ngrams": rows}, notes))


def analyse_next_token(model: Model, settings: NextTokenConfig) -> Analysis[NextTokens]:
    """Probabilities of the next token after a prompt, under the base and under the tilted model."""
    if not model.is_tilted:
        raise ValueError("There is no energy, so the tilted model is the base. Nothing was computed; name one with --energy.")
    prompt, notes = encode_prompt(model, settings.prompt)
    rng = SeededRng(settings.seed)
    result = next_tokens(model.target, prompt, top=settings.top, draws=settings.draws, confidence=settings.confidence, rng=rng)
    tokens = prompt.tokens[0].tolist()
    names = [token_name(row.token, tokens, model.tokenizer) for row in result.rows]
    rows = [
        {"text": name, "token": row.token, "base": row.base, "joint": row.joint, "joint over base": _over(row.joint, row.base)}
        for name, row in zip(names, result.rows, strict=True)
    ]
    facts: dict[str, Any] = {
        **model.facts, "prompt": settings.prompt, "prompt_tokens": int(prompt.start[0]),
        "seed": settings.seed,
    }  # fmt: skip
    if settings.plot is not None:
        series = {"base": [row.base for row in result.rows], "joint": [row.joint for row in result.rows]}
        figure = plots.estimate_bars(names, series, label="probability of the next token")
        facts["plot"] = plots.save_figure(figure, Path(settings.plot))
    return Analysis(result, Report("esscher analyse next-token", facts, {"next_tokens": rows}, [*notes, *result.warnings]))


def encode_prompt(model: Model, text: str) -> tuple[Sequences, list[str]]:
    """The prompt as tokens, and a note where the model was trained after prompts of another length."""
    prompt = prompts_of(model.data.encode_prompts([text]))
    length = int(prompt.start[0])
    if length == 0 and model.prompt_tokens > 0:
        raise ValueError(
            f"The prompt is empty, and this model continues prompts of {model.prompt_tokens} tokens. Nothing was computed; "
            f"give a prompt."
        )
    if model.chunking.prompt_tokens is None or length == model.prompt_tokens:
        return prompt, []
    return prompt, [f"The energy was trained after prompts of {model.prompt_tokens} tokens, and this one has {length}."]


def _over(joint: Estimate, base: Estimate) -> Estimate | None:
    return joint.map(lambda share: share / base.value) if base.value > 0 else None


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
    """Train and test classifiers that tell draws from data: their accuracies for draws of the base and of the tilted model."""
    (x, description), seed = comparison_data(model, settings.source), settings.training.seed
    result = discriminate(model.target, x, settings, decode=model.decode(), rng=SeededRng(seed))
    facts: dict[str, Any] = {
        **model.facts, "data": description, "seed": seed,
        "sequences": " ".join(f"{name} {count:,}" for name, count in result.sequences.items()),
        "accuracy_base_minus_joint": result.gap, "ess": result.ess,
    }  # fmt: skip
    if settings.plot is not None:
        accuracies = {f"{name} draws": value for name, value in result.accuracy.items()}
        label = "accuracy of a new classifier against data"
        figure = plots.intervals(accuracies, label=label, truth=0.5, truth_label="indistinguishable")
        facts["plot"] = plots.save_figure(figure, Path(settings.plot))
    rows = [
        {"draws of": name, "accuracy": accuracy, "false positive rate": result.false_positives[name]}
        for name, accuracy in result.accuracy.items()
    ]
    return Analysis(result, Report("esscher analyse discriminate", facts, {"against_data": rows}, ess_notes(result.ess)))


def discriminate(
    target: Tilted, x: Sequences, settings: DiscriminateConfig, *, decode: Decode | None = None, rng: SeededRng
) -> DiscriminateResult:
    """Train a classifier for each kind of draws and test it; one that reads text needs the base's `decode` from tokens."""
    config, confidence = settings.classifier, settings.confidence
    x = random_rows(x, settings.sequences, rng=rng.stream("sequences"))
    if isinstance(config.network, TransformerConfig):  # one of its own reads as many positions as there are
        config = replace(config, network=replace(config.network, max_positions=int(x.start.max()) + target.space.max_length))
    classifiers = {  # before anything is drawn, so that a mistake in their settings costs nothing
        name: build_energy(config, target.base, decode=decode, rng=rng.stream("classifier")) for name in AGAINST
    }
    parts = split_by_prompt(x, (settings.validation, settings.test), rng=rng.stream("split"))
    learn, choose, judge = (
        draw_populations(target, part, settings.draws, rng=rng.stream("draws", use))
        for use, part in zip(("learn", "choose", "judge"), parts, strict=True)
    )
    rates: dict[Name, tuple[Statistic, Statistic]] = {}
    for name, energy in classifiers.items():
        current_progress().say(f"Training a classifier of data against draws of the {name}.")
        train_classifier(energy, target.base, learn, choose, name, settings.training, rng=rng.stream("learn", name))
        rates[name] = classifier_rates(energy, target.base, judge, name)
    base, joint = rates["base"][0], rates["joint"][0]
    method, false_method = "accuracy at even odds on unseen prompts", "share of draws taken for data"
    accuracy = {name: judge.share(right, confidence=confidence, method=method) for name, (right, _) in rates.items()}
    wrong = {name: judge.share(rate, confidence=confidence, method=false_method) for name, (_, rate) in rates.items()}
    gap = judge.estimate(lambda *n: base(*n) - joint(*n), confidence=confidence, method="difference of accuracies")
    sizes = {use: len(part) for use, part in zip(("training", "validation", "test"), parts, strict=True)}
    return DiscriminateResult(accuracy, wrong, gap, judge.ess(confidence=confidence), sizes)


def train_classifier(
    energy: NetworkEnergy,
    base: Base,
    learn: Populations,
    choose: Populations,
    name: Name,
    training: TrainingConfig,
    *,
    rng: Rng,
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
    sides: tuple[Name, Name] = ("data", name)
    of_data, of_draws = (pops.ratio(side, (log_weight(classifier, pops[side].x) > 0).double()) for side in sides)

    def accuracy(*counts: Tensor) -> Float[Tensor, ""]:
        return (1 + of_data(*counts) - of_draws(*counts)) / 2

    return accuracy, of_draws
