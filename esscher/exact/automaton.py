"""Deterministic automata over the tokens of a space: bases whose every quantity can be computed exactly.

    Weighted    a weight for each point, unnormalised: what products and tilts give
    Automaton   a base: the weights out of each state are probabilities
    Normalised  a base: a `Weighted` divided by the weight of all that may follow within `max_length` tokens

All are tables over states (S) and tokens in log space and float64; -inf means no transition. A point starts in
the state that its prompt leads to, and the prompt starts in state 0. The end symbol is a token, and its weight
is the weight of stopping. Left out: several transitions for one token (no automaton here has to guess).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.space import Sequences, Space


@runtime_checkable
class FiniteState(Protocol):
    """Anything whose weights are those of a finite automaton: the laboratory's functions take any of these."""

    @property
    def space(self) -> Space: ...

    def weighted(self) -> "Weighted":
        """The automaton, as weights that need not be normalised."""
        ...


@dataclass(frozen=True)
class Weighted:
    """State s weighs token v by exp(emit[s, v]) and moves to move[s, v].

    A point without end symbol, cut at `max_length` tokens in state s, is weighed by exp(final[s]) in the end
    (None: by 1). `read` says where a token of the prompt leads (None: where a token of the point does).
    """

    emit: Float[Tensor, "S V"]
    move: Int[Tensor, "S V"]
    space: Space
    final: Float[Tensor, "S"] | None = None
    read: Int[Tensor, "S V"] | None = None

    def __post_init__(self) -> None:
        if self.emit.shape[1] != self.space.vocab_size:
            raise ValueError(f"The automaton speaks {self.emit.shape[1]} tokens and its space {self.space.vocab_size}.")

    def weighted(self) -> "Weighted":
        return self

    @property
    def cut(self) -> Float[Tensor, "S"]:
        """The log-weight of being cut in each state."""
        return torch.zeros_like(self.emit[:, 0]) if self.final is None else self.final

    @property
    def reading(self) -> Int[Tensor, "S V"]:
        """Where each token of a prompt leads."""
        return self.move if self.read is None else self.read

    def starts(self, x: Sequences) -> Int[Tensor, "B"]:
        """The state after each row's prompt."""
        state = torch.zeros(len(x), dtype=torch.long, device=x.tokens.device)
        for t in range(int(x.start.max()) if len(x) else 0):
            state = torch.where(t < x.start, self.reading[state, x.tokens[:, t]], state)
        return state

    def log_weight(self, x: Sequences) -> Float[Tensor, "B"]:
        """The log-weight of each point."""
        return added_up(x, self.space, self.starts(x), self.move, self.emit, self.cut)


@dataclass(frozen=True)
class Automaton:
    """State s emits token v with probability exp(emit[s, v]) and moves to move[s, v]; it starts in state 0.

    `read` says where a token of the prompt leads (None: where a token of the point does).
    """

    emit: Float[Tensor, "S V"]
    move: Int[Tensor, "S V"]
    space: Space
    read: Int[Tensor, "S V"] | None = None

    def __post_init__(self) -> None:
        if self.emit.shape[1] != self.space.vocab_size:
            raise ValueError(f"The automaton speaks {self.emit.shape[1]} tokens and its space {self.space.vocab_size}.")
        off = torch.logsumexp(self.emit.detach(), -1).abs()
        if not bool((off < 1e-4).all()):
            state = int(off.nan_to_num(nan=torch.inf).argmax())
            raise ValueError(
                f"The probabilities out of state {state} sum to {float(self.emit[state].exp().sum()):.6g}, not to 1. No base "
                f"was made; give log-probabilities, or make a `Weighted` and call `esscher.exact.partition.normalise`."
            )

    def weighted(self) -> Weighted:
        return Weighted(self.emit, self.move, self.space, read=self.read)

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], Int[Tensor, "B"]]:
        state = self.weighted().starts(prompts)
        return self.emit[state], state

    def advance(self, state: Int[Tensor, "B"], token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], Int[Tensor, "B"]]:
        state = self.move[state, token]
        return self.emit[state], state

    def select(self, state: Int[Tensor, "B"], index: Int[Tensor, "K"]) -> Int[Tensor, "K"]:
        return state[index]

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        state, columns = self.weighted().starts(x), []
        for t in range(x.tokens.shape[1]):
            columns.append(self.emit[state, x.tokens[:, t]])
            state = torch.where(t < x.start, state, self.move[state, x.tokens[:, t]])
        return _counted_only(x, columns, self.emit)


class Place(NamedTuple):
    """Where the points of a batch are: the state of each, and how many tokens may still come."""

    state: Tensor
    left: int


