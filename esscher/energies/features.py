"""Log-linear energies: E(x) = -<weights, features(x)>, the global part of a global autoregressive model.

A feature is a name and a function of whole sequences that gives any real number a row. Features of tokens
need no decoding (`contains`, `starts_with`, `length`, `of_tokens`); features of text (`of_text`, `of_texts`) are given
the decoded point. Features that can be written down are in `esscher.energies.declared`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from esscher.energies.reading import Column, Decode, OfText, OfTokens, Reading, read_column
from esscher.space import Sequences


@dataclass(frozen=True)
class Feature:
    """A named real number of each whole sequence."""

    name: str
    of: Callable[[Sequences], Tensor]


def values(features: Sequence[Feature], x: Sequences) -> Float[Tensor, "B F"]:
    """All features of all rows in float64; a value that is not finite, or a wrong number of them, is an error.

    Features of text that share a decoder share its work: a row is decoded once.
    """
    reading, rows = Reading(x), range(len(x))
    columns = [read_column(feature.name, feature.of, reading, rows) for feature in features]
    empty = torch.zeros(len(x), 0, dtype=torch.float64, device=x.tokens.device)
    return torch.stack(columns, -1) if columns else empty


def told_apart(features: Sequence[Feature]) -> tuple[Feature, ...]:
    """The features, or an error where two have one name."""
    names = [feature.name for feature in features]
    if len(set(names)) < len(names):
        raise ValueError(f"Each feature needs a name of its own; got {names}.")
    return tuple(features)


class LogLinear(nn.Module):
    """E(x) = -<weights, features(x)>."""

    weights: Tensor

    def __init__(self, features: Sequence[Feature], weights: Float[Tensor, "F"] | None = None):
        super().__init__()
        self.features = told_apart(features)
        weights = torch.zeros(len(features), dtype=torch.float64) if weights is None else weights.double()
        if weights.shape != (len(features),):
            raise ValueError(f"{len(features)} features need as many weights, not {tuple(weights.shape)}.")
        self.weights = nn.Parameter(weights)

    def forward(self, x: Sequences) -> Float[Tensor, "B"]:
        return -values(self.features, x) @ self.weights

    def parts(self, x: Sequences) -> dict[str, Float[Tensor, "B"]]:
        """What each feature adds to -E(x)."""
        added = values(self.features, x) * self.weights
        return {feature.name: added[:, place] for place, feature in enumerate(self.features)}


@runtime_checkable
class Explains(Protocol):
    """An energy that says what it is made of: `parts(x)` are named terms of -E(x), one number a row, and add up to it."""

    def __call__(self, x: Sequences) -> Tensor: ...

    def parts(self, x: Sequences) -> Mapping[str, Tensor]: ...


def contains(motif: Sequence[int], *, name: str | None = None) -> Feature:
    """1 where the motif appears in the point, else 0."""
    return Feature(name or f"contains {list(motif)}", lambda x: _occurs(x, motif).any(-1).double())


def lacks(motif: Sequence[int], *, name: str | None = None) -> Feature:
    """1 where the motif is absent from the point, else 0: the convention of the paper on global autoregressive models."""
    return Feature(name or f"lacks {list(motif)}", lambda x: 1 - _occurs(x, motif).any(-1).double())


def count(motif: Sequence[int], *, name: str | None = None, overlapping: bool = True) -> Feature:
    """How often the motif appears in the point; unless `overlapping`, from left to right without overlaps."""

    def of(x: Sequences) -> Tensor:
        found = _occurs(x, motif)
        return (found if overlapping else _apart(found, len(motif))).sum(-1).double()

    return Feature(name or f"count {list(motif)}", of)


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


def ends_with(motif: Sequence[int], *, name: str | None = None) -> Feature:
    """1 where the motif stands last in the point, else 0; the end symbol is part of the point."""

    def of(x: Sequences) -> Tensor:
        place = torch.arange(max(0, x.tokens.shape[1] - len(motif) + 1), device=x.tokens.device)
        return (_occurs(x, motif) & (place + len(motif) == x.stop[:, None])).any(-1).double()

    return Feature(name or f"ends with {list(motif)}", of)


def of_text(name: str, decode: Decode, judge: Callable[[str], float], *, with_prompt: bool = False) -> Feature:
    """Any function of the decoded point, one at a time; the end symbol is decoded as `decode` does (usually to nothing)."""
    return of_texts(name, decode, lambda texts: [float(judge(text)) for text in texts], with_prompt=with_prompt)


def of_texts(name: str, decode: Decode, judge: Callable[[list[str]], Column], *, with_prompt: bool = False) -> Feature:
    """Any function of decoded points, many at a time, such as a classifier; wrap it in `cached` if it is dear.

    `with_prompt` hands it prompt and point, decoded together.
    """
    return Feature(name, OfText(decode, judge, with_prompt))


def of_tokens(name: str, judge: Callable[[list[int]], float]) -> Feature:
    """Any function of the point as a list of token numbers, the end symbol included."""
    return Feature(name, OfTokens(lambda points: [float(judge(point)) for point in points]))


def _apart(found: Bool[Tensor, "B W"], length: int) -> Bool[Tensor, "B W"]:
    """Of the places where a motif begins, those left when each takes `length` places, from left to right."""
    kept, free = torch.zeros_like(found), torch.zeros(len(found), dtype=torch.long, device=found.device)
    for place in range(found.shape[1]):
        kept[:, place] = found[:, place] & (free <= place)
        free = torch.where(kept[:, place], place + length, free)
    return kept


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
