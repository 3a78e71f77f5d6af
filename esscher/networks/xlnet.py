"""XLNet (Yang et al. 2019): layers of a Transformer-XL that predict tokens in any order of a text's positions.

Two streams share all weights. The content of a position sees its own token; its query, which begins as one learnt vector, sees
where it stands and the content of what comes before it in the order, never its own token. Queries are made of what is predicted
alone. As a network it reads from left to right, or in another order (`esscher.bases.in_order`): column t then is the token that
comes t-th in the order, wherever it stands. Before the text stands an opening symbol that all see. Beside the tokens and the
opening it reads symbols that it never predicts: a separator after each segment of a text, a summary at its end, a blank for a
token that is hidden (`SYMBOLS`). Segments are counted by their separators.

Letters beside those of `esscher.space`: W width, H heads, D width of a head, L inputs of a pass, M inputs before it, K = M + L,
Q queries, S slots of a cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from esscher.heads.head import Headed
from esscher.networks.mixers import FAR, Ordered, Sight, Standing
from esscher.networks.opening import opened
from esscher.networks.output import build_head
from esscher.networks.transformer_config import XLNetConfig
from esscher.networks.transformer_xl import INITIAL_STD, XLBlock, dropped, last_of, table_of_places
from esscher.space import Sequences

SYMBOLS = ("opening", "separator", "summary", "blank")
"""What is read beside the tokens, numbered after them."""

Order = Int[Tensor, "N"] | None
"""The position that comes t-th, for each t; None is from left to right, however long."""


@dataclass(frozen=True)
class Arrangement:
    """In which order the inputs of a pass are seen, and which of them are predicted, by which stream.

    An input sees those whose rank is not above its own; the query of one those whose rank is below. With `turned` the second
    half of the rows runs from right to left. Segments, if not given, are counted by their separators.
    """

    rank: Int[Tensor, "B L"]
    targets: Int[Tensor, "B Q"]
    stream: Literal["query", "content"] = "query"
    turned: bool = False
    segment: Int[Tensor, "B L"] | None = None


@dataclass(frozen=True)
class XLNetState:
    """What each layer knows of the inputs read: slot t of a row is what it read t-th."""

    caches: tuple[Float[Tensor, "2 H B S D"], ...]
    length: Int[Tensor, "B"]  # slots that each row has filled
    places: Int[Tensor, "U"]  # where the input of each slot stands


class XLNetNetwork(Headed):
    """A stack of blocks with two streams."""

    max_positions = None

    def __init__(self, config: XLNetConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.opening, self.separator, self.summary, self.blank = (vocab_size + number for number in range(len(SYMBOLS)))
        self.embedding = nn.Embedding(vocab_size + len(SYMBOLS), config.width)
        self.unseen = nn.Parameter(torch.empty(config.width))
        self.head = build_head(config, vocab_size, config.width, self.embedding if config.tied else None)
        self.blocks = nn.ModuleList([XLBlock(config.layer, layer) for layer in range(config.layers)])
        self.biases = nn.Parameter(
            torch.empty(config.layers, 4, config.heads, config.head_width or config.width // config.heads)
        )
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(weight)
            elif ".norms." in name:
                nn.init.ones_(weight)
            else:
                nn.init.normal_(weight, std=INITIAL_STD)

    def hidden(self, x: Sequences, order: Order = None) -> Float[Tensor, "B T W"]:
        return self._in_turn(opened(x, self.opening)[:, :-1], None, 0, order)[0]

    def surveyed(self, x: Sequences) -> Float[Tensor, "B U W"]:
        """The vectors of the opening symbol and of each token when all of a row is seen from everywhere: an encoder's."""
        inputs = opened(x, self.opening)
        inside = torch.arange(inputs.shape[1], device=inputs.device) <= x.stop[:, None]
        rank = torch.where(inside, 0, FAR)
        return self._streams(inputs, None, Standing(rank, None, self._segments(inputs)), None, self._sight(self.training))[0]

    def predicted(
        self, inputs: Int[Tensor, "B L"], arrangement: Arrangement, memory: tuple[Tensor, ...] | None, keeps: int
    ) -> tuple[Float[Tensor, "B Q W"], tuple[Tensor, ...]]:
        """The vector of each target, and the memory that then holds the first `keeps` inputs, too."""
        first, *past = self.open(len(inputs)) if memory is None else memory
        segment, targets = arrangement.segment, arrangement.targets
        segment = self._segments(inputs) if segment is None else segment
        standing = Standing(arrangement.rank, None, segment)
        sight = replace(self._sight(self.training, int(first[0])), turned=arrangement.turned)
        asks = None
        if arrangement.stream == "query":
            own = None if segment is None else segment.gather(1, targets)
            asks = Standing(arrangement.rank.gather(1, targets) - 1, targets, own)
        content, queries, read = self._streams(inputs, past, standing, asks, sight)
        found = content.gather(1, targets[:, :, None].expand(-1, -1, content.shape[2])) if queries is None else queries
        return found, self._remembered(first, past, read, keeps)

    def open(self, rows: int) -> tuple[Tensor, ...]:
        """How many inputs were read of each stream, and no input of any layer."""
        inputs = [self.unseen.new_empty(rows, 0, self.config.width) for _ in self.blocks]
        return (torch.zeros(rows, dtype=torch.long, device=self.unseen.device), *inputs)

    def read(self, inputs: Int[Tensor, "B L"], memory: tuple[Tensor, ...]) -> tuple[Float[Tensor, "B L W"], tuple[Tensor, ...]]:
        first, *past = memory
        hidden, read = self._in_turn(inputs, past, int(first[0]) if len(first) else 0, None)
        return hidden, self._remembered(first, past, read, inputs.shape[1])

    def begin(self, prompts: Sequences, room: int, order: Order = None) -> tuple[Float[Tensor, "B V"], XLNetState]:
        inputs, length = opened(prompts, self.opening), prompts.start + 1
        slots = inputs.shape[1] - 1 + room
        places = self._places(order, slots + 1)
        state = XLNetState(tuple(self._empty(len(inputs), slots) for _ in self.blocks), length, places)
        column = torch.arange(inputs.shape[1], device=inputs.device)[None].expand(len(inputs), -1)
        return self._stepped(state, inputs, column)

    def advance(self, state: XLNetState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], XLNetState]:
        column = state.length[:, None]
        if len(token) and int(column.max()) >= state.caches[0].shape[3]:
            raise ValueError(f"The state is full: it had room for {int(column.max())} positions, one for each token to come.")
        return self._stepped(replace(state, length=state.length + 1), token[:, None], column)

    def select(self, state: XLNetState, index: Int[Tensor, "K"]) -> XLNetState:
        caches = tuple(cache.index_select(2, index) for cache in state.caches)
        return XLNetState(caches, state.length[index], state.places)

    def _stepped(
        self, state: XLNetState, inputs: Int[Tensor, "B L"], column: Int[Tensor, "B L"]
    ) -> tuple[Float[Tensor, "B V"], XLNetState]:
        """The logits after inputs that are written into the caches: content and the next query, side by side in one pass."""
        sight, rows = self._sight(False), torch.arange(len(inputs), device=inputs.device)[:, None]
        used = int(state.length.max()) if len(inputs) else 0
        slot = torch.arange(used, device=inputs.device)[None]
        next_up = torch.cat([column, state.length[:, None]], 1)
        rank = torch.cat([column, state.length[:, None] - 1], 1)
        keys = Standing(slot, state.places[slot])
        sight = replace(sight, ordered=Ordered(Standing(rank, state.places[next_up]), keys))
        x = torch.cat([self.embedding(inputs), self.unseen.expand(len(inputs), 1, -1)], 1)
        for block, biases, cache in zip(self._stack, self.biases, state.caches, strict=True):
            cache[:, :, rows, column] = block.known(x[:, :-1])
            x = block(x, cache[:, :, :, :used], biases, sight)
        return self.output(x[:, -1]), state

    def _empty(self, rows: int, slots: int) -> Float[Tensor, "2 H B S D"]:
        """A cache, of zeros: a mask does not stop what is not a number."""
        return self.unseen.new_zeros(2, self.config.heads, rows, slots, self.biases.shape[3])

    def _places(self, order: Order, count: int) -> Int[Tensor, "{count}"]:
        """Where the t-th input stands, the opening before all others; after the end of the order, in its last place."""
        column = torch.arange(count, device=self.unseen.device)
        if order is None:
            return column
        return pad(order.to(column) + 1, (1, 0))[column.clamp(max=len(order))]

    def _in_turn(
        self, inputs: Int[Tensor, "B L"], past: Sequence[Tensor] | None, first: int, order: Order
    ) -> tuple[Float[Tensor, "B L W"], list[Tensor]]:
        """The vector of what comes after each input, and what each layer read."""
        length, known = inputs.shape[1], 0 if past is None else past[0].shape[1]
        if inputs.numel() == 0:
            return self.embedding(inputs), [self.embedding(inputs) for _ in self.blocks]
        places = self._places(order, length + 1)[None]
        rank = torch.arange(length, device=inputs.device)[None]
        local = any(self.config.layer.mixer(layer)[0] == "local" for layer in range(self.config.layers))
        own = places[:, :-1] + first if order is not None or local else None
        before = torch.arange(first - known, first, device=inputs.device)[None]
        asked = places[:, 1:] + first if own is not None else places[:, 1:]
        standing, asks = Standing(rank, own), Standing(rank, asked)
        _, queries, read = self._streams(inputs, past, standing, asks, self._sight(self.training), before)
        assert queries is not None
        return queries, read

    def _streams(
        self,
        inputs: Int[Tensor, "B L"],
        past: Sequence[Tensor] | None,
        standing: Standing,
        asks: Standing | None,
        sight: Sight,
        before: Int[Tensor, "1 M"] | None = None,
    ) -> tuple[Float[Tensor, "B L W"], Float[Tensor, "B Q W"] | None, list[Tensor]]:
        """Both streams through all layers, and what each read; where queries are asked for, the last content is not made."""
        known = 0 if past is None else past[0].shape[1]
        keys = _with_past(standing, known, before)
        content_sight, query_sight = replace(sight, ordered=Ordered(standing, keys, known)), None
        x, query = dropped(self.embedding(inputs), self.config.layer, sight), None
        if asks is not None:
            query_sight = replace(sight, ordered=Ordered(asks, keys, known))
            query = dropped(self.unseen.expand(len(inputs), asks.rank.shape[1], -1), self.config.layer, sight)
        read = []
        for number, (block, biases) in enumerate(zip(self._stack, self.biases, strict=True)):
            read.append(x)
            seen = block.known(x if past is None else torch.cat([past[number], x], 1))
            if query is None or number < self.config.layers - 1:
                x = block(x, seen, biases, content_sight)
            if query is not None and query_sight is not None:
                query = block(query, seen, biases, query_sight)
        end = None if query is None else dropped(query, self.config.layer, sight)
        return x if query is not None else dropped(x, self.config.layer, sight), end, read

    def _remembered(
        self, first: Int[Tensor, "B"], past: Sequence[Tensor], read: Sequence[Tensor], keeps: int
    ) -> tuple[Tensor, ...]:
        """The memory after the first so many inputs of a pass."""
        whole = [torch.cat([old, new[:, :keeps]], 1).detach() for old, new in zip(past, read, strict=True)]
        kept = [one.narrow(1, *last_of(one.shape[1], self.config.memory)) for one in whole]
        return (first + keeps, *kept)

    def _segments(self, inputs: Int[Tensor, "B L"]) -> Int[Tensor, "B L"] | None:
        """How many separators stand before each input; None where there is none at all."""
        ends = inputs == self.separator
        return ends.long().cumsum(1) - ends.long() if bool(ends.any()) else None

    def _sight(self, learning: bool, first: int = 0) -> Sight:
        rate = self.config.dropout if learning else 0.0
        places = table_of_places(self.config.width, rate, self.config.clamp, self.unseen)
        return Sight(places, learning, first, causal=False)

    @property
    def _stack(self) -> list[XLBlock]:
        return [cast(XLBlock, block) for block in self.blocks]


def _with_past(standing: Standing, known: int, before: Int[Tensor, "1 M"] | None) -> Standing:
    """The keys of a pass: what was known before it is seen by all, and belongs to the first segment."""
    rank = pad(standing.rank, (known, 0), value=-FAR)
    segment = None if standing.segment is None else pad(standing.segment, (known, 0))
    if standing.position is None or before is None:
        return Standing(rank, standing.position, segment)
    return Standing(rank, torch.cat([before.expand(len(standing.position), -1), standing.position], 1), segment)


def after_lead(
    lead: Int[Tensor, "B"], inputs: Int[Tensor, "B L"], arrangement: Arrangement
) -> tuple[Int[Tensor, "B U"], Arrangement]:
    """The inputs after a symbol that all see, and their arrangement."""
    segment = None if arrangement.segment is None else pad(arrangement.segment, (1, 0))
    rank, targets = pad(arrangement.rank, (1, 0), value=-FAR), arrangement.targets + 1
    return torch.cat([lead[:, None], inputs], 1), replace(arrangement, rank=rank, targets=targets, segment=segment)
