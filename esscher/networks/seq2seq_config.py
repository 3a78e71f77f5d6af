"""Settings of networks that encode a source (the prompt) and decode a target, without torch."""

from dataclasses import dataclass
from typing import ClassVar

from esscher.heads.config import LayeredConfig, Modality, check_sizes
from esscher.networks.recurrent_config import EmbeddingConfig
from esscher.networks.transformer_config import AttentionConfig


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
class EncoderDecoderConfig(AttentionConfig, Seq2SeqConfig):
    """An encoder-decoder Transformer (Vaswani et al. 2017), pre-norm, with rotary positions."""

    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_sizes(self.width, min(self.layers, self.encoders), self.dropout)
        self.check_heads(rotary=True)


@dataclass(frozen=True)
class AttentiveLstmConfig(EmbeddingConfig, Seq2SeqConfig):
    """An LSTM decoder that attends to a bidirectional LSTM encoder (Luong et al. 2015, without input feeding)."""

    width: int = 256
    layers: int = 2
    dropout: float = 0.2
    """Dropout rate of the embeddings, between layers and of the output."""

    def __post_init__(self) -> None:
        check_sizes(min(self.width, self.input_width), min(self.layers, self.encoders), self.dropout)
        if self.width % 2:
            raise ValueError(f"The two directions of the encoder share the width, so it is even, not {self.width}.")
        self.check_head(shared=self.input_width if self.tied else None)

    @property
    def width_multiple(self) -> int:
        return 2
