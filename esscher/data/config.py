"""The settings of data, without torch: where they come from, and how texts and images become sequences of tokens."""

from dataclasses import dataclass, field, replace
from typing import Literal

from esscher.core.config import check_at_least, check_choices
from esscher.data.sources import Unit

MOTIF, HASH, DIGITS = "motif:", "hash:", "digits"


@dataclass(frozen=True)
class SourceConfig:
    """Texts to read. What is None is as in the data that the model was trained on, where these are known."""

    source: str = field(metadata={"flag": "--data"})
    """A text, jsonl or parquet file, a folder, a glob pattern, a Hugging Face name, `docstrings`, motif:1000101 or hash:4."""
    column: str | None = field(default=None, kw_only=True)
    """Column with the text in jsonl, parquet and Hugging Face data; `text` by default."""
    target: str | None = field(default=None, kw_only=True)
    """Translations of the source: a file, its extension (train.fr with en is train.en), or a column beside `column`."""
    unit: Unit | None = field(default=None, kw_only=True)
    """What one text is in a text file; a line by default."""
    separator: str | None = field(default=None, kw_only=True)
    """String between the texts of a text file."""
    empty: Literal["skip", "keep"] | None = field(default=None, kw_only=True)
    """Whether empty texts are kept, each as an end symbol alone, as is usual for the lines of WikiText."""

    def with_defaults(self, trained: "SourceConfig") -> "SourceConfig":
        """These settings, with those of the training data where column, unit, separator or empty are None."""
        names = ("column", "unit", "separator", "empty")
        return replace(self, **{name: getattr(trained, name) for name in names if getattr(self, name) is None})


@dataclass(frozen=True, kw_only=True)
class HeldOutConfig:
    """Sources of their own for validation and test; without them, both are held out of the training data."""

    validation: str | None = None
    """Source of its own for validation."""
    test: str | None = None
    """Source of its own for the test."""
    held_out: float = 0.05
    """Share of the data for validation, and as much for the test, where these have no source."""

    def __post_init__(self) -> None:
        if (self.validation is None) != (self.test is None):
            raise ValueError("Give both validation and test, or neither: then both are held out of the source.")
        if not 0 < self.held_out < 0.5:
            raise ValueError(f"held_out lies between 0 and 0.5, not {self.held_out}.")


@dataclass(frozen=True)
class DataConfig(HeldOutConfig, SourceConfig):
    """Data to train on, in three splits. Without `validation` and `test`, both are held out of the source."""

    source: str = field(default="docstrings", metadata={"flag": "--data"})
    """`docstrings`, motif:10001011111000, hash:4 (zero bits), a file, a folder, a glob pattern, or a Hugging Face name."""
    split: Literal["hash", "position", "raw"] = field(default="hash", kw_only=True)
    """How texts are held out: by the hash of each; by position, the end of each of few long texts; or raw: the file is
    one text, split at the exact byte, as is usual for enwik8 and text8."""
    size: int = field(default=5000, kw_only=True)
    """Training strings of a motif or hash process."""
    length: int = field(default=30, kw_only=True)
    """Symbols of a string of a motif or hash process, the end symbol not counted; a hash process has at most 22."""
    alphabet: str = field(default="01", kw_only=True)
    """Symbols of a motif or hash process."""
    mixture: float = field(default=1.0, kw_only=True)
    """Share of a motif process's strings that contain the motif."""

    def __post_init__(self) -> None:
        check_choices(self)
        super().__post_init__()
        if self.target is not None and (self.split != "hash" or self.empty == "keep"):
            raise ValueError(
                "Pairs are held out by the hash of their source, empty ones are skipped; leave split and empty out."
            )
        check_at_least(self, 1, "size", "length")
        if not 0 < self.mixture <= 1:
            raise ValueError(f"mixture lies in (0, 1], not {self.mixture}.")

    @property
    def motif(self) -> str | None:
        """The motif of a process of the laboratory; None of any other source."""
        return self.source.removeprefix(MOTIF) if self.source.startswith(MOTIF) else None

    @property
    def zero_bits(self) -> int | None:
        """How many zero bits the hash of a string of the laboratory begins with; None of any other source."""
        if not self.source.startswith(HASH):
            return None
        bits = self.source.removeprefix(HASH)
        if not (bits.isascii() and bits.isdecimal()):
            raise ValueError(f"A hash process is written hash:4, with the number of zero bits, not {self.source!r}.")
        return int(bits)

    @property
    def is_drawn(self) -> bool:
        """Whether the data are drawn from a process of the laboratory, instead of read."""
        return self.source.startswith((MOTIF, HASH))


