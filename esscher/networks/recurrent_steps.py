"""Single steps of a stack of recurrent layers, of any widths, written over the state; LSTM and GRU by one or two products.

A state holds the weights as a step wants them beside the hidden vectors: it belongs to the weights at `begun`. Prompts are
read longest first, so that those still being read are always the first rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from esscher.heads.head import Headed, Logits
from esscher.networks.opening import opened
from esscher.space import Sequences

TABLE_UP_TO = 1024  # for so many tokens the first layer's share of its input is looked up instead of multiplied


@runtime_checkable
class StepLayer(Protocol):
    """What a state asks of a layer: its weights, laid out for single steps."""

    @property
    def looks_up(self) -> bool:
        """Whether it takes tokens, and not vectors."""
        ...

    def nothing(self, rows: int) -> Float[Tensor, "{rows} H"]:
        """Hidden vectors of 0."""
        ...

    def step(self, below: Tensor, hidden: Float[Tensor, "B H"], cell: Float[Tensor, "B H"] | None) -> None:
        """One step, written over the hidden vectors, and the cells where it has some."""
        ...


@dataclass(frozen=True)
class Layer:
    """A layer's weights for one step; G is 4 H for the LSTM, 3 H for the GRU."""

    read: Float[Tensor, "I G"]  # of the input; or, without `read_bias`, a row with the bias in it for each token
    read_bias: Float[Tensor, "G"] | None
    keep: Float[Tensor, "H G"]  # of the layer's own hidden vector
    keep_bias: Float[Tensor, "G"]

    @property
    def looks_up(self) -> bool:
        return self.read_bias is None

    def nothing(self, rows: int) -> Float[Tensor, "{rows} H"]:
        return self.keep.new_zeros(rows, len(self.keep))

    def step(self, below: Tensor, hidden: Float[Tensor, "B H"], cell: Float[Tensor, "B H"] | None) -> None:
        if cell is None:
            _step_gru(self, below, hidden)
        else:
            _step_lstm(self, below, hidden, cell)

    def reading(self, below: Tensor) -> Float[Tensor, "B G"]:
        """What the layer takes from a vector below it, or from a token."""
        if self.read_bias is None:
            return self.read.index_select(0, below)
        return torch.addmm(self.read_bias, below, self.read)

    def looked_up(self, vectors: Float[Tensor, "U I"] | None) -> "Layer":
        """The same with a row for each symbol, of its vector; None is one-hot."""
        assert self.read_bias is not None
        rows = self.read + self.read_bias if vectors is None else torch.addmm(self.read_bias, vectors, self.read)
        return replace(self, read=rows, read_bias=None)


@dataclass(frozen=True)
class RecurrentState:
    """The hidden vectors of each layer, the LSTM's cells (others have none), and what a step needs."""

    hidden: tuple[Float[Tensor, "B _"], ...]
    cell: tuple[Float[Tensor, "B _"], ...] | None
    layers: tuple[StepLayer, ...]
    embed: Callable[[Tensor], Tensor] | None  # None where the first layer looks its share up
    logits: Logits

    def first(self, rows: int) -> "RecurrentState":
        """The first rows, sharing memory."""
        cell = None if self.cell is None else tuple(part[:rows] for part in self.cell)
        return replace(self, hidden=tuple(part[:rows] for part in self.hidden), cell=cell)

    def select(self, index: Int[Tensor, "K"]) -> "RecurrentState":
        """The chosen rows, copied."""
        cell = None if self.cell is None else tuple(part.index_select(0, index) for part in self.cell)
        return replace(self, hidden=tuple(part.index_select(0, index) for part in self.hidden), cell=cell)

    def step(self, token: Int[Tensor, "B"]) -> None:
        """Every layer once, in place."""
        below = token if self.embed is None or self.layers[0].looks_up else self.embed(token)
        for number, (layer, hidden) in enumerate(zip(self.layers, self.hidden, strict=True)):
            layer.step(below, hidden, None if self.cell is None else self.cell[number])
            below = hidden

    def told(self) -> Float[Tensor, "B V"]:
        """The logits after what was read."""
        return self.logits(self.hidden[-1])


