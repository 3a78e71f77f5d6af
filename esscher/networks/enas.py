"""The recurrent cell of ENAS (Pham et al. 2018): nodes that each update what one node before them knows.

With p what a node reads, it makes h and t of p by one product and passes on s = p + sigmoid(t) (f(h) - p). Node 0 makes them
of the input too, and its p is the cell's state; the new state, which is the output, is the mean of the nodes that no other
reads. All nodes that read one node are made by one product, and the input's share of node 0 by one product for all positions.
There are no biases, in the softmax neither.

Dropout masks hold for a pass: one for each row and word, and one for each row of the input vectors, of all that nodes read,
and of the output. What a node updates is not dropped.

Letters beside those of `esscher.space`: H width of the cell, L inputs of a segment, K nodes that read one node, I width of a
layer's input.
"""

from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout

from esscher.heads.head import laid_out
from esscher.networks.activations import PenalisedReader, locked
from esscher.networks.output import build_head, build_input
from esscher.networks.recurrent_config import EnasConfig
from esscher.networks.recurrent_steps import TABLE_UP_TO, Layer, RecurrentStack, RecurrentState, begun
from esscher.space import Sequences

FUNCTIONS = (torch.tanh, torch.relu, lambda x: x, torch.sigmoid)


@dataclass(frozen=True)
class _Readers:
    """The nodes that read one node: those of one function side by side, as (function, how many)."""

    source: int
    nodes: tuple[int, ...]
    functions: tuple[tuple[int, int], ...]

    def __call__(self, source: Float[Tensor, "B H"], gates: Float[Tensor, "B X"]) -> Float[Tensor, "B K H"]:
        """What the nodes pass on; all their h come first in the gates, then all their t."""
        new, share = gates.view(len(gates), 2, len(self.nodes), source.shape[1]).unbind(1)
        parts = zip(self.functions, torch.split(new, [count for _, count in self.functions], 1), strict=True)
        made = [FUNCTIONS[function](part) for (function, _), part in parts]
        return torch.lerp(source[:, None], made[0] if len(made) == 1 else torch.cat(made, 1), share.sigmoid())


@dataclass(frozen=True)
class _Plan:
    """An arc in the order of computation; the first group is node 0, which reads the state."""

    groups: tuple[_Readers, ...]
    unread: tuple[int, ...]

    @classmethod
    def of(cls, config: EnasConfig) -> "_Plan":
        nodes, groups = config.nodes, []
        sources = sorted({source for source, _ in nodes})
        for source in sources:
            readers = sorted((function, node) for node, (read, function) in enumerate(nodes) if read == source)
            runs = tuple((function, len(list(run))) for function, run in groupby(readers, lambda one: one[0]))
            groups.append(_Readers(source, tuple(node for _, node in readers), runs))
        return cls(tuple(groups), tuple(node for node in range(len(nodes)) if node not in sources))

    def __call__(
        self, reading: Float[Tensor, "B X"], state: Float[Tensor, "B H"], weights: list[Tensor], mask: Tensor | None
    ) -> Float[Tensor, "B H"]:
        """The next state, given the input's share of node 0; `mask` multiplies whatever is read."""
        known = {-1: state}
        for group, weight in zip(self.groups, weights, strict=True):
            source = known[group.source]
            read = source if mask is None else source * mask
            gates = torch.addmm(reading, read, weight) if group.source < 0 else torch.mm(read, weight)
            known.update(zip(group.nodes, group(source, gates).unbind(1), strict=True))
        return known[self.unread[0]] if len(self.unread) == 1 else torch.stack([known[node] for node in self.unread]).mean(0)


