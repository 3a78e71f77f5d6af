"""The embedding and the head of a network, built from its settings."""

from torch import Tensor, nn

from esscher.heads.adaptive import AdaptiveInput, AdaptiveSoftmax
from esscher.heads.config import HeadConfig
from esscher.heads.head import Head, SoftmaxHead
from esscher.heads.mixture import MixtureHead

INIT_RANGE = 0.1


def build_embedding(config: HeadConfig, vocab_size: int, width: int) -> nn.Embedding | AdaptiveInput:
    """Embeddings of this width of the tokens and the BOS symbol; with `cutoffs`, an adaptive input."""
    if config.cutoffs:
        return AdaptiveInput(vocab_size, width, config.cutoffs, config.div_value)
    return nn.Embedding(vocab_size + 1, width)


def build_head(
    config: HeadConfig, vocab_size: int, width: int, shared: nn.Embedding | AdaptiveInput | None, *, bias: bool = True
) -> Head:
    """The head over hidden vectors of this width; with `shared` embeddings, they are its weights."""
    if isinstance(shared, AdaptiveInput):
        return AdaptiveSoftmax(vocab_size, width, config.cutoffs, config.div_value, shared, config.tied_projections)
    if config.cutoffs:
        return AdaptiveSoftmax(vocab_size, width, config.cutoffs, config.div_value)
    if config.output == "softmax":
        return SoftmaxHead(vocab_size, width, shared, bias=bias)
    return MixtureHead(
        vocab_size,
        width,
        config.components,
        config.latent_width,
        config.output,
        shared,
        bias=bias,
        latent_dropout=config.latent_dropout,
        floor=config.floor,
        min_prior=config.min_prior,
    )


def init_embedding_and_head(name: str, weight: Tensor) -> None:
    """Initialize a parameter if it belongs to the embedding or the head: uniform weights, biases of 0."""
    if name in ("embedding.weight", "head.weight"):
        nn.init.uniform_(weight, -INIT_RANGE, INIT_RANGE)
    elif name == "head.bias":
        nn.init.zeros_(weight)
