"""Distillation of a tilted model into a plain one, by any of five methods, resumed where it was interrupted.

    plain = tilted.distil(out="runs/plain")

The teacher's draws are collected shard by shard; the student learns from them by the common trainer. In the end the student
proposes and the teacher weighs: that measures how far apart they are, and gives log Z anew.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from esscher.bases.network import NetworkBase, build_base
from esscher.core.config import to_dict
from esscher.core.draws import Draws, Sampler
from esscher.core.estimate import Estimate
from esscher.core.objective import Objective
from esscher.core.progress import current_progress
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import Sequences, empty_prompts, unique_prompts
from esscher.core.storage import write_json
from esscher.core.target import Base, Tilted
from esscher.energies.features import LogLinear, feature_values
from esscher.energies.self_energy import SavedSelfEnergy
from esscher.estimators.divergences import divergences, quasi_rejection_gap
from esscher.estimators.expectations import Prompts, moments
from esscher.estimators.log_z import log_z
from esscher.estimators.reliability import Reliability, reliability
from esscher.hub import ModelCard, save_base
from esscher.objectives.distil import PolicyGradient, ReweightedDistil
from esscher.objectives.likelihood import Likelihood
from esscher.reports.report import Report
from esscher.samplers.accept_reject import QuasiRejection, Rejection
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Importance
from esscher.samplers.particles import resample
from esscher.training.collectives import barrier
from esscher.training.config import TrainingConfig
from esscher.training.evaluation import HeldOut, mean_loss
from esscher.training.resumable import ROWS_BY_DRAWS, ResumableByDraws
from esscher.training.trainer import Trainer, TrainingRecord
from esscher.workflow.config.distil import DistilConfig, DistilRun
from esscher.workflow.model import Model, load
from esscher.workflow.processors import ImageProcessor
from esscher.workflow.run_folder import DISTIL_SETTINGS, RESULTS, refuse_other_settings, save_settings
from esscher.workflow.subsets import evenly_spaced_rows
from esscher.workflow.tilt import energy_data

HELD_OUT = 0.1  # of the draws, to choose the best weights by
PILOT_DRAWS = 4096  # draws that a bound is taken from
ACCEPTED_AT_ONCE = 512  # draws of a shard where each may cost thousands of candidates


@dataclass(frozen=True)
class Stage:
    """One collection of draws: what it cost, and how many equally weighted draws it is worth."""

    cost: int
    ess: float
    acceptance: float | None = None
    gap: Estimate | None = None  # total variation that an unproven bound leaves


@dataclass(frozen=True)
class DistillationResult:
    """What came of it; divergences are between teacher (first) and student (second)."""

    stages: tuple[Stage, ...]
    records: tuple[TrainingRecord, ...]
    divergences: dict[str, Estimate]
    log_z: Estimate
    reliability: Reliability
    draws: Draws  # of the student, weighted towards the teacher

    @property
    def cost(self) -> int:
        """Sequences drawn to learn from."""
        return sum(stage.cost for stage in self.stages)


def distil(
    teacher: Tilted,
    student: nn.Module,
    prompts: Sequences,
    config: DistilConfig,
    training: TrainingConfig,
    *,
    candidates: Draws | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
) -> DistillationResult:
    """Train the student, a base that is a module, in place; `candidates` are weighted draws of the teacher at hand."""
    if not isinstance(student, Base):
        raise TypeError(f"A student is a base that can be trained, and {type(student).__name__} is none. Nothing was drawn.")
    if len(prompts) == 0:
        raise ValueError("There is no prompt to distil for. Nothing was drawn; `empty_prompts(1)` is the unconditional case.")
    rng = SeededRng(training.seed).stream("distil")
    course = _Distillation(
        teacher, student, prompts, config, training, None if folder is None else Path(folder), resume, rng, candidates
    )
    methods: dict[str, Callable[[], list[tuple[Stage, TrainingRecord]]]] = {
        "plain": course.plain,
        "importance": lambda: course.cycles(1),
        "reweighted": course.reweighted,
        "cyclical": lambda: course.cycles(config.stages),
        "policy-gradient": course.policy_gradient,
    }
    steps = methods[config.method]()
    judged = max(2, config.evaluation_draws // len(prompts))
    drawn = Importance(cast(Base, student))(teacher, prompts, judged, rng=rng.stream("judge"))
    scope: Prompts = "same" if len(prompts) == 1 else "sample"
    return DistillationResult(
        tuple(stage for stage, _ in steps),
        tuple(record for _, record in steps),
        divergences(teacher, drawn, other=cast(Base, student), prompts=scope),
        log_z(drawn, prompts=scope),
        min(reliability(drawn), key=lambda one: one.ess),
        drawn,
    )


@dataclass(frozen=True)
class _Distillation:
    """One distillation: the five ways, and what they share."""

    teacher: Tilted
    student: nn.Module
    prompts: Sequences
    config: DistilConfig
    training: TrainingConfig
    folder: Path | None
    resume: bool
    rng: Rng
    candidates: Draws | None

    def plain(self) -> list[tuple[Stage, TrainingRecord]]:
        """Draws of the teacher by rejection, then likelihood."""
        if self.config.log_bound is not None:
            sampler: Sampler = Rejection(self.config.log_bound)
        else:
            pilot = Importance()(self.teacher, self.prompts, self._each(PILOT_DRAWS), rng=self.rng.stream("pilot"))
            sampler = QuasiRejection(float(pilot.log_weight.max()))
        drawn = self._collect("plain", sampler, self.config.draws, shard=ACCEPTED_AT_ONCE)
        gap = quasi_rejection_gap(drawn, sampler.log_bound)["tv"] if isinstance(sampler, QuasiRejection) else None
        accepted = drawn.log_weight.numel()
        stage = Stage(drawn.cost, float(accepted), accepted / drawn.cost, gap)
        return [(stage, self._learn("plain", drawn))]

    def cycles(self, stages: int) -> list[tuple[Stage, TrainingRecord]]:
        """Weighted draws, at first of the base, then of the student so far; each stage learns from all of them."""
        done, parts = [], []
        for number in range(stages):
            proposal = None if number == 0 else cast(Base, deepcopy(self.student).eval())
            if number == 0 and self.candidates is not None:
                drawn = self.candidates
            else:
                drawn = self._collect(f"stage-{number}", Importance(proposal), self.config.candidates // stages)
            parts.append(drawn)
            worth = float(drawn.ess().sum())
            record = self._learn(f"stage-{number}", _combine_by_ess(parts))
            done.append((Stage(drawn.cost, worth), record))
        return done

    def reweighted(self) -> list[tuple[Stage, TrainingRecord]]:
        """Every draw of the base once an epoch, with its surplus of weight."""
        if len(self.prompts) != 1:
            raise ValueError(
                f"The method reweighted knows one log Z, and there are {len(self.prompts)} prompts. Nothing was drawn; use "
                f"importance or cyclical."
            )
        drawn = self.candidates or self._collect("reweighted", Importance(), self.config.candidates)
        split = self._split(drawn)
        objective = ReweightedDistil(self.teacher, log_z(drawn).value)
        x = drawn.x.rows(slice(split, None))
        record = self._train("reweighted", self.training, objective, x, HeldOut(objective, drawn.x.rows(slice(0, split))))
        return [(Stage(drawn.cost, float(drawn.ess().sum())), record)]

    def policy_gradient(self) -> list[tuple[Stage, TrainingRecord]]:
        """Draws of the student at every step."""
        held_out = self.candidates or self._collect("held-out", Importance(), int(HELD_OUT * self.config.candidates))
        rows = resample(held_out, self._each(int(HELD_OUT * self.config.draws)), rng=self.rng.stream("held-out"))
        at_once = min(len(self.prompts), self.training.batch_size)
        draws = max(2, self.config.draws_per_step // at_once)
        steps = max(1, (self.config.candidates - held_out.cost) // (at_once * draws))
        every = self.training.evaluate_every or max(1, steps // 20)
        training = replace(
            self.training, steps=steps, epochs=None, batch_size=at_once, gradient_accumulation_steps=1, evaluate_every=every
        )
        normaliser = log_z(held_out).value if len(self.prompts) == 1 else None
        objective = PolicyGradient(self.teacher, self.config.divergence, draws, normaliser)
        record = self._train("policy-gradient", training, objective, self.prompts, HeldOut(Likelihood(), rows))
        return [(Stage(held_out.cost + record.steps * at_once * draws, float(held_out.ess().sum())), record)]

    def _learn(self, name: str, drawn: Draws) -> TrainingRecord:
        """Likelihood of the draws as often as their weights say, some draws being held out."""
        split, rng = self._split(drawn), self.rng.stream(name)
        held_out = resample(
            drawn.columns(slice(0, split)), self._each(int(HELD_OUT * self.config.draws)), rng=rng.stream("held")
        )
        data = resample(drawn.columns(slice(split, None)), self._each(self.config.draws), rng=rng.stream("learnt"))
        return self._train(
            name, self.training, Likelihood(self.training.label_smoothing), data, HeldOut(Likelihood(), held_out)
        )

    def _split(self, drawn: Draws) -> int:
        """How many draws of each prompt are held out."""
        count = drawn.log_weight.shape[1]
        if count < 2:
            raise ValueError(
                f"{count} draw for each of {len(self.prompts)} prompts leaves none to choose by. Nothing was trained; raise "
                f"draws or candidates."
            )
        return max(1, int(HELD_OUT * count))

    def _train(
        self, name: str, training: TrainingConfig, objective: Objective, data: Sequences, held_out: HeldOut
    ) -> TrainingRecord:
        return Trainer(training)(
            objective,
            Tilted(cast(Base, self.student)),
            data,
            modules=self.student,
            validation=lambda: self._nats(held_out),
            folder=None if self.folder is None else self.folder / name,
            resume=self.resume,
        )

    def _nats(self, held_out: HeldOut) -> Estimate:
        """The student's loss on held-out draws, in batches that do not depend on how many prompts a step has."""
        losses = held_out.losses(
            Tilted(cast(Base, self.student)),
            batch_size=self.training.batch_size,
            device=next(self.student.parameters()).device,
            step=0,
            only=slice(None),
            rng=self.rng.stream("held-out"),
        )
        return mean_loss(losses, draws=len(held_out.data))

    def _collect(self, name: str, sampler: Sampler, draws: int, shard: int = ROWS_BY_DRAWS) -> Draws:
        folder = None if self.folder is None else self.folder / name
        say = current_progress().say
        rng = self.rng.stream("draws", name)
        return ResumableByDraws(sampler, folder, shard, say)(self.teacher, self.prompts, self._each(draws), rng=rng)

    def _each(self, total: int) -> int:
        """For each prompt, so many that all together are `total`; at least one."""
        return max(1, math.ceil(total / len(self.prompts)))


