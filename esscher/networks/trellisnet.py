"""TrellisNet (Bai et al. 2019): layers of one causal convolution of kernel size 2, with the gates of an LSTM.

A layer computes the gates i, o, g, f of a position from the hidden vectors of the layer below at this position and `span`
positions before, and from the embeddings at both: c = sigmoid(f) c' + sigmoid(i) tanh(g), h = sigmoid(o) tanh(c), with c' the
cell of the layer below, `span` positions before; everything is 0 below the first layer and before the first position. All
layers share their weights. A memory holds the last inputs of each layer, so that a stream is one long row however it is cut. A
training pass keeps the outputs of some layers until `log_probs` gets the tokens: their likelihoods are a part of `penalty`.

Letters: W width of the output, H units of a layer, G = 4 H, L inputs of a segment, N the sum of the spans of all layers above
the first, R the largest span, I width of the embeddings.
"""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout

from esscher.core.space import Sequences
from esscher.heads.build import build_head, init_embedding_and_head
from esscher.heads.head import LogitsFn, LogProbsAndLogsumexp, matmul_layout
from esscher.networks.network import Memory, prepend_bos
from esscher.networks.recurrent_config import TrellisNetConfig
from esscher.networks.regularization import ActivationRegularized, SegmentOutput, variational_dropout, word_dropout

INITIAL_STD = 0.01


@dataclass(frozen=True)
class _ConvWeights:
    """The convolution of embeddings and of hidden vectors, at the position `span` before and now, transposed for products."""

    input_past: Float[Tensor, "I G"]
    input_now: Float[Tensor, "I G"]
    bias: Float[Tensor, "G"]
    past: Float[Tensor, "H G"]
    now: Float[Tensor, "H G"]


@dataclass(frozen=True)
class _TrellisState:
    """The last inputs of each layer, and the past input gates, in ring buffers: index t mod span belongs to step t."""

    hidden: Float[Tensor, "N B H"]
    cells: Float[Tensor, "N B H"]
    input_gates: Float[Tensor, "R B G"]
    weights: _ConvWeights
    head: LogitsFn
    count: int  # steps since the state was made; the same for all rows


