"""One answer by every method: the interval, the paper's bounds, the guarantee, and whose weights deserve belief."""

import math
from dataclasses import replace

import pytest
import torch
from languages import PROMPTS, random_automaton, random_target, taste

from esscher.draws import Draws
from esscher.estimate import Estimate
from esscher.estimators import guarantee
from esscher.estimators.guarantee import guaranteed_log_z, guaranteed_mean_log_z
from esscher.estimators.log_z import log_z, log_z_spread, lower_and_upper
from esscher.estimators.measured import Measured, measure, measure_by
from esscher.estimators.perplexity import cross_entropy, saved_by_tilting, units_of
from esscher.estimators.perplexity_bounds import bounded_cross_entropy, guaranteed_cross_entropy
from esscher.estimators.reliability import Reliability, reliability
from esscher.estimators.scored import scored
from esscher.exact.table import tabulate
from esscher.randomness import Seeded
from esscher.samplers.ancestral import draw
from esscher.samplers.importance import Importance
from esscher.samplers.particles import Particles
from esscher.space import Space, empty_prompts, prompts_of
from esscher.target import Tilted

SPACE = Space(3, 4, eos=0)
TARGET = random_target(SPACE)
X = draw(TARGET.base, prompts_of(PROMPTS), 3, rng=Seeded(1))[0]
TABLE = tabulate(TARGET, prompts_of(PROMPTS))
BOUNDS = (float(TABLE.log_weight.min()) - 0.1, float(TABLE.log_weight.max()) + 0.1)


def exact_nats() -> float:
    return float((-TARGET.log_score(X) + TABLE.log_z.repeat_interleave(3)).sum() / X.lengths.sum())


def test_one_call_is_all_of_its_parts():
    drawn = Importance()(TARGET, prompts_of(PROMPTS), 50, rng=Seeded(2))
    found = measure_by(drawn, TARGET, X, bounds=BOUNDS)
    assert found.base == cross_entropy(Tilted(TARGET.base), X)
    assert found.tilted == cross_entropy(TARGET, X, draws=drawn)
    assert found.saved == saved_by_tilting(scored(TARGET, X, drawn), units_of(X, None), test="sample", level=0.95)
    assert found.spread == log_z_spread(drawn)
    ways = {(row["model"], row["method"]) for row in found.perplexities()}
    expected = {("base", "interval"), ("tilted", "interval"), ("tilted", "bounds of the paper"), ("tilted", "guarantee")}
    assert ways == expected
    assert found.perplexities()[0]["perplexity"].value == pytest.approx(math.exp(found.base["token"].value))
    again = measure(TARGET, X, lambda *_, **__: drawn, 50, bounds=BOUNDS, rng=Seeded(0))
    assert again.guaranteed == found.guaranteed
    alone = measure_by(Importance()(TARGET, empty_prompts(1), 50, rng=Seeded(3)), TARGET, X.rows(slice(0, 3)))
    assert alone.spread is None and alone.guaranteed is None and alone.bounds is not None
    runs = measure_by(Particles()(TARGET, prompts_of(PROMPTS), 16, rng=Seeded(4)), TARGET, X)
    assert runs.bounds is None and runs.spread is None


def test_worst_prompts_come_first_and_are_counted():
    drawn = Importance()(TARGET, prompts_of(PROMPTS), 500, rng=Seeded(2))
    log_weight = drawn.log_weight.clone()
    log_weight[2, 0], log_weight[1, :30] = 20.0, log_weight[1, :30] + 4
    found = measure_by(replace(drawn, log_weight=log_weight), TARGET, X)
    assert found.worst(2)[0] == 2
    assert found.reliability[2].largest > 0.99 and found.reliability[0].largest < 0.1
    assert "unreliable" in found.warnings[0] and "of 4 prompts" in found.warnings[0]


# the paper's bounds


def test_bounds_are_those_of_log_z_and_their_middle_is_the_jackknife():
    drawn = Importance()(TARGET, prompts_of(PROMPTS), 40, rng=Seeded(5))
    score, units = scored(TARGET, X, drawn), {"token": X.lengths, "word": torch.ones(len(X), dtype=torch.long)}
    found = bounded_cross_entropy(score, units)
    lower, upper = lower_and_upper(drawn.log_weight)
    for name, count in units.items():
        ends = [float((score.surprise + end.repeat_interleave(3)).sum() / count.sum()) for end in (lower, upper)]
        assert (found[name].low, found[name].high) == pytest.approx(tuple(ends))
        assert math.isnan(found[name].level) and "no stated rate" in found[name].method
    w, n = drawn.log_weight.exp(), 40
    left_out = ((w.sum(-1, keepdim=True) - w) / (n - 1)).log().mean(-1)
    jackknife = n * w.mean(-1).log() - (n - 1) * left_out
    middle = float((score.surprise + jackknife.repeat_interleave(3)).sum() / X.lengths.sum())
    assert found["token"].value == pytest.approx(middle)


