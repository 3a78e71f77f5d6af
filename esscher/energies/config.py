"""The settings of an energy that is a network, without torch: what a config file names and an energy's folder remembers.

    unidirectional   a causal network reads from left to right (UniT)
    bidirectional    a Transformer sees the whole sequence from every position (BiT)
    encoder          a pretrained encoder of Hugging Face reads the text, or the tokens (BiT*)
    shared           the base's own states, frozen; only the head above them learns

`to_dict` and `from_dict` are inverse to each other; `from_dict` refuses a key that it does not know.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from esscher.bases import config as bases
from esscher.bases.config import BaseConfig

Reader = Literal["unidirectional", "bidirectional", "encoder", "shared"]
Pooling = Literal["mean", "sum", "last", "whole", "first"]


@dataclass(frozen=True)
class EnergyConfig:
    """Who reads the sequence, and how what was read becomes one number."""

    reader: Reader = "bidirectional"
    """unidirectional, bidirectional, encoder, or shared."""
    pooling: Pooling = "mean"
    """mean or sum over the point's tokens, the last token, the mean of the whole with the prompt, or the first symbol."""
    network: BaseConfig | None = None
    """Of uni- and bidirectional readers, with weights of their own from the start; None starts from the base's weights."""
    dropout: float | None = None
    """Of a reader that starts from the base's weights or an encoder's, if not their own."""
    encoder: str = ""
    """Folder of the pretrained encoder."""
    on: Literal["text", "tokens"] = "text"
    """What the encoder reads; tokens need an encoder with the base's vocabulary."""
    lora: int | None = None
    """Rank of the adapters that learn in place of a pretrained reader's weights (needs peft)."""
    window: int | None = None
    """Tokens of the prompt that are read, the last ones; None means all."""
    hidden: int | None = None
    """Width of a layer between what was read and the number; None means the number is linear in it."""
    bound: float | None = None
    """The energy stays within plus and minus this; None means no bound."""

    def __post_init__(self) -> None:
        for name, given, kind in (("reader", self.reader, Reader), ("pooling", self.pooling, Pooling)):
            if given not in get_args(kind):
                raise ValueError(f"Unknown {name} {given!r} of an energy; the known ones are {', '.join(get_args(kind))}.")
        if self.on not in ("text", "tokens"):
            raise ValueError(f"An encoder reads 'text' or 'tokens', not {self.on!r}.")
        if self.pooling == "first" and self.reader in ("unidirectional", "shared"):
            raise ValueError("The first symbol sees nothing after it when reading from left to right; pool mean or last.")
        if self.bound is not None and not self.bound > 0:
            raise ValueError(f"The bound of an energy is more than 0, not {self.bound}.")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"A dropout rate lies in [0, 1), not {self.dropout}.")
        if self.window is not None and self.window < 0:
            raise ValueError(f"A window has 0 tokens of the prompt or more, not {self.window}; None means all.")
        for name, size in (("hidden", self.hidden), ("lora", self.lora)):
            if size is not None and size < 1:
                raise ValueError(f"{name} is at least 1, not {size}; None means none.")
        self._refuse_idle()

    @property
    def starts_from_base(self) -> bool:
        """Whether its first weights are a copy of a base's."""
        return self.reader in ("unidirectional", "bidirectional") and self.network is None

    def _refuse_idle(self) -> None:
        """A setting that this reader would ignore is a mistake."""
        own = self.reader in ("unidirectional", "bidirectional")
        idle = {
            "network": self.network is not None and not own,
            "dropout": self.dropout is not None and (self.reader == "shared" or self.network is not None),
            "encoder": bool(self.encoder) and self.reader != "encoder",
            "lora": self.lora is not None and (self.reader == "shared" or self.network is not None),
        }
        for name, is_idle in idle.items():
            if is_idle:
                what = "one with a network of its own settings" if own and self.network is not None else f"{self.reader!r}"
                raise ValueError(f"The setting {name} has no meaning for the reader {what}; leave it out.")


def to_dict(config: EnergyConfig) -> dict[str, Any]:
    """The config as plain values."""
    return {**asdict(config), "network": None if config.network is None else bases.to_dict(config.network)}


def from_dict(values: Mapping[str, Any]) -> EnergyConfig:
    """The config of a dictionary; keys left out take their defaults."""
    known = [field.name for field in fields(EnergyConfig)]
    unknown = [key for key in values if key not in known]
    if unknown:
        raise ValueError(f"Unknown key {unknown[0]!r} of an energy; the known keys are {', '.join(known)}.")
    network = values.get("network")
    return EnergyConfig(**{**values, "network": None if network is None else bases.from_dict(network)})


def without_starting_point(config: EnergyConfig, network: BaseConfig | None) -> EnergyConfig:
    """The config of an energy once it is built: the network it has, and nothing of where its first weights came from."""
    return replace(config, network=network, dropout=None, lora=None)
