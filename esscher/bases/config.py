"""Every kind of neural base by its settings, without torch: what a config file names and a checkpoint remembers.

`to_dict` and `from_dict` are inverse to each other; `from_dict` refuses a kind or a key that it does not
know. The kinds are those of `KINDS`; `name` tells the kind of a config.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from esscher.networks.output_config import OutputConfig as OutputConfig
from esscher.networks.pixel_config import GatedPixelCnnConfig as GatedPixelCnnConfig
from esscher.networks.pixel_config import PixelCnnConfig as PixelCnnConfig
from esscher.networks.pixel_config import PixelCnnPlusPlusConfig as PixelCnnPlusPlusConfig
from esscher.networks.recurrent_config import AwdLstmConfig as AwdLstmConfig
from esscher.networks.recurrent_config import EnasConfig as EnasConfig
from esscher.networks.recurrent_config import RecurrentConfig as RecurrentConfig
from esscher.networks.recurrent_config import TrellisNetConfig as TrellisNetConfig
from esscher.networks.seq2seq_config import AttentiveLstmConfig as AttentiveLstmConfig
from esscher.networks.seq2seq_config import EncoderDecoderConfig as EncoderDecoderConfig
from esscher.networks.transformer_config import MIXERS as MIXERS
from esscher.networks.transformer_config import DeqConfig as DeqConfig
from esscher.networks.transformer_config import TransformerConfig as TransformerConfig
from esscher.networks.transformer_config import TransformerXLConfig as TransformerXLConfig
from esscher.networks.transformer_config import XLNetConfig as XLNetConfig

BaseConfig = (
    RecurrentConfig
    | AwdLstmConfig
    | EnasConfig
    | TrellisNetConfig
    | TransformerConfig
    | TransformerXLConfig
    | DeqConfig
    | XLNetConfig
    | EncoderDecoderConfig
    | AttentiveLstmConfig
    | PixelCnnConfig
    | GatedPixelCnnConfig
    | PixelCnnPlusPlusConfig
)

KINDS: dict[str, type[BaseConfig]] = {
    "lstm": RecurrentConfig,
    "gru": RecurrentConfig,
    "awd-lstm": AwdLstmConfig,
    "enas": EnasConfig,
    "trellisnet": TrellisNetConfig,
    "transformer": TransformerConfig,
    "transformer-xl": TransformerXLConfig,
    "deq": DeqConfig,
    "xlnet": XLNetConfig,
    "encoder-decoder": EncoderDecoderConfig,
    "attentive-lstm": AttentiveLstmConfig,
    "pixelcnn": PixelCnnConfig,
    "gated-pixelcnn": GatedPixelCnnConfig,
    "pixelcnn++": PixelCnnPlusPlusConfig,
}
PIXELS = ("pixelcnn", "gated-pixelcnn", "pixelcnn++")
"""The kinds whose points are images."""
TRANSLATE = ("encoder-decoder", "attentive-lstm")
"""The kinds that read a prompt as a source, apart from the point."""


def name(config: BaseConfig) -> str:
    """The kind of a config: a stable name, one of `KINDS`."""
    if isinstance(config, RecurrentConfig):
        return config.cell
    return next(kind for kind, settings in KINDS.items() if settings is type(config))


def to_dict(config: BaseConfig) -> dict[str, Any]:
    """The config as plain values under its kind: `{"kind": "lstm", "width": 200, ...}`."""
    values = {key: value for key, value in asdict(config).items() if key != "cell"}
    return {"kind": name(config), **values}


def from_dict(values: Mapping[str, Any]) -> BaseConfig:
    """The config of a dictionary with a `kind`; keys left out take their defaults."""
    kind = values.get("kind")
    if kind not in KINDS:
        raise ValueError(f"Unknown kind of base {kind!r}; the known kinds are {', '.join(KINDS)}.")
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    del given["kind"]
    known = [field.name for field in sorted(fields(KINDS[kind]), key=lambda one: one.kw_only is True) if field.name != "cell"]
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ValueError(f"Unknown key {unknown[0]!r} of a base of kind {kind!r}; the known keys are {', '.join(known)}.")
    return KINDS[kind](**({"cell": kind} if KINDS[kind] is RecurrentConfig else {}), **given)