# the guarantee over several prompts


def rare(contexts: int, n: int, seed: int) -> torch.Tensor:
    """Log weights 0, and 3 once in 50 draws: a normal interval from few draws is far too short above."""
    hit = torch.rand(contexts, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) < 0.02
    return torch.where(hit, 3.0, 0.0).double()


@pytest.mark.parametrize(("contexts", "n"), [(2, 30), (20, 16), (200, 4)])
def test_the_guarantee_for_a_mean_keeps_its_word(contexts, n):
    """100 replications at level 0.8, where more than 33 misses have probability 1e-3 even at that rate."""
    truth = math.log(1 + 0.02 * (math.exp(3) - 1))
    found = [guaranteed_mean_log_z(rare(contexts, n, seed), low=0.0, high=3.0, level=0.8) for seed in range(100)]
    assert sum(not one.covers(truth) for one in found) <= 33


def test_wrong_ways_to_the_mean_break_their_word(monkeypatch):
    """Upper bounds without the tangent (a mean of logs), or touching where the very draws say, are too low at few draws."""
    truth = math.log(1 + 0.02 * (math.exp(3) - 1))

    def misses() -> int:
        found = [guaranteed_mean_log_z(rare(400, 4, seed), low=0.0, high=3.0, level=0.8) for seed in range(60)]
        return sum(one.high < truth for one in found)

    assert misses() <= 15  # at most 10 % are promised; 16 or more of 60 have probability 1e-4

    def mean_of_logs(log_weight, share, high, alpha):
        each = torch.logsumexp(log_weight, -1) - math.log(log_weight.shape[1])
        return high * (1 - guarantee._least_mean(1 - each / high, alpha))

    monkeypatch.setattr(guarantee, "_mean_from_above", mean_of_logs)
    assert misses() > 45


def test_unequal_prompts_and_weights():
    """Means far apart, one prompt counted three times: the promise is for the weighted mean."""
    shift = torch.tensor([-1.5, 0.0, 1.5], dtype=torch.float64)[:, None]
    weights = torch.tensor([1.0, 1.0, 3.0], dtype=torch.float64)
    noise = torch.randn(3, 2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).clamp(-1, 1) / 4
    found = guaranteed_mean_log_z(noise + shift, low=-2.0, high=2.0, weights=weights)
    exact = float((weights * ((noise + shift).exp().mean(-1).log())).sum() / 5)
    assert found.covers(exact) and found.high - found.low < 0.5
    assert not found.covers(float((noise + shift).exp().mean(-1).log().mean()))  # all prompts counted once


def test_one_prompt_is_the_plain_guarantee_and_all_are_narrower_than_a_promise_for_each():
    drawn = Importance()(TARGET, empty_prompts(1), 300, rng=Seeded(6))
    (plain,) = guaranteed_log_z(drawn, low=BOUNDS[0], high=BOUNDS[1])
    assert guaranteed_mean_log_z(drawn.log_weight, low=BOUNDS[0], high=BOUNDS[1]) == plain
    log_weight = 0.7 * torch.randn(60, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64).clamp(-4, 4)
    mean = guaranteed_mean_log_z(log_weight, low=-3.0, high=3.0)
    draws = Draws(empty_prompts(60 * 64), log_weight, torch.zeros_like(log_weight), True, True, 0)
    each = guaranteed_log_z(draws, low=-3.0, high=3.0, level=1 - 0.05 / 60)
    union = sum(one.high - one.low for one in each) / 60
    assert mean.high - mean.low < union / 2


def test_the_guarantee_of_a_perplexity_covers():
    """40 replications; the promise is 95 %, and more than 8 misses have probability 1e-4."""
    misses = 0
    for seed in range(40):
        score = scored(TARGET, X, Importance()(TARGET, prompts_of(PROMPTS), 60, rng=Seeded(seed, "promise")))
        found = guaranteed_cross_entropy(score, units_of(X, None), bounds=BOUNDS)["token"]
        misses += not found.covers(exact_nats())
    assert misses <= 8