@dataclass(frozen=True)
class Normalised:
    """p(x | prompt) = weight(x) / Z(prompt), over points of at most `max_length` tokens.

    `log_rest[r, s]` is the log of the weight of all that may follow state s with r tokens left, so token v is
    drawn with probability weight[s, v] rest[r - 1, move[s, v]] / rest[r, s]: it depends on r, and S * max_length
    numbers say how. After a token without probability (and after the end) tokens are uniform, never NaN.
    """

    weights: Weighted
    log_rest: Float[Tensor, "R S"]

    @property
    def space(self) -> Space:
        return self.weights.space

    def weighted(self) -> Weighted:
        return self.weights

    def log_z(self, prompts: Sequences) -> Float[Tensor, "P"]:
        """The log of the weight of all points after each prompt."""
        return self.log_rest[-1, self.weights.starts(prompts)]  # -inf where no point can follow

    def log_step(self, left: int, state: Int[Tensor, "B"]) -> Float[Tensor, "B V"]:
        """Log-probabilities of the next token in the given states, with `left` tokens to come."""
        uniform = -math.log(self.space.vocab_size)
        if left == 0:
            return torch.full_like(self.weights.emit[state], uniform)
        rest = self.log_rest[left - 1, self.weights.move[state]]
        if self.space.eos is not None:
            rest = rest.index_fill(1, torch.tensor([self.space.eos], device=rest.device), 0.0)
        total = self.log_rest[left, state][:, None]
        alive = total > -torch.inf
        return torch.where(alive, self.weights.emit[state] + rest - torch.where(alive, total, 0.0), uniform)

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], Place]:
        place = Place(self.starts(prompts), self.space.max_length)
        return self.log_step(place.left, place.state), place

    def advance(self, state: Place, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], Place]:
        place = Place(self.weights.move[state.state, token], max(0, state.left - 1))
        return self.log_step(place.left, place.state), place

    def select(self, state: Place, index: Int[Tensor, "K"]) -> Place:
        return Place(state.state[index], state.left)

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        weights, state, columns = self.weights, self.starts(x), []
        for t in range(x.tokens.shape[1]):
            token = x.tokens[:, t]
            left = (self.space.max_length + x.start - t).clamp(1, self.space.max_length)
            after = weights.move[state, token]
            rest = torch.where(self.space.ends(token), 0.0, self.log_rest[left - 1, after])
            total = self.log_rest[left, state]
            alive = total > -torch.inf
            column = weights.emit[state, token] + rest - torch.where(alive, total, 0.0)
            columns.append(torch.where(alive, column, -math.log(self.space.vocab_size)))
            state = torch.where(t < x.start, state, after)
        return _counted_only(x, columns, weights.emit)

    def starts(self, x: Sequences) -> Int[Tensor, "B"]:
        """The state after each row's prompt; an error where no point can follow."""
        state = self.weights.starts(x)
        dead = self.log_rest[-1, state] == -torch.inf
        if bool(dead.any()):
            row = int(dead.nonzero()[0, 0])
            prompt = x.tokens[row, : int(x.start[row])].tolist()
            raise ValueError(
                f"No point can follow {int(dead.sum())} of {len(x)} prompts: after {prompt[:20]} the automaton gives no weight "
                f"to anything of at most {self.space.max_length} tokens. Nothing was drawn or scored; drop these prompts."
            )
        return state


def added_up(
    x: Sequences,
    space: Space,
    state: Int[Tensor, "B"],
    move: Int[Tensor, "S V"],
    value: Float[Tensor, "S V"],
    final: Float[Tensor, "S"],
) -> Float[Tensor, "B"]:
    """The values along the path of each point from its state on; one that is cut at `max_length` adds a final one."""
    total, ended = torch.zeros(len(x), dtype=value.dtype, device=value.device), torch.zeros_like(state, dtype=torch.bool)
    for t in range(x.tokens.shape[1]):
        token, inside = x.tokens[:, t], x.counted[:, t]
        total = torch.where(inside, total + value[state, token], total)
        state = torch.where(inside, move[state, token], state)
        ended = ended | (inside & space.ends(token))
    is_cut = ~ended & (x.lengths == space.max_length)
    return torch.where(is_cut, total + final[state], total)


def _counted_only(x: Sequences, columns: list[Tensor], like: Tensor) -> Float[Tensor, "B T"]:
    if not columns:
        return torch.zeros(len(x), 0, dtype=like.dtype, device=like.device)
    return torch.where(x.counted, torch.stack(columns, 1), 0.0)