def _combine_by_ess(parts: list[Draws]) -> Draws:
    """All draws together, each collection with a say as large as its effective sample size."""
    if len(parts) == 1:
        return parts[0]
    weighed = []
    for part in parts:
        own = torch.log_softmax(part.log_weight, -1) + part.ess().log()[:, None]
        weighed.append(replace(part, log_weight=own, estimates_z=False))
    return Draws.cat(weighed, 1)


@dataclass(frozen=True)
class DistilResult:
    """The student's folder, how near it came, how often its own draws show each feature, and the report."""

    folder: Path
    distilled: DistillationResult
    rows: list[dict[str, Any]]
    report: Report

    @property
    def model(self) -> Model:
        """The student, loaded from its folder."""
        return load(self.folder)


def distil_model(model: Model, run: DistilRun) -> DistilResult:
    """Distil a tilted model as the settings say, and save the student in `run.out`."""
    folder = Path(run.out)
    if not model.is_tilted:
        raise ValueError(f"{model.name} is not tilted, so it is a plain model already. Nothing was drawn; name an energy.")
    if run.resume:
        refuse_other_settings(folder / DISTIL_SETTINGS, run)
    elif (folder / DISTIL_SETTINGS).is_file():
        raise FileExistsError(
            f"{folder} already holds a distillation. Nothing was changed; go on with --resume, or choose another --out."
        )
    energy = model.target.energy
    student = _new_student(model.base, run) if run.fresh else deepcopy(model.base)
    barrier()  # nobody writes before all have looked
    save_settings(folder / DISTIL_SETTINGS, run)
    checkpoints = folder / "checkpoints"
    result = distil(
        model.target, student, _prompts(model, run), run.distil, run.training, folder=checkpoints, resume=run.resume
    )
    rows = _feature_rows(model.base, student, energy, result, run) if isinstance(energy, LogLinear) else []
    save_base(folder, student, model.data.artifact, _card(model, run, result))
    write_json(folder / RESULTS, _results(folder, result, rows))
    report = _report(model, run, result, rows).save(folder, {"model": model.name, **to_dict(run)})
    return DistilResult(folder, result, rows, report)