@dataclass(frozen=True)
class TokenizerConfig:
    """How text becomes tokens."""

    kind: str = "bpe"
    """`character`, `byte`, `word` or `bpe`, trained here; or the folder of a pretrained tokenizer."""
    vocab_size: int = 1000
    """Tokens of a bpe tokenizer; at most as many of a word tokenizer."""
    min_frequency: int = 1
    """How often a word must occur to become a token."""

    def __post_init__(self) -> None:
        check_at_least(self, 2, "vocab_size")
        check_at_least(self, 1, "min_frequency")


@dataclass(frozen=True)
class LengthConfig:
    """How texts become sequences: each text one of at most `tokens` with its end symbol; or, with `chunks`, one stream cut
    every `tokens`, of which the first `prompt_tokens` are the prompt; or, with `stream`, one stream that a base with a memory
    reads in order: `batch_size` columns at once, `tokens` of each at an update."""

    tokens: int = 128
    """Longest sequence with its end symbol, or the length of a chunk, or of a segment of a stream."""
    chunks: bool = False
    """One stream cut into chunks, instead of a sequence for each text."""
    prompt_tokens: int = 0
    """Tokens at the start of each chunk that are its prompt."""
    longer: Literal["cut", "refuse"] = "cut"
    """What becomes of longer texts."""
    stream: bool = False
    """One stream read in order with a memory, instead of a sequence for each text."""
    ends: bool = True
    """The end symbol stands after each text of a stream."""
    segments: Literal["fixed", "random"] = "fixed"
    """How long segments of a stream are in training: always `tokens`; or by chance, about `tokens` or, once in twenty, half."""
    window: int | None = None
    """Tokens of a window of a stream for xlnet: a segment, then two texts A and B with their separators and a summary."""
    bidirectional: bool = False
    """Half of the columns of a stream are read from right to left, by an xlnet that is trained in any order."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "tokens")
        if self.prompt_tokens and not self.chunks:
            raise ValueError(f"prompt_tokens = {self.prompt_tokens} is the prompt of a chunk; set chunks = true as well.")
        if self.stream and self.chunks:
            raise ValueError("A stream is either read in order or cut into chunks; set one of stream and chunks.")
        if not self.stream and (self.segments != "fixed" or not self.ends or self.window is not None or self.bidirectional):
            raise ValueError("segments, ends, window and bidirectional are settings of a stream; set stream = true as well.")
        if self.window is not None and (self.window < self.tokens + 5 or self.segments != "fixed"):
            raise ValueError(
                f"A window holds a segment of fixed length, {self.tokens} tokens, and at least 5 more, unlike {self.window}."
            )
        if not 0 <= self.prompt_tokens < self.tokens:
            raise ValueError(f"A prompt of {self.prompt_tokens} leaves none of {self.tokens} tokens to model; shorten it.")


@dataclass(frozen=True)
class ImageConfig:
    """How images become sequences: pixel values in raster order, channels of a pixel in order."""

    quantization_levels: int = 16
    """Values that a channel of a pixel may have, 2 to 256."""
    binarize: Literal["threshold", "random"] | None = None
    """Two levels: cut in the middle, or drawn once by brightness, as is usual for binarised MNIST."""
    classes: bool = False
    """Condition on the class of an image, the first token of its prompt."""
    shrink: int = 1
    """Side of the squares of pixels that are averaged into one pixel."""
    most: int | None = None
    """Train on only so many images, the first ones that are not skipped."""
    skip: int = 0
    """Leave out so many training images, the first ones."""

    def __post_init__(self) -> None:
        check_choices(self)
        if not 2 <= self.quantization_levels <= 256:
            raise ValueError(f"A value has 2 to 256 levels, not {self.quantization_levels}.")
        check_at_least(self, 1, "shrink", "most")
        check_at_least(self, 0, "skip")
