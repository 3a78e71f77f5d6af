"""Distillation of a tilted model into a plain one, by any of five methods, resumed where it was stopped.

    found = distil(Tilted(base, energy), deepcopy(base), empty_prompts(1), DistilConfig(), TrainingConfig(epochs=5))

The teacher's draws are collected shard by shard; the student learns from them by the common trainer. In the end the
student proposes and the teacher weighs: that tells how far they are apart, and gives log Z anew.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import nn

from esscher.draws import Draws, Sampler, side_by_side
from esscher.estimate import Estimate
from esscher.estimators.divergences import divergences, quasi_rejection_gap
from esscher.estimators.log_z import log_z
from esscher.estimators.reliability import Reliability, reliability
from esscher.estimators.replicates import Prompts
from esscher.objective import Objective
from esscher.objectives.distil import PolicyGradient, Reweighted
from esscher.objectives.likelihood import Likelihood
from esscher.randomness import Rng, Seeded
from esscher.samplers.importance import Importance
from esscher.samplers.rejection import QuasiRejection, Rejection
from esscher.samplers.resampling import resample
from esscher.settings.distil import DistilConfig
from esscher.settings.training import TrainingConfig
from esscher.space import Sequences
from esscher.target import Base, Tilted
from esscher.training.draws_in_pieces import SHARD, collect
from esscher.training.evaluation import HeldOut, mean_loss
from esscher.training.loop import TrainingRecord
from esscher.training.progress import choose_progress
from esscher.training.trainer import Trainer

HELD_OUT = 0.1  # of the draws, to choose the best weights by
PILOT = 4096  # draws that a bound is taken from
ACCEPTED_AT_ONCE = 512  # draws of a shard where each may cost thousands of candidates


@dataclass(frozen=True)
class Stage:
    """One collection of draws: what it cost, and how many equally weighted draws it is worth."""

    cost: int
    effective: float
    acceptance: float | None = None
    gap: Estimate | None = None  # total variation that an unproven bound leaves


@dataclass(frozen=True)
class Distilled:
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
    quiet: bool = False,
) -> Distilled:
    """Train the student, a base that is a module, in place; `candidates` are weighted draws of the teacher at hand."""
    if not isinstance(student, Base):
        raise TypeError(f"A student is a base that can be trained, and {type(student).__name__} is none. Nothing was drawn.")
    if len(prompts) == 0:
        raise ValueError("There is no prompt to distil for. Nothing was drawn; `empty_prompts(1)` is the unconditional case.")
    rng = Seeded(training.seed).stream("distil")
    course = _Course(
        teacher, student, prompts, config, training, None if folder is None else Path(folder), resume, quiet, rng, candidates
    )
    methods: dict[str, Callable[[], list[tuple[Stage, TrainingRecord]]]] = {
        "plain": course.plain,
        "importance": lambda: course.cycles(1),
        "reweighted": course.reweighted,
        "cyclical": lambda: course.cycles(config.stages),
        "policy-gradient": course.policy_gradient,
    }
    steps = methods[config.method]()
    judged = max(2, config.judged // len(prompts))
    drawn = Importance(cast(Base, student))(teacher, prompts, judged, rng=rng.stream("judge"))
    scope: Prompts = "same" if len(prompts) == 1 else "sample"
    return Distilled(
        tuple(stage for stage, _ in steps),
        tuple(record for _, record in steps),
        divergences(teacher, drawn, other=cast(Base, student), prompts=scope),
        log_z(drawn, prompts=scope),
        min(reliability(drawn), key=lambda one: one.effective),
        drawn,
    )


@dataclass(frozen=True)
class _Course:
    """One distillation: the five ways, and what they share."""

    teacher: Tilted
    student: nn.Module
    prompts: Sequences
    config: DistilConfig
    training: TrainingConfig
    folder: Path | None
    resume: bool
    quiet: bool
    rng: Rng
    given: Draws | None

    def plain(self) -> list[tuple[Stage, TrainingRecord]]:
        """Draws of the teacher by rejection, then likelihood."""
        if self.config.log_bound is not None:
            sampler: Sampler = Rejection(self.config.log_bound)
        else:
            pilot = Importance()(self.teacher, self.prompts, self._each(PILOT), rng=self.rng.stream("pilot"))
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
            if number == 0 and self.given is not None:
                drawn = self.given
            else:
                drawn = self._collect(f"stage-{number}", Importance(proposal), self.config.candidates // stages)
            parts.append(drawn)
            worth = float(drawn.effective().sum())
            record = self._learn(f"stage-{number}", _by_worth(parts))
            done.append((Stage(drawn.cost, worth), record))
        return done

    def reweighted(self) -> list[tuple[Stage, TrainingRecord]]:
        """Every draw of the base once an epoch, with its surplus of weight."""
        if len(self.prompts) != 1:
            raise ValueError(
                f"The method reweighted knows one log Z, and there are {len(self.prompts)} prompts. Nothing was drawn; use "
                f"importance or cyclical."
            )
        drawn = self.given or self._collect("reweighted", Importance(), self.config.candidates)
        split = self._split(drawn)
        objective = Reweighted(self.teacher, log_z(drawn).value)
        x = drawn.x.rows(slice(split, None))
        record = self._train("reweighted", self.training, objective, x, HeldOut(objective, drawn.x.rows(slice(0, split))))
        return [(Stage(drawn.cost, float(drawn.effective().sum())), record)]

    def policy_gradient(self) -> list[tuple[Stage, TrainingRecord]]:
        """Draws of the student at every step."""
        held_out = self.given or self._collect("held-out", Importance(), int(HELD_OUT * self.config.candidates))
        rows = resample(held_out, self._each(int(HELD_OUT * self.config.draws)), rng=self.rng.stream("held-out"))
        at_once = min(len(self.prompts), self.training.batch_size)
        draws = max(2, self.config.per_step // at_once)
        steps = max(1, (self.config.candidates - held_out.cost) // (at_once * draws))
        every = self.training.evaluate_every or max(1, steps // 20)
        training = replace(self.training, steps=steps, epochs=None, batch_size=at_once, accumulate=1, evaluate_every=every)
        normaliser = log_z(held_out).value if len(self.prompts) == 1 else None
        objective = PolicyGradient(self.teacher, self.config.divergence, draws, normaliser)
        record = self._train("policy-gradient", training, objective, self.prompts, HeldOut(Likelihood(), rows))
        return [(Stage(held_out.cost + record.steps * at_once * draws, float(held_out.effective().sum())), record)]

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
        return Trainer(training, self.quiet)(
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

    def _collect(self, name: str, sampler: Sampler, draws: int, shard: int = SHARD) -> Draws:
        folder = None if self.folder is None else self.folder / name
        say = choose_progress(self.quiet).say
        rng = self.rng.stream("draws", name)
        return collect(sampler, self.teacher, self.prompts, self._each(draws), rng=rng, folder=folder, shard=shard, say=say)

    def _each(self, total: int) -> int:
        """For each prompt, so many that all together are `total`; at least one."""
        return max(1, math.ceil(total / len(self.prompts)))


def _by_worth(parts: list[Draws]) -> Draws:
    """All draws together, each collection with a say as large as its effective sample size."""
    if len(parts) == 1:
        return parts[0]
    weighed = []
    for part in parts:
        own = torch.log_softmax(part.log_weight, -1) + part.effective().log()[:, None]
        weighed.append(replace(part, log_weight=own, estimates_z=False))
    return side_by_side(weighed)
