"""Recurrent networks: stacked LSTM and GRU, AWD-LSTM, and the decoding steps that all recurrent networks share.

Whole passes use the kernels of torch. A step takes one or two matrix products per layer and overwrites the state, which holds
the weights as they were at `begin`. Prompts are read longest first, so that those still being read are always the first rows.

`RecurrentNetwork` reads one-hot vectors or embeddings; dropout acts on embeddings, between layers and on the output.

`AwdLstmNetwork` (Merity et al. 2018) drops, in training, whole words, then parts of the vectors before, between and after the
layers with one mask for all positions of a row, and hidden-to-hidden weights with one mask for the pass. Its activations are
penalized (`penalty`).

Shape letters beside those of `esscher.core.space`: W width of the last layer, L inputs of a segment, I and H widths of the
input and output of a layer, G = 4 H (LSTM) or 3 H (GRU).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout, one_hot

from esscher.core.space import Sequences
from esscher.heads.adaptive import AdaptiveInput
from esscher.heads.build import build_embedding, build_head, init_embedding_and_head
from esscher.heads.head import LogitsFn, NetworkWithHead
from esscher.networks.network import prepend_bos
from esscher.networks.recurrent_config import AwdLstmConfig, RecurrentConfig
from esscher.networks.regularization import ActivationRegularized, variational_dropout, word_dropout

INPUT_TABLE_MAX_VOCAB = 1024  # up to this size the input gates of the first layer are looked up in a table


@runtime_checkable
class CellStep(Protocol):
    """A layer for single steps."""

    @property
    def takes_tokens(self) -> bool:
        """Whether its input is tokens, and not vectors."""
        ...

    def zeros(self, rows: int) -> Float[Tensor, "{rows} H"]:
        """Hidden vectors of 0."""
        ...

    def step(self, below: Tensor, hidden: Float[Tensor, "B H"], cell: Float[Tensor, "B H"] | None) -> None:
        """One step, which overwrites the hidden vectors, and the cells of an LSTM."""
        ...


@dataclass(frozen=True)
class CellWeights:
    """The weights of an LSTM or GRU layer for single steps."""

    weight_ih: Float[Tensor, "I G"]  # without `bias_ih`, a table of input gates with a row for each token
    bias_ih: Float[Tensor, "G"] | None
    weight_hh: Float[Tensor, "H G"]
    bias_hh: Float[Tensor, "G"]

    @property
    def takes_tokens(self) -> bool:
        return self.bias_ih is None

    def zeros(self, rows: int) -> Float[Tensor, "{rows} H"]:
        return self.weight_hh.new_zeros(rows, len(self.weight_hh))

    def step(self, below: Tensor, hidden: Float[Tensor, "B H"], cell: Float[Tensor, "B H"] | None) -> None:
        if cell is None:
            _step_gru(self, below, hidden)
        else:
            _step_lstm(self, below, hidden, cell)

    def input_gates(self, below: Tensor) -> Float[Tensor, "B G"]:
        """The contribution of the input, vectors or tokens, to the gates."""
        if self.bias_ih is None:
            return self.weight_ih.index_select(0, below)
        return torch.addmm(self.bias_ih, below, self.weight_ih)

    def with_input_table(self, vectors: Float[Tensor, "U I"] | None) -> "CellWeights":
        """The same with a table of input gates, from the embeddings of all symbols; None is one-hot."""
        assert self.bias_ih is not None
        rows = self.weight_ih + self.bias_ih if vectors is None else torch.addmm(self.bias_ih, vectors, self.weight_ih)
        return replace(self, weight_ih=rows, bias_ih=None)


@dataclass(frozen=True)
class RecurrentState:
    """The hidden vectors of each layer, the cells of LSTMs, and what a step needs."""

    hidden: tuple[Float[Tensor, "B _"], ...]
    cell: tuple[Float[Tensor, "B _"], ...] | None
    layers: tuple[CellStep, ...]
    embed: Callable[[Tensor], Tensor] | None  # None with one-hot input
    logits: LogitsFn

    def first(self, rows: int) -> "RecurrentState":
        """The first rows, as views."""
        cell = None if self.cell is None else tuple(part[:rows] for part in self.cell)
        return replace(self, hidden=tuple(part[:rows] for part in self.hidden), cell=cell)

    def select(self, index: Int[Tensor, "K"]) -> "RecurrentState":
        """A copy of the chosen rows."""
        cell = None if self.cell is None else tuple(part.index_select(0, index) for part in self.cell)
        return replace(self, hidden=tuple(part.index_select(0, index) for part in self.hidden), cell=cell)

    def step(self, token: Int[Tensor, "B"]) -> None:
        """One step of all layers, in place."""
        below = token if self.embed is None or self.layers[0].takes_tokens else self.embed(token)
        for number, (layer, hidden) in enumerate(zip(self.layers, self.hidden, strict=True)):
            layer.step(below, hidden, None if self.cell is None else self.cell[number])
            below = hidden

    def next_logits(self) -> Float[Tensor, "B V"]:
        """The logits after the last input."""
        return self.logits(self.hidden[-1])


class RecurrentStack(NetworkWithHead):
    """Base class of recurrent networks: `cells` below a `head`, and steps that overwrite their state."""

    max_positions = None
    cells: nn.Module

    def advance(self, state: RecurrentState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], RecurrentState]:
        state.step(token)
        return state.next_logits(), state

    def select(self, state: RecurrentState, index: Int[Tensor, "K"]) -> RecurrentState:
        return state.select(index)


def state_after_prompts(
    prompts: Sequences,
    layers: tuple[CellStep, ...],
    embed: Callable[[Tensor], Tensor] | None,
    logits: LogitsFn,
    *,
    bos: int,
    cells: bool,
) -> RecurrentState:
    """The state after the BOS symbol and each prompt."""
    hidden = tuple(layer.zeros(len(prompts)) for layer in layers)
    cell = tuple(torch.zeros_like(part) for part in hidden) if cells else None
    state = RecurrentState(hidden, cell, layers, embed, logits)
    order = prompts.start.argsort(descending=True, stable=True)
    inputs, length = prepend_bos(prompts, bos)[order], prompts.start[order] + 1
    for t in range(inputs.shape[1]):
        active = int((length > t).sum())
        state.first(active).step(inputs[:active, t])
    return state.select(order.argsort())


def cell_weights(parts: Sequence[tuple[nn.RNNBase, int]], vectors: nn.Module | None, symbols: int) -> tuple[CellWeights, ...]:
    """The step weights of layers, each given as a torch module and its layer number there.

    The first layer has a table of input gates if the input is one-hot (no `vectors`), or if there are few symbols.
    """
    first, *rest = [_cell_weights(part, number) for part, number in parts]
    if vectors is None:
        first = first.with_input_table(None)
    elif symbols <= INPUT_TABLE_MAX_VOCAB + 1:
        first = first.with_input_table(vectors(torch.arange(symbols, device=first.weight_hh.device)))
    return (first, *rest)


def _cell_weights(part: nn.RNNBase, number: int) -> CellWeights:
    """Transposed views of the weights of a layer; the two biases of an LSTM are added."""
    weight_ih, weight_hh, bias_ih, bias_hh = (
        part.get_parameter(f"{name}_l{number}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    if isinstance(part, nn.LSTM):
        return CellWeights(weight_ih.T, bias_ih + bias_hh, weight_hh.T, torch.zeros_like(bias_hh))
    return CellWeights(weight_ih.T, bias_ih, weight_hh.T, bias_hh)


def _step_lstm(layer: CellWeights, below: Tensor, hidden: Float[Tensor, "B H"], cell: Float[Tensor, "B H"]) -> None:
    """One LSTM step in place; all biases are in the input gates."""
    gates, width = layer.input_gates(below).addmm_(hidden, layer.weight_hh), hidden.shape[1]
    input_gate, forget_gate = gates[:, : 2 * width].sigmoid_().chunk(2, 1)
    new, output_gate = gates[:, 2 * width : 3 * width].tanh_(), gates[:, 3 * width :].sigmoid_()
    cell.mul_(forget_gate).addcmul_(input_gate, new)
    torch.tanh(cell, out=hidden)
    hidden.mul_(output_gate)


def _step_gru(layer: CellWeights, below: Tensor, hidden: Float[Tensor, "B H"]) -> None:
    """One GRU step in place."""
    gates, hidden_gates = layer.input_gates(below), torch.addmm(layer.bias_hh, hidden, layer.weight_hh)
    width = hidden.shape[1]
    reset, update = gates[:, : 2 * width].add_(hidden_gates[:, : 2 * width]).sigmoid_().chunk(2, 1)
    new = gates[:, 2 * width :].addcmul_(reset, hidden_gates[:, 2 * width :]).tanh_()
    hidden.sub_(new).mul_(update).add_(new)


class RecurrentNetwork(RecurrentStack):
    """A stacked LSTM or GRU."""

    cells: nn.RNNBase
    embedding: nn.Embedding | AdaptiveInput  # absent with one-hot input

    def __init__(self, config: RecurrentConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size, self.bos = config, vocab_size, vocab_size
        width = vocab_size + 1 if config.embedding is None else config.embedding
        cells = nn.LSTM if config.cell == "lstm" else nn.GRU
        between = config.dropout if config.layers > 1 else 0.0
        self.cells = cells(width, config.width, config.layers, batch_first=True, dropout=between)
        if config.embedding is not None:
            self.embedding = build_embedding(config, vocab_size, width)
            if isinstance(self.embedding, nn.Embedding):
                nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.head = build_head(config, vocab_size, config.width, self.embedding if config.tied else None)

    def hidden(self, x: Sequences) -> Float[Tensor, "B T H"]:
        return self.read(prepend_bos(x, self.bos)[:, :-1], self.init_memory(len(x)))[0]

    def init_memory(self, rows: int) -> tuple[Tensor, ...]:
        """Hidden vectors of 0, and cells of 0 for an LSTM."""
        zeros = self._like.new_zeros(rows, self.config.layers, self.config.width)
        return (zeros, zeros.clone()) if self.config.cell == "lstm" else (zeros,)

    def read(self, inputs: Int[Tensor, "B L"], memory: tuple[Tensor, ...]) -> tuple[Float[Tensor, "B L H"], tuple[Tensor, ...]]:
        """The vector after each input, and the memory after the last one."""
        if inputs.numel() == 0:
            return self._like.new_zeros(*inputs.shape, self.config.width), memory
        rate = self.config.dropout
        if self.config.embedding is None:
            vectors = one_hot(inputs, self.vocab_size + 1).to(self._like.dtype)
        else:
            vectors = dropout(self.embedding(inputs), rate, self.training)
        before = tuple(part.transpose(0, 1).contiguous() for part in memory)
        output, after = self.cells(vectors, before if self.config.cell == "lstm" else before[0])
        after = after if self.config.cell == "lstm" else (after,)
        return dropout(output, rate, self.training), tuple(part.detach().transpose(0, 1).contiguous() for part in after)

    def begin(self, prompts: Sequences, max_new_tokens: int) -> tuple[Float[Tensor, "B V"], RecurrentState]:
        vectors = None if self.config.embedding is None else self.embedding
        layers = cell_weights([(self.cells, number) for number in range(self.config.layers)], vectors, self.vocab_size + 1)
        logits, cells = self.head.logits_fn(max_new_tokens), self.config.cell == "lstm"
        state = state_after_prompts(prompts, layers, vectors, logits, bos=self.bos, cells=cells)
        return state.next_logits(), state


class AwdLstmNetwork(RecurrentStack, ActivationRegularized):
    """An AWD-LSTM."""

    config: AwdLstmConfig
    cells: nn.ModuleList

    def __init__(self, config: AwdLstmConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size, self.bos = config, vocab_size, vocab_size
        self.embedding = build_embedding(config, vocab_size, config.widths[0])
        self.cells = nn.ModuleList([nn.LSTM(below, width, batch_first=True) for below, width in pairwise(config.widths)])
        self.head = build_head(config, vocab_size, config.width, self.embedding if config.tied else None)
        for name, weight in self.named_parameters():
            init_embedding_and_head(name, weight)

    def init_memory(self, rows: int) -> tuple[Tensor, ...]:
        """Hidden vector and cell of each layer: 0."""
        widths = [width for width in self.config.widths[1:] for _ in ("hidden", "cell")]
        return tuple(self._like.new_zeros(rows, width) for width in widths)

    def begin(self, prompts: Sequences, max_new_tokens: int) -> tuple[Float[Tensor, "B V"], RecurrentState]:
        layers = cell_weights([(part, 0) for part in self._layers], self.embedding, self.vocab_size + 1)
        logits = self.head.logits_fn(max_new_tokens)
        state = state_after_prompts(prompts, layers, self.embedding, logits, bos=self.bos, cells=True)
        return state.next_logits(), state

    def _pass(
        self, inputs: Int[Tensor, "B L"], memory: tuple[Tensor, ...], inside: Bool[Tensor, "B L"]
    ) -> tuple[Float[Tensor, "B L W"], tuple[Tensor, ...]]:
        self._penalty = None
        if inputs.numel() == 0:
            return self._like.new_zeros(*inputs.shape, self.config.width), memory
        config, after = self.config, list[Tensor]()
        vectors, rate = self._embed(inputs), config.input_dropout
        for number, part in enumerate(self._layers):
            vectors = variational_dropout(vectors, rate, self.training)
            vectors, layer_after = self._layer(part, vectors, memory[2 * number : 2 * number + 2])
            after, rate = [*after, *layer_after], config.between_dropout
        return self._regularize(vectors, inside), tuple(after)

    def _layer(
        self, part: nn.LSTM, vectors: Float[Tensor, "B L I"], memory: tuple[Tensor, ...]
    ) -> tuple[Float[Tensor, "B L H"], list[Tensor]]:
        """A layer by the kernel of torch, with dropout of hidden-to-hidden weights in training."""
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        weight_ih, weight_hh, *biases = [part.get_parameter(name) for name in names]
        weights = [weight_ih, dropout(weight_hh, self.config.weight_dropout, self.training), *biases]
        before = [state[None].contiguous() for state in memory]
        output, *after = torch.lstm(vectors, before, weights, True, 1, 0.0, self.training, False, True)
        return output, [state[0].detach() for state in after]

    def _embed(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B L I"]:
        """Embeddings with word dropout."""
        return word_dropout(self.embedding(tokens), tokens, self.vocab_size + 1, self.config.word_dropout, self.training)

    @property
    def _layers(self) -> list[nn.LSTM]:
        return [part for part in self.cells if isinstance(part, nn.LSTM)]
