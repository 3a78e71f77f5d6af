"""The settings of every neural base, without torch: what a config file names and a checkpoint remembers.

`to_dict` and `from_dict` are inverse to each other; `from_dict` refuses a kind or a key that it does not
know. The kinds are `"lstm"`, `"gru"`, `"awd-lstm"`, `"transformer"` and `"transformer-xl"`; `name` tells the kind of a config.
All have the settings of the output in common.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """What the settings of all networks have in common: how distributions are made of hidden vectors.

    `output` is a softmax, or a mixture of `components` softmaxes (MoS) or contexts (MoC); a mixture's contexts have the width
    `latent`, by default that of the weights they share or of the hidden vectors, and lose `latent_dropout` of themselves in
    training. `floor` is added to each probability of a mixture of softmaxes (the released code has 1e-8), and components
    whose prior is below `least_prior` are left out. `cutoffs` are those of an adaptive input and softmax, whose clusters are
    narrower by the factor `shrink`; `tied_projections` says which project the output as they project the input.
    """

    output: Literal["softmax", "softmaxes", "contexts"] = "softmax"
    components: int = 15
    latent: int | None = None
    latent_dropout: float = 0.0
    floor: float = 0.0
    least_prior: float = 0.0
    cutoffs: tuple[int, ...] = ()
    shrink: int = 1
    tied_projections: Literal["none", "tails", "all"] = "tails"

    def check_output(self, *, shared: int | None, width: int) -> None:
        """Refuse an output that cannot be; `shared` is the width of the input vectors if they are its weights."""
        if self.output not in OUTPUTS:
            raise ValueError(f"Unknown output {self.output!r}; the known ones are {', '.join(OUTPUTS)}.")
        if self.tied_projections not in ("none", "tails", "all"):
            raise ValueError(f"Unknown tied_projections {self.tied_projections!r}; the known ones are none, tails and all.")
        if min(self.components, self.shrink) < 1 or (self.latent is not None and self.latent < 1):
            raise ValueError(f"components, shrink and latent are at least 1: {self.components}, {self.shrink}, {self.latent}.")
        if min(self.floor, self.least_prior) < 0 or max(self.floor, self.least_prior, self.latent_dropout) >= 1:
            raise ValueError(f"floor, least_prior and latent_dropout lie in [0, 1): {self}.")
        if self.output != "softmaxes" and (self.floor or self.least_prior):
            raise ValueError(f"Only softmaxes have a floor and a least prior, not output = {self.output!r}; leave them out.")
        if self.output != "softmax" and self.cutoffs:
            raise ValueError(f"A mixture has no clusters, and cutoffs = {self.cutoffs} make some; leave one of them out.")
        weights = width if self.output == "softmax" else self.latent
        if shared is not None and weights not in (None, shared):
            raise ValueError(f"Tied weights need vectors of one width, and the output's have {weights}, not {shared}.")


OUTPUTS = ("softmax", "softmaxes", "contexts")


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
        _check_sizes(self.width, self.layers, self.dropout)
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
        _check_sizes(self.width, self.layers, self.dropout)
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
        for rate in (self.dropout, self.input_dropout, self.between_dropout, self.word_dropout, self.weight_dropout):
            _check_sizes(min(self.widths), self.layers, rate)
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
        _check_sizes(self.width, self.layers, self.dropout)
        _check_sizes(self.width, self.layers, self.attention_dropout)
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


BaseConfig = RecurrentConfig | AwdLstmConfig | TransformerConfig | TransformerXLConfig

KINDS: dict[str, type[RecurrentConfig] | type[AwdLstmConfig] | type[TransformerConfig] | type[TransformerXLConfig]] = {
    "lstm": RecurrentConfig,
    "gru": RecurrentConfig,
    "awd-lstm": AwdLstmConfig,
    "transformer": TransformerConfig,
    "transformer-xl": TransformerXLConfig,
}


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


def _check_sizes(width: int, layers: int, dropout: float) -> None:
    if width < 1 or layers < 1:
        raise ValueError(f"A network has at least one unit and one layer, not width {width} and {layers} layers.")
    if not 0 <= dropout < 1:
        raise ValueError(f"A dropout rate lies in [0, 1), not {dropout}.")
