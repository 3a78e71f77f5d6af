"""The settings of a distillation, without torch: what `esscher distil` reads from flags and YAML."""

from dataclasses import dataclass, field
from typing import ClassVar

from esscher.data.config import SourceConfig
from esscher.training.config import DistilConfig, Schedule, TrainingConfig
from esscher.workflow.config.proposal import ProposalConfig


@dataclass(frozen=True)
class DistilTraining(TrainingConfig):
    """How a student is trained."""

    default_epochs: ClassVar[int] = 2
    supports_fsdp: ClassVar[bool] = False
    batch_size: int = 64
    learning_rate: float = 3e-4
    schedule: Schedule = "linear"


@dataclass(frozen=True)
class DistilRun(ProposalConfig):
    """The student is a model folder like any other. Its distance from the tilted model is printed beside the base's, with
    intervals, and the perplexity of all three on held-out data."""

    out: str
    """Folder of the student."""
    data: SourceConfig | str | None = field(default=None, kw_only=True)
    """Held-out data to measure base, tilted model and student on; by default those held out of the training data."""
    distil: DistilConfig = field(default_factory=DistilConfig, kw_only=True)
    training: DistilTraining = field(default_factory=DistilTraining, kw_only=True)
    fresh: bool = field(default=False, kw_only=True)
    """Start from new weights of the base's architecture, instead of the base's own weights."""
    resume: bool = field(default=False, kw_only=True)
    """Go on from the last checkpoint in `out`, to the same weights."""

    @property
    def source(self) -> SourceConfig | None:
        """The data as settings, whether a path or settings were given."""
        return SourceConfig(self.data) if isinstance(self.data, str) else self.data
