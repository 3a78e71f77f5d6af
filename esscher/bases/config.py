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


MIXERS = ("full", "local", "lightconv", "dynamicconv")


@dataclass(frozen=True)
class TransformerXLConfig(OutputConfig):
    """Transformer-XL (Dai et al. 2019), whose layers remember what came before a segment; Local-XL and convolutions with it.

    `memory` is how many earlier positions a layer keeps while it learns from a stream, `reach` how far back a position then
    attends when sequences are scored and drawn (None: as far as the memory; where that is 0, everything, and segments of a
    stream stand alone), `clamp` the largest distance that is told apart there. With `same_length` a position of a stream
    attends no further than the memory in training too. `mixers` names what each layer mixes positions by, `spans` its chunk or
    kernel size; the last of either stands for all further layers. `head_width` is `width / heads` if not given. `untied` gives
    each layer biases of its own. With `variational` a dropout mask is the same at all positions.
    """

    width: int = 256
    layers: int = 4
    heads: int = 4
    head_width: int | None = None
    feedforward: int = 1024
    dropout: float = 0.0
    attention_dropout: float = 0.0
    memory: int = 128
    reach: int | None = None
    clamp: int | None = None
    same_length: bool = False
    norm: Literal["post", "pre"] = "post"
    untied: bool = False
    variational: bool = False
    mixers: tuple[Literal["full", "local", "lightconv", "dynamicconv"], ...] = ("full",)
    spans: tuple[int, ...] = (64,)
    tied: bool = True

    def __post_init__(self) -> None:
        check_sizes(self.width, self.layers, self.dropout, self.attention_dropout)
        if self.norm not in ("post", "pre"):
            raise ValueError(f"Unknown norm {self.norm!r}; the known ones are 'post' and 'pre'.")
        unknown = [mixer for mixer in self.mixers if mixer not in MIXERS]
        if unknown or not self.mixers:
            raise ValueError(f"Unknown mixers {unknown}; name at least one of {', '.join(MIXERS)}.")
        if self.heads < 1 or (self.width % self.heads and (self.head_width is None or self.convolves)):
            raise ValueError(f"The width {self.width} cannot be shared by {self.heads} heads.")
        if not self.spans or min(self.spans) < 1:
            raise ValueError(f"A chunk or kernel has at least one position: spans = {self.spans}.")
        if self.feedforward < 1 or (self.head_width is not None and self.head_width < 1):
            raise ValueError(f"feedforward and head_width are at least 1: {self}.")
        if self.memory < 0 or (self.reach is not None and self.reach < 0) or (self.clamp is not None and self.clamp < 0):
            raise ValueError(f"memory, reach and clamp are at least 0: {self.memory}, {self.reach}, {self.clamp}.")
        self.check_output(shared=self.width if self.tied else None, width=self.width)

    @property
    def convolves(self) -> bool:
        """Whether a layer is a convolution."""
        return any(self.mixer(layer)[0].endswith("conv") for layer in range(self.layers))

    @property
    def attends(self) -> bool:
        """Whether a layer is attention."""
        return any(self.mixer(layer)[0] in ("full", "local") for layer in range(self.layers))

    @property
    def sight(self) -> int | None:
        """How far back a position attends where sequences are scored and drawn; None is everything."""
        return self.reach if self.reach is not None else self.memory or None

    def mixer(self, layer: int) -> tuple[str, int]:
        """What a layer mixes positions by, and its chunk or kernel size."""
        return self.mixers[min(layer, len(self.mixers) - 1)], self.spans[min(layer, len(self.spans) - 1)]


@dataclass(frozen=True)
class DeqConfig(OutputConfig):
    """DEQ-Transformer (Bai et al. 2019, 2021): the fixed point of one Transformer-XL layer that is given the input again and
    again; its defaults those of WikiText-103.

    In training the layer is applied until it changes no position by more than `tolerance`, relative to its size, at most
    `iterations` times; the last `mixed` iterates are mixed (Anderson); the gradient is solved for alike, in at most
    `adjoint_iterations`. Scores, draws and gradients out of training have a tolerance and a limit of their own. With `unrolled`
    it is that many tied layers instead, as in pretraining: the same weights. `jacobian` weighs the mean square of the layer's
    derivatives at the fixed point, measured in a share `jacobian_share` of passes. Other settings are those of a
    Transformer-XL, whose dropout is the same at all positions.
    """

    width: int = 700
    heads: int = 10
    head_width: int | None = None
    feedforward: int = 48_000
    dropout: float = 0.05
    attention_dropout: float = 0.0
    memory: int = 300
    reach: int | None = None
    clamp: int | None = None
    same_length: bool = False
    unrolled: int = 0
    mixed: int = 6
    tolerance: float = 1e-3
    iterations: int = 12
    adjoint_iterations: int = 13
    exact_tolerance: float = 1e-6
    exact_iterations: int = 200
    jacobian: float = 2.0
    jacobian_share: float = 0.4
    tied: bool = True

    def __post_init__(self) -> None:
        if self.unrolled < 0 or min(self.mixed, self.iterations, self.adjoint_iterations, self.exact_iterations) < 1:
            raise ValueError(f"unrolled is at least 0, mixed and all limits of iterations at least 1: {self}.")
        if min(self.tolerance, self.exact_tolerance) <= 0 or self.jacobian < 0 or not 0 <= self.jacobian_share <= 1:
            raise ValueError(f"Tolerances are above 0, jacobian at least 0, and jacobian_share lies in [0, 1]: {self}.")
        assert self.layer.layers == self.layers  # and what is wrong with the layer is said where it is made

    @property
    def layers(self) -> int:
        """How many the memory is of."""
        return self.unrolled or 1

    @property
    def sight(self) -> int | None:
        """How far back a position attends where sequences are scored and drawn; None is everything."""
        return self.layer.sight

    @property
    def layer(self) -> TransformerXLConfig:
        """What is iterated, as layers of a Transformer-XL."""
        own = {one.name for one in fields(self)}
        shared = [one.name for one in fields(TransformerXLConfig) if one.name in own]
        return TransformerXLConfig(layers=self.layers, variational=True, **{key: getattr(self, key) for key in shared})


BaseConfig = (
    RecurrentConfig
    | AwdLstmConfig
    | EnasConfig
    | TrellisNetConfig
    | TransformerConfig
    | TransformerXLConfig
    | DeqConfig
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
