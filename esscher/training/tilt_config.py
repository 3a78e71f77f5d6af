"""The settings of `esscher tilt`, without torch: which features, which moments, how the weights are fitted."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from esscher.energies.declaration import Declared
from esscher.energies.parsing import parse_feature, parse_features, read_features

Regime = Literal["newton", "rs", "snis"]


@dataclass(frozen=True)
class FitConfig:
    """How the weights are fitted."""

    regime: Regime = "newton"
    """newton on one sample of the base; or the paper's stochastic rs or snis."""
    draws: int = 20_000
    """Of the base: as many to fit by, and as many fresh ones to judge by."""
    prior: float = 0.5
    """Observations of the base that join the data, so that no weight is infinite."""
    ridge: float | None = None
    """Standard deviation of a normal prior on the weights; none by default."""

    def __post_init__(self) -> None:
        if self.regime not in get_args(Regime):
            raise ValueError(f"Unknown regime {self.regime!r}; the known ones are {', '.join(get_args(Regime))}.")
        if self.draws < 2:
            raise ValueError(f"draws is at least 2, not {self.draws}.")
        if self.ridge is not None and self.regime != "newton":
            raise ValueError(f"A ridge goes with the regime newton, not with {self.regime}.")


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
    """Text to take moments from: a file, a folder, a pattern, a Hugging Face name; by default what the base learnt from."""
    column: str = "text"
    """Of jsonl, parquet and Hugging Face data."""
    unit: Literal["line", "paragraph", "document"] = "line"
    """What a text is in a text file."""
    fit: FitConfig = field(default_factory=FitConfig)
    max_length: int | None = None
    """Tokens of the longest point, if not what the folder says."""
    eos: str | None = None
    """The token that ends a text, if not what a Hugging Face folder says."""
    seed: int = 0
    """One seed for everything random."""

    def declared(self) -> tuple[Declared, ...]:
        """All features in order: of the data, of the file, wanted."""
        listed = read_features(self.features) if self.features is not None else ()
        found = parse_features([*self.feature, *listed, *(one for one, _ in map(parse_wanted, self.want))])
        if not found:
            raise ValueError("There is no feature to tilt by. Nothing was done; give --feature, --features or --want.")
        return found

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
