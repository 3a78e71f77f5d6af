"""Rows of the recipe on global autoregressive models: a base r, a set of features, the tilted model p, the student.

The draws of r do not depend on the weights, so all feature sets of a run share them. Two comparisons use one base:
`regimes` has weights by rs, by snis and by Newton's method, with the base samples and seconds they took;
`distillation_methods` has students by every method, from about the same number of drawn strings.
"""

import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.bases.network import build_base
from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import empty_prompts
from esscher.core.target import Base, Tilted
from esscher.energies.declared_features import features_from_specs
from esscher.energies.feature_spec import FeatureSpec
from esscher.energies.features import Feature, LogLinear, feature_values
from esscher.energies.motif_features import NAMES, declared_motif_features
from esscher.energies.serialization import SavedLogLinear, base_digest, save_energy
from esscher.estimators.expectations import moments
from esscher.estimators.log_z import log_z
from esscher.estimators.perplexity import cross_entropy
from esscher.hub import ModelCard, save_base
from esscher.objectives.moment_descent import MomentDescent, base_feature_sampler
from esscher.objectives.moment_matching import MomentFit, match_moments
from esscher.papers.gam.studies import FEATURE_SETS, GamScale, MotifRun, base_run
from esscher.papers.study import ROW_FILE, Row, cached_json
from esscher.samplers.ancestral import Ancestral
from esscher.training.batches import ShuffledOrder
from esscher.training.config import TrainingConfig
from esscher.training.resumable import collect_draws
from esscher.workflow.config.distil import DistilConfig
from esscher.workflow.distil import distil
from esscher.workflow.train import TrainResult, train_base

ALL_FEATURES = "1111111"
RIDGE = 3.0  # standard deviation of the prior of weights: a distractor seen in neither data nor base stays near 0
SAMPLED_STRINGS = 4000  # of a student, to estimate the motif frequency


@dataclass(frozen=True)
class GamContext:
    """What all feature sets of a run share: the base, draws of it, and the seven features of draws and data."""

    source: MotifRun
    scale: GamScale
    folder: Path
    result: TrainResult
    declared: tuple[FeatureSpec, ...]
    features: list[Feature]
    pool: Draws
    pool_features: Float[Tensor, "N 7"]
    data_features: Float[Tensor, "M 7"]

    @property
    def base(self) -> Base:
        return self.result.base

    @property
    def entropy(self) -> float:
        return dict(self.result.splits.truth)["entropy of the process"].value

    def nats(self, model: Tilted, draws: Draws | None = None) -> Estimate:
        """Cross-entropy on the test strings, per symbol."""
        splits = self.result.splits
        return cross_entropy(model, splits.test, draws=draws, units=splits.units)["token"]

    def weighted(self, chosen: Sequence[int], weights: Float[Tensor, "K"]) -> Draws:
        """The draws of the base, weighted towards the model with these weights of the chosen features."""
        return replace(self.pool, log_weight=(self.pool_features[:, chosen] @ weights)[None])

    def tilted(self, chosen: Sequence[int], weights: Float[Tensor, "K"]) -> Tilted:
        """The base tilted by the chosen features."""
        return Tilted(self.base, LogLinear([self.features[place] for place in chosen], weights))

    def motif_frequency(self, draws: Draws) -> Estimate:
        """The share of strings with the motif under the distribution that the draws are weighted to."""
        present = 1 - feature_values(self.features[:1], draws.x)
        return moments(draws, present.view(1, -1, 1))[0]

    def sampled(self, student: Base) -> Draws:
        """Strings of a student."""
        rng = SeededRng(self.source.seed).stream("own")
        return Ancestral()(Tilted(student), empty_prompts(1), SAMPLED_STRINGS, rng=rng)


def make_rows(source: MotifRun, feature_sets: tuple[str, ...], scale: GamScale, out: Path) -> list[Row]:
    """The rows of a run, one for each feature set; the base is only loaded if a row is not finished."""
    context = cache(lambda: prepare_gam(source, scale, out))

    def make(bits: str) -> Row:
        return cached_json(out / source.name / bits / ROW_FILE, lambda: make_row(context(), bits))

    return [make(bits) for bits in feature_sets]


