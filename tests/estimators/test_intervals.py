"""The interval engine against classical formulas, on data where they are known."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.estimators.intervals import combined, interval, log_mean, ratio
from esscher.testing import assert_covers
from esscher.testing.interval_laws import TEXT_LAWS


def mean_of(values):
    return lambda count: (count * values).sum() / count.sum()


def found(values, confidence=0.95):
    return interval(mean_of(values), [values.shape], confidence=confidence, n=values.numel(), method="mean")


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_symmetric_data_give_the_students_interval():
    half = normal(0, 1, 50)
    values = torch.cat([half, -half], 1)  # skewness 0; light tails, so the degrees are those of the sample size
    values = values.clamp(-1.5, 1.5) + 3
    expected = stats.t.interval(0.95, 99, float(values.mean()), float(values.std() / 10))
    estimate = found(values)
    assert (estimate.low, estimate.high) == pytest.approx(expected)


def test_skewed_data_move_both_ends_towards_the_tail():
    values = (1.5 * normal(1, 1, 400)).exp()
    estimate = found(values)
    assert estimate.high - estimate.value > 1.3 * (estimate.value - estimate.low)
    mirrored = found(-values)
    assert (mirrored.low, mirrored.high) == pytest.approx((-estimate.high, -estimate.low))


def test_the_interval_of_the_log_of_a_mean_is_the_log_of_that_of_the_mean():
    log_weight = normal(2, 1, 100)
    of_log = interval(
        lambda count: log_mean(count, log_weight)[0], [(1, 100)], confidence=0.9, n=100, method="", scale="log mean"
    )
    of_mean = found(log_weight.exp(), confidence=0.9)
    assert (of_log.low, of_log.high) == pytest.approx((math.log(of_mean.low), math.log(of_mean.high)))


def test_independent_sources_and_strata_add_their_variances():
    first, second = normal(3, 1, 4000), 2 * normal(4, 1, 1000)
    both = interval(
        lambda a, b: mean_of(first)(a) + mean_of(second)(b), [first.shape, second.shape], confidence=0.95, n=5000, method=""
    )
    width = 1.96 * math.hypot(float(first.std()) / math.sqrt(4000), float(second.std()) / math.sqrt(1000))
    assert (both.high - both.low) / 2 == pytest.approx(width, rel=0.01)
    shifted = normal(5, 20, 50) + torch.arange(20.0, dtype=torch.float64)[:, None]  # strata far apart
    strata = interval(lambda count: (count * shifted).mean(), [(20, 50)], confidence=0.95, n=1000, method="")
    assert (strata.high - strata.low) / 2 == pytest.approx(1.96 / math.sqrt(1000), rel=0.1)


def test_few_sequences_are_not_hidden_behind_many_draws():
    few, many = normal(6, 1, 5), 1e-3 * normal(7, 1, 100_000)
    both = interval(lambda a, b: mean_of(few)(a) + mean_of(many)(b), [few.shape, many.shape], confidence=0.95, n=1, method="")
    alone = found(few)
    assert both.high - both.low == pytest.approx(alone.high - alone.low, rel=1e-3)


def test_a_quantity_above_0_has_an_interval_above_0():
    values = normal(9, 1, 3).exp()
    plain = found(values)
    positive = interval(mean_of(values), [values.shape], confidence=0.95, n=3, method="", scale="positive")
    assert plain.low < 0 < positive.low < positive.value < positive.high
    assert positive.value**2 == pytest.approx(positive.low * positive.high)


def test_what_was_not_drawn_and_the_range_move_the_ends():
    values = normal(10, 1, 50)
    plain = found(values)
    moved = interval(mean_of(values), [values.shape], confidence=0.95, n=50, method="", unseen=(0.1, 0.2), limits=(-9, 0.3))
    assert moved.low == pytest.approx(plain.low - 0.1) and moved.high == min(0.3, plain.high + 0.2)
    reached = interval(mean_of(values), [values.shape], confidence=0.95, n=50, method="", reach=(-3.0, 4.0))
    assert (reached.low, reached.high) == (-3.0, 4.0)


def test_a_text_that_is_nearly_all_of_the_test_set_is_one_replicate():
    """Two texts, of which one has nearly all tokens: the degrees of freedom are those of one, so the interval is huge; equal
    texts have Student's interval."""
    nats, size = torch.tensor([20.0, 2.5], dtype=torch.float64), torch.tensor([10.0, 1e-6], dtype=torch.float64)

    def over(size):
        return interval(ratio(nats, size), [(1, 2)], confidence=0.95, n=2, method="", leverage=size)

    assert over(size).high - over(size).low > 1000
    even = over(torch.ones(2, dtype=torch.float64))
    assert (even.low, even.high) == pytest.approx(stats.t.interval(0.95, 1, 11.25, 8.75))
    whole = over(torch.tensor([10.0, 0.0], dtype=torch.float64))
    assert (whole.low, whole.high) == (-math.inf, math.inf)


def test_parts_add_by_pythagoras():
    first, second = Estimate(1.0, 0.0, 4.0, 0.9, 5, "a"), Estimate(2.0, -2.0, 2.5, 0.9, 7, "b")
    total = combined(3.0, [(1.0, first), (2.0, second)], n=12, method="both")
    assert (total.low, total.high) == pytest.approx((3 - math.sqrt(1 + 64), 3 + math.sqrt(9 + 1)))
    lowered = combined(-1.0, [(1.0, first), (-1.0, second)], n=12, method="both", limits=(-2.0, 9.0))
    assert (lowered.low, lowered.high) == pytest.approx((-2.0, -1 + math.sqrt(9 + 16)))
    # two texts on the log scale may reach beyond the root of the largest number
    wide = Estimate(1.0, 0.0, 1e200, 0.9, 2, "a")
    far = combined(1.0, [(1.0, wide), (2.0, first)], n=2, method="both", limits=(0.0, math.inf))
    assert (far.low, far.high) == (0.0, 1e200)


