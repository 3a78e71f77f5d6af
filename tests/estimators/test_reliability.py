"""The verdict: right about tails whose index is known, and about weights that deserve no doubt."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from random_targets import random_target

from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts, prompts_of
from esscher.core.target import Tilted, flat
from esscher.energies.features import ConditionalLogLinear, LogLinear, Sum, contains, lacks, length
from esscher.estimators.log_z import log_z
from esscher.estimators.reliability import mean_reliability, pareto_k, reliability
from esscher.exact.automaton import Automaton
from esscher.exact.enumeration import tabulate
from esscher.samplers.importance import Importance
from esscher.testing import assert_covers
from esscher.testing.interval_laws import WEIGHT_LAWS


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


def verdicts(log_weight, **knowledge):
    return [row.verdict for row in reliability(weighted(log_weight), **knowledge)]


def test_mild_weights_are_good():
    assert verdicts(0.5 * normal(1, 50, 1000)).count("good") == 50


@pytest.mark.parametrize(("deviation", "draws"), [(3.0, 200), (3.0, 1000), (2.0, 50), (1.5, 50)])
def test_heavy_weights_warn(deviation, draws):
    assert verdicts(deviation * normal(2, 40, draws)).count("good") <= 1


def test_samples_that_missed_the_tail_are_judged_like_those_that_did_not():
    """Log-normal weights of deviation 3: the tenth with the largest effective sample sizes has missed the tail, and looks
    best by them."""
    rows = reliability(weighted(3.0 * normal(12, 300, 200)))
    lucky = sorted(rows, key=lambda row: -row.ess)[:30]
    assert all(row.verdict != "good" for row in lucky) and min(row.ess for row in lucky) > 12


def test_weights_without_a_mean_are_not_good():
    assert verdicts(-1.5 * uniform(3, 50, 1000).log()).count("good") <= 5


def test_one_draw_that_rules_is_unreliable():
    (row,) = reliability(weighted(torch.tensor([[50.0, *[0.0] * 999]])))
    assert row.verdict == "unreliable" and row.ess == pytest.approx(1)
    assert "one draw holds 100% of the weight" in row.advice


def test_equal_weights_are_never_good_unless_no_others_are_possible():
    equal = weighted(torch.zeros(1, 100))
    (row,) = reliability(equal)
    assert (row.verdict, row.pareto_k, row.ess) == ("unreliable", -math.inf, pytest.approx(100))
    assert "all weights are equal" in row.advice
    assert verdicts(torch.zeros(1, 100), bounds=(0.0, 0.0)) == ["good"] == verdicts(torch.zeros(1, 100), energy=flat)
    assert verdicts(torch.zeros(1, 100), bounds=(-1.0, 2.0)) == ["unreliable"]


def test_weights_of_few_values_are_good_only_up_to_their_bound():
    half_forbidden = torch.tensor([[0.0, -torch.inf] * 200])
    assert verdicts(half_forbidden, bounds=(-math.inf, 0.0)) == ["good"]
    assert verdicts(half_forbidden) == ["doubtful"] and verdicts(half_forbidden, bounds=(-math.inf, 5.0)) == ["doubtful"]
    assert verdicts(half_forbidden.repeat(1, 50), bounds=(-math.inf, 1.0)) == ["good"]  # what may hide is negligible
    (row,) = reliability(weighted(half_forbidden), bounds=(-math.inf, 5.0))
    assert "up to 5 nats more" in row.advice


def test_a_feature_with_a_weight_that_no_draw_shows_is_told():
    """A weight of 40 on a motif that no draw has; the other feature spreads the weights, so they look well."""
    base = random_target(Space(3, 4, eos=0)).base
    energy = LogLinear([contains([2, 2, 2], name="twos"), length()], torch.tensor([40.0, 0.2]))
    drawn = Importance()(Tilted(base, energy), empty_prompts(1), 60, rng=SeededRng(1))
    x = drawn.x
    keep = energy.features[0].of(x) == 0
    shown = replace(drawn, x=x.rows(keep), log_weight=drawn.log_weight[:, keep], log_base=drawn.log_base[:, keep])
    (row,) = reliability(shown, energy=energy)
    assert row.verdict == "unreliable" and "no draw shows 'twos'" in row.advice
    assert "no draw shows" not in reliability(shown, energy=LogLinear(energy.features, torch.tensor([0.0, 0.2])))[0].advice


def rare(space):
    """Token 2 once in 3,000 tokens."""
    share = torch.tensor([[0.2, 0.8 - 1 / 3000, 1 / 3000]], dtype=torch.float64)
    return Automaton(share.log(), torch.zeros(1, 3, dtype=torch.long), space)


@pytest.mark.parametrize("spread", [0.0, 0.2])
@pytest.mark.parametrize("form", ["sum", "conditional", "lacks"])
def test_an_unseen_feature_is_told_whatever_the_form_of_the_energy(form, spread):
    """4,000 draws without the motif, which has a weight of 40: log Z is 17, the draws say less than 1."""
    motif, weights = contains([2, 2, 2], name="twos"), torch.tensor([40.0, spread], dtype=torch.float64)
    if form == "sum":
        energy = Sum({"motif": LogLinear([motif], weights[:1]), "length": LogLinear([length()], weights[1:])})
    elif form == "conditional":
        network = torch.nn.Module()
        network.forward = lambda prompts: weights.expand(len(prompts), -1)
        energy = ConditionalLogLinear([motif, length()], network)
    else:
        energy = LogLinear([lacks([2, 2, 2], name="no twos"), length()], weights * torch.tensor([-1.0, 1.0]))
    target = Tilted(rare(Space(3, 8, eos=0)), energy)
    drawn = Importance()(target, empty_prompts(1), 4000, rng=SeededRng(0))
    (row,) = reliability(drawn, energy=energy)
    assert row.verdict == "unreliable" and "twos'" in row.advice
    assert abs(float(tabulate(target).log_z[0]) - float(drawn.log_z()[0])) > 15


def test_a_feature_that_one_prompt_lacks_counts_only_where_it_matters():
    base, prompts = rare(Space(3, 8, eos=0)), prompts_of([[], [1]])
    for weight, matters in ((30.0, True), (0.01, False)):
        energy = LogLinear([contains([2], name="two"), length()], torch.tensor([weight, 0.05]))
        tries = [Importance()(Tilted(base, energy), prompts, 200, rng=SeededRng(seed)) for seed in range(20)]
        shows = [(energy.features[0].of(drawn.x).view(2, 200) > 0).any(-1).tolist() for drawn in tries]
        one = next(number for number, shown in enumerate(shows) if sorted(shown) == [False, True])
        row = reliability(tries[one], energy=energy)[shows[one].index(False)]
        assert ("all draws have 'two' = 0" in row.advice) == matters and (row.verdict == "unreliable") == matters


def test_a_stored_log_z_must_agree():
    log_weight = 0.5 * normal(7, 1, 1000)
    value = float(torch.logsumexp(log_weight, -1)) - math.log(1000)
    for stored, verdict in ((value, "good"), (value + 0.05, "good"), (value + 1.0, "unreliable")):
        estimate = Estimate(stored, stored - 0.02, stored + 0.02, 0.95, 4000, "stored")
        assert verdicts(log_weight, stored=estimate) == [verdict]
    (row,) = reliability(weighted(torch.tensor([[50.0, *[0.0] * 999]])), stored=estimate)  # said beside what is worse
    assert row.verdict == "unreliable" and "as stored with the energy" in row.advice


def test_dependent_draws_are_doubtful():
    (row,) = reliability(replace(weighted(0.3 * normal(8, 1, 200)), independent=False))
    assert row.verdict == "doubtful" and "compare several runs" in row.advice


def test_few_draws_are_never_good():
    for draws in (1, 2, 5, 15, 50):
        assert verdicts(0.1 * normal(4, 20, draws)).count("good") == 0
    assert verdicts(0.1 * normal(4, 20, 100)).count("good") == 20


def test_draws_without_a_weight_do_not_count():
    """Of 200 draws ten have a weight: they are ten, whatever their spread."""
    values = torch.full((1, 200), -torch.inf, dtype=torch.float64)
    values[0, :10] = normal(0, 10) / 10
    assert reliability(weighted(values))[0].verdict == "doubtful"
    values[0, :] = normal(0, 200) / 10
    assert reliability(weighted(values))[0].verdict == "good"


def test_the_verdict_on_a_mean_over_prompts_is_not_that_on_the_worst_prompt():
    """50 prompts with 50 draws of deviation 1: each by itself is doubtful, the mean is not; with deviation 2.5 it is, too."""
    each = reliability(weighted(normal(9, 50, 50)))
    assert all(row.verdict != "good" for row in each) and mean_reliability(each, 50)[0] == "good"
    assert mean_reliability(reliability(weighted(2.5 * normal(9, 50, 50))), 50)[0] == "unreliable"
    assert mean_reliability(each[:1], 50) == (each[0].verdict, each[0].advice)


@pytest.mark.slow
@pytest.mark.parametrize("name", WEIGHT_LAWS)
def test_good_intervals_cover_on_every_registered_law(name):
    """300 replications at 50 and 1,000 draws: among those judged good the interval of log Z covers at 93 % or more, but for
    chance (once in a thousand)."""
    law, rng = WEIGHT_LAWS[name], np.random.default_rng(11)
    for draws in (50, 1000):
        log_weight = torch.from_numpy(law.log_weights(rng, (300, draws)))
        rows = [row[None] for row in log_weight if bool((row > -torch.inf).any())]
        good = [row for row in rows if reliability(weighted(row), bounds=law.bounds)[0].verdict == "good"]
        hits = sum(log_z(weighted(row), bounds=law.bounds).covers(law.log_z) for row in good)
        assert_covers(hits, len(good), 0.93, at_least=True) if good else None


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


def test_a_largest_weight_ends_the_tail_once_it_was_drawn_often():
    spread = torch.linspace(-2.0, -0.01, 400, dtype=torch.float64)
    actual = [float(pareto_k(torch.cat([spread, torch.zeros(times)])[None].double())) for times in (4, 5)]
    assert math.isfinite(actual[0]) and actual[1] == -math.inf
