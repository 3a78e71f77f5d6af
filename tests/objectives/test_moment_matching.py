"""Fitted weights against exact ones: coverage of their intervals, and wrong versions that the comparison catches."""

import math
import time

import pytest
import torch
from marks import slow
from objectives.moments import MOMENTS, NAMES, TRUE, VALUES, Samples, samples, star
from scipy import stats

from esscher.objectives.moment_matching import MomentFit, match_moments
from esscher.testing import assert_covers

GIVEN = dict(zip(NAMES, MOMENTS.tolist(), strict=True))


def from_data(s: Samples, **settings) -> MomentFit:
    return match_moments(NAMES, s.base, s.data, **settings)


def from_proposal(s: Samples, **settings) -> MomentFit:
    return match_moments(NAMES, s.proposed, s.data, log_weight=s.log_weight, **settings)


def from_given(s: Samples, **settings) -> MomentFit:
    return match_moments(NAMES, s.base, wanted=GIVEN, **settings)


def from_some_given(s: Samples, **settings) -> MomentFit:
    return match_moments(NAMES, s.base, s.data, wanted={NAMES[1]: GIVEN[NAMES[1]]}, **settings)


def given_and_proposed(s: Samples, **settings) -> MomentFit:
    return match_moments(NAMES, s.proposed, wanted=GIVEN, log_weight=s.log_weight, **settings)


def check_coverage(fit, size: int, drawn: int, *, confidence: float = 0.95, seeds: int = 120) -> None:
    """All three intervals hold the true weights at their rate; a correct fit fails with probability below 3e-4."""
    hits = torch.zeros(3)
    for seed in range(seeds):
        actual = fit(samples(size, drawn, seed), confidence=confidence)
        hits += torch.tensor([weight.covers(float(true)) for weight, true in zip(actual.weights, TRUE, strict=True)])
    for hit in hits.tolist():
        assert_covers(int(hit), seeds, confidence, false_alarm=1e-4)


def test_exact_weights_are_the_true_ones():
    """The laboratory, the enumeration and the tilting agree on what is right."""
    assert torch.allclose(star(MOMENTS), TRUE, atol=1e-8)


@pytest.mark.parametrize(
    ("fit", "size", "drawn"),
    [
        (from_data, 400, 2000),
        slow(from_data, 4000, 400),
        slow(from_data, 60, 2000),
        slow(from_data, 200, 200),
        slow(from_proposal, 4000, 1000),
        (from_proposal, 300, 300),
        (from_given, 2, 400),
        slow(from_given, 2, 2000),
        (from_some_given, 200, 1000),
        (given_and_proposed, 2, 400),
    ],
)
def test_intervals_cover_the_exact_weights(fit, size, drawn):
    check_coverage(fit, size, drawn)


@pytest.mark.slow
def test_exact_weights_lie_within_three_standard_errors():
    """At the rate of three standard errors of a normal law, 99.73 %."""
    check_coverage(from_data, 500, 1500, confidence=0.9973)


def without_the_data_error(s: Samples, **settings) -> MomentFit:
    return match_moments(NAMES, s.base, wanted=dict(zip(NAMES, s.data.mean(0).tolist(), strict=True)), **settings)


def without_the_base_error(s: Samples, **settings) -> MomentFit:
    return match_moments(NAMES, s.base.repeat(6, 1), s.data, **settings)


def with_the_wrong_sign(s: Samples, **settings) -> MomentFit:
    return match_moments(NAMES, -s.base, -s.data, **settings)


def without_weights(s: Samples, **settings) -> MomentFit:
    return match_moments(NAMES, s.proposed, s.data, **settings)


def with_inverted_weights(s: Samples, **settings) -> MomentFit:
    return match_moments(NAMES, s.proposed, s.data, log_weight=-s.log_weight, **settings)


def with_a_strong_prior(s: Samples, **settings) -> MomentFit:
    return match_moments(NAMES, s.base, s.data, prior=200.0, **settings)


@pytest.mark.parametrize(
    ("wrong", "size", "drawn"),
    [
        (without_the_data_error, 300, 2000),
        slow(without_the_base_error, 4000, 400),
        (with_the_wrong_sign, 300, 300),
        (without_weights, 300, 300),
        (with_inverted_weights, 300, 300),
        (with_a_strong_prior, 300, 300),
    ],
)
def test_wrong_fits_do_not_cover(wrong, size, drawn):
    with pytest.raises(AssertionError, match="the interval held the truth"):
        check_coverage(wrong, size, drawn, seeds=60)


def test_on_all_points_the_fit_is_exact():
    """Every point once, weighted by its probability under the base: no chance is left."""
    from objectives.moments import LOG_BASE

    fit = match_moments(NAMES, VALUES, wanted=GIVEN, log_weight=LOG_BASE)
    assert torch.allclose(fit.tensor(), TRUE, atol=1e-9)
    assert fit.l1 < 1e-9 and fit.moments_model == pytest.approx(fit.moments_wanted)


