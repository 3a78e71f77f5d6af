"""Deterministic weighted automata over the tokens of a space: distributions with exact quantities.

    WeightedAutomaton    a weight for each point, unnormalised: the result of products and tilts
    Automaton            a base: the weights out of each state are probabilities
    NormalisedAutomaton  a base: a `WeightedAutomaton` divided by the total weight of all points of at most `max_length` tokens

Tables have a row for each state (S) and a column for each token (V); weights are logarithms in float64, and -inf means that
there is no transition. A prompt is read from state 0; a point starts in the state its prompt leads to. The end symbol is a
token whose weight is the weight of stopping. Left out: nondeterministic automata (several transitions for one token).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.space import Sequences, Space, empty_prompts


@runtime_checkable
class FiniteState(Protocol):
    """A process whose weights are those of a finite automaton; the functions of `esscher.exact` take any of these."""

    @property
    def space(self) -> Space: ...

    def to_weighted_automaton(self) -> "WeightedAutomaton":
        """The same weights as one automaton, not necessarily normalised."""
        ...


@dataclass(frozen=True)
class WeightedAutomaton:
    """State s gives token v the weight exp(log_emission[s, v]) and moves to next_state[s, v]; tokens of the prompt move by
    `prompt_next_state` (None: by `next_state`). A point of `max_length` tokens without end symbol that stops in state s is also
    multiplied by exp(final[s]) (None: by 1)."""

    log_emission: Float[Tensor, "S V"]
    next_state: Int[Tensor, "S V"]
    space: Space
    final: Float[Tensor, "S"] | None = None
    prompt_next_state: Int[Tensor, "S V"] | None = None

    def __post_init__(self) -> None:
        if self.log_emission.shape[1] != self.space.vocab_size:
            raise ValueError(
                f"The automaton has {self.log_emission.shape[1]} tokens and its space {self.space.vocab_size}. Nothing was "
                f"made."
            )

    def to_weighted_automaton(self) -> "WeightedAutomaton":
        return self

    @property
    def log_final(self) -> Float[Tensor, "S"]:
        """The log-weight that a point of `max_length` tokens without end symbol adds in each state."""
        return torch.zeros_like(self.log_emission[:, 0]) if self.final is None else self.final

    @property
    def prompt_transitions(self) -> Int[Tensor, "S V"]:
        """The next state after each token of a prompt."""
        return self.next_state if self.prompt_next_state is None else self.prompt_next_state

    def start_states(self, x: Sequences | None) -> Int[Tensor, "B"]:
        """The state after each row's prompt; None stands for one empty prompt."""
        x = empty_prompts(1) if x is None else x
        state = torch.zeros(len(x), dtype=torch.long, device=x.tokens.device)
        for t in range(int(x.start.max()) if len(x) else 0):
            state = torch.where(t < x.start, self.prompt_transitions[state, x.tokens[:, t]], state)
        return state

    def log_weight(self, x: Sequences) -> Float[Tensor, "B"]:
        """The log-weight of each point."""
        return sum_along_path(x, self.space, self.start_states(x), self.next_state, self.log_emission, self.log_final)


@dataclass(frozen=True)
class Automaton:
    """State s emits token v with probability exp(log_emission[s, v]) and moves to next_state[s, v]; it starts in state 0.
    Tokens of the prompt move by `prompt_next_state` (None: by `next_state`)."""

    log_emission: Float[Tensor, "S V"]
    next_state: Int[Tensor, "S V"]
    space: Space
    prompt_next_state: Int[Tensor, "S V"] | None = None

    def __post_init__(self) -> None:
        self.to_weighted_automaton()  # checks the vocabulary
        off = torch.logsumexp(self.log_emission.detach(), -1).abs()
        if not bool((off < 1e-4).all()):
            state = int(off.nan_to_num(nan=torch.inf).argmax())
            raise ValueError(
                f"The probabilities out of state {state} sum to {float(self.log_emission[state].exp().sum()):.6g}, not to 1. "
                f"No base was made; give log-probabilities, or normalise weights: `normalise(WeightedAutomaton(...))`."
            )

    @property
    def drops_tokens(self) -> bool:
        """Whether some tokens have probability 0."""
        return bool((self.log_emission == -torch.inf).any())

    def to_weighted_automaton(self) -> WeightedAutomaton:
        return WeightedAutomaton(self.log_emission, self.next_state, self.space, prompt_next_state=self.prompt_next_state)

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], Int[Tensor, "B"]]:
        state = self.to_weighted_automaton().start_states(prompts)
        return self.log_emission[state], state

    def advance(self, state: Int[Tensor, "B"], token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], Int[Tensor, "B"]]:
        state = self.next_state[state, token]
        return self.log_emission[state], state

    def select(self, state: Int[Tensor, "B"], index: Int[Tensor, "K"]) -> Int[Tensor, "K"]:
        return state[index]

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        states = path_states(x, self.to_weighted_automaton().start_states(x), self.next_state)
        return torch.where(x.counted, self.log_emission[states[:, :-1], x.tokens], 0.0)


