"""log Z: intervals, the residual paper's bounds, the guarantee; and which replicate is the right one."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from random_targets import PROMPTS, random_target

from esscher.core.draws import Draws
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of
from esscher.core.target import Tilted
from esscher.estimators.expectations import bias_of_log_mean, per_prompt
from esscher.estimators.intervals import interval, log_mean
from esscher.estimators.log_z import (
    LARGEST_STAKE,
    _log_capital,
    _stakes,
    betting_log_z,
    leave_one_out_bounds,
    log_z,
    log_z_bounds,
    log_z_std,
)
from esscher.samplers.importance import Exhaustive, Importance
from esscher.samplers.particles import Particles
from esscher.samplers.sir import SIR
from esscher.testing import assert_covers

SPACE = Space(3, 4, eos=0)
TARGET = random_target(SPACE)
EXACT = float(Exhaustive()(TARGET, empty_prompts(1), 0, rng=SeededRng(0)).log_z()[0])


def weighted(log_weight, **changes) -> Draws:
    """Draws with given weights [P, N] after empty prompts."""
    log_weight = torch.as_tensor(log_weight, dtype=torch.float64)
    count = log_weight.numel()
    draws = Draws(empty_prompts(count), log_weight, torch.zeros_like(log_weight), True, True, count)
    return replace(draws, **changes)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# values


def test_exhaustive_runs_are_exact_with_no_error():
    runs = Exhaustive()(TARGET, empty_prompts(3), 0, rng=SeededRng(0))
    estimate = log_z(runs)
    assert estimate.value == pytest.approx(EXACT)
    assert estimate.high - estimate.low < 1e-12


def test_the_log_of_the_mean_not_the_mean_of_logs():
    log_weight = 2 * normal(0, 4, 500)
    estimate = log_z(weighted(log_weight))
    assert estimate.value == pytest.approx(float(log_weight.exp().mean().log()))
    assert not estimate.covers(float(log_weight.mean()))  # the wrong version


@pytest.mark.parametrize("prompts", ["fixed", "sample"])
def test_mean_over_prompts_is_nearly_unbiased_and_the_plain_mean_of_logs_is_not(prompts):
    """4000 prompts of 16 draws, log-normal weights: the standard error is 0.004, so 5 errors are 0.02."""
    draws = weighted(normal(1, 4000, 16))
    corrected = log_z(draws, prompts=prompts)
    plain = float(draws.log_z().mean())
    assert abs(corrected.value - 0.5) < 0.02
    assert abs(plain - 0.5) > 0.03
    assert "bias corrected" in corrected.method


def test_correction_agrees_with_leaving_one_out_and_stays_bounded():
    log_weight = 0.3 * normal(2, 5, 400)
    lower, upper = leave_one_out_bounds(log_weight)
    assert torch.allclose(-bias_of_log_mean(log_weight), (upper - lower) / 2, rtol=0.05)
    one_draw_rules = torch.tensor([[40.0, 0, 0, 0, 0, 0, 0, 0]])
    assert float(-bias_of_log_mean(one_draw_rules)) == pytest.approx(0.5)
    lower, upper = leave_one_out_bounds(one_draw_rules)
    assert float(upper - lower) > 30  # leaving it out runs away


# the residual paper's bounds


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 400.0])
def test_bounds_equal_their_definition(scale):
    log_weight = scale * normal(3, 2, 7)
    n = log_weight.shape[1]
    lower, upper = leave_one_out_bounds(log_weight)
    t_n = torch.logsumexp(log_weight, -1) - math.log(n)
    out = [torch.cat([log_weight[:, :j], log_weight[:, j + 1 :]], 1) for j in range(n)]
    t_less = torch.stack([torch.logsumexp(part, -1) - math.log(n - 1) for part in out])
    expected = (2 * n - 1) * t_n - 2 * (n - 1) * t_less.mean(0)
    assert torch.allclose(lower, t_n)
    assert torch.allclose(upper, expected, atol=1e-9)


def test_bounds_hold_log_z_between_them():
    draws = Importance()(TARGET, empty_prompts(2000), 20, rng=SeededRng(4))
    bounds = log_z_bounds(draws)
    assert bounds.lower.high < EXACT + 0.01
    assert bounds.lower.value < EXACT < bounds.upper.value
    assert bounds.lower.value == pytest.approx(float(draws.log_z().mean()))


def test_upper_bound_is_infinite_when_one_draw_has_all_the_weight():
    lower, upper = leave_one_out_bounds(torch.tensor([[0.0, -torch.inf, -torch.inf]]))
    assert float(lower) == pytest.approx(-math.log(3))
    assert float(upper) == math.inf


# replicates


def test_per_prompt_intervals_cover():
    """300 replications at level 0.95; fails by chance once in a thousand."""
    draws = Importance()(TARGET, empty_prompts(300), 300, rng=SeededRng(5))
    assert_covers(sum(log_z(item).covers(EXACT) for item in per_prompt(draws)), 300, 0.95)


def dependent_runs(replications: int, *, runs: int = 12, draws: int = 32):
    """Particle runs of a peaked target; every replication has `runs` of them."""
    peaked = Tilted(TARGET.base, lambda x: 2 * TARGET.energy(x))
    actual = Particles(lambda x: -2 * TARGET.energy(x), threshold=1.1)(
        peaked, empty_prompts(replications * runs), draws, rng=SeededRng(6)
    )
    exact = float(Exhaustive()(peaked, empty_prompts(1), 0, rng=SeededRng(0)).log_z()[0])
    for first in range(0, replications * runs, runs):
        rows, points = slice(first, first + runs), slice(first * draws, (first + runs) * draws)
        yield (
            exact,
            replace(actual, x=actual.x.rows(points), log_weight=actual.log_weight[rows], log_base=actual.log_base[rows]),
        )


def test_runs_are_the_replicates_of_particles_and_particles_are_not():
    """200 replications; false-alarm rate 1e-3. Taking particles for independent draws covers far too rarely."""
    replications = list(dependent_runs(200))
    assert_covers(sum(log_z(draws).covers(exact) for exact, draws in replications), 200, 0.95)
    wrong = sum(log_z(replace(draws, independent=True)).covers(exact) for exact, draws in replications)
    with pytest.raises(AssertionError, match="stated rate"):
        assert_covers(wrong, 200, 0.95)


def test_different_prompts_are_averaged_or_refused():
    prompts = prompts_of([PROMPTS[row % 4] for row in range(40)])
    draws = Importance()(TARGET, prompts, 100, rng=SeededRng(7))
    exact = float(Exhaustive()(TARGET, prompts_of(PROMPTS), 0, rng=SeededRng(0)).log_z().mean())
    sample, fixed = log_z(draws, prompts="sample"), log_z(draws, prompts="fixed")
    assert sample.covers(exact) and fixed.covers(exact)
    assert fixed.high - fixed.low < sample.high - sample.low  # what differs between prompts is no error here
    with pytest.raises(ValueError, match="4 different prompts"):
        log_z(draws)
    with pytest.raises((ValueError, TypeError), match=r"same.*fixed.*sample"):
        log_z(draws, prompts="each")


def test_impossible_intervals_are_refused():
    particles = Particles()(TARGET, empty_prompts(1), 8, rng=SeededRng(8))
    with pytest.raises(ValueError, match="depend on each other"):
        log_z(particles)
    with pytest.raises(ValueError, match="depend on each other"):
        log_z(Particles()(TARGET, prompts_of(PROMPTS), 8, rng=SeededRng(8)), prompts="fixed")
    with pytest.raises(ValueError, match="independent"):
        log_z_bounds(particles)
    with pytest.raises(ValueError, match="carry no estimate of log Z"):
        log_z(SIR(4, shared=False)(TARGET, empty_prompts(1), 8, rng=SeededRng(8)))
    with pytest.raises(ValueError, match="at least 2 independent replicates and has 1"):
        log_z(weighted([[0.5]]))
    with pytest.raises(ValueError, match="Leave-one-out needs at least 2 independent draws of each prompt, not 1"):
        log_z_bounds(weighted([[0.5]]))


# weights at the edge


def test_equal_weights_say_nothing_of_what_was_not_drawn():
    draws = weighted(torch.full((1, 1000), -3.0))
    unknown, bounded = log_z(draws), log_z(draws, bounds=(-3.0, 1.0))
    assert unknown.value == -3.0 and unknown.high == math.inf and -3.01 < unknown.low < -3.0
    assert "unbounded" in unknown.method and "unbounded" in str(unknown)
    (guaranteed,) = betting_log_z(draws, low=-3.0, high=1.0)
    assert (bounded.low, bounded.high) == (guaranteed.low, guaranteed.high) and -2.9 < bounded.high < 1.0
    constant = log_z(draws, bounds=(-3.0, -3.0))
    assert (constant.value, constant.low, constant.high) == (-3.0, -3.0, -3.0)


def test_three_more_draws_like_the_largest_are_inside():
    log_weight = torch.randn(1, 300, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    actual = log_z(weighted(log_weight))
    top = log_weight.max()
    more = torch.logsumexp(torch.cat([log_weight, top.view(1, 1).expand(1, 3)], 1), -1) - math.log(303)
    assert float(more) < actual.high
    plain = interval(
        lambda count: log_mean(count[0], log_weight[0]), [(1, 300)], confidence=0.95, n=300, method="", scale="log mean"
    )
    assert actual.high - plain.high == pytest.approx(float(more) - actual.value)
    assert actual.low == pytest.approx(plain.low)


def test_forbidden_draws_count_as_zero():
    estimate = log_z(weighted([[0.0, -math.inf, 0.0, -math.inf] * 50]))
    assert estimate.value == pytest.approx(math.log(0.5))
    assert 0.4 < math.exp(estimate.low) < 0.5 < math.exp(estimate.high) < 0.6


def test_no_weight_at_all_is_an_error():
    with pytest.raises(ValueError, match="1 of 2 prompts have no draw with any weight among 3"):
        log_z(weighted([[-math.inf] * 3, [0.0] * 3]))


def test_one_dominant_weight_gives_a_finite_interval():
    estimate = log_z(weighted([[300.0, *[0.0] * 99]]))
    assert estimate.low == pytest.approx(estimate.value + math.log(0.025))  # Markov's inequality
    assert math.isfinite(estimate.high)


# the guarantee


def test_guarantee_covers_at_small_numbers_of_draws_where_the_interval_is_unbounded():
    """Rare large weights, 20 draws: most samples hold none of them, and only the guarantee knows how large they may be."""
    large = torch.rand(150, 20, generator=torch.Generator().manual_seed(9)) < 0.02
    draws = weighted(torch.where(large, 3.0, 0.0))
    exact = math.log(0.98 + 0.02 * math.exp(3))
    promised = sum(e.covers(exact) for e in betting_log_z(draws, low=0.0, high=3.0))
    intervals = [log_z(item) for item in per_prompt(draws)]
    assert promised >= 0.95 * 150
    assert sum(item.high == math.inf for item in intervals) > 0.5 * 150
    assert sum(item.covers(exact) for item in intervals) >= 0.95 * 150
    assert sum(log_z(item, bounds=(0.0, 3.0)).covers(exact) for item in per_prompt(draws)) >= 0.95 * 150


@pytest.mark.parametrize("mean", [0.1, 0.5, 0.8])
def test_the_bet_on_the_true_mean_is_fair_over_every_outcome(mean):
    """No statistics: over all 2^8 outcomes the expected capital is 1. A stake that has seen its draw is not fair."""
    expected, peeking = 0.0, 0.0
    for outcome in itertools.product([0.0, 1.0], repeat=8):
        y = torch.tensor(outcome, dtype=torch.float64)
        probability = float(torch.where(y > 0, mean, 1 - mean).prod())
        stake = _stakes(y, 0.2).clamp(max=LARGEST_STAKE / mean)
        expected += probability * math.exp(_log_capital(y - mean, stake))
        peeking += probability * math.exp(_log_capital(y - mean, stake.roll(-1)))
    assert expected == pytest.approx(1)
    assert peeking != pytest.approx(1, abs=1e-3)


def test_guarantee_narrows_and_is_not_empty():
    width = []
    for n in (100, 10_000):
        (estimate,) = betting_log_z(weighted(0.5 * normal(10, 1, n).clamp(-3, 3)), low=-1.5, high=1.5)
        assert estimate.covers(0.125)
        width.append(estimate.high - estimate.low)
    assert width[1] < 0.15 * width[0]


def test_guarantee_with_forbidden_points():
    (estimate,) = betting_log_z(weighted([[0.0, -math.inf] * 100]), low=-math.inf, high=0.0)
    assert estimate.value == pytest.approx(math.log(0.5))
    assert 0.35 < math.exp(estimate.low) < math.exp(estimate.high) < 0.65


def test_a_bound_that_is_not_a_bound():
    with pytest.raises(ValueError, match=r"\[-1, 1\] is not a bound: the log weights go from -3 to 0.5, 1 of them"):
        betting_log_z(weighted([[0.5, -3.0]]), low=-1, high=1)
    with pytest.raises(ValueError, match="independent draws"):
        betting_log_z(weighted([[0.5, -3.0]], independent=False), low=-9, high=9)


def test_per_prompt_keeps_rows_together():
    draws = Importance()(TARGET, prompts_of(PROMPTS), 5, rng=SeededRng(11))
    parts = per_prompt(draws)
    assert [part.x.points() for part in parts] == [draws.x.rows(slice(5 * p, 5 * p + 5)).points() for p in range(4)]
    assert isinstance(parts[0].x, Sequences) and parts[2].log_weight.shape == (1, 5)


def test_the_spread_of_log_z_by_its_definition():
    """The variance over prompts of each log Z without its bias, less the mean variance that its own draws give it."""
    log_weight = torch.stack([scale * normal(12, 6) + 3 * shift for scale, shift in ((0.1, 0.0), (2.0, 1.0), (1.0, 3.0))])
    share = log_weight.softmax(-1)
    noise = (share.square().sum(-1) - 1 / 6) * 6 / 5  # squared relative error of the mean weight
    each = log_weight.logsumexp(-1) - math.log(6) + noise / 2
    assert log_z_std(weighted(log_weight)).value == pytest.approx(math.sqrt(float(each.var() - noise.mean())))
    two = torch.tensor([[0.0, 1.0]])
    assert float(bias_of_log_mean(two)) == pytest.approx(-float(two.softmax(-1).square().sum() - 0.5))
