"""Partition functions, and the division of a weighted automaton by its own.

The weight of all that may follow a state obeys rest(s) = sum_v weight[s, v] rest(move[s, v]). Within
`max_length` tokens it is computed by that many steps of this recursion, in log space. Without a bound on the
length it is the least solution of a linear system, which is finite when the weights shrink; that case needs
an end symbol, and is asked for with `unbounded=True`.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.exact.automaton import Automaton, FiniteState, Normalised, Weighted
from esscher.space import Sequences, empty_prompts


def onward(weights: Weighted) -> Int[Tensor, "S V"]:
    """Where each token leads, the end symbol to a state of its own after all others; see `follow`."""
    eos, move = weights.space.eos, weights.move
    return move if eos is None else move.index_fill(1, torch.tensor([eos], device=move.device), len(move))


def follow(values: Float[Tensor, "*F S"], onward: Int[Tensor, "S V"]) -> Float[Tensor, "*F S V"]:
    """The value of the state that each token leads to; 0 after the end symbol."""
    padded = torch.nn.functional.pad(values, (0, 1))
    return padded.index_select(-1, onward.reshape(-1)).view(*values.shape, onward.shape[1])


def log_sum(log_weight: Float[Tensor, "S V"]) -> Float[Tensor, "S"]:
    """logsumexp over the last axis whose gradient is 0, not NaN, where all weights are 0; overwrites its argument."""
    highest = log_weight.detach().amax(-1)
    alive = highest > -torch.inf
    highest = torch.where(alive, highest, 0.0)
    total = log_weight.sub_(highest[:, None]).exp_().sum(-1)
    return torch.where(alive, torch.where(alive, total, 1.0).log() + highest, -torch.inf)


def log_rests(weights: Weighted) -> Float[Tensor, "R S"]:
    """log rest(s) with 0, 1, ... max_length tokens to come."""
    rests, move = [weights.cut], onward(weights)
    for _ in range(weights.space.max_length):
        rests.append(log_sum(follow(rests[-1], move) + weights.emit))
    return torch.stack(rests)


def normalise(process: FiniteState) -> Normalised:
    """The base p(x) = weight(x) / Z over points of at most `max_length` tokens; differentiable in the weights."""
    if isinstance(process, Normalised):
        return process
    weights = process.weighted()
    return Normalised(weights, log_rests(weights))


def log_partition(process: FiniteState, prompts: Sequences | None = None, *, unbounded: bool = False) -> Float[Tensor, "P"]:
    """log Z after each prompt (by default one empty prompt): the log of the weight of all points."""
    prompts = empty_prompts(1) if prompts is None else prompts
    if unbounded:
        weights = process.weighted()
        return log_rests_unbounded(weights)[weights.starts(prompts)]
    return normalise(process).log_z(prompts)


def normalise_unbounded(process: FiniteState) -> Automaton:
    """The base over points of any length: its probabilities depend on the state alone.

    `max_length` then only cuts points: a cut point has the probability of all that begin with it. States that
    no end can follow emit uniformly; no point of positive probability enters them.
    """
    weights = process.weighted()
    log_rest = log_rests_unbounded(weights)
    alive = (log_rest > -torch.inf)[:, None]
    emit = weights.emit + follow(log_rest, onward(weights)) - torch.where(alive, log_rest[:, None], 0.0)
    uniform = torch.full_like(emit, 1 / weights.space.vocab_size).log()
    return Automaton(torch.where(alive, emit, uniform), weights.move, weights.space, weights.read)


def log_rests_unbounded(weights: Weighted) -> Float[Tensor, "S"]:
    """log rest(s) over continuations of any length that end with the end symbol."""
    eos = _end_symbol(weights)
    useful = ends_sometime(weights)
    stop = weights.emit[useful, eos].exp()
    rest = solve_unbounded(weights, useful, stop[:, None])[:, 0]
    return torch.full_like(weights.emit[:, 0], -torch.inf).masked_scatter(useful, rest.log())


def solve_unbounded(weights: Weighted, useful: Bool[Tensor, "S"], source: Float[Tensor, "U K"]) -> Float[Tensor, "U K"]:
    """Solve y(s) = source(s) + sum_v weight[s, v] y(move[s, v]) over the useful states; an error where it diverges."""
    eos, states = _end_symbol(weights), int(useful.sum())
    number = torch.cumsum(useful, 0) - 1
    target = weights.move[useful]
    flow = torch.where(useful[target], weights.emit[useful].exp(), 0.0).index_fill(1, torch.tensor([eos]), 0.0)
    step = torch.zeros(states, states, dtype=flow.dtype).scatter_add(1, number[target].clamp(min=0), flow)
    system = torch.eye(states, dtype=flow.dtype) - step
    # A non-negative matrix has spectral radius below 1 exactly when (I - M) y = 1 has a positive solution.
    ones = torch.ones(states, 1, dtype=flow.dtype)
    solution = torch.linalg.solve(system, torch.cat([source, ones], 1)) if states else torch.cat([source, ones], 1)
    if not bool((solution[:, -1] > 0).all()):
        raise ValueError(
            "The weights of longer and longer points do not shrink, so the sum over all lengths is infinite. Nothing was "
            "computed; bound the length (unbounded=False, which uses the space's max_length), or lower the weights."
        )
    return solution[:, :-1]


def ends_sometime(weights: Weighted) -> Bool[Tensor, "S"]:
    """True where the end symbol can be reached; the others contribute nothing and would make the system singular."""
    eos, possible = _end_symbol(weights), weights.emit.detach() > -torch.inf
    useful = possible[:, eos]
    onward = possible.index_fill(1, torch.tensor([eos]), False)
    while True:
        more = useful | (onward & useful[weights.move]).any(1)
        if bool((more == useful).all()):
            return useful
        useful = more


def _end_symbol(weights: Weighted) -> int:
    if weights.space.eos is None:
        raise ValueError(
            "Points of unbounded length need an end symbol, and this space has none. Nothing was computed; give the "
            "space an end symbol, or leave out unbounded=True."
        )
    return weights.space.eos
