"""n-gram models fitted to token sequences, as automata: a base on real text for which everything is exact.

The probability of a token depends on the `order - 1` tokens before it (fewer at the beginning, which is a
context of its own), interpolated down to shorter contexts and at last to uniform as by Witten and Bell (1991):

    p(v | h) = (count(h, v) + kinds(h) p(v | shorter h)) / (count(h) + kinds(h)),

`kinds(h)` the number of different tokens seen after h. A state is a context seen in the data, so the automaton
has as many states as the data have contexts, not as many as there could be; an unseen context is the longest
part of it that was seen. Left out: other smoothings, and vocabularies so large that [states, V] does not fit.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.exact.automaton import Automaton, Weighted
from esscher.space import Sequences, Space

LARGEST = 2**27  # states times tokens: one gigabyte of float64


@dataclass(frozen=True)
class NGram:
    """An automaton whose states are contexts; `automaton` is it, and so is `weighted()` for the exact laboratory."""

    order: int
    automaton: Automaton

    @property
    def space(self) -> Space:
        return self.automaton.space

    def weighted(self) -> Weighted:
        return self.automaton.weighted()

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], Int[Tensor, "B"]]:
        return self.automaton.begin(prompts)

    def advance(self, state: Int[Tensor, "B"], token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], Int[Tensor, "B"]]:
        return self.automaton.advance(state, token)

    def select(self, state: Int[Tensor, "B"], index: Int[Tensor, "K"]) -> Int[Tensor, "K"]:
        return self.automaton.select(state, index)

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        return self.automaton.log_probs(x)


@dataclass(frozen=True)
class _Contexts:
    """The contexts of one length: the number of each at every place of the data, and how each is made of shorter ones."""

    at: Int[Tensor, "B W"]  # the context that ends before each place; -1 where there is none of this length
    shorter: Int[Tensor, "S"]  # without its first token
    before: Int[Tensor, "S"]  # without its last token
    last: Int[Tensor, "S"]  # its last token; vocab_size for the beginning of the sequence


def fit_ngram(data: Sequences, space: Space, order: int) -> NGram:
    """The n-gram model of the points of `data`; prompts are read as context and not predicted."""
    if order < 1:
        raise ValueError(f"An n-gram model has order 1 or more, not {order}.")
    if not bool(data.counted.any()):
        raise ValueError(f"There is nothing to fit: the {len(data)} sequences have no token. Give sequences with points.")
    used = data.tokens[data.inside]
    if int(used.max()) >= space.vocab_size or int(used.min()) < 0:
        raise ValueError(f"The data have token {int(used.max())} and the space only {space.vocab_size}: another tokenizer?")
    levels = _levels(data, space, order)
    states = sum(len(level.last) for level in levels)
    if states * space.vocab_size > LARGEST:
        raise ValueError(
            f"{states:,} contexts of {space.vocab_size:,} tokens do not fit (at most {LARGEST:,} probabilities). Nothing was "
            f"fitted; lower the order from {order}, or use a smaller vocabulary."
        )
    return NGram(order, _assemble(data, space, levels))


def _assemble(data: Sequences, space: Space, levels: list[_Contexts]) -> Automaton:
    """The tables of all contexts, the shortest first, each from the shorter ones; then the beginning is moved to the front."""
    below = (
        torch.full((1, space.vocab_size), 1 / space.vocab_size, dtype=torch.float64),
        torch.zeros(1, space.vocab_size).long(),
    )
    tables, offset = [], 0
    for level, above in zip(levels, [*levels[1:], None], strict=True):
        probability, move = below[0][level.shorter], below[1][level.shorter]
        offset += len(level.last)
        below = (_witten_bell(_counts(data, level, space), probability), _moves(move, above, offset, space))
        tables.append(below)
    emit, move = torch.cat([table[0] for table in tables]).log(), torch.cat([table[1] for table in tables])
    if len(levels) == 1:
        return Automaton(emit, move, space)
    start = 1 + int((levels[1].last == space.vocab_size).nonzero()[0, 0])
    order = torch.tensor([start, *(state for state in range(len(emit)) if state != start)])
    number = torch.empty_like(order).index_put((order,), torch.arange(len(order)))
    return Automaton(emit[order], number[move[order]], space)


def _levels(data: Sequences, space: Space, order: int) -> list[_Contexts]:
    """The contexts of length 0, 1, ... order - 1; each is named by the one before its last token, and that token."""
    rows, width = data.tokens.shape
    begin = torch.full((rows, 1), space.vocab_size)
    previous = torch.cat([begin, data.tokens], 1)[:, :width]  # the token before each place, the beginning among them
    inside, none = data.inside, torch.zeros(1, dtype=torch.long)
    levels = [_Contexts(torch.where(inside, 0, -1), none, none, none)]
    for _ in range(1, order):
        below = levels[-1].at
        before = torch.cat([torch.full((rows, 1), -1), below], 1)[:, :width]
        if len(levels) == 1:
            before[:, 0] = 0  # the beginning is a token of the context, and nothing is before it
        place = (inside & (before >= 0)).nonzero(as_tuple=True)
        name, number = torch.unique(before[place] * (space.vocab_size + 1) + previous[place], return_inverse=True)
        at = torch.full_like(below, -1).index_put(place, number)
        shorter = torch.zeros_like(name).index_put((number,), below[place])
        levels.append(_Contexts(at, shorter, name // (space.vocab_size + 1), name % (space.vocab_size + 1)))
    return levels


def _counts(data: Sequences, level: _Contexts, space: Space) -> Float[Tensor, "S V"]:
    """How often each token follows each context within a point."""
    place = (data.counted & (level.at >= 0)).nonzero(as_tuple=True)
    cell = level.at[place] * space.vocab_size + data.tokens[place]
    return torch.bincount(cell, minlength=len(level.last) * space.vocab_size).view(len(level.last), space.vocab_size).double()


def _witten_bell(counts: Float[Tensor, "S V"], shorter: Float[Tensor, "S V"]) -> Float[Tensor, "S V"]:
    """The counts joined by as many expected ones of the shorter context as different tokens were seen."""
    kinds, total = (counts > 0).sum(-1, keepdim=True), counts.sum(-1, keepdim=True)
    return torch.where(total > 0, (counts + kinds * shorter) / (total + kinds).clamp(min=1), shorter)


def _moves(shorter: Int[Tensor, "S V"], above: _Contexts | None, offset: int, space: Space) -> Int[Tensor, "S V"]:
    """The longest seen context after each token: one token longer than this one, or where the shorter one leads."""
    move = shorter.clone()
    if above is not None:
        real = above.last < space.vocab_size
        move[above.before[real], above.last[real]] = offset + torch.arange(len(above.last))[real]
    return move
