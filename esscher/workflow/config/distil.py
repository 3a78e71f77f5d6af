"""The settings of a distillation, without torch: what `esscher distil` reads from flags and YAML."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from esscher.core.config import check_at_least, check_choices
from esscher.training.config import Schedule, TrainingConfig


@dataclass(frozen=True)
class DistilConfig:
    """How the student learns the teacher.

    importance: weighted draws of the base, each learnt as often as its weight says; nothing is thrown away.
    reweighted: the same draws, learnt with a control variate that keeps a student near its base; the best for large models.
    plain: draws of the teacher by rejection from the base. cyclical: in stages, the student of each being the proposal of
    the next. policy-gradient: the student's own draws, and the gradient of a divergence.
    """

    method: Literal["importance", "reweighted", "plain", "cyclical", "policy-gradient"] = "importance"
    """importance, reweighted, plain, cyclical or policy-gradient."""
    draws: int = 20_000
    """Sequences to learn from, except for policy-gradient."""
    candidates: int = 40_000
    """Sequences to draw in all, except for plain, which draws until enough were accepted."""
    stages: int = 3
    """Stages of the cyclical method."""
    divergence: Literal["kl", "reverse-kl", "total-variation", "jensen-shannon"] = "kl"
    """What policy-gradient lowers: kl (teacher to student), reverse-kl, total-variation, jensen-shannon."""
    draws_per_step: int = 512
    """Draws of one update of policy-gradient."""
    log_bound: float | None = None
    """A bound on -E(x) for the plain method; by default the largest of a first sample, and the error is estimated."""
    evaluation_draws: int = 4_000
    """Draws of the student to measure its distance by."""
    prompts: int = 500
    """Prompts from the energy's training data, for a model of chunks; draws and candidates are shared among them."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "draws", "candidates", "stages", "evaluation_draws", "prompts")
        check_at_least(self, 2, "draws_per_step", note=" The baseline of a draw is the mean of the others.")


@dataclass(frozen=True)
class DistilTraining(TrainingConfig):
    """How a student is trained."""

    default_epochs: ClassVar[int] = 2
    supports_fsdp: ClassVar[bool] = False
    batch_size: int = 64
    learning_rate: float = 3e-4
    schedule: Schedule = "linear"


@dataclass(frozen=True)
class DistilRun:
    """The student is a model folder like any other; its distance from the tilted model is printed with an interval."""

    out: str
    """Folder of the student."""
    distil: DistilConfig = field(default_factory=DistilConfig, kw_only=True)
    training: DistilTraining = field(default_factory=DistilTraining, kw_only=True)
    fresh: bool = field(default=False, kw_only=True)
    """Start from new weights of the base's architecture, instead of the base's own weights."""
    resume: bool = field(default=False, kw_only=True)
    """Go on from the last checkpoint in `out`, to the same weights."""
