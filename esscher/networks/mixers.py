"""What lets a position see others, interchangeable in one stack: relative attention, the same in chunks, convolutions.

A mixer first makes of every position what others need of it (`known`: keys and values, or the values of a convolution), then
mixes that into new positions. Known positions may have been made earlier, so a stream, a prompt and a step are all the same
to it. A `Sight` says which positions of a pass may see which: those before them, those of their row, or those that come before
them in any order (`Standing`).

Letters beside those of `esscher.space`: W width, H heads, D width of a head, P parts that are known of a position, M known
positions before a pass, K = M + T, S slots of a cache, A biases: two, or four where segments are told apart.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.functional import dropout, one_hot, pad

from esscher.heads.head import laid_out
from esscher.networks.chunks import Chunks
from esscher.networks.relative import relative_attention
from esscher.networks.stepping import AttentionStep, MixerStep
from esscher.networks.transformer_config import TransformerXLConfig

Places = Callable[[int, int], Tensor]
"""The sinusoids of distances from the first down to the last, both included: one row each."""
Marks = tuple[Tensor, Tensor]
"""Of queries and of keys; their products are added to the scores."""


FAR = 2**30  # the rank of what nobody sees


@dataclass(frozen=True)
class Standing:
    """Where queries or keys stand: in the order in which they come to be seen, in the text, and in which segment of it.

    Without a `position` they stand one after the other: the last key in the last place of the pass, and so the last query. Only
    whether two segments differ matters; without segments none do.
    """

    rank: Int[Tensor, "R T"]
    position: Int[Tensor, "R T"] | None = None
    segment: Int[Tensor, "R T"] | None = None


@dataclass(frozen=True)
class Ordered:
    """A query sees the keys whose rank is not above its own; one that sees none is blind, and what it sees is 0.

    `past` keys were known before the pass, whose first place is 0.
    """

    queries: Standing
    keys: Standing
    past: int = 0

    @cached_property
    def hidden(self) -> Bool[Tensor, "R T K"]:
        return self.keys.rank[:, None] > self.queries.rank[:, :, None]

    @cached_property
    def distance(self) -> Int[Tensor, "R T K"] | None:
        """Of each query to each key; None where all stand one after the other."""
        if self.queries.position is None:
            return None
        places = self.keys.position
        if places is None:
            places = torch.arange(self.keys.rank.shape[1], device=self.queries.position.device)[None] - self.past
        return self.queries.position[:, :, None] - places[:, None]


@dataclass(frozen=True)
class Sight:
    """`first` is the number of a pass's first position in its row, `reach` how far back is seen (None: all that is known).

    An encoder's pass is not causal: every position sees those of its row that are `inside`. With `ordered` an order says who
    sees whom. With `turned` the second half of the rows is read from right to left: its distances are the other way round.
    Dropout acts while `learning`.
    """

    places: Places
    learning: bool
    first: int = 0
    reach: int | None = None
    causal: bool = True
    inside: Bool[Tensor, "B T"] | None = None
    ordered: Ordered | None = None
    turned: bool = False
    masks: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def hidden(self, queries: int, keys: int, device: torch.device) -> Bool[Tensor, "R T K"] | None:
        """True where a key, the last of which is the last query, is not seen by a query; None where all are."""
        if self.inside is not None:
            return ~self.inside[:, None].expand(-1, queries, -1)
        return self._window(queries, keys, device) if self.causal else None

    def _window(self, queries: int, keys: int, device: torch.device) -> Bool[Tensor, "1 T K"]:
        """True where a key is after its query or out of reach; kept for other layers."""
        size = (queries, keys)
        if size not in self.masks:
            distance = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
            hidden = distance < 0
            self.masks[size] = (hidden if self.reach is None else hidden | (distance > self.reach))[None]
        return self.masks[size]


class Mixer(Protocol):
    """What a block asks of its mixer; all are `nn.Module`s."""

    def keeps(self, *, learning: bool) -> int | None:
        """How many positions before a pass it can make use of; None is all."""
        ...

    def known(self, x: Float[Tensor, "B T W"]) -> Float[Tensor, "P H B T D"]:
        """What others need of each position."""
        ...

    def forward(
        self, x: Float[Tensor, "B T W"], known: Float[Tensor, "P H B K D"], biases: Float[Tensor, "2 H D"], sight: Sight
    ) -> Float[Tensor, "B T W"]:
        """What each of the last positions sees of the known ones."""
        ...

    def step(self, slots: int, steps: int, biases: Float[Tensor, "2 H D"], places: Places) -> MixerStep:
        """The same for one position at a time, by the weights as they are now; for so many slots at most, and steps to come."""
        ...


class RelativeAttention(nn.Module):
    """Attention to everything within reach; or, with a `chunk`, to the chunk of a position and the one before it
    (in an encoder the one after it too), which grows linearly with the length."""

    def __init__(self, config: TransformerXLConfig, chunk: int | None = None):
        super().__init__()
        self.config, self.chunk, self.heads = config, chunk, config.heads
        inner = config.heads * (config.head_width or config.width // config.heads)
        self.ask = nn.Linear(config.width, inner, bias=False)
        self.remember = nn.Linear(config.width, 2 * inner, bias=False)
        self.place = nn.Linear(config.width, inner, bias=False)
        self.mix = nn.Linear(inner, config.width, bias=False)

    def keeps(self, *, learning: bool) -> int | None:
        if self.chunk is not None:
            return 2 * self.chunk - 1
        return self.config.memory if learning else self.config.sight

    def known(self, x: Float[Tensor, "B T W"]) -> Float[Tensor, "2 H B T D"]:
        return self.remember(x).unflatten(-1, (2, self.heads, -1)).permute(2, 3, 0, 1, 4)

    def forward(
        self, x: Float[Tensor, "B T W"], known: Float[Tensor, "2 H B K D"], biases: Float[Tensor, "A H D"], sight: Sight
    ) -> Float[Tensor, "B T W"]:
        query = self.ask(x).unflatten(-1, (self.heads, -1)).permute(2, 0, 1, 3)
        if sight.ordered is not None:
            seen = self._in_order(query, known, biases, sight, sight.ordered)
        else:
            seen = (self._all if self.chunk is None else self._near)(query, known, biases, sight)
        return self.mix(seen.permute(1, 2, 0, 3).flatten(2))

    def _all(self, query: Tensor, known: Tensor, biases: Tensor, sight: Sight) -> Float[Tensor, "H B T D"]:
        queries, keys = query.shape[2], known.shape[3]
        bounds = (keys - 1, 0 if sight.causal else 1 - queries)
        return self._attend(query, known, bounds, biases, sight.hidden(queries, keys, query.device), sight)

    def _near(self, query: Tensor, known: Tensor, biases: Tensor, sight: Sight) -> Float[Tensor, "H B T D"]:
        """Hidden are positions that are not there, and later ones where the pass is causal; a dummy query sees all."""
        size, device = self.chunk or 1, query.device
        chunks = Chunks(size, sight.first, query.shape[2], known.shape[3] - query.shape[2], not sight.causal)
        there = torch.ones(1, known.shape[3], dtype=torch.bool, device=device) if sight.inside is None else sight.inside
        hidden = ~chunks.around(there[:, :, None], False).mT.expand(-1, size, -1)
        if sight.causal:
            distance = torch.arange(size, 2 * size, device=device)[:, None] - torch.arange(2 * size, device=device)
            hidden = hidden | (distance < 0)
        mask = hidden & ~hidden.all(-1, keepdim=True)
        bounds = (2 * size - 1, 0 if sight.causal else 1 - 2 * size)
        return chunks.back(self._attend(chunks.own(query), chunks.around(known), bounds, biases, mask, sight))

    def _in_order(
        self, query: Tensor, known: Tensor, biases: Tensor, sight: Sight, ordered: Ordered
    ) -> Float[Tensor, "H B T D"]:
        """Attention under an order, in chunks where keys stand one after the other; elsewhere a chunk is a mask."""
        marks, distance = _marks(query, biases, ordered), ordered.distance
        if self.chunk is not None and ordered.keys.position is None:
            return self._near_in_order(query, known, biases, sight, ordered, marks)
        hidden, index, bounds = ordered.hidden, None, (known.shape[3] - 1, 1 - query.shape[2])
        if distance is not None:
            bounds = (int(distance.max()), int(distance.min()))
            index = bounds[0] - distance
        if self.chunk is not None:
            places, others = ordered.queries.position, ordered.keys.position
            assert places is not None and others is not None
            hidden = hidden | ((places[:, :, None] // self.chunk - others[:, None] // self.chunk).abs() > 1)
        return self._sighted(query, known, bounds, biases, hidden, sight, index, marks)

    def _near_in_order(
        self, query: Tensor, known: Tensor, biases: Tensor, sight: Sight, ordered: Ordered, marks: Marks | None
    ) -> Float[Tensor, "H B T D"]:
        """Queries that do not stand one after the other are put where they stand, among dummies."""
        size, place, rank = self.chunk or 1, ordered.queries.position, ordered.queries.rank[..., None]
        chunks = Chunks(size, sight.first, known.shape[3] - ordered.past, ordered.past, ahead=True)
        if place is not None:
            query, rank = _put(query, place, chunks.queries), _put(rank, place, chunks.queries, FAR)
            marks = None if marks is None else (_put(marks[0], place, chunks.queries), marks[1])
        mine, theirs = chunks.own(rank, FAR), chunks.around(ordered.keys.rank[..., None], FAR)
        near = None if marks is None else (chunks.own(marks[0]), chunks.around(marks[1]))
        bounds = (2 * size - 1, 1 - 2 * size)
        seen = self._sighted(chunks.own(query), chunks.around(known), bounds, biases, theirs.mT > mine, sight, None, near)
        seen = chunks.back(seen)
        return seen if place is None else seen.gather(2, place[:, :, None].expand(len(seen), -1, -1, seen.shape[3]))

    def _sighted(
        self,
        query: Tensor,
        known: Tensor,
        bounds: tuple[int, int],
        biases: Tensor,
        hidden: Bool[Tensor, "M T K"],
        sight: Sight,
        index: Tensor | None,
        marks: Marks | None,
    ) -> Float[Tensor, "H N T D"]:
        """What queries see of what is not hidden, and 0 where all is."""
        blind = hidden.all(-1, keepdim=True)
        if not bool(blind.any()):
            return self._attend(query, known, bounds, biases, hidden, sight, index, marks)
        seen = self._attend(query, known, bounds, biases, hidden & ~blind, sight, index, marks)
        return seen.view(len(seen), -1, len(blind), *seen.shape[2:]).masked_fill(blind, 0.0).flatten(1, 2)

    def _places(self, sight: Sight, most: int, least: int) -> Float[Tensor, "H R D"]:
        return self.place(sight.places(most, least)).unflatten(-1, (self.heads, -1)).transpose(0, 1)

    def _attend(
        self,
        query: Float[Tensor, "H N T D"],
        known: Float[Tensor, "2 H N K D"],
        bounds: tuple[int, int],
        biases: Tensor,
        mask: Tensor | None,
        sight: Sight,
        index: Tensor | None = None,
        marks: Marks | None = None,
    ) -> Float[Tensor, "H N T D"]:
        """Attention with distances between the bounds."""
        (key, value), keep, most, least = known, None, *bounds
        if sight.learning and self.config.attention_dropout:
            keep = dropout(query.new_ones(*query.shape[:3], key.shape[2]), self.config.attention_dropout)
        if not sight.turned:
            return relative_attention(query, key, value, self._places(sight, most, least), biases[:2], mask, keep, index, marks)
        parts, (rows, forward) = [], (query.shape[1], query.shape[1] // 2)
        for some, places in (
            (slice(forward), self._places(sight, most, least)),
            (slice(forward, rows), self._places(sight, -most, -least)),
        ):
            of = [None if one is None else one[some] if len(one) == rows else one for one in (mask, index)]
            mine = None if marks is None else (marks[0][:, some], marks[1][some])
            part = query[:, some], key[:, some], value[:, some]
            parts.append(
                relative_attention(*part, places, biases[:2], of[0], None if keep is None else keep[:, some], of[1], mine)
            )
        return torch.cat(parts, 1)

    def step(self, slots: int, steps: int, biases: Float[Tensor, "2 H D"], places: Places) -> AttentionStep:
        most = slots if self.chunk is None else min(slots, 2 * self.chunk)
        if self.chunk is None and self.config.sight is not None:
            most = min(slots, self.config.sight + 1)
        by_distance = self.place(places(most - 1, 0)).unflatten(-1, (self.heads, -1)).permute(1, 2, 0).contiguous()
        (content, place), scale = biases, biases.shape[-1] ** -0.5
        bias = pad(content.flatten() * scale, (0, len(self.remember.weight)))
        weight = laid_out(torch.cat([self.ask.weight * scale, self.remember.weight]), steps).T
        place_bias = (place - content)[:, None] * scale @ by_distance
        return AttentionStep((bias, weight), laid_out(self.mix.weight, steps).T, by_distance, place_bias, self.chunk)


def _marks(query: Float[Tensor, "H B T D"], biases: Float[Tensor, "A H D"], ordered: Ordered) -> Marks | None:
    """What adds (q + s) . a to the score of a pair of two segments, s and a being the third and fourth bias.

    Other pairs have nothing added: a score that all keys have alike changes no share.
    """
    mine, theirs = ordered.queries.segment, ordered.keys.segment
    if mine is None or theirs is None:
        return None
    kinds = int(max(mine.max(), theirs.max())) + 1
    if kinds == 1:
        return None
    apart = torch.einsum("hbtd,hd->hbt", query + biases[2, :, None, None], biases[3])
    return -apart[..., None] * one_hot(mine, kinds), one_hot(theirs, kinds).to(query.dtype)


def _put(x: Shaped[Tensor, "*S B T W"], place: Int[Tensor, "B T"], length: int, fill: int = 0) -> Shaped[Tensor, "*S B L W"]:
    """Each column in its place of a row of this length."""
    spread = place[:, :, None].expand(x.shape)
    return x.new_full((*x.shape[:-2], length, x.shape[-1]), fill).scatter(-2, spread, x)
