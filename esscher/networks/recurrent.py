"""Recurrent networks: stacked LSTM and GRU, AWD-LSTM (Merity et al. 2018), and the decoding steps of all recurrent networks.

A step overwrites the state, which holds the weights at `begin`. Prompts are read longest first, so that those still being read
are always the first rows. In training, AWD-LSTM drops whole words, parts of the vectors before, between and after the layers
with one mask per row, and hidden-to-hidden weights with one mask per pass.

Letters: W width of the last layer, L inputs of a segment, I and H widths of a layer's input and output, G = 4 H (LSTM) or 3 H.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout, one_hot

from esscher.core.space import Sequences
from esscher.heads.adaptive import AdaptiveInput
from esscher.heads.build import build_embedding, build_head, init_embedding_and_head
from esscher.heads.head import LogitsFn, NetworkWithHead
from esscher.networks.incremental_decoding import fixed_address
from esscher.networks.network import CompiledStep, Memory, prepend_bos, run_step
from esscher.networks.recurrent_config import AwdLstmConfig, RecurrentConfig
from esscher.networks.regularization import ActivationRegularized, SegmentOutput, variational_dropout, word_dropout

INPUT_TABLE_MAX_VOCAB = 1024  # up to this size the input gates of the first layer are looked up in a table


def cells_in_weight_dtype() -> torch.autocast:
    """Within it, LSTMs on a CPU compute in the dtype of their weights, as oneDNN has none in bfloat16 on most processors."""
    return torch.autocast("cpu", enabled=False)


CellStep = Callable[[Tensor, Tensor, Tensor | None], None]
"""A step of a layer: it reads tokens or vectors, and overwrites the hidden vectors and the cells of an LSTM."""
Embed = Callable[[Tensor], Tensor]
StepLayers = tuple[tuple[CellStep, ...], Embed | None]
"""The layers for single steps, and the embedding before them; None where the first layer reads tokens."""


@dataclass(frozen=True)
class CellWeights:
    """The weights of an LSTM or GRU layer for single steps; the two biases of an LSTM are added."""

    weight_ih: Float[Tensor, "I G"]  # without `bias_ih`, a table of input gates with a row for each token
    bias_ih: Float[Tensor, "G"] | None
    weight_hh: Float[Tensor, "H G"]
    bias_hh: Float[Tensor, "G"]

    def __call__(self, below: Tensor, hidden: Float[Tensor, "B H"], cell: Float[Tensor, "B H"] | None) -> None:
        """A GRU step, or, with cells, an LSTM step, in place."""
        gates, width = self.input_gates(below), hidden.shape[1]
        if cell is None:
            hidden_gates = torch.addmm(self.bias_hh, hidden, self.weight_hh)
            reset, update = gates[:, : 2 * width].add_(hidden_gates[:, : 2 * width]).sigmoid_().chunk(2, 1)
            new = gates[:, 2 * width :].addcmul_(reset, hidden_gates[:, 2 * width :]).tanh_()
            hidden.sub_(new).mul_(update).add_(new)
            return
        gates.addmm_(hidden, self.weight_hh)
        input_gate, forget_gate = gates[:, : 2 * width].sigmoid_().chunk(2, 1)
        new, output_gate = gates[:, 2 * width : 3 * width].tanh_(), gates[:, 3 * width :].sigmoid_()
        cell.mul_(forget_gate).addcmul_(input_gate, new)
        torch.tanh(cell, out=hidden)
        hidden.mul_(output_gate)

    def input_gates(self, below: Tensor) -> Float[Tensor, "B G"]:
        """The contribution of the input, vectors or tokens, to the gates."""
        if self.bias_ih is None:
            return self.weight_ih.index_select(0, below)
        return torch.addmm(self.bias_ih, below, self.weight_ih)

    def with_input_table(self, embedding: Embed | None, symbols: int) -> tuple["CellWeights", Embed | None]:
        """The weights and the embedding to use: for one-hot input, or few symbols, a table of input gates and none."""
        if embedding is not None and symbols > INPUT_TABLE_MAX_VOCAB + 1:
            return self, embedding
        assert self.bias_ih is not None
        if embedding is None:
            table = self.weight_ih + self.bias_ih
        else:
            vectors = embedding(torch.arange(symbols, device=self.weight_hh.device))
            table = torch.addmm(self.bias_ih, vectors, self.weight_ih)
        return replace(self, weight_ih=table, bias_ih=None), None


def step_layers(parts: Sequence[tuple[nn.RNNBase, int]], embedding: Embed | None, symbols: int) -> StepLayers:
    """The layers, each given as a torch module and its layer number there, with their current weights."""
    layers = []
    for part, number in parts:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        weight_ih, weight_hh, bias_ih, bias_hh = (part.get_parameter(f"{name}_l{number}") for name in names)
        lstm = isinstance(part, nn.LSTM)
        biases = (bias_ih + bias_hh, torch.zeros_like(bias_hh)) if lstm else (bias_ih, bias_hh)
        layers.append(CellWeights(weight_ih.T, biases[0], weight_hh.T, biases[1]))
    first, embed = layers[0].with_input_table(embedding, symbols)
    return (first, *layers[1:]), embed


@dataclass(frozen=True)
class RecurrentState:
    """The hidden vectors of each layer, the cells of LSTMs, and what a step needs."""

    hidden: tuple[Float[Tensor, "B _"], ...]
    cell: tuple[Float[Tensor, "B _"], ...]  # empty without cells
    layers: tuple[CellStep, ...]
    embed: Embed | None  # None where the first layer reads tokens
    logits: LogitsFn
    static: bool = False  # whether steps are captured in a graph

    def first(self, rows: int) -> "RecurrentState":
        """The first rows, as views."""
        return replace(self, hidden=tuple(part[:rows] for part in self.hidden), cell=tuple(part[:rows] for part in self.cell))

    def select(self, index: Int[Tensor, "K"]) -> "RecurrentState":
        copies = (tuple(part.index_select(0, index) for part in parts) for parts in (self.hidden, self.cell))
        hidden, cell = (tuple(map(fixed_address, parts)) if self.static else parts for parts in copies)
        return replace(self, hidden=hidden, cell=cell)

    def step(self, token: Int[Tensor, "B"]) -> None:
        """One step of all layers, in place."""
        below = token if self.embed is None else self.embed(token)
        for number, (layer, hidden) in enumerate(zip(self.layers, self.hidden, strict=True)):
            layer(below, hidden, self.cell[number] if self.cell else None)
            below = hidden


class RecurrentStack(NetworkWithHead):
    """Base class of recurrent networks: `cells` below a `head`, and steps that overwrite their state."""

    max_positions = None
    static_steps = False
    compiled_step: CompiledStep | None = None
    cells: nn.Module
    bos: int

    def advance(self, state: RecurrentState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], RecurrentState]:
        return run_step(self, state, token), state

    def step_logits(self, state: RecurrentState, token: Int[Tensor, "B"]) -> Float[Tensor, "B V"]:
        state.step(token)
        return state.logits(state.hidden[-1])

    def select(self, state: RecurrentState, index: Int[Tensor, "K"]) -> RecurrentState:
        return state.select(index)

    def _begin(
        self, prompts: Sequences, layers: StepLayers, widths: Sequence[int], max_new_tokens: int, *, cells: bool
    ) -> tuple[Float[Tensor, "B V"], RecurrentState]:
        """Logits and state after the BOS symbol and each prompt, for layers of these widths."""
        hidden = tuple(self._like.new_zeros(len(prompts), width) for width in widths)
        cell = tuple(torch.zeros_like(part) for part in hidden) if cells else ()
        state = RecurrentState(hidden, cell, *layers, self.head.logits_fn(max_new_tokens), self.static_steps)
        order = prompts.start.argsort(descending=True, stable=True)
        inputs, length = prepend_bos(prompts, self.bos)[order], prompts.start[order] + 1
        column = torch.arange(inputs.shape[1], device=length.device)
        for t, active in enumerate((length > column[:, None]).sum(1).tolist()):
            state.first(active).step(inputs[:active, t])
        state = state.select(order.argsort())
        return state.logits(state.hidden[-1]), state


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

    def init_memory(self, rows: int) -> Memory:
        """Hidden vectors of 0, and cells of 0 for an LSTM."""
        zeros = self._like.new_zeros(rows, self.config.layers, self.config.width)
        return (zeros, zeros.clone()) if self.config.cell == "lstm" else (zeros,)

    def read(self, inputs: Int[Tensor, "B L"], memory: Memory) -> tuple[Float[Tensor, "B L H"], Memory]:
        if inputs.numel() == 0:
            return self._like.new_zeros(*inputs.shape, self.config.width), memory
        rate = self.config.dropout
        if self.config.embedding is None:
            vectors = one_hot(inputs, self.vocab_size + 1).to(self._like.dtype)
        else:
            vectors = dropout(self.embedding(inputs), rate, self.training)
        before = tuple(part.transpose(0, 1).contiguous() for part in memory)
        with cells_in_weight_dtype():
            output, after = self.cells(vectors.to(self._like.dtype), before if self.config.cell == "lstm" else before[0])
        after = after if self.config.cell == "lstm" else (after,)
        return dropout(output, rate, self.training), tuple(part.detach().transpose(0, 1).contiguous() for part in after)

    def begin(self, prompts: Sequences, max_new_tokens: int) -> tuple[Float[Tensor, "B V"], RecurrentState]:
        config, embedding = self.config, None if self.config.embedding is None else self.embedding
        parts = [(self.cells, number) for number in range(config.layers)]
        layers, widths = step_layers(parts, embedding, self.vocab_size + 1), [config.width] * config.layers
        return self._begin(prompts, layers, widths, max_new_tokens, cells=config.cell == "lstm")


class AwdLstmNetwork(RecurrentStack, ActivationRegularized):
    """An AWD-LSTM."""

    config: AwdLstmConfig
    cells: nn.ModuleList

    def __init__(self, config: AwdLstmConfig, vocab_size: int):
        super().__init__(config, vocab_size)
        self.cells = nn.ModuleList([nn.LSTM(below, width, batch_first=True) for below, width in pairwise(config.widths)])
        self.head = build_head(config, vocab_size, config.width, self.embedding if config.tied else None)
        for name, weight in self.named_parameters():
            init_embedding_and_head(name, weight)

    def init_memory(self, rows: int) -> Memory:
        """Hidden vector and cell of each layer: 0."""
        widths = [width for width in self.config.widths[1:] for _ in ("hidden", "cell")]
        return tuple(self._like.new_zeros(rows, width) for width in widths)

    def begin(self, prompts: Sequences, max_new_tokens: int) -> tuple[Float[Tensor, "B V"], RecurrentState]:
        layers = step_layers([(part, 0) for part in self._layers], self.embedding, self.vocab_size + 1)
        return self._begin(prompts, layers, self.config.widths[1:], max_new_tokens, cells=True)

    def _pass(self, inputs: Int[Tensor, "B L"], memory: Memory, inside: Bool[Tensor, "B L"]) -> SegmentOutput:
        config, after, rate = self.config, list[Tensor](), self.config.input_dropout
        vectors = word_dropout(self.embedding(inputs), inputs, self.vocab_size + 1, config.word_dropout, self.training)
        for number, part in enumerate(self._layers):
            vectors = variational_dropout(vectors, rate, self.training)
            weight_ih, weight_hh, *biases = part.all_weights[0]
            weights = [weight_ih, dropout(weight_hh, config.weight_dropout, self.training), *biases]
            before = [state[None].contiguous() for state in memory[2 * number : 2 * number + 2]]
            with cells_in_weight_dtype():
                vectors = vectors.to(weight_ih.dtype)
                vectors, *layer_after = torch.lstm(vectors, before, weights, True, 1, 0.0, self.training, False, True)
            after += [state[0].detach() for state in layer_after]
            rate = config.between_dropout
        return self._regularize(vectors, inside), tuple(after)

    @property
    def _layers(self) -> list[nn.LSTM]:
        return [part for part in self.cells if isinstance(part, nn.LSTM)]