class TrellisNetwork(ActivationRegularized):
    """A TrellisNet."""

    max_positions = None
    config: TrellisNetConfig

    def __init__(self, config: TrellisNetConfig, vocab_size: int):
        super().__init__(config, vocab_size)
        units = config.inner + config.width
        self.input_past = nn.Linear(config.input_width, 4 * units, bias=False)
        self.input_now = nn.Linear(config.input_width, 4 * units)
        self.past = nn.Linear(units, 4 * units, bias=False)
        self.now = nn.Linear(units, 4 * units, bias=False)
        self.head = build_head(config, vocab_size, config.width, self.embedding if config.tied else None)
        for name, weight in self.named_parameters():
            init_embedding_and_head(name, weight)
            if name.startswith(("input_", "past.", "now.")):
                nn.init.normal_(weight, std=INITIAL_STD)
        self._unscored: tuple[Tensor, list[Tensor]] | None = None  # output of a pass, and of its auxiliary layers
        self._warned = False

    def init_memory(self, rows: int) -> Memory:
        """No tokens, and hidden vectors and cells of 0."""
        spans, like = self.config.spans, self.past.weight
        zeros = like.new_zeros(rows, sum(spans[1:]), self.past.in_features)
        return torch.full((rows, max(spans)), -1, device=like.device), zeros, zeros.clone()

    def log_probs(self, hidden: Float[Tensor, "*S W"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        self._add_auxiliary_loss(hidden, tokens)
        return super().log_probs(hidden, tokens)

    def log_probs_and_logsumexp(self, hidden: Float[Tensor, "*S W"], tokens: Int[Tensor, "*S"]) -> LogProbsAndLogsumexp:
        self._add_auxiliary_loss(hidden, tokens)
        return super().log_probs_and_logsumexp(hidden, tokens)

    def penalty(self) -> Float[Tensor, ""] | None:
        """The activation penalty and the auxiliary loss of the last training pass, returned once."""
        if self._unscored is not None and not self._warned:
            warnings.warn(
                f"The output of a training pass was not scored by log_probs, so its auxiliary loss of weight "
                f"{self.config.auxiliary} is missing; the rest of the penalty is returned. Use an objective that scores "
                f"tokens, without label smoothing, or set auxiliary = 0.",
                stacklevel=2,
            )
            self._warned = True
        self._unscored = None
        return super().penalty()

    def begin(self, prompts: Sequences, max_new_tokens: int) -> tuple[Float[Tensor, "B V"], _TrellisState]:
        inputs = prepend_bos(prompts, self.bos)
        outputs, after = self._layers(inputs, self.init_memory(len(prompts)), prompts.start + 1, training=False)
        tokens, *past = after
        weights = self._weights(training=False, steps=max_new_tokens)
        input_gates = self._embed(tokens.T, training=False) @ weights.input_past
        hidden, cells = (part.transpose(0, 1).contiguous() for part in past)
        state = _TrellisState(hidden, cells, input_gates, weights, self.head.logits_fn(max_new_tokens), 0)
        return state.head(outputs[-1][prompts.start, torch.arange(len(prompts), device=inputs.device)]), state

    def advance(self, state: _TrellisState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], _TrellisState]:
        weights, spans, count = state.weights, self.config.spans, state.count
        vectors, most = self.embedding(token), len(state.input_gates)
        now = torch.addmm(weights.bias, vectors, weights.input_now)
        input_gates = {span: now + state.input_gates[(count - span) % most] for span in set(spans)}
        state.input_gates[count % most] = vectors @ weights.input_past
        rows = [sum(spans[1:layer]) + count % spans[layer] for layer in range(1, len(spans))]
        past = state.hidden if len(rows) == len(state.hidden) else state.hidden[rows]
        gates = past @ weights.past
        hidden, cell = _lstm_gates(input_gates[spans[0]], None)
        for gate, row, span in zip(gates, rows, spans[1:], strict=True):
            gate = gate.addmm_(hidden, weights.now).add_(input_gates[span])
            above = _lstm_gates(gate, state.cells[row])
            state.hidden[row], state.cells[row] = hidden, cell
            hidden, cell = above
        return state.head(hidden[:, -self.config.width :]), replace(state, count=count + 1)

    def select(self, state: _TrellisState, index: Int[Tensor, "K"]) -> _TrellisState:
        parts = (state.hidden, state.cells, state.input_gates)
        hidden, cells, input_gates = (part.index_select(1, index) for part in parts)
        return replace(state, hidden=hidden, cells=cells, input_gates=input_gates)

    def _pass(self, inputs: Int[Tensor, "B L"], memory: Memory, inside: Bool[Tensor, "B L"]) -> SegmentOutput:
        config, self._unscored = self.config, None
        length = torch.full_like(inputs[:, 0], inputs.shape[1])
        outputs, after = self._layers(inputs, memory, length, training=self.training)
        *auxiliary, last = [output.transpose(0, 1) for output in outputs]
        dropped = self._regularize(last, inside)
        if self.training and torch.is_grad_enabled() and auxiliary:
            self._unscored = dropped, [variational_dropout(output, config.dropout, True) for output in auxiliary]
        return dropped, after

    def _layers(
        self, inputs: Int[Tensor, "B L"], memory: Memory, length: Int[Tensor, "B"], *, training: bool
    ) -> tuple[list[Float[Tensor, "L B W"]], Memory]:
        """The outputs of the auxiliary layers (in training) and of the last; the memory after `length` inputs of each row."""
        config, weights, (before, *past) = self.config, self._weights(training=training), memory
        tokens, spans, most, keep = torch.cat([before, inputs], 1), config.spans, before.shape[1], None
        vectors = self._embed(tokens.T, training=training)
        earlier, now = vectors @ weights.input_past, vectors[most:] @ weights.input_now + weights.bias
        input_gates = {span: now + earlier[most - span : len(earlier) - span] for span in set(spans)}
        if training and config.hidden_dropout:
            keep = dropout(past[0].new_ones(len(inputs), past[0].shape[2]), config.hidden_dropout)
        below, outputs, memories = _lstm_gates(input_gates[spans[0]], None), list[Tensor](), list[Memory]()
        for layer, span in enumerate(spans):
            if layer > 0:
                first = sum(spans[1:layer])
                old = (part[:, first : first + span].transpose(0, 1) for part in past)
                hidden, cell = (torch.cat(pair) for pair in zip(old, below, strict=True))
                memories.append(tuple(_last_positions(part, length, span) for part in (hidden, cell)))
                below = self._layer(hidden, cell, input_gates[span], weights, keep)
            if training and config.auxiliary and (layer + 1) % config.auxiliary_every == 0:
                outputs.append(below[0][..., -config.width :])
        after = tuple(torch.cat([past[number][:, :0], *(pair[number] for pair in memories)], 1) for number in (0, 1))
        return [*outputs, below[0][..., -config.width :]], (_last_positions(tokens.T, length, most), *after)

    def _layer(
        self,
        hidden: Float[Tensor, "K B H"],
        cell: Float[Tensor, "K B H"],
        input_gates: Float[Tensor, "L B G"],
        weights: _ConvWeights,
        keep: Float[Tensor, "B H"] | None,
    ) -> tuple[Float[Tensor, "L B H"], Float[Tensor, "L B H"]]:
        """Hidden vectors and cells of the next layer, given those of this one with `span` positions before them."""
        length = len(input_gates)
        dropped = hidden if keep is None else hidden * keep
        gates = torch.addmm(input_gates.flatten(0, 1), dropped[:length].flatten(0, 1), weights.past)
        gates = torch.addmm(gates, dropped[-length:].flatten(0, 1), weights.now)
        return _lstm_gates(gates.view_as(input_gates), cell[:length])

    def _embed(self, tokens: Int[Tensor, "K B"], *, training: bool) -> Float[Tensor, "K B I"]:
        """Embeddings with word dropout and variational dropout; 0 where there is no token."""
        symbols = tokens.clamp(min=0)
        vectors = self.embedding(symbols) * (tokens >= 0)[..., None]
        vectors = word_dropout(vectors, symbols, self.vocab_size + 1, self.config.word_dropout, training)
        return variational_dropout(vectors.transpose(0, 1), self.config.input_dropout, training).transpose(0, 1)

    def _weights(self, *, training: bool, steps: int = 0) -> _ConvWeights:
        """The weights of a pass, with dropout of the weights of earlier positions in training."""
        rate = self.config.weight_dropout
        past = [dropout(part.weight, rate, training) for part in (self.input_past, self.past)]
        parts = (past[0], self.input_now.weight, past[1], self.now.weight)
        input_past, input_now, hidden_past, hidden_now = (matmul_layout(part, steps).T for part in parts)
        return _ConvWeights(input_past, input_now, self.input_now.bias, hidden_past, hidden_now)

    def _add_auxiliary_loss(self, hidden: Float[Tensor, "*S W"], tokens: Int[Tensor, "*S"]) -> None:
        """Add the auxiliary loss to the penalty, if these are the vectors of the last training pass."""
        if self._unscored is None or hidden is not self._unscored[0]:
            return
        losses = [-self.head.log_probs(output, tokens).sum() for output in self._unscored[1]]
        loss = self.config.auxiliary * torch.stack(losses).sum() / (tokens >= 0).sum().clamp(min=1)
        self._penalty, self._unscored = loss if self._penalty is None else self._penalty + loss, None

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles hold nothing of a pass."""
        return {**super().__getstate__(), "_unscored": None}


def _lstm_gates(
    gates: Float[Tensor, "*S G"], cell: Float[Tensor, "*S H"] | None
) -> tuple[Float[Tensor, "*S H"], Float[Tensor, "*S H"]]:
    """Hidden vectors and cells from the gates i, o, g, f and the earlier cells; None is 0."""
    units = gates.shape[-1] // 4
    input_gate, output_gate = gates[..., : 2 * units].sigmoid().chunk(2, -1)
    new = input_gate * gates[..., 2 * units : 3 * units].tanh()
    if cell is not None:
        new = torch.addcmul(new, gates[..., 3 * units :].sigmoid(), cell)
    return output_gate * new.tanh(), new


def _last_positions(part: Tensor, length: Int[Tensor, "B"], span: int) -> Tensor:
    """The last `span` positions of each row of this length, without gradient; `part` has `span` positions before the first."""
    position = length + torch.arange(span, device=length.device)[:, None]
    return part.detach()[position, torch.arange(len(length), device=length.device)].transpose(0, 1).contiguous()
