"""Features that a finite automaton can compute while it reads: exact moments exist for these.

A `Tally` adds up numbers along the path of a point: an indicator adds 1 at the end, a count adds 1 at each
occurrence, a length adds 1 at each token. It is a function of `Sequences`, so the same object serves as a
feature of any sampler or estimator; here it also multiplies into an automaton (`esscher.exact.tilting`).
It reads the point and not the prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.exact import acceptors
from esscher.exact.acceptors import Acceptor
from esscher.exact.automaton import added_up
from esscher.space import Sequences, Space


@dataclass(frozen=True)
class Tally:
    """The sum of value[s, v] along the path of a point; one cut at `max_length` in state s adds final[s]."""

    name: str
    space: Space
    move: Int[Tensor, "S V"]
    value: Float[Tensor, "S V"]
    final: Float[Tensor, "S"]

    def __call__(self, x: Sequences) -> Float[Tensor, "B"]:
        return added_up(x, self.space, torch.zeros_like(x.start), self.move, self.value, self.final)


def indicator(name: str, acceptor: Acceptor, space: Space) -> Tally:
    """1 where the acceptor accepts the point, else 0."""
    value = torch.zeros(acceptor.move.shape, dtype=torch.float64)
    if space.eos is not None:
        value[:, space.eos] = acceptor.accepting[acceptor.move[:, space.eos]].double()
    return Tally(name, space, acceptor.move, value, acceptor.accepting.double())


def visits(name: str, acceptor: Acceptor, space: Space) -> Tally:
    """How many beginnings of the point, the empty one not counted, are accepted: with `ends_with`, a count.

    The end symbol adds one only where it leads into acceptance, so an acceptor that does not read it counts nothing twice.
    """
    value = acceptor.accepting[acceptor.move].double()
    if space.eos is not None:
        value[:, space.eos] *= (~acceptor.accepting).double()
    return Tally(name, space, acceptor.move, value, torch.zeros(len(value), dtype=torch.float64))


def contains(motif: Sequence[int], space: Space, *, name: str | None = None) -> Tally:
    """1 where the motif appears in the point, else 0."""
    return indicator(name or f"contains {list(motif)}", acceptors.contains(motif, space.vocab_size), space)


def lacks(motif: Sequence[int], space: Space, *, name: str | None = None) -> Tally:
    """1 where the motif is absent from the point, else 0: the convention of the paper on global autoregressive models."""
    return indicator(name or f"lacks {list(motif)}", ~acceptors.contains(motif, space.vocab_size), space)


def starts_with(motif: Sequence[int], space: Space, *, name: str | None = None) -> Tally:
    """1 where the point begins with the motif, else 0."""
    return indicator(name or f"starts with {list(motif)}", acceptors.starts_with(motif, space.vocab_size), space)


def count(motif: Sequence[int], space: Space, *, name: str | None = None) -> Tally:
    """How often the motif appears in the point, overlaps counted."""
    return visits(name or f"count {list(motif)}", acceptors.ends_with(motif, space.vocab_size), space)


def length(space: Space, *, name: str = "length") -> Tally:
    """Tokens of the point, the end symbol included."""
    once = torch.ones(1, space.vocab_size, dtype=torch.float64)
    return Tally(name, space, acceptors.anything(space.vocab_size).move, once, torch.zeros(1, dtype=torch.float64))
