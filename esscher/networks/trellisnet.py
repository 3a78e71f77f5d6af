"""TrellisNet (Bai et al. 2019): levels of one causal convolution of kernel 2, with the gates of an LSTM.

A level makes the gates i, o, g, f of a position of the vectors of the level below, there and `span` positions before, and of
the input vectors at both, which all levels are given: c = sigmoid(f) c' + sigmoid(i) tanh(g), h = sigmoid(o) tanh(c), where c'
is the cell of the level below, `span` before. Weights are the same for all levels, so the input is convolved once for each
span. Below the first level, and before the first position, all is 0.

A memory holds for each level what it read last, so a stream is one long row however it is cut, and nothing is read twice to
warm up. Steps do the products with the past of all levels at once. A training pass keeps the outputs of some levels until
`score` tells the tokens: their likelihoods are a part of `penalty`.

Letters beside those of `esscher.space`: W width of the output, H units of a level, L inputs of a segment, N rows that the
levels above the first remember, which is the sum of their spans, R the largest span, I width of the input vectors.
"""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout

from esscher.heads.head import Logits, laid_out
from esscher.networks.activations import PenalisedReader, locked
from esscher.networks.opening import opened
from esscher.networks.output import begin_end, build_head, build_input
from esscher.networks.recurrent_config import TrellisNetConfig
from esscher.space import Sequences

INITIAL_STD = 0.01


@dataclass(frozen=True)
class _Weights:
    """The convolution, as products want it: of the input and of hidden vectors, a span before and now; G = 4 H."""

    input_past: Float[Tensor, "I G"]
    input_now: Float[Tensor, "I G"]
    bias: Float[Tensor, "G"]
    past: Float[Tensor, "H G"]
    now: Float[Tensor, "H G"]


@dataclass(frozen=True)
class _State:
    """What the levels read last, and the input's share of the past; a row or slot t mod span is what was read at t."""

    hidden: Float[Tensor, "N B H"]
    cells: Float[Tensor, "N B H"]
    shares: Float[Tensor, "R B G"]
    weights: _Weights
    head: Logits
    count: int  # steps since the state was made; the same for all rows


