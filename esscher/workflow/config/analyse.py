"""The settings of `esscher analyse`, without torch."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from esscher.core.config import check_at_least, check_choices
from esscher.data.config import SourceConfig
from esscher.energies.config import EnergyConfig
from esscher.training.config import Schedule, TrainingConfig
from esscher.workflow.config.load import PlacementConfig

MEASURED = " Nothing was measured."


@dataclass(frozen=True)
class AnalysisConfig:
    """What all analyses have."""

    plot: str | None = field(default=None, kw_only=True)
    """Draw the result into this file, such as analysis.png."""
    confidence: float = field(default=0.95, kw_only=True)
    """Coverage of the intervals."""


@dataclass(frozen=True)
class HeldOutData:
    """Data to compare with; take some that neither the base nor the energy was trained on."""

    data: SourceConfig | str | None = None
    """Data to compare with; by default those held out of the training data of the energy, or of the base where it has none."""

    @property
    def source(self) -> SourceConfig | None:
        """The data as settings, whether a path or settings were given; None for held-out data."""
        return SourceConfig(self.data) if isinstance(self.data, str) else self.data


@dataclass(frozen=True)
class StreamData(PlacementConfig):
    """Models, and one long text that they read."""

    models: tuple[str, ...] = ()
    """Folders of the bases to compare."""
    data: SourceConfig | str = field(kw_only=True)

    @property
    def source(self) -> SourceConfig:
        """The data as settings, whether a path or settings were given."""
        return SourceConfig(self.data) if isinstance(self.data, str) else self.data

    def check_models(self) -> None:
        """Refuse to compare nothing."""
        if not self.models:
            raise ValueError(f"There is no model to analyse.{MEASURED} Name at least one folder.")


@dataclass(frozen=True)
class EnergiesConfig(AnalysisConfig, HeldOutData):
    """Energies of data, of draws of the base and of draws of the tilted model: means, distances to the data, histograms."""

    sequences: int = field(default=200, kw_only=True)
    """Sequences of the data, chosen at random; all, if there are fewer."""
    draws: int = field(default=32, kw_only=True)
    """Draws of the base for each sequence; they are also the candidates of the tilted model's draws."""
    seed: int = field(default=0, kw_only=True)
    """Seed of everything random; printed back."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "sequences", note=MEASURED)
        check_at_least(self, 2, "draws", note=MEASURED)


@dataclass(frozen=True)
class NgramsConfig(EnergiesConfig):
    """The share of different n-grams within a sequence, in data, draws of the base and draws of the tilted model."""

    longest: int = field(default=4, kw_only=True)
    """Tokens of the longest n-gram."""


@dataclass(frozen=True)
class NextTokenConfig(AnalysisConfig):
    """The most probable next tokens after a prompt under the base (exact) and under the tilted model; all rows sum to one."""

    prompt: str
    """Text to continue; empty means the beginning of a text."""
    top: int = field(default=10, kw_only=True)
    """Show so many of the most probable tokens of the base, and of the tilted model."""
    draws: int = field(default=256, kw_only=True)
    """Continuations for each row of the table."""
    seed: int = field(default=0, kw_only=True)
    """Seed of everything random; printed back."""


@dataclass(frozen=True)
class ClassifierTraining(TrainingConfig):
    """How the classifier is trained; its seed is that of everything random."""

    default_epochs: ClassVar[int] = 16
    supports_fsdp: ClassVar[bool] = False
    learning_rate: float = 3e-4
    schedule: Schedule = "linear"
    warmup_steps: int = 30
    evaluate_every: int | None = 50
    patience: int | None = 5


@dataclass(frozen=True)
class DiscriminateConfig(AnalysisConfig, HeldOutData):
    """Accuracy of new classifiers on other prompts: data against draws of the base, and against draws of the tilted model."""

    sequences: int = field(default=1000, kw_only=True)
    """Sequences of the data, chosen at random; all, if there are fewer."""
    draws: int = field(default=16, kw_only=True)
    """Draws of the base after each prompt; they are also the candidates of the tilted model's draws."""
    test: float = field(default=0.3, kw_only=True)
    """Share of the prompts to test on."""
    validation: float = field(default=0.1, kw_only=True)
    """Share of the prompts to choose the best weights by."""
    classifier: EnergyConfig = field(default_factory=EnergyConfig, kw_only=True)
    training: ClassifierTraining = field(default_factory=ClassifierTraining, kw_only=True)

    def __post_init__(self) -> None:
        check_at_least(self, 10, "sequences", note=MEASURED)
        check_at_least(self, 2, "draws", note=MEASURED)
        if not (self.test > 0 and self.validation > 0 and self.test + self.validation < 1):
            raise ValueError(
                f"test and validation are shares above 0 that leave some prompts for training, not {self.test} and "
                f"{self.validation}.{MEASURED}"
            )


