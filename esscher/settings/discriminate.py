"""The settings of the fresh classifier that tells data from draws, without torch: what `esscher analyse discriminate` reads."""

from dataclasses import dataclass, field
from typing import ClassVar

from esscher.settings.tilt import EnergyChoice
from esscher.settings.training import Schedule, TrainingConfig


@dataclass(frozen=True)
class ClassifierTraining(TrainingConfig):
    """How the classifier is trained, unless told otherwise."""

    usual_epochs: ClassVar[int] = 16
    may_shard: ClassVar[bool] = False
    learning_rate: float = 3e-4
    schedule: Schedule = "linear"
    warmup: int = 30
    evaluate_every: int | None = 50
    patience: int | None = 5


@dataclass(frozen=True)
class DiscriminateConfig:
    """How many sequences it learns from and is tested on, what it starts from, how it learns."""

    sequences: int = 1000
    """Sequences of the data, chosen by chance; all, if there are fewer."""
    draws: int = 16
    """Draws of the base after each prompt, which are also the pool that the joint's are chosen from."""
    test: float = 0.3
    """Share of the prompts to test on."""
    validation: float = 0.1
    """Share of the prompts to choose the best weights by."""
    classifier: EnergyChoice = field(default_factory=EnergyChoice)
    training: ClassifierTraining = field(default_factory=ClassifierTraining)

    def __post_init__(self) -> None:
        for name, fewest in (("sequences", 10), ("draws", 2)):
            if getattr(self, name) < fewest:
                raise ValueError(f"{name} is at least {fewest}, not {getattr(self, name)}.")
        if not (self.test > 0 and self.validation > 0 and self.test + self.validation < 1):
            raise ValueError(
                f"Test and validation have shares above 0 that leave something to learn from, not {self.test} and "
                f"{self.validation}."
            )
