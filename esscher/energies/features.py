"""Log-linear energies: E(x) = -<weights, features(x)>, the global part of a global autoregressive model.

A feature is a name and a function of whole sequences that gives any real number a row. Features of tokens
need no decoding (`contains`, `starts_with`, `length`); features of text are given the decoded point.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from esscher.space import Sequences


@dataclass(frozen=True)
class Feature:
    """A named real number of each whole sequence."""

    name: str
    of: Callable[[Sequences], Tensor]


def values(features: Sequence[Feature], x: Sequences) -> Float[Tensor, "B F"]:
    """All features of all rows in float64; a value that is not finite, or a wrong number of them, is an error."""
    columns = []
    for feature in features:
        column = feature.of(x)
        if column.shape != (len(x),):
            raise ValueError(
                f"Feature {feature.name!r} gave {tuple(column.shape)} values for {len(x)} sequences. Nothing was kept; "
                f"return one number for each sequence."
            )
        wrong = ~torch.isfinite(column.double())
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0, 0])
            raise ValueError(
                f"Feature {feature.name!r} is {float(column[row])} for {int(wrong.sum())} of {len(x)} sequences, first in "
                f"row {row}: {x.rows(slice(row, row + 1)).points()[0][:20]}. Nothing was kept; a feature must be finite."
            )
        columns.append(column.double())
    return torch.stack(columns, -1) if columns else torch.zeros(len(x), 0, dtype=torch.float64)


class LogLinear(nn.Module):
    """E(x) = -<weights, features(x)>."""

    weights: Tensor

    def __init__(self, features: Sequence[Feature], weights: Float[Tensor, "F"] | None = None):
        super().__init__()
        names = [feature.name for feature in features]
        if len(set(names)) < len(names):
            raise ValueError(f"Each feature needs a name of its own; got {names}.")
        self.features = tuple(features)
        weights = torch.zeros(len(names), dtype=torch.float64) if weights is None else weights.double()
        if weights.shape != (len(names),):
            raise ValueError(f"{len(names)} features need as many weights, not {tuple(weights.shape)}.")
        self.weights = nn.Parameter(weights)

    def forward(self, x: Sequences) -> Float[Tensor, "B"]:
        return -values(self.features, x) @ self.weights


def contains(motif: Sequence[int], *, name: str | None = None) -> Feature:
    """1 where the motif appears in the point, else 0."""
    return Feature(name or f"contains {list(motif)}", lambda x: _occurs(x, motif).any(-1).double())


def lacks(motif: Sequence[int], *, name: str | None = None) -> Feature:
    """1 where the motif is absent from the point, else 0: the convention of the paper on global autoregressive models."""
    return Feature(name or f"lacks {list(motif)}", lambda x: 1 - _occurs(x, motif).any(-1).double())


def count(motif: Sequence[int], *, name: str | None = None) -> Feature:
    """How often the motif appears in the point, overlaps counted."""
    return Feature(name or f"count {list(motif)}", lambda x: _occurs(x, motif).sum(-1).double())


def length(*, name: str = "length") -> Feature:
    """Tokens of the point, the end symbol included."""
    return Feature(name, lambda x: x.lengths.double())


def starts_with(motif: Sequence[int], *, name: str | None = None) -> Feature:
    """1 where the point begins with the motif, else 0."""

    def of(x: Sequences) -> Tensor:
        found = _occurs(x, motif)
        if found.shape[1] == 0:
            return torch.zeros(len(x), dtype=torch.float64)
        first = found.gather(1, x.start.clamp(max=found.shape[1] - 1)[:, None])[:, 0]
        return (first & (x.start < found.shape[1])).double()

    return Feature(name or f"starts with {list(motif)}", of)


def of_text(name: str, decode: Callable[[list[list[int]]], list[str]], judge: Callable[[str], float]) -> Feature:
    """Any function of the decoded point; the end symbol is decoded as `decode` does (usually to nothing)."""
    return Feature(name, lambda x: torch.tensor([float(judge(text)) for text in decode(x.points())], dtype=torch.float64))


def _occurs(x: Sequences, motif: Sequence[int]) -> Tensor:
    """[B, T - len + 1], True where the motif begins; it lies within the point."""
    if len(motif) == 0:
        raise ValueError("A motif needs at least one token: the empty one is everywhere.")
    width = x.tokens.shape[1] - len(motif) + 1
    if width <= 0:
        return torch.zeros(len(x), 0, dtype=torch.bool, device=x.tokens.device)
    place = torch.arange(width, device=x.tokens.device)
    found = (place >= x.start[:, None]) & (place + len(motif) <= x.stop[:, None])
    for offset, token in enumerate(motif):
        found = found & (x.tokens[:, offset : offset + width] == token)
    return found
