"""Texts as sequences of their own, as chunks of one stream, or as a stream of tokens; with counts of units for perplexities.

The end symbol counts as one word, character and byte. A word belongs to the token in which it begins, a character to its first
token. Letters: B rows, C tokens of a column of the stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.randomness import Rng
from esscher.core.space import Sequences, Space, sequences
from esscher.data.tokenizers import UNKNOWN_CHARACTER, Tokenizer, byte_symbols

WHITESPACE_CODES = np.array([code for code in range(0x3001) if chr(code).isspace()], dtype=np.uint32)
WHITESPACE_BYTES = np.frombuffer(bytes(code for code in range(128) if chr(code).isspace()), dtype=np.uint8)
Longer = Literal["cut", "refuse"]


@dataclass(frozen=True)
class TextSet:
    """Points made of text, with their words and bytes; `cut` of them are truncated."""

    x: Sequences
    words: Int[Tensor, "B"]
    bytes: Int[Tensor, "B"]
    cut: int = 0

    def __len__(self) -> int:
        return len(self.x)

    @property
    def tokens(self) -> Int[Tensor, "B"]:
        return self.x.lengths

    def units(self) -> dict[str, Tensor]:
        """The size of each point, by unit."""
        return {"token": self.tokens, "word": self.words, "byte": self.bytes}

    def __str__(self) -> str:
        cut = f", {self.cut:,} of them cut" if self.cut else ""
        sizes = f"{int(self.tokens.sum()):,} tokens, {int(self.words.sum()):,} words, {int(self.bytes.sum()):,} bytes"
        return f"{len(self):,} sequences ({sizes}{cut})"


def chunk_texts(texts: Sequence[str], tokenizer: Tokenizer, space: Space, *, prompt_tokens: int = 0) -> TextSet:
    """Texts as points of a space: `text_points` if it has an end symbol, else `text_chunks`."""
    if space.eos is None:
        return text_chunks(texts, tokenizer, length=prompt_tokens + space.max_length, prompt_tokens=prompt_tokens)
    return text_points(texts, tokenizer, max_length=space.max_length)


def text_points(texts: Sequence[str], tokenizer: Tokenizer, *, max_length: int, longer: Longer = "cut") -> TextSet:
    """Each text with the end symbol as a point; longer texts are truncated, or refused."""
    if longer not in ("cut", "refuse"):
        raise ValueError(f"Unknown treatment of longer texts {longer!r}; the known ones are 'cut' and 'refuse'.")
    points, words, size, cut = [], [], [], 0
    for number, (text, encoding) in enumerate(zip(texts, tokenizer.encode_with_offsets(texts), strict=True)):
        length = len(encoding.tokens) + 1
        if length > max_length and longer == "refuse":
            raise ValueError(
                f"Text {number} has {length:,} tokens with its end symbol, and the longest allowed is {max_length:,}: "
                f"{text[:40]!r}. Nothing was made; raise the length, or cut longer texts."
            )
        tokens, whole = encoding.tokens[:max_length], length <= max_length
        end = len(text) if whole else encoding.ends[max_length - 1]
        points.append([*tokens, tokenizer.eos] if whole else tokens)
        words.append(len(text[:end].split()) + whole)
        size.append(len(text[:end].encode()) + whole)
        cut += not whole
    return TextSet(sequences(points), torch.tensor(words), torch.tensor(size), cut)


def text_chunks(texts: Sequence[str], tokenizer: Tokenizer, *, length: int, prompt_tokens: int = 0) -> TextSet:
    """All texts as one stream, each with the end symbol, in chunks of `length` tokens that begin with a prompt. The end symbol
    is an ordinary token inside a chunk: the space of chunks has none. An incomplete last chunk is left out."""
    if not 0 <= prompt_tokens < length:
        raise ValueError(f"Of {length} tokens at least one must be left to model, so a prompt cannot have {prompt_tokens}.")
    stream = text_stream(texts, tokenizer)
    if len(stream) < length:
        raise ValueError(f"The texts have {len(stream):,} tokens in all, too few for one chunk of {length:,}. Give more text.")
    count = len(stream) // length
    tokens, words, size = (part[: count * length].view(count, length) for part in (stream.tokens, stream.words, stream.bytes))
    x = Sequences(tokens, torch.full((count,), prompt_tokens), torch.full((count,), length))
    return TextSet(x, words[:, prompt_tokens:].sum(1), size[:, prompt_tokens:].sum(1))


def running_sizes(text: str) -> NDArray[np.int64]:
    """Words, bytes and characters that begin before each character of a text, and before its end."""
    code = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    size = 1 + (code >= 0x80) + (code >= 0x800) + (code >= 0x10000)
    counts = np.stack([_word_starts(np.isin(code, WHITESPACE_CODES)), size, np.ones_like(size)])
    return np.concatenate([np.zeros((3, 1), dtype=np.int64), counts.cumsum(1)], 1)


def _word_starts(blank: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return ~blank & np.concatenate([[True], blank[:-1]])


@dataclass(frozen=True)
class TextStream:
    """Tokens in order, and the words, characters and bytes of each."""

    tokens: Int[Tensor, "N"]
    words: Int[Tensor, "N"]
    characters: Int[Tensor, "N"]
    bytes: Int[Tensor, "N"]

    def __len__(self) -> int:
        return len(self.tokens)

    def __str__(self) -> str:
        sizes = ", ".join(f"{int(size.sum()):,} {name}s" for name, size in self.units().items())
        return f"one stream ({sizes})"

    def units(self) -> dict[str, Tensor]:
        """The size of each token, by unit."""
        ones = torch.ones_like(self.tokens)
        return {"token": ones, "word": self.words, "character": self.characters, "byte": self.bytes}


def text_stream(texts: Sequence[str], tokenizer: Tokenizer, *, ends: bool = True) -> TextStream:
    """All texts as one stream; with `ends` the end symbol follows each."""
    tokens: list[NDArray[np.int64]] = []
    sizes: list[NDArray[np.int64]] = []
    for first in range(0, len(texts), 1000):
        some = texts[first : first + 1000]
        for text, encoding in zip(some, tokenizer.encode_with_offsets(some), strict=True):
            places = [0, *encoding.ends[:-1], len(text)] if encoding.ends else [0]
            tokens.append(np.array([*encoding.tokens, *([tokenizer.eos] if ends else [])], dtype=np.int64))
            sizes += [np.diff(running_sizes(text)[:, places]), np.ones((3, int(ends)), dtype=np.int64)]
    return _stream(np.concatenate(tokens), np.concatenate(sizes, 1), "The texts hold no token")


def raw_stream(content: bytes, tokenizer: Tokenizer) -> TextStream:
    """The content of a file: bytes as they are, or UTF-8 text without incomplete characters at its ends."""
    if tokenizer.name == "byte":
        code = np.frombuffer(content, dtype=np.uint8)
        token_ids = np.array([tokenizer.backend.token_to_id(symbol) for symbol in byte_symbols()], dtype=np.int64)
        words = _word_starts(np.isin(code, WHITESPACE_BYTES))  # the whitespace of ASCII
        sizes = np.stack([words, np.ones(len(code), dtype=bool), (code & 0xC0) != 0x80]).astype(np.int64)
        return _stream(token_ids[code], sizes, "The file is empty")
    text = decode_part(content)
    if tokenizer.name != "character":
        return text_stream([text], tokenizer, ends=False)
    return _stream(_character_tokens(text, tokenizer), np.diff(running_sizes(text)), "The file is empty")


def decode_part(content: bytes) -> str:
    """The text of a part of a UTF-8 file, without incomplete characters at its ends."""
    first = next((index for index in range(min(3, len(content))) if content[index] & 0xC0 != 0x80), 0)
    for last in range(len(content), max(first, len(content) - 4), -1):
        try:
            return content[first:last].decode()
        except UnicodeDecodeError as error:
            if error.start < last - first - 3:
                raise ValueError(
                    f"Byte {first + error.start:,} is not UTF-8 text: {error.reason}. Nothing was read; convert the file, or "
                    f"use the byte tokenizer."
                ) from error
    return ""


def _stream(tokens: NDArray[np.int64], sizes: NDArray[np.int64], empty: str) -> TextStream:
    if len(tokens) == 0:
        raise ValueError(f"{empty}. Nothing was read; give some text.")
    words, size, characters = (torch.from_numpy(np.ascontiguousarray(row)) for row in sizes)
    return TextStream(torch.from_numpy(tokens), words, characters, size)


def _character_tokens(text: str, tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Tokens of characters; those that the tokenizer lacks become its unknown token, or are an error if it has none."""
    vocabulary = {symbol: number for symbol, number in tokenizer.backend.get_vocab().items() if len(symbol) == 1}
    code = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    known = np.array(sorted(ord(symbol) for symbol in vocabulary), dtype=np.uint32)
    table = np.array([vocabulary[chr(number)] for number in known], dtype=np.int64)
    place = np.searchsorted(known, code).clip(max=len(known) - 1)
    unknown = known[place] != code
    if bool(unknown.any()) and UNKNOWN_CHARACTER not in vocabulary:
        raise ValueError(f"{tokenizer!r} lacks the character {chr(code[unknown][0])!r}. Nothing was encoded; use its alphabet.")
    return np.where(unknown, vocabulary.get(UNKNOWN_CHARACTER, 0), table[place])


