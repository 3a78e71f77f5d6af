"""Token mixers, interchangeable in one stack: relative attention, full or in local chunks, LightConv and DynamicConv.

A mixer first computes what other positions need of each position (`kv`: keys and values, or the values of a convolution), then
mixes it into new positions. `kv` may be computed earlier, so streams, prompts and steps are treated alike.

Letters: W width, H heads, D width of a head, P tensors of `kv` (2 for attention, 1 for a convolution), M positions before a
pass, K = M + T, S slots of a cache, A biases: two, or four with segments, J taps of a kernel, the last of which is the position
itself (the middle one if not causal).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.functional import dropout, glu, one_hot, pad, softmax

from esscher.heads.head import matmul_layout
from esscher.networks.incremental_decoding import AttentionStep, CachePosition, StepVectors, TokenMixerStep, Vectors
from esscher.networks.relative_attention_ops import LocalChunks, relative_attention
from esscher.networks.transformer_config import TransformerXLConfig

SinusoidFn = Callable[[int, int], Tensor]
"""The sinusoids of all distances from the first to the last argument: `Float[Tensor, "R W"]`."""
SegmentBias = tuple[Tensor, Tensor]
"""Marks of queries and of keys, whose products are added to the scores."""
MIN_CHUNK = 32  # positions of one product of a convolution
NEVER_VISIBLE = 2**30  # the order index of what no position sees


@dataclass(frozen=True)
class OrderedPositions:
    """The index of queries or keys in the factorization order, their position in the text, and their segment. Without
    `position` they are consecutive, and the last query and the last key are at the last position of the pass. Only whether two
    segments differ matters; without segments none do."""

    order_index: Int[Tensor, "R T"]
    position: Int[Tensor, "R T"] | None = None
    segment: Int[Tensor, "R T"] | None = None


@dataclass(frozen=True)
class PermutationMask:
    """A query sees the keys whose order index is not above its own; the output of one that sees none is 0. The first `past`
    keys come before the pass, which starts at position 0."""

    queries: OrderedPositions
    keys: OrderedPositions
    past: int = 0
    furthest: int | None = None  # no distance is larger; None: not known

    @cached_property
    def masked(self) -> Bool[Tensor, "R T K"]:
        return self.keys.order_index[:, None] > self.queries.order_index[:, :, None]

    @cached_property
    def distance(self) -> Int[Tensor, "R T K"] | None:
        """The distance of each query to each key; None where all are consecutive."""
        if self.queries.position is None:
            return None
        keys = self.keys.position
        if keys is None:
            keys = torch.arange(self.keys.order_index.shape[1], device=self.queries.position.device)[None] - self.past
        return self.queries.position[:, :, None] - keys[:, None]


@dataclass(frozen=True)
class AttentionContext:
    """What a pass attends to. `first` is the position of the first input in its row, `attention_span` how far back is seen
    (None: everything). A pass that is not `causal` sees all of a row that is `inside`. A `permutation_mask` defines visibility
    by a factorization order. With `reversed_half` the second half of the rows is read backwards, with negated distances."""

    sinusoids: SinusoidFn
    training: bool
    first: int = 0
    attention_span: int | None = None
    causal: bool = True
    inside: Bool[Tensor, "B T"] | None = None
    permutation_mask: PermutationMask | None = None
    reversed_half: bool = False
    masks: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def masked(self, queries: int, keys: int, device: torch.device) -> Bool[Tensor, "R T K"] | None:
        """True where a query does not see a key; the last key is the last query. None where all are seen."""
        if self.inside is not None:
            return ~self.inside[:, None].expand(-1, queries, -1)
        if not self.causal:
            return None
        size = (queries, keys)
        if size not in self.masks:  # shared by all layers
            distance = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
            masked = distance < 0
            self.masks[size] = (masked if self.attention_span is None else masked | (distance > self.attention_span))[None]
        return self.masks[size]


class RelativeAttention(nn.Module):
    """Attention to everything within the span; or, with a `chunk`, to the chunk of a position and the one before it (and the
    one after it if not causal), at a cost linear in the length."""

    def __init__(self, config: TransformerXLConfig, chunk: int | None = None):
        super().__init__()
        self.config, self.chunk, self.heads = config, chunk, config.heads
        inner = config.heads * (config.head_width or config.width // config.heads)
        self.q_proj = nn.Linear(config.width, inner, bias=False)
        self.kv_proj = nn.Linear(config.width, 2 * inner, bias=False)
        self.rel_pos_proj = nn.Linear(config.width, inner, bias=False)
        self.o_proj = nn.Linear(inner, config.width, bias=False)

    def memory_length(self, *, training: bool) -> int | None:
        """How many positions before a pass it uses; None is all."""
        if self.chunk is not None:
            return 2 * self.chunk - 1
        return self.config.memory if training else self.config.effective_attention_span

    def kv(self, x: Float[Tensor, "B T W"]) -> Float[Tensor, "2 H B T D"]:
        """What other positions need of each position."""
        return self.kv_proj(x).unflatten(-1, (2, self.heads, -1)).permute(2, 3, 0, 1, 4)

    def forward(
        self, x: Vectors, kv: Float[Tensor, "2 H B K D"], biases: Float[Tensor, "A H D"], context: AttentionContext
    ) -> Vectors:
        """The output at the last T of K positions."""
        query = self.q_proj(x).unflatten(-1, (self.heads, -1)).permute(2, 0, 1, 3)
        return self.o_proj(self._attention(query, kv, biases, context).permute(1, 2, 0, 3).flatten(2))

    def _attention(self, query: Tensor, kv: Tensor, biases: Tensor, context: AttentionContext) -> Float[Tensor, "H B T D"]:
        if context.permutation_mask is not None:
            return self._permuted_attention(query, kv, biases, context)
        if self.chunk is not None:
            return self._local_attention(query, kv, biases, context)
        queries, keys = query.shape[2], kv.shape[3]
        bounds = (keys - 1, 0 if context.causal else 1 - queries)
        return self._attend(query, kv, bounds, biases, context.masked(queries, keys, query.device), context)

    def _local_attention(
        self, query: Tensor, kv: Tensor, biases: Tensor, context: AttentionContext
    ) -> Float[Tensor, "H B T D"]:
        """Masked are dummies and padding, and later positions in a causal pass; a dummy query sees everything."""
        size, device = self.chunk or 1, query.device
        chunks = LocalChunks(size, context.first, query.shape[2], kv.shape[3] - query.shape[2], not context.causal)
        inside = torch.ones(1, kv.shape[3], dtype=torch.bool, device=device) if context.inside is None else context.inside
        masked = ~chunks.split_with_neighbours(inside[:, :, None], False).mT.expand(-1, size, -1)
        if context.causal:
            distance = torch.arange(size, 2 * size, device=device)[:, None] - torch.arange(2 * size, device=device)
            masked = masked | (distance < 0)
        mask = masked & ~masked.all(-1, keepdim=True)
        bounds = (2 * size - 1, 0 if context.causal else 1 - 2 * size)
        keys = chunks.split_with_neighbours(kv)
        return chunks.merge(self._attend(chunks.split(query), keys, bounds, biases, mask, context))

    def _permuted_attention(
        self, query: Tensor, kv: Tensor, biases: Tensor, context: AttentionContext
    ) -> Float[Tensor, "H B T D"]:
        """Attention under a factorization order; local attention uses chunks if keys are consecutive, and else a mask."""
        permutation_mask = context.permutation_mask
        assert permutation_mask is not None
        marks, distance = _segment_bias(query, biases, permutation_mask), permutation_mask.distance
        if self.chunk is not None and permutation_mask.keys.position is None:
            return self._local_permuted_attention(query, kv, biases, context, marks)
        masked, index, bounds = permutation_mask.masked, None, (kv.shape[3] - 1, 1 - query.shape[2])
        if distance is not None:
            if permutation_mask.furthest is None or distance.device.type == "cpu":
                bounds = (int(distance.max()), int(distance.min()))
            else:  # wider than needed: to ask the device is to wait
                bounds = (permutation_mask.furthest, -permutation_mask.furthest)
            index = bounds[0] - distance
        if self.chunk is not None:
            queries, keys = permutation_mask.queries.position, permutation_mask.keys.position
            assert queries is not None and keys is not None
            masked = masked | ((queries[:, :, None] // self.chunk - keys[:, None] // self.chunk).abs() > 1)
        return self._attend(query, kv, bounds, biases, masked, context, index, marks)

    def _local_permuted_attention(
        self, query: Tensor, kv: Tensor, biases: Tensor, context: AttentionContext, marks: SegmentBias | None
    ) -> Float[Tensor, "H B T D"]:
        """Local attention in chunks; queries that are not consecutive are scattered to their positions, among dummies."""
        permutation_mask = context.permutation_mask
        assert permutation_mask is not None
        size, position = self.chunk or 1, permutation_mask.queries.position
        order_index, key_order_index = (
            part.order_index[..., None] for part in (permutation_mask.queries, permutation_mask.keys)
        )
        chunks = LocalChunks(size, context.first, kv.shape[3] - permutation_mask.past, permutation_mask.past, ahead=True)
        if position is not None:
            query = _scatter_columns(query, position, chunks.queries)
            order_index = _scatter_columns(order_index, position, chunks.queries, NEVER_VISIBLE)
            marks = None if marks is None else (_scatter_columns(marks[0], position, chunks.queries), marks[1])
        masked = chunks.split_with_neighbours(key_order_index, NEVER_VISIBLE).mT > chunks.split(order_index, NEVER_VISIBLE)
        marks = None if marks is None else (chunks.split(marks[0]), chunks.split_with_neighbours(marks[1]))
        query, kv, bounds = chunks.split(query), chunks.split_with_neighbours(kv), (2 * size - 1, 1 - 2 * size)
        attended = chunks.merge(self._attend(query, kv, bounds, biases, masked, context, None, marks))
        if position is None:
            return attended
        return attended.gather(2, position[:, :, None].expand(len(attended), -1, -1, attended.shape[3]))

    def _rel_pos(self, context: AttentionContext, most: int, least: int) -> Float[Tensor, "H R D"]:
        return self.rel_pos_proj(context.sinusoids(most, least)).unflatten(-1, (self.heads, -1)).transpose(0, 1)

    def _attend(
        self,
        query: Float[Tensor, "H N T D"],
        kv: Float[Tensor, "2 H N K D"],
        bounds: tuple[int, int],
        biases: Tensor,
        mask: Tensor | None,
        context: AttentionContext,
        index: Tensor | None = None,
        marks: SegmentBias | None = None,
    ) -> Float[Tensor, "H N T D"]:
        """Attention with distances between the bounds; 0 where a factorization order masks everything."""
        (key, value), keep, most, least, blind = kv, None, *bounds, None
        order = context.permutation_mask
        sees_first = order is not None and order.furthest is not None and self.chunk is None  # a step: slot 0 is visible to all
        if order is not None and mask is not None and not sees_first:
            blind = mask.all(-1, keepdim=True)
            blind = blind if mask.device.type != "cpu" or bool(blind.any()) else None
            mask = mask if blind is None else mask & ~blind
        if context.training and self.config.attention_dropout:
            keep = dropout(query.new_ones(*query.shape[:3], key.shape[2]), self.config.attention_dropout)
        rel_pos, rows = self._rel_pos(context, most, least), query.shape[1]
        if context.reversed_half:
            parts = []
            reversed_rel_pos = self._rel_pos(context, -most, -least)
            for half, half_rel_pos in ((slice(rows // 2), rel_pos), (slice(rows // 2, rows), reversed_rel_pos)):
                pairs = [None if part is None else part[half] if len(part) == rows else part for part in (mask, index)]
                half_keep = None if keep is None else keep[:, half]
                half_marks = None if marks is None else (marks[0][:, half], marks[1][half])
                qkv = query[:, half], key[:, half], value[:, half]
                parts.append(relative_attention(*qkv, half_rel_pos, biases[:2], pairs[0], half_keep, pairs[1], half_marks))
            attended = torch.cat(parts, 1)
        else:
            attended = relative_attention(query, key, value, rel_pos, biases[:2], mask, keep, index, marks)
        if blind is None:
            return attended
        return attended.view(len(attended), -1, len(blind), *attended.shape[2:]).masked_fill(blind, 0.0).flatten(1, 2)

    def step(self, slots: int, steps: int, biases: Float[Tensor, "2 H D"], sinusoids: SinusoidFn) -> AttentionStep:
        """The mixer for one position, with the current weights, for caches of `slots` slots and `steps` further steps."""
        most = slots if self.chunk is None else min(slots, 2 * self.chunk)
        if self.chunk is None and self.config.effective_attention_span is not None:
            most = min(slots, self.config.effective_attention_span + 1)
        rel_pos = self.rel_pos_proj(sinusoids(most - 1, 0)).unflatten(-1, (self.heads, -1)).permute(1, 2, 0).contiguous()
        (content, position), scale = biases, biases.shape[-1] ** -0.5
        bias = pad(content.flatten() * scale, (0, len(self.kv_proj.weight)))
        weight = matmul_layout(torch.cat([self.q_proj.weight * scale, self.kv_proj.weight]), steps).T
        rel_pos_bias = (position - content)[:, None] * scale @ rel_pos
        return AttentionStep((bias, weight), matmul_layout(self.o_proj.weight, steps).T, rel_pos, rel_pos_bias, self.chunk)


def _segment_bias(
    query: Float[Tensor, "H B T D"], biases: Float[Tensor, "A H D"], permutation_mask: PermutationMask
) -> SegmentBias | None:
    """Marks that add (q + s) . a to the score of pairs from two segments, s and a being the third and fourth bias, up to a
    constant for all keys of a query, which changes no attention weight."""
    queries, keys = permutation_mask.queries.segment, permutation_mask.keys.segment
    if queries is None or keys is None:
        return None
    kinds = int(max(queries.max(), keys.max())) + 1
    if kinds == 1:
        return None
    different = torch.einsum("hbtd,hd->hbt", query + biases[2, :, None, None], biases[3])
    return -different[..., None] * one_hot(queries, kinds), one_hot(keys, kinds).to(query.dtype)


def _scatter_columns(
    x: Shaped[Tensor, "*S B T W"], position: Int[Tensor, "B T"], length: int, fill: int = 0
) -> Shaped[Tensor, "*S B L W"]:
    """Each column at its position in a row of this length."""
    return x.new_full((*x.shape[:-2], length, x.shape[-1]), fill).scatter(-2, position[:, :, None].expand(x.shape), x)


class LightConv(nn.Module):
    """A gated linear unit, one kernel per head, which sums to 1, and an output projection (Wu et al. 2019). The kernel of
    LightConv is a parameter, that of DynamicConv (`dynamic`) is computed from the position itself. Positions before the first
    one count as zeros and keep their weight."""

    def __init__(self, config: TransformerXLConfig, kernel_size: int, *, dynamic: bool):
        super().__init__()
        self.config, self.kernel_size, self.heads = config, kernel_size, config.heads
        self.glu_proj = nn.Linear(config.width, 2 * config.width)
        self.o_proj = nn.Linear(config.width, config.width)
        if dynamic:
            self.kernel_proj: nn.Linear | None = nn.Linear(config.width, config.heads * kernel_size, bias=False)
        else:
            self.kernel_proj, self.kernel = None, nn.Parameter(torch.empty(config.heads, kernel_size))

    def memory_length(self, *, training: bool) -> int | None:
        return self.kernel_size - 1

    def kv(self, x: Float[Tensor, "B T W"]) -> Float[Tensor, "1 H B T D"]:
        return glu(self.glu_proj(x)).view(*x.shape[:2], self.heads, -1).permute(2, 0, 1, 3)[None]

    def forward(self, x: Vectors, kv: Float[Tensor, "1 H B K D"], biases: Tensor, context: AttentionContext) -> Vectors:
        length, past = x.shape[1], kv.shape[3] - x.shape[1]
        value = kv[0] if context.inside is None else kv[0] * context.inside[:, :, None]
        kernel = self._kernels(kv[0, :, :, past:])
        kernel = dropout(kernel, self.config.attention_dropout, context.training)  # of normalized kernels, as published
        after = 0 if context.causal else self.kernel_size // 2
        mixed = banded_convolution(kernel, pad(value, (0, 0, self.kernel_size - 1 - after - past, after)), length)
        return self.o_proj(mixed.permute(1, 2, 0, 3).flatten(2))

    def step(self, slots: int, steps: int, biases: Tensor, sinusoids: SinusoidFn) -> TokenMixerStep:
        return self._step

    def _step(
        self, x: StepVectors, cache: Float[Tensor, "1 H B S D"], position: CachePosition, residual: StepVectors
    ) -> StepVectors:
        position.write_stacked(cache, self.kv(x[:, None])[:, :, :, 0])
        if position.slot is None:
            value = cache[0, :, :, max(0, position.filled - self.kernel_size) : position.filled]
        else:
            slots = position.slot[:, None] + torch.arange(1 - self.kernel_size, 1, device=x.device)
            index = slots.clamp(min=0)[None, :, :, None].expand(len(cache[0]), -1, -1, cache.shape[4])
            value = cache[0].gather(2, index).masked_fill((slots < 0)[None, :, :, None], 0.0)
        kernel = self._kernels(value[:, :, -1:])[..., self.kernel_size - value.shape[2] :]
        return residual + self.o_proj((kernel @ value)[:, :, 0].transpose(0, 1).flatten(1))

    def _kernels(self, value: Float[Tensor, "H B T D"]) -> Float[Tensor, "H B T J"]:
        """The kernel of each position."""
        rows, length = value.shape[1:3]
        if self.kernel_proj is None:
            return softmax(self.kernel, -1)[:, None, None].expand(-1, rows, length, -1)
        logits = self.kernel_proj(value.permute(1, 2, 0, 3).flatten(2))
        return softmax(logits.view(rows, length, self.heads, -1), -1).permute(2, 0, 1, 3)


def banded_convolution(
    kernel: Float[Tensor, "H B T J"], value: Float[Tensor, "H B X D"], length: int
) -> Float[Tensor, "H B T D"]:
    """Position t of the output is kernel t times values t to t + J - 1. The kernels of a chunk of positions form one banded
    matrix, so the cost is linear in the length."""
    kernel_size = kernel.shape[3]
    chunk = min(max(kernel_size, MIN_CHUNK), max(1, length))
    chunks = -(-length // chunk)
    heads, rows = kernel.shape[:2]
    kernel = pad(kernel, (0, chunk, 0, chunks * chunk - length)).view(heads, rows, chunks, -1)
    band = kernel[..., : chunk * (chunk + kernel_size - 1)].view(heads, rows, chunks, chunk, -1)
    value = pad(value, (0, 0, 0, chunks * chunk - length)).unfold(2, chunk + kernel_size - 1, chunk).movedim(-1, -2)
    return (band @ value).flatten(2, 3)[:, :, :length]
