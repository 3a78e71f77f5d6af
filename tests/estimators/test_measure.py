"""One answer by every method: the interval, the paper's bounds, the guarantee, and whose weights deserve belief."""

import math
from dataclasses import replace

import pytest
import torch
from random_targets import PROMPTS, random_automaton, random_target, taste

from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts, prompts_of
from esscher.core.target import Tilted
from esscher.estimators import log_z as log_z_module
from esscher.estimators.log_z import betting_log_z, betting_mean_log_z, leave_one_out_bounds, log_z, log_z_std
from esscher.estimators.perplexity import (
    Measurement,
    bounded_cross_entropy,
    cross_entropy,
    cross_entropy_reduction,
    guaranteed_cross_entropy,
    measure,
    measure_with_draws,
    score_sequences,
    unit_counts,
)
from esscher.estimators.reliability import Reliability, reliability
from esscher.exact.enumeration import tabulate
from esscher.samplers.ancestral import draw
from esscher.samplers.importance import Importance
from esscher.samplers.particles import Particles

SPACE = Space(3, 4, eos=0)
TARGET = random_target(SPACE)
X = draw(TARGET.base, prompts_of(PROMPTS), 3, rng=SeededRng(1))[0]
TABLE = tabulate(TARGET, prompts_of(PROMPTS))
BOUNDS = (float(TABLE.log_weight.min()) - 0.1, float(TABLE.log_weight.max()) + 0.1)


def exact_nats() -> float:
    return float((-TARGET.log_score(X) + TABLE.log_z.repeat_interleave(3)).sum() / X.lengths.sum())


def test_one_call_is_all_of_its_parts():
    drawn = Importance()(TARGET, prompts_of(PROMPTS), 50, rng=SeededRng(2))
    actual = measure_with_draws(drawn, TARGET, X, bounds=BOUNDS)
    assert actual.base == cross_entropy(Tilted(TARGET.base), X)
    assert actual.tilted == cross_entropy(TARGET, X, draws=drawn)
    assert actual.reduction == cross_entropy_reduction(
        score_sequences(TARGET, X, drawn), unit_counts(X, None), test="sample", confidence=0.95
    )
    assert actual.log_z_std == log_z_std(drawn)
    ways = {(row["model"], row["method"]) for row in actual.perplexities()}
    expected = {("base", "interval"), ("tilted", "interval"), ("tilted", "bounds of the paper"), ("tilted", "guarantee")}
    assert ways == expected
    assert actual.perplexities()[0]["perplexity"].value == pytest.approx(math.exp(actual.base["token"].value))
    again = measure(TARGET, X, lambda *_, **__: drawn, 50, bounds=BOUNDS, rng=SeededRng(0))
    assert again.guaranteed == actual.guaranteed
    alone = measure_with_draws(Importance()(TARGET, empty_prompts(1), 50, rng=SeededRng(3)), TARGET, X.rows(slice(0, 3)))
    assert alone.log_z_std is None and alone.guaranteed is None and alone.bounds is not None
    runs = measure_with_draws(Particles()(TARGET, prompts_of(PROMPTS), 16, rng=SeededRng(4)), TARGET, X)
    assert runs.bounds is None and runs.log_z_std is None


def test_worst_prompts_come_first_and_are_counted():
    drawn = Importance()(TARGET, prompts_of(PROMPTS), 500, rng=SeededRng(2))
    log_weight = drawn.log_weight.clone()
    log_weight[2, 0], log_weight[1, :30] = 20.0, log_weight[1, :30] + 4
    actual = measure_with_draws(replace(drawn, log_weight=log_weight), TARGET, X)
    assert actual.worst(2)[0] == 2
    assert actual.reliability[2].max_share > 0.99 and actual.reliability[0].max_share < 0.1
    assert "unreliable" in actual.warnings[0] and "of 4 prompts" in actual.warnings[0]


# the paper's bounds


