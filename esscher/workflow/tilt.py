"""Tilting a base: by features with given moments, or by a network that learns to tell data from draws of the base.

With features, the energy is log-linear: weights are fitted to the moments, and fresh draws measure the result. Without, a
network is trained by noise contrast, and measured on test data that no training or selection used. Negatives are drawn at every
step, or stored in the folder; those of the validation data are always stored, so that every evaluation has the same.
"""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from esscher.bases.truncated import truncated
from esscher.core.distributed import is_main_process
from esscher.core.draws import Draws, Sampler
from esscher.core.estimate import Estimate
from esscher.core.folder_lock import locked_folder
from esscher.core.progress import current_progress
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import Sequences, concatenate, empty_prompts, prompts_of, unique_prompts
from esscher.core.target import Base, Tilted
from esscher.data.config import DataConfig
from esscher.data.splits import evenly_spaced, evenly_spaced_rows
from esscher.energies.config import EnergyConfig
from esscher.energies.declared_features import features_from_specs
from esscher.energies.features import Feature, LogLinear, feature_values, log_weight_bounds
from esscher.energies.network import NetworkEnergy, build_energy
from esscher.energies.serialization import (
    CONFIG_FILE,
    ENCODER_FOLDER,
    WEIGHTS_FILE,
    Origin,
    SavedLogLinear,
    load_energy,
    save_energy,
    save_network_energy,
)
from esscher.energies.twist_folder import TWIST_FILES
from esscher.estimators.expectations import divergences, moments
from esscher.estimators.log_z import log_z
from esscher.estimators.perplexity import Measurement, measure
from esscher.estimators.reliability import Reliability, reliability
from esscher.hub.packaged_models import resolve_model_folder
from esscher.networks.transformer_config import TransformerConfig
from esscher.objectives.moment_descent import MomentDescent, base_feature_sampler
from esscher.objectives.moment_matching import MomentFit, match_moments
from esscher.objectives.noise_contrastive import (
    NoiseContrast,
    StoredNegatives,
    base_fingerprint,
    concatenate_negatives,
    load_negatives,
    store_negatives,
)
from esscher.reports.report import ANSWER, PAGE, Report
from esscher.reports.tables import format_estimate
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Importance
from esscher.samplers.progress import counting_draws
from esscher.samplers.scoring import log_weight
from esscher.training.collectives import barrier
from esscher.training.config import TrainingConfig
from esscher.training.evaluation import HeldOut
from esscher.training.made_with import RECORD, claim_folder, energy_fingerprint, sequences_fingerprint
from esscher.training.resumable import ROWS_BY_DRAWS, ResumableByDraws, ResumableByPrompts, WorkItem, run_resumable
from esscher.training.trainer import Trainer, TrainingRecord
from esscher.workflow.calibration import drawing, draws_on_disk, peak_memory, seconds_of, training_cost
from esscher.workflow.config.tilt import ContrastConfig, FitConfig, TiltRun
from esscher.workflow.cost import Cost, Phase, StepTime, before_start, written
from esscher.workflow.model import Model, SavedEnergy, load
from esscher.workflow.processors import DataSplits, ImageProcessor
from esscher.workflow.run_folder import (
    TILT_SETTINGS,
    changed_settings,
    read_settings,
    refuse_other_settings,
    run_settings,
    save_settings,
)
from esscher.workflow.twist import TWIST_FOLDER, learn_model_twist

ENERGY_FILES = (WEIGHTS_FILE, ENCODER_FOLDER, "history.jsonl", RECORD, ANSWER, PAGE, *TWIST_FILES)
PROMPTS_PER_FILE = 64  # prompts whose negatives share a file
NEGATIVES, HELD_OUT, JUDGED = "negatives", "held-out", "judge"  # folders of draws that a run keeps
EXAMPLES, TIMED_ROWS = 8, 1024  # draws, and rows of them on which the time of features is measured, to estimate the cost
DRAWS_PER_PROMPT = 64  # draws for each prompt in the end, where there are several
MOMENT_TOLERANCE = 0.01  # of a feature's range: the error of a moment that advice on the number of draws aims at