class AutomatonState(NamedTuple):
    """The state of each row, and how many tokens may still come."""

    state: Tensor
    tokens_left: int


@dataclass(frozen=True)
class NormalisedAutomaton:
    """p(x | prompt) = weight(x) / Z(prompt), over points of at most `max_length` tokens.

    log_backward[r, s] is the log of the total weight of all continuations of state s with r tokens left, so the probability of
    token v is weight[s, v] exp(log_backward[r - 1, next_state[s, v]] - log_backward[r, s]). After a token of probability 0, and
    after the end symbol, tokens are uniform, never NaN.
    """

    weights: WeightedAutomaton
    log_backward: Float[Tensor, "R S"]

    @property
    def space(self) -> Space:
        return self.weights.space

    @property
    def drops_tokens(self) -> bool:
        """Whether some tokens may have probability 0."""
        return bool((self.weights.log_emission == -torch.inf).any() or (self.weights.log_final == -torch.inf).any())

    def to_weighted_automaton(self) -> WeightedAutomaton:
        return self.weights

    def log_z(self, prompts: Sequences | None) -> Float[Tensor, "P"]:
        """The log of the weight of all points after each prompt; -inf where there is none."""
        return self.log_backward[-1, self.weights.start_states(prompts)]

    def log_step(self, tokens_left: int, state: Int[Tensor, "B"]) -> Float[Tensor, "B V"]:
        """Log-probabilities of the next token in each state."""
        uniform = -math.log(self.space.vocab_size)
        if tokens_left == 0:
            return torch.full_like(self.weights.log_emission[state], uniform)
        rest = self.log_backward[tokens_left - 1, self.weights.next_state[state]]
        if self.space.eos is not None:
            rest = rest.index_fill(1, torch.tensor([self.space.eos], device=rest.device), 0.0)
        total = self.log_backward[tokens_left, state][:, None]
        alive = total > -torch.inf
        return torch.where(alive, self.weights.log_emission[state] + rest - torch.where(alive, total, 0.0), uniform)

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], AutomatonState]:
        state = AutomatonState(self.start_states(prompts), self.space.max_length)
        return self.log_step(state.tokens_left, state.state), state

    def advance(self, state: AutomatonState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], AutomatonState]:
        state = AutomatonState(self.weights.next_state[state.state, token], max(0, state.tokens_left - 1))
        return self.log_step(state.tokens_left, state.state), state

    def select(self, state: AutomatonState, index: Int[Tensor, "K"]) -> AutomatonState:
        return AutomatonState(state.state[index], state.tokens_left)

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        states = path_states(x, self.start_states(x), self.weights.next_state)
        before, after = states[:, :-1], states[:, 1:]
        column = torch.arange(x.tokens.shape[1], device=x.tokens.device)
        tokens_left = (self.space.max_length + x.start[:, None] - column).clamp(1, self.space.max_length)
        rest = torch.where(self.space.is_eos(x.tokens), 0.0, self.log_backward[tokens_left - 1, after])
        total = self.log_backward[tokens_left, before]
        alive = total > -torch.inf
        log_prob = self.weights.log_emission[before, x.tokens] + rest - torch.where(alive, total, 0.0)
        return torch.where(x.counted, torch.where(alive, log_prob, -math.log(self.space.vocab_size)), 0.0)

    def start_states(self, x: Sequences | None) -> Int[Tensor, "B"]:
        """The state after each row's prompt (None: one empty prompt); an error where no point can follow."""
        state = self.weights.start_states(x)
        dead = self.log_backward[-1, state] == -torch.inf
        if bool(dead.any()):
            row = int(dead.nonzero()[0, 0])
            prompt = [] if x is None else x.tokens[row, : int(x.start[row])].tolist()
            raise ValueError(
                f"No point can follow {int(dead.sum())} of {len(dead)} prompts: after {prompt[:20]} the automaton gives "
                f"weight 0 to every point of at most {self.space.max_length} tokens. Nothing was drawn or scored; drop these "
                f"prompts."
            )
        return state