def test_bounds_are_those_of_log_z_and_their_middle_is_the_jackknife():
    drawn = Importance()(TARGET, prompts_of(PROMPTS), 40, rng=SeededRng(5))
    score, units = score_sequences(TARGET, X, drawn), {"token": X.lengths, "word": torch.ones(len(X), dtype=torch.long)}
    actual = bounded_cross_entropy(score, units)
    lower, upper = leave_one_out_bounds(drawn.log_weight)
    for name, count in units.items():
        ends = [float((score.nll + end.repeat_interleave(3)).sum() / count.sum()) for end in (lower, upper)]
        assert (actual[name].low, actual[name].high) == pytest.approx(tuple(ends))
        assert math.isnan(actual[name].confidence) and "no stated rate" in actual[name].method
    w, n = drawn.log_weight.exp(), 40
    left_out = ((w.sum(-1, keepdim=True) - w) / (n - 1)).log().mean(-1)
    jackknife = n * w.mean(-1).log() - (n - 1) * left_out
    middle = float((score.nll + jackknife.repeat_interleave(3)).sum() / X.lengths.sum())
    assert actual["token"].value == pytest.approx(middle)


# the guarantee over several prompts


def rare(contexts: int, n: int, seed: int) -> torch.Tensor:
    """Log weights 0, and 3 once in 50 draws: a normal interval from few draws is far too short above."""
    hit = torch.rand(contexts, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) < 0.02
    return torch.where(hit, 3.0, 0.0).double()


@pytest.mark.parametrize(("contexts", "n"), [(2, 30), (20, 16), (200, 4)])
def test_the_guarantee_for_a_mean_keeps_its_word(contexts, n):
    """100 replications at level 0.8, where more than 33 misses have probability 1e-3 even at that rate."""
    truth = math.log(1 + 0.02 * (math.exp(3) - 1))
    actual = [betting_mean_log_z(rare(contexts, n, seed), low=0.0, high=3.0, confidence=0.8) for seed in range(100)]
    assert sum(not item.covers(truth) for item in actual) <= 33


@pytest.mark.slow
def test_wrong_ways_to_the_mean_break_their_word(monkeypatch):
    """Upper bounds without the tangent (a mean of logs), or touching where the very draws say, are too low at few draws."""
    truth = math.log(1 + 0.02 * (math.exp(3) - 1))

    def misses() -> int:
        actual = [betting_mean_log_z(rare(400, 4, seed), low=0.0, high=3.0, confidence=0.8) for seed in range(60)]
        return sum(item.high < truth for item in actual)

    assert misses() <= 15  # at most 10 % are promised; 16 or more of 60 have probability 1e-4

    def mean_of_logs(log_weight, share, high, alpha):
        each = torch.logsumexp(log_weight, -1) - math.log(log_weight.shape[1])
        return high * (1 - log_z_module._least_mean(1 - each / high, alpha))

    monkeypatch.setattr(log_z_module, "_mean_from_above", mean_of_logs)
    assert misses() > 45


def test_unequal_prompts_and_weights():
    """Means far apart, one prompt counted three times: the promise is for the weighted mean."""
    shift = torch.tensor([-1.5, 0.0, 1.5], dtype=torch.float64)[:, None]
    weights = torch.tensor([1.0, 1.0, 3.0], dtype=torch.float64)
    noise = torch.randn(3, 2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).clamp(-1, 1) / 4
    actual = betting_mean_log_z(noise + shift, low=-2.0, high=2.0, weights=weights)
    exact = float((weights * ((noise + shift).exp().mean(-1).log())).sum() / 5)
    assert actual.covers(exact) and actual.high - actual.low < 0.5
    assert not actual.covers(float((noise + shift).exp().mean(-1).log().mean()))  # all prompts counted once


def test_one_prompt_is_the_plain_guarantee_and_all_are_narrower_than_a_promise_for_each():
    drawn = Importance()(TARGET, empty_prompts(1), 300, rng=SeededRng(6))
    (plain,) = betting_log_z(drawn, low=BOUNDS[0], high=BOUNDS[1])
    assert betting_mean_log_z(drawn.log_weight, low=BOUNDS[0], high=BOUNDS[1]) == plain
    log_weight = 0.7 * torch.randn(60, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64).clamp(-4, 4)
    mean = betting_mean_log_z(log_weight, low=-3.0, high=3.0)
    draws = Draws(empty_prompts(60 * 64), log_weight, torch.zeros_like(log_weight), True, True, 0)
    each = betting_log_z(draws, low=-3.0, high=3.0, confidence=1 - 0.05 / 60)
    union = sum(item.high - item.low for item in each) / 60
    assert mean.high - mean.low < union / 2


