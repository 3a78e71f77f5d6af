"""The ends of a guarantee are where a gambler's capital, multiplied draw by draw, reaches what rules a mean out."""

import math

import pytest
import torch

from esscher.core.draws import Draws
from esscher.core.space import sequences
from esscher.estimators.log_z import betting_log_z, betting_mean_log_z

LOG_WEIGHTS = [0.3, -0.9, 0.8, -0.2, 0.1, -0.6, 0.5, 0.0, -0.4, 0.7, 0.2, -0.1]


def weighted(log_weight: list[list[float]], *, independent: bool = True) -> Draws:
    weight = torch.tensor(log_weight, dtype=torch.float64)
    return Draws(sequences([[1]] * weight.numel()), weight, torch.zeros_like(weight), True, independent, weight.numel())


def log_capital(y: list[float], m: float, limit: float) -> float:
    """Of a gambler who bets that y exceeds m, by the mean and the variance of what was drawn before."""
    total, squares, variance, log = 0.5, 0.25, 0.25, 0.0
    for seen, now in enumerate(y, 1):
        stake = min(math.sqrt(2 * limit / (len(y) * variance)), 0.75 / m)
        log += math.log(1 + stake * (now - m))
        total += now
        squares += (now - total / (seen + 1)) ** 2
        variance = squares / (seen + 1)
    return log


def shared_capital(y: list[float], m: float, alpha: float) -> float:
    """Of one who divides his capital among 8 stakes, and keeps to each."""
    first = min(0.5, math.sqrt(2 * math.log(1 / alpha) / len(y)) / 4)
    stakes = [first * (0.95 / first) ** (place / 7) for place in range(8)]
    return sum(math.prod(1 - stake + stake * now / m for now in y) for stake in stakes) / 8


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-3.0, 0.9)])
@pytest.mark.parametrize("confidence", [0.5, 0.8])
def test_both_ends_are_where_the_capital_reaches_its_limit(low, high, confidence):
    (actual,) = betting_log_z(weighted([LOG_WEIGHTS]), low=low, high=high, confidence=confidence)
    limit = math.log(2 / (1 - confidence))

    def within(log_weight: float) -> float:
        return (math.exp(log_weight) - math.exp(low)) / (math.exp(high) - math.exp(low))

    y = [within(item) for item in LOG_WEIGHTS]
    assert within(actual.value) == pytest.approx(sum(y) / 12)
    assert low < actual.low < actual.value < actual.high < high
    assert log_capital(y, within(actual.low), limit) == pytest.approx(limit, abs=1e-9)
    assert log_capital([1 - item for item in y], 1 - within(actual.high), limit) == pytest.approx(limit, abs=1e-9)
    assert (actual.confidence, actual.n, actual.unit) == (confidence, 12, "nats")
    assert f"exact at 12 draws, for log weights in [{low:.4g}, {high:.4g}]" in actual.method


def test_each_prompt_has_its_own():
    rows = [LOG_WEIGHTS, [item - 0.1 for item in LOG_WEIGHTS]]
    both = betting_log_z(weighted(rows), low=-1, high=1)
    assert both == [betting_log_z(weighted([row]), low=-1, high=1, confidence=0.95)[0] for row in rows]


def test_a_weight_may_be_none_at_all():
    """With one such draw of two and more nothing is ruled out from below."""
    (actual,) = betting_log_z(weighted([[-math.inf, -math.inf, -1.0, -math.inf]]), low=-math.inf, high=0.0)
    (nearly,) = betting_log_z(weighted([[-60.0, -60.0, -1.0, -60.0]]), low=-60.0, high=0.0)
    assert actual.value == pytest.approx(-1 - math.log(4)) and actual.high == pytest.approx(nearly.high, abs=1e-9)
    assert (actual.low, nearly.low) == (-math.inf, -60.0)


