"""The recurrent cell of ENAS (Pham et al. 2018): a graph of nodes, each of which updates the output of an earlier node.

A node with input p computes h and t by one product of p and outputs p + sigmoid(t) (f(h) - p), f its activation. Node 0 adds a
product of the cell input to h and t, and its p is the state of the cell; the new state, which is also the output, is the mean
of the nodes that no other node reads. There are no biases, in the softmax either. Dropout masks hold for a pass; the p in the
sum is not dropped. Letters: H width of the cell, L inputs of a segment, K nodes with one input node, I width of the input.
"""

from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout

from esscher.core.space import Sequences
from esscher.heads.build import build_head
from esscher.heads.head import matmul_layout
from esscher.networks.network import Memory
from esscher.networks.recurrent import CellWeights, RecurrentStack, RecurrentState
from esscher.networks.recurrent_config import EnasConfig
from esscher.networks.regularization import ActivationRegularized, SegmentOutput, variational_dropout, word_dropout

ACTIVATIONS = (torch.tanh, torch.relu, lambda x: x, torch.sigmoid)


@dataclass(frozen=True)
class _NodeGroup:
    """The nodes with one input node, sorted by activation; `functions` are pairs (activation, number of nodes)."""

    source: int
    nodes: tuple[int, ...]
    functions: tuple[tuple[int, int], ...]

    def __call__(self, source: Float[Tensor, "B H"], gates: Float[Tensor, "B X"]) -> Float[Tensor, "B K H"]:
        """The outputs of the nodes; in the gates all h come first, then all t."""
        new, share = gates.view(len(gates), 2, len(self.nodes), source.shape[1]).unbind(1)
        parts = zip(self.functions, torch.split(new, [count for _, count in self.functions], 1), strict=True)
        activated = [ACTIVATIONS[function](part) for (function, _), part in parts]
        new = activated[0] if len(activated) == 1 else torch.cat(activated, 1)
        return torch.lerp(source[:, None], new.to(source.dtype), share.sigmoid().to(source.dtype))  # states stay float32


@dataclass(frozen=True)
class _CellGraph:
    """The nodes of an arc in the order of computation; the first group is node 0."""

    groups: tuple[_NodeGroup, ...]
    unread: tuple[int, ...]

    @classmethod
    def of(cls, config: EnasConfig) -> "_CellGraph":
        nodes, groups = config.nodes, []
        sources = sorted({source for source, _ in nodes})
        for source in sources:
            readers = sorted((function, node) for node, (read, function) in enumerate(nodes) if read == source)
            runs = tuple((function, len(list(run))) for function, run in groupby(readers, lambda reader: reader[0]))
            groups.append(_NodeGroup(source, tuple(node for _, node in readers), runs))
        return cls(tuple(groups), tuple(node for node in range(len(nodes)) if node not in sources))

    def __call__(
        self, input_gates: Float[Tensor, "B X"], state: Float[Tensor, "B H"], weights: list[Tensor], mask: Tensor | None
    ) -> Float[Tensor, "B H"]:
        """The next state, given the input gates of node 0; `mask` multiplies the input of every product."""
        nodes = {-1: state}
        for group, weight in zip(self.groups, weights, strict=True):
            source = nodes[group.source]
            masked = source if mask is None else source * mask
            gates = torch.addmm(input_gates, masked, weight) if group.source < 0 else torch.mm(masked, weight)
            nodes.update(zip(group.nodes, group(source, gates).unbind(1), strict=True))
        return nodes[self.unread[0]] if len(self.unread) == 1 else torch.stack([nodes[node] for node in self.unread]).mean(0)


