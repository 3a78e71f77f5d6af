"""Partition functions against enumeration, closed forms, and each other."""

import math

import pytest
import torch
from exact.examples import SPACES, random_weighted
from random_targets import PROMPTS, random_automaton

from esscher.core.space import Space, prompts_of
from esscher.exact.automaton import WeightedAutomaton
from esscher.exact.dynamic_programming import log_backward_weights, log_partition, normalise, normalise_unbounded
from esscher.exact.enumeration import enumerate_points


def enumerated_log_z(weights: WeightedAutomaton, prompts: list[list[int]]) -> torch.Tensor:
    x = enumerate_points(weights.space, prompts_of(prompts))
    return torch.logsumexp(weights.log_weight(x).view(len(prompts), -1), -1)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("seed", range(4))
def test_log_z_is_the_sum_over_all_points(name, seed):
    weights = random_weighted(SPACES[name], seed=seed)
    assert torch.allclose(log_partition(weights, prompts_of(PROMPTS)), enumerated_log_z(weights, PROMPTS))


def test_the_comparison_catches_a_sum_that_forgets_cut_points():
    weights = random_weighted(SPACES["end symbol"], seed=1)
    forgets = WeightedAutomaton(
        weights.log_emission, weights.next_state, weights.space, torch.full((5,), -torch.inf, dtype=torch.float64)
    )
    assert not torch.allclose(log_partition(forgets, prompts_of(PROMPTS)), enumerated_log_z(weights, PROMPTS))


def test_log_z_of_a_probabilistic_automaton_is_zero():
    assert torch.allclose(log_partition(random_automaton(Space(3, 50, eos=0))), torch.zeros(1, dtype=torch.float64), atol=1e-12)


def test_unbounded_sum_is_the_geometric_series():
    log_emission = torch.tensor([[0.5, 0.2, 0.3]], dtype=torch.float64).log()
    weights = WeightedAutomaton(log_emission, torch.zeros(1, 3, dtype=torch.long), Space(3, 2, eos=2))
    assert float(log_partition(weights, unbounded=True)) == pytest.approx(math.log(0.3 / (1 - 0.7)))
    assert float(log_partition(weights)) == pytest.approx(math.log(0.3 + 0.7 * 0.3 + 0.7 * 0.7))


def test_unbounded_is_the_limit_of_bounded():
    log_emission = (
        torch.log_softmax(torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64), -1) - 0.2
    )
    next_state = torch.randint(6, (6, 3), generator=torch.Generator().manual_seed(2))
    long, short = (WeightedAutomaton(log_emission, next_state, Space(3, length, eos=0)) for length in (400, 4))
    prompts = prompts_of(PROMPTS)
    assert torch.allclose(log_partition(short, prompts, unbounded=True), log_partition(long, prompts))
    x = enumerate_points(short.space)
    steady, bounded = normalise_unbounded(short).log_probs(x), normalise(long).log_probs(x)
    assert torch.allclose(steady.sum(-1)[:10], bounded.sum(-1)[:10])


def test_unbounded_sum_leaves_out_states_that_never_end():
    """State 1 is a trap of weight 1 for each token: it makes the plain system singular and adds nothing."""
    log_emission = torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=torch.float64).log()
    weights = WeightedAutomaton(log_emission, torch.tensor([[1, 0], [1, 1]]), Space(2, 3, eos=1))
    assert float(log_partition(weights, unbounded=True)) == pytest.approx(math.log(0.5))


def test_unbounded_sum_that_diverges_is_refused():
    log_emission = torch.tensor([[0.8, 0.3, 0.5]], dtype=torch.float64).log()
    growing = WeightedAutomaton(log_emission, torch.zeros(1, 3, dtype=torch.long), Space(3, 2, eos=2))
    with pytest.raises(ValueError, match="infinite"):
        log_partition(growing, unbounded=True)
    with pytest.raises(ValueError, match="end symbol"):
        log_partition(random_automaton(Space(3, 3)), unbounded=True)


@pytest.mark.parametrize("unbounded", [False, True])
def test_log_z_is_differentiable_past_dead_ends(unbounded):
    """d log Z / d log weight = expected number of uses; rows of -inf give gradient 0, not NaN."""
    log_emission = torch.tensor([[0.2, 0.3, 0.1], [0.0, 0.0, 0.0], [0.5, 0.0, 0.25]], dtype=torch.float64).log()
    next_state = torch.tensor([[0, 1, 2], [1, 1, 1], [2, 0, 2]])
    space = Space(3, 3, eos=2)

    def log_z(table: torch.Tensor) -> torch.Tensor:
        return log_partition(WeightedAutomaton(table, next_state, space), unbounded=unbounded).sum()

    log_emission.requires_grad_(True)
    (actual,) = torch.autograd.grad(log_z(log_emission), log_emission)
    assert not bool(actual.isnan().any())
    for state, token in [(0, 0), (0, 2)]:
        shift = torch.zeros_like(log_emission)
        shift[state, token] = 1e-6
        slope = (log_z(log_emission.detach() + shift) - log_z(log_emission.detach() - shift)) / 2e-6
        assert float(actual[state, token]) == pytest.approx(float(slope), abs=1e-7)


def test_rests_of_long_spaces_stay_finite():
    rests = log_backward_weights(WeightedAutomaton(random_automaton(Space(3, 2000, eos=0)).log_emission + 3.0, *_tables()))
    assert bool(torch.isfinite(rests).all())
    assert float(rests[-1, 0]) > 700  # beyond the range of float64 without logarithms


def _tables():
    automaton = random_automaton(Space(3, 2000, eos=0))
    return automaton.next_state, automaton.space