class _Cell(nn.Module):
    """The weights of a layer: of its input, and of the nodes that read one node, together."""

    def __init__(self, config: EnasConfig, below: int):
        super().__init__()
        self.plan, self.width = _Plan.of(config), config.width
        self.read = nn.Linear(below, 2 * config.width, bias=False)
        sizes = [2 * len(group.nodes) * config.width for group in self.plan.groups]
        self.nodes = nn.ModuleList([nn.Linear(config.width, size, bias=False) for size in sizes])

    @property
    def weights(self) -> list[Tensor]:
        """Of each group of nodes, as [H, 2 K H]."""
        return [part.get_parameter("weight").T for part in self.nodes]

    def forward(
        self, vectors: Float[Tensor, "B L I"], state: Float[Tensor, "B H"], rate: float
    ) -> tuple[Float[Tensor, "B L H"], Float[Tensor, "B H"]]:
        """The states after all inputs, and the last; in training `rate` of what nodes read is dropped."""
        weights, found = self.weights, []
        mask = dropout(torch.ones_like(state), rate) if self.training and rate else None
        for reading in self.read(vectors.transpose(0, 1)).unbind(0):
            state = self.plan(reading, state, weights, mask)
            found.append(state)
        return torch.stack(found, 1), state

    def step(self, steps: int) -> "_CellStep":
        """The same for single steps, by the weights as they are now."""
        read, keep, *others = [laid_out(part.get_parameter("weight"), steps).T for part in (self.read, *self.nodes)]
        nothing = read.new_zeros(read.shape[1])
        return _CellStep(Layer(read, nothing, keep, nothing), self.plan, [keep, *others])


@dataclass(frozen=True)
class _CellStep:
    """A layer for single steps; the reading layer makes the input's share of node 0."""

    reader: Layer
    plan: _Plan
    weights: list[Tensor]

    @property
    def looks_up(self) -> bool:
        return self.reader.looks_up

    def nothing(self, rows: int) -> Float[Tensor, "{rows} H"]:
        return self.reader.nothing(rows)

    def step(self, below: Tensor, hidden: Float[Tensor, "B H"], cell: Float[Tensor, "B H"] | None) -> None:
        hidden.copy_(self.plan(self.reader.reading(below), hidden, self.weights, None))


class EnasNetwork(RecurrentStack, PenalisedReader):
    """Layers of the cell that read tokens and an opening symbol."""

    config: EnasConfig
    cells: nn.ModuleList

    def __init__(self, config: EnasConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size, self.opening = config, vocab_size, vocab_size
        self.embedding = build_input(config, vocab_size, config.widths[0])
        self.cells = nn.ModuleList([_Cell(config, below) for below in config.widths[:-1]])
        self.head = build_head(config, vocab_size, config.width, self.embedding if config.tied else None, bias=False)
        for name, weight in self.named_parameters():
            if name.startswith("cells.") or name in ("embedding.weight", "head.weight"):
                nn.init.uniform_(weight, -initial_range(config.width), initial_range(config.width))

    def open(self, rows: int) -> tuple[Tensor, ...]:
        """Nothing read: the state of each layer is 0."""
        return tuple(self._like.new_zeros(rows, self.config.width) for _ in self.cells)

    def begin(self, prompts: Sequences, room: int) -> tuple[Float[Tensor, "B V"], RecurrentState]:
        first, *rest = [cell.step(room) for cell in self.cells if isinstance(cell, _Cell)]
        if self.vocab_size <= TABLE_UP_TO:
            vectors = self.embedding(torch.arange(self.vocab_size + 1, device=self._like.device))
            first = _CellStep(first.reader.looked_up(vectors), first.plan, first.weights)
        layers = (first, *rest)
        state = begun(prompts, layers, self.embedding, self.head.prepared(room), opening=self.opening, cells=False)
        return state.told(), state

    def _pass(
        self, inputs: Int[Tensor, "B L"], memory: tuple[Tensor, ...], inside: Bool[Tensor, "B L"]
    ) -> tuple[Float[Tensor, "B L H"], tuple[Tensor, ...]]:
        self._penalty = None
        if inputs.numel() == 0:
            return self._like.new_zeros(*inputs.shape, self.config.width), memory
        config, kept, vectors = self.config, list[Tensor](), self._vectors(inputs)
        for cell, state in zip(self.cells, memory, strict=True):
            vectors, after = cell(locked(vectors, config.input_dropout, self.training), state, config.hidden_dropout)
            kept.append(after.detach())
        return self._dropped(vectors, inside), tuple(kept)

    def _vectors(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B L I"]:
        """The input vectors; in training some words of a row are 0 wherever they stand in it."""
        vectors = self.embedding(tokens)
        if not self.training or not self.config.word_dropout:
            return vectors
        row = torch.arange(len(tokens), device=tokens.device)[:, None]
        words, place = torch.unique(row * (self.vocab_size + 1) + tokens, return_inverse=True)
        return vectors * dropout(vectors.new_ones(len(words), 1), self.config.word_dropout)[place]


def initial_range(width: int) -> float:
    """The bound of initial weights, all of them uniform."""
    return 0.1 if width <= 300 else 0.05 if width <= 400 else 0.04
