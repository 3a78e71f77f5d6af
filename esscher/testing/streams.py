"""What every base with a memory must obey, as assertions that name the law they find broken."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.networks.network import Memory
from esscher.space import Sequences, Space
from esscher.testing.laws import equal

PIECES = ((1,), (2, 3), (5,), (1, 0, 4))  # lengths of pieces, again and again until the stream ends


@runtime_checkable
class StreamBase(Protocol):
    """What the laws ask of a base that reads streams."""

    @property
    def space(self) -> Space: ...

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]: ...

    def open(self, rows: int) -> Memory: ...

    def read(self, memory: Memory, tokens: Int[Tensor, "B L"]) -> tuple[Float[Tensor, "B L"], Memory]: ...


def check_stream(base: StreamBase, *, length: int = 11, rows: int = 4, tolerance: float = 1e-5) -> None:
    """The laws of a base with a memory, on streams of `length` tokens, which its memory must reach over.

    A stream read in pieces of any lengths is scored as one long row is; a memory holds no gradient and has a row for each
    stream, which no other stream changes; reading leaves the memory it began with as it was.
    """
    place = torch.arange(rows)[:, None] * 5 + torch.arange(length)[None, :]
    tokens = (place * place // 3 + place) % base.space.vocab_size
    full = torch.full((rows,), length)
    with torch.no_grad():
        whole = base.log_probs(Sequences(tokens, torch.zeros_like(full), full))
        for lengths in PIECES:
            found = _in_pieces(base, tokens, lengths)
            equal(found, whole, tolerance, f"a stream in pieces of {lengths} must be scored as one long row is")
        alone = torch.cat([_in_pieces(base, tokens[row : row + 1], (3,)) for row in range(rows)])
        equal(alone, whole, tolerance, "a stream must not depend on the other streams of the batch")
        _check_rows(base, tokens, whole, tolerance)
    _check_gradient(base, tokens)


def _in_pieces(base: StreamBase, tokens: Int[Tensor, "B L"], lengths: tuple[int, ...]) -> Float[Tensor, "B L"]:
    memory, found, first, number = base.open(len(tokens)), [], 0, 0
    while first < tokens.shape[1]:
        last = min(first + lengths[number % len(lengths)], tokens.shape[1])
        score, memory = base.read(memory, tokens[:, first:last])
        found.append(score)
        first, number = last, number + 1
    return torch.cat(found, 1)


def _check_rows(base: StreamBase, tokens: Int[Tensor, "B L"], whole: Float[Tensor, "B L"], tolerance: float) -> None:
    """Rows of a memory can be chosen; and reading twice from one memory gives the same."""
    half = tokens.shape[1] // 2
    _, memory = base.read(base.open(len(tokens)), tokens[:, :half])
    shapes = [tuple(part.shape) for part in memory]
    assert all(shape[:1] == (len(tokens),) for shape in shapes), f"a memory has a row for each stream; its shapes are {shapes}"
    base.read(memory, tokens[:, half:].flip(1))
    again, _ = base.read(memory, tokens[:, half:])
    equal(again, whole[:, half:], tolerance, "reading must leave the memory it began with as it was")
    order = torch.arange(len(tokens)).flip(0)
    chosen, _ = base.read(tuple(part[order] for part in memory), tokens[order, half:])
    equal(chosen, whole[order, half:], tolerance, "rows of a memory must be those of the streams")


def _check_gradient(base: StreamBase, tokens: Int[Tensor, "B L"]) -> None:
    with torch.enable_grad():
        _, memory = base.read(base.open(len(tokens)), tokens)
    held = sum(part.requires_grad for part in memory)
    assert held == 0, f"a memory must hold no gradient; {held} of its {len(memory)} tensors do"
