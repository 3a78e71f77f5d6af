"""Distillation of a tilted model into a plain one, by any of five methods; an interrupted run resumes.

A tenth of the draws is held out, and the best weights on these are kept. The weights before the first update take part, so up
to the noise of the held-out draws a student is not farther from the teacher than it began. In the end the student proposes and
the teacher weighs: this measures how far student and base are from the teacher, and estimates log Z again.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from esscher.bases.logits import LogitBase
from esscher.core.config import to_dict
from esscher.core.draws import Draws, Sampler
from esscher.core.estimate import Estimate
from esscher.core.folder_lock import locked_folder
from esscher.core.objective import Objective
from esscher.core.progress import current_progress
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import Sequences
from esscher.core.storage import local_module_tensors
from esscher.core.target import Base, Tilted
from esscher.estimators.expectations import (
    METHOD,
    Prompts,
    bias_of_log_mean,
    bias_of_weighted_mean,
    divergences_of_densities,
    estimate_from_draws,
    quasi_rejection_gap,
    weighted_mean,
)
from esscher.estimators.intervals import log_mean
from esscher.estimators.log_z import log_z
from esscher.estimators.reliability import Reliability, StoredEstimates, reliability
from esscher.objectives.distil import PolicyGradient, ReweightedDistil
from esscher.objectives.likelihood import Likelihood
from esscher.objectives.noise_contrastive import base_fingerprint
from esscher.samplers.accept_reject import QuasiRejection, Rejection
from esscher.samplers.importance import Importance
from esscher.samplers.particles import resample
from esscher.samplers.scoring import log_prob
from esscher.training.batches import batch_order
from esscher.training.collectives import broadcast_object
from esscher.training.config import DistilConfig, TrainingConfig
from esscher.training.evaluation import HeldOut, mean_loss
from esscher.training.made_with import (
    claim_folder,
    draws_fingerprint,
    proposal_digests,
    sequences_fingerprint,
    target_digests,
)
from esscher.training.resumable import ROWS_BY_DRAWS, ResumableByDraws
from esscher.training.trainer import Trainer, TrainingRecord

HELD_OUT = 0.1  # of the draws, to choose the best weights by
EVALUATIONS = 10  # while training, unless its settings say how often
LOGITS_AT_ONCE = 2**25  # logits of one model that the method reweighted holds in one pass
PILOT_DRAWS = 4096  # draws that a bound is taken from
ACCEPTED_AT_ONCE = 512  # draws of a shard where each may cost thousands of candidates


@dataclass(frozen=True)
class Stage:
    """One collection of draws: its cost, how many equally weighted draws it is worth, and how training on it went."""

    cost: int
    ess: float
    record: TrainingRecord
    acceptance: float | None = None
    gap: Estimate | None = None  # total variation that an unproven bound leaves


@dataclass(frozen=True)
class DistillationResult:
    """What came of it; divergences are between teacher (first) and student, or the teacher's base (second). `nearer` is by how
    much the KL divergence from the teacher is smaller for the student than for the base."""

    method: str
    stages: list[Stage]
    divergences: dict[str, Estimate]
    base_divergences: dict[str, Estimate]
    nearer: Estimate
    log_z: Estimate
    reliability: Reliability
    draws: Draws  # of the student, weighted towards the teacher

    @property
    def cost(self) -> int:
        """Sequences drawn to learn from."""
        return sum(stage.cost for stage in self.stages)

    @property
    def warnings(self) -> list[str]:
        """Whether the student is no nearer to the teacher than the base is, and whether the numbers are reliable."""
        warnings = [] if self.reliability.verdict == "good" else [self.reliability.advice]
        if not self.nearer.low > 1e-9:  # equal weights differ by rounding
            if all(stage.record.best_step == 0 for stage in self.stages):
                what = "No update brought the student nearer to the tilted model, so it has the weights it began with"
            else:
                what = "The student is not shown to be nearer to the tilted model than its base"
            warnings.insert(
                0, f"{what}: raise --distil.candidates, train longer, or raise --distil.evaluation-draws to see more."
            )
        return warnings


def distil(
    teacher: Tilted,
    student: nn.Module,
    prompts: Sequences,
    config: DistilConfig,
    training: TrainingConfig,
    *,
    candidates: Draws | None = None,
    proposal: Base | None = None,
    stored: StoredEstimates | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    sample: Callable[[Rng], Sequence[str]] | None = None,
) -> DistillationResult:
    """Train the student, a base that is a module, in place; `candidates` are weighted draws of the teacher at hand, `sample`
    draws texts for the histories of training. Candidates that are drawn here come from `proposal`, by default the teacher's
    base; `stored` is what is known of the teacher, with which the student's draws are compared in the end."""
    if not isinstance(student, Base):
        raise TypeError(f"A student is a base that can be trained, and {type(student).__name__} is none. Nothing was drawn.")
    if len(prompts) == 0:
        raise ValueError("There is no prompt to distil for. Nothing was drawn; `empty_prompts(1)` is the unconditional case.")
    rng = SeededRng(training.seed).stream("distil")
    place = None if folder is None else Path(folder)
    with locked_folder(place):
        made_with: dict[str, Any] = {}
        if place is not None:
            made_with = {
                **target_digests(teacher),
                "student": base_fingerprint(cast(Base, student)),
                "prompts": sequences_fingerprint(prompts),
                "candidates": None if candidates is None else draws_fingerprint(candidates),
                **proposal_digests(proposal),
                "method": to_dict(config),
                "seed": training.seed,
            }
            claim_folder(place, made_with, kept=("*/draws-*.safetensors", "*/checkpoints"))
        run = _Distillation(teacher, student, prompts, config, training, place, resume, rng, made_with, sample, proposal)
        return _distil(run, candidates, stored)