@dataclass(frozen=True)
class ContrastResult:
    """The tilted model, how training went, and what test data say of it."""

    target: Tilted
    record: TrainingRecord
    measured: Measurement


def train_energy(
    base: Base,
    energy: nn.Module,
    splits: DataSplits,
    config: ContrastConfig,
    training: TrainingConfig,
    *,
    folder: Path | None = None,
    resume: bool = False,
    digest: str | None = None,
) -> ContrastResult:
    """Train the energy in place; the base is not trained. `digest` is that of the base, where it is known."""
    rng = SeededRng(training.seed).stream("contrast")
    target, digest = Tilted(base, energy), base_fingerprint(base) if digest is None else digest
    train, held_out = evenly_spaced_rows(splits.train, config.sequences), evenly_spaced_rows(splits.validation, config.held_out)
    stored = partial(draw_negatives, base, folder=folder, digest=digest, rng=rng)
    noise: Sampler = Ancestral() if config.stored is None else stored(NEGATIVES, train, config.stored)
    objective = NoiseContrast(noise, config.negatives, config.form, config.prefixes)
    judge = NoiseContrast(stored(HELD_OUT, held_out, config.negatives), config.negatives, config.form)
    record = Trainer(training)(
        objective, target, train, modules=energy, validation=HeldOut(judge, held_out), folder=folder, resume=resume
    )
    judge_rng, judged = rng.stream("judge"), None if folder is None else folder / JUDGED
    made_with = {"base": digest, "energy": energy_fingerprint(energy), "rng": repr(judge_rng)}
    sampler = ResumableByPrompts(Importance(), judged, say=current_progress().say, made_with=made_with, remake=True)
    test, units = evaluation_subset(splits, config.draws)
    draws = config.draws if len(unique_prompts(test)[0]) == 1 else DRAWS_PER_PROMPT
    return ContrastResult(target, record, measure(target, test, sampler, draws, units=units, rng=judge_rng))


