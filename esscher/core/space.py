"""The set of sequences that a model is a distribution over, and batches of such sequences.

Shape letters, used everywhere and defined only here:
    P  prompts (independent problems)      T  positions, padded
    N  draws per prompt                    V  vocabulary size
    B  rows of a flat batch                K  rows chosen from a batch

A row of `Sequences` has three parts: the prompt `tokens[:start]`, the point `tokens[start:stop]`, and padding. Prompts are
`Sequences` whose points are empty. Rows are left-aligned, so prompts of different lengths may share a batch. A point ends
with the end symbol, which belongs to it, or has `max_length` tokens without one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Space:
    """Points over `vocab_size` tokens that stop at `eos`, or at `max_length` tokens (the prompt not counted)."""

    vocab_size: int
    max_length: int
    eos: int | None = None

    def __post_init__(self) -> None:
        numbers = [self.vocab_size, self.max_length, *([] if self.eos is None else [self.eos])]
        if any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
            raise TypeError(f"The sizes and the end symbol of a space are whole numbers: {self}. Nothing was made.")
        if self.vocab_size < 1 or self.max_length < 1:
            raise ValueError(f"A space needs at least one token and one position: {self}. Nothing was made.")
        if self.eos is not None and not 0 <= self.eos < self.vocab_size:
            raise ValueError(f"The end symbol {self.eos} is not one of the {self.vocab_size} tokens. Nothing was made.")

    def is_eos(self, token: Int[Tensor, "*S"]) -> Bool[Tensor, "*S"]:
        """True where a point stops with this token; never, when the space has no end symbol."""
        return torch.zeros_like(token, dtype=torch.bool) if self.eos is None else token == self.eos

    def ends_with_eos(self, x: "Sequences") -> Bool[Tensor, "B"]:
        """True where the last token of a row's point is the end symbol."""
        last = pad(x.tokens, (0, 1)).gather(1, (x.stop - 1).clamp(min=0)[:, None])[:, 0]
        return (x.lengths > 0) & self.is_eos(last)


