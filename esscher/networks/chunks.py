"""Rows laid out in chunks, each beside its neighbours, for attention that looks no further than them.

Positions of a pass are numbered from `first` in their row; those known before it are its past. Rows are laid out by chunks of
their own positions, with dummies before the first and after the last one.

Letters beside those of `esscher.space`: C positions of a chunk, J = 2 C or 3 C those of it and its neighbours, N rows times
chunks.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Chunks:
    """How so many queries after a `past` are laid out; `ahead` is for a pass that sees the next chunk, too."""

    size: int
    first: int
    queries: int
    past: int
    ahead: bool

    @property
    def lead(self) -> int:
        """Dummies before the first query."""
        return self.first % self.size

    @property
    def count(self) -> int:
        """Chunks that hold all queries."""
        return -(-(self.lead + self.queries) // self.size)

    @property
    def _tail(self) -> int:
        return self.count * self.size - self.lead - self.queries

    def own(self, x: Shaped[Tensor, "*S B T W"], fill: Any = 0) -> Shaped[Tensor, "*S N C W"]:
        """What is told of queries, by chunks."""
        x = pad(x, (0, 0, self.lead, self._tail), value=fill)
        return x.reshape(*x.shape[:-3], -1, self.size, x.shape[-1])

    def around(self, x: Shaped[Tensor, "*S B K W"], fill: Any = 0) -> Shaped[Tensor, "*S N J W"]:
        """What is told of keys, by chunks, each with its neighbours."""
        after = self.size if self.ahead else 0
        x = pad(x, (0, 0, self.size + self.lead - self.past, self._tail + after), value=fill)  # a negative number cuts
        pieces = x.reshape(*x.shape[:-2], -1, self.size, x.shape[-1])
        near = [pieces.narrow(-3, one, self.count) for one in range(3 if self.ahead else 2)]
        return torch.cat(near, -2).flatten(-4, -3)

    def back(self, seen: Shaped[Tensor, "*S N C W"]) -> Shaped[Tensor, "*S B T W"]:
        """The rows again."""
        rows = seen.reshape(*seen.shape[:-3], -1, self.count * self.size, seen.shape[-1])
        return rows.narrow(-2, self.lead, self.queries)
