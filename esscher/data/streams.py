"""Texts as one long stream of tokens in the order of their source, and what each token is worth in words, characters and bytes.

    text_stream(texts, tokenizer)        texts one after another, with or without the end symbol after each
    raw_stream(content, tokenizer)       a file as it is: every byte, or every character, and nothing added

Counts follow `esscher.data.text`: the end symbol is one of each; a word belongs to the token in which it begins, a character
to its first token. Byte and character tokens of files are looked up in a table, which is as exact as the tokenizer, and faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from esscher.data.text import running_sizes
from esscher.data.tokenizers import UNKNOWN, Tokenizer, byte_symbols

BLANK_BYTES = np.frombuffer(bytes(code for code in range(128) if chr(code).isspace()), dtype=np.uint8)


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
        """What each token is worth, by unit."""
        return {
            "token": torch.ones_like(self.tokens),
            "word": self.words,
            "character": self.characters,
            "byte": self.bytes,
        }


def text_stream(texts: Sequence[str], tokenizer: Tokenizer, *, ends: bool = True) -> TextStream:
    """All texts in one stream; with `ends` the end symbol follows each."""
    tokens: list[NDArray[np.int64]] = []
    sizes: list[NDArray[np.int64]] = []
    for first in range(0, len(texts), 1000):
        some = texts[first : first + 1000]
        for text, found in zip(some, tokenizer.encode_places(some), strict=True):
            places = [0, *found.ends[:-1], len(text)] if found.ends else [0]
            tokens.append(np.array([*found.tokens, *([tokenizer.eos] if ends else [])], dtype=np.int64))
            sizes += [np.diff(running_sizes(text)[:, places]), np.ones((3, int(ends)), dtype=np.int64)]
    return _stream(np.concatenate(tokens), np.concatenate(sizes, 1), "The texts hold no token")


def raw_stream(content: bytes, tokenizer: Tokenizer) -> TextStream:
    """The content of a file: bytes as they are; other tokens need UTF-8, and leave out parts of a character at its ends."""
    if tokenizer.name == "byte":
        return _stream(_byte_tokens(content, tokenizer), _byte_sizes(content), "The file is empty")
    text = decode_part(content)
    if tokenizer.name != "character":
        return text_stream([text], tokenizer, ends=False)
    return _stream(_character_tokens(text, tokenizer), np.diff(running_sizes(text)), "The file is empty")


def decode_part(content: bytes) -> str:
    """The text of a part of a UTF-8 file that was cut anywhere: parts of a character at its ends are left out."""
    first = next((place for place in range(min(3, len(content))) if content[place] & 0xC0 != 0x80), 0)
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


def _byte_tokens(content: bytes, tokenizer: Tokenizer) -> NDArray[np.int64]:
    table = np.array([tokenizer.backend.token_to_id(symbol) for symbol in byte_symbols()], dtype=np.int64)
    return table[np.frombuffer(content, dtype=np.uint8)]


def _byte_sizes(content: bytes) -> NDArray[np.int64]:
    """Words, bytes and characters that begin with each byte; blanks are those of ASCII."""
    code = np.frombuffer(content, dtype=np.uint8)
    blank = np.isin(code, BLANK_BYTES)
    begins = ~blank & np.concatenate([[True], blank[:-1]])
    return np.stack([begins, np.ones(len(code), dtype=bool), (code & 0xC0) != 0x80]).astype(np.int64)


def _character_tokens(text: str, tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Characters that the tokenizer lacks are its token for the unknown; without one they are an error."""
    vocabulary = {symbol: number for symbol, number in tokenizer.backend.get_vocab().items() if len(symbol) == 1}
    code = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    known = np.array(sorted(ord(symbol) for symbol in vocabulary), dtype=np.uint32)
    table = np.array([vocabulary[chr(one)] for one in known], dtype=np.int64)
    place = np.searchsorted(known, code).clip(max=len(known) - 1)
    strange = known[place] != code
    if bool(strange.any()):
        if UNKNOWN not in vocabulary:
            raise ValueError(
                f"{tokenizer!r} lacks the character {chr(code[strange][0])!r}. Nothing was encoded; use its own alphabet."
            )
        return np.where(strange, vocabulary[UNKNOWN], table[place])
    return table[place]