@dataclass(frozen=True)
class ContextConfig(AnalysisConfig, StreamData):
    """Perplexity by length of context, and the relative effective context length of models that share their tokens."""

    step: int = field(default=50, kw_only=True)
    """Tokens from one length of context to the next; the shortest context has as many."""
    longest: int = field(default=400, kw_only=True)
    """Tokens of the longest context."""
    positions: int = field(default=500, kw_only=True)
    """Tokens that are predicted, evenly spaced in the text."""
    seed: int = field(default=0, kw_only=True)
    """Seed of everything random; printed back."""

    def __post_init__(self) -> None:
        self.check_models()
        check_at_least(self, 1, "step", note=MEASURED)
        check_at_least(self, self.step, "longest", note=MEASURED)
        check_at_least(self, 2, "positions", note=MEASURED)

    @property
    def lengths(self) -> tuple[int, ...]:
        """All lengths of context."""
        return tuple(range(self.step, self.longest + 1, self.step))


@dataclass(frozen=True)
class RankConfig(AnalysisConfig, StreamData):
    """Numerical rank of the next-token log-probabilities (in float64), and the mean divergence between pairs of contexts."""

    contexts: int = field(default=1000, kw_only=True)
    """Contexts, evenly spaced in the text; no rank can be higher."""
    length: int = field(default=64, kw_only=True)
    """Tokens of each context."""

    def __post_init__(self) -> None:
        self.check_models()
        check_at_least(self, 2, "contexts", note=MEASURED)
        check_at_least(self, 0, "length", note=MEASURED)


@dataclass(frozen=True)
class ExposureConfig(AnalysisConfig, HeldOutData):
    """A lower bound, by position, on the distance of generated prefixes from those of the data; the critic is the logsumexp of
    the model's logits. With `against`, also the share of positions where the true token is more probable after the model's own
    outputs than after the baseline's: above one half the model is better."""

    against: str | None = field(default=None, kw_only=True)
    """Folder of a baseline with the same tokens, for the ratio."""
    sequences: int = field(default=200, kw_only=True)
    """Sequences of the data, chosen at random; of a stream, places evenly spaced in the text. All, if there are fewer."""
    draws: int = field(default=8, kw_only=True)
    """Draws of the model for each sequence."""
    longest: int = field(default=50, kw_only=True)
    """Tokens of each sequence that are analysed, the first ones."""
    decode: Literal["greedy", "sampled"] = field(default="greedy", kw_only=True)
    """The outputs that the ratio conditions on: the most probable token at each step, or a random one."""
    warmup: int = field(default=1024, kw_only=True)
    """Tokens that a model with a memory reads before each place of a stream; half of the text at most."""
    seed: int = field(default=0, kw_only=True)
    """Seed of everything random; printed back."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name, least in (("sequences", 2), ("draws", 1), ("longest", 1), ("warmup", 0)):
            check_at_least(self, least, name, note=MEASURED)
