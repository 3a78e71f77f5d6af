"""Settings of networks that encode a source (the prompt) and decode a target, without torch."""

from dataclasses import dataclass
from typing import ClassVar

from esscher.heads.config import LayeredConfig, Modality, check_sizes


@dataclass(frozen=True)
class Seq2SeqConfig(LayeredConfig):
    """Settings shared by encoder-decoder networks; source and target have one vocabulary and one table of embeddings."""

    modality: ClassVar[Modality] = "translation"

    width: int = 256
    layers: int = 3
    """Number of decoder layers."""
    encoder_layers: int | None = None
    """Number of encoder layers; default: as many as decoder layers."""

    @property
    def encoders(self) -> int:
        """Number of encoder layers."""
        return self.layers if self.encoder_layers is None else self.encoder_layers


@dataclass(frozen=True)
class EncoderDecoderConfig(Seq2SeqConfig):
    """An encoder-decoder Transformer (Vaswani et al. 2017), pre-norm, with rotary positions."""

    scaled_widths: ClassVar[tuple[str, ...]] = ("feedforward",)

    heads: int = 4
    """Number of attention heads; divides the width."""
    feedforward: int = 1024
    """Inner width of the feed-forward part of a block."""
    dropout: float = 0.1
    """Dropout rate of the embeddings, of attention and of the output of each part of a block."""
    tied: bool = True
    """Use the embeddings as the output weights."""

    def __post_init__(self) -> None:
        check_sizes(self.width, min(self.layers, self.encoders), self.dropout)
        if self.heads < 1 or self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(f"The width {self.width} cannot be shared by {self.heads} heads of an even width.")
        if self.feedforward < 1:
            raise ValueError(f"feedforward is at least 1, not {self.feedforward}.")
        self.check_head(shared=self.width if self.tied else None)

    @property
    def width_multiple(self) -> int:
        return 2 * self.heads


@dataclass(frozen=True)
class AttentiveLstmConfig(Seq2SeqConfig):
    """An LSTM decoder that attends to a bidirectional LSTM encoder (Luong et al. 2015, without input feeding)."""

    scaled_widths: ClassVar[tuple[str, ...]] = ("embedding",)

    layers: int = 2
    embedding: int | None = None
    """Width of the embeddings; default: the width."""
    dropout: float = 0.2
    """Dropout rate of the embeddings, between layers and of the output."""
    tied: bool = True
    """Use the embeddings as the output weights; a softmax then needs embedding = width."""

    def __post_init__(self) -> None:
        check_sizes(min(self.width, self.input_width), min(self.layers, self.encoders), self.dropout)
        if self.width % 2:
            raise ValueError(f"The two directions of the encoder share the width, so it is even, not {self.width}.")
        self.check_head(shared=self.input_width if self.tied else None)

    @property
    def width_multiple(self) -> int:
        return 2

    @property
    def input_width(self) -> int:
        """Width of the embeddings."""
        return self.width if self.embedding is None else self.embedding
