"""The settings of Transformers, without torch: the plain one, Transformer-XL, and what is made of its layers: DEQ and XLNet."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from esscher.networks.output_config import OutputConfig, check_sizes

ACTIVATIONS = ("relu", "gelu", "gelu-tanh")
MIXERS = ("full", "local", "lightconv", "dynamicconv")


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
class XLLayersConfig(OutputConfig):
    """What stacks of layers with relative positions and a memory have in common.

    `memory` is how many earlier positions a layer keeps while it reads a stream, `clamp` the largest distance that is told
    apart. `mixers` names what each layer mixes positions by, `spans` its chunk or kernel size; the last of either stands for
    all further layers. `head_width` is `width / heads` if not given. `activation` stands within the feed-forward parts
    (`gelu-tanh` is its approximation), `eps` is added to the variances of the norms.
    """

    width: int = 256
    layers: int = 4
    heads: int = 4
    head_width: int | None = None
    feedforward: int = 1024
    dropout: float = 0.0
    attention_dropout: float = 0.0
    memory: int = 128
    clamp: int | None = None
    mixers: tuple[Literal["full", "local", "lightconv", "dynamicconv"], ...] = ("full",)
    spans: tuple[int, ...] = (64,)
    tied: bool = True
    activation: Literal["relu", "gelu", "gelu-tanh"] = "relu"
    eps: float = 1e-5


@dataclass(frozen=True)
class TransformerXLConfig(XLLayersConfig):
    """Transformer-XL (Dai et al. 2019), whose layers remember what came before a segment; Local-XL and convolutions with it.

    `reach` is how far back a position attends when sequences are scored and drawn (None: as far as the memory; where that is
    0, everything, and segments of a stream stand alone); `clamp` acts there. With `same_length` a position of a stream attends
    no further than the memory in training too. `untied` gives each layer biases of its own. With `variational` a dropout mask
    is the same at all positions.
    """

    reach: int | None = None
    same_length: bool = False
    norm: Literal["post", "pre"] = "post"
    untied: bool = False
    variational: bool = False

    def __post_init__(self) -> None:
        check_sizes(self.width, self.layers, self.dropout, self.attention_dropout)
        if self.norm not in ("post", "pre"):
            raise ValueError(f"Unknown norm {self.norm!r}; the known ones are 'post' and 'pre'.")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"Unknown activation {self.activation!r}; the known ones are {', '.join(ACTIVATIONS)}.")
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
        if not self.eps > 0:
            raise ValueError(f"eps is more than 0, not {self.eps}.")
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
        return TransformerXLConfig(layers=self.layers, variational=True, **_shared(self))


@dataclass(frozen=True)
class XLNetConfig(XLLayersConfig):
    """XLNet (Yang et al. 2019): layers of a Transformer-XL that read and predict in any order of a text's positions.

    `mixers` are `full` or `local` (Local-XLNet), `spans` the sizes of local chunks. The authors' program has the activation
    `gelu-tanh`, `transformers` has `gelu`. Every layer has biases of its own, and all norms follow the sums.
    """

    activation: Literal["relu", "gelu", "gelu-tanh"] = "gelu"
    eps: float = 1e-12

    def __post_init__(self) -> None:
        unknown = [mixer for mixer in self.mixers if mixer not in ("full", "local")]
        if unknown:
            raise ValueError(f"XLNet attends, in full or in local chunks; {unknown[0]!r} is neither. Choose full or local.")
        if self.cutoffs:
            raise ValueError(f"XLNet reads symbols beside its tokens, so it has no adaptive input; leave {self.cutoffs} out.")
        assert self.layer.layers == self.layers  # and what is wrong with the layers is said where they are made

    @property
    def layer(self) -> TransformerXLConfig:
        """Its layers, as those of a Transformer-XL."""
        return TransformerXLConfig(layers=self.layers, untied=True, **_shared(self))


def _shared(config: DeqConfig | XLNetConfig) -> dict[str, Any]:
    """The settings that a Transformer-XL has too."""
    own = {one.name for one in fields(config)} - {"layers"}
    return {one.name: getattr(config, one.name) for one in fields(TransformerXLConfig) if one.name in own}