@dataclass(frozen=True)
class Sequences:
    """A batch of points `tokens[start:stop]`, each after its prompt `tokens[:start]`."""

    tokens: Int[Tensor, "B T"]
    start: Int[Tensor, "B"]
    stop: Int[Tensor, "B"]

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def counted(self) -> Bool[Tensor, "B T"]:
        """True where a token belongs to the point, so where its log-probability counts."""
        position = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return (position >= self.start[:, None]) & (position < self.stop[:, None])

    @property
    def inside(self) -> Bool[Tensor, "B T"]:
        """True where a token belongs to the prompt or to the point, and not to the padding."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.stop[:, None]

    @property
    def lengths(self) -> Int[Tensor, "B"]:
        """Tokens of each point, the end symbol included."""
        return self.stop - self.start

    def rows(self, index: Int[Tensor, "K"] | Bool[Tensor, "B"] | slice) -> "Sequences":
        return Sequences(self.tokens[index], self.start[index], self.stop[index])

    def split(self, size: int) -> "list[Sequences]":
        """The rows in their order, `size` at a time."""
        return [self.rows(slice(first, first + size)) for first in range(0, len(self), size)]

    def prompts(self) -> "Sequences":
        """The same rows with empty points: what a sampler is given."""
        width = int(self.start.max()) if len(self) else 0
        return Sequences(self.tokens[:, :width], self.start, self.start)

    def prompt_keys(self) -> list[tuple[int, ...]]:
        """The prompt of each row, as a hashable key."""
        return [tuple(row[:start]) for row, start in zip(self.tokens.tolist(), self.start.tolist(), strict=True)]

    def repeat(self, times: int) -> "Sequences":
        """Each row `times` times, copies next to each other."""
        return self.rows(torch.arange(len(self) * times, device=self.tokens.device) // times)

    def to(self, device: torch.device | str) -> "Sequences":
        """The rows on a device; all in one copy, because each copy waits for the device."""
        if torch.device(device).type == self.tokens.device.type:
            tokens = self.tokens.to(device)
            return self if tokens is self.tokens else Sequences(tokens, self.start.to(device), self.stop.to(device))
        moved = torch.cat([self.tokens, self.start[:, None], self.stop[:, None]], 1).to(device)
        return Sequences(moved[:, :-2], moved[:, -2].contiguous(), moved[:, -1].contiguous())

    def without_padding(self) -> "Sequences":
        """The same rows without the columns that are padding in all of them."""
        return Sequences(self.tokens[:, : int(self.stop.max()) if len(self) else 0], self.start, self.stop)

    def points(self) -> list[list[int]]:
        """The points as lists of tokens, without prompts and padding."""
        rows = zip(self.tokens.tolist(), self.start.tolist(), self.stop.tolist(), strict=True)
        return [row[start:stop] for row, start, stop in rows]


def sequences(points: Sequence[Sequence[int]], prompts: Sequence[Sequence[int]] | None = None) -> Sequences:
    """A batch from lists of tokens; without `prompts` every prompt is empty."""
    prompts = [()] * len(points) if prompts is None else prompts
    if len(prompts) != len(points):
        raise ValueError(f"{len(points)} points need as many prompts, not {len(prompts)}.")
    rows = [[*prompt, *point] for prompt, point in zip(prompts, points, strict=True)]
    tokens = torch.zeros(len(rows), max(map(len, rows), default=0), dtype=torch.long)
    for row, filled in zip(tokens, rows, strict=True):
        if not all(isinstance(token, int) for token in filled):
            other = next(token for token in filled if not isinstance(token, int))
            raise TypeError(f"Tokens are whole numbers, not {other!r}. Nothing was made; encode texts with a tokenizer first.")
        row[: len(filled)] = torch.tensor(filled, dtype=torch.long)
    start = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.long)
    return Sequences(tokens, start, torch.tensor([len(row) for row in rows], dtype=torch.long))


def prompts_of(prompts: Sequence[Sequence[int]]) -> Sequences:
    """Prompts from lists of tokens."""
    return sequences([()] * len(prompts), prompts)


def empty_prompts(count: int) -> Sequences:
    """`count` prompts of no token: the unconditional case."""
    none = torch.zeros(count, dtype=torch.long)
    return Sequences(none.new_zeros(count, 0), none, none.clone())


def unique_prompts(x: Sequences) -> tuple[Sequences, Int[Tensor, "B"]]:
    """The distinct prompts of the rows, and the index of each row's prompt among them."""
    prompts = x.prompts()
    keys = torch.cat([prompts.start[:, None], torch.where(prompts.inside, prompts.tokens, 0)], 1)
    distinct, which = torch.unique(keys, dim=0, return_inverse=True)
    return Sequences(distinct[:, 1:], distinct[:, 0], distinct[:, 0]), which


def refuse_foreign_tokens(x: Sequences, space: Space, what: str = "sequences", prompt_vocab_size: int | None = None) -> None:
    """Raise unless the rows have tokens of the space, and their prompts those below `prompt_vocab_size`, if it is given. Tokens
    on an accelerator are not looked at: the host would wait."""
    if not isinstance(x, Sequences):
        raise TypeError(
            f"{what.capitalize()} are Sequences, not a {type(x).__name__}. Nothing was computed; make them by "
            f"`sequences([[3, 1, 0]])`, and prompts by `prompts_of([[3, 1], []])` or, for none, `empty_prompts(1)`."
        )
    rows = (len(x),)
    if any(part.dtype != torch.long for part in (x.tokens, x.start, x.stop)) or {x.start.shape, x.stop.shape} != {rows}:
        kinds = ", ".join(f"{part.dtype} {list(part.shape)}" for part in (x.tokens, x.start, x.stop))
        raise TypeError(
            f"Tokens, start and stop of {what} are torch.long, of shapes [B, T], [B] and [B], not {kinds}. Nothing was "
            f"computed; make them by `sequences([[3, 1, 0]])`, or convert them by `.long()`."
        )
    if x.tokens.device.type != "cpu" or len(x) == 0:
        return
    if bool(((x.start < 0) | (x.start > x.stop) | (x.stop > x.tokens.shape[1])).any()):
        raise ValueError(
            f"Some of {len(x)} {what} start or stop outside their {x.tokens.shape[1]} columns. Nothing was computed; a row has "
            f"0 <= start <= stop <= columns."
        )
    known = torch.where(x.counted, space.vocab_size, space.vocab_size if prompt_vocab_size is None else prompt_vocab_size)
    wrong = x.inside & ((x.tokens < 0) | (x.tokens >= known))
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{int(wrong.any(-1).sum())} of {len(x)} {what} have tokens outside the vocabulary, the first "
            f"{int(x.tokens[row, column])} in row {row}: the base knows 0 to {int(known[row, column]) - 1}. Nothing was "
            f"computed; encode them with its tokenizer."
        )