def _card(model: Model, run: DistilRun, result: DistillationResult) -> ModelCard:
    energy = model.energy_folder
    name = "an energy" if energy is None else energy.name
    return ModelCard(
        title=f"{Path(model.name).name}, tilted by {'its own logsumexp' if is_self(model) else name}, distilled",
        data=f"{result.cost:,} sequences drawn by the method `{run.distil.method}`.",
        training={"model": model.name, "energy": None if energy is None else str(energy), **to_dict(run)},
        results=[(f"{name}, tilted model to student", value) for name, value in result.divergences.items()],
        notes="" if energy is None else (energy / "README.md").read_text(encoding="utf8").partition("# ")[2],
    )


def is_self(model: Model) -> bool:
    """Whether the energy is the logsumexp of the base's own logits."""
    return isinstance(model.energy, SavedSelfEnergy)


def _results(folder: Path, result: DistillationResult, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "drawn": result.cost,
        "divergences": {name: value.to_dict() for name, value in result.divergences.items()},
        "log_z": result.log_z.to_dict(),
        "features": [
            {key: value.to_dict() if isinstance(value, Estimate) else value for key, value in row.items()} for row in rows
        ],
    }


def _report(model: Model, run: DistilRun, result: DistillationResult, rows: list[dict[str, Any]]) -> Report:
    facts: dict[str, Any] = {
        "model": model.name,
        "energy": "self" if is_self(model) else model.energy_folder,
        "student": run.out,
        "method": run.distil.method,
        "drawn": result.cost,
        "ess": [round(stage.ess) for stage in result.stages],
        "log_z": result.log_z,
        "reliability": result.reliability.verdict,
        "seed": run.training.seed,
    }
    distance = [{"from the tilted model to the student": name, "value": value} for name, value in result.divergences.items()]
    notes = [] if result.reliability.verdict == "good" else [result.reliability.advice]
    return Report("esscher distil", facts, {"features": rows, "distance": distance}, notes)


