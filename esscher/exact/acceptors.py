"""Acceptors: sets of token strings, as deterministic automata that say yes or no.

An acceptor starts in state 0, reads every token (the end symbol as one that nothing else looks at, unless it is
part of the motif) and accepts in the states where `accepting` is True. They combine with `&`, `|` and `~`. As
weights (`weighted`) an acceptor keeps its strings and forbids the others; as a feature see
`esscher.exact.features`. Regular expressions are compiled in `esscher.exact.regular`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from esscher.exact.automaton import Weighted
from esscher.exact.counting import overlap_moves
from esscher.exact.products import product
from esscher.space import Sequences, Space


@dataclass(frozen=True)
class Acceptor:
    """The strings that lead from state 0 to an accepting state."""

    move: Int[Tensor, "S V"]
    accepting: Bool[Tensor, "S"]

    def __invert__(self) -> "Acceptor":
        return Acceptor(self.move, ~self.accepting)

    def __and__(self, other: "Acceptor") -> "Acceptor":
        states = product([self.move, other.move], [self.move, other.move], eos=None)
        return Acceptor(states.move, self.accepting[states.parts[:, 0]] & other.accepting[states.parts[:, 1]])

    def __or__(self, other: "Acceptor") -> "Acceptor":
        return ~(~self & ~other)

    def accepts(self, x: Sequences) -> Bool[Tensor, "B"]:
        """Whether each point, its end symbol included, is accepted; prompts are not read."""
        state = torch.zeros(len(x), dtype=torch.long, device=x.tokens.device)
        for t in range(x.tokens.shape[1]):
            state = torch.where(x.counted[:, t], self.move[state, x.tokens[:, t]], state)
        return self.accepting[state]

    def weighted(self, space: Space) -> Weighted:
        """Weight 1 for the points that are accepted together with their prompt, 0 for the others."""
        if self.move.shape[1] != space.vocab_size:
            raise ValueError(f"The acceptor reads {self.move.shape[1]} tokens and the space has {space.vocab_size}.")
        forbidden = torch.tensor(-torch.inf, dtype=torch.float64)
        emit = torch.zeros(self.move.shape, dtype=torch.float64)
        if space.eos is not None:
            emit[:, space.eos] = torch.where(self.accepting[self.move[:, space.eos]], 0.0, forbidden)
        return Weighted(emit, self.move, space, torch.where(self.accepting, 0.0, forbidden))


def anything(vocab_size: int) -> Acceptor:
    """Every string."""
    return Acceptor(torch.zeros(1, vocab_size, dtype=torch.long), torch.tensor([True]))


def contains(motif: Sequence[int], vocab_size: int) -> Acceptor:
    """The strings in which the motif appears."""
    move = ends_with(motif, vocab_size).move.clone()
    move[-1] = len(motif)
    return Acceptor(move, torch.arange(len(motif) + 1) == len(motif))


def ends_with(motif: Sequence[int], vocab_size: int) -> Acceptor:
    """The strings that end with the motif (give it the end symbol to ask for it before the end).

    State s has just read the first s tokens of the motif and no more.
    """
    _check_motif(motif, vocab_size)
    return Acceptor(torch.tensor(overlap_moves(motif, vocab_size)), torch.arange(len(motif) + 1) == len(motif))


def starts_with(motif: Sequence[int], vocab_size: int) -> Acceptor:
    """The strings that begin with the motif."""
    _check_motif(motif, vocab_size)
    length = len(motif)
    move = torch.full((length + 2, vocab_size), length + 1)  # the last state: begun otherwise
    for state, token in enumerate(motif):
        move[state, token] = state + 1
    move[length] = length
    return Acceptor(move, torch.arange(length + 2) == length)


def _check_motif(motif: Sequence[int], vocab_size: int) -> None:
    if len(motif) == 0:
        raise ValueError("A motif needs at least one token: the empty one is everywhere.")
    wrong = [token for token in motif if not 0 <= token < vocab_size]
    if wrong:
        raise ValueError(f"The motif {list(motif)} has tokens {wrong} that are not among the {vocab_size} of the vocabulary.")