class _EnasCell(nn.Module):
    """The weights of a layer: one matrix for the input, and one for each group of nodes."""

    def __init__(self, config: EnasConfig, below: int):
        super().__init__()
        self.plan, self.width = _CellGraph.of(config), config.width
        self.read = nn.Linear(below, 2 * config.width, bias=False)
        sizes = [2 * len(group.nodes) * config.width for group in self.plan.groups]
        self.nodes = nn.ModuleList([nn.Linear(config.width, size, bias=False) for size in sizes])

    @property
    def weights(self) -> list[Tensor]:
        """The weights of each group of nodes, as [H, 2 K H]."""
        return [part.get_parameter("weight").T for part in self.nodes]

    def forward(
        self, vectors: Float[Tensor, "B L I"], state: Float[Tensor, "B H"], rate: float
    ) -> tuple[Float[Tensor, "B L H"], Float[Tensor, "B H"]]:
        """The states after all inputs, and the last; `rate` is the dropout rate of the inputs of nodes."""
        weights, states = self.weights, []
        mask = dropout(torch.ones_like(state), rate) if self.training and rate else None
        for input_gates in self.read(vectors.transpose(0, 1)).unbind(0):
            state = self.plan(input_gates, state, weights, mask)
            states.append(state)
        return torch.stack(states, 1), state

    def step(self, steps: int) -> "_EnasCellStep":
        """The layer for single steps, with the current weights."""
        read, first, *others = [matmul_layout(part.get_parameter("weight"), steps).T for part in (self.read, *self.nodes)]
        zeros = read.new_zeros(read.shape[1])
        return _EnasCellStep(CellWeights(read, zeros, first, zeros), self.plan, [first, *others])


@dataclass(frozen=True)
class _EnasCellStep:
    """A layer for single steps; `reader` computes the input gates of node 0."""

    reader: CellWeights
    plan: _CellGraph
    weights: list[Tensor]

    def __call__(self, below: Tensor, hidden: Float[Tensor, "B H"], cell: Float[Tensor, "B H"] | None) -> None:
        hidden.copy_(self.plan(self.reader.input_gates(below), hidden, self.weights, None))


class EnasNetwork(RecurrentStack, ActivationRegularized):
    """Stacked layers of the cell."""

    config: EnasConfig
    cells: nn.ModuleList

    def __init__(self, config: EnasConfig, vocab_size: int):
        super().__init__(config, vocab_size)
        self.cells = nn.ModuleList([_EnasCell(config, below) for below in config.widths[:-1]])
        self.head = build_head(config, vocab_size, config.width, self.embedding if config.tied else None, bias=False)
        bound = 0.1 if config.width <= 300 else 0.05 if config.width <= 400 else 0.04
        for name, weight in self.named_parameters():
            if name.startswith("cells.") or name in ("embedding.weight", "head.weight"):
                nn.init.uniform_(weight, -bound, bound)

    def init_memory(self, rows: int) -> Memory:
        """The state of each layer: 0."""
        return tuple(self._like.new_zeros(rows, self.config.width) for _ in self.cells)

    def begin(self, prompts: Sequences, max_new_tokens: int) -> tuple[Float[Tensor, "B V"], RecurrentState]:
        first, *rest = [cell.step(max_new_tokens) for cell in self.cells if isinstance(cell, _EnasCell)]
        reader, embed = first.reader.with_input_table(self.embedding, self.vocab_size + 1)
        layers = (_EnasCellStep(reader, first.plan, first.weights), *rest)
        return self._begin(prompts, (layers, embed), self.config.widths[1:], max_new_tokens, cells=False)

    def _pass(self, inputs: Int[Tensor, "B L"], memory: Memory, inside: Bool[Tensor, "B L"]) -> SegmentOutput:
        config, after, vectors = self.config, list[Tensor](), self._embed(inputs)
        for cell, state in zip(self.cells, memory, strict=True):
            vectors = variational_dropout(vectors, config.input_dropout, self.training)
            vectors, state = cell(vectors, state, config.hidden_dropout)
            after.append(state.detach())
        return self._regularize(vectors, inside), tuple(after)

    def _embed(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B L I"]:
        """Embeddings; word dropout draws anew for each row."""
        vectors = self.embedding(tokens)
        if not self.training or not self.config.word_dropout:
            return vectors
        row = torch.arange(len(tokens), device=tokens.device)[:, None]
        words, index = torch.unique(row * (self.vocab_size + 1) + tokens, return_inverse=True)
        return word_dropout(vectors, index, len(words), self.config.word_dropout, self.training)