def _prompts(model: Model, run: DistilRun) -> Sequences:
    """The empty prompt; the classes of images; or prompts of the data that the energy was trained on."""
    if isinstance(model.processor, ImageProcessor):
        return model.processor.class_prompts().x
    if not model.prompt_tokens:
        return empty_prompts(1)
    train = model.training_splits(energy_data(model)).train
    return unique_prompts(evenly_spaced_rows(train, run.distil.prompts))[0]


def _new_student(base: nn.Module, run: DistilRun) -> NetworkBase:
    if not isinstance(base, NetworkBase):
        raise ValueError(
            f"A {type(base).__name__} is not built anew here. Nothing was drawn; leave --fresh out, so that the student starts "
            f"from the base's weights."
        )
    return build_base(base.config, base.space, rng=SeededRng(run.training.seed).stream("base"))


def _feature_rows(
    base: Base, student: Base, energy: LogLinear, result: DistillationResult, run: DistilRun
) -> list[dict[str, Any]]:
    """Each feature's mean in draws of the base and of the student, and under the teacher."""
    rng, count = SeededRng(run.training.seed).stream("features"), run.distil.evaluation_draws
    plain = ResumableByDraws(Ancestral())(Tilted(base), empty_prompts(1), count, rng=rng)
    teacher, drawn = result.draws, Ancestral()(Tilted(student), empty_prompts(1), count, rng=rng.stream("student"))
    columns = [
        moments(draws, feature_values(energy.features, draws.x).view(1, -1, len(energy.features)))
        for draws in (plain, teacher, drawn)
    ]
    titles = ("base", "tilted", "student")
    return [
        {"feature": feature.name, **{title: column[number] for title, column in zip(titles, columns, strict=True)}}
        for number, feature in enumerate(energy.features)
    ]
