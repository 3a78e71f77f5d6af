"""The settings of data, without torch: where texts come from, how they become tokens, and how tokens become points."""

from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from esscher.data.sources import Unit

MOTIF = "motif:"


@dataclass(frozen=True)
class DataConfig:
    """Where the data come from.

    `source` is `docstrings`, `motif:10001011111000` (a process of the laboratory), a path, a folder, a pattern,
    or a Hugging Face name. Without `validation` and `test`, texts are held out of the source by their hash.
    """

    source: str = "docstrings"
    """`docstrings`, motif:10001011111000, a path, a folder, a pattern, or a Hugging Face name."""
    validation: str | None = None
    """A source of its own to choose the best weights by."""
    test: str | None = None
    """A source of its own to judge by."""
    target: str | None = None
    """Translations of the source: a file, its ending (train.fr with en is train.en), or a column beside `column`."""
    held_out: float = 0.05
    """Share of the texts for validation, and as much for test."""
    split: Literal["hash", "place", "raw"] = "hash"
    """What holds texts out: the hash of each; for few long texts the place: the end of each is held out; or raw: one file is
    one text, cut at the very byte, as is usual for enwik8 and text8."""
    empty: Literal["skip", "keep"] = "skip"
    """What becomes of empty texts; kept, each is an end symbol alone, as is usual for the lines of WikiText."""
    column: str = "text"
    """The column with the text, of jsonl, parquet and Hugging Face data."""
    unit: Unit = "line"
    """What a text is, in text files."""
    separator: str | None = None
    """A string between the texts, in text files."""
    size: int = 5000
    """Training points of a process."""
    length: int = 30
    """Symbols of a process, the end symbol not counted."""
    alphabet: str = "01"
    """Symbols of a process."""
    mixture: float = 1.0
    """Share of a process's strings that hold the motif."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_held_out(self.validation, self.test, self.held_out)
        if self.target is not None and (self.split != "hash" or self.empty != "skip"):
            raise ValueError(
                "Pairs are held out by the hash of their source, and empty ones skipped; leave split and empty out."
            )
        if self.size < 1 or self.length < 1:
            raise ValueError(f"A process has at least one point of one symbol: size = {self.size}, length = {self.length}.")
        if not 0 < self.mixture <= 1:
            raise ValueError(f"mixture lies in (0, 1], not {self.mixture}.")

    @property
    def motif(self) -> str | None:
        """The motif of a process of the laboratory; None of any other source."""
        return self.source.removeprefix(MOTIF) if self.source.startswith(MOTIF) else None


@dataclass(frozen=True)
class TokenizerConfig:
    """How text becomes tokens: `character`, `byte`, `word` or `bpe` trained here, or the folder of a pretrained tokenizer."""

    kind: str = "bpe"
    """`character`, `byte`, `word` or `bpe`, trained here; or the folder of a pretrained tokenizer."""
    vocab_size: int = 1000
    """Tokens of a bpe tokenizer; most tokens of words."""
    cutoff: int = 1
    """How often a word must occur to become a token."""

    def __post_init__(self) -> None:
        if self.vocab_size < 2:
            raise ValueError(f"vocab_size is at least 2, not {self.vocab_size}.")
        if self.cutoff < 1:
            raise ValueError(f"cutoff is at least 1, not {self.cutoff}.")


@dataclass(frozen=True)
class LengthConfig:
    """How texts become points: each text one point of at most `tokens` with its end symbol; or, with `chunks`,
    one stream cut every `tokens`, of which the first `given` are the prompt; or, with `stream`, one stream that a base with a
    memory reads in order: `batch_size` columns at once, `tokens` of each at an update."""

    tokens: int = 128
    """Longest point with its end symbol, or the length of a chunk, or of a segment of a stream."""
    chunks: bool = False
    """One stream cut into chunks, instead of a point for each text."""
    given: int = 0
    """Tokens at the start of each chunk that are its prompt."""
    longer: Literal["cut", "refuse"] = "cut"
    """What becomes of longer texts."""
    stream: bool = False
    """One stream read in order with a memory, instead of a point for each text."""
    ends: bool = True
    """The end symbol stands after each text of a stream."""
    segments: Literal["fixed", "random"] = "fixed"
    """How long segments of a stream are in training: always `tokens`; or by chance, about `tokens` or, once in twenty, half."""
    window: int | None = None
    """Tokens of a window of a stream for xlnet: a segment, then two texts A and B with their separators and a summary."""
    both_ways: bool = False
    """Half of the columns of a stream are read from right to left, by an xlnet that is trained in any order."""

    def __post_init__(self) -> None:
        check_choices(self)
        if self.tokens < 1:
            raise ValueError(f"A point has at least one token, not {self.tokens}.")
        if self.given and not self.chunks:
            raise ValueError(f"given = {self.given} tokens are the prompt of a chunk; set chunks = true as well.")
        if self.stream and self.chunks:
            raise ValueError("A stream is either read in order or cut into chunks; set one of stream and chunks.")
        if not self.stream and (self.segments != "fixed" or not self.ends or self.window is not None or self.both_ways):
            raise ValueError("segments, ends, window and both_ways are settings of a stream; set stream = true as well.")
        if self.window is not None and (self.window < self.tokens + 5 or self.segments != "fixed"):
            raise ValueError(
                f"A window holds a segment of fixed length, {self.tokens} tokens, and at least 5 more, unlike {self.window}."
            )
        if not 0 <= self.given < self.tokens:
            raise ValueError(f"Of {self.tokens} tokens at least one must be left to model, so {self.given} cannot be given.")


def check_held_out(validation: str | None, test: str | None, share: float) -> None:
    """Refuse one held-out source without the other, and a share that leaves too little to learn from."""
    if (validation is None) != (test is None):
        raise ValueError("Give both validation and test, or neither: then both are held out of the source.")
    if not 0 < share < 0.5:
        raise ValueError(f"held_out lies between 0 and 0.5, not {share}.")


def check_choices(settings: Any) -> None:
    """Refuse a word that is none of those that the type of its setting lists, None among them where the type allows it."""
    for one in fields(settings):
        kinds = [one.type] if get_origin(one.type) is Literal else get_args(one.type)
        known = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
        known += [None] * bool(known and NoneType in kinds)
        value = getattr(settings, one.name)
        if known and value not in known:
            raise ValueError(f"Unknown {one.name} {value!r}; the known ones are {', '.join(map(str, known))}.")