def prepare_gam(source: MotifRun, scale: GamScale, out: Path) -> GamContext:
    """Train the base of a run, draw from it, and compute all seven features of draws and data."""
    folder = out / source.name
    result = train_base(replace(base_run(source, scale, folder / "base"), resume=True))
    declared = declared_motif_features(source.motif, ALL_FEATURES, rng=SeededRng(source.seed).stream("distractors"))
    features = features_from_specs(declared)
    rng = SeededRng(source.seed).stream("gam")
    pool = collect_draws(Ancestral(), Tilted(result.base), empty_prompts(1), scale.draws, rng=rng, folder=folder / "draws")
    data_features = feature_values(features, result.splits.train)
    return GamContext(source, scale, folder, result, declared, features, pool, feature_values(features, pool.x), data_features)


@dataclass(frozen=True)
class FeatureFit:
    """The weights of a feature set, the tilted model, and the base's draws weighted towards it."""

    fit: MomentFit
    teacher: Tilted
    weighted: Draws
    chosen: list[int]  # indices among the seven features

    @property
    def fresh(self) -> Draws:
        """The half of the draws that the weights were not fitted on."""
        return self.weighted.columns(slice(self.weighted.log_weight.shape[1] // 2, None))


def fit_features(context: GamContext, feature_bits: str) -> FeatureFit:
    """Newton's weights for a feature set, on one half of the base's draws."""
    chosen = feature_indices(feature_bits)
    draws, data = context.pool_features[: context.scale.draws // 2, chosen], context.data_features[:, chosen]
    fit = match_moments([NAMES[place] for place in chosen], draws, data, ridge=RIDGE)
    return FeatureFit(fit, context.tilted(chosen, fit.tensor()), context.weighted(chosen, fit.tensor()), chosen)


def feature_indices(feature_bits: str) -> list[int]:
    """Which of the seven features are used."""
    return [place for place, bit in enumerate(feature_bits) if bit == "1"]


def make_row(context: GamContext, feature_bits: str) -> Row:
    """Fit the weights of one feature set, distil a student, and measure all models."""
    tilted, folder, scale = fit_features(context, feature_bits), context.folder / feature_bits, context.scale
    base, source, fit, fresh = context.result.base, context.source, tilted.fit, tilted.fresh
    declared = tuple(context.declared[place] for place in tilted.chosen)
    saved = SavedLogLinear(declared, fit.weights, str(context.result.folder), base_digest(base), log_z(fresh), source.seed)
    save_energy(folder / "energy", saved)
    student = deepcopy(base)
    if float(tilted.weighted.ess()) > scale.distil_sequences / 2:
        config = DistilConfig("importance", scale.distil_sequences, scale.draws)
    else:
        config = DistilConfig("cyclical", scale.distil_sequences, 2 * scale.draws, stages=2)
    distilled = distil(
        tilted.teacher, student, empty_prompts(1), config, distil_training(context), candidates=tilted.weighted,
        folder=folder, resume=True,
    )  # fmt: skip
    nats = {
        "CE r": context.nats(Tilted(base)), "CE p": context.nats(tilted.teacher, fresh),
        "CE student": context.nats(Tilted(student)),
    }  # fmt: skip
    unweighted = replace(fresh, log_weight=torch.zeros_like(fresh.log_weight))
    draws = {"r": unweighted, "p": fresh, "student": context.sampled(student)}
    row = {
        "motif": source.motif, "data": source.kind, "ft": feature_bits, "|D|": source.size,
        "base": source.training_label, "seed": source.seed, "H": context.entropy, **nats,
        "r / student": nats["CE r"].value / nats["CE student"].value,
        "student / H": nats["CE student"].value / context.entropy,
        **{f"motif in {name}": context.motif_frequency(one) for name, one in draws.items()},
        "weights": dict(zip(fit.names, fit.weights, strict=True)), "l1": fit.l1, "ess": fit.ess, "method": config.method,
        "drawn": distilled.cost, "kl to student": distilled.divergences["kl"],
        "notes": [str(warning) for warning in fit.warnings],
    }  # fmt: skip
    card = ModelCard(f"Student of {folder}", results=[("cross-entropy", nats["CE student"])])
    save_base(folder / "student", student, context.result.splits.tokenizer, card)
    return row


def distil_training(context: GamContext) -> TrainingConfig:
    """How a student is trained that starts from the weights of the base."""
    return TrainingConfig(
        epochs=context.scale.distil_epochs, batch_size=100, learning_rate=5e-4, schedule="linear", optimizer="adam",
        seed=context.source.seed,
    )  # fmt: skip


COMPARED = feature_indices(FEATURE_SETS[0])  # the features of both comparisons


def regimes(context: GamContext) -> list[Row]:
    """Three methods to fit weights, each with its own draws of the base: the `row` and the `curve` of distances of each."""
    return cached_json(context.folder / "regimes.json", lambda: [_regime(context, name) for name in ("newton", "snis", "rs")])


def _regime(context: GamContext, name: str) -> Row:
    """Fit by one method; moments and cross-entropy are measured on the draws of the context, which no method has seen."""
    names, features = [NAMES[place] for place in COMPARED], [context.features[place] for place in COMPARED]
    data, half, started = context.data_features[:, COMPARED], context.scale.draws // 2, time.perf_counter()
    rng = SeededRng(context.source.seed).stream("regime", name)
    source = base_feature_sampler(context.base, features, rng=rng.stream("draws"))
    if name == "newton":
        fit = match_moments(names, source(half), data, ridge=RIDGE)
    else:
        regime: Any = name
        descent = MomentDescent(regime, epochs=context.scale.descent_epochs)
        fit = descent(names, source, data, bounds=dict.fromkeys(names, (0.0, 1.0)), rng=rng.stream("accept"))
    seconds = time.perf_counter() - started
    weighted = context.weighted(COMPARED, fit.tensor())
    measured = (weighted.log_weight.softmax(-1)[0][:, None] * context.pool_features[:, COMPARED]).sum(0).tolist()
    row = {
        "regime": name,
        "weight of m": fit.weights[0],
        "l1 on other draws": sum(abs(one - two) for one, two in zip(measured, fit.moments_wanted, strict=True)),
        "base samples": fit.base_samples,
        "seconds": seconds,
        "CE p": context.nats(context.tilted(COMPARED, fit.tensor()), weighted),
    }
    curve = [float(step.base_samples) for step in fit.history], [step.l1 for step in fit.history]
    return {"row": row, "curve": curve}


def distillation_methods(context: GamContext) -> list[Row]:
    """Students by every method, from about the same number of drawn strings."""
    names = ("plain", "cyclical", "importance", "policy-gradient, kl", "policy-gradient, reverse-kl", "importance, new weights")
    folders = {name: context.folder / "students" / name.replace(", ", "-").replace(" ", "-") for name in names}
    return [cached_json(folder / ROW_FILE, partial(_distilled, context, name, folder)) for name, folder in folders.items()]


def _distilled(context: GamContext, name: str, folder: Path) -> Row:
    """A student by one method, named by the method and its divergence or initial weights."""
    method, _, variant = name.partition(", ")
    tilted = fit_features(context, FEATURE_SETS[0])
    student, config = deepcopy(context.result.base), _distil_config(context, tilted.fit, method, variant)
    if variant == "new weights":
        student = build_base(student.config, student.space, rng=SeededRng(context.source.seed).stream("new"))
    training, started = _equal_updates(context, config), time.perf_counter()
    distilled = distil(tilted.teacher, student, empty_prompts(1), config, training, folder=folder, resume=True)
    samples = context.sampled(student)
    return {
        "method": name,
        "CE student": context.nats(Tilted(student)),
        "motif in student": context.motif_frequency(samples),
        "kl to student": distilled.divergences["kl"],
        "drawn": distilled.cost,
        "worth": [round(stage.ess) for stage in distilled.stages],
        "seconds": time.perf_counter() - started,
    }


def _equal_updates(context: GamContext, config: DistilConfig) -> TrainingConfig:
    """As many updates for every method that learns from a fixed set, whatever its size."""
    training = distil_training(context)
    order = ShuffledOrder(context.scale.distil_sequences, training.batch_size, training.seed)
    updates = training.steps or order.steps(training.epochs or training.default_epochs)
    return replace(training, epochs=None, steps=max(1, updates // (config.stages if config.method == "cyclical" else 1)))


def _distil_config(context: GamContext, fit: MomentFit, method: str, variant: str) -> DistilConfig:
    """As many drawn strings for every method: rejection asks for as many accepted strings as these draws should give."""
    divergence: Any = variant if method == "policy-gradient" else "kl"
    kind: Any = method
    bound = fit.tensor().clamp(min=0).sum()
    accepted = int(0.9 * float((context.pool_features[:, COMPARED] @ fit.tensor() - bound).exp().sum()))
    draws = max(20, accepted) if method == "plain" else context.scale.distil_sequences
    return DistilConfig(kind, draws, context.scale.draws, 2, divergence, log_bound=float(bound))