class RecurrentStack(Headed):
    """What all recurrent networks share: `cells` below a `head`, and steps that write over their state."""

    max_positions = None
    cells: nn.Module

    def advance(self, state: RecurrentState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], RecurrentState]:
        state.step(token)
        return state.told(), state

    def select(self, state: RecurrentState, index: Int[Tensor, "K"]) -> RecurrentState:
        return state.select(index)

    @property
    def _like(self) -> Tensor:
        """A parameter, for its dtype and device."""
        return next(self.cells.parameters())


def begun(
    prompts: Sequences,
    layers: tuple[StepLayer, ...],
    embed: Callable[[Tensor], Tensor] | None,
    logits: Logits,
    *,
    opening: int,
    cells: bool,
) -> RecurrentState:
    """The state after the opening symbol and each prompt."""
    hidden = tuple(layer.nothing(len(prompts)) for layer in layers)
    cell = tuple(torch.zeros_like(part) for part in hidden) if cells else None
    state = RecurrentState(hidden, cell, layers, embed, logits)
    order = prompts.start.argsort(descending=True, stable=True)
    inputs, length = opened(prompts, opening)[order], prompts.start[order] + 1
    for t in range(inputs.shape[1]):
        reading = int((length > t).sum())
        state.first(reading).step(inputs[:reading, t])
    return state.select(order.argsort())


def step_layers(parts: Sequence[tuple[nn.RNNBase, int]], vectors: nn.Module | None, symbols: int) -> tuple[Layer, ...]:
    """The weights for a step of layers of torch's LSTM or GRU, each a part and its number in there.

    Without `vectors` of symbols, whose input is one-hot, and for few symbols, the first layer looks its share up.
    """
    first, *rest = [_layer(part, number) for part, number in parts]
    if vectors is None:
        first = first.looked_up(None)
    elif symbols <= TABLE_UP_TO + 1:
        first = first.looked_up(vectors(torch.arange(symbols, device=first.keep.device)))
    return (first, *rest)


def _layer(part: nn.RNNBase, number: int) -> Layer:
    """Transposed views of a layer's weights; the LSTM adds its two biases."""
    read, keep, read_bias, keep_bias = (
        part.get_parameter(f"{name}_l{number}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    if isinstance(part, nn.LSTM):
        return Layer(read.T, read_bias + keep_bias, keep.T, torch.zeros_like(keep_bias))
    return Layer(read.T, read_bias, keep.T, keep_bias)


def _step_lstm(layer: Layer, below: Tensor, hidden: Float[Tensor, "B H"], cell: Float[Tensor, "B H"]) -> None:
    """One step in place; the layer's biases are all in its reading."""
    gates, width = layer.reading(below).addmm_(hidden, layer.keep), hidden.shape[1]
    take, forget = gates[:, : 2 * width].sigmoid_().chunk(2, 1)
    new, show = gates[:, 2 * width : 3 * width].tanh_(), gates[:, 3 * width :].sigmoid_()
    cell.mul_(forget).addcmul_(take, new)
    torch.tanh(cell, out=hidden)
    hidden.mul_(show)


def _step_gru(layer: Layer, below: Tensor, hidden: Float[Tensor, "B H"]) -> None:
    """One step in place."""
    read, kept, width = layer.reading(below), torch.addmm(layer.keep_bias, hidden, layer.keep), hidden.shape[1]
    reset, stay = read[:, : 2 * width].add_(kept[:, : 2 * width]).sigmoid_().chunk(2, 1)
    new = read[:, 2 * width :].addcmul_(reset, kept[:, 2 * width :]).tanh_()
    hidden.sub_(new).mul_(stay).add_(new)
