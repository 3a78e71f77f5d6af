"""Transformer-XL (Dai et al. 2019): a causal Transformer whose layers have a memory; also Local-XL and convolutions.

In training the memory holds the inputs of each layer, so that keys and values follow the weights; otherwise it holds the keys
and values. Scoring, sampling and reading a stream give one distribution: every position sees `config.effective_attention_span`
positions back, however the text is cut. In training a position of a stream sees the whole memory and its segment (unless
`same_length`), as published. Letters: W width, H heads, D width of a head, P tensors of `kv`, L segment length, S cache slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout

from esscher.core.space import Sequences
from esscher.heads.adaptive import PROJECTION_STD
from esscher.heads.build import build_embedding, build_head
from esscher.heads.head import LogitsFn, NetworkWithHead, matmul_layout
from esscher.networks.incremental_decoding import (
    ACTIVATIONS,
    BlockStep,
    CachePosition,
    Vectors,
    check_free_slot,
    fixed_address,
    static_slots,
)
from esscher.networks.network import CompiledStep, Memory, prepend_bos, run_step, unpadded
from esscher.networks.regularization import variational_dropout
from esscher.networks.relative_attention_ops import sinusoids
from esscher.networks.token_mixers import AttentionContext, LightConv, RelativeAttention, SinusoidFn
from esscher.networks.transformer_config import TransformerXLConfig

INITIAL_STD = 0.02
MAX_PASS_LENGTH = 2048  # positions of a pass without gradient; longer rows are read in segments


@dataclass(frozen=True)
class XLState:
    """Keys and values of each layer; slot t of a row belongs to its t-th input."""

    caches: tuple[Tensor, ...]  # [P, H, B, S, D]; P and D depend on the layer
    steps: tuple[BlockStep, ...]
    head: LogitsFn
    position: CachePosition


class XLBlock(nn.Module):
    """A token mixer and a feed-forward part, each with a residual connection, post-norm or pre-norm."""

    checkpointed_methods: ClassVar[tuple[str, ...]] = ("forward", "kv")

    def __init__(self, config: TransformerXLConfig, layer: int):
        super().__init__()
        self.config = config
        kind, span = config.mixer(layer)
        self.mixer: RelativeAttention | LightConv
        if kind.endswith("conv"):
            self.mixer = LightConv(config, span, dynamic=kind == "dynamicconv")
        else:
            self.mixer = RelativeAttention(config, span if kind == "local" else None)
        self.norms = nn.ModuleList([nn.LayerNorm(config.width, config.eps) for _ in range(2)])
        self.up_proj = nn.Linear(config.width, config.feedforward)
        self.down_proj = nn.Linear(config.feedforward, config.width)

    def kv(self, x: Float[Tensor, "B T W"]) -> Float[Tensor, "P H B T D"]:
        """What other positions need of each position."""
        return self.mixer.kv(self.norms[0](x) if self.config.norm == "pre" else x)

    def forward(self, x: Vectors, kv: Tensor, biases: Tensor, context: AttentionContext) -> Vectors:
        """The output at the last T of K positions."""
        config, pre = self.config, self.config.norm == "pre"
        mixed = apply_dropout(self.mixer.forward(self.norms[0](x) if pre else x, kv, biases, context), config, context)
        x = x + mixed if pre else self.norms[0](x + mixed)
        inner = ACTIVATIONS[config.activation](self.up_proj(self.norms[1](x) if pre else x))
        out = x + apply_dropout(self.down_proj(apply_dropout(inner, config, context)), config, context)
        return out if pre else self.norms[1](out)

    def step(self, slots: int, steps: int, biases: Tensor, sinusoids: SinusoidFn) -> BlockStep:
        """The block for one position, with the current weights."""
        norms = (cast(nn.LayerNorm, norm) for norm in self.norms)
        first, second = ((norm.normalized_shape, norm.weight, norm.bias, norm.eps) for norm in norms)
        up_proj, down_proj = ((part.bias, matmul_layout(part.weight, steps).T) for part in (self.up_proj, self.down_proj))
        mixer, activation = self.mixer.step(slots, steps, biases, sinusoids), ACTIVATIONS[self.config.activation]
        return BlockStep(mixer, (first, second), up_proj, down_proj, self.config.norm == "pre", activation)


class TransformerXLNetwork(NetworkWithHead):
    """A stack of blocks with a memory."""

    max_positions = None
    static_steps = False
    compiled_step: CompiledStep | None = None

    def __init__(self, config: TransformerXLConfig, vocab_size: int, blocks: Sequence[nn.Module] | None = None):
        super().__init__()
        self.config, self.vocab_size, self.bos = config, vocab_size, vocab_size
        self.embedding = build_embedding(config, vocab_size, config.width)
        self.head = build_head(config, vocab_size, config.width, self.embedding if config.tied else None)
        self.blocks = nn.ModuleList(blocks or [XLBlock(config, layer) for layer in range(config.layers)])
        head_width = config.head_width or config.width // config.heads
        biases = torch.empty(config.layers if config.untied_biases else 1, 2, config.heads, head_width)
        self.biases = nn.Parameter(biases) if config.uses("full", "local") else None
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(weight)
            elif ".norms." in name:
                nn.init.normal_(weight, 1.0, INITIAL_STD)
            elif ".projections." in name:
                nn.init.normal_(weight, std=PROJECTION_STD)
            elif name.endswith("kernel"):
                nn.init.xavier_uniform_(weight)
            else:
                nn.init.normal_(weight, std=INITIAL_STD)

    def hidden(self, x: Sequences) -> Float[Tensor, "B T W"]:
        inputs = prepend_bos(x, self.bos)[:, :-1]
        if inputs.numel() == 0:
            return self._embed(inputs)
        return torch.cat([hidden for hidden, _ in self._segments(inputs, training=self.training)], 1)

    def set_attention_span(self, attention_span: int | None, clamp_len: int | None) -> None:
        """Change how far back positions attend when scoring and sampling, and the largest distinct distance; None keeps it."""
        attention_span = self.config.attention_span if attention_span is None else attention_span
        clamp_len = self.config.clamp_len if clamp_len is None else clamp_len
        self.config = replace(self.config, attention_span=attention_span, clamp_len=clamp_len)
        for part in self.modules():
            if isinstance(part, XLBlock | RelativeAttention | LightConv):
                part.config = self.config

    def encode(self, x: Sequences) -> Float[Tensor, "B U W"]:
        inputs = prepend_bos(x, self.bos)
        context = replace(self._attention_context(self.training), causal=False, inside=unpadded(inputs, x.stop))
        return self._pass(inputs, None, context)[0]

    def init_memory(self, rows: int) -> Memory:
        """The number of positions read of each stream, and the inputs of each layer: none."""
        inputs = [self._like.new_empty(rows, 0, self.config.width) for _ in self._stack]
        return (torch.zeros(rows, dtype=torch.long, device=self._like.device), *inputs)

    def read(self, inputs: Int[Tensor, "B L"], memory: Memory) -> tuple[Float[Tensor, "B L W"], Memory]:
        if inputs.numel() == 0:
            return self._embed(inputs), memory
        first, *past = memory
        context = self._attention_context(self.training, first=int(first[0]))
        if self.training:
            context = replace(context, attention_span=self.config.memory if self.config.same_length else None)
        hidden, _, memories = self._pass(inputs, past, context)
        if self.config.effective_attention_span is None:  # without a memory, segments are independent
            return hidden, (first, *past)
        return hidden, (first + inputs.shape[1], *memories)

    def begin(self, prompts: Sequences, max_new_tokens: int) -> tuple[Float[Tensor, "B V"], XLState]:
        inputs = prepend_bos(prompts, self.bos)
        rows, longest = inputs.shape
        segments, slots, done = self._segments(inputs, training=False), longest - 1 + max_new_tokens, 0
        caches = [self._empty_cache(new, slots) for new in segments[0][1]]
        for vectors, kv in segments:
            for cache, new in zip(caches, kv, strict=True):
                cache[..., done : done + vectors.shape[1], :] = new
            done += vectors.shape[1]
        after = torch.cat([vectors for vectors, _ in segments], 1)[torch.arange(rows, device=inputs.device), prompts.start]
        position = CachePosition.after(longest, prompts.start + 1, static=self.static_steps)
        state = self._state(caches, position, max_new_tokens)
        return state.head(after), state

    @property
    def can_resume(self) -> bool:
        """Whether steps may start from a memory: chunks are counted from the start of a stream, which a state does not know."""
        return not self.config.uses("local") or self.config.effective_attention_span is None

    def resume(self, inputs: Int[Tensor, "B L"], memory: Memory, max_new_tokens: int) -> tuple[Float[Tensor, "B V"], XLState]:
        first, *past = memory
        hidden, _, memories = self._pass(inputs, past, self._attention_context(False, int(first[0])))
        kv = [memory.movedim(0, 2) for memory in memories]
        filled = max(old.shape[3] for old in kv)
        caches = [self._empty_cache(old, filled - 1 + max_new_tokens).zero_() for old in kv]
        for cache, old in zip(caches, kv, strict=True):
            cache[..., filled - old.shape[3] : filled, :] = old  # the last position of all layers is in one slot
        length = torch.full_like(first, filled) if self.static_steps else None
        state = self._state(caches, CachePosition.after(filled, length, static=self.static_steps), max_new_tokens)
        return state.head(hidden[:, -1]), state

    def _empty_cache(self, kv: Float[Tensor, "P H B T D"], slots: int) -> Float[Tensor, "P H B S D"]:
        if not self.static_steps:
            return kv.new_empty(*kv.shape[:3], slots, kv.shape[4])
        return fixed_address(kv.new_zeros(*kv.shape[:3], static_slots(slots), kv.shape[4]))

    def _state(self, caches: list[Tensor], position: CachePosition, max_new_tokens: int) -> XLState:
        sinusoids, slots = self._attention_context(training=False).sinusoids, caches[0].shape[3]
        stack = zip(self._stack, self._biases, strict=True)
        steps = [cast(XLBlock, block).step(slots, max_new_tokens, biases, sinusoids) for block, biases in stack]
        return XLState(tuple(caches), tuple(steps), self.head.logits_fn(max_new_tokens), position)

    def advance(self, state: XLState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], XLState]:
        check_free_slot(state.position.longest, state.caches[0].shape[3])
        return run_step(self, state, token), XLState(state.caches, state.steps, state.head, state.position.next())

    def step_logits(self, state: XLState, token: Int[Tensor, "B"]) -> Float[Tensor, "B V"]:
        # views are cheaper in inference mode; the logits, computed outside, are an ordinary tensor
        with torch.no_grad() if state.position.static else torch.inference_mode():
            x = self._step_tokens(token, state)
        return state.head(x)

    def select(self, state: XLState, index: Int[Tensor, "K"]) -> XLState:
        caches, filled = [], state.position.longest
        for old in state.caches:
            if state.position.static:
                cache = fixed_address(old.index_select(2, index))
            else:
                cache = old.new_empty(*old.shape[:2], len(index), *old.shape[3:])
                cache[..., :filled, :] = old[..., :filled, :].index_select(2, index)
            caches.append(cache)
        return replace(state, caches=tuple(caches), position=state.position.select(index))

    def _step_tokens(self, token: Int[Tensor, "B"], state: XLState) -> Float[Tensor, "B W"]:
        """The vector after one more token, whose keys and values are written into the caches."""
        x = self._embed(token)
        for step, cache in zip(state.steps, state.caches, strict=True):
            x = step(x, cache, state.position)
        return x

    def _segments(self, inputs: Int[Tensor, "B T"], *, training: bool) -> list[tuple[Tensor, list[Tensor]]]:
        """Vectors and keys and values of rows from their start; in segments where no gradient is needed."""
        length = max(1, inputs.shape[1]) if training or torch.is_grad_enabled() else MAX_PASS_LENGTH
        segments, first, past = [], 0, None
        for segment in torch.split(inputs, length, 1):
            hidden, kv, past = self._pass(segment, past, self._attention_context(training, first))
            segments.append((hidden, kv))
            first += segment.shape[1]
        return segments

    def _pass(
        self, inputs: Int[Tensor, "B T"], past: Sequence[Tensor] | None, context: AttentionContext
    ) -> tuple[Float[Tensor, "B T W"], list[Tensor], list[Tensor]]:
        """The vectors of new positions, their keys and values in each layer, and the memory of each layer after them."""
        x = apply_dropout(self._embed(inputs), self.config, context)
        axis, new_kv, memories = 1 if context.training else 3, [], []
        for number, (module, biases) in enumerate(zip(self.blocks, self._biases, strict=True)):
            block = cast(XLBlock, module)
            before = x[:, :0] if past is None else past[number]
            new = block.kv(x) if before.dim() == 5 or before.shape[1] == 0 else block.kv(torch.cat([before, x], 1))
            kv = torch.cat([before.movedim(0, 2), new], 3) if before.dim() == 5 else new
            memory = torch.cat([before, x], 1) if context.training else kv.movedim(2, 0)
            memory_length = block.mixer.memory_length(training=context.training)
            memories.append(memory.narrow(axis, *tail_range(memory.shape[axis], memory_length)).detach())
            new_kv.append(kv[..., kv.shape[3] - x.shape[1] :, :])
            x = block(x, kv, biases, context)
        return apply_dropout(x, self.config, context), new_kv, memories

    def _attention_context(self, training: bool, first: int = 0) -> AttentionContext:
        """The context of scoring and sampling; all layers of a pass share one table of sinusoids."""
        config = self.config
        table = sinusoid_table(config.width, config.dropout if training else 0.0, config.clamp_len, self._like)
        return AttentionContext(table, training, first, config.effective_attention_span)

    @property
    def _stack(self) -> Sequence[nn.Module]:
        """The blocks in the order of computation."""
        return list(self.blocks)

    @property
    def _biases(self) -> tuple[Tensor, ...]:
        """The two biases of the relative score of each layer; empty if all layers are convolutions."""
        if self.biases is None:
            return (self._like.new_empty(0),) * self.config.layers
        return self.biases.expand(self.config.layers, -1, -1, -1).unbind(0)

    def _embed(self, tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S W"]:
        """Embeddings times the square root of the width, which an adaptive input includes."""
        vectors = self.embedding(tokens)
        return vectors if self.config.cutoffs else vectors * self.config.width**0.5


def sinusoid_table(width: int, rate: float, clamp_len: int | None, like: Tensor) -> SinusoidFn:
    """The sinusoids of ranges of distances, computed and dropped out once for all layers of a pass. A layer that is computed
    again (`esscher.networks.gradient_checkpointing`) starts from the same state of the generator and gets the same dropout."""
    tables = dict[tuple[int, int], tuple[Tensor, Tensor]]()

    def table(first: int, last: int) -> Float[Tensor, "R W"]:
        rng_state = _rng_state(like.device) if rate else torch.empty(0)
        if (first, last) not in tables or (rate and torch.equal(rng_state, tables[first, last][1])):
            step = 1 if first < last else -1
            distance = torch.arange(first, last + step, step, device=like.device)
            distance = distance if clamp_len is None else distance.clamp(-clamp_len, clamp_len)
            tables[first, last] = dropout(sinusoids(distance, width, like.dtype), rate), rng_state
        return tables[first, last][0]

    return table


def _rng_state(device: torch.device) -> Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)


def apply_dropout(x: Float[Tensor, "*S W"], config: TransformerXLConfig, context: AttentionContext) -> Float[Tensor, "*S W"]:
    """Dropout in training; with `variational`, one mask for all positions of a row."""
    if not context.training or not config.dropout:
        return x
    return variational_dropout(x, config.dropout, True) if config.variational else dropout(x, config.dropout)


def tail_range(length: int, memory_length: int | None) -> tuple[int, int]:
    """Start and size of the last `memory_length` positions."""
    size = length if memory_length is None else min(length, memory_length)
    return length - size, size
