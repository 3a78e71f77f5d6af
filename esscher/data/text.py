"""Texts as `Sequences`: each text a point, or one stream cut into chunks that begin with a prompt.

With the tokens go the words and bytes of each point, so that a perplexity can be told per token, word or
byte. The end symbol counts as one token, one word and one byte. A word belongs to the point in which it
starts, a character to the point with its first token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from esscher.data.tokenizers import Tokenizer
from esscher.space import Sequences, Space, sequences

BLANKS = np.array([code for code in range(0x3001) if chr(code).isspace()], dtype=np.uint32)
Longer = Literal["cut", "refuse"]


@dataclass(frozen=True)
class TextSet:
    """Points made of text, with their sizes; `cut` of them are shorter than their text."""

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
        """What each point is worth, by unit."""
        return {"token": self.tokens, "word": self.words, "byte": self.bytes}

    def __str__(self) -> str:
        cut = f", {self.cut:,} of them cut" if self.cut else ""
        sizes = f"{int(self.tokens.sum()):,} tokens, {int(self.words.sum()):,} words, {int(self.bytes.sum()):,} bytes"
        return f"{len(self):,} sequences ({sizes}{cut})"


def cut_texts(texts: Sequence[str], tokenizer: Tokenizer, space: Space, *, given: int = 0) -> TextSet:
    """Texts as points of a space: one for each text where points end, chunks of one stream after `given` tokens otherwise."""
    if space.eos is None:
        return text_chunks(texts, tokenizer, length=given + space.max_length, given=given)
    return text_points(texts, tokenizer, max_length=space.max_length)


def text_points(texts: Sequence[str], tokenizer: Tokenizer, *, max_length: int, longer: Longer = "cut") -> TextSet:
    """Each text with its end symbol as one point; a text that is longer loses its rest, or is refused."""
    if longer not in ("cut", "refuse"):
        raise ValueError(f"Unknown treatment of longer texts {longer!r}; the known ones are 'cut' and 'refuse'.")
    points, words, size, cut = [], [], [], 0
    for number, (text, found) in enumerate(zip(texts, tokenizer.encode_places(texts), strict=True)):
        length = len(found.tokens) + 1
        if length > max_length and longer == "refuse":
            raise ValueError(
                f"Text {number} has {length:,} tokens with its end symbol, and the longest allowed is {max_length:,}: "
                f"{text[:40]!r}. Nothing was made; raise the length, or cut longer texts."
            )
        kept, whole = found.tokens[:max_length], length <= max_length
        end = len(text) if whole else found.ends[max_length - 1]
        points.append([*kept, tokenizer.eos] if whole else kept)
        words.append(len(text[:end].split()) + whole)
        size.append(len(text[:end].encode()) + whole)
        cut += not whole
    return TextSet(sequences(points), torch.tensor(words), torch.tensor(size), cut)


def text_chunks(texts: Sequence[str], tokenizer: Tokenizer, *, length: int, given: int = 0) -> TextSet:
    """All texts in one stream, each followed by the end symbol, cut into chunks of `length` tokens of which the
    first `given` are the prompt.

    The end symbol stands for itself inside a chunk and ends nothing: the space of chunks has no end symbol.
    The last tokens, too few for a chunk, are left out.
    """
    if not 0 <= given < length:
        raise ValueError(f"Of {length} tokens at least one must be left to model, so {given} cannot be given.")
    tokens: list[int] = []
    sizes = [np.zeros((2, 1), dtype=np.int64)]  # words and bytes of each token, one column before the first
    for text, found in zip(texts, tokenizer.encode_places(texts), strict=True):
        tokens += [*found.tokens, tokenizer.eos]
        places = [0, *found.ends[:-1], len(text)] if found.ends else [0]
        sizes += [np.diff(running_sizes(text)[:2, places]), np.ones((2, 1), dtype=np.int64)]
    if len(tokens) < length:
        raise ValueError(f"The texts have {len(tokens):,} tokens in all, too few for one chunk of {length:,}. Give more text.")
    firsts = torch.arange(0, len(tokens) - length + 1, length)
    rows = torch.tensor(tokens)[: len(firsts) * length].view(-1, length)
    x = Sequences(rows, torch.full_like(firsts, given), torch.full_like(firsts, length))
    before = torch.from_numpy(np.concatenate(sizes, 1).cumsum(1))
    words, size = before[:, firsts + length] - before[:, firsts + given]
    return TextSet(x, words, size)


def running_sizes(text: str) -> NDArray[np.int64]:
    """Words begun, bytes and characters passed before each character, and at the end."""
    code = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    blank = np.isin(code, BLANKS)
    begins = ~blank & np.concatenate([[True], blank[:-1]])
    size = 1 + (code >= 0x80) + (code >= 0x800) + (code >= 0x10000)
    counts = np.stack([begins, size, np.ones_like(size)])
    return np.concatenate([np.zeros((3, 1), dtype=np.int64), counts.cumsum(1)], 1)
