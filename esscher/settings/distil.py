"""The settings of a distillation, without torch: what `esscher distil` reads from flags and YAML."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from esscher.settings.data import check_choices
from esscher.settings.training import Schedule, TrainingConfig


@dataclass(frozen=True)
class DistilConfig:
    """How the student gets to know the teacher.

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
    """Of the cyclical method."""
    divergence: Literal["kl", "reverse-kl", "total-variation", "jensen-shannon"] = "kl"
    """What policy-gradient lowers: kl (teacher to student), reverse-kl, total-variation, jensen-shannon."""
    per_step: int = 512
    """Draws of one update of policy-gradient."""
    log_bound: float | None = None
    """A bound on -E(x) for the plain method; by default the largest of a first sample, and the error is estimated."""
    judged: int = 4_000
    """Draws of the student to judge it by."""
    prompts: int = 500
    """Of the text that the energy learnt from, where points come after prompts; draws and candidates are shared by them."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("draws", "candidates", "stages", "judged", "prompts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}.")
        if self.per_step < 2:
            raise ValueError(f"per_step is at least 2, not {self.per_step}: a draw is judged by the others.")


@dataclass(frozen=True)
class DistilTraining(TrainingConfig):
    """How a student is trained, unless told otherwise."""

    usual_epochs: ClassVar[int] = 2
    may_shard: ClassVar[bool] = False
    batch_size: int = 64
    learning_rate: float = 3e-4
    schedule: Schedule = "linear"


@dataclass(frozen=True)
class DistilRun:
    """The whole of `esscher distil`, the base apart."""

    energy: str
    """Folder of the energy that tilts it; or `own`, the level of the base's own logits."""
    out: str
    """Folder of the student."""
    distil: DistilConfig = field(default_factory=DistilConfig)
    training: DistilTraining = field(default_factory=DistilTraining)
    fresh: bool = False
    """Start from new weights of the base's architecture, instead of the base's own weights."""
