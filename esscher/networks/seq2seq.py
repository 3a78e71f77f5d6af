"""Networks that encode a source, the prompt, and decode a target, the point: a Transformer and an LSTM with attention.

Encoder and decoder each read a BOS symbol first and count positions from their own start; there is no maximal length. Rows that
continue one prompt share its keys and values (`esscher.networks.incremental_decoding.RowsByPrompt`). The attentive LSTM (Luong
et al. 2015): with h the decoder vector before a token and s the encoder vectors, the attention weights are softmax(h A s), the
context c is their mean of s, and the output vector is tanh(C [c, h]), which is not fed back.

Shape letters as in `esscher.networks.transformer`; L layers, P prompts, S slots of the target or positions of a source.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from esscher.core.space import Sequences, scatter_point_values
from esscher.heads.build import build_embedding, build_head
from esscher.heads.head import NetworkWithHead
from esscher.networks.incremental_decoding import CachePosition, KVCache, RowsByPrompt, StepVectors, Vectors, check_free_slot
from esscher.networks.network import prepend_bos, shift_right, unpadded
from esscher.networks.recurrent import RecurrentState, cells_in_weight_dtype, step_layers
from esscher.networks.seq2seq_config import AttentiveLstmConfig, EncoderDecoderConfig
from esscher.networks.transformer import (
    CAUSAL,
    AttentionMask,
    RotaryEmbedding,
    TransformerBlock,
    TransformerState,
    init_transformer_weights,
)


@dataclass(frozen=True)
class _EncodedSource:
    """Keys and values of the sources for each decoder layer, and a mask that is False on padding."""

    kv: Float[Tensor, "L 2 P H S D"]
    inside: Bool[Tensor, "P 1 1 S"] | None

    def rows(self, index: Int[Tensor, "Q"]) -> "_EncodedSource":
        return _EncodedSource(self.kv.index_select(2, index), None if self.inside is None else self.inside[index])


@dataclass(frozen=True)
class _EncoderDecoderState:
    """The encoded sources, the source of each row, and the state of the decoder."""

    source: _EncodedSource
    rows_by_prompt: RowsByPrompt
    decoder: TransformerState
    rotary: RotaryEmbedding


class DecoderBlock(TransformerBlock):
    """A block with cross-attention to the source between self-attention and feed-forward part."""

    checkpointed_methods: ClassVar[tuple[str, ...]] = ("cross_kv", "decode")

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float):
        super().__init__(width, heads, feedforward, dropout)
        self.cross_attention_norm = nn.RMSNorm(width)
        self.cross_q_proj = nn.Linear(width, width, bias=False)
        self.cross_kv_proj = nn.Linear(width, 2 * width, bias=False)
        self.cross_o_proj = nn.Linear(width, width, bias=False)

    def cross_kv(self, source: Float[Tensor, "P S W"]) -> Float[Tensor, "2 P H S D"]:
        """Keys and values of the sources."""
        return self.cross_kv_proj(source).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def decode(
        self, x: Vectors, rotary: RotaryEmbedding, kv: Float[Tensor, "2 B H S D"], inside: Tensor | None, rate: float
    ) -> Vectors:
        """The output for whole targets, one source per row."""
        x, _, _ = self.attention(x, rotary, CAUSAL, rate)
        query = self.cross_q_proj(self.cross_attention_norm(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        attended = scaled_dot_product_attention(query, kv[0], kv[1], inside, rate)
        return self.feed_forward(x + dropout(self.cross_o_proj(attended.transpose(1, 2).flatten(2)), rate), rate)

    def step_decode(self, x: StepVectors, state: _EncoderDecoderState, layer: int, rotary: RotaryEmbedding) -> StepVectors:
        """The output for one position, written over x; keys and values are written into the cache."""
        self.step_attention(x, rotary, state.decoder.cache[layer], state.decoder.position)
        keys, values = state.source.kv[layer]
        query = self.cross_q_proj(self.cross_attention_norm(x)).view(len(x), self.heads, -1) * keys.shape[-1] ** -0.5
        score = state.rows_by_prompt.arrange(query).transpose(1, 2) @ keys.transpose(-1, -2)  # [P, H, N, S]
        if state.source.inside is not None:
            score.masked_fill_(~state.source.inside, -torch.inf)
        attended = state.rows_by_prompt.restore((score.softmax(-1) @ values).transpose(1, 2))
        return self.step_feed_forward(x.addmm_(attended.reshape(x.shape), self.cross_o_proj.weight.T))


class EncoderDecoderNetwork(NetworkWithHead):
    """An encoder-decoder Transformer over one vocabulary."""

    max_positions = None

    def __init__(self, config: EncoderDecoderConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.embedding = build_embedding(config, vocab_size, config.width)
        sizes = (config.width, config.heads, config.feedforward, config.dropout)
        self.encoder_blocks = nn.ModuleList([TransformerBlock(*sizes) for _ in range(config.encoders)])
        self.decoder_blocks = nn.ModuleList([DecoderBlock(*sizes) for _ in range(config.layers)])
        self.encoder_norm, self.final_norm = nn.RMSNorm(config.width), nn.RMSNorm(config.width)
        self.head = build_head(config, vocab_size, config.width, self.embedding if config.tied else None, bias=False)
        init_transformer_weights(self, max(config.encoders, config.layers))

    def hidden(self, x: Sequences) -> Float[Tensor, "B T W"]:
        source = self._encode(x.prompts(), use_dropout=self.training)
        inputs = shift_right(x, self.vocab_size)
        rate = self.config.dropout if self.training else 0.0
        vectors = dropout(self.embedding(inputs), rate)
        rotary = self._rotary(inputs.shape[1])
        for block, kv in zip(self.decoder_blocks, source.kv, strict=True):
            vectors = cast(DecoderBlock, block).decode(vectors, rotary, kv, source.inside, rate)
        return scatter_point_values(x, self.final_norm(vectors))

    def begin(self, prompts: Sequences, max_new_tokens: int) -> tuple[Float[Tensor, "B V"], _EncoderDecoderState]:
        source, rows = self._encode(prompts, use_dropout=False), len(prompts)
        layers, _, _, heads, _, width = source.kv.shape
        cache = tuple(KVCache.empty(source.kv, rows, heads, max_new_tokens, width) for _ in range(layers))
        rows_by_prompt = RowsByPrompt(torch.arange(rows, device=prompts.tokens.device), rows)
        decoder = TransformerState(cache, self.head.logits_fn(max_new_tokens), CachePosition(0))
        state = _EncoderDecoderState(source, rows_by_prompt, decoder, self._rotary(max_new_tokens))
        return self.advance(state, torch.full((rows,), self.vocab_size, device=prompts.tokens.device))

    def advance(
        self, state: _EncoderDecoderState, token: Int[Tensor, "B"]
    ) -> tuple[Float[Tensor, "B V"], _EncoderDecoderState]:
        slot = state.decoder.position.longest
        check_free_slot(slot, state.decoder.cache[0].slots)
        x, rotary = self.embedding(token), state.rotary.at(slot)
        for layer, block in enumerate(self.decoder_blocks):
            cast(DecoderBlock, block).step_decode(x, state, layer, rotary)
        return state.decoder.logits(self.final_norm(x)), replace(state, decoder=state.decoder.next())

    def select(self, state: _EncoderDecoderState, index: Int[Tensor, "K"]) -> _EncoderDecoderState:
        rows_by_prompt, used = state.rows_by_prompt.select(index)
        source = state.source if used is None else state.source.rows(used)
        return replace(state, source=source, rows_by_prompt=rows_by_prompt, decoder=state.decoder.select(index))

    def _encode(self, prompts: Sequences, *, use_dropout: bool) -> _EncodedSource:
        """Keys and values of the sources for each decoder layer."""
        inputs = prepend_bos(prompts, self.vocab_size)
        inside = unpadded(inputs, prompts.start)
        mask = None if inside is None else inside[:, None, None]
        vectors = dropout(self.embedding(inputs), self.config.dropout, use_dropout)
        rotary, attention_mask = self._rotary(inputs.shape[1]), AttentionMask(causal=False, mask=mask)
        for block in self.encoder_blocks:
            vectors, _, _ = block(vectors, rotary, attention_mask, use_dropout=use_dropout)
        encoded = self.encoder_norm(vectors)
        return _EncodedSource(torch.stack([cast(DecoderBlock, block).cross_kv(encoded) for block in self.decoder_blocks]), mask)

    def _rotary(self, positions: int) -> RotaryEmbedding:
        config = self.config
        return RotaryEmbedding.of_positions(positions, config.width // config.heads).like(self.final_norm.weight)


@dataclass(frozen=True)
class _LstmEncodedSource:
    """Keys and values of the sources, a mask that is False on padding, and the initial state of the decoder."""

    keys: Float[Tensor, "P S W"]
    values: Float[Tensor, "P S W"]
    inside: Bool[Tensor, "P 1 S"]
    start: Float[Tensor, "P 2 L W"]  # hidden vectors and cells of each layer

    def rows(self, index: Int[Tensor, "Q"]) -> "_LstmEncodedSource":
        return _LstmEncodedSource(self.keys[index], self.values[index], self.inside[index], self.start[index])

    def context(self, hidden: Float[Tensor, "P N W"]) -> Float[Tensor, "P N W"]:
        """The attention context of each decoder vector."""
        score = hidden @ self.keys.transpose(1, 2)
        return score.masked_fill(~self.inside, -torch.inf).softmax(-1) @ self.values


@dataclass(frozen=True)
class _AttentiveLstmState:
    """The encoded sources, the source of each row, and the state of the decoder."""

    source: _LstmEncodedSource
    rows_by_prompt: RowsByPrompt
    cells: RecurrentState


class AttentiveLstmNetwork(NetworkWithHead):
    """A bidirectional LSTM encoder and an LSTM decoder with attention, over one vocabulary."""

    max_positions = None

    def __init__(self, config: AttentiveLstmConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        width, between = config.width, config.dropout if config.layers > 1 else 0.0
        self.embedding = build_embedding(config, vocab_size, config.input_width)
        if isinstance(self.embedding, nn.Embedding):
            nn.init.normal_(self.embedding.weight, std=config.input_width**-0.5)
        widths = [config.input_width, *(width,) * (config.encoders - 1)]
        self.encoder_layers = nn.ModuleList(
            [nn.LSTM(below, width // 2, batch_first=True, bidirectional=True) for below in widths]
        )
        self.cells = nn.LSTM(config.input_width, width, config.layers, batch_first=True, dropout=between)
        self.init_state_proj = nn.Linear(width, 2 * config.layers * width)
        self.key_proj = nn.Linear(width, width, bias=False)
        self.context_proj = nn.Linear(2 * width, width)
        self.head = build_head(config, vocab_size, width, self.embedding if config.tied else None)

    def hidden(self, x: Sequences) -> Float[Tensor, "B T W"]:
        if not bool(x.counted.any()):
            return self.init_state_proj.weight.new_zeros(*x.tokens.shape, self.config.width)
        source = self._encode(x.prompts(), use_dropout=self.training)
        vectors = dropout(self.embedding(shift_right(x, self.vocab_size)), self.config.dropout, self.training)
        hidden, cell = source.start.to(self._like.dtype).permute(1, 2, 0, 3).contiguous()
        with cells_in_weight_dtype():
            decoded, _ = self.cells(vectors.to(hidden.dtype), (hidden, cell))
        combined = self._combine(decoded, source.context(decoded))
        return scatter_point_values(x, dropout(combined, self.config.dropout, self.training))

    def begin(self, prompts: Sequences, max_new_tokens: int) -> tuple[Float[Tensor, "B V"], _AttentiveLstmState]:
        parts = [(self.cells, layer) for layer in range(self.config.layers)]
        layers = step_layers(parts, self.embedding, self.vocab_size + 1)
        source, rows = self._encode(prompts, use_dropout=False), len(prompts)
        hidden, cell = (tuple(layer.clone() for layer in part.unbind(1)) for part in source.start.unbind(1))
        cells = RecurrentState(hidden, cell, *layers, self.head.logits_fn(max_new_tokens))
        state = _AttentiveLstmState(source, RowsByPrompt(torch.arange(rows, device=prompts.tokens.device), rows), cells)
        return self.advance(state, torch.full((rows,), self.vocab_size, device=prompts.tokens.device))

    def advance(self, state: _AttentiveLstmState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], _AttentiveLstmState]:
        state.cells.step(token)
        hidden = state.cells.hidden[-1]
        context = state.rows_by_prompt.restore(state.source.context(state.rows_by_prompt.arrange(hidden)))
        return state.cells.logits(self._combine(hidden, context)), state

    def select(self, state: _AttentiveLstmState, index: Int[Tensor, "K"]) -> _AttentiveLstmState:
        rows_by_prompt, used = state.rows_by_prompt.select(index)
        source = state.source if used is None else state.source.rows(used)
        return replace(state, source=source, rows_by_prompt=rows_by_prompt, cells=state.cells.select(index))

    def _combine(self, hidden: Float[Tensor, "*S W"], context: Float[Tensor, "*S W"]) -> Float[Tensor, "*S W"]:
        """The output vector."""
        return self.context_proj(torch.cat([context, hidden], -1)).tanh()

    def _encode(self, prompts: Sequences, *, use_dropout: bool) -> _LstmEncodedSource:
        inputs, rate = prepend_bos(prompts, self.vocab_size), self.config.dropout if use_dropout else 0.0
        inside = (torch.arange(inputs.shape[1], device=inputs.device) <= prompts.start[:, None])[:, None]
        values = dropout(self.embedding(inputs), rate)
        final = self.init_state_proj.weight.new_zeros(len(prompts), self.config.width)
        for encoder in self.encoder_layers if len(prompts) else ():
            lengths = (prompts.start + 1).cpu()
            packed = pack_padded_sequence(values.to(final.dtype), lengths, batch_first=True, enforce_sorted=False)
            with cells_in_weight_dtype():
                encoded, (last, _) = encoder(packed)
            values = dropout(pad_packed_sequence(encoded, batch_first=True, total_length=inputs.shape[1])[0], rate)
            final = last.transpose(0, 1).flatten(1)
        start = self.init_state_proj(final).tanh().view(len(prompts), 2, self.config.layers, self.config.width)
        return _LstmEncodedSource(self.key_proj(values), values, inside, start)
