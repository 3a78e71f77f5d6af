"""Settings and rows of the recipe on global autoregressive models: a base r, features, the tilted model p, the student. All
feature sets of a run share the draws of r, which do not depend on the weights."""

import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.bases.network import build_base
from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import empty_prompts
from esscher.core.target import Base, Tilted
from esscher.data.config import MOTIF, DataConfig
from esscher.energies.declared_features import features_from_specs
from esscher.energies.feature_spec import FeatureSpec
from esscher.energies.features import Feature, LogLinear, feature_values
from esscher.energies.motif_features import NAMES, declared_motif_features
from esscher.energies.serialization import SavedLogLinear, base_digest, save_energy
from esscher.estimators.expectations import moments
from esscher.estimators.log_z import log_z
from esscher.estimators.perplexity import cross_entropy
from esscher.hub import ModelCard, save_base
from esscher.networks.recurrent_config import LstmConfig
from esscher.objectives.moment_descent import MomentDescent, base_feature_sampler
from esscher.objectives.moment_matching import MomentFit, match_moments
from esscher.papers.study import ROW_FILE, Row, cached_json
from esscher.samplers.ancestral import Ancestral
from esscher.training.batches import ShuffledOrder
from esscher.training.config import DistilConfig, TrainingConfig
from esscher.training.distillation import distil
from esscher.training.resumable import ResumableByDraws
from esscher.workflow.config.train import TrainRun
from esscher.workflow.train import TrainResult, train_base

FEATURE_SETS = ("1001111", "1011111", "0111111")
MOTIFS = ("10001011111000", "01011101101", "001001100111", "1011100111001", "100010100011")


