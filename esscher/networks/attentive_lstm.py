"""An LSTM that writes a target, the point, while it attends to a source, the prompt, read by another LSTM from both sides.

With h the decoder's vector before a token and s the encoder's vectors, Luong et al. (2015): weights softmax(h A s), context c
their mean of s, and the vector of the output is tanh(C [c, h]). The attention feeds nothing back, so a pass is one call of
torch's kernels. The decoder begins with what a layer makes of the ends of the source.

For steps a source is read once: rows that go on from one prompt note whose they are (`esscher.networks.owners`).

Letters beside those of `esscher.space`: W width, S places of a source.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from esscher.heads.head import Headed
from esscher.networks.opening import answered, opened
from esscher.networks.output import build_head, build_input
from esscher.networks.owners import Owners
from esscher.networks.recurrent_steps import RecurrentState, step_layers
from esscher.networks.seq2seq_config import AttentiveLstmConfig
from esscher.space import Sequences, at_columns


@dataclass(frozen=True)
class _Source:
    """What the decoder knows of the sources, where they are no padding, and what it begins with."""

    keys: Float[Tensor, "P S W"]
    values: Float[Tensor, "P S W"]
    inside: Bool[Tensor, "P 1 S"]
    start: Float[Tensor, "P 2 L W"]  # hidden vectors and cells of each layer

    def rows(self, index: Int[Tensor, "Q"]) -> "_Source":
        return _Source(self.keys[index], self.values[index], self.inside[index], self.start[index])

    def seen_from(self, hidden: Float[Tensor, "P N W"]) -> Float[Tensor, "P N W"]:
        """The context of each vector."""
        score = hidden @ self.keys.transpose(1, 2)
        return score.masked_fill(~self.inside, -torch.inf).softmax(-1) @ self.values


@dataclass(frozen=True)
class _State:
    """Sources, whose each row is, and the decoder's own state."""

    source: _Source
    owners: Owners
    cells: RecurrentState


class AttentiveLstmNetwork(Headed):
    """An LSTM that reads a source and one that writes a target, over one vocabulary."""

    max_positions = None

    def __init__(self, config: AttentiveLstmConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        width, between = config.width, config.dropout if config.layers > 1 else 0.0
        self.embedding = build_input(config, vocab_size, config.input_width)
        if isinstance(self.embedding, nn.Embedding):
            nn.init.normal_(self.embedding.weight, std=config.input_width**-0.5)
        widths = [config.input_width, *(width,) * (config.encoders - 1)]
        self.readers = nn.ModuleList([nn.LSTM(one, width // 2, batch_first=True, bidirectional=True) for one in widths])
        self.cells = nn.LSTM(config.input_width, width, config.layers, batch_first=True, dropout=between)
        self.bridge = nn.Linear(width, 2 * config.layers * width)
        self.attend = nn.Linear(width, width, bias=False)
        self.combine = nn.Linear(2 * width, width)
        self.head = build_head(config, vocab_size, width, self.embedding if config.tied else None)

    def hidden(self, x: Sequences) -> Float[Tensor, "B T W"]:
        if not bool(x.counted.any()):
            return self.bridge.weight.new_zeros(*x.tokens.shape, self.config.width)
        source = self._read(x.prompts(), dropping=self.training)
        vectors = dropout(self.embedding(answered(x, self.vocab_size)), self.config.dropout, self.training)
        hidden, cell = source.start.permute(1, 2, 0, 3).contiguous()
        found, _ = self.cells(vectors, (hidden, cell))
        told = self._told(found, source.seen_from(found))
        return at_columns(x, dropout(told, self.config.dropout, self.training))

    def begin(self, prompts: Sequences, room: int) -> tuple[Float[Tensor, "B V"], _State]:
        layers = step_layers([(self.cells, layer) for layer in range(self.config.layers)], self.embedding, self.vocab_size + 1)
        source, rows = self._read(prompts, dropping=False), len(prompts)
        hidden, cell = (tuple(part.clone() for part in some.unbind(1)) for some in source.start.unbind(1))
        cells = RecurrentState(hidden, cell, layers, self.embedding, self.head.prepared(room))
        state = _State(source, Owners(torch.arange(rows, device=prompts.tokens.device), rows), cells)
        return self.advance(state, torch.full((rows,), self.vocab_size, device=prompts.tokens.device))

    def advance(self, state: _State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], _State]:
        state.cells.step(token)
        hidden = state.cells.hidden[-1]
        seen = state.owners.restore(state.source.seen_from(state.owners.arrange(hidden)))
        return state.cells.logits(self._told(hidden, seen)), state

    def select(self, state: _State, index: Int[Tensor, "K"]) -> _State:
        owners, used = state.owners.select(index)
        source = state.source if used is None else state.source.rows(used)
        return replace(state, source=source, owners=owners, cells=state.cells.select(index))

    def _told(self, hidden: Float[Tensor, "*S W"], seen: Float[Tensor, "*S W"]) -> Float[Tensor, "*S W"]:
        """The vector of the output."""
        return self.combine(torch.cat([seen, hidden], -1)).tanh()

    def _read(self, prompts: Sequences, *, dropping: bool) -> _Source:
        inputs, rate = opened(prompts, self.vocab_size), self.config.dropout if dropping else 0.0
        inside = (torch.arange(inputs.shape[1], device=inputs.device) <= prompts.start[:, None])[:, None]
        values, ends = dropout(self.embedding(inputs), rate), self.bridge.weight.new_zeros(len(prompts), self.config.width)
        for reader in self.readers if len(prompts) else ():
            packed = pack_padded_sequence(values, (prompts.start + 1).cpu(), batch_first=True, enforce_sorted=False)
            found, (last, _) = reader(packed)
            values = dropout(pad_packed_sequence(found, batch_first=True, total_length=inputs.shape[1])[0], rate)
            ends = last.transpose(0, 1).flatten(1)
        start = self.bridge(ends).tanh().view(len(prompts), 2, self.config.layers, self.config.width)
        return _Source(self.attend(values), values, inside, start)
