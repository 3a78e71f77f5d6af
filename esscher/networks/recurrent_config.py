"""Settings of LSTM, GRU, AWD-LSTM, the ENAS cell and TrellisNet, without torch; defaults are as published for Penn Treebank."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeVar

from esscher.core.config import check_at_least
from esscher.heads.config import LayeredConfig, check_sizes

C = TypeVar("C", bound="RecurrentConfig")
ENAS_ACTIVATIONS = ("tanh", "relu", "identity", "sigmoid")
ENAS_PUBLISHED_ARC = (0, 0, 0, 1, 1, 2, 1, 2, 0, 2, 0, 5, 1, 1, 0, 6, 1, 8, 1, 8, 1, 8, 1)


@dataclass(frozen=True)
class RecurrentConfig(LayeredConfig):
    """A stacked LSTM or GRU."""

    cell: ClassVar[Literal["lstm", "gru"]]

    width: int = 200
    layers: int = 2
    dropout: float = 0.0
    """Dropout rate of the embeddings, between layers and of the output."""
    embedding: int | None = None
    """Width of the embeddings; default: one-hot input."""
    tied: bool = False
    """Use the embeddings as the output weights; a softmax then needs embedding = width."""

    def __post_init__(self) -> None:
        check_sizes(self.width, self.layers, self.dropout)
        if self.embedding is not None and self.embedding < 1:
            raise ValueError(f"An embedding has at least width 1, not {self.embedding}; None means one-hot input.")
        if self.tied and (self.embedding is None or (self.output == "softmax" and self.embedding != self.width)):
            raise ValueError(f"Tied weights need embedding = width = {self.width}, not embedding = {self.embedding}.")
        self.check_head(shared=self.embedding if self.tied else None)

    def with_width(self: C, width: int) -> C:
        """The same settings at another width; only embeddings that are tied to a softmax follow it."""
        return replace(self, width=width, embedding=width if self.tied and self.output == "softmax" else self.embedding)


@dataclass(frozen=True)
class LstmConfig(RecurrentConfig):
    """A stacked LSTM."""

    cell: ClassVar[Literal["lstm", "gru"]] = "lstm"


@dataclass(frozen=True)
class GruConfig(RecurrentConfig):
    """A stacked GRU."""

    cell: ClassVar[Literal["lstm", "gru"]] = "gru"


@dataclass(frozen=True)
class EmbeddingConfig(LayeredConfig):
    """Settings of networks whose embeddings may have another width."""

    scaled_widths: ClassVar[tuple[str, ...]] = ("embedding",)

    embedding: int | None = None
    """Width of the embeddings; default: the width."""
    tied: bool = True
    """Use the embeddings as the output weights; a softmax then needs embedding = width."""

    @property
    def input_width(self) -> int:
        """Width of the embeddings."""
        return self.width if self.embedding is None else self.embedding


@dataclass(frozen=True)
class RegularizedConfig(EmbeddingConfig):
    """Settings shared by AWD-LSTM, ENAS and TrellisNet. Dropout masks are the same at all positions of a row."""

    dropout: float = 0.4
    """Dropout rate of the output vectors."""
    input_dropout: float = 0.4
    """Dropout rate of the embeddings."""
    word_dropout: float = 0.1
    """Share of the vocabulary whose embeddings are zeroed in a training pass."""
    alpha: float = 2.0
    """Weight of the mean square of the outputs (activation regularization)."""
    beta: float = 1.0
    """Weight of the mean square of changes between outputs (temporal activation regularization)."""

    def check(self, *rates: float) -> None:
        """Refuse invalid settings; `rates` are the further dropout rates."""
        check_sizes(min(self.widths), self.layers, self.dropout, self.input_dropout, self.word_dropout, *rates)
        check_at_least(self, 0, "alpha", "beta")
        self.check_head(shared=self.input_width if self.tied else None)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the embeddings and of each layer."""
        return (self.input_width, *(self.width,) * self.layers)


