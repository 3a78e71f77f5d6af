"""Decoding one token at a time: caches, steps of attention blocks, rows that share prompts, decoding without a cache.

A state holds the weights at `begin`, laid out for steps: query, key and value are one product, and the attention scale is in
the weights. With u and v the two biases of relative attention, a step computes the query q + u, and (q + v) . r = (q + u) . r +
(v - u) . r, whose last term depends on the distance only. `UncachedDecoding` runs a whole pass over the prefix at each step and
keeps no weights, as sharded models need (`esscher.bases.fsdp`).

Shape letters as in `esscher.networks.token_mixers`; R distances, S slots of a cache.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, layer_norm
from torch.nn.functional import gelu, relu, scaled_dot_product_attention

from esscher.core.space import Sequences
from esscher.networks.network import Network

Vectors = Float[Tensor, "B T W"]
StepVectors = Float[Tensor, "B W"]
LayerNormArgs = tuple[tuple[int, ...], Tensor | None, Tensor | None, float]
"""The arguments of `torch.layer_norm`: shape, weight, bias and epsilon."""
Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Activation] = {"relu": relu, "gelu": gelu, "gelu-tanh": partial(gelu, approximate="tanh")}
"""The activations of feed-forward parts by name."""


SLOTS_PER_GRAPH = 64  # captured steps attend to a multiple of so many slots: one graph serves as many steps


class KVCache(NamedTuple):
    """Keys and values of a layer, with free slots. Keys and values are separate tensors: small blocks of memory are reused
    without page faults, which cost more than the copy when beams are selected at every step."""

    keys: Float[Tensor, "B H S D"]
    values: Float[Tensor, "B H S D"]

    @classmethod
    def empty(cls, like: Tensor, rows: int, heads: int, slots: int, width: int) -> "KVCache":
        return cls(like.new_empty(rows, heads, slots, width), like.new_empty(rows, heads, slots, width))

    @classmethod
    def static(cls, like: Tensor, rows: int, heads: int, slots: int, width: int) -> "KVCache":
        """A cache for static positions, with zeros in free slots: a mask does not remove NaN."""
        shape = (rows, heads, static_slots(slots), width)
        return cls(fixed_address(like.new_zeros(shape)), fixed_address(like.new_zeros(shape)))

    @property
    def slots(self) -> int:
        return self.keys.shape[2]

    def select(self, index: Int[Tensor, "K"], position: "CachePosition") -> "KVCache":
        """A copy of the chosen rows; of a cache that is not static, only the filled slots."""
        if position.static:
            return KVCache(*(fixed_address(part.index_select(0, index)) for part in self))
        filled = position.longest
        chosen = KVCache.empty(self.keys, len(index), self.keys.shape[1], self.slots, self.keys.shape[3])
        for old, new in zip(self, chosen, strict=True):
            torch.index_select(old[:, :, :filled], 0, index, out=new[:, :, :filled])
        return chosen


class CachePosition:
    """The slot that a step writes: slot `longest` in all rows, or slot `length` of each row. Steps attend to the first `filled`
    slots, of which `mask` tells those that a row has filled. A `static` position is for captured steps (`torch.compile`): it
    tells slots by tensors only, and `filled` is a multiple of `SLOTS_PER_GRAPH`, so that shapes stay for many steps."""

    def __init__(self, longest: int, length: Int[Tensor, "B"] | None = None, least: int = 0, *, static: bool = False):
        self.longest, self.slot, self.static = longest, length, static
        self._least = longest if length is None else least
        grain = SLOTS_PER_GRAPH if static else 1
        self.least = self._least // grain * grain  # no row is at a smaller slot
        self.filled = (longest // grain + 1) * grain
        if length is not None:
            self.row = torch.arange(len(length), device=length.device)
            self.distance: Int[Tensor, "B S"] = length[:, None] - torch.arange(self.filled, device=length.device)
            self.mask: Bool[Tensor, "B 1 1 S"] | None = (self.distance >= 0)[:, None, None]
        else:
            self.mask = None

    @classmethod
    def after(cls, longest: int, length: Int[Tensor, "B"] | None, *, static: bool = False) -> "CachePosition":
        """The position after `length` filled slots of each row, at most `longest`; None: all rows have filled as many."""
        if length is None or len(length) == 0:
            return cls(longest, length if static else None, longest, static=static)
        low, high = (int(bound) for bound in torch.stack(length.aminmax()).tolist())
        return cls(high, length if static or low < high else None, low, static=static)

    def next(self) -> "CachePosition":
        length = None if self.slot is None else self.slot + 1
        return CachePosition(self.longest + 1, length, self._least + 1, static=self.static)

    def select(self, index: Int[Tensor, "K"]) -> "CachePosition":
        length = None if self.slot is None else self.slot[index]
        if self.static or (length is not None and length.device.type != "cpu"):  # the bounds hold; to narrow them is to wait
            return CachePosition(self.longest, length, self._least, static=self.static)
        return CachePosition.after(self.longest, length)

    def write(self, cache: KVCache, kv: Float[Tensor, "B 2 H D"]) -> None:
        for part, new in zip(cache, kv.unbind(1), strict=True):
            if self.slot is None:
                part[:, :, self.longest] = new
            else:
                if not self.static:
                    part[:, :, self.longest] = 0.0  # uninitialized memory may hold NaN, which a mask does not remove
                part[self.row, :, self.slot] = new

    def write_stacked(self, cache: Float[Tensor, "P H B S D"], kv: Float[Tensor, "P H B D"]) -> None:
        if self.slot is None:
            cache[:, :, :, self.longest] = kv
        else:
            if not self.static:
                cache[:, :, :, self.longest] = 0.0  # uninitialized memory may hold NaN, which a mask does not remove
            cache[:, :, self.row, self.slot] = kv


def fixed_address(cache: Tensor) -> Tensor:
    """The cache, of which a CUDA graph writes to this memory, and not to a copy."""
    torch._dynamo.mark_static_address(cache, guard=False)
    return cache


def static_slots(slots: int) -> int:
    """The slots of a cache for static positions that has room for `slots`."""
    return -(-slots // SLOTS_PER_GRAPH) * SLOTS_PER_GRAPH


def attend_one(
    query: Float[Tensor, "B H D"], keys: Float[Tensor, "B H S D"], values: Float[Tensor, "B H S D"], mask: Tensor | None
) -> Float[Tensor, "B Y"]:
    """Attention of one position of each row. Written out on the CPU, where that is faster for one query than a fused kernel."""
    if query.device.type != "cpu":
        return scaled_dot_product_attention(query[:, :, None], keys, values, mask).flatten(1)
    score = (query[:, :, None] * query.shape[-1] ** -0.5) @ keys.transpose(-1, -2)
    if mask is not None:
        score.masked_fill_(~mask, -torch.inf)
    return (score.softmax(-1) @ values).flatten(1)


def check_free_slot(slot: int, slots: int) -> None:
    """Refuse a step beyond the slots of a cache."""
    if slot >= slots:
        raise ValueError(f"The state is full: all {slots} slots are filled. Nothing was computed; begin with more new tokens.")


TokenMixerStep = Callable[[Tensor, Tensor, CachePosition, Tensor], Tensor]
"""A token mixer for one position: it gets the input, the cache, to which it writes keys and values, the position, and the
residual, to which it adds its output."""


@dataclass(frozen=True)
class AttentionStep:
    """Relative attention of one position to the last R, or, with a `chunk`, to its chunk and the one before."""

    qkv: tuple[Float[Tensor, "*B X"], Float[Tensor, "W X"]]  # bias and weight of (scaled) query, key and value
    o_proj: Float[Tensor, "Y W"]
    rel_pos: Float[Tensor, "H D R"]  # the largest distance first
    rel_pos_bias: Float[Tensor, "H 1 R"]  # the part of the score that depends on the distance only
    chunk: int | None

    def __call__(
        self, x: StepVectors, cache: Float[Tensor, "2 H B S D"], position: CachePosition, residual: StepVectors
    ) -> StepVectors:
        rows, (heads, width, distances) = len(x), self.rel_pos.shape
        bias, weight = self.qkv
        parts = torch.addmm(bias, x, weight).view(rows, 3, heads, width).permute(1, 2, 0, 3)
        query = parts[0]
        position.write_stacked(cache, parts[1:])
        low = max(0, position.least - distances + 1 if self.chunk is None else (position.least // self.chunk - 1) * self.chunk)
        slots = position.filled - low
        if position.slot is None:
            score = torch.baddbmm(self.rel_pos_bias[:, :, distances - slots :], query, self.rel_pos[:, :, distances - slots :])
        else:
            score = self._score_by_slot(query, position, low)
        visible = cache[:, :, :, low : position.filled]
        if x.device.type != "cpu":
            keys, values = visible.unbind()
            attended = scaled_dot_product_attention(query[:, :, None], keys, values, score[:, :, None], scale=1.0)[:, :, 0]
        else:  # for one query faster than a fused kernel
            keys, values = visible.flatten(1, 2).unbind()
            score = score.view(-1, 1, slots).baddbmm_(query.reshape(-1, 1, width), keys.transpose(1, 2))
            attended = torch.bmm(score.softmax(-1), values).view(heads, rows, width)
        return torch.addmm(residual, attended.transpose(0, 1).reshape(rows, -1), self.o_proj)

    def _score_by_slot(self, query: Float[Tensor, "H B D"], position: CachePosition, low: int) -> Float[Tensor, "H B S"]:
        """The position term of the score of each slot from `low` on, for rows at different positions; -inf where a slot is not
        visible."""
        assert position.slot is not None
        by_distance = torch.baddbmm(self.rel_pos_bias, query, self.rel_pos)
        most, distance = by_distance.shape[2] - 1, position.distance[:, low:]
        furthest = most if self.chunk is None else (position.slot % self.chunk + self.chunk)[:, None]
        masked = (distance < 0) | (distance > furthest)
        index = (most - distance).clamp(0, most)
        return by_distance.gather(2, index.expand(len(by_distance), -1, -1)).masked_fill_(masked, -torch.inf)


@dataclass(frozen=True)
class BlockStep:
    """A block of token mixer and feed-forward part for one position, post-norm or pre-norm."""

    mixer: TokenMixerStep
    norms: tuple[LayerNormArgs, LayerNormArgs]
    up_proj: tuple[Tensor, Tensor]  # bias, and weight as [W, F]
    down_proj: tuple[Tensor, Tensor]
    pre: bool
    act: Activation = relu

    def __call__(self, x: Float[Tensor, "B W"], cache: Tensor, position: CachePosition) -> Float[Tensor, "B W"]:
        (up_bias, up), (down_bias, down), (first, second) = self.up_proj, self.down_proj, self.norms
        if self.pre:
            x = self.mixer(layer_norm(x, *first), cache, position, x)
            inner = self.act(torch.addmm(up_bias, layer_norm(x, *second), up))
            return torch.addmm(down_bias, inner, down).add_(x)
        x = layer_norm(self.mixer(x, cache, position, x), *first)
        inner = self.act(torch.addmm(up_bias, x, up))
        return layer_norm(torch.addmm(down_bias, inner, down).add_(x), *second)


class RowsByPrompt:
    """Which prompt each row continues, and the rows grouped by prompt: [B, ...] to [P, N, ...] and back."""

    def __init__(self, owner: Int[Tensor, "B"], prompts: int):
        self.owner, self.prompts = owner, prompts
        counts = owner.bincount(minlength=prompts)
        self.width = int(counts.max())
        rows = torch.arange(len(owner), device=owner.device)
        order = owner.argsort(stable=True)
        within = rows - (counts.cumsum(0) - counts)[owner[order]]
        slot = torch.empty_like(owner).index_copy(0, order, owner[order] * self.width + within)
        self.slot = None if len(owner) == prompts * self.width and torch.equal(slot, rows) else slot

    def arrange(self, rows: Float[Tensor, "B ..."]) -> Float[Tensor, "P N ..."]:
        if self.slot is not None:
            rows = rows.new_zeros(self.prompts * self.width, *rows.shape[1:]).index_copy(0, self.slot, rows)
        return rows.reshape(self.prompts, self.width, *rows.shape[1:])

    def restore(self, arranged: Float[Tensor, "P N ..."]) -> Float[Tensor, "B ..."]:
        rows = arranged.flatten(0, 1)
        return rows if self.slot is None else rows.index_select(0, self.slot)

    def select(self, index: Int[Tensor, "K"]) -> tuple["RowsByPrompt", Int[Tensor, "Q"] | None]:
        """The prompts of the chosen rows; and the prompts that still have rows, or None if all have."""
        owner = self.owner[index]
        used, renumbered = torch.unique(owner, return_inverse=True)
        if len(used) == self.prompts:
            return RowsByPrompt(owner, self.prompts), None
        return RowsByPrompt(renumbered, len(used)), used


@dataclass(frozen=True)
class UncachedDecoding:
    """The decoding steps of a network by whole passes; the state is the sequences so far."""

    network: Network

    def begin(self, prompts: Sequences, max_new_tokens: int) -> tuple[Float[Tensor, "B V"], Sequences]:
        return self._after(prompts), prompts

    def advance(self, state: Sequences, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], Sequences]:
        longer = _append_token(state, token)
        return self._after(longer), longer

    def select(self, state: Sequences, index: Int[Tensor, "K"]) -> Sequences:
        return state.rows(index)

    def _after(self, x: Sequences) -> Float[Tensor, "B V"]:
        """The logits after all tokens of each row, without dropout."""
        modes = [(module, module.training) for module in self.network.modules()]  # type: ignore[attr-defined]
        self.network.eval()  # type: ignore[attr-defined]
        try:
            hidden = self.network.hidden(_append_token(x, torch.zeros_like(x.stop)))
            return self.network.output(hidden[torch.arange(len(x), device=x.stop.device), x.stop])
        finally:
            for module, training in modes:
                module.training = training


def _append_token(x: Sequences, token: Int[Tensor, "B"]) -> Sequences:
    """Each row with one more token after its point."""
    tokens = torch.nn.functional.pad(x.tokens, (0, max(0, int(x.stop.max()) + 1 - x.tokens.shape[1]) if len(x) else 0))
    return Sequences(tokens.scatter(1, x.stop[:, None], token[:, None]), x.start, x.stop + 1)
