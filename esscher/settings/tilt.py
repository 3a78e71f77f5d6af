"""The settings of `esscher tilt`, without torch: an energy of features and moments, or one that a network learns from text."""

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from esscher.cut import Cut
from esscher.data.sources import Unit
from esscher.energies.config import EnergyConfig, Pooling, Reader
from esscher.energies.declaration import Declared
from esscher.energies.parsing import parse_feature, parse_features, read_features
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig, check_choices
from esscher.settings.training import Schedule, TrainingConfig


@dataclass(frozen=True)
class FitConfig:
    """How the weights of features are fitted."""

    regime: Literal["newton", "rs", "snis"] = "newton"
    """newton on one sample of the base; or the paper's stochastic rs or snis."""
    draws: int = 20_000
    """Of the base: as many to fit by, and as many fresh ones to judge by."""
    prior: float = 0.5
    """Observations of the base that join the data, so that no weight is infinite."""
    ridge: float | None = None
    """Standard deviation of a normal prior on the weights; none by default."""

    def __post_init__(self) -> None:
        check_choices(self)
        if self.draws < 2:
            raise ValueError(f"draws is at least 2, not {self.draws}.")
        if self.ridge is not None and self.regime != "newton":
            raise ValueError(f"A ridge goes with the regime newton, not with {self.regime}.")


@dataclass(frozen=True)
class EnergyChoice:
    """Which network reads the sequence; it starts from the base's weights unless told otherwise."""

    reader: Reader | None = None
    """unidirectional, bidirectional, encoder or shared; by default encoder if one is named, else bidirectional where it can."""
    pooling: Pooling = "mean"
    """How what was read becomes one vector: mean, sum, last, whole or first."""
    encoder: str = ""
    """Folder of a pretrained encoder of Hugging Face."""
    start: str = ""
    """Folder of another model with the base's tokenizer, such as a larger one, to start from in place of the base."""
    lora: int | None = None
    """Rank of adapters that learn in place of a pretrained reader's weights (needs peft)."""
    window: int | None = None
    """Tokens of the prompt that are read, the last ones; all by default."""
    hidden: int | None = None
    """Width of a layer between what was read and the number."""
    bound: float | None = None
    """The energy stays within plus and minus this, which allows guarantees and rejection; none by default."""
    dropout: float | None = None
    """In training, if not the base's own."""
    width: int | None = None
    """Of a Transformer with weights of its own."""
    layers: int | None = None
    """Of the same."""
    heads: int | None = None
    """Of the same."""
    feedforward: int | None = None
    """Of the same."""

    def resolve(self, *, both_sides: bool, positions: int) -> EnergyConfig:
        """The whole config; `both_sides` tells whether the base's own network could look ahead, `positions` what it reads."""
        sizes = {name: getattr(self, name) for name in ("width", "layers", "heads", "feedforward")}
        own = {name: size for name, size in sizes.items() if size is not None}
        default: Reader = "encoder" if self.encoder else "bidirectional" if both_sides or own else "unidirectional"
        kept: dict[str, Any] = {name: value for name, value in asdict(self).items() if name not in (*sizes, "start")}
        if own:
            own |= {"max_positions": positions} | ({} if self.dropout is None else {"dropout": self.dropout})
            kept |= {"network": BaseChoice("transformer", **own).resolve(), "dropout": None}
        return EnergyConfig(**{**kept, "reader": self.reader or default})


