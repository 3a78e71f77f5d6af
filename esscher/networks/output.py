"""The two ends of a network by its settings: the vectors it reads tokens by, and the head that makes its logits."""

from torch import Tensor, nn

from esscher.heads.adaptive import AdaptiveInput, AdaptiveSoftmax
from esscher.heads.head import Head, SoftmaxHead
from esscher.heads.mixture import MixtureHead
from esscher.networks.output_config import OutputConfig

INITIAL_RANGE = 0.1


def build_input(config: OutputConfig, vocab_size: int, width: int) -> nn.Embedding | AdaptiveInput:
    """Vectors of this width for the tokens and the opening symbol; those of rare tokens are narrower where it says so."""
    if config.cutoffs:
        return AdaptiveInput(vocab_size, width, config.cutoffs, config.shrink)
    return nn.Embedding(vocab_size + 1, width)


def build_head(
    config: OutputConfig, vocab_size: int, width: int, shared: nn.Embedding | AdaptiveInput | None, *, bias: bool = True
) -> Head:
    """The head over hidden vectors of this width; with `shared` input vectors, they are its weights."""
    if isinstance(shared, AdaptiveInput):
        return AdaptiveSoftmax(vocab_size, width, config.cutoffs, config.shrink, shared, config.tied_projections)
    if config.cutoffs:
        return AdaptiveSoftmax(vocab_size, width, config.cutoffs, config.shrink)
    if config.output == "softmax":
        return SoftmaxHead(vocab_size, width, shared, bias=bias)
    return MixtureHead(
        vocab_size,
        width,
        config.components,
        config.latent,
        config.output,
        shared,
        bias=bias,
        latent_dropout=config.latent_dropout,
        floor=config.floor,
        least_prior=config.least_prior,
    )


def begin_end(name: str, weight: Tensor) -> None:
    """Small first values, if it is a weight of an end: input vectors or the head."""
    if name in ("embedding.weight", "head.weight"):
        nn.init.uniform_(weight, -INITIAL_RANGE, INITIAL_RANGE)
    elif name == "head.bias":
        nn.init.zeros_(weight)
