"""Expectations under an automaton, by dynamic programming: entropy, mean length, features, divergences.

All are expected sums of a gain for each token drawn, so one recursion serves: expected(r, s) = sum_v p_r(v | s)
(gain(s, v) + expected(r - 1, move[s, v])), with r tokens left. Without a bound on the length it becomes the
linear system of `esscher.exact.partition`. Entropies come as log Z - E[log weight], so their gain, too, does not
depend on r. Numbers are nats, one for each prompt (by default one empty prompt); F counts gains.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.exact.automaton import FiniteState, Normalised, Weighted
from esscher.exact.features import Tally
from esscher.exact.partition import ends_sometime, follow, normalise, normalise_unbounded, onward, solve_unbounded
from esscher.exact.products import Product, product
from esscher.space import Sequences, empty_prompts


def entropy(process: FiniteState, prompts: Sequences | None = None, *, unbounded: bool = False) -> Float[Tensor, "P"]:
    """-E[log p(x)] in nats, the end symbol among the symbols."""
    base, prompts = _prepare(process, prompts, unbounded)
    weights = base.weights
    return base.log_z(prompts) - _expect(base, weights.emit, weights.cut, prompts, unbounded)


def mean_length(process: FiniteState, prompts: Sequences | None = None, *, unbounded: bool = False) -> Float[Tensor, "P"]:
    """Expected tokens of a point, the end symbol included."""
    base, prompts = _prepare(process, prompts, unbounded)
    return _expect(base, torch.ones_like(base.weights.emit), torch.zeros_like(base.weights.cut), prompts, unbounded)


def expectation(
    process: FiniteState, feature: Tally, prompts: Sequences | None = None, *, unbounded: bool = False
) -> Float[Tensor, "P"]:
    """E[feature(x)]."""
    base, prompts = _prepare(process, prompts, unbounded)
    both, _, tally = _beside(base, feature.move, stay_put(feature.move))
    return _expect(both, feature.value[tally], feature.final[tally], prompts, unbounded)


def cross_entropy(
    p: FiniteState, q: FiniteState, prompts: Sequences | None = None, *, unbounded: bool = False
) -> Float[Tensor, "P"]:
    """-E_p[log q(x)]; infinite where q forbids what p allows."""
    return kl(p, q, prompts, unbounded=unbounded) + entropy(p, prompts, unbounded=unbounded)


def kl(p: FiniteState, q: FiniteState, prompts: Sequences | None = None, *, unbounded: bool = False) -> Float[Tensor, "P"]:
    """E_p[log p(x) - log q(x)]; infinite where q forbids what p allows."""
    if p.space != q.space:
        raise ValueError(f"Distributions over different spaces cannot be compared: {p.space} and {q.space}.")
    (first, prompts), (second, _) = _prepare(p, prompts, unbounded), _prepare(q, prompts, unbounded)
    both, here, there = _beside(first, second.weights.move, second.weights.reading)
    emit = first.weights.emit[here] - second.weights.emit[there]
    cut = first.weights.cut[here] - second.weights.cut[there]
    return _expect(both, emit, cut, prompts, unbounded) - first.log_z(prompts) + second.log_z(prompts)


def shares(base: Normalised, left: int, move: Int[Tensor, "S V"]) -> Float[Tensor, "S V"]:
    """The probability of each token in each state with `left` tokens to come; 0 where nothing can follow."""
    total = base.log_rest[left]
    log_share = follow(base.log_rest[left - 1], move) + base.weights.emit
    return log_share.sub_(torch.where(total > -torch.inf, total, 0.0)[:, None]).exp_()


def accumulate(base: Normalised, gain: Float[Tensor, "F S V"], final: Float[Tensor, "F S"]) -> Float[Tensor, "R F S"]:
    """Expected sums of finite gains from each state on, with 0, 1, ... max_length tokens left."""
    expected, move = [final], onward(base.weights)
    for left in range(1, base.space.max_length + 1):
        share = shares(base, left, move)
        expected.append(
            torch.stack([(follow(e, move) + g).mul_(share).sum(-1) for e, g in zip(expected[-1], gain, strict=True)])
        )
    return torch.stack(expected)


def stay_put(move: Int[Tensor, "S V"]) -> Int[Tensor, "S V"]:
    """The table of a part that does not read prompts."""
    return torch.arange(len(move))[:, None].expand_as(move)


def _prepare(process: FiniteState, prompts: Sequences | None, unbounded: bool) -> tuple[Normalised, Sequences]:
    """The process normalised, and the prompts; an error where no point can follow one.

    Without a bound it is normalised in each state, so nothing that follows has another weight than 1.
    """
    prompts = empty_prompts(1) if prompts is None else prompts
    if not unbounded:
        base = normalise(process)
        base.starts(prompts)
        return base, prompts
    steady, weights = normalise_unbounded(process).weighted(), process.weighted()
    if not bool(ends_sometime(weights)[weights.starts(prompts)].all()):
        raise ValueError("No point that ends can follow one of the prompts. Nothing was computed; drop that prompt.")
    return Normalised(steady, torch.zeros(1, len(steady.emit), dtype=torch.float64)), prompts


def _beside(
    base: Normalised, move: Int[Tensor, "Q V"], read: Int[Tensor, "Q V"]
) -> tuple[Normalised, Int[Tensor, "S"], Int[Tensor, "S"]]:
    """The base with another table run beside it, and for each state the state of either."""
    weights = base.weights
    both: Product = product([weights.move, move], [weights.reading, read], eos=base.space.eos)
    here, there = both.parts.unbind(1)
    together = Weighted(weights.emit[here], both.move, base.space, weights.cut[here], both.read)
    return Normalised(together, base.log_rest[:, here]), here, there


def _expect(
    base: Normalised, gain: Float[Tensor, "S V"], final: Float[Tensor, "S"], prompts: Sequences, unbounded: bool
) -> Float[Tensor, "P"]:
    """The expected sum of gains after each prompt; infinite where an infinite one can be met.

    What has no weight counts for nothing, so its gain may be anything.
    """
    weights = base.weights
    gain = torch.where(weights.emit > -torch.inf, gain, 0.0)
    final = torch.where(weights.cut > -torch.inf, final, 0.0)
    gains = torch.stack([torch.where(gain.isinf(), 0.0, gain), gain.isinf().double()])
    finals = torch.stack([torch.where(final.isinf(), 0.0, final), final.isinf().double()])
    total = _accumulate_unbounded(weights, gains) if unbounded else accumulate(base, gains, finals)[-1]
    expected, infinite = total[:, weights.starts(prompts)]
    return torch.where(infinite > 0, torch.inf, expected)


def _accumulate_unbounded(steady: Weighted, gain: Float[Tensor, "F S V"]) -> Float[Tensor, "F S"]:
    """Expected sums of gains from each state that can end; 0 from the others."""
    useful = ends_sometime(steady)
    source = (steady.emit.exp() * gain).sum(-1)
    solved = solve_unbounded(steady, useful, source[:, useful].T)
    return torch.zeros_like(source).masked_scatter(useful, solved.T)