def test_the_guarantee_of_a_perplexity_covers():
    """40 replications; the promise is 95 %, and more than 8 misses have probability 1e-4."""
    misses = 0
    for seed in range(40):
        score = score_sequences(TARGET, X, Importance()(TARGET, prompts_of(PROMPTS), 60, rng=SeededRng(seed, "promise")))
        actual = guaranteed_cross_entropy(score, unit_counts(X, None), bounds=BOUNDS)["token"]
        misses += not actual.covers(exact_nats())
    assert misses <= 8


def test_refusals():
    few = torch.zeros(3, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="at least 2 independent draws of each prompt, not 1"):
        betting_mean_log_z(few, low=-1.0, high=1.0)
    with pytest.raises(ValueError, match=r"\[-1, 1\] is not a bound.*3 of them outside"):
        betting_mean_log_z(few + 2, low=-1.0, high=1.0)
    runs = score_sequences(TARGET, X, Particles()(TARGET, prompts_of(PROMPTS), 16, rng=SeededRng(4)))
    for way in (
        lambda: bounded_cross_entropy(runs, unit_counts(X, None)),
        lambda: guaranteed_cross_entropy(runs, {}, bounds=BOUNDS),
    ):
        with pytest.raises(ValueError, match="independent"):
            way()


# how log Z differs between prompts


def test_the_spread_of_log_z_covers_and_without_the_correction_it_does_not():
    """150 replications of 60 prompts with 12 draws each, at level 0.95; a rate of 0.88 or less has probability 1e-3.

    The interval is approximate: the skewness of a variance is only partly removed, so no more than that is asked for.
    """
    space = Space(3, 3)
    target = Tilted(random_automaton(space, states=30, seed=3), taste(space, seed=5))
    prompts = [[1 + (row >> bit) % 2 for bit in range(8)] for row in range(256)]
    exact = tabulate(target, prompts_of(prompts)).log_z
    truth, hits, plain = float(exact.std(correction=0)), 0, 0
    for seed in range(150):
        rows = SeededRng(seed, "prompts").categorical(torch.zeros(1, 256), 60)[0].tolist()
        drawn = Importance()(target, prompts_of([prompts[row] for row in rows]), 12, rng=SeededRng(seed))
        actual = log_z_std(drawn)
        hits += actual.covers(truth)
        wrong = float(drawn.log_z().std())
        plain += actual.low + wrong - actual.value <= truth <= actual.high + wrong - actual.value
    assert hits > 0.88 * 150
    assert plain < 0.8 * 150


def test_equal_prompts_have_no_spread_of_their_own():
    drawn = Importance()(TARGET, empty_prompts(200), 30, rng=SeededRng(8))
    actual = log_z_std(drawn)
    assert actual.low == 0 and actual.value < 0.5 * float(drawn.log_z().std())
    with pytest.raises(ValueError, match="at least 2 independent draws"):
        log_z_std(Particles()(TARGET, prompts_of(PROMPTS), 16, rng=SeededRng(4)))


@pytest.mark.parametrize("test", ["sample", "fixed"])
def test_one_call_hands_on_what_it_was_told(test):
    """Units, rate, test and bounds reach every part; draws are asked for once after each different prompt."""
    asked = []

    def sampler(target, prompts, draws, *, rng):
        asked.append((target, prompts.prompt_keys(), draws, rng))
        return Importance()(target, prompts, draws, rng=rng)

    order, rng = torch.tensor([4, 0, 1, 9, 3]), SeededRng(5)
    x = X.rows(order)
    words = {"word": 2 * x.lengths}
    result = measure(TARGET, x, sampler, 20, units=words, bounds=BOUNDS, test=test, confidence=0.8, rng=rng)
    ((target, prompts, draws, given),) = asked
    assert target is TARGET and sorted(prompts) == [(), (1,), (1, 2)] and draws == 20 and given is rng
    score = score_sequences(TARGET, x, result.draws)
    assert result.base == cross_entropy(Tilted(TARGET.base), x, units=words, test=test, confidence=0.8)
    assert result.tilted == cross_entropy(TARGET, x, draws=result.draws, units=words, test=test, confidence=0.8)
    assert result.reduction == cross_entropy_reduction(score, words, test=test, confidence=0.8)
    assert result.bounds["word"].value == bounded_cross_entropy(score, words)["word"].value
    assert result.guaranteed == guaranteed_cross_entropy(score, words, bounds=BOUNDS, confidence=0.8)
    assert result.log_z == log_z(result.draws, prompts=test, confidence=0.8) and result.log_z_std == log_z_std(
        result.draws, confidence=0.8
    )
    expected = reliability(result.draws, energy=TARGET.energy, bounds=BOUNDS)
    assert [item.advice for item in result.reliability] == [item.advice for item in expected]