@dataclass(frozen=True)
class AwdLstmConfig(RegularizedConfig):
    """AWD-LSTM (Merity et al. 2018). Dropout masks are the same at all positions of a row."""

    scaled_widths: ClassVar[tuple[str, ...]] = ("embedding", "inner")

    width: int = 400
    layers: int = 3
    inner: int = 1150
    """Width of all layers but the last."""
    between_dropout: float = 0.25
    """Dropout rate of the vectors between layers."""
    weight_dropout: float = 0.5
    """Dropout rate of the hidden-to-hidden weights."""

    def __post_init__(self) -> None:
        self.check(self.between_dropout, self.weight_dropout)

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.input_width, *(self.inner,) * (self.layers - 1), self.width)


@dataclass(frozen=True)
class EnasConfig(RegularizedConfig):
    """The recurrent cell found by ENAS (Pham et al. 2018), or any cell of its search space. Dropout masks are the same at all
    positions of a row; the released program draws an output mask and does not use it, which is `dropout = 0`."""

    width: int = 748
    layers: int = 1
    arc: tuple[int, ...] = ENAS_PUBLISHED_ARC
    """Activation of node 0, then input node and activation of each further node: 0 tanh, 1 relu, 2 identity, 3 sigmoid."""
    dropout: float = 0.76
    input_dropout: float = 0.75
    hidden_dropout: float = 0.25
    """Dropout rate of the inputs of the nodes."""
    word_dropout: float = 0.21
    """Share of the distinct words of a row whose embeddings are zeroed in a training pass."""
    alpha: float = 0.0
    beta: float = 0.748
    """Weight of the mean square of changes between outputs; the published 1e-3 is of a sum over 748 units."""

    def __post_init__(self) -> None:
        self.check(self.hidden_dropout)
        if len(self.arc) % 2 == 0:
            raise ValueError(
                f"An arc is the activation of node 0, then input node and activation of each further node, so it has an odd "
                f"number of entries, not {len(self.arc)}: {self.arc}. Nothing was built."
            )
        for node, (source, activation) in enumerate(self.nodes):
            if activation not in range(len(ENAS_ACTIVATIONS)):
                known = ", ".join(f"{number} {name}" for number, name in enumerate(ENAS_ACTIVATIONS))
                raise ValueError(f"Node {node} of the arc has the unknown activation {activation}; the known ones are {known}.")
            if node and source not in range(node):
                raise ValueError(f"Node {node} of the arc reads node {source}; it may read only nodes 0 to {node - 1}.")

    @property
    def nodes(self) -> tuple[tuple[int, int], ...]:
        """Input node and activation of each node; node 0 reads the input and the state, which is node -1."""
        return ((-1, self.arc[0]), *zip(self.arc[1::2], self.arc[2::2], strict=True))


@dataclass(frozen=True)
class TrellisNetConfig(RegularizedConfig):
    """TrellisNet (Bai et al. 2019): causal convolutions with LSTM gates. Dropout masks are the same for a whole row."""

    scaled_widths: ClassVar[tuple[str, ...]] = ("embedding", "inner")

    width: int = 400
    layers: int = 58
    """Number of layers; all share the same weights."""
    inner: int = 1000
    """Hidden units of a layer beside the `width` units that are its output."""
    dilations: tuple[int, ...] = (1,)
    """How many positions back the layers look, repeated over the layers."""
    dropout: float = 0.45
    input_dropout: float = 0.45
    hidden_dropout: float = 0.28
    """Dropout rate of the hidden vectors that layers read."""
    weight_dropout: float = 0.5
    """Dropout rate of the weights of earlier positions."""
    auxiliary: float = 0.05
    """Weight of the auxiliary loss: the negative log-likelihood of the tokens under intermediate layers."""
    auxiliary_every: int = 12
    """Every so many layers have an auxiliary loss."""

    def __post_init__(self) -> None:
        check_at_least(self, 0, "auxiliary", "inner")
        check_at_least(self, 1, "auxiliary_every", note=" auxiliary = 0 means no auxiliary loss.")
        if not self.dilations or min(self.dilations) < 1:
            raise ValueError(f"A layer looks back by at least one position, and one dilation is needed: {self.dilations}.")
        self.check(self.hidden_dropout, self.weight_dropout)

    @property
    def spans(self) -> tuple[int, ...]:
        """How many positions back each layer looks."""
        return tuple(self.dilations[layer % len(self.dilations)] for layer in range(self.layers))
