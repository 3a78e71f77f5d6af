"""Settings of Transformers, without torch: the plain one, Transformer-XL, and DEQ and XLNet, which are made of its layers."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args

from esscher.core.config import check_at_least
from esscher.heads.config import HeadConfig, LayeredConfig, check_choice, check_sizes

Activation = Literal["relu", "gelu", "gelu-tanh"]
Mixer = Literal["full", "local", "lightconv", "dynamicconv"]
Norm = Literal["post", "pre"]
Positions = Literal["rotary", "learned"]
MIXERS: tuple[Mixer, ...] = get_args(Mixer)


def published_attention_span(mem_len: int) -> int:
    """The attention span of a published `mem_len` with `same_length`, which counts the position itself: mem_len - 1 back.

    So it is in the authors' PyTorch code; in their TensorFlow code a position sees one more, mem_len back. If training has no
    `same_length`, a published mem_len is `memory` as it is; if it has, `memory` is this span.
    """
    if mem_len < 1:
        raise ValueError(f"With same_length a position sees mem_len positions, itself among them, so mem_len is not {mem_len}.")
    return mem_len - 1


@dataclass(frozen=True)
class AttentionConfig(HeadConfig):
    """Settings shared by all networks with attention heads."""

    scaled_widths: ClassVar[tuple[str, ...]] = ("feedforward",)

    width: int = 256
    heads: int = 4
    """Number of attention heads; divides the width, unless heads have a width of their own."""
    feedforward: int = 1024
    """Inner width of the feed-forward part of a block."""
    dropout: float = 0.0
    """Dropout rate of the embeddings, of attention and of the output of each part of a block."""
    tied: bool = True
    """Use the embeddings as the output weights."""

    def check_heads(self, *, divided: bool = True, rotary: bool = False) -> None:
        """Refuse invalid settings; the width is `divided` into heads, which need an even width if positions are `rotary`."""
        check_at_least(self, 1, "heads", "feedforward")
        if divided and self.width % self.heads:
            raise ValueError(f"The width {self.width} cannot be shared by {self.heads} heads.")
        if rotary and (self.width // self.heads) % 2:
            raise ValueError(f"Rotary positions rotate pairs, so the width of a head is even, not {self.width // self.heads}.")
        self.check_head(shared=self.width if self.tied else None)

    @property
    def width_multiple(self) -> int:
        return 2 * self.heads


@dataclass(frozen=True)
class TransformerConfig(AttentionConfig, LayeredConfig):
    """A causal pre-norm Transformer."""

    positions: Positions = "rotary"
    """Position encoding: rotary, or one learned vector per position."""
    max_positions: int = 1024
    """Largest number of tokens of a sequence, prompt included."""

    def __post_init__(self) -> None:
        check_choice("positions", self.positions, get_args(Positions))
        check_sizes(self.width, self.layers, self.dropout)
        check_at_least(self, 1, "max_positions")
        self.check_heads(rotary=self.positions == "rotary")


@dataclass(frozen=True)
class RelativeAttentionConfig(AttentionConfig):
    """Settings shared by all networks with relative positions and a memory."""

    head_width: int | None = None
    """Width of an attention head; default: width / heads."""
    dropout: float = 0.0
    """Dropout rate of the vectors."""
    attention_dropout: float = 0.0
    """Dropout rate of attention weights, or of the taps of a convolution kernel."""
    memory: int = 128
    """Number of earlier positions that each layer keeps while it reads a stream."""
    clamp_len: int | None = None
    """Largest distinct distance, in training too; larger distances count as this one."""

    def check_attention(self, layers: int, *, convolves: bool = False) -> None:
        """Refuse invalid settings of a stack of so many layers."""
        check_sizes(self.width, layers, self.dropout, self.attention_dropout)
        check_at_least(self, 1, "head_width")
        check_at_least(self, 0, *(name for name in ("memory", "attention_span", "clamp_len") if hasattr(self, name)))
        self.check_heads(divided=self.head_width is None or convolves)


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
        self.check_attention(self.layers, convolves=convolves)

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
    """Number of positions before its own that a position attends to when scoring and sampling; default: the memory, or all if
    that is 0. A published mem_len with same_length counts the position itself: attention_span is one less."""
    same_length: bool = False
    """Attend no further back than the memory in training, too; a published mem_len is then a memory of one less."""
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
    """Number of positions before its own that a position attends to when scoring and sampling; default: the memory, or all if
    that is 0. A published mem_len with same_length counts the position itself: attention_span is one less."""
    same_length: bool = False
    """Attend no further back than the memory in training, too; a published mem_len is then a memory of one less."""
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
    """Relative change at which a position has converged outside training. Log-probabilities of draws equal their scores to some
    ten times as much, if all positions converge; otherwise there is a warning."""
    exact_iterations: int = 200
    """Largest number of iterations of a position outside training."""
    jacobian_weight: float = 2.0
    """Weight of the Jacobian penalty: the mean square of the layer's derivatives at the fixed point."""
    jacobian_probability: float = 0.4
    """Probability that a training pass estimates the Jacobian penalty."""

    def __post_init__(self) -> None:
        check_at_least(self, 0, "unrolled", "jacobian_weight")
        check_at_least(self, 1, "anderson_history", "iterations", "adjoint_iterations", "exact_iterations")
        if min(self.tolerance, self.exact_tolerance) <= 0 or not 0 <= self.jacobian_probability <= 1:
            raise ValueError(f"Tolerances are above 0, and jacobian_probability lies in [0, 1]: {self}.")
        self.check_attention(self.layers)

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
    """XLNet (Yang et al. 2019): layers of a Transformer-XL, post-norm as published, that predict in any order of the positions.
    The mixers are full or local (Local-XLNet). The authors' program uses gelu-tanh, `transformers` gelu."""

    activation: Activation = "gelu"
    eps: float = 1e-12
    norm: Norm = "post"
    """Layer norm after each residual sum (post, as published) or before each part (pre)."""

    def __post_init__(self) -> None:
        check_choice("norm", self.norm, get_args(Norm))
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
    names = {field.name for field in fields(config)} & {field.name for field in fields(TransformerXLConfig)} - {"layers"}
    return {name: getattr(config, name) for name in names}