class TrellisNetwork(PenalisedReader):
    """Levels of one convolution that read tokens and an opening symbol."""

    max_positions = None
    config: TrellisNetConfig

    def __init__(self, config: TrellisNetConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size, self.opening = config, vocab_size, vocab_size
        units, given = config.inner + config.width, config.input_width
        self.embedding = build_input(config, vocab_size, given)
        self.input_past = nn.Linear(given, 4 * units, bias=False)
        self.input_now = nn.Linear(given, 4 * units)
        self.past = nn.Linear(units, 4 * units, bias=False)
        self.now = nn.Linear(units, 4 * units, bias=False)
        self.head = build_head(config, vocab_size, config.width, self.embedding if config.tied else None)
        for name, weight in self.named_parameters():
            begin_end(name, weight)
            if name.startswith(("input_", "past.", "now.")):
                nn.init.normal_(weight, std=INITIAL_STD)
        self._unscored: tuple[Tensor, list[Tensor]] | None = None  # vectors of a pass, and those of levels to be scored with it
        self._warned = False

    def open(self, rows: int) -> tuple[Tensor, ...]:
        """Nothing read: no tokens, and hidden vectors and cells of 0."""
        spans, like = self.config.spans, self.past.weight
        nothing = like.new_zeros(rows, sum(spans[1:]), self.past.in_features)
        return torch.full((rows, max(spans)), -1, device=like.device), nothing, nothing.clone()

    def score(self, hidden: Float[Tensor, "*S W"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        self._score_levels(hidden, tokens)
        return super().score(hidden, tokens)

    def score_and_level(
        self, hidden: Float[Tensor, "*S W"], tokens: Int[Tensor, "*S"]
    ) -> tuple[Float[Tensor, "*S"], Float[Tensor, "*S"]]:
        self._score_levels(hidden, tokens)
        return super().score_and_level(hidden, tokens)

    def penalty(self) -> Float[Tensor, ""] | None:
        """What the last training pass costs beside its likelihood: large and changing outputs, unlikely tokens by levels."""
        if self._unscored is not None and not self._warned:
            warnings.warn(
                f"The vectors of a training pass were not scored, so levels of it have no auxiliary loss of weight "
                f"{self.config.auxiliary}. The rest of the penalty is told. Use an objective that scores tokens, without "
                f"label smoothing, or set auxiliary = 0.",
                stacklevel=2,
            )
            self._warned = True
        self._unscored = None
        return super().penalty()

    def begin(self, prompts: Sequences, room: int) -> tuple[Float[Tensor, "B V"], _State]:
        inputs = opened(prompts, self.opening)
        found, after = self._levels(inputs, self.open(len(prompts)), prompts.start + 1, learning=False)
        tokens, *past = after
        weights = self._weights(learning=False, steps=room)
        shares = self._vectors(tokens.T, learning=False) @ weights.input_past
        hidden, cells = (part.transpose(0, 1).contiguous() for part in past)
        state = _State(hidden, cells, shares, weights, self.head.prepared(room), 0)
        return state.head(found[-1][prompts.start, torch.arange(len(prompts), device=inputs.device)]), state

    def advance(self, state: _State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], _State]:
        weights, spans, count = state.weights, self.config.spans, state.count
        vectors, most = self.embedding(token), len(state.shares)
        now = torch.addmm(weights.bias, vectors, weights.input_now)
        given = {span: now + state.shares[(count - span) % most] for span in set(spans)}
        state.shares[count % most] = vectors @ weights.input_past
        rows = [first + count % span for first, span in zip(_starts(spans), spans[1:], strict=True)]
        known = state.hidden if len(rows) == len(state.hidden) else state.hidden[rows]
        gates = known @ weights.past
        hidden, cell = _gated(given[spans[0]], None)
        for gate, row, span in zip(gates, rows, spans[1:], strict=True):
            gate = gate.addmm_(hidden, weights.now).add_(given[span])
            above = _gated(gate, state.cells[row])
            state.hidden[row], state.cells[row] = hidden, cell
            hidden, cell = above
        return state.head(hidden[:, -self.config.width :]), replace(state, count=count + 1)

    def select(self, state: _State, index: Int[Tensor, "K"]) -> _State:
        hidden, cells, shares = (part.index_select(1, index) for part in (state.hidden, state.cells, state.shares))
        return replace(state, hidden=hidden, cells=cells, shares=shares)

    def _pass(
        self, inputs: Int[Tensor, "B L"], memory: tuple[Tensor, ...], inside: Bool[Tensor, "B L"]
    ) -> tuple[Float[Tensor, "B L W"], tuple[Tensor, ...]]:
        config, self._penalty, self._unscored = self.config, None, None
        if inputs.numel() == 0:
            return self.past.weight.new_zeros(*inputs.shape, config.width), memory
        length = torch.full_like(inputs[:, 0], inputs.shape[1])
        found, after = self._levels(inputs, memory, length, learning=self.training)
        *levels, last = [one.transpose(0, 1) for one in found]
        dropped = self._dropped(last, inside)
        if self.training and torch.is_grad_enabled() and levels:
            self._unscored = dropped, [locked(one, config.dropout, True) for one in levels]
        return dropped, after

    def _levels(
        self, inputs: Int[Tensor, "B L"], memory: tuple[Tensor, ...], length: Int[Tensor, "B"], *, learning: bool
    ) -> tuple[list[Float[Tensor, "L B W"]], tuple[Tensor, ...]]:
        """The outputs of levels to be scored while learning, and of the last; the memory after so many inputs of each row."""
        config, weights, (before, *past) = self.config, self._weights(learning=learning), memory
        tokens = torch.cat([before, inputs], 1)
        shares, spans = self._shares(tokens, weights, inputs.shape[1], learning=learning), config.spans
        keep = None
        if learning and config.hidden_dropout:
            keep = dropout(past[0].new_ones(len(inputs), past[0].shape[2]), config.hidden_dropout)
        below, found, kept = _gated(shares[spans[0]], None), list[Tensor](), list[tuple[Tensor, ...]]()
        for level, span in enumerate(spans):
            if level > 0:
                first = sum(spans[1:level])
                old = (part[:, first : first + span].transpose(0, 1) for part in past)
                hidden, cell = (torch.cat([one, new]) for one, new in zip(old, below, strict=True))
                kept.append(tuple(_last(part, length, span) for part in (hidden, cell)))
                below = self._level(hidden, cell, shares[span], weights, keep)
            if learning and config.auxiliary and (level + 1) % config.auxiliary_every == 0:
                found.append(below[0][..., -config.width :])
        after = tuple(torch.cat([past[number][:, :0], *(pair[number] for pair in kept)], 1) for number in (0, 1))
        return [*found, below[0][..., -config.width :]], (_last(tokens.T, length, before.shape[1]), *after)

    def _level(
        self,
        hidden: Float[Tensor, "K B H"],
        cell: Float[Tensor, "K B H"],
        share: Float[Tensor, "L B G"],
        weights: _Weights,
        keep: Float[Tensor, "B H"] | None,
    ) -> tuple[Float[Tensor, "L B H"], Float[Tensor, "L B H"]]:
        """Hidden vectors and cells of the next level, given those of this one with as many before them as the span."""
        length = len(share)
        seen = hidden if keep is None else hidden * keep
        gates = torch.addmm(share.flatten(0, 1), seen[:length].flatten(0, 1), weights.past)
        gates = torch.addmm(gates, seen[-length:].flatten(0, 1), weights.now)
        return _gated(gates.view_as(share), cell[:length])

    def _shares(
        self, tokens: Int[Tensor, "B K"], weights: _Weights, length: int, *, learning: bool
    ) -> dict[int, Float[Tensor, "{length} B G"]]:
        """What the input adds to the gates of the last positions, for each span."""
        vectors = self._vectors(tokens.T, learning=learning)
        past, now = vectors @ weights.input_past, vectors[-length:] @ weights.input_now + weights.bias
        most = len(vectors) - length
        return {span: now + past[most - span : most - span + length] for span in set(self.config.spans)}

    def _vectors(self, tokens: Int[Tensor, "K B"], *, learning: bool) -> Float[Tensor, "K B I"]:
        """The input vectors, 0 where there is no token; while learning some symbols are 0 wherever they stand."""
        there = tokens >= 0
        vectors = self.embedding(tokens.clamp(min=0)) * there[..., None]
        if learning and self.config.word_dropout:
            kept = dropout(vectors.new_ones(self.vocab_size + 1, 1), self.config.word_dropout)
            vectors = vectors * kept[tokens.clamp(min=0)]
        return locked(vectors.transpose(0, 1), self.config.input_dropout, learning).transpose(0, 1)

    def _weights(self, *, learning: bool, steps: int = 0) -> _Weights:
        """The weights of a pass; while learning some of those that read the past are dropped."""
        rate = self.config.weight_dropout
        past = [dropout(part.weight, rate, learning) for part in (self.input_past, self.past)]
        parts = (past[0], self.input_now.weight, past[1], self.now.weight)
        input_past, input_now, hidden_past, hidden_now = (laid_out(part, steps).T for part in parts)
        return _Weights(input_past, input_now, self.input_now.bias, hidden_past, hidden_now)

    def _score_levels(self, hidden: Float[Tensor, "*S W"], tokens: Int[Tensor, "*S"]) -> None:
        """Add the auxiliary loss to the penalty, if these are the vectors of the last training pass."""
        if self._unscored is None or hidden is not self._unscored[0]:
            return
        losses = [-self.head.score(level, tokens).sum() for level in self._unscored[1]]
        loss = self.config.auxiliary * torch.stack(losses).sum() / (tokens >= 0).sum().clamp(min=1)
        self._penalty, self._unscored = loss if self._penalty is None else self._penalty + loss, None

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to one pass of this very network."""
        return {**super().__getstate__(), "_unscored": None}


def _gated(
    gates: Float[Tensor, "*S G"], cell: Float[Tensor, "*S H"] | None
) -> tuple[Float[Tensor, "*S H"], Float[Tensor, "*S H"]]:
    """Hidden vectors and cells made of the gates i, o, g, f and the cells before; None is 0."""
    units = gates.shape[-1] // 4
    take, show = gates[..., : 2 * units].sigmoid().chunk(2, -1)
    new = take * gates[..., 2 * units : 3 * units].tanh()
    if cell is not None:
        new = torch.addcmul(new, gates[..., 3 * units :].sigmoid(), cell)
    return show * new.tanh(), new


def _last(part: Tensor, length: Int[Tensor, "B"], span: int) -> Tensor:
    """Of what has `span` rows before the first position, the `span` last rows of each row that is so long, without gradient."""
    place = length + torch.arange(span, device=length.device)[:, None]
    return part.detach()[place, torch.arange(len(length), device=length.device)].transpose(0, 1).contiguous()


def _starts(spans: tuple[int, ...]) -> list[int]:
    """Where each level above the first begins among what is remembered."""
    return [sum(spans[1:level]) for level in range(1, len(spans))]
