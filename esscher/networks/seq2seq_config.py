"""The settings of bases that read a source, their prompt, and write a target, their point; without torch."""

from dataclasses import dataclass

from esscher.networks.output_config import OutputConfig, check_sizes


@dataclass(frozen=True)
class EncoderDecoderConfig(OutputConfig):
    """An encoder-decoder Transformer (Vaswani et al. 2017), pre-norm, with rotary positions.

    The encoder has `encoder_layers`, as many as the decoder's `layers` if not given. Source and target have one vocabulary and
    one table of vectors; `tied` uses it as the output weights too.
    """

    width: int = 256
    layers: int = 3
    encoder_layers: int | None = None
    heads: int = 4
    feedforward: int = 1024
    dropout: float = 0.1
    tied: bool = True

    def __post_init__(self) -> None:
        check_sizes(self.width, min(self.layers, self.encoders), self.dropout)
        if self.heads < 1 or self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(f"The width {self.width} cannot be shared by {self.heads} heads of an even width.")
        if self.feedforward < 1:
            raise ValueError(f"feedforward is at least 1, not {self.feedforward}.")
        self.check_output(shared=self.width if self.tied else None, width=self.width)

    @property
    def encoders(self) -> int:
        """Layers of the encoder."""
        return self.layers if self.encoder_layers is None else self.encoder_layers


@dataclass(frozen=True)
class AttentiveLstmConfig(OutputConfig):
    """An LSTM that attends to a source read by another from both sides (Luong et al. 2015, no input feeding).

    The encoder has `encoder_layers`, as many as the decoder's `layers` if not given, half of the `width` in each direction.
    Input vectors have the width `embedding`, by default that of the layers; `tied` uses them as the output weights, so a
    softmax needs `embedding == width`.
    """

    width: int = 256
    layers: int = 2
    encoder_layers: int | None = None
    embedding: int | None = None
    dropout: float = 0.2
    tied: bool = True

    def __post_init__(self) -> None:
        check_sizes(min(self.width, self.input_width), min(self.layers, self.encoders), self.dropout)
        if self.width % 2:
            raise ValueError(f"The two directions of the encoder share the width, which {self.width} does not allow.")
        self.check_output(shared=self.input_width if self.tied else None, width=self.width)

    @property
    def encoders(self) -> int:
        """Layers of the encoder."""
        return self.layers if self.encoder_layers is None else self.encoder_layers

    @property
    def input_width(self) -> int:
        """Of the input vectors."""
        return self.width if self.embedding is None else self.embedding
