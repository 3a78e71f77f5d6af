"""Exact expectations under an automaton, by dynamic programming: entropy, mean length, features, divergences.

All are expected sums of a gain for each token, so one recursion serves, with r tokens left:

    expected(r, s) = sum_v p_r(v | s) (gain(s, v) + expected(r - 1, next_state[s, v]))

With `unbounded=True` it is the linear system of `esscher.exact.partition`. The entropy is log Z - E[log weight], so its gain
does not depend on r either. Results are in nats, one for each prompt (by default one empty prompt); F counts gains.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.space import Sequences
from esscher.exact.automaton import FiniteState, NormalisedAutomaton, WeightedAutomaton, product_states
from esscher.exact.features import AutomatonFeature
from esscher.exact.partition import (
    can_reach_eos,
    gather_next,
    normalise,
    normalise_unbounded,
    solve_unbounded,
    transitions_with_end,
)


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


def _product(
    base: NormalisedAutomaton, next_state: Int[Tensor, "Q V"], prompt_next_state: Int[Tensor, "Q V"]
) -> tuple[NormalisedAutomaton, Int[Tensor, "S"], Int[Tensor, "S"]]:
    """The base run in parallel with a transition table; for each state of the product, the state of either."""
    weights, tables = base.weights, [base.weights.prompt_transitions, prompt_next_state]
    states = product_states([weights.next_state, next_state], tables, eos=base.space.eos)
    s, t = states.parts.unbind(1)
    product = WeightedAutomaton(
        weights.log_emission[s], states.next_state, base.space, weights.log_final[s], states.prompt_next_state
    )
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
