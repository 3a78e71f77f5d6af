"""Data, base and joint compared: exact means by enumeration, coverage with the right replicates, the Wasserstein distance."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from random_targets import random_automaton, random_target, taste
from scipy import stats

from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts, prompts_of, unique_prompts
from esscher.core.target import Tilted
from esscher.estimators.intervals import bootstrap_counts
from esscher.estimators.populations import Population, compare_energies, histogram, populations, wasserstein
from esscher.exact.enumeration import tabulate
from esscher.samplers.importance import Importance
from esscher.samplers.scoring import log_weight
from esscher.samplers.sir import SIR
from esscher.testing import assert_covers, every_outcome

SPACE = Space(3, 3, eos=0)
TARGET = random_target(SPACE)
PROMPTS = prompts_of((torch.arange(729)[:, None] // 3 ** torch.arange(6) % 3).tolist())  # many more than are sampled
CONFIDENCE = 0.9


def joint_data(table, rows, rng):
    """One point of the exact joint after each of these rows of the table's prompts."""
    chosen = rng.categorical(table.log_prob[rows])[:, 0]
    return table.x.rows(rows * table.log_prob.shape[1] + chosen)


def means(target, table):
    """Exact mean energies of base and joint, by prompt."""
    energy = target.energy(table.x).view(table.log_base.shape)
    return {"base": (table.log_base.exp() * energy).sum(-1), "joint": (table.log_prob.exp() * energy).sum(-1)}


def compared(seed, table, *, prompts=30, draws=24):
    rng = SeededRng(seed)
    rows = rng.permutation(len(PROMPTS))[:prompts]
    x = joint_data(table, rows, rng.stream("data"))
    return populations(x, Importance()(TARGET, unique_prompts(x)[0], draws, rng=rng.stream("draws")))


def draws_as_replicates(found):
    """Wrong: every draw a replicate by itself, though draws of one prompt share it."""
    each = torch.arange(len(found.draws.x))
    base = Population(found.base.x, found.base.weight, each, 1)
    return replace(found, base=base, sources=(*found.sources, (1, len(each))))


@pytest.mark.slow
def test_intervals_cover_after_many_prompts():
    """False alarm 1e-3 for each of five numbers; draws taken for replicates are caught."""
    table = tabulate(TARGET, PROMPTS)
    truth = {name: float(value.mean()) for name, value in means(TARGET, table).items()}
    truth["data"] = truth["joint"]
    hits, wrong, apart, runs = dict.fromkeys(truth, 0), 0, 0, 150
    for seed in range(runs):
        actual = compared(seed, table)
        values = {"data": -log_weight(TARGET, actual.data.x), "base": -actual.draws.log_weight.view(-1)}
        values["joint"] = values["base"]
        for name in hits:
            hits[name] += actual.estimate(actual.ratio(name, values[name]), confidence=CONFIDENCE, method="").covers(
                truth[name]
            )
        bad = draws_as_replicates(actual)
        wrong += bad.estimate(bad.ratio("base", values["base"]), confidence=CONFIDENCE, method="").covers(truth["base"])
        joint, data = actual.ratio("joint", values["joint"]), actual.ratio("data", values["data"])
        apart += actual.estimate(
            lambda *c, joint=joint, data=data: joint(*c) - data(*c), confidence=CONFIDENCE, method=""
        ).covers(0.0)
    for count in (*hits.values(), apart):
        assert_covers(count, runs, CONFIDENCE)
    with pytest.raises(AssertionError, match=r"held the truth"):
        assert_covers(wrong, runs, CONFIDENCE)


def test_the_distance_covers_zero_where_joint_and_data_are_equal():
    """False alarm 1e-3; the base's distance is not 0, and an interval of bootstrapped distances never covers it."""
    table, runs, hits, wrong = tabulate(TARGET, PROMPTS), 40, {"joint": 0, "base": 0}, 0
    for seed in range(runs):
        actual = compared(seed, table)
        of_draws = -actual.draws.log_weight.view(-1)
        values = {"data": -log_weight(TARGET, actual.data.x), "base": of_draws, "joint": of_draws}
        for name in hits:
            distance = wasserstein(actual, name, values, confidence=CONFIDENCE, rng=SeededRng(seed), resamples=60)
            hits[name] += distance.low == 0.0
        wrong += distance.value == 0.0
    assert_covers(hits["joint"], runs, CONFIDENCE)
    assert hits["base"] < runs / 2
    assert wrong == 0, "the estimate itself is never 0"