def test_a_base_needs_no_draws():
    result = measure(Tilted(TARGET.base), X, Importance(), 5, test="fixed", units={"word": X.lengths}, rng=SeededRng(0))
    assert result == Measurement(cross_entropy(Tilted(TARGET.base), X, test="fixed", units={"word": X.lengths}), texts=None)
    assert result.warnings == [] and result.worst(3) == []
    sampled = measure(Tilted(TARGET.base), X, Importance(), 5, confidence=0.8, rng=SeededRng(0))
    assert sampled.base == cross_entropy(Tilted(TARGET.base), X, confidence=0.8)


def judged(verdict: str, ess: float) -> Reliability:
    return Reliability(ess, 0.1, 0.0, 0.3, verdict, f"{verdict} {ess:g}.")


def test_the_worst_are_told_and_the_good_are_not():
    rows = [("good", 2.0), ("doubtful", 9.0), ("unreliable", 8.0), ("doubtful", 3.0), ("unreliable", 4.0)]
    drawn = Importance()(TARGET, X.prompts().rows(slice(0, 5)), 50, rng=SeededRng(0))
    measurement = Measurement({}, reliability=tuple(judged(*row) for row in rows), draws=drawn)
    assert measurement.worst(9) == [4, 2, 3, 1] and measurement.worst(2) == [4, 2]
    (warning,) = measurement.warnings
    assert "doubtful: 50 draws for each of 5 prompts, of which 40% are unreliable" in warning
    assert replace(measurement, reliability=measurement.reliability[:2]).warnings == []  # a mean over good and doubtful ones
    assert "doubtful 9." in replace(measurement, reliability=measurement.reliability[1:2]).warnings[0]
    assert replace(measurement, reliability=measurement.reliability[:1]).warnings == []


def test_a_small_test_set_is_told():
    few = measure(Tilted(TARGET.base), X.rows(slice(0, 3)), Importance(), 5, rng=SeededRng(0))
    assert few.warnings == ["3 test sequences are few: intervals for all text like it are wide, or absent. Measure on more."]
    one = measure(Tilted(TARGET.base), X.rows(slice(0, 1)), Importance(), 5, rng=SeededRng(0))
    assert one.base["token"].high == math.inf and one.base["token"].value > 0 and "says nothing of others" in one.warnings[0]


def test_rows_of_perplexities():
    nats = Estimate(math.log(8), 0.0, 3.0, 0.9, 5, "how", "nats per word")
    (row,) = Measurement({"word": nats}).perplexities()
    assert (row["model"], row["per"], row["method"]) == ("base", "word", "interval")
    assert (row["perplexity"].value, row["bits"].value) == (pytest.approx(8), pytest.approx(3))
    assert (row["perplexity"].unit, row["bits"].unit) == ("per word", "bits per word")


def test_a_surer_guarantee_is_a_wider_one():
    score = score_sequences(TARGET, X, Importance()(TARGET, prompts_of(PROMPTS), 50, rng=SeededRng(2)))
    half, most = (
        guaranteed_cross_entropy(score, unit_counts(X, None), bounds=BOUNDS, confidence=confidence)["token"]
        for confidence in (0.5, 0.99)
    )
    whole = betting_mean_log_z(score.drawn, low=BOUNDS[0], high=BOUNDS[1], confidence=0.5)
    nats = [float((score.nll.sum() + len(X) * end) / X.lengths.sum()) for end in (whole.low, whole.high)]
    assert (half.low, half.high) == pytest.approx(nats) and most.low < half.low < half.high < most.high