def path_states(x: Sequences, state: Int[Tensor, "B"], next_state: Int[Tensor, "S V"]) -> Int[Tensor, "B U"]:
    """The state before each column, and after the last one, of points that start in the given states."""
    states, counted = [state], x.counted
    for t in range(x.tokens.shape[1]):
        states.append(torch.where(counted[:, t], next_state[states[-1], x.tokens[:, t]], states[-1]))
    return torch.stack(states, 1)


def sum_along_path(
    x: Sequences,
    space: Space,
    state: Int[Tensor, "B"],
    next_state: Int[Tensor, "S V"],
    value: Float[Tensor, "S V"],
    final: Float[Tensor, "S"],
) -> Float[Tensor, "B"]:
    """The sum of value[s, v] along the path of each point; points of `max_length` tokens without end symbol add final[s]."""
    states, counted = path_states(x, state, next_state), x.counted
    total = torch.zeros(len(x), dtype=value.dtype, device=value.device)
    for added in torch.where(counted, value[states[:, :-1], x.tokens], 0.0).unbind(1):
        total = total + added
    ended = (counted & space.is_eos(x.tokens)).any(1)
    return torch.where(~ended & (x.lengths == space.max_length), total + final[states[:, -1]], total)


class ProductStates(NamedTuple):
    """The states of a product: the state of each part, and the next states after tokens of the point and of the prompt."""

    parts: Int[Tensor, "S K"]
    next_state: Int[Tensor, "S V"]
    prompt_next_state: Int[Tensor, "S V"]


def product_states(
    next_states: Sequence[Int[Tensor, "_ V"]], prompt_tables: Sequence[Int[Tensor, "_ V"]], *, eos: int | None
) -> ProductStates:
    """Run transition tables in parallel from their states 0, by breadth-first search over the reachable states. The end symbol
    stays in its state, and so do tokens of a prompt in states that are reached only within points."""
    sizes = [len(next_state) for next_state in next_states]
    if math.prod(sizes) >= 2**62:
        raise ValueError(f"A product of automata with {sizes} states has too many states to number; use fewer or smaller ones.")
    stride = torch.tensor([math.prod(sizes[place + 1 :]) for place in range(len(sizes))])
    size = torch.tensor(sizes)

    def step(tables: Sequence[Tensor], code: Tensor) -> Tensor:
        parts = code[:, None] // stride % size
        return sum((table[parts[:, k]] * stride[k] for k, table in enumerate(tables)), torch.tensor(0))

    def step_in_point(code: Tensor) -> Tensor:
        moved = step(next_states, code)
        if eos is not None:
            moved[:, eos] = code
        return moved

    prompt_codes = reachable(torch.tensor([0]), lambda code: step(prompt_tables, code))
    codes = reachable(prompt_codes, step_in_point)
    order = codes.argsort()
    next_state, prompt_next_state = (
        order[torch.searchsorted(codes[order], table)] for table in (step_in_point(codes), step(prompt_tables, prompt_codes))
    )
    stay = torch.arange(len(prompt_codes), len(codes))[:, None].expand(-1, next_state.shape[1])
    return ProductStates(codes[:, None] // stride % size, next_state, torch.cat([prompt_next_state, stay]))


def reachable(states: Int[Tensor, "K"], step: Callable[[Tensor], Tensor]) -> Int[Tensor, "S"]:
    """The states that steps lead to from the given ones, which come first."""
    wave = states
    while len(wave):
        reached = torch.unique(step(wave))
        wave = reached[~torch.isin(reached, states)]
        states = torch.cat([states, wave])
    return states


def intersect(*processes: FiniteState) -> WeightedAutomaton:
    """The product of the weights of all processes; an acceptor takes part as `acceptor.to_weighted_automaton(space)`."""
    parts = [process.to_weighted_automaton() for process in processes]
    space = parts[0].space
    for other in parts[1:]:
        if other.space != space:
            raise ValueError(f"Automata over different spaces have no product: {space} and {other.space}. Nothing was made.")
    states = product_states([part.next_state for part in parts], [part.prompt_transitions for part in parts], eos=space.eos)
    zeros = torch.zeros(states.next_state.shape, dtype=torch.float64)
    log_emission = sum((part.log_emission[states.parts[:, k]] for k, part in enumerate(parts)), zeros)
    final = sum((part.log_final[states.parts[:, k]] for k, part in enumerate(parts)), zeros[:, 0])
    return WeightedAutomaton(log_emission, states.next_state, space, final, states.prompt_next_state)