def test_the_distance_covers_the_truth_and_the_scale_is_that_of_the_numbers():
    """One prompt; the exact distance by enumeration. The half-width errs to the safe side, so nearly all runs cover."""
    target = Tilted(random_automaton(SPACE), taste(SPACE, seed=3))
    table = tabulate(target)
    energy = -table.log_weight[0]
    order = energy.argsort()
    gap = (table.log_prob[0].exp() - table.log_base[0].exp())[order].cumsum(0)[:-1]
    truth, hits = float((gap.abs() * energy[order].diff()).sum()), 0
    for seed in range(20):
        rng = SeededRng(seed)
        x = joint_data(table, torch.zeros(100, dtype=torch.long), rng.stream("data"))
        actual = populations(x, Importance()(target, empty_prompts(1), 400, rng=rng.stream("draws")))
        of_draws = -actual.draws.log_weight.view(-1)
        values = {"data": -log_weight(target, x), "base": of_draws, "joint": of_draws}
        distance = wasserstein(actual, "base", values, confidence=CONFIDENCE, rng=rng, resamples=60)
        hits += distance.covers(truth)
        assert abs(distance.value - truth) < 0.5 * truth
    assert hits >= 16  # 18 are expected of an interval that just covers; 15 or fewer have probability 0.04


def test_one_prompt_has_two_sources_and_repeated_prompts_weigh_as_often_as_they_occur():
    x = TARGET_POINTS = tabulate(TARGET, prompts_of([[1], [2, 1]])).x
    first, second = TARGET_POINTS.rows(slice(0, 15)), TARGET_POINTS.rows(slice(15, 30))
    alone = populations(first, Importance()(TARGET, unique_prompts(first)[0], 40, rng=SeededRng(0)))
    assert alone.sources == ((1, 15), (1, 40))
    few = x.rows(torch.tensor([0, 1, 2, 15]))  # three sequences after [1], one after [2, 1]
    drawn = Importance()(TARGET, unique_prompts(few)[0], 40, rng=SeededRng(0))
    actual = populations(few, drawn)
    assert actual.sources == ((1, 2),)
    energy = -drawn.log_weight.view(-1)
    by_prompt = energy.view(2, 40).mean(-1)
    expected = (3 * by_prompt[0] + by_prompt[1]) / 4
    once = torch.ones(1, 2, dtype=torch.float64)
    assert float(actual.ratio("base", energy)(once)) == pytest.approx(float(expected))
    with pytest.raises(ValueError, match=r"not the 1 of the data"):
        populations(second, drawn)
    with pytest.raises(ValueError, match=r"carry no estimate"):
        populations(first, SIR(4, shared=False)(TARGET, unique_prompts(first)[0], 40, rng=SeededRng(0)))


def biases(coin, truth, x, draws):
    """Of the share of ones under the joint, corrected and plain: the expectation over all outcomes of the draws."""
    corrected = plain = -truth
    for p, drawn in every_outcome(lambda rng: Importance()(coin, empty_prompts(1), draws, rng=rng)):
        ones = drawn.x.tokens[:, -1].double()
        actual = populations(x, drawn)
        counts = [torch.ones(shape, dtype=torch.float64) for shape in actual.sources]
        corrected += p * float(actual.ratio("joint", ones)(*counts))
        plain += p * float(drawn.expect(ones.view(1, draws)))
    return corrected, plain


def test_corrected_shares_have_no_bias_of_first_order():
    """No statistics: from a pool of 4 to one of 8 the plain bias halves, and the corrected one falls to a quarter."""
    coin = Tilted(random_automaton(Space(2, 1)), lambda x: 0.8 * x.tokens[:, -1].double())
    table = tabulate(coin)
    small, large = (biases(coin, float(table.log_prob[0, 1].exp()), table.x, draws) for draws in (4, 8))
    assert abs(large[0] / small[0]) < 0.35 < 0.4 < abs(large[1] / small[1]), (small, large)
    assert abs(small[0]) < 0.5 * abs(small[1])


def test_joint_draws_are_resampled_by_their_weight():
    """The resampled share of each point is its corrected share, within 5 standard errors."""
    drawn = Importance()(TARGET, empty_prompts(1), 50_000, rng=SeededRng(0))
    x = tabulate(TARGET).x
    actual = populations(x, drawn)
    plain = actual.joint_draws(rng=SeededRng(1))
    long = (plain.x.lengths == 3).double()
    table = tabulate(TARGET)
    truth = float(table.expect(lambda x: (x.lengths == 3).double()))
    base = float((drawn.x.lengths == 3).double().mean())
    assert abs(float(long.mean()) - truth) < 5 * math.sqrt(0.25 / 20_000) < abs(base - truth)
    assert float(plain.log_base[0, 7]) == pytest.approx(float(TARGET.base.log_probs(plain.x.rows(slice(7, 8))).sum()))


