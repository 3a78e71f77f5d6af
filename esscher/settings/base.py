"""Which base to train, without torch: its kind, and the settings of the kind."""

from dataclasses import asdict, dataclass
from typing import Literal

from esscher.bases.config import BaseConfig, from_dict


@dataclass(frozen=True)
class BaseChoice:
    """The base: its kind, and those settings of the kind that shall not have their default (None)."""

    kind: Literal[
        "lstm", "gru", "awd-lstm", "enas", "trellisnet", "transformer", "transformer-xl", "deq", "xlnet",
        "encoder-decoder", "attentive-lstm", "pixelcnn", "gated-pixelcnn", "pixelcnn++",
    ] = "transformer"  # fmt: skip
    """Which network; encoder-decoder and attentive-lstm read a prompt as a source, the last three are of images."""
    width: int | None = None
    """Of the hidden layers."""
    layers: int | None = None
    """How many."""
    encoder_layers: int | None = None
    """Those that read the source, of an encoder-decoder or attentive-lstm; as many as layers if not given."""
    dropout: float | None = None
    """Share of hidden values dropped in training."""
    tied: bool | None = None
    """Input and output share one matrix."""
    embedding: int | None = None
    """Width of the input vectors of lstm and gru, one-hot input if not given; of others, the width if not given."""
    heads: int | None = None
    """Attention heads of a transformer, transformer-xl, deq or xlnet."""
    feedforward: int | None = None
    """Width between the two matrices of a feed-forward part."""
    positions: Literal["rotary", "learned"] | None = None
    """How a transformer knows positions."""
    max_positions: int | None = None
    """Longest sequence of a transformer, prompt and point together."""
    head_width: int | None = None
    """Width of a head of a transformer-xl, deq or xlnet, if not its share of the width; so are all settings up to eps."""
    attention_dropout: float | None = None
    """Share of attention, or of a kernel's taps, dropped in training."""
    memory: int | None = None
    """Earlier positions that a layer remembers while it learns from a stream."""
    reach: int | None = None
    """How far back a position attends when scoring and drawing; as far as the memory if not given."""
    clamp: int | None = None
    """Largest distance that is told apart when scoring and drawing."""
    same_length: bool | None = None
    """Attend no further than the memory in training too."""
    norm: Literal["post", "pre"] | None = None
    """Norm after each sum, or before each part."""
    untied: bool | None = None
    """The two biases of the relative score belong to each layer."""
    variational: bool | None = None
    """Drop the same of all positions."""
    mixers: tuple[Literal["full", "local", "lightconv", "dynamicconv"], ...] | None = None
    """What each layer mixes positions by; the last stands for all further layers."""
    spans: tuple[int, ...] | None = None
    """Chunk or kernel size of each layer; the last stands for all further layers."""
    activation: Literal["relu", "gelu", "gelu-tanh"] | None = None
    """What stands within the feed-forward parts of a transformer-xl or xlnet."""
    eps: float | None = None
    """Added to the variances of their norms."""
    inner: int | None = None
    """Width of all layers of an awd-lstm but the last; units of a trellisnet's levels beside its output."""
    input_dropout: float | None = None
    """Share of the input vectors dropped in training."""
    between_dropout: float | None = None
    """Share of what passes between layers dropped in training."""
    word_dropout: float | None = None
    """Share of the vocabulary dropped from the input in training."""
    weight_dropout: float | None = None
    """Share of the weights by which layers read their own past dropped in training."""
    hidden_dropout: float | None = None
    """Share of what is read of hidden vectors by an enas cell's nodes, or by a trellisnet's levels, dropped in training."""
    arc: tuple[int, ...] | None = None
    """An enas cell: the function of node 0, then for each further node the one it reads and its function."""
    alpha: float | None = None
    """Weight of the penalty of large outputs."""
    beta: float | None = None
    """Weight of the penalty of changing outputs."""
    dilations: tuple[int, ...] | None = None
    """How far back the levels of a trellisnet look, over and over again."""
    auxiliary: float | None = None
    """Weight of the likelihood by each level of a trellisnet that auxiliary-every divides."""
    auxiliary_every: int | None = None
    """Which levels of a trellisnet are so weighed."""
    unrolled: int | None = None
    """Tied layers of a deq instead of their fixed point, as in pretraining; 0 is the fixed point."""
    mixed: int | None = None
    """Iterates of a deq that are mixed; so are all settings up to jacobian-share."""
    tolerance: float | None = None
    """Relative change at which the fixed point of a training pass, and its gradient, have settled."""
    iterations: int | None = None
    """Most iterations of a training pass."""
    adjoint_iterations: int | None = None
    """Most iterations of its gradient."""
    exact_tolerance: float | None = None
    """Relative change at which scores and draws have settled."""
    exact_iterations: int | None = None
    """Most iterations of a score or of a step."""
    jacobian: float | None = None
    """Weight of the mean square of the layer's derivatives at the fixed point."""
    jacobian_share: float | None = None
    """Share of the training passes in which it is measured."""
    image: tuple[int, int, int] | None = None
    """Rows, columns and channels of the images of a pixelcnn; found in the data, and so are the classes."""
    classes: int | None = None
    """Classes of images that are told apart."""
    first: int | None = None
    """Side of the first convolution of a pixelcnn or gated-pixelcnn."""
    kernel: int | None = None
    """Side of all others."""
    scales: int | None = None
    """Sizes of the image that a pixelcnn++ works at, each half of the one before."""
    mixtures: int | None = None
    """Logistics that a pixelcnn++ mixes."""
    output: Literal["softmax", "softmaxes", "contexts"] | None = None
    """Of any network: a softmax, a mixture of softmaxes (MoS) or of contexts (MoC)."""
    components: int | None = None
    """Components of a mixture."""
    latent: int | None = None
    """Width of a mixture's contexts; that of the tied vectors, or of the hidden ones, if not given."""
    latent_dropout: float | None = None
    """Share of a mixture's contexts dropped in training."""
    floor: float | None = None
    """Added to each probability of a mixture of softmaxes; the released code has 1e-8."""
    least_prior: float | None = None
    """Components whose prior is lower are left out."""
    cutoffs: tuple[int, ...] | None = None
    """Where the clusters of an adaptive input and softmax begin."""
    shrink: int | None = None
    """How much narrower each cluster is than the one before."""
    tied_projections: Literal["none", "tails", "all"] | None = None
    """Which projections of an adaptive softmax are those of the input."""

    def __post_init__(self) -> None:
        self.resolve()

    def resolve(self) -> BaseConfig:
        """The whole config of that kind; a setting that the kind does not have is an error."""
        return from_dict({key: value for key, value in asdict(self).items() if value is not None})
