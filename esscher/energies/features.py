"""Features of whole sequences, log-linear energies of them, and sums of energies.

    LogLinear              E(x) = -<weights, features(x)>, the global part of a global autoregressive model
    ConditionalLogLinear   E(x | c) = -<weights(c), features(x, c)>, with weights that a network computes from the prompt c
    Sum                    scale_1 E_1(x) + scale_2 E_2(x) + ...

A feature is a name and a function that gives each sequence a real number, from its tokens or from its text; a batch is decoded
once for all (`DecodedBatch`). Letters beside those of `esscher.core.space`: F features, R chosen rows, W positions where a
motif may begin.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from esscher.core.device import on_device_of, place, widest
from esscher.core.randomness import Rng, require_seeded
from esscher.core.space import Sequences, unique_prompts
from esscher.core.target import Energy, flat

Decode = Callable[[list[list[int]]], list[str]]
Column = Sequence[float] | Tensor


class DecodedBatch:
    """A batch of sequences with the texts decoded so far."""

    def __init__(self, x: Sequences):
        self.x = x
        self._texts: list[tuple[Decode, bool, dict[int, str]]] = []

    @cached_property
    def points(self) -> list[list[int]]:
        return self.x.points()

    def rows(self, rows: Sequence[int]) -> Sequences:
        """The chosen rows, which are distinct and in order."""
        return (
            self.x
            if len(rows) == len(self.x)
            else self.x.rows(torch.tensor(rows, dtype=torch.long, device=self.x.tokens.device))
        )

    def texts(self, decode: Decode, rows: Sequence[int], *, with_prompt: bool = False) -> list[str]:
        """The text of each chosen row; only rows that were not decoded before are decoded."""
        known = next((texts for other, whole, texts in self._texts if other == decode and whole == with_prompt), None)
        if known is None:
            known = {}
            self._texts.append((decode, with_prompt, known))
        missing = [row for row in rows if row not in known]
        if missing:
            source, stop = (self.x.tokens.tolist(), self.x.stop.tolist()) if with_prompt else (self.points, None)
            texts = decode([source[row] if stop is None else source[row][: stop[row]] for row in missing])
            if len(texts) != len(missing):
                raise ValueError(f"The decoder gave {len(texts)} texts for {len(missing)} points. Nothing was kept.")
            known.update(zip(missing, texts, strict=True))
        return [known[row] for row in rows]


@runtime_checkable
class BatchFunction(Protocol):
    """A function of sequences that can share a decoded batch with others."""

    def evaluate(self, batch: DecodedBatch, rows: Sequence[int]) -> Column:
        """One number for each of the chosen rows."""
        ...


@dataclass(frozen=True)
class TextFunction:
    """A function of a list of decoded points; `with_prompt` decodes prompt and point together."""

    decode: Decode
    score: Callable[[list[str]], Column]
    with_prompt: bool = False

    def evaluate(self, batch: DecodedBatch, rows: Sequence[int]) -> Column:
        return self.score(batch.texts(self.decode, rows, with_prompt=self.with_prompt))

    def __call__(self, x: Sequences) -> Tensor:
        return _evaluate_all(self, x)


@dataclass(frozen=True)
class TokenFunction:
    """A function of a list of points as token ids, the end symbol included."""

    score: Callable[[list[list[int]]], Column]

    def evaluate(self, batch: DecodedBatch, rows: Sequence[int]) -> Column:
        return self.score([batch.points[row] for row in rows])

    def __call__(self, x: Sequences) -> Tensor:
        return _evaluate_all(self, x)


def _evaluate_all(of: BatchFunction, x: Sequences) -> Tensor:
    return place(torch.as_tensor(of.evaluate(DecodedBatch(x), range(len(x)))).cpu().double(), x.tokens.device)


def evaluate_feature(
    name: str, of: Callable[[Sequences], Tensor], batch: DecodedBatch, rows: Sequence[int]
) -> Float[Tensor, "R"]:
    """The values of a feature for the chosen rows, in float64; each must be one finite number."""
    values = of.evaluate(batch, rows) if isinstance(of, BatchFunction) else of(batch.rows(rows))
    column = widest(torch.as_tensor(values))
    if column.shape != (len(rows),):
        raise ValueError(
            f"Feature {name!r} gave {tuple(column.shape)} values for {len(rows)} sequences. "
            "Nothing was kept; return one for each."
        )
    wrong = ~torch.isfinite(column)
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0, 0])
        raise ValueError(
            f"Feature {name!r} is {float(column.detach()[first])} for {int(wrong.sum())} of {len(rows)} sequences, first in "
            f"row {rows[first]}: {batch.points[rows[first]][:20]}. Nothing was kept; a feature must be finite."
        )
    return place(column, batch.x.tokens.device)


@dataclass(frozen=True)
class Feature:
    """A named real number of each whole sequence; `bounds` are its least and largest value, if they are known. `progress` is,
    for one that a sequence has or has not, how much of it a sequence has, from 0 to 1: what leads a ladder of tilts to it."""

    name: str
    of: Callable[[Sequences], Tensor]
    bounds: tuple[float, float] | None = None
    progress: Callable[[Sequences], Tensor] | None = None


YES_OR_NO = (0.0, 1.0)
"""The bounds of a feature that a sequence has or has not."""


def log_weight_bounds(energy: Energy) -> tuple[float, float] | None:
    """The least and the largest -E(x) that the form of an energy allows, for points drawn or not; None where it does not
    tell."""
    if energy is flat:
        return 0.0, 0.0
    bounds: tuple[float, float] | None = getattr(energy, "log_weight_bounds", None)
    return bounds


def feature_values(features: Sequence[Feature], x: Sequences) -> Float[Tensor, "B F"]:
    """All features of all rows in float64; each row is decoded once for all features with the same decoder."""
    batch, rows = DecodedBatch(x), range(len(x))
    columns = [evaluate_feature(feature.name, feature.of, batch, rows) for feature in features]
    empty = widest(torch.zeros(len(x), 0, device=x.tokens.device))
    return torch.stack(columns, -1) if columns else empty


def require_distinct_names(features: Sequence[Feature]) -> tuple[Feature, ...]:
    """The features, or an error if two have the same name."""
    names = [feature.name for feature in features]
    if len(set(names)) < len(names):
        raise ValueError(f"Each feature needs a name of its own; got {names}.")
    return tuple(features)


class LogLinear(nn.Module):
    """E(x) = -<weights, features(x)>."""

    weights: Tensor

    def __init__(self, features: Sequence[Feature], weights: Float[Tensor, "F"] | None = None):
        super().__init__()
        self.features = require_distinct_names(features)
        weights = torch.zeros(len(features), dtype=torch.float64) if weights is None else weights.double()
        if weights.shape != (len(features),):
            raise ValueError(f"{len(features)} features need as many weights, not {tuple(weights.shape)}.")
        self.weights = nn.Parameter(weights)

    def forward(self, x: Sequences) -> Float[Tensor, "B"]:
        return -feature_values(self.features, x) @ self.weights

    @property
    def log_weight_bounds(self) -> tuple[float, float] | None:
        """The least and the largest -E(x), if all features with a weight have bounds."""
        low, high = 0.0, 0.0
        for feature, weight in zip(self.features, self.weights.tolist(), strict=True):
            if weight != 0 and feature.bounds is None:
                return None
            ends = sorted(weight * end for end in feature.bounds or (0.0, 0.0))
            low, high = low + ends[0], high + ends[1]
        return low, high

    def parts(self, x: Sequences) -> dict[str, Float[Tensor, "B"]]:
        terms = feature_values(self.features, x) * self.weights
        return {feature.name: terms[:, column] for column, feature in enumerate(self.features)}


@runtime_checkable
class Decomposable(Protocol):
    """An energy that is a sum: `parts(x)` are named terms of -E(x), one number a row each, and add up to it."""

    def __call__(self, x: Sequences) -> Tensor: ...

    def parts(self, x: Sequences) -> Mapping[str, Tensor]: ...


def contains(motif: Sequence[int], *, name: str | None = None) -> Feature:
    """1 where the motif occurs in the point, else 0."""
    title, progress = name or f"contains {list(motif)}", partial(_longest_prefix, motif, "anywhere")
    return Feature(title, lambda x: widest(_occurs(x, motif).any(-1)), YES_OR_NO, progress)


def lacks(motif: Sequence[int], *, name: str | None = None) -> Feature:
    """1 where the motif is absent from the point, else 0: the convention of Parshakova et al. (2019)."""
    return Feature(name or f"lacks {list(motif)}", lambda x: 1 - widest(_occurs(x, motif).any(-1)), YES_OR_NO)


def count(motif: Sequence[int], *, name: str | None = None, overlapping: bool = True) -> Feature:
    """How often the motif occurs in the point; unless `overlapping`, counted from left to right without overlaps."""

    def of(x: Sequences) -> Tensor:
        begins = _occurs(x, motif)
        free = torch.zeros(len(begins), dtype=torch.long, device=begins.device)  # the first column after the last occurrence
        for column in range(0 if overlapping else begins.shape[1]):
            begins[:, column] &= free <= column
            free = torch.where(begins[:, column], column + len(motif), free)
        return widest(begins.sum(-1))

    return Feature(name or f"count {list(motif)}", of)


def length(*, name: str = "length") -> Feature:
    """Tokens of the point, the end symbol included."""
    return Feature(name, lambda x: widest(x.lengths))


def starts_with(motif: Sequence[int], *, name: str | None = None) -> Feature:
    """1 where the point begins with the motif, else 0."""
    title, progress = name or f"starts with {list(motif)}", partial(_longest_prefix, motif, "start")
    return Feature(title, lambda x: widest(_occurs(x, motif, "start").any(-1)), YES_OR_NO, progress)


def ends_with(motif: Sequence[int], *, name: str | None = None) -> Feature:
    """1 where the point ends with the motif, else 0; the end symbol is part of the point."""
    return Feature(name or f"ends with {list(motif)}", lambda x: widest(_occurs(x, motif, "end").any(-1)), YES_OR_NO)


def text_feature(name: str, decode: Decode, score: Callable[[str], float], *, with_prompt: bool = False) -> Feature:
    """Any function of one decoded point; `decode` decides what the end symbol becomes (usually nothing)."""
    return text_batch_feature(name, decode, lambda texts: [float(score(text)) for text in texts], with_prompt=with_prompt)


def text_batch_feature(
    name: str, decode: Decode, score: Callable[[list[str]], Column], *, with_prompt: bool = False
) -> Feature:
    """Any function of a list of decoded points, such as a classifier (`cached` if it is slow); `with_prompt` adds the
    prompt."""
    return Feature(name, TextFunction(decode, score, with_prompt))


def token_feature(name: str, score: Callable[[list[int]], float]) -> Feature:
    """Any function of the point as a list of token ids, the end symbol included."""
    return Feature(name, TokenFunction(lambda points: [float(score(point)) for point in points]))


def _occurs(x: Sequences, motif: Sequence[int], where: Literal["anywhere", "start", "end"] = "anywhere") -> Bool[Tensor, "B W"]:
    """True in the columns where the motif begins and lies within the point, or at its start or end."""
    if len(motif) == 0:
        raise ValueError("A motif needs at least one token: the empty one is everywhere.")
    width = max(0, x.tokens.shape[1] - len(motif) + 1)
    column = torch.arange(width, device=x.tokens.device)
    begins = (column >= x.start[:, None]) & (column + len(motif) <= x.stop[:, None])
    if where == "start":
        begins = begins & (column == x.start[:, None])
    elif where == "end":
        begins = begins & (column + len(motif) == x.stop[:, None])
    for offset, token in enumerate(motif if width else ()):
        begins = begins & (x.tokens[:, offset : offset + width] == token)
    return begins


def _longest_prefix(motif: Sequence[int], where: Literal["anywhere", "start"], x: Sequences) -> Float[Tensor, "B"]:
    """The share of the motif that its longest prefix in the point is."""
    found = [_occurs(x, motif[:length], where).any(-1) for length in range(1, len(motif) + 1)]
    return widest(torch.stack(found).sum(0)) / len(motif)


class ConditionalLogLinear(nn.Module):
    """E(x | c) = -<network(c), features(x, c)>; trained by `esscher.objectives.likelihood`. `network` is any module that takes
    prompts (`Sequences` with empty points) and gives a row of F numbers for each, once for each distinct prompt of a batch.
    `vocab_size` is that of the network, if it has one."""

    vocab_size: int

    def __init__(self, features: Sequence[Feature], network: nn.Module):
        super().__init__()
        self.features, self.network = require_distinct_names(features), network
        if isinstance(size := getattr(network, "vocab_size", None), int):
            self.vocab_size = size

    def weights(self, prompts: Sequences) -> Float[Tensor, "B F"]:
        distinct, which = unique_prompts(prompts)
        weights = self.network(distinct)
        if weights.shape != (len(distinct), len(self.features)):
            raise ValueError(
                f"The network gave weights of shape {tuple(weights.shape)} for {len(distinct)} prompts and "
                f"{len(self.features)} features. Nothing was computed; return a row of F numbers for each prompt."
            )
        return widest(weights)[which]

    def forward(self, x: Sequences) -> Float[Tensor, "B"]:
        return -self._terms(x).sum(-1)

    def parts(self, x: Sequences) -> dict[str, Float[Tensor, "B"]]:
        terms = self._terms(x)
        return {feature.name: terms[:, column] for column, feature in enumerate(self.features)}

    def _terms(self, x: Sequences) -> Float[Tensor, "B F"]:
        return feature_values(self.features, x) * self.weights(x)


class PromptNetwork(nn.Module):
    """A GRU over the prompt with a two-layer head, which starts at 0: training starts from the base itself."""

    def __init__(self, vocab_size: int, outputs: int, width: int = 32):
        super().__init__()
        self.vocab_size = vocab_size
        self.embedding = nn.Embedding(vocab_size + 1, width)  # the last one is a BOS symbol, so that no prompt is empty
        self.gru = nn.GRU(width, width, batch_first=True)
        self.hidden, self.head = nn.Linear(width, width), nn.Linear(width, outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, prompts: Sequences) -> Float[Tensor, "B F"]:
        tokens = nn.functional.pad(torch.where(prompts.inside, prompts.tokens, 0), (1, 0), value=self.vocab_size)
        states, _ = self.gru(self.embedding(tokens))
        last = states[torch.arange(len(tokens), device=tokens.device), prompts.start]
        return self.head(torch.tanh(self.hidden(last)))


def prompt_network(vocab_size: int, outputs: int, *, width: int = 32, rng: Rng) -> PromptNetwork:
    """A `PromptNetwork` with initial weights drawn from `rng`, a `SeededRng`."""
    with require_seeded(rng).fork_torch_rng():
        return PromptNetwork(vocab_size, outputs, width)


class Sum(nn.Module):
    """scale_1 E_1(x) + scale_2 E_2(x) + ...; the parameters of parts that are modules are registered under their names."""

    def __init__(self, parts: Mapping[str, Energy], scales: Mapping[str, float] | None = None):
        super().__init__()
        if not parts:
            raise ValueError("A sum of energies needs at least one part; `flat` is the energy that is 0 everywhere.")
        unknown = set(scales or {}) - set(parts)
        if unknown:
            raise ValueError(f"No part named {sorted(unknown)} to scale. The parts are {sorted(parts)}.")
        self.terms = dict(parts)
        self.scales = {name: (scales or {}).get(name, 1.0) for name in parts}
        self.networks = nn.ModuleDict({name: part for name, part in parts.items() if isinstance(part, nn.Module)})
        sizes = {size for part in parts.values() if (size := getattr(part, "vocab_size", None)) is not None}
        if len(sizes) > 1:
            raise ValueError(f"The parts of a sum read different vocabularies: {sorted(sizes)} tokens.")
        if sizes:
            self.vocab_size = sizes.pop()

    def forward(self, x: Sequences) -> Float[Tensor, "B"]:
        return -torch.stack(list(self.parts(x).values())).sum(0)

    @property
    def log_weight_bounds(self) -> tuple[float, float] | None:
        """The least and the largest -E(x), if all parts have bounds."""
        low, high = 0.0, 0.0
        for name, term in self.terms.items():
            bounds = log_weight_bounds(term)
            if bounds is None:
                return None
            ends = sorted(self.scales[name] * end for end in bounds)
            low, high = low + ends[0], high + ends[1]
        return low, high

    def parts(self, x: Sequences) -> dict[str, Float[Tensor, "B"]]:
        return {name: -self.scales[name] * widest(place(term(x), x.tokens.device)) for name, term in self.terms.items()}


def weighted_features(energy: Energy, prompts: Sequences) -> list[tuple[Feature, Float[Tensor, "P"]]]:
    """The features that an energy is known to weigh, each with its weight in -E after each prompt; those of the parts of a sum
    are among them."""
    energy = getattr(energy, "__wrapped__", energy)
    if isinstance(energy, Sum):
        parts = [(energy.scales[name], weighted_features(term, prompts)) for name, term in energy.terms.items()]
        return [(feature, scale * weights) for scale, features in parts for feature, weights in features]
    if isinstance(energy, LogLinear):
        weights = energy.weights.detach().cpu().expand(len(prompts), -1)
    elif isinstance(energy, ConditionalLogLinear):
        with torch.no_grad():
            weights = energy.weights(on_device_of(prompts, energy)).cpu()
    else:
        return []
    return list(zip(energy.features, weights.unbind(-1), strict=True))
