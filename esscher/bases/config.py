"""The settings of every neural base, without torch: what a config file names and a checkpoint remembers.

`to_dict` and `from_dict` are inverse to each other; `from_dict` refuses a kind or a key that it does not
know. The kinds are those of `KINDS`; `name` tells the kind of a config. All have the settings of the output in common.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from esscher.bases.backbone_config import EnasConfig as EnasConfig
from esscher.bases.backbone_config import TrellisNetConfig as TrellisNetConfig
from esscher.bases.output_config import OutputConfig as OutputConfig
from esscher.bases.output_config import check_sizes
from esscher.bases.pixel_config import GatedPixelCnnConfig as GatedPixelCnnConfig
from esscher.bases.pixel_config import PixelCnnConfig as PixelCnnConfig
from esscher.bases.pixel_config import PixelCnnPlusPlusConfig as PixelCnnPlusPlusConfig
from esscher.bases.seq2seq_config import AttentiveLstmConfig as AttentiveLstmConfig
from esscher.bases.seq2seq_config import EncoderDecoderConfig as EncoderDecoderConfig
from esscher.bases.xl_config import MIXERS as MIXERS
from esscher.bases.xl_config import DeqConfig as DeqConfig
from esscher.bases.xl_config import TransformerXLConfig as TransformerXLConfig
from esscher.bases.xl_config import XLNetConfig as XLNetConfig


@dataclass(frozen=True)
class RecurrentConfig(OutputConfig):
    """A stacked LSTM or GRU; `embedding` is the width of its input vectors, None means one-hot input.

    `tied` uses the input vectors as the output weights, so a softmax needs `embedding == width`.
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
        check_sizes(self.width, self.layers, self.dropout)
        if self.embedding is not None and self.embedding < 1:
            raise ValueError(f"An embedding has at least width 1, not {self.embedding}; None means one-hot input.")
        if self.tied and (self.embedding is None or (self.output == "softmax" and self.embedding != self.width)):
            raise ValueError(f"Tied weights need embedding = width = {self.width}, not embedding = {self.embedding}.")
        self.check_output(shared=self.embedding if self.tied else None, width=self.width)


@dataclass(frozen=True)
class TransformerConfig(OutputConfig):
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
        check_sizes(self.width, self.layers, self.dropout)
        if self.heads < 1 or self.width % self.heads:
            raise ValueError(f"The width {self.width} cannot be shared by {self.heads} heads.")
        if self.positions == "rotary" and (self.width // self.heads) % 2:
            raise ValueError(f"Rotary positions turn pairs, so a head needs an even width, not {self.width // self.heads}.")
        if min(self.feedforward, self.max_positions) < 1:
            raise ValueError(f"feedforward and max_positions are at least 1: {self}.")
        self.check_output(shared=self.width if self.tied else None, width=self.width)


@dataclass(frozen=True)
class AwdLstmConfig(OutputConfig):
    """AWD-LSTM (Merity et al. 2018), its defaults those of the Penn Treebank: input vectors of width `embedding` (by default
    the last layer's), LSTM layers of width `inner`, and a last one of `width`.

    In training whole tokens are dropped (`word_dropout`), parts of the input vectors, of what passes between layers and of
    the output (`input_dropout`, `between_dropout`, `dropout`), each the same at all positions, and parts of the weights by
    which a layer reads its own past (`weight_dropout`). `alpha` and `beta` weigh the penalties of large and of changing
    outputs. `tied` uses the input vectors as the output weights, so a softmax needs `embedding == width`.
    """

    width: int = 400
    layers: int = 3
    embedding: int | None = None
    inner: int = 1150
    dropout: float = 0.4
    input_dropout: float = 0.4
    between_dropout: float = 0.25
    word_dropout: float = 0.1
    weight_dropout: float = 0.5
    alpha: float = 2.0
    beta: float = 1.0
    tied: bool = True

    def __post_init__(self) -> None:
        rates = (self.dropout, self.input_dropout, self.between_dropout, self.word_dropout, self.weight_dropout)
        check_sizes(min(self.widths), self.layers, *rates)
        if min(self.alpha, self.beta) < 0:
            raise ValueError(f"alpha and beta are at least 0, not {self.alpha} and {self.beta}.")
        self.check_output(shared=self.widths[0] if self.tied else None, width=self.width)

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the input vectors, and of each layer."""
        return (self.embedding or self.width, *(self.inner,) * (self.layers - 1), self.width)


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
