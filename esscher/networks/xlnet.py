"""XLNet (Yang et al. 2019): layers of a Transformer-XL that predict tokens in any factorization order of the positions.

Two streams share all weights. The content stream of a position sees its token; the query stream, which starts from one learned
vector, sees the position and the content before it in the order. As a network it reads from left to right, or in another order
(`esscher.bases.network`): column t is then the t-th token of the order. A BOS symbol before the text is visible to all.
`SPECIAL_SYMBOLS` are read and never predicted: a separator after each segment of a text, a summary symbol at its end, a blank
for a hidden token. Segments are counted by their separators.

Letters: W width, H heads, D width of a head, L inputs of a pass, M inputs before it, K = M + L, Q queries, S slots of a cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from esscher.core.space import Sequences
from esscher.heads.build import build_head
from esscher.heads.head import NetworkWithHead
from esscher.networks.incremental_decoding import check_free_slot
from esscher.networks.network import Memory, prepend_bos, unpadded
from esscher.networks.token_mixers import NEVER_VISIBLE, AttentionContext, OrderedPositions, PermutationMask
from esscher.networks.transformer_config import XLNetConfig
from esscher.networks.transformer_xl import INITIAL_STD, XLBlock, apply_dropout, sinusoid_table, tail_range

SPECIAL_SYMBOLS = ("bos", "separator", "summary", "blank")
"""Symbols that are read but never predicted, numbered after the tokens."""

PositionOrder = Int[Tensor, "N"] | None
"""The t-th position of the order, for each t; None is from left to right, of any length."""


@dataclass(frozen=True)
class FactorizationOrder:
    """The order in which the inputs of a pass become visible, and the inputs that are predicted. An input sees those whose
    order index is not above its own; the query of an input sees those whose index is below. With `reversed_half` the second
    half of the rows runs from right to left. Segments, if not given, are counted by separators."""

    order_index: Int[Tensor, "B L"]
    targets: Int[Tensor, "B Q"]
    stream: Literal["query", "content"] = "query"
    reversed_half: bool = False
    segment: Int[Tensor, "B L"] | None = None


@dataclass(frozen=True)
class XLNetState:
    """Keys and values of each layer; slot t of a row belongs to its t-th input."""

    caches: tuple[Float[Tensor, "2 H B S D"], ...]
    length: Int[Tensor, "B"]  # filled slots of each row
    longest: int  # at most so many
    positions: Int[Tensor, "U"]  # position of the input in each slot
    furthest: int  # no position is larger


class XLNetNetwork(NetworkWithHead):
    """A stack of blocks with a content stream and a query stream."""

    max_positions = None

    def __init__(self, config: XLNetConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.bos, self.separator, self.summary, self.blank = (vocab_size + number for number in range(len(SPECIAL_SYMBOLS)))
        self.embedding = nn.Embedding(vocab_size + len(SPECIAL_SYMBOLS), config.width)
        self.mask_emb = nn.Parameter(torch.empty(config.width))
        self.head = build_head(config, vocab_size, config.width, self.embedding if config.tied else None)
        self.blocks = nn.ModuleList([XLBlock(config.layer, layer) for layer in range(config.layers)])
        head_width = config.head_width or config.width // config.heads
        self.biases = nn.Parameter(torch.empty(config.layers, 4, config.heads, head_width))
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(weight)
            elif ".norms." in name:
                nn.init.ones_(weight)
            else:
                nn.init.normal_(weight, std=INITIAL_STD)

    def hidden(self, x: Sequences, order: PositionOrder = None) -> Float[Tensor, "B T W"]:
        return self._in_sequence(prepend_bos(x, self.bos)[:, :-1], None, 0, order)[0]

    def encode(self, x: Sequences) -> Float[Tensor, "B U W"]:
        inputs = prepend_bos(x, self.bos)
        inside, order_index = unpadded(inputs, x.stop), torch.zeros_like(inputs)
        order_index = order_index if inside is None else order_index.masked_fill(~inside, NEVER_VISIBLE)
        positions = OrderedPositions(order_index, None, self._segments(inputs))
        return self._streams(inputs, None, positions, None, self._attention_context(self.training))[0]

    def target_hidden(
        self, inputs: Int[Tensor, "B L"], factorization_order: FactorizationOrder, memory: Memory | None, keeps: int
    ) -> tuple[Float[Tensor, "B Q W"], Memory]:
        """The vector of each target, and the memory after the first `keeps` inputs."""
        first, *past = self.init_memory(len(inputs)) if memory is None else memory
        segment, targets = factorization_order.segment, factorization_order.targets
        segment = self._segments(inputs) if segment is None else segment
        positions = OrderedPositions(factorization_order.order_index, None, segment)
        context = self._attention_context(self.training, int(first[0]))
        context = replace(context, reversed_half=factorization_order.reversed_half)
        query_positions = None
        if factorization_order.stream == "query":
            target_segment = None if segment is None else segment.gather(1, targets)
            before_target = factorization_order.order_index.gather(1, targets) - 1
            query_positions = OrderedPositions(before_target, targets, target_segment)
        content, queries, layer_inputs = self._streams(inputs, past, positions, query_positions, context)
        hidden = content.gather(1, targets[:, :, None].expand(-1, -1, content.shape[2])) if queries is None else queries
        return hidden, self._next_memory(first, past, layer_inputs, keeps)

    def init_memory(self, rows: int) -> Memory:
        """The number of inputs read of each stream, and the inputs of each layer: none."""
        inputs = [self.mask_emb.new_empty(rows, 0, self.config.width) for _ in self.blocks]
        return (torch.zeros(rows, dtype=torch.long, device=self.mask_emb.device), *inputs)

    def read(self, inputs: Int[Tensor, "B L"], memory: Memory) -> tuple[Float[Tensor, "B L W"], Memory]:
        first, *past = memory
        hidden, layer_inputs = self._in_sequence(inputs, past, int(first[0]) if len(first) else 0, None)
        return hidden, self._next_memory(first, past, layer_inputs, inputs.shape[1])

    def begin(
        self, prompts: Sequences, max_new_tokens: int, order: PositionOrder = None
    ) -> tuple[Float[Tensor, "B V"], XLNetState]:
        inputs, length = prepend_bos(prompts, self.bos), prompts.start + 1
        slots = inputs.shape[1] - 1 + max_new_tokens
        shape = (2, self.config.heads, len(inputs), slots, self.biases.shape[3])
        caches = tuple(self.mask_emb.new_zeros(shape) for _ in self.blocks)  # zeros: a mask does not remove NaN
        furthest = slots if order is None else len(order)
        state = XLNetState(caches, length, inputs.shape[1], self._positions(order, slots + 1), furthest)
        column = torch.arange(inputs.shape[1], device=inputs.device)[None].expand(len(inputs), -1)
        return self._step_tokens(state, inputs, column)

    def advance(self, state: XLNetState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], XLNetState]:
        column = state.length[:, None]
        check_free_slot(state.longest, state.caches[0].shape[3])
        return self._step_tokens(replace(state, length=state.length + 1, longest=state.longest + 1), token[:, None], column)

    def select(self, state: XLNetState, index: Int[Tensor, "K"]) -> XLNetState:
        caches = tuple(cache.index_select(2, index) for cache in state.caches)
        return replace(state, caches=caches, length=state.length[index])

    def _step_tokens(
        self, state: XLNetState, inputs: Int[Tensor, "B L"], column: Int[Tensor, "B L"]
    ) -> tuple[Float[Tensor, "B V"], XLNetState]:
        """The logits after inputs, whose keys and values are written into the caches: content and next query in one pass."""
        context, rows = self._attention_context(False), torch.arange(len(inputs), device=inputs.device)[:, None]
        used = state.longest
        slot = torch.arange(used, device=inputs.device)[None]
        next_column = torch.cat([column, state.length[:, None]], 1)
        order_index = torch.cat([column, state.length[:, None] - 1], 1)
        queries = OrderedPositions(order_index, state.positions[next_column])
        keys = OrderedPositions(slot, state.positions[slot])
        context = replace(context, permutation_mask=PermutationMask(queries, keys, furthest=state.furthest))
        x = torch.cat([self.embedding(inputs), self.mask_emb.expand(len(inputs), 1, -1)], 1)
        for block, biases, cache in zip(self._stack, self.biases, state.caches, strict=True):
            cache[:, :, rows, column] = block.kv(x[:, :-1])
            x = block(x, cache[:, :, :, :used], biases, context)
        return self.output(x[:, -1]), state

    def _positions(self, order: PositionOrder, count: int) -> Int[Tensor, "{count}"]:
        """The position of the t-th input, BOS first; after the end of the order, its last position."""
        column = torch.arange(count, device=self.mask_emb.device)
        if order is None:
            return column
        return pad(order.to(column) + 1, (1, 0))[column.clamp(max=len(order))]

    def _in_sequence(
        self, inputs: Int[Tensor, "B L"], past: Sequence[Tensor] | None, first: int, order: PositionOrder
    ) -> tuple[Float[Tensor, "B L W"], list[Tensor]]:
        """The query vector after each input, and the inputs of each layer."""
        length, past_length = inputs.shape[1], 0 if past is None else past[0].shape[1]
        if inputs.numel() == 0:
            return self.embedding(inputs), [self.embedding(inputs) for _ in self.blocks]
        position = self._positions(order, length + 1)[None]
        order_index = torch.arange(length, device=inputs.device)[None]
        absolute = order is not None or self.config.uses("local")
        positions = OrderedPositions(order_index, position[:, :-1] + first if absolute else None)
        query_positions = OrderedPositions(order_index, position[:, 1:] + first if absolute else position[:, 1:])
        before = torch.arange(first - past_length, first, device=inputs.device)[None]
        context = self._attention_context(self.training)
        _, queries, layer_inputs = self._streams(inputs, past, positions, query_positions, context, before)
        assert queries is not None
        return queries, layer_inputs

    def _streams(
        self,
        inputs: Int[Tensor, "B L"],
        past: Sequence[Tensor] | None,
        positions: OrderedPositions,
        query_positions: OrderedPositions | None,
        context: AttentionContext,
        before: Int[Tensor, "1 M"] | None = None,
    ) -> tuple[Float[Tensor, "B L W"], Float[Tensor, "B Q W"] | None, list[Tensor]]:
        """Content and query vectors, and the inputs of each layer; with queries the last layer computes no content."""
        past_length = 0 if past is None else past[0].shape[1]
        position = positions.position
        if position is not None and before is not None:
            position = torch.cat([before.expand(len(position), -1), position], 1)
        # all queries see the memory, which belongs to the first segment
        key_order_index = pad(positions.order_index, (past_length, 0), value=-NEVER_VISIBLE)
        segment = None if positions.segment is None else pad(positions.segment, (past_length, 0))
        keys, layer = OrderedPositions(key_order_index, position, segment), self.config.layer
        content_context = replace(context, permutation_mask=PermutationMask(positions, keys, past_length))
        x, query, query_context, layer_inputs = apply_dropout(self.embedding(inputs), layer, context), None, None, []
        if query_positions is not None:
            query_context = replace(context, permutation_mask=PermutationMask(query_positions, keys, past_length))
            query = self.mask_emb.expand(len(inputs), query_positions.order_index.shape[1], -1)
            query = apply_dropout(query, layer, context)
        for number, (block, biases) in enumerate(zip(self._stack, self.biases, strict=True)):
            layer_inputs.append(x)
            kv = block.kv(x if past is None else torch.cat([past[number], x], 1))
            if query is None or number < self.config.layers - 1:
                x = block(x, kv, biases, content_context)
            if query is not None and query_context is not None:
                query = block(query, kv, biases, query_context)
        if query is None:
            return apply_dropout(x, layer, context), None, layer_inputs
        return x, apply_dropout(query, layer, context), layer_inputs

    def _next_memory(
        self, first: Int[Tensor, "B"], past: Sequence[Tensor], layer_inputs: Sequence[Tensor], keeps: int
    ) -> Memory:
        """The memory after the first `keeps` inputs of a pass."""
        memories = [torch.cat([old, new[:, :keeps]], 1).detach() for old, new in zip(past, layer_inputs, strict=True)]
        return (first + keeps, *(memory.narrow(1, *tail_range(memory.shape[1], self.config.memory)) for memory in memories))

    def _segments(self, inputs: Int[Tensor, "B L"]) -> Int[Tensor, "B L"] | None:
        """The number of separators before each input; None if there are none at all."""
        ends = inputs == self.separator
        return ends.long().cumsum(1) - ends.long() if bool(ends.any()) else None

    def _attention_context(self, training: bool, first: int = 0) -> AttentionContext:
        rate = self.config.dropout if training else 0.0
        table = sinusoid_table(self.config.width, rate, self.config.clamp_len, self.mask_emb)
        return AttentionContext(table, training, first, causal=False)

    @property
    def _stack(self) -> list[XLBlock]:
        return [cast(XLBlock, block) for block in self.blocks]


def prepend_visible_symbol(
    symbol: Int[Tensor, "B"], inputs: Int[Tensor, "B L"], factorization_order: FactorizationOrder
) -> tuple[Int[Tensor, "B U"], FactorizationOrder]:
    """The inputs after a symbol that is visible to all, and their factorization order."""
    segment = None if factorization_order.segment is None else pad(factorization_order.segment, (1, 0))
    order_index = pad(factorization_order.order_index, (1, 0), value=-NEVER_VISIBLE)
    order = replace(factorization_order, order_index=order_index, targets=factorization_order.targets + 1, segment=segment)
    return torch.cat([symbol[:, None], inputs], 1), order