def test_the_ridge_is_a_normal_prior_on_weights():
    """At the optimum M (wanted - model) = weights / sd^2; a wide ridge changes nothing."""
    s = samples(100, 2000, 0)
    plain, wide, narrow = (from_data(s, prior=0.0, ridge=ridge) for ridge in (None, 1e4, 0.2))
    assert torch.allclose(plain.tensor(), wide.tensor(), atol=1e-4)
    pull = 100 * (torch.tensor(narrow.moments_wanted) - torch.tensor(narrow.moments_model))
    assert torch.allclose(pull.double(), narrow.tensor() / 0.2**2, atol=1e-3)
    assert float(narrow.tensor().norm()) < float(plain.tensor().norm())
    inputs = match_moments(NAMES, s.base, s.data, wanted={NAMES[0]: 0.6}, ridge=0.2)
    assert inputs.moments_model[0] == pytest.approx(0.6)  # a given moment is not pulled


def test_speed():
    """Three features that are 0 or 1, 2,000 draws and data: in milliseconds."""
    generator = torch.Generator().manual_seed(0)
    base, data = (
        (torch.rand(2000, 3, generator=generator) < torch.tensor(share)).double()
        for share in ([0.05, 0.3, 0.5], [0.9, 0.2, 0.5])
    )
    begin = time.perf_counter()
    fit = match_moments(["a", "b", "c"], base, data)
    assert time.perf_counter() - begin < 0.5
    assert fit.l1 < 1e-9 and fit.iterations < 20


def test_where_only_the_ridge_speaks_the_interval_is_as_wide_as_it():
    """A rare thing that no datum shows: its weight is small, and 0 lies well inside an interval of about the ridge's width."""
    generator = torch.Generator().manual_seed(0)
    often = (torch.rand(20_000, generator=generator) < 0.3).double()
    rare = torch.zeros(20_000, dtype=torch.float64)
    rare[:3] = 1
    data = torch.stack([(torch.rand(5000, generator=generator) < 0.3).double(), torch.zeros(5000, dtype=torch.float64)], -1)
    fit = match_moments(["often", "rare"], torch.stack([often, rare], -1), data, ridge=3.0)
    plain, seldom = fit.weights
    assert seldom.value < 0 and seldom.covers(0.0) and 1.5 < (seldom.high - seldom.low) / 2 < 8
    assert (plain.high - plain.low) / 2 < 0.12  # what the data decide is as sharp as before


def ones(count: int, of: int) -> torch.Tensor:
    return (torch.arange(of) < count).double()[:, None]


def woolf(*counts: int, confidence: float) -> float:
    """Half of Student's interval for a difference of log-odds, from the numbers of observations in its cells (Woolf, 1955)."""
    square, fourth = sum(1 / n for n in counts), sum(1 / n**3 for n in counts)
    return float(stats.t.ppf((1 + confidence) / 2, 2 * square**2 / fourth)) * math.sqrt(square)


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_the_interval_of_a_share_is_that_of_log_odds(confidence):
    base, data = ones(30, 200), ones(12, 20)
    (given,) = match_moments(["a"], base, wanted={"a": 0.6}, confidence=confidence).weights
    assert given.value == pytest.approx(math.log(0.6 / 0.4) - math.log(30 / 170))
    assert (
        given.high - given.value
        == pytest.approx(given.value - given.low)
        == pytest.approx(woolf(30, 170, confidence=confidence))
    )
    (seen,) = match_moments(["a"], base, data, prior=0.0, confidence=confidence).weights
    assert seen.value == pytest.approx(given.value)
    assert seen.high - seen.value == pytest.approx(woolf(30, 170, 12, 8, confidence=confidence))
    assert (given.confidence, given.n, given.unit) == (confidence, 200, "")
    assert given.method == "Newton on 200 base draws, infinitesimal jackknife"
    assert seen.method == "Newton on 200 base draws and 20 data, infinitesimal jackknife"


def test_the_prior_and_the_ridge_enter_the_error_as_observations():
    """The draws' part is the derivative by their counts; half an observation joins the data, and one of the weight."""
    base, data, prior, ridge = ones(30, 200), ones(12, 20), 0.5, 0.8

    def fit(log_weight: torch.Tensor):
        return match_moments(["a"], base, data, log_weight=log_weight, prior=prior, ridge=ridge, confidence=0.9)

    even = torch.zeros(200, dtype=torch.float64)
    actual = fit(even)

    def derivative(row: int) -> float:
        ends = [even.index_fill(0, torch.tensor([row]), math.log(1 + step)) for step in (1e-4, -1e-4)]
        return (float(fit(ends[0]).tensor()) - float(fit(ends[1]).tensor())) / 2e-4

    drawn = [derivative(0)] * 30 + [derivative(199)] * 170
    (model,), (wanted,) = actual.moments_model, actual.moments_wanted
    assert wanted == pytest.approx((12 + 0.5 * 0.15) / 20.5)
    inverse = 1 / (model * (1 - model) + 1 / (ridge**2 * 20))
    seen = [(item - wanted) / 20.5 * inverse for item in [1.0] * 12 + [0.0] * 8]
    joined = [math.sqrt(prior / 200) * (item - wanted) / 20.5 * inverse for item in [1.0] * 30 + [0.0] * 170]
    known = math.sqrt(1 / (ridge**2 * 20) / 20) * inverse
    square = sum(item**2 for item in drawn + seen + joined) + known**2
    degrees = 2 * square**2 / sum(item**4 for item in drawn + seen + joined)
    half = float(stats.t.ppf(0.95, degrees)) * math.sqrt(square)
    assert actual.weights[0].high - actual.weights[0].value == pytest.approx(half, rel=1e-5)
