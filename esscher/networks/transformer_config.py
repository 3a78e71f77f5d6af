"""Settings of Transformers, without torch: the plain one, Transformer-XL, and DEQ and XLNet, which are made of its layers."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args

from esscher.heads.config import HeadConfig, LayeredConfig, check_choice, check_sizes

Activation = Literal["relu", "gelu", "gelu-tanh"]
Mixer = Literal["full", "local", "lightconv", "dynamicconv"]
Norm = Literal["post", "pre"]
Positions = Literal["rotary", "learned"]
MIXERS: tuple[Mixer, ...] = get_args(Mixer)


@dataclass(frozen=True)
class TransformerConfig(LayeredConfig):
    """A causal pre-norm Transformer."""

    scaled_widths: ClassVar[tuple[str, ...]] = ("feedforward",)

    width: int = 256
    heads: int = 4
    """Number of attention heads; divides the width."""
    feedforward: int = 1024
    """Inner width of the feed-forward part of a block."""
    dropout: float = 0.0
    """Dropout rate of the embeddings, of attention and of the output of each part of a block."""
    positions: Positions = "rotary"
    """Position encoding: rotary, or one learned vector per position."""
    max_positions: int = 1024
    """Largest number of tokens of a sequence, prompt included."""
    tied: bool = True
    """Use the embeddings as the output weights."""

    def __post_init__(self) -> None:
        check_choice("positions", self.positions, get_args(Positions))
        check_sizes(self.width, self.layers, self.dropout)
        if self.heads < 1 or self.width % self.heads:
            raise ValueError(f"The width {self.width} cannot be shared by {self.heads} heads.")
        if self.positions == "rotary" and (self.width // self.heads) % 2:
            raise ValueError(f"Rotary positions rotate pairs, so the width of a head is even, not {self.width // self.heads}.")
        if min(self.feedforward, self.max_positions) < 1:
            raise ValueError(f"feedforward and max_positions are at least 1: {self}.")
        self.check_head(shared=self.width if self.tied else None)

    @property
    def width_multiple(self) -> int:
        return 2 * self.heads


@dataclass(frozen=True)
class RelativeAttentionConfig(HeadConfig):
    """Settings shared by all networks with relative positions and a memory."""

    scaled_widths: ClassVar[tuple[str, ...]] = ("feedforward",)

    width: int = 256
    heads: int = 4
    """Number of attention heads."""
    head_width: int | None = None
    """Width of an attention head; default: width / heads."""
    feedforward: int = 1024
    """Inner width of the feed-forward part of a block."""
    dropout: float = 0.0
    """Dropout rate of the vectors."""
    attention_dropout: float = 0.0
    """Dropout rate of attention weights, or of the taps of a convolution kernel."""
    memory: int = 128
    """Earlier positions that each layer keeps while it reads a stream."""
    clamp_len: int | None = None
    """Largest distinct distance when scoring and sampling; larger distances count as this one."""
    tied: bool = True
    """Use the embeddings as the output weights."""

    def check_attention(self, layers: int, attention_span: int | None = None, *, convolves: bool = False) -> None:
        """Refuse invalid settings of a stack of so many layers."""
        check_sizes(self.width, layers, self.dropout, self.attention_dropout)
        if self.heads < 1 or (self.width % self.heads and (self.head_width is None or convolves)):
            raise ValueError(f"The width {self.width} cannot be shared by {self.heads} heads.")
        if self.feedforward < 1 or (self.head_width is not None and self.head_width < 1):
            raise ValueError(f"feedforward and head_width are at least 1: {self}.")
        if min(self.memory, attention_span or 0, self.clamp_len or 0) < 0:
            raise ValueError(f"memory, attention_span and clamp_len are at least 0: {self}.")
        self.check_head(shared=self.width if self.tied else None)

    @property
    def width_multiple(self) -> int:
        return 2 * self.heads


@dataclass(frozen=True)
class XLLayersConfig(RelativeAttentionConfig, LayeredConfig):
    """Settings shared by Transformer-XL and XLNet."""

    mixers: tuple[Mixer, ...] = ("full",)
    """Token mixer of each layer; the last one is used for all further layers."""
    spans: tuple[int, ...] = (64,)
    """Chunk size (local) or kernel size (convolutions) of each layer; the last one is used for all further layers."""
    activation: Activation = "relu"
    """Activation of the feed-forward parts; gelu-tanh is the tanh approximation of gelu."""
    eps: float = 1e-5
    """Epsilon of the layer norms."""

    def __post_init__(self) -> None:
        check_choice("activation", self.activation, get_args(Activation))
        unknown = [mixer for mixer in self.mixers if mixer not in MIXERS]
        if unknown or not self.mixers:
            raise ValueError(f"Unknown mixers {unknown}; name at least one of {', '.join(MIXERS)}.")
        if not self.spans or min(self.spans) < 1:
            raise ValueError(f"A chunk or kernel has at least one position: spans = {self.spans}.")
        if not self.eps > 0:
            raise ValueError(f"eps is more than 0, not {self.eps}.")
        convolves = any(self.mixer(layer)[0].endswith("conv") for layer in range(self.layers))
        self.check_attention(self.layers, getattr(self, "attention_span", None), convolves=convolves)

    def mixer(self, layer: int) -> tuple[str, int]:
        """The token mixer of a layer, and its chunk or kernel size."""
        return self.mixers[min(layer, len(self.mixers) - 1)], self.spans[min(layer, len(self.spans) - 1)]

    def uses(self, *mixers: Mixer) -> bool:
        """Whether a layer has one of these token mixers."""
        return any(self.mixer(layer)[0] in mixers for layer in range(self.layers))


@dataclass(frozen=True)
class TransformerXLConfig(XLLayersConfig):
    """Transformer-XL (Dai et al. 2019), whose layers remember earlier segments; also Local-XL and convolutions."""

    attention_span: int | None = None
    """How far back a position attends when scoring and sampling; default: the memory, or everything if that is 0."""
    same_length: bool = False
    """Attend no further back than the memory in training, too."""
    norm: Norm = "post"
    """Layer norm after each residual sum (post) or before each part (pre)."""
    untied_biases: bool = False
    """Give each layer its own two biases of the relative attention score."""
    variational: bool = False
    """Use one dropout mask for all positions of a row."""

    def __post_init__(self) -> None:
        check_choice("norm", self.norm, get_args(Norm))
        super().__post_init__()

    @property
    def effective_attention_span(self) -> int | None:
        """How far back a position attends when scoring and sampling; None is everything."""
        return self.attention_span if self.attention_span is not None else self.memory or None


@dataclass(frozen=True)
class DeqConfig(RelativeAttentionConfig):
    """DEQ-Transformer (Bai et al. 2019, 2021): the fixed point of one Transformer-XL layer, with the published sizes for
    WikiText-103. Dropout masks are the same at all positions of a row."""

    width: int = 700
    heads: int = 10
    feedforward: int = 48_000
    dropout: float = 0.05
    memory: int = 300
    attention_span: int | None = None
    """How far back a position attends when scoring and sampling; default: the memory, or everything if that is 0."""
    same_length: bool = False
    """Attend no further back than the memory in training, too."""
    unrolled: int = 0
    """Number of tied layers to apply instead of solving for the fixed point, as in pretraining; 0: the fixed point."""
    anderson_history: int = 6
    """Number of iterates that Anderson acceleration mixes."""
    tolerance: float = 1e-3
    """Relative change at which a position has converged in training, in the forward and in the backward solve."""
    iterations: int = 12
    """Largest number of iterations of a training pass."""
    adjoint_iterations: int = 13
    """Largest number of iterations of the backward solve of a training pass."""
    exact_tolerance: float = 1e-6
    """Relative change at which a position has converged outside training."""
    exact_iterations: int = 200
    """Largest number of iterations outside training."""
    jacobian_weight: float = 2.0
    """Weight of the Jacobian penalty: the mean square of the layer's derivatives at the fixed point."""
    jacobian_probability: float = 0.4
    """Probability that a training pass estimates the Jacobian penalty."""

    def __post_init__(self) -> None:
        if self.unrolled < 0 or min(self.anderson_history, self.iterations, self.adjoint_iterations, self.exact_iterations) < 1:
            raise ValueError(f"unrolled is at least 0, anderson_history and all limits of iterations at least 1: {self}.")
        if (
            min(self.tolerance, self.exact_tolerance) <= 0
            or self.jacobian_weight < 0
            or not 0 <= self.jacobian_probability <= 1
        ):
            raise ValueError(f"Tolerances are above 0, jacobian_weight at least 0, jacobian_probability in [0, 1]: {self}.")
        self.check_attention(self.layers, self.attention_span)

    @property
    def layers(self) -> int:
        """Number of layers that have a memory."""
        return self.unrolled or 1

    @property
    def layer(self) -> TransformerXLConfig:
        """The iterated layer, as settings of a Transformer-XL."""
        return TransformerXLConfig(layers=self.layers, variational=True, **_shared(self))


