"""Stacked LSTM and GRU networks: torch's own kernels for a whole pass, one or two products a layer for a step.

Input is one-hot or a learnt vector for each token. Dropout stands on learnt input vectors, between layers
and on the output. A state holds the weights as a step wants them beside the hidden vectors: it belongs to
the weights at `begin`, and steps write into its vectors.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout, one_hot

from esscher.bases.config import RecurrentConfig
from esscher.bases.heads import SoftmaxHead
from esscher.bases.opening import opened
from esscher.space import Sequences

TABLE_UP_TO = 1024  # for so many tokens the first layer's share of its input is looked up instead of multiplied


@dataclass(frozen=True)
class _Layer:
    """A layer's weights for one step; G is 4 H for the LSTM, 3 H for the GRU."""

    read: Float[Tensor, "I G"]  # of the input; or, without `read_bias`, a row with the bias in it for each token
    read_bias: Float[Tensor, "G"] | None
    keep: Float[Tensor, "H G"]  # of the layer's own hidden vector
    keep_bias: Float[Tensor, "G"]

    def reading(self, below: Tensor) -> Float[Tensor, "B G"]:
        """What the layer takes from a vector below it, or from a token."""
        if self.read_bias is None:
            return self.read.index_select(0, below)
        return torch.addmm(self.read_bias, below, self.read)


@dataclass(frozen=True)
class _State:
    hidden: Float[Tensor, "L B H"]
    cell: Float[Tensor, "L B H"] | None  # the LSTM has one, the GRU none
    layers: tuple[_Layer, ...]

    def first(self, rows: int) -> "_State":
        """The first rows, sharing memory."""
        return _State(self.hidden[:, :rows], None if self.cell is None else self.cell[:, :rows], self.layers)