def test_refusals():
    few = torch.zeros(3, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="at least 2 draws of each prompt, not 1"):
        guaranteed_mean_log_z(few, low=-1.0, high=1.0)
    with pytest.raises(ValueError, match=r"\[-1, 1\] is not a bound.*3 of them outside"):
        guaranteed_mean_log_z(few + 2, low=-1.0, high=1.0)
    runs = scored(TARGET, X, Particles()(TARGET, prompts_of(PROMPTS), 16, rng=Seeded(4)))
    for way in (
        lambda: bounded_cross_entropy(runs, units_of(X, None)),
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
        rows = Seeded(seed, "prompts").categorical(torch.zeros(1, 256), 60)[0].tolist()
        drawn = Importance()(target, prompts_of([prompts[row] for row in rows]), 12, rng=Seeded(seed))
        found = log_z_spread(drawn)
        hits += found.covers(truth)
        wrong = float(drawn.log_z().std())
        plain += found.low + wrong - found.value <= truth <= found.high + wrong - found.value
    assert hits > 0.88 * 150
    assert plain < 0.8 * 150


def test_equal_prompts_have_no_spread_of_their_own():
    drawn = Importance()(TARGET, empty_prompts(200), 30, rng=Seeded(8))
    found = log_z_spread(drawn)
    assert found.low == 0 and found.value < 0.5 * float(drawn.log_z().std())
    with pytest.raises(ValueError, match="2 or more independent draws"):
        log_z_spread(Particles()(TARGET, prompts_of(PROMPTS), 16, rng=Seeded(4)))


@pytest.mark.parametrize("test", ["sample", "fixed"])
def test_one_call_hands_on_what_it_was_told(test):
    """Units, rate, test and bounds reach every part; draws are asked for once after each different prompt."""
    asked = []

    def sampler(target, prompts, draws, *, rng):
        asked.append((target, prompts.prompt_names(), draws, rng))
        return Importance()(target, prompts, draws, rng=rng)

    order, rng = torch.tensor([4, 0, 1, 9, 3]), Seeded(5)
    x = X.rows(order)
    words = {"word": 2 * x.lengths}
    found = measure(TARGET, x, sampler, 20, units=words, bounds=BOUNDS, test=test, level=0.8, rng=rng)
    ((target, prompts, draws, given),) = asked
    assert target is TARGET and sorted(prompts) == [(), (1,), (1, 2)] and draws == 20 and given is rng
    score = scored(TARGET, x, found.draws)
    assert found.base == cross_entropy(Tilted(TARGET.base), x, units=words, test=test, level=0.8)
    assert found.tilted == cross_entropy(TARGET, x, draws=found.draws, units=words, test=test, level=0.8)
    assert found.saved == saved_by_tilting(score, words, test=test, level=0.8)
    assert found.bounds["word"].value == bounded_cross_entropy(score, words)["word"].value
    assert found.guaranteed == guaranteed_cross_entropy(score, words, bounds=BOUNDS, level=0.8)
    assert found.log_z == log_z(found.draws, prompts=test, level=0.8) and found.spread == log_z_spread(found.draws, level=0.8)
    assert [one.advice for one in found.reliability] == [one.advice for one in reliability(found.draws)]


def test_a_base_needs_no_draws():
    found = measure(Tilted(TARGET.base), X, Importance(), 5, test="fixed", units={"word": X.lengths}, rng=Seeded(0))
    assert found == Measured(cross_entropy(Tilted(TARGET.base), X, test="fixed", units={"word": X.lengths}))
    assert found.warnings == [] and found.worst(3) == []
    sampled = measure(Tilted(TARGET.base), X, Importance(), 5, level=0.8, rng=Seeded(0))
    assert sampled.base == cross_entropy(Tilted(TARGET.base), X, level=0.8)


def judged(verdict: str, effective: float) -> Reliability:
    return Reliability(effective, 0.1, 0.0, 99.0, verdict, f"{verdict} {effective:g}.")


def test_the_worst_are_told_and_the_good_are_not():
    rows = [("good", 2.0), ("doubtful", 9.0), ("unreliable", 8.0), ("doubtful", 3.0), ("unreliable", 4.0)]
    found = Measured({}, reliability=tuple(judged(*row) for row in rows))
    assert found.worst(9) == [4, 2, 3, 1] and found.worst(2) == [4, 2]
    assert found.warnings == ["2 unreliable and 2 doubtful of 5 prompts, by their weights. The worst: unreliable 4."]
    assert Measured({}, reliability=found.reliability[:2]).warnings == [
        "1 doubtful of 2 prompts, by their weights. The worst: doubtful 9."
    ]
    assert Measured({}, reliability=found.reliability[:1]).warnings == []


def test_rows_of_perplexities():
    nats = Estimate(math.log(8), 0.0, 3.0, 0.9, 5, "how", "nats per word")
    (row,) = Measured({"word": nats}).perplexities()
    assert (row["model"], row["per"], row["method"]) == ("base", "word", "interval")
    assert (row["perplexity"].value, row["bits"].value) == (pytest.approx(8), pytest.approx(3))
    assert (row["perplexity"].unit, row["bits"].unit) == ("per word", "bits per word")


def test_a_surer_guarantee_is_a_wider_one():
    score = scored(TARGET, X, Importance()(TARGET, prompts_of(PROMPTS), 50, rng=Seeded(2)))
    half, most = (
        guaranteed_cross_entropy(score, units_of(X, None), bounds=BOUNDS, level=level)["token"] for level in (0.5, 0.99)
    )
    whole = guaranteed_mean_log_z(score.drawn, low=BOUNDS[0], high=BOUNDS[1], level=0.5)
    nats = [float((score.surprise.sum() + len(X) * end) / X.lengths.sum()) for end in (whole.low, whole.high)]
    assert (half.low, half.high) == pytest.approx(nats) and most.low < half.low < half.high < most.high
