"""The settings of every neural base, without torch: what a config file names and a checkpoint remembers.

`to_dict` and `from_dict` are inverse to each other; `from_dict` refuses a kind or a key that it does not
know. The kinds are `"lstm"`, `"gru"` and `"transformer"`; `name` tells the kind of a config.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True)
class RecurrentConfig:
    """A stacked LSTM or GRU; `embedding` is the width of its input vectors, None means one-hot input.

    `tied` uses the input vectors as the output weights, so it needs `embedding == width`.
    """

    cell: Literal["lstm", "gru"] = "lstm"
    width: int = 200
    layers: int = 2
    dropout: float = 0.0
    embedding: int | None = None
    tied: bool = False

    def __post_init__(self) -> None:
        if self.cell not in ("lstm", "gru"):
            raise ValueError(f"Unknown cell {self.cell!r}; the known cells are 'lstm' and 'gru'.")
        _check_sizes(self.width, self.layers, self.dropout)
        if self.embedding is not None and self.embedding < 1:
            raise ValueError(f"An embedding has at least width 1, not {self.embedding}; None means one-hot input.")
        if self.tied and self.embedding != self.width:
            raise ValueError(f"Tied weights need embedding = width = {self.width}, not embedding = {self.embedding}.")


@dataclass(frozen=True)
class TransformerConfig:
    """A causal pre-norm Transformer; `feedforward` is the inner width of each block, `max_positions` the
    most tokens of a sequence, prompt and point together.

    `tied` uses the input vectors as the output weights.
    """

    width: int = 256
    layers: int = 4
    heads: int = 4
    feedforward: int = 1024
    dropout: float = 0.0
    positions: Literal["rotary", "learned"] = "rotary"
    max_positions: int = 1024
    tied: bool = True

    def __post_init__(self) -> None:
        if self.positions not in ("rotary", "learned"):
            raise ValueError(f"Unknown positions {self.positions!r}; the known ones are 'rotary' and 'learned'.")
        _check_sizes(self.width, self.layers, self.dropout)
        if self.heads < 1 or self.width % self.heads:
            raise ValueError(f"The width {self.width} cannot be shared by {self.heads} heads.")
        if self.positions == "rotary" and (self.width // self.heads) % 2:
            raise ValueError(f"Rotary positions turn pairs, so a head needs an even width, not {self.width // self.heads}.")
        if self.feedforward < 1 or self.max_positions < 1:
            raise ValueError(f"feedforward and max_positions are at least 1: {self}.")


BaseConfig = RecurrentConfig | TransformerConfig

KINDS: dict[str, type[RecurrentConfig] | type[TransformerConfig]] = {
    "lstm": RecurrentConfig,
    "gru": RecurrentConfig,
    "transformer": TransformerConfig,
}


def name(config: BaseConfig) -> str:
    """The kind of a config: a stable name, one of `KINDS`."""
    return config.cell if isinstance(config, RecurrentConfig) else "transformer"


def to_dict(config: BaseConfig) -> dict[str, Any]:
    """The config as plain values under its kind: `{"kind": "lstm", "width": 200, ...}`."""
    values = {key: value for key, value in asdict(config).items() if key != "cell"}
    return {"kind": name(config), **values}


def from_dict(values: Mapping[str, Any]) -> BaseConfig:
    """The config of a dictionary with a `kind`; keys left out take their defaults."""
    kind = values.get("kind")
    if kind not in KINDS:
        raise ValueError(f"Unknown kind of base {kind!r}; the known kinds are {', '.join(KINDS)}.")
    given = {key: value for key, value in values.items() if key != "kind"}
    known = [field.name for field in fields(KINDS[kind]) if field.name != "cell"]
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ValueError(f"Unknown key {unknown[0]!r} of a base of kind {kind!r}; the known keys are {', '.join(known)}.")
    return KINDS[kind](**({"cell": kind} if KINDS[kind] is RecurrentConfig else {}), **given)


def _check_sizes(width: int, layers: int, dropout: float) -> None:
    if width < 1 or layers < 1:
        raise ValueError(f"A network has at least one unit and one layer, not width {width} and {layers} layers.")
    if not 0 <= dropout < 1:
        raise ValueError(f"A dropout rate lies in [0, 1), not {dropout}.")