SPECIAL_TOKENS = 3  # two separators and a summary


@dataclass(frozen=True)
class SegmentPairWindows:
    """Windows of `length` tokens of a stream with two segments A and B, which advance by `fresh` tokens (Yang et al. 2019).

        |  `fresh` tokens  |  A  SEP  B  SEP  CLS  |        the next window continues after the fresh tokens

    A follows the fresh tokens; B follows A or, in half of the windows, comes from elsewhere in the stream. A and B share the
    rest of the window at random. The symbols are those of the network, outside the vocabulary.
    """

    length: int
    fresh: int
    separator: int
    summary: int

    def __post_init__(self) -> None:
        if self.fresh < 1 or self.shared < 2:
            raise ValueError(
                f"A window of {self.length} tokens with {self.fresh} fresh ones has {self.shared} left for two segments beside "
                f"their {SPECIAL_TOKENS} symbols; at least 2 are needed."
            )

    @property
    def shared(self) -> int:
        """Tokens of A and B together."""
        return self.length - self.fresh - SPECIAL_TOKENS

    def rows(self, columns: Int[Tensor, "B C"], first: int, *, rng: Rng) -> Int[Tensor, "B {self.length}"]:
        """The window of each column whose fresh tokens begin at `first`."""
        count, last = len(columns), first + self.fresh
        if last + self.shared > columns.shape[1]:
            raise ValueError(f"A window at {first} ends after the last of {columns.shape[1]} tokens of a column.")
        split = (rng.categorical(torch.zeros(1, self.shared - 1), count)[0] + 1).tolist()
        follows = rng.bernoulli(torch.full((count,), 0.5).log()).tolist()
        whose = rng.categorical(torch.zeros(1, count), count)[0].tolist()
        where = rng.categorical(torch.zeros(1, columns.shape[1] - self.shared + 1), count)[0].tolist()
        separator, summary = (columns.new_tensor([symbol]) for symbol in (self.separator, self.summary))
        rows = []
        for row, (size, adjacent, other, place) in enumerate(zip(split, follows, whose, where, strict=True)):
            after = columns[row, last : last + self.shared]
            second = after[size:] if adjacent else columns[other, place : place + self.shared - size]
            rows.append(torch.cat([columns[row, first:last], after[:size], separator, second, separator, summary]))
        return torch.stack(rows)