def test_energies_of_the_joint_lie_on_those_of_the_data():
    table = tabulate(TARGET, PROMPTS)
    actual = compared(0, table, prompts=100, draws=64)
    result = compare_energies(TARGET, actual, rng=SeededRng(0))
    assert result.above["joint"].covers(0.0) and not result.above["base"].covers(0.0)
    assert result.distance["joint"].low == 0.0 < result.distance["base"].low
    assert result.mean["base"].value > result.mean["data"].value
    assert all(sum(share) == pytest.approx(1) for share in result.histogram.shares.values())
    assert len(result.histogram.edges) == 41
    assert actual.ess().value < 64
    forbids = Tilted(TARGET.base, lambda x: torch.where(x.lengths == 1, torch.inf, 0.0))
    drawn = Importance()(forbids, unique_prompts(actual.data.x)[0], 8, rng=SeededRng(0))
    with pytest.raises(ValueError, match=r"forbids \d+ of"):
        compare_energies(forbids, populations(actual.data.x, drawn), rng=SeededRng(0))


def small():
    """Three sequences and four draws after one prompt, with energies that are easily told apart."""
    x = tabulate(TARGET).x.rows(slice(0, 3))
    actual = populations(x, Importance()(TARGET, empty_prompts(1), 4, rng=SeededRng(5)))
    drawn = torch.tensor([0.5, 2.0, 2.0, 4.0]).double()
    return actual, {"data": torch.tensor([0.0, 1.0, 3.0]).double(), "base": drawn, "joint": drawn}


@pytest.mark.parametrize("name", ["base", "joint"])
def test_the_distance_is_the_area_between_distribution_functions(name):
    actual, values = small()
    distance = wasserstein(actual, name, values, confidence=0.9, rng=SeededRng(1), resamples=19, unit="m")
    weight = actual[name].weight
    assert distance.value == pytest.approx(stats.wasserstein_distance(values["data"], values[name], None, weight))
    counts = [bootstrap_counts(size, 19, rng=rng) for rng in [SeededRng(1)] for size in (3, 4)]
    grid = torch.linspace(0, 4, 4001, dtype=torch.float64)[:-1] + 5e-4

    def gap(of_data, of_draws):
        sides = ((of_data, values["data"]), (of_draws * weight, values[name]))
        item, other = ((own[:, None] * (at[:, None] <= grid)).sum(0) / own.sum() for own, at in sides)
        return item - other

    seen = gap(torch.ones(3).double(), torch.ones(4).double())
    errors = sorted(float((gap(a, b) - seen).abs().sum()) * 1e-3 for a, b in zip(*counts, strict=True))
    assert distance.high - distance.value == pytest.approx(errors[17])  # the 18th of 19 at a rate of 0.9
    assert distance.low == max(0.0, distance.value - (distance.high - distance.value))
    surer = wasserstein(actual, name, values, confidence=0.99, rng=SeededRng(1), resamples=19)
    assert surer.high == pytest.approx(distance.value + errors[18])


def test_a_bootstrap_in_parts_is_one_in_one(monkeypatch):
    actual, values = small()
    whole = wasserstein(actual, "base", values, confidence=0.9, rng=SeededRng(1), resamples=2)
    monkeypatch.setattr("esscher.estimators.populations.MAX_COUNTS", 7)
    assert wasserstein(actual, "base", values, confidence=0.9, rng=SeededRng(1), resamples=1).value == whole.value
    assert wasserstein(actual, "base", values, confidence=0.9, rng=SeededRng(1), resamples=5).n == whole.n == 7


def test_a_histogram_has_forty_bins_of_one_width():
    actual, values = small()
    output = histogram(actual, values)
    assert output.edges == pytest.approx([number / 10 for number in range(41)])
    for name in ("data", "base", "joint"):
        share, _ = np.histogram(values[name], bins=output.edges, weights=actual[name].weight)
        assert output.shares[name] == pytest.approx(share / share.sum())
    alone = histogram(actual, {name: torch.full_like(item, 2.0) for name, item in values.items()})
    assert alone.edges == (1.5, 2.5) and alone.shares == {"data": (1.0,), "base": (1.0,), "joint": (1.0,)}


def test_samples_are_as_large_as_what_they_are_drawn_from():
    counts = bootstrap_counts(5, 2000, rng=SeededRng(0))
    assert counts.shape == (2000, 5) and counts.dtype == torch.float64 and set(counts.sum(1).tolist()) == {5.0}
    assert (counts.mean(0) - 1).abs().max() < 5 * math.sqrt(0.8 / 2000) and float(counts.max()) > 2


def test_shares_are_corrected_for_their_own_sum():
    actual, _ = small()
    share = actual.draws.log_weight.softmax(-1)[0]
    assert torch.allclose(actual.joint.weight, 3 * share * (1 + share - share.square().sum()))
    assert actual.base.weight.tolist() == [0.75] * 4 and actual.data.weight.tolist() == [1.0] * 3
    with pytest.raises((ValueError, TypeError), match="joint"):
        actual["tilted"]