@pytest.mark.parametrize("law", ["equal", "geometric", "topics"])
@pytest.mark.parametrize("texts", [2, 5, 20])
def test_few_texts_are_covered_and_the_textbook_ratio_is_not(law, texts):
    """Nats per token: the rate 95 % is allowed to be 2 % off. The textbook's ratio with Student's quantile, on the scale of the
    ratio, covers too seldom for lengths that vary."""
    rng, replications = np.random.default_rng(4), 250
    length, nats = TEXT_LAWS[law].draw(rng, (replications, texts))
    hits = sum(
        interval(
            ratio(y, x), [(1, texts)], confidence=0.95, n=texts, method="", leverage=x, scale="positive"
        ).covers(TEXT_LAWS[law].rate)
        for x, y in zip(torch.from_numpy(length), torch.from_numpy(nats), strict=True)
    )  # fmt: skip
    assert 0.92 * replications - 3.1 * math.sqrt(replications * 0.05 * 0.95) <= hits <= replications * 0.995
    if (law, texts) == ("geometric", 5):
        replications = 4000
        length, nats = TEXT_LAWS[law].draw(rng, (replications, texts))
        rate = nats.sum(1) / length.sum(1)
        rest = nats - rate[:, None] * length
        error = np.sqrt((rest**2).sum(1) * texts / (texts - 1)) / length.sum(1)
        textbook = int((abs(rate - 2.0) < stats.t.ppf(0.975, texts - 1) * error).sum())
        with pytest.raises(AssertionError, match="stated rate 95%"):
            assert_covers(textbook, replications, 0.95)


def test_no_spread_no_width():
    estimate = found(torch.full((1, 9), 2.5, dtype=torch.float64))
    assert (estimate.value, estimate.low, estimate.high) == (2.5, 2.5, 2.5)
    constant = interval(lambda count: torch.tensor(4.0), [(1, 9)], confidence=0.95, n=9, method="")
    assert constant.low == constant.high == 4.0


def test_bad_input():
    with pytest.raises(ValueError, match="at least 2 independent replicates and has 1"):
        found(torch.ones(1, 1))
    with pytest.raises(ValueError, match="between 0 and 1, not 95"):
        found(torch.ones(1, 3), confidence=95)


def covered(ends, *, replications=1000):
    """How often `ends(values)` holds the mean of exp(normal 1.5), 200 values each."""
    values = (1.5 * normal(8, replications, 200)).exp()
    return sum(bool(low <= math.exp(1.125) <= high) for low, high in map(ends, values[:, None]))


def test_coverage_for_heavy_tails_and_the_naive_interval_that_fails():
    """False-alarm rate 1e-3 for an interval that covers at 95 %; the naive one covers at 90 %."""

    def ours(values):
        statistic = lambda count: log_mean(count, values.log())[0]  # noqa: E731
        estimate = interval(statistic, [(1, 200)], confidence=0.95, n=200, method="", scale="log mean")
        return math.exp(estimate.low), math.exp(estimate.high)

    def naive(values):
        return stats.t.interval(0.95, 199, float(values.mean()), float(values.std() / math.sqrt(200)))

    assert_covers(covered(ours), 1000, 0.95)
    with pytest.raises(AssertionError, match="stated rate 95%"):
        assert_covers(covered(naive), 1000, 0.95)


def test_repeatable():
    values = SeededRng(0).categorical(torch.zeros(1, 5), 30).double()
    assert found(values) == found(values)


@pytest.mark.parametrize("confidence", [0.8, 0.99])
@pytest.mark.parametrize("scale", [0.1, 1.5])
def test_the_ends_of_a_mean_are_halls_with_students_quantile(confidence, scale):
    """By the formulas of the module's docstring."""
    values = (scale * normal(9, 1, 30)).exp()
    mean, error = float(values.mean()), float(values.std()) / math.sqrt(30)
    d = (values[0] - mean) * math.sqrt(30 / 29) / 30 / error
    degrees = 1 / max((float(d.pow(4).sum()) - 1 / 30) / 2, 1 / 29)
    skewness, quantile = float(d.pow(3).sum()), stats.t.ppf((1 + confidence) / 2, degrees)

    def unskewed(x):
        return 3 / skewness * (math.cbrt(1 + skewness * (x - skewness / 6)) - 1)

    estimate = found(values, confidence=confidence)
    assert (estimate.low, estimate.high) == pytest.approx(
        (mean - error * unskewed(quantile), mean - error * unskewed(-quantile))
    )


def test_two_sources_share_their_degrees_by_satterthwaite():
    """Values of two kinds in equal numbers have no tails and no skewness: the variance of each source has n - 1 degrees."""
    first, second = torch.tensor([[0.0, 1.0] * 3]).double(), torch.tensor([[0.0, 3.0] * 5]).double()
    both = interval(lambda a, b: mean_of(first)(a) + mean_of(second)(b), [(1, 6), (1, 10)], confidence=0.9, n=16, method="")
    parts = [float(values.var()) / values.numel() for values in (first, second)]
    degrees = sum(parts) ** 2 / (parts[0] ** 2 / 5 + parts[1] ** 2 / 9)
    assert both.high - both.value == pytest.approx(stats.t.ppf(0.95, degrees) * math.sqrt(sum(parts)))
