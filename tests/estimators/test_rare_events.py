"""Intervals of rare events: direct draws against scipy, runs of splitting against their law, and what verdicts warn of."""

import math

import pytest
import torch

from esscher.core.estimate import Estimate
from esscher.estimators.rare_events import (
    contradicted,
    direct_probability,
    least_variance,
    splitting_probability,
    twisted_runs_probability,
    weighted_probability,
)

ROOTS = torch.full((12,), 10)


def runs_of(log_ratios: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """One stage whose shares have these logarithms beside 1e-6."""
    size = 10**12
    return (1e-6 * log_ratios.exp() * size).round().long()[:, None], [size]


@pytest.mark.parametrize(("hits", "draws"), [(0, 50), (3, 1000), (50, 50), (200, 3000)])
def test_direct_draws_have_the_exact_interval(hits, draws):
    from scipy.stats import binomtest

    theirs = binomtest(hits, draws).proportion_ci(0.95, method="exact")
    ours = direct_probability(hits, draws).probability
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-9)


def test_verdicts_of_direct_draws():
    assert direct_probability(0, 1000).verdict == "unreliable"
    assert "not seen" in direct_probability(0, 1000).advice
    assert direct_probability(3, 1000).verdict == "doubtful"
    assert direct_probability(300, 1000).verdict == "good"


@pytest.mark.parametrize("deviation", [0.2, 0.8])
def test_intervals_of_log_normal_runs_cover(deviation):
    """2,000 replications of 12 runs cover in 93.5 to 96.5 %: 4 standard errors beside 95 %; false alarms below 1 in 1,000."""
    generator = torch.Generator().manual_seed(1)
    ratios = deviation * torch.randn(2000, 12, generator=generator, dtype=torch.float64) - deviation**2 / 2
    covered = 0
    for row in ratios:
        reached, particles = runs_of(row)
        covered += splitting_probability(reached, particles, ROOTS).probability.covers(1e-6)
    assert 0.93 <= covered / 2000 <= 0.97


def test_runs_that_agree_by_luck_have_the_least_variance():
    reached, particles = torch.full((12, 2), 25), [100, 100]
    estimate = splitting_probability(reached, particles, ROOTS).probability
    floor = least_variance(reached, torch.tensor(particles, dtype=torch.float64))
    assert floor == pytest.approx(2 * 0.75 / 25)
    assert estimate.value == pytest.approx(0.0625)
    assert math.log(estimate.high / estimate.low) > 2 * 1.96 * math.sqrt(0.7 * floor / 12)


def test_verdicts_of_runs():
    agreeing = torch.full((12, 2), 25) + torch.arange(12)[:, None] % 3
    assert splitting_probability(agreeing, [100, 100], ROOTS).verdict == "good"
    assert splitting_probability(agreeing, [100, 100], torch.ones(12, dtype=torch.long)).verdict == "unreliable"
    apart, particles = runs_of(torch.linspace(-3, 3, 12, dtype=torch.float64))
    assert "disagree" in splitting_probability(apart, particles, ROOTS).advice
    lost = agreeing.clone()
    lost[:4, 1] = 0
    assert "never reached" in splitting_probability(lost, [100, 100], ROOTS).advice
    none = splitting_probability(torch.zeros(12, 2, dtype=torch.long), [100, 100], ROOTS)
    assert none.verdict == "unreliable"
    assert (none.probability.low, none.probability.high) == (0.0, 1.0)


@pytest.mark.parametrize(("deviation", "least"), [(0.3, 0.93), (1.0, 0.92)])
def test_intervals_of_weighted_draws_cover(deviation, least):
    """1,000 replications of 400 draws, of which a half has weight 0: coverage of at most 2 points below 95 % (3 for a heavy
    tail); 3 standard errors are 2 points."""
    generator, covered = torch.Generator().manual_seed(2), 0
    for _ in range(1000):
        log_weight = deviation * torch.randn(400, generator=generator, dtype=torch.float64) - deviation**2 / 2
        log_weight[torch.rand(400, generator=generator) < 0.5] = -math.inf
        covered += weighted_probability(log_weight + math.log(2e-6)).probability.covers(1e-6)
    assert least <= covered / 1000 <= 0.985


def test_equal_weights_have_an_interval_without_width():
    event = weighted_probability(torch.full((500,), math.log(1e-9)))
    assert (event.probability.low, event.probability.high) == pytest.approx((1e-9, 1e-9))
    assert event.verdict == "good"


def test_verdicts_of_weighted_draws():
    even = torch.zeros(1000, dtype=torch.float64) - 10
    few = torch.full((1000,), -30.0, dtype=torch.float64)
    few[:30] = -10.0
    one = even.clone()
    one[0] = 0.0
    heavy = torch.distributions.Pareto(1.0, 1.1).icdf(torch.linspace(0.0005, 0.9995, 1000, dtype=torch.float64)).log() - 20
    assert weighted_probability(even).verdict == "good"
    assert weighted_probability(few).verdict == "doubtful"
    assert weighted_probability(one).verdict == "unreliable"
    assert weighted_probability(heavy).verdict != "good"
    none = weighted_probability(torch.full((10,), -math.inf))
    assert (none.verdict, none.probability.high) == ("unreliable", 1.0)


def test_direct_draws_may_contradict():
    event = weighted_probability(torch.full((500,), math.log(1e-3)))
    assert contradicted(event, Estimate(0.002, 0.0005, 0.004, 0.999, 1000, "direct")) == event
    assert contradicted(event, Estimate(0.01, 0.005, 0.02, 0.999, 1000, "direct")).verdict == "unreliable"


def test_runs_of_particles_are_judged_as_runs_of_splitting():
    log_p = math.log(1e-6) + 0.1 * torch.linspace(-1, 1, 12, dtype=torch.float64)
    event = twisted_runs_probability(log_p, torch.full((12,), 0.01), ROOTS)
    assert event.probability.covers(1e-6)
    assert event.verdict == "good"
    wide = twisted_runs_probability(log_p, torch.full((12,), 1.0), ROOTS).probability
    assert math.log(wide.high / wide.low) > 4 * math.log(event.probability.high / event.probability.low)
