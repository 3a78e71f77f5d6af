"""Features that a finite automaton computes while it reads a point (not the prompt), so that their moments are exact. An
`AutomatonFeature` is a function of `Sequences` like any feature, and tilts automata (`exact.exponential_family`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.space import Sequences, Space
from esscher.exact import acceptors
from esscher.exact.acceptors import Acceptor
from esscher.exact.automaton import sum_along_path


@dataclass(frozen=True)
class AutomatonFeature:
    """The sum of value[s, v] along the path of a point; points of `max_length` tokens without end symbol add final[s]."""

    name: str
    space: Space
    next_state: Int[Tensor, "S V"]
    value: Float[Tensor, "S V"]
    final: Float[Tensor, "S"]

    def __call__(self, x: Sequences) -> Float[Tensor, "B"]:
        return sum_along_path(x, self.space, torch.zeros_like(x.start), self.next_state, self.value, self.final)


def indicator(name: str, acceptor: Acceptor, space: Space) -> AutomatonFeature:
    """1 where the acceptor accepts the point, else 0."""
    value = torch.zeros(acceptor.next_state.shape, dtype=torch.float64)
    if space.eos is not None:
        value[:, space.eos] = acceptor.accepting[acceptor.next_state[:, space.eos]].double()
    return AutomatonFeature(name, space, acceptor.next_state, value, acceptor.accepting.double())


def count_accepted_prefixes(name: str, acceptor: Acceptor, space: Space) -> AutomatonFeature:
    """How many non-empty prefixes of the point are accepted: with `ends_with`, the number of occurrences. The end symbol counts
    only where it leads from a rejecting to an accepting state, so nothing is counted twice."""
    value = acceptor.accepting[acceptor.next_state].double()
    if space.eos is not None:
        value[:, space.eos] *= (~acceptor.accepting).double()
    return AutomatonFeature(name, space, acceptor.next_state, value, torch.zeros(len(value), dtype=torch.float64))


def contains(motif: Sequence[int], space: Space, *, name: str | None = None) -> AutomatonFeature:
    """1 where the motif appears in the point, else 0."""
    return indicator(name or f"contains {list(motif)}", acceptors.contains(motif, space.vocab_size), space)


def lacks(motif: Sequence[int], space: Space, *, name: str | None = None) -> AutomatonFeature:
    """1 where the motif is absent from the point, else 0: the convention of Parshakova et al. (2019)."""
    return indicator(name or f"lacks {list(motif)}", ~acceptors.contains(motif, space.vocab_size), space)


def starts_with(motif: Sequence[int], space: Space, *, name: str | None = None) -> AutomatonFeature:
    """1 where the point starts with the motif, else 0."""
    return indicator(name or f"starts with {list(motif)}", acceptors.starts_with(motif, space.vocab_size), space)


def count(motif: Sequence[int], space: Space, *, name: str | None = None) -> AutomatonFeature:
    """How often the motif appears in the point, overlaps counted."""
    return count_accepted_prefixes(name or f"count {list(motif)}", acceptors.ends_with(motif, space.vocab_size), space)


def length(space: Space, *, name: str = "length") -> AutomatonFeature:
    """Tokens of the point, the end symbol included."""
    value = torch.ones(1, space.vocab_size, dtype=torch.float64)
    return AutomatonFeature(name, space, torch.zeros(value.shape, dtype=torch.long), value, torch.zeros(1, dtype=torch.float64))
