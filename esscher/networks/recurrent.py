"""Stacked LSTM and GRU networks: torch's own kernels for a whole pass, one or two products a layer for a step.

Input is one-hot or a learnt vector for each token. Dropout stands on learnt input vectors, between layers
and on the output.
"""

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout, one_hot

from esscher.heads.adaptive import AdaptiveInput
from esscher.networks.opening import opened
from esscher.networks.output import build_head, build_input
from esscher.networks.recurrent_config import RecurrentConfig
from esscher.networks.recurrent_steps import RecurrentStack, RecurrentState, begun, step_layers
from esscher.space import Sequences


class RecurrentNetwork(RecurrentStack):
    """A stacked LSTM or GRU that reads tokens and an opening symbol."""

    cells: nn.RNNBase
    embedding: nn.Embedding | AdaptiveInput  # absent with one-hot input

    def __init__(self, config: RecurrentConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size, self.opening = config, vocab_size, vocab_size
        width = vocab_size + 1 if config.embedding is None else config.embedding
        cells = nn.LSTM if config.cell == "lstm" else nn.GRU
        between = config.dropout if config.layers > 1 else 0.0
        self.cells = cells(width, config.width, config.layers, batch_first=True, dropout=between)
        if config.embedding is not None:
            self.embedding = build_input(config, vocab_size, width)
            if isinstance(self.embedding, nn.Embedding):
                nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.head = build_head(config, vocab_size, config.width, self.embedding if config.tied else None)

    def hidden(self, x: Sequences) -> Float[Tensor, "B T H"]:
        return self.read(opened(x, self.opening)[:, :-1], self.open(len(x)))[0]

    def open(self, rows: int) -> tuple[Tensor, ...]:
        """Nothing read: hidden vectors of 0, and cells of 0 for the LSTM."""
        nothing = self._like.new_zeros(rows, self.config.layers, self.config.width)
        return (nothing, nothing.clone()) if self.config.cell == "lstm" else (nothing,)

    def read(self, inputs: Int[Tensor, "B L"], memory: tuple[Tensor, ...]) -> tuple[Float[Tensor, "B L H"], tuple[Tensor, ...]]:
        """The vector after each input; the memory is that of the last one, and keeps what dropout between layers took."""
        if inputs.numel() == 0:
            return self._like.new_zeros(*inputs.shape, self.config.width), memory
        rate = self.config.dropout
        if self.config.embedding is None:
            vectors = one_hot(inputs, self.vocab_size + 1).to(self._like.dtype)
        else:
            vectors = dropout(self.embedding(inputs), rate, self.training)
        before = tuple(part.transpose(0, 1).contiguous() for part in memory)
        found, after = self.cells(vectors, before if self.config.cell == "lstm" else before[0])
        kept = after if self.config.cell == "lstm" else (after,)
        return dropout(found, rate, self.training), tuple(part.detach().transpose(0, 1).contiguous() for part in kept)

    def begin(self, prompts: Sequences, room: int) -> tuple[Float[Tensor, "B V"], RecurrentState]:
        vectors = None if self.config.embedding is None else self.embedding
        layers = step_layers([(self.cells, number) for number in range(self.config.layers)], vectors, self.vocab_size + 1)
        logits, cells = self.head.prepared(room), self.config.cell == "lstm"
        state = begun(prompts, layers, vectors, logits, opening=self.opening, cells=cells)
        return state.told(), state
