"""Windows of a stream that hold two segments (Yang et al. 2019): what goes on in the stream, then A SEP B SEP CLS.

    |  `fresh` tokens that go on  |  A  SEP  B  SEP  CLS  |        the next window goes on after the fresh tokens

A follows the fresh tokens; B follows A, or, in half of the windows, stands anywhere else in the stream. A and B share what is
left of the window, A any part of it. The symbols are those of the network, beside the vocabulary.

Letters: B rows, C tokens of a column of the stream, L tokens of a window.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.randomness import Rng

SYMBOLS = 3  # two separators and a summary


@dataclass(frozen=True)
class Windows:
    """Windows of `length` tokens, `fresh` of which the next one does not hold again."""

    length: int
    fresh: int
    separator: int
    summary: int

    def __post_init__(self) -> None:
        if self.fresh < 1 or self.shared < 2:
            raise ValueError(
                f"A window of {self.length} tokens, {self.fresh} of which go on in the stream, has {self.shared} left for two "
                f"segments beside their {SYMBOLS} symbols; at least 2 are needed."
            )

    @property
    def shared(self) -> int:
        """Tokens of A and B together."""
        return self.length - self.fresh - SYMBOLS

    def rows(self, columns: Int[Tensor, "B C"], first: int, *, rng: Rng) -> Int[Tensor, "B {self.length}"]:
        """The window of each column whose fresh tokens begin at `first`."""
        count, last = len(columns), first + self.fresh
        if last + self.shared > columns.shape[1]:
            raise ValueError(f"A window at {first} ends after the last of {columns.shape[1]} tokens of a column.")
        split = (rng.categorical(torch.zeros(1, self.shared - 1), count)[0] + 1).tolist()
        follows = rng.accept(torch.full((count,), 0.5).log()).tolist()
        whose = rng.categorical(torch.zeros(1, count), count)[0].tolist()
        where = rng.categorical(torch.zeros(1, columns.shape[1] - self.shared + 1), count)[0].tolist()
        separator, summary = (columns.new_tensor([one]) for one in (self.separator, self.summary))
        rows = []
        for row, (size, goes_on, other, place) in enumerate(zip(split, follows, whose, where, strict=True)):
            after = columns[row, last : last + self.shared]
            second = after[size:] if goes_on else columns[other, place : place + self.shared - size]
            rows.append(torch.cat([columns[row, first:last], after[:size], separator, second, separator, summary]))
        return torch.stack(rows)
