"""Exact quantities of weighted automata by dynamic programming: partition functions, normalisation, expectations, entropy, KL.

The backward weight of a state is rest(s) = sum_v weight[s, v] rest(next_state[s, v]), in log space, `max_length` times.
Expectations are expected sums of a gain for each token, with r tokens left:

    expected(r, s) = sum_v p_r(v | s) (gain(s, v) + expected(r - 1, next_state[s, v]))

With `unbounded=True` points of all lengths count: both are solutions of a linear system, finite if the weights shrink, and the
space needs an end symbol. Results are in nats, one for each prompt (by default one empty prompt); F counts gains.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.core.space import Sequences
from esscher.exact.automaton import Automaton, FiniteState, NormalisedAutomaton, WeightedAutomaton, product_states
from esscher.exact.features import AutomatonFeature


def transitions_with_end(weights: WeightedAutomaton) -> Int[Tensor, "S V"]:
    """The next states, where the end symbol leads to an extra state after all others; see `gather_next`."""
    eos, table = weights.space.eos, weights.next_state
    return table if eos is None else table.index_fill(1, torch.tensor([eos], device=table.device), len(table))


def gather_next(values: Float[Tensor, "*F S"], next_state: Int[Tensor, "S V"]) -> Float[Tensor, "*F S V"]:
    """The value of the next state after each token; 0 after the end symbol. `next_state` is from `transitions_with_end`."""
    padded = torch.nn.functional.pad(values, (0, 1))
    return padded.index_select(-1, next_state.reshape(-1)).view(*values.shape, next_state.shape[1])


def safe_logsumexp(log_weight: Float[Tensor, "S V"]) -> Float[Tensor, "S"]:
    """logsumexp over the last axis whose gradient is 0, not NaN, where all weights are 0; overwrites its argument."""
    highest = log_weight.detach().amax(-1)
    alive = highest > -torch.inf
    highest = torch.where(alive, highest, 0.0)
    total = log_weight.sub_(highest[:, None]).exp_().sum(-1)
    return torch.where(alive, torch.where(alive, total, 1.0).log() + highest, -torch.inf)


def log_backward_weights(weights: WeightedAutomaton) -> Float[Tensor, "R S"]:
    """log rest(s) with 0, 1, ... max_length tokens left."""
    rests, next_state = [weights.log_final], transitions_with_end(weights)
    for _ in range(weights.space.max_length):
        rests.append(safe_logsumexp(gather_next(rests[-1], next_state) + weights.log_emission))
    return torch.stack(rests)


def normalise(process: FiniteState) -> NormalisedAutomaton:
    """The base p(x) = weight(x) / Z over points of at most `max_length` tokens; differentiable in the weights."""
    if isinstance(process, NormalisedAutomaton):
        return process
    weights = process.to_weighted_automaton()
    return NormalisedAutomaton(weights, log_backward_weights(weights))


def log_partition(process: FiniteState, prompts: Sequences | None = None, *, unbounded: bool = False) -> Float[Tensor, "P"]:
    """log Z after each prompt (by default one empty prompt): the log of the weight of all points."""
    if unbounded:
        weights = process.to_weighted_automaton()
        return log_backward_weights_unbounded(weights)[weights.start_states(prompts)]
    return normalise(process).log_z(prompts)


def normalise_unbounded(process: FiniteState) -> Automaton:
    """The base over points of any length, whose probabilities depend on the state alone.

    `max_length` then cuts points: a cut point has the probability of all points with this prefix. States from which the end
    symbol cannot be reached emit uniformly; no point of positive probability enters them.
    """
    weights = process.to_weighted_automaton()
    log_backward = log_backward_weights_unbounded(weights)
    alive = (log_backward > -torch.inf)[:, None]
    rest = gather_next(log_backward, transitions_with_end(weights))
    log_emission = weights.log_emission + rest - torch.where(alive, log_backward[:, None], 0.0)
    uniform = torch.full_like(log_emission, 1 / weights.space.vocab_size).log()
    return Automaton(torch.where(alive, log_emission, uniform), weights.next_state, weights.space, weights.prompt_next_state)


def log_backward_weights_unbounded(weights: WeightedAutomaton) -> Float[Tensor, "S"]:
    """log rest(s) over continuations of any length that end with the end symbol."""
    eos = _require_eos(weights)
    useful = can_reach_eos(weights)
    stop = weights.log_emission[useful, eos].exp()
    rest = solve_unbounded(weights, useful, stop[:, None])[:, 0]
    return torch.full_like(weights.log_emission[:, 0], -torch.inf).masked_scatter(useful, rest.log())


def solve_unbounded(
    weights: WeightedAutomaton, useful: Bool[Tensor, "S"], source: Float[Tensor, "U K"]
) -> Float[Tensor, "U K"]:
    """Solve y(s) = source(s) + sum_v weight[s, v] y(next_state[s, v]) over the useful states; an error where it diverges."""
    eos, states = _require_eos(weights), int(useful.sum())
    number = torch.cumsum(useful, 0) - 1
    target = weights.next_state[useful]
    flow = torch.where(useful[target], weights.log_emission[useful].exp(), 0.0).index_fill(1, torch.tensor([eos]), 0.0)
    step = torch.zeros(states, states, dtype=flow.dtype).scatter_add(1, number[target].clamp(min=0), flow)
    system = torch.eye(states, dtype=flow.dtype) - step
    # A non-negative matrix has spectral radius below 1 exactly when (I - M) y = 1 has a positive solution.
    ones = torch.ones(states, 1, dtype=flow.dtype)
    solution = torch.linalg.solve(system, torch.cat([source, ones], 1)) if states else torch.cat([source, ones], 1)
    if not bool((solution[:, -1] > 0).all()):
        raise ValueError(
            "The total weight of points does not shrink with their length, so the sum over all lengths is infinite. Nothing "
            "was computed; bound the length (unbounded=False, which uses the space's max_length), or lower the weights."
        )
    return solution[:, :-1]


def can_reach_eos(weights: WeightedAutomaton) -> Bool[Tensor, "S"]:
    """True where the end symbol can be reached; other states contribute nothing and would make the system singular."""
    eos, possible = _require_eos(weights), weights.log_emission.detach() > -torch.inf
    useful = possible[:, eos]
    possible = possible.index_fill(1, torch.tensor([eos]), False)
    while True:
        more = useful | (possible & useful[weights.next_state]).any(1)
        if bool((more == useful).all()):
            return useful
        useful = more


def _require_eos(weights: WeightedAutomaton) -> int:
    if weights.space.eos is None:
        raise ValueError(
            "Points of unbounded length need an end symbol, and this space has none. Nothing was computed; give the "
            "space an end symbol, or leave out unbounded=True."
        )
    return weights.space.eos


def entropy(process: FiniteState, prompts: Sequences | None = None, *, unbounded: bool = False) -> Float[Tensor, "P"]:
    """-E[log p(x)] in nats, the end symbol included."""
    base = _prepare(process, prompts, unbounded)
    weights = base.weights
    return base.log_z(prompts) - _expect(base, weights.log_emission, weights.log_final, prompts, unbounded)


def mean_length(process: FiniteState, prompts: Sequences | None = None, *, unbounded: bool = False) -> Float[Tensor, "P"]:
    """The expected number of tokens of a point, the end symbol included."""
    base = _prepare(process, prompts, unbounded)
    gain, final = torch.ones_like(base.weights.log_emission), torch.zeros_like(base.weights.log_final)
    return _expect(base, gain, final, prompts, unbounded)


def expectation(
    process: FiniteState, feature: AutomatonFeature, prompts: Sequences | None = None, *, unbounded: bool = False
) -> Float[Tensor, "P"]:
    """E[feature(x)]."""
    base = _prepare(process, prompts, unbounded)
    product, _, state = _product(base, feature.next_state, ignore_prompt(feature.next_state))
    return _expect(product, feature.value[state], feature.final[state], prompts, unbounded)


def cross_entropy(
    p: FiniteState, q: FiniteState, prompts: Sequences | None = None, *, unbounded: bool = False
) -> Float[Tensor, "P"]:
    """-E_p[log q(x)]; infinite where q forbids what p allows."""
    return kl(p, q, prompts, unbounded=unbounded) + entropy(p, prompts, unbounded=unbounded)


def kl(p: FiniteState, q: FiniteState, prompts: Sequences | None = None, *, unbounded: bool = False) -> Float[Tensor, "P"]:
    """E_p[log p(x) - log q(x)]; infinite where q forbids what p allows."""
    if p.space != q.space:
        raise ValueError(f"Distributions over different spaces cannot be compared: {p.space} and {q.space}.")
    first, second = _prepare(p, prompts, unbounded), _prepare(q, prompts, unbounded)
    product, s, t = _product(first, second.weights.next_state, second.weights.prompt_transitions)
    log_emission = first.weights.log_emission[s] - second.weights.log_emission[t]
    log_final = first.weights.log_final[s] - second.weights.log_final[t]
    return _expect(product, log_emission, log_final, prompts, unbounded) - first.log_z(prompts) + second.log_z(prompts)


def step_probs(base: NormalisedAutomaton, tokens_left: int, next_state: Int[Tensor, "S V"]) -> Float[Tensor, "S V"]:
    """The probability of each token in each state; 0 where no point can follow."""
    total = base.log_backward[tokens_left]
    log_share = gather_next(base.log_backward[tokens_left - 1], next_state) + base.weights.log_emission
    return log_share.sub_(torch.where(total > -torch.inf, total, 0.0)[:, None]).exp_()


def backward_expectations(
    base: NormalisedAutomaton, gain: Float[Tensor, "F S V"], final: Float[Tensor, "F S"]
) -> Float[Tensor, "R F S"]:
    """Expected sums of finite gains from each state, with 0, 1, ... max_length tokens left."""
    expected, next_state = [final], transitions_with_end(base.weights)
    for tokens_left in range(1, base.space.max_length + 1):
        probs = step_probs(base, tokens_left, next_state)
        sums = [(gather_next(e, next_state) + g).mul_(probs).sum(-1) for e, g in zip(expected[-1], gain, strict=True)]
        expected.append(torch.stack(sums))
    return torch.stack(expected)


def ignore_prompt(next_state: Int[Tensor, "S V"]) -> Int[Tensor, "S V"]:
    """The transition table of a part that does not read prompts: it stays in its state."""
    return torch.arange(len(next_state))[:, None].expand_as(next_state)


def _prepare(process: FiniteState, prompts: Sequences | None, unbounded: bool) -> NormalisedAutomaton:
    """The normalised process; an error where no point can follow a prompt. Unbounded, its backward weights are all 1."""
    if not unbounded:
        base = normalise(process)
        base.start_states(prompts)
        return base
    steady, weights = normalise_unbounded(process).to_weighted_automaton(), process.to_weighted_automaton()
    if not bool(can_reach_eos(weights)[weights.start_states(prompts)].all()):
        raise ValueError("No point that ends can follow one of the prompts. Nothing was computed; drop that prompt.")
    return NormalisedAutomaton(steady, torch.zeros(1, len(steady.log_emission), dtype=torch.float64))


def product_with_tables(
    weights: WeightedAutomaton, tables: Sequence[Int[Tensor, "_ V"]], prompt_tables: Sequence[Int[Tensor, "_ V"]]
) -> tuple[WeightedAutomaton, Int[Tensor, "S K"]]:
    """The automaton run in parallel with transition tables, and the state of each part for each state of the product."""
    next_states, prompt_next_states = [weights.next_state, *tables], [weights.prompt_transitions, *prompt_tables]
    states = product_states(next_states, prompt_next_states, eos=weights.space.eos)
    s = states.parts[:, 0]
    log_emission, log_final = weights.log_emission[s], weights.log_final[s]
    product = WeightedAutomaton(log_emission, states.next_state, weights.space, log_final, states.prompt_next_state)
    return product, states.parts


def _product(
    base: NormalisedAutomaton, next_state: Int[Tensor, "Q V"], prompt_next_state: Int[Tensor, "Q V"]
) -> tuple[NormalisedAutomaton, Int[Tensor, "S"], Int[Tensor, "S"]]:
    """The base run in parallel with a transition table; for each state of the product, the state of either."""
    product, parts = product_with_tables(base.weights, [next_state], [prompt_next_state])
    s, t = parts.unbind(1)
    return NormalisedAutomaton(product, base.log_backward[:, s]), s, t


def _expect(
    base: NormalisedAutomaton, gain: Float[Tensor, "S V"], final: Float[Tensor, "S"], prompts: Sequences | None, unbounded: bool
) -> Float[Tensor, "P"]:
    """The expected sum of gains after each prompt; infinite where an infinite gain has positive probability."""
    weights = base.weights
    gain = torch.where(weights.log_emission > -torch.inf, gain, 0.0)
    final = torch.where(weights.log_final > -torch.inf, final, 0.0)
    gains = torch.stack([torch.where(gain.isinf(), 0.0, gain), gain.isinf().double()])
    finals = torch.stack([torch.where(final.isinf(), 0.0, final), final.isinf().double()])
    if unbounded:
        useful, source = can_reach_eos(weights), (weights.log_emission.exp() * gains).sum(-1)
        total = torch.zeros_like(source).masked_scatter(useful, solve_unbounded(weights, useful, source[:, useful].T).T)
    else:
        total = backward_expectations(base, gains, finals)[-1]
    expected, infinite = total[:, weights.start_states(prompts)]
    return torch.where(infinite > 0, torch.inf, expected)
