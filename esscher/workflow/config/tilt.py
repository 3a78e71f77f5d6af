"""The settings of `esscher tilt`, without torch: an energy of features and moments, or a network that learns from data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from esscher.core.config import Texts, check_at_least, check_choices
from esscher.core.truncation import Truncation
from esscher.data.config import DataConfig
from esscher.energies.config import EnergyConfig
from esscher.energies.feature_spec import FeatureSpec, parse_feature, parse_features, read_features
from esscher.training.config import Schedule, TrainingConfig, TwistLearningConfig


@dataclass(frozen=True)
class FitConfig:
    """How the weights of features are fitted."""

    regime: Literal["newton", "rs", "snis"] = "newton"
    """newton on one sample of the base; or the paper's stochastic rs (rejection) or snis (importance sampling)."""
    draws: int = 20_000
    """Draws of the base to fit on, and as many fresh ones to measure on."""
    prior: float = 0.5
    """Observations of the base that join the data, so that no weight is infinite."""
    ridge: float | None = None
    """Standard deviation of a normal prior on the weights; none by default."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 2, "draws")
        if self.ridge is not None and self.regime != "newton":
            raise ValueError(f"A ridge goes with the regime newton, not with {self.regime}.")


@dataclass(frozen=True)
class ContrastConfig:
    """How a network learns to tell the data from draws of the base."""

    negatives: int = 1
    """Draws of the base for each sequence of the data."""
    form: Literal["binary", "ranking"] = "binary"
    """binary brings log Z to 0; ranking compares only within a prompt."""
    stored: int | None = None
    """Draw this many negatives for each prompt once and keep them, instead of fresh ones at every step."""
    sequences: int | None = None
    """Train on only so many sequences of the data, evenly spaced; all by default."""
    held_out: int = 256
    """Validation sequences to choose the best weights by."""
    prefixes: tuple[int, ...] = ()
    """Mix prompt lengths: keep one of these numbers of first tokens of each chunk, at random."""
    draws: int = 4_000
    """Draws of the base to estimate log Z from in the end."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "negatives", "stored", "sequences", "held_out", "draws")
        if self.stored is not None and self.stored < self.negatives:
            raise ValueError(f"{self.stored} stored negatives are too few to tell a sequence from {self.negatives}.")
        if self.stored is not None and self.prefixes:
            raise ValueError("Stored negatives are of one prompt each, so prefixes cannot be mixed; leave one of them out.")


@dataclass(frozen=True)
class ContrastTraining(TrainingConfig):
    """How a network energy is trained."""

    default_epochs: ClassVar[int] = 4
    supports_fsdp: ClassVar[bool] = False  # each process has the whole energy; --fsdp shards the base
    learning_rate: float = 3e-4
    schedule: Schedule = "linear"
    warmup_steps: int = 50
    evaluate_every: int | None = 100
    patience: int | None = 5


@dataclass(frozen=True)
class TiltRun(Truncation):
    """Without features, a network learns to tell data from the base's draws. With features, weights are fitted under which each
    has the mean of the data (`feature`) or a given one (`want`). A feature is written kind:value (docs/guide/features.md)."""

    energy: EnergyConfig | Callable[..., Any] = field(default_factory=EnergyConfig)
    """Settings of a network energy; in Python also a function of sequences, an energy of your own."""
    out: str | None = field(default=None, kw_only=True)
    """Folder of the energy; in Python it may be left out."""
    feature: Texts = field(default=(), kw_only=True)
    """A feature whose mean should match the data, such as contains:cat; may be repeated."""
    want: Texts | Mapping[str, float] = field(default=(), kw_only=True)
    """A feature and the mean it should have, such as contains:cat=0.5; may be repeated."""
    features: str | None = field(default=None, kw_only=True)
    """A YAML file with more features whose means should match the data."""
    prompt: str | None = field(default=None, kw_only=True)
    """Fit the weights of features for continuations of this text; by default for whole texts."""
    data: DataConfig | str | None = field(default=None, kw_only=True)
    """Data to learn from; by default those that the base was trained on."""
    fit: FitConfig = field(default_factory=FitConfig, kw_only=True)
    start: str | None = field(default=None, kw_only=True)
    """Folder of another model with the base's tokenizer, such as a larger one, whose weights a network energy starts from."""
    contrast: ContrastConfig = field(default_factory=ContrastConfig, kw_only=True)
    training: ContrastTraining = field(default_factory=ContrastTraining, kw_only=True)
    twist: TwistLearningConfig | None = field(default=None, kw_only=True)
    """Also learn a twist of the energy, with which `--sampler.kind particles` draws; by default none."""
    resume: bool = field(default=False, kw_only=True)
    """Go on from the last checkpoint in `out`, to the same weights."""
    overwrite: bool = field(default=False, kw_only=True)
    """Replace the energy that `out` holds, with all that was kept of it."""

    def __post_init__(self) -> None:
        if self.resume and self.overwrite:
            raise ValueError(
                "resume goes on with the energy in the folder, and overwrite removes it. Nothing was done; give one."
            )
        if isinstance(self.want, Mapping):
            object.__setattr__(self, "want", tuple(f"{feature}={moment}" for feature, moment in self.want.items()))
        if isinstance(self.data, str):
            object.__setattr__(self, "data", DataConfig(self.data))
        if not self.specs() and (self.prompt is not None or (self.truncates and isinstance(self.energy, EnergyConfig))):
            raise ValueError(
                "prompt, temperature, top_k and top_p are for features (feature, want), whose weights are fitted on draws of "
                "the base. Nothing was done; state a feature, or leave them out: a network learns from its data as they are."
            )

    @property
    def source(self) -> DataConfig | None:
        """The data, if they are not those that the base was trained on."""
        return DataConfig(self.data) if isinstance(self.data, str) else self.data

    def specs(self) -> tuple[FeatureSpec, ...]:
        """All features in order: of the data, of the file, wanted; none means that a network learns the energy."""
        listed = read_features(self.features) if self.features is not None else ()
        return parse_features([*self.feature, *listed, *(spec for spec, _ in map(parse_moment, self.want))])

    def moments(self) -> dict[str, float]:
        """The means that are stated, by the title of their feature."""
        return {spec.title: moment for spec, moment in map(parse_moment, self.want)}


def parse_moment(text: str) -> tuple[FeatureSpec, float]:
    """The feature and the moment of `kind:value=0.5`; the last equals sign counts."""
    feature, equals, moment = text.rpartition("=")
    try:
        if equals:
            return parse_feature(feature.strip()), float(moment)
    except ValueError as error:
        if str(error).startswith("The feature"):
            raise
    raise ValueError(f"A wanted moment is written kind:value=number, such as contains:cat=0.5, and {text!r} is not.")
