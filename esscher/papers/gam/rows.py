"""Settings and rows of the recipe on global autoregressive models, as published: a base r, weights of features of the whole
string, 20,000 accepted strings of the tilted model p, and a new student of them.

The paper stops a base by "patience = 20" and says neither how often it evaluates nor how large a batch is, so a cell is made
for each reading (`READINGS`). All feature sets of a cell share the base and the draws of it.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import product
from pathlib import Path

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
from esscher.objectives.moment_matching import MomentFit, match_moments
from esscher.papers.gam.lookahead import Lookahead
from esscher.papers.study import ROW_FILE, Row, cached_json
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Importance
from esscher.training.config import DistilConfig, TrainingConfig
from esscher.training.distillation import distil
from esscher.training.resumable import ResumableByDraws
from esscher.workflow.config.train import TrainRun
from esscher.workflow.train import TrainResult, train_base

FEATURE_SETS = ("1001111", "1011111", "0111111")
PURE_MOTIFS = ("10001011111000", "01011101101", "001001100111", "1011100111001", "10001010001")
MIXTURE_MOTIFS = (*PURE_MOTIFS[:4], "100010100011")  # Table 3 has one other motif for mixtures
KINDS = {"pure": 1.0, "mixture": 0.9}  # the share of strings that hold the motif
FASTEST_BATCH = 100  # strings that an LSTM reads in one pass; larger batches take several
REPEATED_SIZES = 2  # numbers of strings that further seeds have, the least ones, where features bring most
RARE = 0.25  # motif frequency of a base below which strings are proposed with a look ahead
MIN_ESS_SHARE = 0.01  # of fresh draws under fitted weights; below it a few draws that differ in a rare distractor decide


@dataclass(frozen=True)
class Reading:
    """What "patience = 20" may mean: 20 evaluations without a new best, one after each update or each epoch."""

    batch_size: int
    every_update: bool = False


READINGS = {"epochs of batches of 50": Reading(50), "updates": Reading(50, True), "epochs of batches of 500": Reading(500)}


@dataclass(frozen=True)
class Cell:
    """A process, a number of strings, a reading of the patience, and a seed."""

    motif: str
    kind: str
    size: int
    reading: str
    seed: int = 0

    def __str__(self) -> str:
        reading = self.reading.replace("epochs of batches of", "epochs").replace(" ", "-")
        return f"{self.motif}-{self.kind}-{self.size}-{reading}-seed{self.seed}"


@dataclass(frozen=True, kw_only=True)
class GamScale:
    """The settings that differ between scales; the first motif, pure, is that of all extra rows."""

    base: TrainRun  # the length of strings, the network, and how many updates it has at most
    max_strings_read: int  # by a base at most, which bounds the updates with large batches
    distil: DistilConfig  # `draws` are accepted strings; `candidates` are draws of the base
    student: TrainingConfig  # of the new student, which has the network of the base
    distil_epochs: int  # of the students that are compared by method
    motifs: Mapping[str, tuple[str, ...]]  # by kind of data
    sizes: tuple[int, ...]  # in the order in which they are made
    first_sizes: int  # of them, made for all motifs before the others
    feature_sets: tuple[str, ...] = FEATURE_SETS  # of pure data; mixtures have the first one
    readings: tuple[str, ...] = tuple(READINGS)  # of pure data of the first motif
    readings_elsewhere: tuple[str, ...] = tuple(READINGS)
    descent_epochs: int  # of the stochastic regimes, at most
    weak_updates: int | None  # of the base on which methods are compared; None leaves the comparisons out

    def cells(self, seeds: int = 1) -> Iterator[tuple[Cell, str]]:
        """All rows, as cells and feature sets, in the order in which they are made: the first sizes of every motif, the other
        sizes, the readings that only the first motif has, the other feature sets (pure data), and other seeds of every motif
        with the two least of the first sizes."""
        motifs = [
            (motif, kind) for number in range(5) for kind in self.motifs for motif in self.motifs[kind][number : number + 1]
        ]
        for sizes in (self.sizes[: self.first_sizes], self.sizes[self.first_sizes :]):
            for (motif, kind), size, reading in product(motifs, sizes, self.readings_elsewhere):
                yield Cell(motif, kind, size, reading), FEATURE_SETS[0]
        alone = [reading for reading in self.readings if reading not in self.readings_elsewhere]
        for size, reading in product(self.sizes, alone):
            yield Cell(self.motifs["pure"][0], "pure", size, reading), FEATURE_SETS[0]
        for number, motif in enumerate(self.motifs["pure"]):
            readings = self.readings_elsewhere if number else self.readings
            for bits, size, reading in product(self.feature_sets[1:], self.sizes, readings):
                yield Cell(motif, "pure", size, reading), bits
        few = sorted(self.sizes[: self.first_sizes])[:REPEATED_SIZES]
        for seed, (motif, kind), size, reading in product(range(1, seeds), motifs, few, self.readings_elsewhere):
            yield Cell(motif, kind, size, reading, seed), FEATURE_SETS[0]

    def run(self, cell: Cell) -> TrainRun:
        """The training of the base of a cell."""
        reading = READINGS[cell.reading]
        every = 1 if reading.every_update else max(1, cell.size // reading.batch_size)
        steps = min(self.base.training.steps or 1, self.max_strings_read // reading.batch_size)
        training = replace(
            self.base.training, batch_size=reading.batch_size, evaluate_every=every, steps=max(1, steps), seed=cell.seed,
            gradient_accumulation_steps=max(1, reading.batch_size // FASTEST_BATCH),
        )  # fmt: skip
        data = replace(self.base.data, source=f"{MOTIF}{cell.motif}", size=cell.size, mixture=KINDS[cell.kind])
        return replace(self.base, data=data, training=training)

    def weak_run(self) -> TrainRun:
        """The training of the base on which methods are compared: pure data of the first motif and size, few updates."""
        training = replace(self.base.training, steps=self.weak_updates, patience=None, evaluate_every=10)
        data = replace(self.base.data, source=f"{MOTIF}{self.motifs['pure'][0]}", size=self.sizes[0], mixture=1.0)
        return replace(self.base, data=data, training=training)


def _base(*, length: int, width: int, steps: int, learning_rate: float = 1e-3) -> TrainRun:
    """An LSTM by Adam, stopped by a patience of 20 as in the paper."""
    training = TrainingConfig(batch_size=50, optimizer="adam", learning_rate=learning_rate, steps=steps, patience=20)
    return TrainRun("", data=DataConfig(length=length), base=LstmConfig(width=width), training=training)


def _student(steps: int) -> TrainingConfig:
    """Adam at 1e-3, with a patience of 20 evaluations."""
    return TrainingConfig(batch_size=50, optimizer="adam", steps=steps, patience=20, evaluate_every=max(1, steps // 20))


SCALES = {
    "smoke": GamScale(
        base=_base(length=12, width=32, steps=40), max_strings_read=4_000,
        distil=DistilConfig(draws=500, candidates=2_000, evaluation_draws=500), student=_student(40), distil_epochs=1,
        motifs={"pure": ("1000101",)}, sizes=(200,), first_sizes=1, readings=tuple(READINGS)[:2],
        readings_elsewhere=("updates",), descent_epochs=4,
        weak_updates=20,
    ),
    "small": GamScale(
        base=_base(length=30, width=64, steps=2_000, learning_rate=4e-3), max_strings_read=300_000,
        distil=DistilConfig(draws=20_000, candidates=20_000), distil_epochs=2,
        student=replace(_student(800), learning_rate=6e-3, schedule="linear", patience=None, evaluate_every=100),
        motifs={"pure": PURE_MOTIFS[:2], "mixture": MIXTURE_MOTIFS[:2]}, sizes=(500, 5000, 20000, 1000, 10000), first_sizes=3,
        feature_sets=FEATURE_SETS[:1], readings_elsewhere=("epochs of batches of 500",), descent_epochs=40, weak_updates=250,
    ),
    "weak": GamScale(  # the published network and rate, and a patience of 20 updates: a base as weak as the paper's
        base=_base(length=30, width=200, steps=2_000), max_strings_read=300_000,
        distil=DistilConfig(draws=20_000, candidates=20_000), distil_epochs=2,
        student=replace(_student(2_000), patience=None, evaluate_every=100),
        motifs={"pure": PURE_MOTIFS[:1]}, sizes=(500,), first_sizes=1,
        feature_sets=FEATURE_SETS[:1], readings=("updates",), readings_elsewhere=("updates",), descent_epochs=40,
        weak_updates=None,
    ),
    "paper": GamScale(
        base=_base(length=30, width=200, steps=40_000), max_strings_read=20_000_000,
        distil=DistilConfig(draws=20_000, candidates=400_000), student=_student(40_000), distil_epochs=20,
        motifs={"pure": PURE_MOTIFS, "mixture": MIXTURE_MOTIFS}, sizes=(500, 1000, 5000, 10000, 20000), first_sizes=5,
        descent_epochs=200, weak_updates=250,
    ),
}  # fmt: skip

RIDGE = 3.0  # standard deviation of the prior of weights: a distractor seen in neither data nor base stays near 0
SAMPLED_STRINGS = 4000  # of a student, to estimate the motif frequency
PROPOSED_STRINGS = 10_000  # with a look ahead, to fit weights and to estimate log Z where the base seldom writes the motif


@dataclass(frozen=True)
class GamContext:
    """What all feature sets of a cell share: the base, draws of it, and the seven features of draws and data."""

    scale: GamScale
    folder: Path
    result: TrainResult
    declared: tuple[FeatureSpec, ...]
    features: list[Feature]
    pool: Draws
    pool_features: Float[Tensor, "N 7"]
    data_features: Float[Tensor, "M 7"]
    seconds: float  # of one core, to train the base; 0 if it was there

    @property
    def run(self) -> TrainRun:
        return self.result.run

    @property
    def entropy(self) -> float:
        return dict(self.result.splits.truth)["entropy of the process"].value

    @property
    def compared_training(self) -> TrainingConfig:
        """How students are trained that start from the weights of the base, where methods are compared."""
        return TrainingConfig(
            epochs=self.scale.distil_epochs, batch_size=100, learning_rate=5e-4, schedule="linear", optimizer="adam",
            seed=self.run.training.seed,
        )  # fmt: skip

    @cached_property
    def frequency(self) -> float:
        """The share of draws of the base with the motif."""
        return float((1 - self.pool_features[:, 0]).mean())

    @cached_property
    def proposed(self) -> tuple[Draws, Float[Tensor, "K 7"]]:
        """Draws with a look ahead, weighted towards the base, and their features."""
        sampler, rng = Importance(self.lookahead), SeededRng(self.run.training.seed).stream("gam", "look ahead")
        collect = ResumableByDraws(sampler, self.folder / "proposed")
        draws = collect(Tilted(self.result.base), empty_prompts(1), PROPOSED_STRINGS, rng=rng)
        return draws, feature_values(self.features, draws.x)

    @property
    def lookahead(self) -> Lookahead:
        motif = self.run.data.motif
        assert motif is not None
        return Lookahead(self.result.base, tuple(map(int, motif)))

    def draws_for(self, bits: str) -> tuple[Draws, Float[Tensor, "K 7"]]:
        """Draws weighted towards the base, and their features: with a look ahead if the motif is a feature and rare."""
        rare = bits[0] == "1" and self.frequency < RARE
        return self.proposed if rare else (self.pool, self.pool_features)

    def fit(self, bits: str) -> MomentFit:
        """Newton's weights for a feature set, on one half of the draws. A distractor that is the same in all of these has none:
        no finite weight would bring it to the data's moment. Nor have rare distractors, if nearly nothing of the other half is
        effective: the moment of a distractor that was drawn a few times, and never with the motif, is reached by huge weights
        of both, under which a string that has both is worth all others."""
        draws, features = self.draws_for(bits)
        half = len(features) // 2
        varies = features[:half].amin(0) < features[:half].amax(0)
        chosen = [place for place, bit in enumerate(bits) if bit == "1" and (bool(varies[place]) or "d" not in NAMES[place])]
        fit = self._fit(draws, features[:half], chosen)
        fresh = self.weighted(fit, draws.columns(slice(half, None)), features[half:])
        if float(fresh.ess()) >= MIN_ESS_SHARE * (len(features) - half):
            return fit
        rare = {name for warning in fit.warnings if warning.kind == "rare" for name in warning.features}
        return self._fit(draws, features[:half], [place for place in chosen if NAMES[place] not in rare - {NAMES[0]}])

    def _fit(self, draws: Draws, features: Float[Tensor, "H 7"], chosen: Sequence[int]) -> MomentFit:
        return match_moments(
            [NAMES[place] for place in chosen], features[:, chosen], self.data_features[:, chosen], ridge=RIDGE,
            log_weight=draws.log_weight[0, : len(features)],
        )  # fmt: skip

    def tilted(self, fit: MomentFit) -> Tilted:
        """The base tilted by the features of a fit."""
        return Tilted(self.result.base, LogLinear([self.features[place] for place in places_of(fit)], fit.tensor()))

    def weighted(self, fit: MomentFit, draws: Draws | None = None, features: Tensor | None = None) -> Draws:
        """Draws weighted towards the tilted model of a fit; by default those of the base."""
        draws, features = draws or self.pool, self.pool_features if features is None else features
        return replace(draws, log_weight=draws.log_weight + (features[:, places_of(fit)] @ fit.tensor())[None])

    def l1(self, fit: MomentFit, weighted: Draws, features: Tensor) -> float:
        """The l1 distance between the moments of the data and those of weighted draws."""
        share = weighted.log_weight.softmax(-1)[0]
        return float((share @ features[:, places_of(fit)] - self.data_features[:, places_of(fit)].double().mean(0)).abs().sum())

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


def make_rows(cells: Sequence[tuple[Cell, str]], scale: GamScale, out: Path) -> Iterator[list[Row]]:
    """The rows so far, after each row that is made; a base is only loaded if a row of it is not finished."""
    rows: list[Row] = []
    prepared = lru_cache(maxsize=1)(lambda cell: prepare_gam(scale.run(cell), scale, out / str(cell)))

    def make(cell: Cell, bits: str) -> Row:
        return make_row(prepared(cell), cell, bits)

    for cell, bits in cells:
        rows.append(cached_json(out / str(cell) / bits / ROW_FILE, partial(make, cell, bits)))
        yield rows


def prepare_gam(run: TrainRun, scale: GamScale, folder: Path) -> GamContext:
    """Train the base of a run, draw from it, and compute all seven features of draws and data."""
    rng, started = SeededRng(run.training.seed), time.process_time()
    result = train_base(replace(run, out=str(folder / "base"), resume=True))
    seconds = time.process_time() - started
    assert run.data.motif is not None
    declared = declared_motif_features(run.data.motif, "1" * len(NAMES), rng=rng.stream("distractors"))
    features, target = features_from_specs(declared), Tilted(result.base)
    collect = ResumableByDraws(Ancestral(), folder / "draws")
    pool = collect(target, empty_prompts(1), scale.distil.candidates, rng=rng.stream("gam"))
    data_features = feature_values(features, result.splits.train)
    return GamContext(scale, folder, result, declared, features, pool, feature_values(features, pool.x), data_features, seconds)


def make_row(context: GamContext, cell: Cell, feature_bits: str) -> Row:
    """Fit the weights of one feature set, train a new student of accepted strings, and measure all models."""
    base, folder, scale = context.result.base, context.folder / feature_bits, context.scale
    fit = context.fit(feature_bits)
    draws, features = context.draws_for(feature_bits)
    half = slice(len(features) // 2, None)  # the weights were not fitted on these
    fresh, fresh_features = draws.columns(half), features[half]
    teacher, weighted = context.tilted(fit), context.weighted(fit, fresh, fresh_features)
    declared = tuple(context.declared[place] for place in places_of(fit))
    origin = str(context.result.folder), base_digest(base), log_z(weighted), cell.seed
    save_energy(folder / "energy", SavedLogLinear(declared, fit.weights, *origin))
    looks_ahead, log_bound = draws is not context.pool, float(fit.tensor().clamp(min=0).sum())
    config = replace(scale.distil, method="plain", log_bound=None if looks_ahead else log_bound)
    training = replace(scale.student, seed=cell.seed)
    student = build_base(base.config, base.space, rng=SeededRng(cell.seed).stream("student"))
    started = time.process_time()
    distilled = distil(
        teacher, student, empty_prompts(1), config, training, proposal=context.lookahead if looks_ahead else None,
        folder=folder, resume=True,
    )  # fmt: skip
    seconds, (stage,) = time.process_time() - started, distilled.stages
    nats = {
        "CE r": context.nats(Tilted(base)),
        "CE p": context.nats(teacher, weighted),
        "CE student": context.nats(Tilted(student)),
    }
    shares = {"r": context.pool, "p": weighted, "student": context.sampled(student)}
    frequencies = {f"motif in {name}": context.motif_frequency(strings) for name, strings in shares.items()}
    card = ModelCard(f"Student of {folder}", results=[("cross-entropy", nats["CE student"])])
    save_base(folder / "student", student, context.result.splits.tokenizer, card)
    log_acceptance = torch.tensor(log_z(weighted).value - log_bound)
    return {
        "motif": cell.motif, "data": cell.kind, "ft": feature_bits, "|D|": cell.size, "patience of 20": cell.reading,
        "seed": cell.seed, "updates": context.result.record.steps, "stopped": context.result.record.stopped,
        "H": context.entropy, **nats, "r / student": nats["CE r"].value / nats["CE student"].value,
        "student / H": nats["CE student"].value / context.entropy, **frequencies,
        "motif: student / r": frequencies["motif in student"].value / max(frequencies["motif in r"].value, 1e-12),
        "weights": dict(zip(fit.names, fit.weights, strict=True)), "l1": context.l1(fit, weighted, fresh_features),
        "ess": float(weighted.ess()), "accepted": stage.ess, "candidates": stage.cost, "looks ahead": looks_ahead,
        "acceptance of r": float(log_acceptance.exp()),
        "gap": 0.0 if stage.gap is None else stage.gap.value, "student updates": stage.record.steps,
        "kl to student": distilled.divergences["kl"], "seconds": {"base": context.seconds, "student": seconds},
        "notes": [str(warning) for warning in fit.warnings],
    }  # fmt: skip