@dataclass(frozen=True)
class ContrastConfig:
    """How a network learns to tell the data from draws of the base."""

    negatives: int = 1
    """Draws of the base that each sequence is told from."""
    form: Literal["binary", "ranking"] = "binary"
    """binary brings log Z to 0; ranking compares only within a prompt."""
    stored: int | None = None
    """Draw this many negatives for each prompt once and keep them, instead of fresh ones at every step."""
    sequences: int | None = None
    """Learn from only so many sequences of the data, evenly spread; all by default."""
    held_out: int = 256
    """Sequences of the validation data to choose the best weights by."""
    prefixes: tuple[int, ...] = ()
    """Mix prompts: keep one of these many first tokens of each chunk, by chance."""
    draws: int = 4_000
    """Of the base, to tell log Z by in the end."""

    def __post_init__(self) -> None:
        for name in ("negatives", "stored", "sequences", "held_out", "draws"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is at least 1, not {value}.")
        if self.stored is not None and self.stored < self.negatives:
            raise ValueError(f"{self.stored} stored negatives are too few to tell a sequence from {self.negatives}.")
        if self.stored is not None and self.prefixes:
            raise ValueError("Stored negatives are of one prompt each, so prefixes cannot be mixed; leave one of them out.")


@dataclass(frozen=True)
class ContrastTraining(TrainingConfig):
    """How a network that is an energy is trained, unless told otherwise."""

    usual_epochs: ClassVar[int] = 4
    learning_rate: float = 3e-4
    schedule: Schedule = "linear"
    warmup: int = 50
    evaluate_every: int | None = 100
    patience: int | None = 5


@dataclass(frozen=True)
class TiltRun:
    """The whole of `esscher tilt`, the base apart; a feature is written kind:value, a wanted moment kind:value=share."""

    out: str
    """Folder of the energy."""
    feature: tuple[str, ...] = ()
    """A feature whose mean shall be that of the data, such as contains:cat; may be given several times."""
    want: tuple[str, ...] = ()
    """A feature and the mean it shall have, such as contains:cat=0.5; may be given several times."""
    features: str | None = None
    """A YAML file with more features, whose means shall be those of the data."""
    data: str | None = None
    """Text to learn from: a file, a folder, a pattern, a Hugging Face name; by default what the base learnt from."""
    column: str = "text"
    """Of jsonl, parquet and Hugging Face data."""
    target: str | None = None
    """Translations of the data: a file, its ending, or a column beside `column`."""
    unit: Unit = "line"
    """What a text is in a text file."""
    separator: str | None = None
    """A string between the texts, in text files."""
    split: Literal["hash", "place"] = "hash"
    """What holds texts out to choose and judge by: the hash of each; or the place, for few long texts."""
    fit: FitConfig = field(default_factory=FitConfig)
    energy: EnergyChoice = field(default_factory=EnergyChoice)
    contrast: ContrastConfig = field(default_factory=ContrastConfig)
    training: ContrastTraining = field(default_factory=ContrastTraining)
    max_length: int | None = None
    """Tokens of the longest point, if not what the folder says."""
    eos: str | None = None
    """The token that ends a text, if not what a Hugging Face folder says."""
    given: int | None = None
    """Cut the text as one stream into chunks, this many tokens being the prompt of each."""
    seed: int = 0
    """One seed for everything random."""

    @property
    def cut(self) -> Cut:
        return Cut(self.max_length, self.eos, self.given)

    @property
    def source(self) -> DataConfig | None:
        """The data, if they are not those that the base learnt from."""
        if self.data is None:
            return None
        return DataConfig(
            self.data, target=self.target, column=self.column, unit=self.unit, separator=self.separator, split=self.split
        )

    def declared(self) -> tuple[Declared, ...]:
        """All features in order: of the data, of the file, wanted; none means that a network shall learn the energy."""
        listed = read_features(self.features) if self.features is not None else ()
        return parse_features([*self.feature, *listed, *(one for one, _ in map(parse_wanted, self.want))])

    def wanted(self) -> dict[str, float]:
        """The moments that are given, by the title of their feature."""
        return {one.title: moment for one, moment in map(parse_wanted, self.want)}


def parse_wanted(given: str) -> tuple[Declared, float]:
    """The feature and the moment of `kind:value=0.5`; the last equals sign counts."""
    feature, equals, moment = given.rpartition("=")
    try:
        if equals:
            return parse_feature(feature.strip()), float(moment)
    except ValueError as error:
        if str(error).startswith("The feature"):
            raise
    raise ValueError(f"A wanted moment is written kind:value=number, such as contains:cat=0.5, and {given!r} is not.")
