"""n-gram models fitted to token sequences, as automata: bases on real text with exact quantities.

The probability of a token depends on the `order - 1` tokens before it (fewer at the beginning, which is part of the context),
interpolated with shorter contexts down to the uniform distribution (Witten and Bell, 1991):

    p(v | h) = (count(h, v) + kinds(h) p(v | shorter h)) / (count(h) + kinds(h)),   kinds(h): different tokens seen after h

An unseen context is replaced by its longest suffix that was seen. Left out: other smoothings, and vocabularies too large for a
table [states, V].
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from esscher.core.space import Sequences, Space
from esscher.exact.automaton import Automaton

MAX_TABLE_SIZE = 2**27  # states times tokens: one gigabyte of float64


@dataclass(frozen=True)
class _Contexts:
    """The contexts of one length: the index of the context at each position of the data, and the shorter contexts of each."""

    at: Int[Tensor, "B W"]  # the context before each position; -1 where there is none of this length
    shorter: Int[Tensor, "S"]  # without its first token
    before: Int[Tensor, "S"]  # without its last token
    last: Int[Tensor, "S"]  # its last token; vocab_size for the beginning of the sequence


def fit_ngram(data: Sequences, space: Space, order: int) -> Automaton:
    """The n-gram model of the points of `data`, as an automaton whose states are contexts; prompts are context only."""
    if order < 1:
        raise ValueError(f"An n-gram model has order 1 or more, not {order}.")
    check_tokens(data, space, data.counted)
    contexts_by_length = _contexts_by_length(data, space, order)
    states = sum(len(contexts.last) for contexts in contexts_by_length)
    if states * space.vocab_size > MAX_TABLE_SIZE:
        raise ValueError(
            f"A table of {states:,} contexts and {space.vocab_size:,} tokens is too large (at most {MAX_TABLE_SIZE:,} "
            f"probabilities). Nothing was fitted; lower the order from {order}, or use a smaller vocabulary."
        )
    return _assemble(data, space, contexts_by_length)


def check_tokens(data: Sequences, space: Space, used: Bool[Tensor, "B T"]) -> Int[Tensor, "K"]:
    """The tokens of all rows; an error where there is none among those `used`, or one that is not of the space."""
    tokens = data.tokens[data.inside]
    if not bool(used.any()):
        raise ValueError(f"There is nothing to fit: the {len(data)} sequences have no token. Give sequences with points.")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= space.vocab_size:
        raise ValueError(
            f"The data have token {high if high >= space.vocab_size else low} and the space only {space.vocab_size}. Nothing "
            f"was fitted; encode the data with the tokenizer of the space."
        )
    return tokens


def _assemble(data: Sequences, space: Space, contexts_by_length: list[_Contexts]) -> Automaton:
    """The tables of all contexts, from the shortest to the longest; the context of the beginning becomes state 0."""
    probs = torch.full((1, space.vocab_size), 1 / space.vocab_size, dtype=torch.float64)
    moves = torch.zeros(1, space.vocab_size, dtype=torch.long)
    prob_tables, move_tables, offset = [], [], 0
    for contexts, longer in zip(contexts_by_length, [*contexts_by_length[1:], None], strict=True):
        offset += len(contexts.last)
        place, shape = (data.counted & (contexts.at >= 0)).nonzero(as_tuple=True), (len(contexts.last), space.vocab_size)
        index = contexts.at[place] * space.vocab_size + data.tokens[place]
        counts = torch.bincount(index, minlength=shape[0] * shape[1]).view(shape).double()
        kinds, total, shorter = (counts > 0).sum(-1, keepdim=True), counts.sum(-1, keepdim=True), probs[contexts.shorter]
        probs = torch.where(total > 0, (counts + kinds * shorter) / (total + kinds).clamp(min=1), shorter)
        moves = moves[contexts.shorter]  # the longest seen context after each token: that of the shorter context,
        if longer is not None:  # or one token longer than this one
            real = longer.last < space.vocab_size
            moves[longer.before[real], longer.last[real]] = offset + torch.arange(len(longer.last))[real]
        prob_tables.append(probs)
        move_tables.append(moves)
    log_emission, next_state = torch.cat(prob_tables).log(), torch.cat(move_tables)
    if len(contexts_by_length) == 1:
        return Automaton(log_emission, next_state, space)
    start = 1 + int((contexts_by_length[1].last == space.vocab_size).nonzero()[0, 0])
    order = torch.tensor([start, *(state for state in range(len(log_emission)) if state != start)])
    number = torch.empty_like(order).index_put((order,), torch.arange(len(order)))
    return Automaton(log_emission[order], number[next_state[order]], space)


def _contexts_by_length(data: Sequences, space: Space, order: int) -> list[_Contexts]:
    """The contexts of length 0, 1, ... order - 1; the key of each is the context before its last token, and that token."""
    rows, width = data.tokens.shape
    begin = torch.full((rows, 1), space.vocab_size)
    previous = torch.cat([begin, data.tokens], 1)[:, :width]  # the token before each position; vocab_size at the beginning
    inside, none = data.inside, torch.zeros(1, dtype=torch.long)
    contexts_by_length = [_Contexts(torch.where(inside, 0, -1), none, none, none)]
    for _ in range(1, order):
        below = contexts_by_length[-1].at
        before = torch.cat([torch.full((rows, 1), -1), below], 1)[:, :width]
        if len(contexts_by_length) == 1:
            before[:, 0] = 0  # the beginning counts as a token of the context, after the empty context
        place = (inside & (before >= 0)).nonzero(as_tuple=True)
        key, number = torch.unique(before[place] * (space.vocab_size + 1) + previous[place], return_inverse=True)
        at = torch.full_like(below, -1).index_put(place, number)
        shorter = torch.zeros_like(key).index_put((number,), below[place])
        contexts_by_length.append(_Contexts(at, shorter, key // (space.vocab_size + 1), key % (space.vocab_size + 1)))
    return contexts_by_length