@dataclass(frozen=True)
class XLNetConfig(XLLayersConfig):
    """XLNet (Yang et al. 2019): post-norm layers of a Transformer-XL that predict in any order of the positions. The mixers are
    full or local (Local-XLNet). The authors' program uses gelu-tanh, `transformers` gelu."""

    activation: Activation = "gelu"
    eps: float = 1e-12

    def __post_init__(self) -> None:
        unknown = [mixer for mixer in self.mixers if mixer not in ("full", "local")]
        if unknown:
            raise ValueError(f"XLNet has full or local attention; {unknown[0]!r} is neither. Choose full or local.")
        if self.cutoffs:
            raise ValueError(f"XLNet reads symbols beside its tokens, so it has no adaptive input; leave {self.cutoffs} out.")
        super().__post_init__()

    @property
    def layer(self) -> TransformerXLConfig:
        """Its layers, as settings of a Transformer-XL."""
        return TransformerXLConfig(layers=self.layers, untied_biases=True, **_shared(self))


def _shared(config: RelativeAttentionConfig) -> dict[str, Any]:
    """The settings that a Transformer-XL has too, without the number of layers."""
    names = {one.name for one in fields(config)} - {"layers"}
    return {one.name: getattr(config, one.name) for one in fields(TransformerXLConfig) if one.name in names}
