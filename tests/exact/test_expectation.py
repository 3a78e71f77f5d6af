"""Entropy, length, features and divergences against tables of all points, and closed forms without a bound."""

import math

import pytest
import torch
from exact.examples import SPACES, random_weighted
from random_targets import PROMPTS, random_automaton

from esscher.core.space import Space, prompts_of
from esscher.core.target import Tilted
from esscher.exact import features
from esscher.exact.acceptors import accept_all
from esscher.exact.automaton import Automaton, WeightedAutomaton
from esscher.exact.dynamic_programming import cross_entropy, entropy, expectation, kl, mean_length, normalise
from esscher.exact.enumeration import tabulate


def pair(space: Space) -> tuple[WeightedAutomaton, WeightedAutomaton]:
    """Two weighted automata, the second without zeros."""
    other = random_automaton(space, states=4, seed=5)
    return random_weighted(space, seed=3), WeightedAutomaton(other.log_emission + 0.7, other.next_state, space)


@pytest.mark.parametrize("name", SPACES)
def test_expectations_equal_those_over_all_points(name):
    space, prompts = SPACES[name], prompts_of(PROMPTS)
    p, q = pair(space)
    table, other = (tabulate(Tilted(normalise(w)), prompts) for w in (p, q))
    assert torch.allclose(entropy(p, prompts), table.entropy)
    assert torch.allclose(mean_length(p, prompts), table.expect(lambda x: x.lengths))
    assert torch.allclose(kl(p, q, prompts), table.kl(other))
    assert torch.allclose(cross_entropy(p, q, prompts), table.entropy + table.kl(other))
    tallies = [
        features.contains([1, 2], space),
        features.lacks([1, 1], space),
        features.starts_with([2], space),
        features.count([1], space),
        features.length(space),
    ]
    for tally in tallies:
        assert torch.allclose(expectation(p, tally, prompts), table.expect(tally)), tally.name


def test_the_comparison_catches_an_entropy_without_the_end_symbol():
    weights = random_weighted(SPACES["end symbol"], seed=3)
    table = tabulate(Tilted(normalise(weights)), prompts_of(PROMPTS))
    free_end = weights.log_emission.clone()
    free_end[:, 0] = free_end[:, 0].masked_fill(free_end[:, 0] > -torch.inf, 0.0)
    wrong = WeightedAutomaton(free_end, weights.next_state, weights.space, weights.final)
    assert not torch.allclose(entropy(wrong, prompts_of(PROMPTS)), table.entropy, rtol=1e-3)


def test_kl_is_infinite_where_the_other_forbids_and_zero_with_itself():
    space = SPACES["end symbol"]
    p, q = random_automaton(space), random_weighted(space, seed=3)
    assert float(kl(p, q)) == math.inf
    assert float(kl(p, q, unbounded=False)) == math.inf
    assert float(kl(q, q)) == pytest.approx(0, abs=1e-12)
    forbids = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64).log() - math.log(2)
    noise = torch.full((1, 3), 1 / 3, dtype=torch.float64).log()
    stay = torch.zeros(1, 3, dtype=torch.long)
    assert float(kl(Automaton(noise, stay, space), Automaton(forbids, stay, space), unbounded=True)) == math.inf


def test_unbounded_closed_forms():
    """One state that goes on with probability c: geometric length, entropy h / (1 - c)."""
    share = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    other = torch.tensor([[0.2, 0.2, 0.6]], dtype=torch.float64)
    stay, space = torch.zeros(1, 3, dtype=torch.long), Space(3, 2, eos=2)
    p, q = Automaton(share.log(), stay, space), Automaton(other.log(), stay, space)
    length = 1 / 0.2
    assert float(mean_length(p, unbounded=True)) == pytest.approx(length)
    assert float(entropy(p, unbounded=True)) == pytest.approx(length * -float((share * share.log()).sum()))
    assert float(kl(p, q, unbounded=True)) == pytest.approx(length * float((share * (share / other).log()).sum()))
    assert float(cross_entropy(p, q, unbounded=True)) == pytest.approx(length * -float((share * other.log()).sum()))
    assert float(expectation(p, features.count([0], space), unbounded=True)) == pytest.approx((length - 1) * 0.5 / 0.8)


def test_unbounded_is_the_limit_of_bounded():
    short, long = (random_automaton(Space(3, length, eos=0), seed=2) for length in (3, 600))
    assert torch.allclose(entropy(short, unbounded=True), entropy(long))
    assert torch.allclose(mean_length(short, unbounded=True), mean_length(long))
    tallies = (features.contains([1, 2], space) for space in (short.space, long.space))
    assert torch.allclose(expectation(short, next(tallies), unbounded=True), expectation(long, next(tallies)))


def test_different_spaces_and_dead_prompts_are_refused():
    with pytest.raises(ValueError, match="different spaces"):
        kl(random_automaton(Space(3, 3)), random_automaton(Space(3, 4)))
    dead = torch.tensor([[0.0, 0.0, 0.0], [-torch.inf, -torch.inf, -torch.inf]], dtype=torch.float64)
    weights = WeightedAutomaton(dead - 2, torch.tensor([[0, 1, 0], [1, 1, 1]]), Space(3, 3, eos=2))
    for unbounded in (False, True):
        with pytest.raises(ValueError, match=r"No point"):
            entropy(weights, prompts_of([[], [1]]), unbounded=unbounded)


def test_a_constant_feature_has_its_value():
    space = SPACES["end symbol"]
    always = features.indicator("always", accept_all(3), space)
    assert float(expectation(random_automaton(space), always)) == pytest.approx(1.0)
