"""A causal Transformer, pre-norm with RMSNorm, GELU and no biases, with rotary or learned positions.

In a cache each row fills its own slots 0, 1, 2, ...; while all rows have the same length, there is no mask and no scatter.
Letters: W width, H heads, D = W / H, S slots of a cache.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, scaled_dot_product_attention

from esscher.core.space import Sequences
from esscher.heads.build import build_embedding, build_head
from esscher.heads.head import LogitsFn, NetworkWithHead
from esscher.networks.incremental_decoding import CachePosition, KVCache, StepVectors, Vectors, attend_one, check_free_slot
from esscher.networks.network import CompiledStep, prepend_bos, run_step, unpadded
from esscher.networks.transformer_config import TransformerConfig

INITIAL_STD = 0.02
ROPE_THETA = 10_000.0  # base of the wavelengths (Su et al. 2021)


class RotaryEmbedding(NamedTuple):
    """Rotary positions: the pair (i, i + D/2) of a vector is rotated by an angle proportional to the position."""

    cos: Float[Tensor, "*S D"]
    sin: Float[Tensor, "*S D"]  # negative in the first half

    @classmethod
    def of_positions(cls, count: int, width: int) -> "RotaryEmbedding":
        """The rotations of positions 0 to `count` - 1 for heads of this width."""
        half = width // 2
        frequency = ROPE_THETA ** -(torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(count, dtype=torch.float64)[:, None] * frequency
        cos, sin = angle.cos(), angle.sin()
        return cls(torch.cat([cos, cos], -1).float(), torch.cat([-sin, sin], -1).float())

    def at(self, position: "int | slice | Int[Tensor, 'B']") -> "RotaryEmbedding":
        """The rotations of some positions."""
        return RotaryEmbedding(self.cos[position], self.sin[position])

    def like(self, other: Tensor) -> "RotaryEmbedding":
        """The same with the dtype and device of another tensor."""
        return RotaryEmbedding(self.cos.to(other), self.sin.to(other))

    def __call__(self, vectors: Float[Tensor, "*S D"]) -> Float[Tensor, "*S D"]:
        return torch.addcmul(vectors * self.cos, vectors.roll(vectors.shape[-1] // 2, -1), self.sin)

    def apply_(self, vectors: Float[Tensor, "*S D"]) -> None:
        """Rotate in place."""
        other = vectors.roll(vectors.shape[-1] // 2, -1)
        vectors.mul_(self.cos).addcmul_(other, self.sin)


class AttentionMask(NamedTuple):
    """Which positions a position attends to: those up to itself (`causal`), or those where `mask` is True."""

    causal: bool
    mask: Bool[Tensor, "B 1 1 T"] | None = None


CAUSAL = AttentionMask(causal=True)


class TransformerBlock(nn.Module):
    """Self-attention and a feed-forward part, each with a residual connection."""

    checkpointed_methods: ClassVar[tuple[str, ...]] = ("forward",)

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float):
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.attention_norm, self.feedforward_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv_proj = nn.Linear(width, 3 * width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.up_proj = nn.Linear(width, feedforward, bias=False)
        self.down_proj = nn.Linear(feedforward, width, bias=False)

    def forward(
        self, x: Vectors, rotary: RotaryEmbedding | None, attention_mask: AttentionMask, *, use_dropout: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The output for whole sequences, and the keys and values, both [B, H, T, D]."""
        rate = self.rate if use_dropout else 0.0
        x, keys, values = self.attention(x, rotary, attention_mask, rate)
        return self.feed_forward(x, rate), keys, values

    def attention(
        self, x: Vectors, rotary: RotaryEmbedding | None, attention_mask: AttentionMask, rate: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The attention part, and the keys and values."""
        parts = self.qkv_proj(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        queries, keys = parts[:2] if rotary is None else rotary(parts[:2])
        attended = scaled_dot_product_attention(queries, keys, parts[2], attention_mask.mask, rate, attention_mask.causal)
        return x + dropout(self.o_proj(attended.transpose(1, 2).flatten(2)), rate), keys, parts[2]

    def feed_forward(self, x: Vectors, rate: float) -> Vectors:
        inner = gelu(self.up_proj(self.feedforward_norm(x)))
        return x + dropout(self.down_proj(inner), rate)

    def step(self, x: StepVectors, rotary: RotaryEmbedding | None, cache: KVCache, position: CachePosition) -> StepVectors:
        """The output for one position, written over x; keys and values are written into the cache."""
        return self.step_feed_forward(self.step_attention(x, rotary, cache, position))

    def step_attention(
        self, x: StepVectors, rotary: RotaryEmbedding | None, cache: KVCache, position: CachePosition
    ) -> StepVectors:
        parts = self.qkv_proj(self.attention_norm(x)).view(len(x), 3, self.heads, -1)
        if rotary is not None:
            rotary.apply_(parts[:, :2])
        position.write(cache, parts[:, 1:])
        keys, values = (part[:, :, : position.filled] for part in cache)
        return x.addmm_(attend_one(parts[:, 0], keys, values, position.mask), self.o_proj.weight.T)

    def step_feed_forward(self, x: StepVectors) -> StepVectors:
        inner = gelu(self.up_proj(self.feedforward_norm(x)))
        return x.addmm_(inner, self.down_proj.weight.T)


def init_transformer_weights(network: nn.Module, layers: int) -> None:
    """Normal weights; those of the residual branches have a variance of 1 / (2 layers)."""
    for name, weight in network.named_parameters():
        if weight.dim() > 1 and ".projections." not in name:
            residual = name.endswith(("o_proj.weight", "cross_o_proj.weight", "down_proj.weight"))
            nn.init.normal_(weight, std=INITIAL_STD / (2 * layers) ** 0.5 if residual else INITIAL_STD)


@dataclass(frozen=True)
class TransformerState:
    """Keys and values of each layer; slot t of a row belongs to its t-th input."""

    cache: tuple[KVCache, ...]
    logits: LogitsFn
    position: CachePosition

    def select(self, index: Int[Tensor, "K"]) -> "TransformerState":
        cache = tuple(kv.select(index, self.position) for kv in self.cache)
        return TransformerState(cache, self.logits, self.position.select(index))

    def next(self) -> "TransformerState":
        """The state after a step, which shares the cache."""
        return TransformerState(self.cache, self.logits, self.position.next())


class TransformerNetwork(NetworkWithHead):
    """A causal Transformer that reads tokens and a BOS symbol."""

    static_steps = False
    compiled_step: CompiledStep | None = None
    cos: Tensor
    sin: Tensor

    def __init__(self, config: TransformerConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size, self.max_positions = config, vocab_size, config.max_positions
        self.embedding = build_embedding(config, vocab_size, config.width)
        self.blocks = nn.ModuleList(
            [TransformerBlock(config.width, config.heads, config.feedforward, config.dropout) for _ in range(config.layers)]
        )
        self.final_norm = nn.RMSNorm(config.width)
        if config.positions == "learned":
            self.position = nn.Embedding(config.max_positions, config.width)
        else:
            rotary = RotaryEmbedding.of_positions(config.max_positions, config.width // config.heads)
            for name, values in rotary._asdict().items():
                self.register_buffer(name, values, persistent=False)
        self.head = build_head(config, vocab_size, config.width, self.embedding if config.tied else None, bias=False)
        init_transformer_weights(self, config.layers)

    def hidden(self, x: Sequences) -> Float[Tensor, "B T W"]:
        return self._pass(prepend_bos(x, self.vocab_size)[:, :-1], None)

    def encode(self, x: Sequences) -> Float[Tensor, "B U W"]:
        inputs = prepend_bos(x, self.vocab_size)
        inside = unpadded(inputs, x.stop)
        mask = None if inside is None else inside[:, None, None]
        return self._pass(inputs, None, AttentionMask(causal=False, mask=mask))

    def begin(self, prompts: Sequences, max_new_tokens: int) -> tuple[Float[Tensor, "B V"], TransformerState]:
        inputs, config = prepend_bos(prompts, self.vocab_size), self.config
        rows, longest = inputs.shape
        shape = (rows, config.heads, longest - 1 + max_new_tokens, config.width // config.heads)
        make = KVCache.static if self.static_steps else KVCache.empty
        cache = tuple(make(self.final_norm.weight, *shape) for _ in range(config.layers))
        hidden = self._pass(inputs, cache)
        after = hidden[torch.arange(rows, device=inputs.device), prompts.start]
        logits = self.head.logits_fn(max_new_tokens)
        position = CachePosition.after(longest, prompts.start + 1, static=self.static_steps)
        return logits(after), TransformerState(cache, logits, position)

    def advance(self, state: TransformerState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], TransformerState]:
        check_free_slot(state.position.longest, state.cache[0].slots)
        return run_step(self, state, token), state.next()

    def step_logits(self, state: TransformerState, token: Int[Tensor, "B"]) -> Float[Tensor, "B V"]:
        position = state.position
        slot = position.longest if position.slot is None else position.slot
        x, rotary = self.embedding(token), None
        if self.config.positions == "learned":
            x += self.position.weight[slot]
        else:
            rotary = RotaryEmbedding(self.cos[slot][..., None, None, :], self.sin[slot][..., None, None, :])
        for block, cache in zip(self.blocks, state.cache, strict=True):
            cast(TransformerBlock, block).step(x, rotary, cache, position)
        return state.logits(self.final_norm(x))

    def select(self, state: TransformerState, index: Int[Tensor, "K"]) -> TransformerState:
        return state.select(index)

    def _pass(
        self, inputs: Int[Tensor, "B T"], cache: tuple[KVCache, ...] | None, attention_mask: AttentionMask = CAUSAL
    ) -> Float[Tensor, "B T W"]:
        """The vectors after each input; with a cache to fill there is no dropout."""
        width, use_dropout = inputs.shape[1], self.training and cache is None
        x, rotary = self.embedding(inputs), None
        if self.config.positions == "learned":
            x = x + self.position.weight[:width]
        else:
            rotary = RotaryEmbedding(self.cos[:width], self.sin[:width])
        x = dropout(x, self.config.dropout, use_dropout)
        for number, block in enumerate(self.blocks):
            x, keys, values = block(x, rotary, attention_mask, use_dropout=use_dropout)
            if cache is not None:
                cache[number].keys[:, :, :width], cache[number].values[:, :, :width] = keys, values
        return self.final_norm(x)