@dataclass(frozen=True, kw_only=True)
class GamScale:
    """The settings that differ between scales; the first motif is that of all extra runs, with pure data."""

    base: TrainRun  # the length of strings, the network, and how long it learns at most
    distil: DistilConfig  # `draws` of a student, and `candidates` of the base: half to fit weights, half to estimate log Z
    distil_epochs: int
    motifs: tuple[str, ...]
    sizes: tuple[int, ...]
    mixtures: tuple[float, ...] = (1.0, 0.9)  # shares of strings that hold the motif; 1 is the paper's pure process
    feature_sets: tuple[str, ...] = FEATURE_SETS
    extra_sizes: tuple[int, ...] = ()  # more data sizes, with the first feature set
    descent_epochs: int  # of the stochastic regimes, at most
    early_stop_updates: int  # of bases that are stopped early

    def runs(self, seeds: int) -> Iterator[tuple[TrainRun, tuple[str, ...]]]:
        """All bases with their feature sets; seeds after the first repeat the first motif, pure, with the first feature set."""
        for motif, mixture, size in product(self.motifs, self.mixtures, self.sizes):
            yield self._run(motif, size, mixture=mixture), self.feature_sets
        first, features = self.motifs[0], self.feature_sets[:1]
        for seed, size in product(range(1, seeds), self.sizes):
            yield self._run(first, size, seed=seed), features
        for size in self.extra_sizes:
            yield self._run(first, size), features
        for size in (*self.extra_sizes[-1:], *self.sizes):
            yield self._run(first, size, updates=self.early_stop_updates), features

    def _run(self, motif: str, size: int, *, mixture: float = 1.0, seed: int = 0, updates: int | None = None) -> TrainRun:
        """A base that stops by its patience, or after so many updates."""
        training = replace(self.base.training, evaluate_every=max(1, min(size // self.base.training.batch_size, 50)), seed=seed)
        if updates is not None:
            training = replace(training, steps=updates, patience=None)
        data = replace(self.base.data, source=f"{MOTIF}{motif}", size=size, mixture=mixture)
        return replace(self.base, data=data, training=training)


def kind_of(run: TrainRun) -> str:
    """Whether all strings hold the motif."""
    return "pure" if run.data.mixture == 1 else "mixture"


def run_name(run: TrainRun) -> str:
    """The name of the folder of a run."""
    early = f"-{run.training.steps}updates" if run.training.patience is None else ""
    return f"{run.data.motif}-{kind_of(run)}-{run.data.size}{early}-seed{run.training.seed}"


def _base(*, length: int, width: int, steps: int) -> TrainRun:
    """An LSTM by Adam at 1e-3, stopped by a patience of 20 as in the paper."""
    training = TrainingConfig(batch_size=50, optimizer="adam", steps=steps, patience=20)
    return TrainRun("", data=DataConfig(length=length), base=LstmConfig(width=width), training=training)


SCALES = {
    "smoke": GamScale(
        base=_base(length=12, width=32, steps=60), distil=DistilConfig(draws=1_000, candidates=3_000), distil_epochs=1,
        motifs=("1000101",), sizes=(200,), feature_sets=FEATURE_SETS[:1], descent_epochs=4, early_stop_updates=20,
    ),
    "small": GamScale(
        base=_base(length=30, width=200, steps=2_000), distil=DistilConfig(draws=20_000, candidates=40_000), distil_epochs=2,
        motifs=MOTIFS[:2], sizes=(500, 5000), extra_sizes=(100, 200), descent_epochs=40, early_stop_updates=250,
    ),
    "paper": GamScale(
        base=_base(length=30, width=200, steps=40_000), distil=DistilConfig(draws=20_000, candidates=400_000),
        distil_epochs=20, motifs=MOTIFS, sizes=(500, 1000, 5000, 10000, 20000), extra_sizes=(100, 200), descent_epochs=200,
        early_stop_updates=250,
    ),
}  # fmt: skip


FULL = "to the end"
RIDGE = 3.0  # standard deviation of the prior of weights: a distractor seen in neither data nor base stays near 0
SAMPLED_STRINGS = 4000  # of a student, to estimate the motif frequency


@dataclass(frozen=True)
class GamContext:
    """What all feature sets of a run share: the base, draws of it, and the seven features of draws and data."""

    scale: GamScale
    folder: Path
    result: TrainResult
    declared: tuple[FeatureSpec, ...]
    features: list[Feature]
    pool: Draws
    pool_features: Float[Tensor, "N 7"]
    data_features: Float[Tensor, "M 7"]

    @property
    def run(self) -> TrainRun:
        return self.result.run

    @property
    def entropy(self) -> float:
        return dict(self.result.splits.truth)["entropy of the process"].value

    @property
    def student_training(self) -> TrainingConfig:
        """How a student is trained that starts from the weights of the base."""
        return TrainingConfig(
            epochs=self.scale.distil_epochs, batch_size=100, learning_rate=5e-4, schedule="linear", optimizer="adam",
            seed=self.run.training.seed,
        )  # fmt: skip

    def fit(self, bits: str) -> MomentFit:
        """Newton's weights for a feature set, on one half of the base's draws."""
        chosen = [place for place, bit in enumerate(bits) if bit == "1"]
        draws, data = self.pool_features[: len(self.pool_features) // 2, chosen], self.data_features[:, chosen]
        return match_moments([NAMES[place] for place in chosen], draws, data, ridge=RIDGE)

    def tilted(self, fit: MomentFit) -> Tilted:
        """The base tilted by the features of a fit."""
        return Tilted(self.result.base, LogLinear([self.features[place] for place in places_of(fit)], fit.tensor()))

    def weighted(self, fit: MomentFit) -> Draws:
        """The draws of the base, weighted towards the tilted model of a fit."""
        return replace(self.pool, log_weight=(self.pool_features[:, places_of(fit)] @ fit.tensor())[None])

    def nats(self, model: Tilted, draws: Draws | None = None) -> Estimate:
        """Cross-entropy on the test strings, per symbol."""
        splits = self.result.splits
        return cross_entropy(model, splits.test, draws=draws, units=splits.units)["token"]

    def motif_frequency(self, draws: Draws) -> Estimate:
        """The share of strings with the motif under the distribution that the draws are weighted to."""
        present = 1 - feature_values(self.features[:1], draws.x)
        return moments(draws, present.view(1, -1, 1))[0]

    def sampled(self, student: Base) -> Draws:
        """Strings of a student."""
        return Ancestral()(
            Tilted(student), empty_prompts(1), SAMPLED_STRINGS, rng=SeededRng(self.run.training.seed).stream("own")
        )


def places_of(fit: MomentFit) -> list[int]:
    """The indices of the features of a fit among all seven."""
    return [NAMES.index(name) for name in fit.names]


def make_rows(run: TrainRun, feature_sets: tuple[str, ...], scale: GamScale, out: Path) -> list[Row]:
    """The rows of a run, one for each feature set; the base is only loaded if a row is not finished."""
    context, folder = cache(lambda: prepare_gam(run, scale, out)), out / run_name(run)

    def make(bits: str) -> Row:
        return make_row(context(), bits)

    return [cached_json(folder / bits / ROW_FILE, partial(make, bits)) for bits in feature_sets]


def prepare_gam(run: TrainRun, scale: GamScale, out: Path) -> GamContext:
    """Train the base of a run, draw from it, and compute all seven features of draws and data."""
    folder, rng = out / run_name(run), SeededRng(run.training.seed)
    result = train_base(replace(run, out=str(folder / "base"), resume=True))
    assert run.data.motif is not None
    declared = declared_motif_features(run.data.motif, "1" * len(NAMES), rng=rng.stream("distractors"))
    features, target = features_from_specs(declared), Tilted(result.base)
    draws, rng = scale.distil.candidates, rng.stream("gam")
    pool = ResumableByDraws(Ancestral(), folder / "draws")(target, empty_prompts(1), draws, rng=rng)
    data_features = feature_values(features, result.splits.train)
    return GamContext(scale, folder, result, declared, features, pool, feature_values(features, pool.x), data_features)


def make_row(context: GamContext, feature_bits: str) -> Row:
    """Fit the weights of one feature set, distil a student, and measure all models."""
    base, run, folder, config = context.result.base, context.run, context.folder / feature_bits, context.scale.distil
    fit = context.fit(feature_bits)
    teacher, weighted = context.tilted(fit), context.weighted(fit)
    fresh = weighted.columns(slice(config.candidates // 2, None))  # the weights were not fitted on these
    declared = tuple(context.declared[place] for place in places_of(fit))
    origin = str(context.result.folder), base_digest(base), log_z(fresh), run.training.seed
    save_energy(folder / "energy", SavedLogLinear(declared, fit.weights, *origin))
    if float(weighted.ess()) <= config.draws / 2:
        config = replace(config, method="cyclical", candidates=2 * config.candidates, stages=2)
    student = deepcopy(base)
    distilled = distil(
        teacher, student, empty_prompts(1), config, context.student_training, candidates=weighted, folder=folder, resume=True
    )
    nats = {
        "CE r": context.nats(Tilted(base)), "CE p": context.nats(teacher, fresh), "CE student": context.nats(Tilted(student)),
    }  # fmt: skip
    unweighted = replace(fresh, log_weight=torch.zeros_like(fresh.log_weight))
    draws = {"r": unweighted, "p": fresh, "student": context.sampled(student)}
    card = ModelCard(f"Student of {folder}", results=[("cross-entropy", nats["CE student"])])
    save_base(folder / "student", student, context.result.splits.tokenizer, card)
    return {
        "motif": run.data.motif, "data": kind_of(run), "ft": feature_bits, "|D|": run.data.size,
        "base": FULL if run.training.patience else f"{run.training.steps} updates", "seed": run.training.seed,
        "H": context.entropy, **nats,
        "r / student": nats["CE r"].value / nats["CE student"].value,
        "student / H": nats["CE student"].value / context.entropy,
        **{f"motif in {name}": context.motif_frequency(strings) for name, strings in draws.items()},
        "weights": dict(zip(fit.names, fit.weights, strict=True)), "l1": fit.l1, "ess": fit.ess, "method": config.method,
        "drawn": distilled.cost, "kl to student": distilled.divergences["kl"],
        "notes": [str(warning) for warning in fit.warnings],
    }  # fmt: skip


def regimes(context: GamContext) -> list[Row]:
    """Three methods to fit weights, each with its own draws of the base: the `row` and the `curve` of distances of each."""
    return cached_json(context.folder / "regimes.json", lambda: [_regime(context, name) for name in ("newton", "snis", "rs")])


def _regime(context: GamContext, name: str) -> Row:
    """Fit by one method; moments and cross-entropy are measured on the draws of the context, which no method has seen."""
    places = [place for place, bit in enumerate(FEATURE_SETS[0]) if bit == "1"]
    names, features = [NAMES[place] for place in places], [context.features[place] for place in places]
    data, rng, started = (
        context.data_features[:, places],
        SeededRng(context.run.training.seed).stream("regime", name),
        time.perf_counter(),
    )
    source = base_feature_sampler(context.result.base, features, rng=rng.stream("draws"))
    if name == "newton":
        fit = match_moments(names, source(context.scale.distil.candidates // 2), data, ridge=RIDGE)
    else:
        descent = MomentDescent(cast(Any, name), epochs=context.scale.descent_epochs)
        fit = descent(names, source, data, bounds=dict.fromkeys(names, (0.0, 1.0)), rng=rng.stream("accept"))
    seconds, weighted = time.perf_counter() - started, context.weighted(fit)
    measured = (weighted.log_weight.softmax(-1)[0][:, None] * context.pool_features[:, places]).sum(0).tolist()
    row = {
        "regime": name,
        "weight of m": fit.weights[0],
        "l1 on other draws": sum(abs(moment - wanted) for moment, wanted in zip(measured, fit.moments_wanted, strict=True)),
        "base samples": fit.base_samples,
        "seconds": seconds,
        "CE p": context.nats(context.tilted(fit), weighted),
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
    method, variant = cast(tuple[Any, Any], name.partition(", ")[::2])
    student, config, fit = deepcopy(context.result.base), context.scale.distil, context.fit(FEATURE_SETS[0])
    if variant == "new weights":
        student = build_base(student.config, student.space, rng=SeededRng(context.run.training.seed).stream("new"))
    elif variant:
        config = replace(config, divergence=variant)
    # as many updates for every method that learns from a fixed set, whatever its size
    training = context.student_training
    updates = ShuffledOrder(config.draws, training.batch_size, training.seed).steps(context.scale.distil_epochs)
    training = replace(training, epochs=None, steps=max(1, updates // (2 if method == "cyclical" else 1)))
    bound = fit.tensor().clamp(min=0).sum()
    if method == "plain":  # rejection asks for as many accepted strings as `candidates` draws should give
        log_accept = context.pool_features[:, places_of(fit)] @ fit.tensor() - bound
        config = replace(config, draws=max(20, int(0.9 * float(log_accept.exp().sum()))))
    config, started = replace(config, method=method, stages=2, log_bound=float(bound)), time.perf_counter()
    distilled = distil(context.tilted(fit), student, empty_prompts(1), config, training, folder=folder, resume=True)
    return {
        "method": name,
        "CE student": context.nats(Tilted(student)),
        "motif in student": context.motif_frequency(context.sampled(student)),
        "kl to student": distilled.divergences["kl"],
        "drawn": distilled.cost,
        "worth": [round(stage.ess) for stage in distilled.stages],
        "seconds": time.perf_counter() - started,
    }