def evaluation_subset(splits: DataSplits, draws: int) -> tuple[Sequences, dict[str, Int[Tensor, "B"]]]:
    """The test data that so many draws suffice for, and their units: all of one prompt, some of many."""
    several = len(unique_prompts(splits.test)[0]) > 1
    chosen = evenly_spaced(len(splits.test), max(2, draws // DRAWS_PER_PROMPT) if several else len(splits.test))
    return splits.test.rows(chosen), {name: count[chosen] for name, count in splits.units.items()}


def draw_negatives(
    base: Base, name: str, data: Sequences, each: int, *, folder: Path | None, digest: str, rng: Rng
) -> StoredNegatives:
    """`each` draws of the base for every sequence of the data, in files that the folder keeps; equal prompts share theirs."""
    prompts, _ = unique_prompts(data)
    each *= math.ceil(len(data) / len(prompts))
    if len(prompts) == 1:
        pieces = [(prompts, min(ROWS_BY_DRAWS, each - first)) for first in range(0, each, ROWS_BY_DRAWS)]
    else:
        starts = range(0, len(prompts), PROMPTS_PER_FILE)
        pieces = [(prompts.rows(slice(first, first + PROMPTS_PER_FILE)), each) for first in starts]
    draw = partial(store_negatives, base, known=digest)
    tables = run_resumable(
        [
            WorkItem(f"{number:05d}", len(part) * count, partial(draw, part, count, rng=rng.stream(name, number)))
            for number, (part, count) in enumerate(pieces)
        ],
        folder=None if folder is None else folder / name,
        made_with={"base": digest, "prompts": sequences_fingerprint(prompts), "each": each, "rng": repr(rng)},
        remake=True,
        read=partial(load_negatives, base=base, known=digest),
        write=lambda file, table: table.save(file),
        say=current_progress().say,
        what=f"{name}: drawn",
    )
    return concatenate_negatives(tables)


@dataclass(frozen=True)
class FitResult:
    """Weights, and what fresh draws say of the tilted model; divergences are between it (first) and the base (second).
    `fit_error` is how far the finite sample that the weights were fitted on may leave each moment from the wanted one, 95 % of
    the time; NaN where the fit does not say."""

    target: Tilted
    fit: MomentFit
    moments: tuple[Estimate, ...]
    base_moments: tuple[Estimate, ...]
    fit_error: tuple[float, ...]
    log_z: Estimate
    divergences: Mapping[str, Estimate]
    reliability: Reliability
    draws: Draws
    passes: int = 1

    @property
    def warnings(self) -> list[str]:
        """What the reader must know before believing the weights, a line each."""
        trust = self.reliability
        poor = [] if trust.verdict == "good" else [f"The draws' weights are {trust.verdict}. {trust.advice}"]
        return [*map(str, self.fit.warnings), *poor, *self.missed()]

    def missed(self) -> list[str]:
        """The stated moments that the interval of the fresh draws excludes, and how many draws would fix them."""
        lines = []
        columns = (self.fit.names, self.fit.moments_wanted, self.fit.moments_data, self.moments, self.fit_error)
        values = (
            feature_values(self.target.energy.features, self.draws.x) if isinstance(self.target.energy, LogLinear) else None
        )
        for place, (name, wanted, data, fresh, error) in enumerate(zip(*columns, strict=True)):
            if data is not None or fresh.covers(wanted):
                continue
            span = 1.0 if values is None else float(values[:, place].max() - values[:, place].min())
            line = f"{name}: fresh draws give {format_estimate(fresh)}, not {wanted:g}"
            if error > MOMENT_TOLERANCE * span:
                draws = self.fit.base_samples * (error / (MOMENT_TOLERANCE * span)) ** 2
                few = f"{self.fit.base_samples:,} draws fix it only within {error:.2g}"
                line += f", because {few}: --fit.draws {_rounded_up(draws):,} fixes it within {MOMENT_TOLERANCE * span:.2g}"
            else:
                line += ": raise --fit.draws"
            lines.append(f"{line}.")
        return lines

    def rows(self) -> list[dict[str, Any]]:
        """A row for each feature; `base` and `tilted` come from draws that the weights were not fitted on."""
        rows = zip(self.fit.rows(), self.base_moments, self.moments, strict=True)
        return [
            {**{key: row[key] for key in row if key != "under the model"}, "base": base, "tilted": fresh}
            for row, base, fresh in rows
        ]


def _rounded_up(draws: float) -> int:
    """The number rounded up to two digits."""
    unit = 10 ** max(0, math.floor(math.log10(draws)) - 1)
    return math.ceil(draws / unit) * unit


def fit_feature_weights(
    base: Base, features: Sequence[Feature], data: Sequences | None, wanted: Mapping[str, float], config: FitConfig, *,
    prompt: Sequences | None = None, rng: Rng,
) -> FitResult:  # fmt: skip
    """Weights under which the base has the features' means of the data, or those wanted, in its draws after one prompt, by
    default the empty one.

    Fresh draws, as many as the fit had, check the moments. Fit and check err alike, so of right intervals about one in six
    excludes a stated moment; the weights are then fitted again on the draws of both, and checked on new ones. Each check is
    independent of the weights that it checks.
    """
    names, progress = [feature.name for feature in features], current_progress()
    observed = None if data is None else feature_values(features, data)
    prompt = empty_prompts(1) if prompt is None else prompt
    if config.regime != "newton":
        source = base_feature_sampler(base, features, prompt=prompt, rng=rng.stream("fit"))
        descent = MomentDescent(config.regime)
        with progress.counting("epochs, fewer if it converges", descent.epochs) as report:
            fit = descent(names, source, observed, wanted=wanted, prior=config.prior, rng=rng.stream("accept"), report=report)
        return _check_fit(base, features, fit, None, config, prompt, rng.stream("judge"))

    def newton(values: Tensor) -> MomentFit:
        return match_moments(names, values, observed, wanted=wanted, prior=config.prior, ridge=config.ridge)

    drawn = _draw(Ancestral(), Tilted(base), "draws to fit on", prompt, config.draws, rng.stream("fit"))
    fit = newton(feature_values(features, drawn.x))
    result = _check_fit(base, features, fit, drawn, config, prompt, rng.stream("judge"))
    if config.ridge is not None or not result.missed():
        return result
    progress.say(
        f"The check excludes a wanted mean: fitting again on all {2 * config.draws:,} draws, and checking on new ones."
    )
    both = replace(drawn, x=concatenate([drawn.x, result.draws.x]), **_columns_of(drawn, result.draws))
    fit = newton(feature_values(features, both.x))
    return replace(_check_fit(base, features, fit, both, config, prompt, rng.stream("judge", 2)), passes=2)


def _draw(sampler: Sampler, target: Tilted, what: str, prompt: Sequences, draws: int, rng: Rng) -> Draws:
    """Draws after a prompt, and their progress."""
    with current_progress().counting(what, draws) as report:
        return ResumableByDraws(sampler)(counting_draws(target, report), prompt, draws, rng=rng)


def _columns_of(*parts: Draws) -> dict[str, Any]:
    """The columns of draws of the base joined, without weights."""
    log_base = torch.cat([part.log_base for part in parts], 1)
    return {"log_base": log_base, "log_weight": torch.zeros_like(log_base), "cost": sum(part.cost for part in parts)}


def _check_fit(
    base: Base, features: Sequence[Feature], fit: MomentFit, fitted_on: Draws | None, config: FitConfig, prompt: Sequences,
    rng: Rng,
) -> FitResult:  # fmt: skip
    """What fresh draws of the base, weighted, say of the tilted model, and the error of the draws that it was fitted on."""
    target = Tilted(base, LogLinear(features, fit.tensor()))
    fresh = _draw(Importance(), target, "draws to check on", prompt, config.draws, rng)

    def moments_of(draws: Draws) -> tuple[Estimate, ...]:
        values = feature_values(features, draws.x).view(1, -1, len(features))
        return tuple(moments(draws, values))

    errors = [math.nan] * len(features)
    if fitted_on is not None:
        weighted = replace(fitted_on, log_weight=log_weight(target, fitted_on.x).view(fitted_on.log_weight.shape))
        errors = [(estimate.high - estimate.low) / 2 for estimate in moments_of(weighted)]
    (trust,) = reliability(fresh, energy=target.energy)
    return FitResult(
        target=target,
        fit=fit,
        moments=moments_of(fresh),
        base_moments=moments_of(replace(fresh, log_weight=torch.zeros_like(fresh.log_weight))),
        fit_error=tuple(errors),
        log_z=log_z(fresh, bounds=log_weight_bounds(target.energy)),
        divergences=divergences(target, fresh),
        reliability=trust,
        draws=fresh,
    )


@dataclass(frozen=True)
class TiltResult:
    """The tilted model, what was learnt or fitted, and the report."""

    model: Model
    details: "FitResult | ContrastResult | None"  # None for an energy of your own
    report: Report


def tilt_model(model: Model, run: TiltRun) -> TiltResult:
    """Tilt the base as the settings say, and save the energy in `run.out` if that is given."""
    if not isinstance(run.energy, EnergyConfig):
        target = Tilted(truncated(model.base, **vars(run.truncation)), run.energy)
        tilted = replace(model, target=target, energy=None, energy_folder=None)
        return TiltResult(tilted, None, Report("esscher tilt", {"model": model.name}, {}))
    folder = None if run.out is None else Path(run.out)
    with locked_folder(written(folder)):
        if folder is not None and not run.resume and not run.overwrite and (folder / CONFIG_FILE).is_file():
            raise FileExistsError(
                f"{folder} already holds an energy. Nothing was changed; replace it with --overwrite, go on with --resume, or "
                f"choose another --out."
            )
        details, saved, report = _fit(model, run, folder) if run.specs() else _learn(model, run.energy, run, folder)
        tilted = replace(model, target=details.target, energy=saved, energy_folder=folder, twist=None)
        if run.twist is not None:
            tilted, learnt = learn_model_twist(tilted, run.twist, resume=run.resume)
            facts = {**report.facts, "twist_ess": learnt.ess, "base_ess": learnt.base_ess, "drawn_for_the_twist": learnt.cost}
            report = replace(report, facts=facts, notes=[*report.notes, *learnt.notes])
        if folder is not None:
            report = report.save(folder, {"model": model.name, **run_settings(run)}, changed=changed_settings(run))
    return TiltResult(tilted, details, report)


def _fit(model: Model, run: TiltRun, folder: Path | None) -> tuple[FitResult, SavedEnergy, Report]:
    specs, wanted, source = run.specs(), run.moments(), run.source
    features = features_from_specs(specs, model.decode())
    data = None
    if len(wanted) != len(specs) and (source is None or isinstance(model.processor, ImageProcessor)):
        data = model.training_splits(source).train
    elif len(wanted) != len(specs) and source is not None:
        data = model.data.read(source, model.trained).x  # all of it: none is held out
    rng = SeededRng(run.training.seed).stream("tilt")
    base = truncated(model.base, **vars(run.truncation))
    prompt = empty_prompts(1) if run.prompt is None else prompts_of(model.data.encode_prompts([run.prompt]))
    before_start(partial(_fit_cost, model, base, prompt, features, run))
    result = fit_feature_weights(base, features, data, wanted, run.fit, prompt=prompt, rng=rng)
    saved = SavedLogLinear(
        specs, result.fit.weights, model.name, model.base_digest, result.log_z, run.training.seed, model.chunking,
        result.reliability.verdict, result.fit.moments_wanted, result.moments, run.prompt, run.truncation,
    )  # fmt: skip
    if folder is not None:
        remove_energy(folder, kept=(TWIST_FOLDER,) if run.resume else ())
        save_energy(folder, saved)
    rows = result.rows()
    rates = [
        {
            "feature": row["feature"], "in the data": row["in the data"], "wanted": row["wanted"], "base": row["base"],
            "tilted": row["tilted"],
        }
        for row in rows
    ]  # fmt: skip
    weights = [{key: row[key] for key in ("feature", "weight", "note")} for row in rows]
    facts = {
        "reliability": result.reliability.verdict, "kl_to_the_base": result.divergences["kl"], "log_z": result.log_z,
        "energy": run.out, "model": model.name, "device": model.placement,
        **({} if run.prompt is None else {"prompt": run.prompt}), **run.changed_settings(), "regime": run.fit.regime,
        "drawn_from_the_base": result.fit.base_samples + result.draws.cost, "ess": result.reliability.ess,
        "seed": run.training.seed,
    }  # fmt: skip
    checked = (
        f"The rates of base and tilted model are from {result.draws.cost:,} fresh draws that the weights were not fitted on."
    )
    return result, saved, Report(
        "esscher tilt", facts, {"features": rates, "weights": weights}, [*result.warnings, checked],
        json_tables={"features": rows}, details=("log_z", "model", "regime", "drawn_from_the_base", "ess", "weights"),
    )  # fmt: skip


def _learn(
    model: Model, config: EnergyConfig, run: TiltRun, folder: Path | None
) -> tuple[ContrastResult, SavedEnergy | Origin, Report]:
    if folder is not None and run.resume:
        refuse_other_settings(folder / TILT_SETTINGS, run)
    if run.contrast.prefixes and model.is_translator:
        raise ValueError(
            f"prefixes = {run.contrast.prefixes} would cut sources, and a part of one has another translation. Nothing was "
            f"trained; leave them out."
        )
    splits = model.training_splits(run.source)
    current_progress().say(f"{len(splits.train):,} sequences for training, {len(splits.validation):,} for validation.")
    energy = build_tilt_energy(model, config, run, int(splits.train.stop.max()))
    before_start(partial(_contrast_cost, model, energy, splits, run, folder))
    barrier()  # nobody writes before all have looked
    digest = model.base_digest
    if folder is not None:
        if run.overwrite:
            remove_energy(folder)
        save_settings(folder / TILT_SETTINGS, run)
        claim_folder(folder, {"base": digest, **splits_digests(splits)}, kept=("checkpoints",))
    result = train_energy(
        model.base, energy, splits, run.contrast, run.training, folder=folder, resume=run.resume, digest=digest
    )
    record, measured = result.record, result.measured
    assert measured.log_z is not None
    origin = Origin(model.name, digest, measured.log_z, run.training.seed, model.chunking, measured.verdict[0])
    saved = origin if folder is None else load_energy(save_network_energy(folder, energy, origin))
    facts = {
        "saved_by_tilting": next(iter((measured.reduction or {}).values())), "reliability": measured.verdict[0],
        "loss_on_held_out_data": record.best, "loss_of_no_energy": Estimate.exact(untrained_loss(run.contrast)),
        "log_z": measured.log_z, "energy": run.out, "model": model.name, "device": model.placement, "steps": record.steps,
        "best_step": record.best_step, "seed": run.training.seed,
    }  # fmt: skip
    name, rows = model.data.rows({"base": measured.base, "tilted": measured.tilted})
    notes = [*learnt_nothing(record.best, run.contrast), *measured.warnings]
    details = ("log_z", "model", "steps", "best_step")
    return result, saved, Report("esscher tilt", facts, {name: rows}, notes, details=details)


def untrained_loss(config: ContrastConfig) -> float:
    """The loss of an energy that is 0 everywhere, as before training: 2 log 2 for the binary form with one negative."""
    negatives = config.negatives
    if config.form == "ranking":
        return math.log(1 + negatives)
    return math.log1p(negatives) + negatives * math.log1p(1 / negatives)


def learnt_nothing(loss: Estimate | None, config: ContrastConfig) -> list[str]:
    """A note where the loss on held-out data is not shown to be below that of no energy."""
    reference = untrained_loss(config)
    if loss is None or loss.high < reference:
        return []
    return [
        f"The energy has learnt nothing that held-out data show: its loss {format_estimate(loss)} is not below "
        f"{reference:.4g}, that of no energy. Train longer (--training.steps), or on more data."
    ]


def _fit_cost(model: Model, base: Base, prompt: Sequences, features: Sequence[Feature], run: TiltRun) -> Cost:
    """Draws to fit on and to measure on; the stochastic regimes draw until they converge."""
    notes: tuple[str, ...] = ()
    fit = drawing("fit", Tilted(base), prompt, run.fit.draws, at_once=ROWS_BY_DRAWS)
    if run.fit.regime != "newton":
        notes = (f"The regime {run.fit.regime} draws until it converges, up to {MomentDescent().budget:,} times: far longer.",)
    few = Ancestral()(Tilted(base), prompt, EXAMPLES, rng=SeededRng(0)).x
    feature_values(features, few)  # the first call is slower
    many = few.rows(torch.arange(TIMED_ROWS) % EXAMPLES)
    each = StepTime.of([seconds_of(partial(feature_values, features, many)) / len(many) for _ in range(2)])
    evaluated = Phase("features", 3 * run.fit.draws, "sequences with their features", each)  # to fit, to weigh, to measure
    facts = {"device": model.placement}
    return Cost(
        "esscher tilt",
        (fit, evaluated, replace(fit, name="measurement")),
        run.out,
        10**5,
        peak_memory(model.base),
        notes,
        facts,
    )


def _contrast_cost(model: Model, energy: NetworkEnergy, splits: DataSplits, run: TiltRun, folder: Path | None) -> Cost:
    """Negatives that are stored, training, and the draws that the result is measured on."""
    config, training, base = run.contrast, run.training, Tilted(model.base)
    train, held_out = evenly_spaced_rows(splits.train, config.sequences), evenly_spaced_rows(splits.validation, config.held_out)
    length, stored = model.base.space.max_length, 0 if config.stored is None else config.stored * len(train)
    negatives = drawing(
        "negatives", base, unique_prompts(train)[0], config.negatives, at_once=ROWS_BY_DRAWS, rows=config.held_out + stored
    )
    objective = NoiseContrast(Ancestral(), config.negatives, config.form, config.prefixes)
    estimate = training_cost(
        training, objective, Tilted(model.base, energy), train, modules=energy, validation=HeldOut(objective, held_out),
        folder=folder, resume=run.resume, drawn_elsewhere=negatives.each.scaled(config.negatives) if stored else None,
    )  # fmt: skip
    prompts = unique_prompts(evaluation_subset(splits, config.draws)[0])[0]
    draws = config.draws if len(prompts) == 1 else DRAWS_PER_PROMPT
    judged = replace(negatives, name="measurement", count=len(prompts) * draws, tokens=len(prompts) * draws * length)
    phases: tuple[Phase, ...] = (negatives, *estimate.phases, judged)
    kept = (
        0 if folder is None else estimate.weights + estimate.checkpoints + draws_on_disk(negatives.count + judged.count, length)
    )
    notes = (
        () if training.patience is None else (f"Training ends sooner if {training.patience} evaluations bring no new best.",)
    )
    return Cost("esscher tilt", phases, run.out, kept, estimate.memory, notes, {"device": model.placement})


def remove_energy(folder: Path, kept: Sequence[str] = ()) -> None:
    """Remove the energy of a folder, first the file that makes it one, and all that its run kept, but for these."""
    if is_main_process():
        for name in (CONFIG_FILE, "checkpoints", NEGATIVES, HELD_OUT, JUDGED, TILT_SETTINGS, TWIST_FOLDER, *ENERGY_FILES):
            if name in kept:
                continue
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
    barrier()


def splits_digests(splits: DataSplits) -> dict[str, str]:
    """Digests of the data in three splits."""
    names = ("train", "validation", "test")
    return {name: sequences_fingerprint(getattr(splits, name)) for name in names}


def build_tilt_energy(model: Model, config: EnergyConfig, run: TiltRun, longest: int) -> NetworkEnergy:
    """The energy of the settings, which is 0 until it is trained; `longest` tokens are the most it will read."""
    if isinstance(config.network, TransformerConfig):
        config = replace(config, network=replace(config.network, max_positions=longest))
    if config.encoder:
        config = replace(config, encoder=str(resolve_model_folder(config.encoder)))
    if model.fsdp and config.kind == "shared":
        raise ValueError(
            "An energy of kind 'shared' is trained on the base's own hidden vectors, which a sharded base does not give. "
            "Nothing was trained; choose another kind, or leave --fsdp out."
        )
    start = None if run.start is None else load(run.start, device=str(model.device)).base
    if start is None and model.fsdp and config.initialised_from_base and model.folder is not None:
        start = load(model.folder, device=str(model.device)).base  # whole, to be copied
    rng = SeededRng(run.training.seed).stream("energy")
    return build_energy(config, model.base, start=start, decode=model.decode(), rng=rng)


def energy_data(model: Model) -> DataConfig | None:
    """The data that the model's energy was trained on, as its folder says; None means those of its base."""
    run = None if model.energy_folder is None else read_settings(model.energy_folder / TILT_SETTINGS, TiltRun)
    return None if run is None else run.source
