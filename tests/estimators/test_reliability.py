"""The verdict: right about tails whose index is known, and about weights that deserve no doubt."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from esscher.core.draws import Draws
from esscher.core.randomness import SeededRng
from esscher.core.space import empty_prompts
from esscher.estimators.reliability import _judged, pareto_k, reliability


def weighted(log_weight) -> Draws:
    count = log_weight.numel()
    return Draws(empty_prompts(count), log_weight, torch.zeros_like(log_weight), True, True, count)


def uniform(seed, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9])
def test_index_of_pareto_weights_is_found(k):
    """Mean over 50 samples of 5000; the standard error is (1 + k) / sqrt(50 * 213), below 0.02."""
    log_weight = -k * uniform(0, 50, 5000).log()
    assert float(pareto_k(log_weight).mean()) == pytest.approx(k, abs=0.07)


def verdicts(log_weight):
    return [row.verdict for row in reliability(weighted(log_weight))]


def test_mild_weights_are_good():
    assert verdicts(0.5 * normal(1, 50, 1000)).count("good") == 50


@pytest.mark.parametrize("draws", [200, 1000, pytest.param(5000, marks=pytest.mark.slow)])
def test_heavy_weights_warn(draws):
    """Log-normal with deviation 1.5: no more than 2 of 40 samples fail to warn."""
    assert verdicts(1.5 * normal(2, 40, draws)).count("good") <= 2


def test_weights_without_a_mean_are_unreliable():
    assert verdicts(-1.2 * uniform(3, 50, 1000).log()).count("unreliable") >= 45


def test_one_draw_that_rules_is_unreliable():
    (row,) = reliability(weighted(torch.tensor([[50.0, *[0.0] * 999]])))
    assert row.verdict == "unreliable" and row.ess == pytest.approx(1)
    assert "a handful of draws decides everything" in row.advice


def test_no_tail_no_doubt():
    equal = weighted(torch.zeros(1, 100))
    (row,) = reliability(equal)
    assert (row.verdict, row.pareto_k, row.ess) == ("good", -math.inf, pytest.approx(100))
    (row,) = reliability(weighted(torch.tensor([[0.0, -torch.inf] * 200])))  # half forbidden, half equal
    assert (row.verdict, row.pareto_k) == ("good", -math.inf)
    (row,) = reliability(replace(equal, independent=False))
    assert row.verdict == "doubtful" and "compare several runs" in row.advice


def test_few_draws_are_never_good():
    for draws in (1, 2, 5, 15):
        assert verdicts(0.1 * normal(4, 20, draws)).count("good") == 0


def test_forbidden_everywhere_is_an_error():
    with pytest.raises(ValueError, match="no draw with any weight"):
        reliability(weighted(torch.full((1, 4), -torch.inf)))


def test_a_largest_weight_drawn_often_has_no_tail_beyond_it():
    """Weights of a few features: rare, of few values, the largest drawn hundreds of times; a continuous tail is still seen."""
    rng = SeededRng(3)
    rare = rng.categorical(torch.tensor([[0.96, 0.025, 0.01, 0.005]]).log(), 40_000)
    log_weight = torch.tensor([-10.0, -0.27, -0.25, 0.0], dtype=torch.float64)[rare]
    assert float(pareto_k(log_weight)) == -math.inf
    spread = torch.rand(1, 40_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert float(pareto_k(-0.9 * spread.log())) > 0.7


@pytest.mark.parametrize("k", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("draws", [2_500, 40_000])
def test_weights_at_the_quantiles_of_a_pareto_law_have_its_index(k, draws):
    """No chance: 3 sqrt(n) weights are the tail, whose index is drawn to 1/2 by ten more that say so."""
    log_weight = -k * ((torch.arange(draws) + 0.5) / draws).double().log()
    tail = 3 * math.sqrt(draws)
    assert float(pareto_k(log_weight[None])) == pytest.approx((tail * k + 10 * 0.5) / (tail + 10), abs=3 / tail)


def test_a_tail_of_few_draws_is_not_seen():
    """A fifth of the draws are the tail, and 5 of them are needed."""
    spread = torch.linspace(0.0, 1.0, 26, dtype=torch.float64)
    assert math.isnan(float(pareto_k(spread[None, :20]))) and math.isfinite(float(pareto_k(spread[None, :21])))
    assert math.isfinite(float(pareto_k(spread[None])))


def test_a_largest_weight_ends_the_tail_once_it_was_drawn_ten_times():
    spread = torch.linspace(-2.0, -0.01, 400, dtype=torch.float64)
    actual = [float(pareto_k(torch.cat([spread, torch.zeros(times)])[None].double())) for times in (9, 10)]
    assert math.isfinite(actual[0]) and actual[1] == -math.inf


def test_degrees_are_those_of_the_kurtosis():
    log_weight = 0.8 * normal(5, 3, 60)
    actual = [row.dof for row in reliability(weighted(log_weight))]
    assert actual == pytest.approx([min(2 * 60 / (stats.kurtosis(row, fisher=False) - 1), 59) for row in log_weight.exp()])
    two = reliability(weighted(torch.tensor([[0.0, 1.0] * 30], dtype=torch.float64)))[0]
    assert two.dof == 59 and two.max_share == pytest.approx(math.e / 30 / (1 + math.e))


@pytest.mark.parametrize(
    ("draws", "ess", "k", "degrees", "verdict"),
    [
        (1000, 9.9, 0.0, 500, "unreliable"),
        (1000, 10.0, 0.0, 500, "good"),
        (1000, 500, 0.49, 500, "good"),
        (1000, 500, 0.5, 500, "doubtful"),
        (1000, 500, 0.66, 500, "doubtful"),
        (1000, 500, 0.67, 500, "unreliable"),  # 1 - 1 / log10(n)
        (100, 50, 0.49, 50, "good"),
        (100, 50, 0.5, 50, "unreliable"),
        (20, 15, 0.45, 50, "good"),
        (10**6, 10**5, 0.69, 500, "doubtful"),
        (10**6, 10**5, 0.7, 500, "unreliable"),
        (1000, 334, 0.0, 29, "doubtful"),
        (1000, 334, 0.0, 30, "good"),
        (1000, 333, 0.0, 199, "doubtful"),
        (1000, 333, 0.0, 200, "good"),
        (1000, 500, math.nan, 500, "doubtful"),
    ],
)
def test_where_one_verdict_ends_and_the_next_begins(draws, ess, k, degrees, verdict):
    actual = _judged(draws, ess, 0.1, k, degrees, independent=True)
    assert actual.verdict == verdict
    assert (actual.ess, actual.max_share, actual.dof) == (ess, 0.1, degrees)
    assert actual.advice.startswith(f"{ess:.1f} of {draws} draws are effective, tail index {k:.2f}: ")
    dependent = _judged(draws, ess, 0.1, k, degrees, independent=False).verdict
    assert dependent == ("unreliable" if verdict == "unreliable" else "doubtful")