@pytest.mark.parametrize("weights", [None, [1.0, 3.0]])
def test_the_mean_over_prompts_from_below_and_above(weights):
    """Two prompts of 16 draws: two blocks of 8 below; above, tangents where the first 8 draws say."""
    log_weight = torch.tensor([[*LOG_WEIGHTS, 0.4, -0.3, 0.6, -0.8], [item / 2 - 0.3 for item in (*LOG_WEIGHTS, 1, -1, 0, 0)]])
    log_weight, low, high, confidence = log_weight.double(), -1.0, 1.0, 0.8
    actual = betting_mean_log_z(
        log_weight,
        low=low,
        high=high,
        weights=None if weights is None else torch.tensor(weights).double(),
        confidence=confidence,
    )
    share = [0.5, 0.5] if weights is None else [0.25, 0.75]
    largest, alpha = 2 * max(share), (1 - confidence) / 2

    halves = [[row[:8], row[8:]] for row in log_weight.tolist()]
    mean = [[math.log(sum(map(math.exp, half)) / 8) for half in row] for row in halves]
    below = [(2 * s * (item + 1)) / (2 * largest) for s, row in zip(share, mean, strict=True) for item in row]
    least = (actual.low + 1) / (2 * largest)
    assert shared_capital(below, least, alpha) == pytest.approx(1 / alpha, rel=1e-6)

    scale = [2 * s / math.exp(row[0]) for s, row in zip(share, mean, strict=True)]
    most = max(scale) * math.exp(high)
    above = [1 - k * math.exp(item) / most for k, row in zip(scale, halves, strict=True) for item in row[1]]
    end = 1 - (actual.high - sum(s * row[0] for s, row in zip(share, mean, strict=True)) + 1) / most
    assert shared_capital(above, end, alpha) == pytest.approx(1 / alpha, rel=1e-6)

    whole = [math.log(sum(map(math.exp, row)) / 16) for row in log_weight.tolist()]
    assert actual.low < actual.value < actual.high
    assert actual.value == pytest.approx(sum(s * item for s, item in zip(share, whole, strict=True)), abs=0.03)  # less its bias
    assert (actual.confidence, actual.n, actual.unit) == (confidence, 32, "nats")
    assert "mean over 2 fixed prompts, exact at 16 draws each, for log weights in [-1, 1]" in actual.method


def test_the_mean_over_one_prompt_is_that_prompt():
    draws = weighted([LOG_WEIGHTS])
    (alone,) = betting_log_z(draws, low=-1, high=1, confidence=0.9)
    assert betting_mean_log_z(draws.log_weight, low=-1, high=1, confidence=0.9) == alone


def test_where_nothing_can_be_said_the_end_is_the_bound():
    two = torch.tensor([[-0.5, -1.0], [-0.2, -0.4]]).double()
    actual = betting_mean_log_z(two, low=-2.0, high=0.0)
    assert -2 <= actual.low < actual.value < actual.high == 0.0
    assert betting_mean_log_z(two, low=-math.inf, high=0.0).low == -math.inf
    forbidden = torch.tensor([[-math.inf, -1.0], [-0.2, -0.4]]).double()
    assert betting_mean_log_z(forbidden, low=-math.inf, high=0.0).high == 0.0


@pytest.mark.parametrize(("low", "high", "beyond"), [(-1.0, 0.5, 1e-5), (-1.0, 50.0, 5e-4)])
def test_bounds_hold_but_for_rounding(low, high, beyond):
    """A relative 1e-5 of the upper bound, or an absolute one where it is below 1."""
    for inside in (low - 0.9 * beyond, high + 0.9 * beyond):
        betting_log_z(weighted([[inside, 0.0]]), low=low, high=high)
    for outside in (low - 1.1 * beyond, high + 1.1 * beyond):
        with pytest.raises(ValueError, match="1 of them outside"):
            betting_log_z(weighted([[outside, 0.0]]), low=low, high=high)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: betting_log_z(weighted([[0.0, 0.0]], independent=False), low=-1, high=1), "depend on each other"),
        (lambda: betting_log_z(weighted([[0.5, 0.5]]), low=0.5, high=0.5), "is not a bound"),
        (lambda: betting_log_z(weighted([[-math.inf]]), low=-math.inf, high=0.5), "no draw with any weight"),
        (
            lambda: betting_mean_log_z(torch.zeros(2, 1).double(), low=-1, high=1),
            "at least 2 independent draws of each prompt, not 1",
        ),
        (lambda: betting_mean_log_z(torch.full((2, 2), 2.0).double(), low=-1, high=1), "4 of them outside"),
    ],
)
def test_what_cannot_be_promised_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