def _distil(run: "_Distillation", candidates: Draws | None, stored: StoredEstimates | None) -> DistillationResult:
    teacher, student, prompts, config, rng = run.teacher, run.student, run.prompts, run.config, run.rng
    methods: dict[str, Callable[[], list[Stage]]] = {
        "plain": run.plain,
        "importance": lambda: run.cycles(1, candidates),
        "reweighted": lambda: run.reweighted(candidates),
        "cyclical": lambda: run.cycles(config.stages, candidates),
        "policy-gradient": lambda: run.policy_gradient(candidates),
    }
    method = config.method
    if method == "auto":  # candidates at hand may come from another proposal than the base
        whole = isinstance(teacher.base, LogitBase) and isinstance(student, LogitBase)
        method = "reweighted" if whole and candidates is None and run.proposal is None else "importance"
    if method == "reweighted" and run.proposal is not None:
        raise ValueError(
            "The method reweighted learns from draws of the base itself, and a proposal is named. Nothing was drawn; choose "
            "importance, cyclical, plain or policy-gradient, or leave the proposal out."
        )
    stages = methods[method]()
    draws = max(2, config.evaluation_draws // len(prompts))
    drawn = Importance(cast(Base, student))(teacher, prompts, draws, rng=rng.stream("judge"))
    scope: Prompts = "same" if len(prompts) == 1 else "sample"
    first = drawn.log_weight.detach().cpu().double()
    second = drawn.log_base.detach().cpu().double() - log_prob(cast(Base, student), drawn.x).view(first.shape)  # log a - log pi
    return DistillationResult(
        method,
        stages,
        divergences_of_densities(drawn, first, torch.zeros_like(first), prompts=scope),
        divergences_of_densities(drawn, first, second, prompts=scope),
        _nearer(drawn, first, second, scope),
        log_z(drawn, prompts=scope),
        min(reliability(drawn, energy=teacher.energy, stored=stored), key=lambda entry: entry.ess),
        drawn,
    )


def _nearer(drawn: Draws, teacher: Float[Tensor, "P N"], base: Float[Tensor, "P N"], prompts: Prompts) -> Estimate:
    """KL(teacher || base) - KL(teacher || student) = E_p[log pi - log a], from log densities relative to the student. The mean
    of a / pi is 1; subtracting the log of its estimate takes away most of the noise that both divergences share."""

    def statistic(count: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return weighted_mean(count, first, -second) + log_mean(count, second)

    def bias(first: Tensor, second: Tensor) -> Tensor:
        return bias_of_weighted_mean(first, -second) + bias_of_log_mean(second)

    return estimate_from_draws(
        drawn, statistic, [teacher, base], bias=bias, prompts=prompts, confidence=0.95, method=METHOD, unit="nats"
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
    made_with: Mapping[str, Any]
    sample: Callable[[Rng], Sequence[str]] | None = None
    proposal: Base | None = None

    def plain(self) -> list[Stage]:
        """Draws of the teacher by rejection, then likelihood."""
        if self.config.log_bound is not None:
            sampler: Sampler = Rejection(self.config.log_bound, proposal=self.proposal)
        else:
            pilot_rng, each = self.rng.stream("pilot"), self._each(PILOT_DRAWS)
            pilot = Importance(self.proposal)(self.teacher, self.prompts, each, rng=pilot_rng)
            sampler = QuasiRejection(float(pilot.log_weight.max()), proposal=self.proposal)
        drawn = self._collect("plain", sampler, self.config.draws, shard=ACCEPTED_AT_ONCE)
        gap = quasi_rejection_gap(drawn, sampler.log_bound)["tv"] if isinstance(sampler, QuasiRejection) else None
        accepted = drawn.log_weight.numel()
        return [Stage(drawn.cost, float(accepted), self._learn("plain", drawn), accepted / drawn.cost, gap)]

    def cycles(self, stages: int, candidates: Draws | None) -> list[Stage]:
        """Weighted draws, at first of the base or the proposal, then of the student so far; each stage learns from all."""
        done: list[Stage] = []
        parts: list[Draws] = []
        for number in range(stages):
            proposal = self.proposal if number == 0 else cast(Base, deepcopy(self.student).eval())
            if number == 0 and candidates is not None:
                drawn = candidates
            else:
                drawn = self._collect(f"stage-{number}", Importance(proposal), self.config.candidates // stages)
            parts.append(drawn)
            ess = float(drawn.ess().sum())
            done.append(Stage(drawn.cost, ess, self._learn(f"stage-{number}", _combine_by_ess(parts))))
        return done

    def reweighted(self, candidates: Draws | None) -> list[Stage]:
        """Every draw of the base once an epoch, with its surplus of weight."""
        drawn = candidates or self._collect("reweighted", Importance(), self.config.candidates)
        split, space = self._split(drawn), self.teacher.space
        normaliser: Any = float(drawn.log_z()[0])
        if len(self.prompts) > 1:
            normaliser = dict(zip(self.prompts.prompt_keys(), drawn.log_z().tolist(), strict=True))
        objective = ReweightedDistil(self.teacher, normaliser)
        held_out, data = drawn.columns(slice(0, split)).x, drawn.columns(slice(split, None)).x
        training, row = self.training, space.vocab_size * (space.max_length + int(self.prompts.start.max()))
        if training.gradient_accumulation_steps == 1 and training.batch_tokens is None:
            sizes = (size for size in range(1, training.batch_size + 1) if training.batch_size % size == 0)
            passes = next(
                size for size in sizes if training.batch_size // size * row <= LOGITS_AT_ONCE or size == training.batch_size
            )
            training = replace(training, gradient_accumulation_steps=passes)
        record = self._train("reweighted", training, objective, data, HeldOut(objective, held_out))
        return [Stage(drawn.cost, float(drawn.ess().sum()), record)]

    def policy_gradient(self, candidates: Draws | None) -> list[Stage]:
        """Draws of the student at every step."""
        held_out = candidates or self._collect("held-out", Importance(self.proposal), int(HELD_OUT * self.config.candidates))
        rows = resample(held_out, self._each(int(HELD_OUT * self.config.draws)), rng=self.rng.stream("held-out"))
        at_once = min(len(self.prompts), self.training.batch_size)
        draws = max(2, self.config.draws_per_step // at_once)
        steps = max(1, (self.config.candidates - held_out.cost) // (at_once * draws))
        training = replace(self.training, steps=steps, epochs=None, batch_size=at_once, gradient_accumulation_steps=1)
        normaliser = log_z(held_out).value if len(self.prompts) == 1 else None
        objective = PolicyGradient(self.teacher, self.config.divergence, draws, normaliser)
        record = self._train("policy-gradient", training, objective, self.prompts, HeldOut(Likelihood(), rows))
        return [Stage(held_out.cost + record.steps * at_once * draws, float(held_out.ess().sum()), record)]

    def _learn(self, name: str, drawn: Draws) -> TrainingRecord:
        """Likelihood of the draws as often as their weights say, some draws being held out."""
        split, rng = self._split(drawn), self.rng.stream(name)
        held_out_draws = self._each(int(HELD_OUT * self.config.draws))
        held_out = resample(drawn.columns(slice(0, split)), held_out_draws, rng=rng.stream("held"))
        data = resample(drawn.columns(slice(split, None)), self._each(self.config.draws), rng=rng.stream("learnt"))
        objective = Likelihood(self.training.label_smoothing)
        return self._train(name, self.training, objective, data, HeldOut(Likelihood(), held_out))

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
        """Train the student; evaluation is in batches that do not depend on how many prompts a step has. The weights at the
        start are kept where no evaluation is better."""
        target, size = (
            Tilted(cast(Base, self.student)),
            max(1, self.training.batch_size // training.gradient_accumulation_steps),
        )
        if training.evaluate_every is None:
            steps = training.steps or batch_order(data, training).steps(training.epochs or training.default_epochs)
            training = replace(training, evaluate_every=max(1, steps // EVALUATIONS))

        def validation() -> Estimate:
            device, rng = next(self.student.parameters()).device, self.rng.stream("held-out")
            losses = held_out.losses(target, batch_size=size, device=device, step=0, only=slice(None), rng=rng)
            return mean_loss(losses, n=len(held_out.data), counted="draws")

        folder = None if self.folder is None else self.folder / name
        self.student.eval()
        first = broadcast_object(validation())
        weights = {key: weight.clone() for key, weight in local_module_tensors(self.student).items()}
        record = Trainer(training)(
            objective,
            target,
            data,
            modules=self.student,
            validation=validation,
            folder=folder,
            resume=self.resume,
            sample=self.sample,
        )
        if not training.keep_best or record.best is None or record.best.value < first.value:
            return record
        current_progress().say(
            f"No update made the student better on the held-out draws: {name} keeps the weights it began with."
        )
        with torch.no_grad():
            for key, tensor in local_module_tensors(self.student).items():
                tensor.copy_(weights[key])
        return replace(record, best=first, best_step=0)

    def _collect(self, name: str, sampler: Sampler, draws: int, shard: int = ROWS_BY_DRAWS) -> Draws:
        folder, rng = None if self.folder is None else self.folder / name, self.rng.stream("draws", name)
        collect = ResumableByDraws(sampler, folder, shard, current_progress().say, made_with=self.made_with)
        return collect(self.teacher, self.prompts, self._each(draws), rng=rng)

    def _each(self, total: int) -> int:
        """For each prompt, so many that all together are `total`; at least one."""
        return max(1, math.ceil(total / len(self.prompts)))


def _combine_by_ess(parts: list[Draws]) -> Draws:
    """All draws together, each collection with a say as large as its effective sample size."""
    if len(parts) == 1:
        return parts[0]
    weights = [torch.log_softmax(part.log_weight, -1) + part.ess().log()[:, None] for part in parts]
    return Draws.cat(
        [replace(part, log_weight=weight, estimates_z=False) for part, weight in zip(parts, weights, strict=True)], 1
    )