class RecurrentNetwork(nn.Module):
    """A stacked LSTM or GRU that reads tokens and an opening symbol."""

    embedding: nn.Embedding  # absent with one-hot input
    max_positions = None

    def __init__(self, config: RecurrentConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        width = vocab_size + 1 if config.embedding is None else config.embedding
        cells = nn.LSTM if config.cell == "lstm" else nn.GRU
        between = config.dropout if config.layers > 1 else 0.0
        self.cells = cells(width, config.width, config.layers, batch_first=True, dropout=between)
        if config.embedding is not None:
            self.embedding = nn.Embedding(vocab_size + 1, width)
            nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.head = SoftmaxHead(vocab_size, config.width, self.embedding if config.tied else None, bias=True)

    def hidden(self, x: Sequences) -> Float[Tensor, "B T H"]:
        return self.read(opened(x, self.vocab_size)[:, :-1], self.open(len(x)))[0]

    @property
    def opening(self) -> int:
        return self.vocab_size

    def open(self, rows: int) -> tuple[Tensor, ...]:
        """Nothing read: hidden vectors of 0, and cells of 0 for the LSTM."""
        nothing = self._weight.new_zeros(rows, self.config.layers, self.config.width)
        return (nothing, nothing.clone()) if self.config.cell == "lstm" else (nothing,)

    def read(self, inputs: Int[Tensor, "B L"], memory: tuple[Tensor, ...]) -> tuple[Float[Tensor, "B L H"], tuple[Tensor, ...]]:
        """The vector after each input; the memory is that of the last one, and keeps what dropout between layers took."""
        if inputs.numel() == 0:
            return self._weight.new_zeros(*inputs.shape, self.config.width), memory
        rate = self.config.dropout
        if self.config.embedding is None:
            vectors = one_hot(inputs, self.vocab_size + 1).to(self._weight.dtype)
        else:
            vectors = dropout(self.embedding(inputs), rate, self.training)
        before = tuple(part.transpose(0, 1).contiguous() for part in memory)
        found, after = self.cells(vectors, before if self.config.cell == "lstm" else before[0])
        kept = after if self.config.cell == "lstm" else (after,)
        return dropout(found, rate, self.training), tuple(part.detach().transpose(0, 1).contiguous() for part in kept)

    def output(self, hidden: Float[Tensor, "*S H"]) -> Float[Tensor, "*S V"]:
        return self.head.logits(hidden)

    def score(self, hidden: Float[Tensor, "N H"], tokens: Int[Tensor, "N"]) -> Float[Tensor, "N"]:
        return self.head.score(hidden, tokens)

    def begin(self, prompts: Sequences, room: int) -> tuple[Float[Tensor, "B V"], _State]:
        """Rows are read longest first, so that those still being read are always the first ones."""
        hidden = self._weight.new_zeros(self.config.layers, len(prompts), self.config.width)
        cell = torch.zeros_like(hidden) if self.config.cell == "lstm" else None
        state = _State(hidden, cell, tuple(self._layer(number) for number in range(self.config.layers)))
        order = prompts.start.argsort(descending=True, stable=True)
        inputs, length = opened(prompts, self.vocab_size)[order], prompts.start[order] + 1
        for t in range(inputs.shape[1]):
            reading = int((length > t).sum())
            self._step(state.first(reading), inputs[:reading, t])
        state = self.select(state, order.argsort())
        return self.output(state.hidden[-1]), state

    def advance(self, state: _State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], _State]:
        self._step(state, token)
        return self.output(state.hidden[-1]), state

    def select(self, state: _State, index: Int[Tensor, "K"]) -> _State:
        cell = None if state.cell is None else state.cell.index_select(1, index)
        return _State(state.hidden.index_select(1, index), cell, state.layers)

    def _step(self, state: _State, token: Int[Tensor, "B"]) -> None:
        """Every layer once, in place."""
        below = token if state.layers[0].read_bias is None else self.embedding(token)
        for number, layer in enumerate(state.layers):
            hidden = state.hidden[number]
            if state.cell is None:
                _step_gru(layer, below, hidden)
            else:
                _step_lstm(layer, below, hidden, state.cell[number])
            below = hidden

    @property
    def _weight(self) -> Tensor:
        """A parameter, for its dtype and device."""
        return next(self.cells.parameters())

    def _layer(self, number: int) -> _Layer:
        """The step's weights of a layer: transposed views, or a table for the first layer of few tokens."""
        read, keep = (getattr(self.cells, f"weight_{kind}_l{number}").T for kind in ("ih", "hh"))
        read_bias, keep_bias = (getattr(self.cells, f"bias_{kind}_l{number}") for kind in ("ih", "hh"))
        if self.config.cell == "lstm":
            read_bias, keep_bias = read_bias + keep_bias, torch.zeros_like(keep_bias)
        if number == 0 and self.config.embedding is None:
            return _Layer(read + read_bias, None, keep, keep_bias)
        if number == 0 and self.vocab_size <= TABLE_UP_TO:
            return _Layer(torch.addmm(read_bias, self.embedding.weight, read), None, keep, keep_bias)
        return _Layer(read, read_bias, keep, keep_bias)


def _step_lstm(layer: _Layer, below: Tensor, hidden: Float[Tensor, "B H"], cell: Float[Tensor, "B H"]) -> None:
    """One step in place; the layer's biases are all in its reading."""
    gates, width = layer.reading(below).addmm_(hidden, layer.keep), hidden.shape[1]
    take, forget = gates[:, : 2 * width].sigmoid_().chunk(2, 1)
    new, show = gates[:, 2 * width : 3 * width].tanh_(), gates[:, 3 * width :].sigmoid_()
    cell.mul_(forget).addcmul_(take, new)
    torch.tanh(cell, out=hidden)
    hidden.mul_(show)


def _step_gru(layer: _Layer, below: Tensor, hidden: Float[Tensor, "B H"]) -> None:
    """One step in place."""
    read, kept, width = layer.reading(below), torch.addmm(layer.keep_bias, hidden, layer.keep), hidden.shape[1]
    reset, stay = read[:, : 2 * width].add_(kept[:, : 2 * width]).sigmoid_().chunk(2, 1)
    new = read[:, 2 * width :].addcmul_(reset, kept[:, 2 * width :]).tanh_()
    hidden.sub_(new).mul_(stay).add_(new)
