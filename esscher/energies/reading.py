"""How features read a batch: together, so that each row is decoded once, however many features look at its text.

A feature's function takes `Sequences`. One that is a `Reads` as well is given the `Reading` of the batch instead, which
it shares with the other features, and the rows it is asked about.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.space import Sequences

Decode = Callable[[list[list[int]]], list[str]]
Column = Sequence[float] | Tensor


class Reading:
    """A batch, with what was made of its rows so far."""

    def __init__(self, x: Sequences):
        self.x = x
        self._texts: list[tuple[Decode, bool, dict[int, str]]] = []

    @cached_property
    def points(self) -> list[list[int]]:
        return self.x.points()

    @cached_property
    def wholes(self) -> list[list[int]]:
        """Prompt and point of each row, joined."""
        return [row[:stop] for row, stop in zip(self.x.tokens.tolist(), self.x.stop.tolist(), strict=True)]

    def rows(self, rows: Sequence[int]) -> Sequences:
        """The chosen rows, which are different and in order."""
        return self.x if len(rows) == len(self.x) else self.x.rows(torch.tensor(rows, dtype=torch.long))

    def texts(self, decode: Decode, rows: Sequence[int], *, with_prompt: bool = False) -> list[str]:
        """The text of each chosen row; only rows that no one asked for before are decoded."""
        known = self._known(decode, with_prompt)
        missing = [row for row in rows if row not in known]
        if missing:
            source = self.wholes if with_prompt else self.points
            found = decode([source[row] for row in missing])
            if len(found) != len(missing):
                raise ValueError(f"The decoder gave {len(found)} texts for {len(missing)} points. Nothing was kept.")
            known.update(zip(missing, found, strict=True))
        return [known[row] for row in rows]

    def _known(self, decode: Decode, with_prompt: bool) -> dict[int, str]:
        for other, whole, texts in self._texts:
            if other == decode and whole == with_prompt:
                return texts
        self._texts.append((decode, with_prompt, {}))
        return self._texts[-1][2]


@runtime_checkable
class Reads(Protocol):
    """A function of sequences that can share a reading with others."""

    def read(self, reading: Reading, rows: Sequence[int]) -> Column:
        """One number for each of the chosen rows."""
        ...


@dataclass(frozen=True)
class OfText:
    """A function of decoded points, many at a time; `with_prompt` decodes prompt and point together."""

    decode: Decode
    judge: Callable[[list[str]], Column]
    with_prompt: bool = False

    def read(self, reading: Reading, rows: Sequence[int]) -> Column:
        return self.judge(reading.texts(self.decode, rows, with_prompt=self.with_prompt))

    def __call__(self, x: Sequences) -> Tensor:
        return torch.as_tensor(self.read(Reading(x), range(len(x))), dtype=torch.float64)


@dataclass(frozen=True)
class OfTokens:
    """A function of points as lists of token numbers, many at a time; the end symbol is one of them."""

    judge: Callable[[list[list[int]]], Column]

    def read(self, reading: Reading, rows: Sequence[int]) -> Column:
        return self.judge([reading.points[row] for row in rows])

    def __call__(self, x: Sequences) -> Tensor:
        return torch.as_tensor(self.read(Reading(x), range(len(x))), dtype=torch.float64)


def read_column(name: str, of: Callable[[Sequences], Tensor], reading: Reading, rows: Sequence[int]) -> Float[Tensor, "R"]:
    """What the feature of this name gives the chosen rows, in float64; an error unless it is one finite number each."""
    found = of.read(reading, rows) if isinstance(of, Reads) else of(reading.rows(rows))
    column = torch.as_tensor(found).double()
    if column.shape != (len(rows),):
        raise ValueError(
            f"Feature {name!r} gave {tuple(column.shape)} values for {len(rows)} sequences. Nothing was kept; "
            f"return one number for each sequence."
        )
    wrong = ~torch.isfinite(column)
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0, 0])
        raise ValueError(
            f"Feature {name!r} is {float(column.detach()[first])} for {int(wrong.sum())} of {len(rows)} sequences, first in "
            f"row {rows[first]}: {reading.points[rows[first]][:20]}. Nothing was kept; a feature must be finite."
        )
    return column.to(reading.x.tokens.device)
