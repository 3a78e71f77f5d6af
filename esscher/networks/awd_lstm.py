"""AWD-LSTM (Merity et al. 2018): LSTM layers one by one, with dropout everywhere that stays the same over time.

In training a pass drops whole tokens from the input vectors, then, by one mask for all positions of a row, parts of the
vectors before, between and after the layers, and by one mask for the pass parts of the weights that a layer reads its own
past by; what is kept is the whole weight. Its activations are penalised: `penalty` tells by how much, after a training pass.
Steps and the memory of a stream are those of any LSTM.

Letters beside those of `esscher.space`: W width of the last layer, L inputs of a segment, I and H widths of a layer's input
and output.
"""

from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout

from esscher.networks.activations import PenalisedReader, locked
from esscher.networks.output import begin_end, build_head, build_input
from esscher.networks.recurrent_config import AwdLstmConfig
from esscher.networks.recurrent_steps import RecurrentStack, RecurrentState, begun, step_layers
from esscher.space import Sequences


class AwdLstmNetwork(RecurrentStack, PenalisedReader):
    """Layers of LSTM that read tokens and an opening symbol."""

    config: AwdLstmConfig
    cells: nn.ModuleList

    def __init__(self, config: AwdLstmConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size, self.opening = config, vocab_size, vocab_size
        self.embedding = build_input(config, vocab_size, config.widths[0])
        self.cells = nn.ModuleList([nn.LSTM(below, width, batch_first=True) for below, width in pairwise(config.widths)])
        self.head = build_head(config, vocab_size, config.width, self.embedding if config.tied else None)
        for name, weight in self.named_parameters():
            begin_end(name, weight)

    def open(self, rows: int) -> tuple[Tensor, ...]:
        """Nothing read: hidden vector and cell of each layer are 0."""
        widths = [width for width in self.config.widths[1:] for _ in ("hidden", "cell")]
        return tuple(self._like.new_zeros(rows, width) for width in widths)

    def begin(self, prompts: Sequences, room: int) -> tuple[Float[Tensor, "B V"], RecurrentState]:
        layers = step_layers([(part, 0) for part in self._layers], self.embedding, self.vocab_size + 1)
        state = begun(prompts, layers, self.embedding, self.head.prepared(room), opening=self.opening, cells=True)
        return state.told(), state

    def _pass(
        self, inputs: Int[Tensor, "B L"], memory: tuple[Tensor, ...], inside: Bool[Tensor, "B L"]
    ) -> tuple[Float[Tensor, "B L W"], tuple[Tensor, ...]]:
        self._penalty = None
        if inputs.numel() == 0:
            return self._like.new_zeros(*inputs.shape, self.config.width), memory
        config, kept = self.config, list[Tensor]()
        vectors, rate = self._vectors(inputs), config.input_dropout
        for number, part in enumerate(self._layers):
            vectors = locked(vectors, rate, self.training)
            vectors, after = self._read(part, vectors, memory[2 * number : 2 * number + 2])
            kept, rate = [*kept, *after], config.between_dropout
        return self._dropped(vectors, inside), tuple(kept)

    def _read(
        self, part: nn.LSTM, vectors: Float[Tensor, "B L I"], memory: tuple[Tensor, ...]
    ) -> tuple[Float[Tensor, "B L H"], list[Tensor]]:
        """A layer by torch's own kernel, some of the weights of its past dropped in training."""
        read, past, *biases = [part.get_parameter(f"{name}_l0") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        weights = [read, dropout(past, self.config.weight_dropout, self.training), *biases]
        before = [one[None].contiguous() for one in memory]
        found, *after = torch.lstm(vectors, before, weights, True, 1, 0.0, self.training, False, True)
        return found, [one[0].detach() for one in after]

    def _vectors(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B L I"]:
        """The input vectors; in training some symbols are 0 wherever they stand."""
        vectors = self.embedding(tokens)
        if not self.training or not self.config.word_dropout:
            return vectors
        return vectors * dropout(vectors.new_ones(self.vocab_size + 1, 1), self.config.word_dropout)[tokens]

    @property
    def _layers(self) -> list[nn.LSTM]:
        return [part for part in self.cells if isinstance(part, nn.LSTM)]