def refuse_foreign(x: Sequences, space: Space, what: str = "sequences", prompt_vocab_size: int | None = None) -> None:
    """Raise if a row is not a point of the space, so that no base could draw it."""
    refuse_foreign_tokens(x, space, what, prompt_vocab_size)
    ended, ends = space.ends_with_eos(x), (x.counted & space.is_eos(x.tokens)).sum(-1)
    whole = torch.where(ended, x.lengths <= space.max_length, x.lengths == space.max_length)
    wrong = (~whole | (ends != ended)).nonzero()[:, 0]
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"{len(wrong)} of {len(x)} {what} are no points of the base's space, the first in row {row} with "
            f"{int(x.lengths[row])} tokens: a point has {space.max_length}, or ends earlier with the end symbol ({space.eos}). "
            f"Nothing was computed; cut the data by the base's own rule."
        )


def refuse_foreign_prompts(prompts: Sequences, space: Space, prompt_vocab_size: int | None = None) -> None:
    """Raise unless these are prompts: tokens that the base knows, and no points yet."""
    refuse_foreign_tokens(prompts, space, "prompts", prompt_vocab_size)
    if len(prompts) == 0:
        raise ValueError("There is no prompt to draw after. Nothing was drawn; empty_prompts(1) is the unconditional case.")
    if prompts.tokens.device.type == "cpu" and not torch.equal(prompts.start, prompts.stop):
        raise ValueError(
            f"{int((prompts.start != prompts.stop).sum())} of {len(prompts)} prompts have points already. Nothing was drawn; "
            f"take `.prompts()` of the sequences, which leaves points out."
        )


def point_values(x: Sequences, values: Shaped[Tensor, "B T"], length: int) -> Shaped[Tensor, "B L"]:
    """Re-index per-column values by position within the point; 0 after its end."""
    position = torch.arange(length, device=x.tokens.device)
    column = (x.start[:, None] + position).clamp(max=max(0, x.tokens.shape[1] - 1))
    return torch.where(position < x.lengths[:, None], values.gather(1, column), 0)


def scatter_point_values(x: Sequences, values: Float[Tensor, "B L *rest"]) -> Float[Tensor, "B T *rest"]:
    """Re-index values by position within the point to columns; 0 outside the point and beyond the L positions."""
    (count, width), longest = x.tokens.shape, values.shape[1]
    position = torch.arange(width, device=x.tokens.device) - x.start[:, None]
    row, column = (x.counted & (position < longest)).nonzero(as_tuple=True)
    point_values = values.flatten(0, 1).index_select(0, row * longest + column - x.start[row])
    empty = values.new_zeros(count * width, *values.shape[2:])
    return empty.index_copy(0, row * width + column, point_values).view(count, width, *values.shape[2:])


def concatenate(batches: Sequence[Sequences]) -> Sequences:
    """The rows of all batches in order, padded to the widest."""
    width = max(x.tokens.shape[1] for x in batches)
    tokens = [pad(x.tokens, (0, width - x.tokens.shape[1])) for x in batches]
    return Sequences(torch.cat(tokens), torch.cat([x.start for x in batches]), torch.cat([x.stop for x in batches]))
