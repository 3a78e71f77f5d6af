"""Perplexity of bases and tilted models: the count of symbols, both sources of chance, and every shape of test set."""

import math

import pytest
import torch
from random_targets import PROMPTS, random_target

from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, concatenate, empty_prompts, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.estimators.expectations import per_prompt
from esscher.estimators.perplexity import cross_entropy, cross_entropy_reduction, perplexity, score_sequences, unit_counts
from esscher.exact.enumeration import enumerate_points
from esscher.samplers.ancestral import draw
from esscher.samplers.importance import Exhaustive, Importance
from esscher.samplers.particles import Particles
from esscher.testing import assert_covers

SPACE = Space(3, 4, eos=0)
TARGET = random_target(SPACE)
X = enumerate_points(SPACE)
LOG_SCORE = TARGET.log_score(X)
LOG_Z = torch.logsumexp(LOG_SCORE, -1)
LOG_P = LOG_SCORE - LOG_Z


def held_out(count, seed=0):
    return X.rows(SeededRng(seed, "test").categorical(LOG_P[None], count)[0])


# values


def test_base_on_a_fixed_test_set_is_exact():
    x = sequences([[1, 0], [2, 2, 1, 1], [0]])
    actual = perplexity(Tilted(TARGET.base), x, test="fixed")["token"]
    nats = -float(TARGET.base.log_probs(x).sum()) / (2 + 4 + 1)
    assert actual.value == actual.low == actual.high == pytest.approx(math.exp(nats))
    assert actual.n == 0 and actual.unit == "per token"


def test_end_symbols_are_counted_and_prompts_are_not():
    x = sequences([[1, 0], [2, 1, 0]], [[2, 2, 1], [1]])
    nll = -float(TARGET.base.log_probs(x).sum())
    actual = cross_entropy(Tilted(TARGET.base), x, test="fixed")["token"]
    assert actual.value == pytest.approx(nll / 5)
    assert actual.value != pytest.approx(nll / 3)  # wrong: the end symbol forgotten in the count
    assert actual.value != pytest.approx(nll / 9)  # wrong: prompts counted
    assert "end symbols counted, prompts not" in actual.method


def test_units_divide_the_same_nats():
    x = sequences([[1, 1, 0], [2, 2, 2, 1]])
    units = {"token": x.lengths, "word": torch.tensor([1, 2]), "byte": torch.tensor([9, 12])}
    actual = cross_entropy(Tilted(TARGET.base), x, units=units)
    total = {name: actual[name].value * int(units[name].sum()) for name in units}
    assert total["word"] == pytest.approx(total["token"])
    assert total["byte"] == pytest.approx(total["token"])
    assert actual["byte"].unit == "nats per byte"


def test_tilted_with_exhaustive_draws_is_exact():
    x = held_out(50)
    runs = Exhaustive()(TARGET, empty_prompts(2), 0, rng=SeededRng(0))
    actual = cross_entropy(TARGET, x, draws=runs, test="fixed")["token"]
    score = TARGET.log_score(x)
    assert actual.value == pytest.approx(float((LOG_Z - score).sum() / x.lengths.sum()))
    assert actual.high - actual.low < 1e-12


def test_prompts_are_matched_by_name_not_by_place():
    x = sequences([[1, 0], [2, 0], [0], [1, 1, 0]], [[1], [2, 1, 1], [1], [1, 2]])
    draws = Exhaustive()(TARGET, prompts_of([[1, 2], [1], [2, 1, 1]]), 0, rng=SeededRng(0))
    log_z = draws.log_z()[torch.tensor([1, 2, 1, 0])]
    actual = cross_entropy(TARGET, x, draws=draws)["token"]
    assert actual.value == pytest.approx(float((log_z - TARGET.log_score(x)).sum() / x.lengths.sum()))


def test_a_repeated_prompt_is_welcome():
    x = sequences([[1, 0], [2, 0], [0]], [[1], [2], [1]])
    draws = Importance()(TARGET, x.prompts(), 50, rng=SeededRng(1))
    actual = cross_entropy(TARGET, x, draws=draws)["token"]
    assert "after 2 prompts, 50 draws each" in actual.method


# coverage; each false alarm once in a thousand


def test_base_interval_covers_over_test_sets():
    truth = float((LOG_P.exp() * -TARGET.base.log_probs(X).sum(-1)).sum() / (LOG_P.exp() * X.lengths).sum())
    hits = sum(cross_entropy(Tilted(TARGET.base), held_out(80, seed))["token"].covers(truth) for seed in range(250))
    assert_covers(hits, 250, 0.95)


@pytest.mark.parametrize(
    ("sequences", "draws"), [pytest.param(40, 400, marks=pytest.mark.slow), (400, 40)], ids=["few sequences", "few draws"]
)
def test_tilted_interval_covers_and_ignoring_a_source_does_not(sequences, draws):
    truth = float((LOG_P.exp() * -LOG_P).sum() / (LOG_P.exp() * X.lengths).sum())
    hits, wrong = 0, 0
    for seed, drawn in enumerate(per_prompt(Importance()(TARGET, empty_prompts(250), draws, rng=SeededRng(2)))):
        x = held_out(sequences, seed)
        actual = cross_entropy(TARGET, x, draws=drawn)["token"]
        hits += actual.covers(truth)
        if sequences < draws:
            wrong += cross_entropy(TARGET, x, draws=drawn, test="fixed")["token"].covers(truth)
        else:
            rest = -TARGET.log_score(x) + float(drawn.log_z()[0]) - actual.value * x.lengths
            error = float(rest.std()) / math.sqrt(sequences) / float(x.lengths.double().mean())
            wrong += abs(actual.value - truth) < 1.96 * error
    assert_covers(hits, 250, 0.95, at_least=True)
    with pytest.raises(AssertionError, match="stated rate"):
        assert_covers(wrong, 250, 0.95)


def test_fixed_test_set_needs_only_the_draws_error():
    x = held_out(60)
    truth = float((LOG_Z - TARGET.log_score(x)).sum() / x.lengths.sum())
    hits = 0
    for draws in per_prompt(Importance()(TARGET, empty_prompts(250), 200, rng=SeededRng(6))):
        hits += cross_entropy(TARGET, x, draws=draws, test="fixed")["token"].covers(truth)
    assert_covers(hits, 250, 0.95)


def test_fixed_prompts_with_few_draws_each_cover_thanks_to_the_correction():
    """Test sequences after 64 prompts, 24 draws for each: the bias of log Z is most of the error if left in."""
    prompts = prompts_of([[1 + (row >> bit) % 2 for bit in range(6)] for row in range(64)])
    x, _ = draw(TARGET.base, prompts, 1, rng=SeededRng(3))
    exact = Exhaustive()(TARGET, prompts, 0, rng=SeededRng(0)).log_z()
    truth = float((exact - TARGET.log_score(x)).sum() / x.lengths.sum())
    corrected, corrected_only, plain = 0, 0, 0
    for seed in range(120):
        draws = Importance()(TARGET, prompts, 24, rng=SeededRng(seed, "few"))
        actual = cross_entropy(TARGET, x, draws=draws, test="fixed")["token"]
        corrected += actual.covers(truth)
        shift = actual.value - float((draws.log_z() - TARGET.log_score(x)).sum() / x.lengths.sum())
        plain += abs(actual.value - shift - truth) <= actual.value - actual.low
        corrected_only += actual.low <= truth <= actual.value + (actual.value - actual.low)  # without what was not drawn
    assert corrected > 0.9 * 120 and corrected_only > 0.85 * 120
    assert plain < 0.8 * 120


# refusals


def test_dependent_draws_need_runs():
    x = held_out(20)
    one_run = Particles()(TARGET, empty_prompts(1), 16, rng=SeededRng(4))
    with pytest.raises(ValueError, match="depend on each other"):
        cross_entropy(TARGET, x, draws=one_run)
    runs = Particles()(TARGET, empty_prompts(10), 16, rng=SeededRng(4))
    actual = cross_entropy(TARGET, x, draws=runs)["token"]
    assert actual.low < actual.value < actual.high and "10 runs of 16 dependent draws" in actual.method
    prompted = sequences([[1, 0], [2, 0], [0], [1, 1, 0]], PROMPTS)
    spread = cross_entropy(TARGET, prompted, draws=Particles()(TARGET, prompted.prompts(), 16, rng=SeededRng(4)))["token"]
    assert spread.low < spread.high  # prompts are the replicates


def test_bad_input():
    x = held_out(5)
    draws = Importance()(TARGET, prompts_of([[1], [1]]), 5, rng=SeededRng(5))
    with pytest.raises(ValueError, match="needs draws that estimate log Z"):
        perplexity(TARGET, x)
    with pytest.raises(ValueError, match="5 of 5 test sequences have a prompt without draws, and 1 prompts have draws"):
        perplexity(TARGET, x, draws=draws)
    with pytest.raises(ValueError, match=r"units\['word'\] must count the units of each of 5"):
        perplexity(Tilted(TARGET.base), x, units={"word": torch.zeros(5, dtype=torch.long)})
    with pytest.raises(ValueError, match="test set is empty"):
        perplexity(Tilted(TARGET.base), x.rows(slice(0, 0)))
    one = perplexity(Tilted(TARGET.base), x.rows(slice(0, 1)))["token"]
    assert (one.low, one.high) == (1.0, math.inf) and "too few for an interval" in one.method and "unbounded" in str(one)


def test_a_batch_of_batches_is_the_batch():
    x = concatenate([held_out(30, 1), held_out(30, 2)])
    assert perplexity(Tilted(TARGET.base), x)["token"].n == 60


def test_few_sequences_never_promise_a_perplexity_below_one():
    base = random_target(Space(3, 4, eos=0)).base
    x = sequences([[0], [1, 1, 2, 2], [2, 0]])
    assert 0 <= cross_entropy(Tilted(base), x, confidence=0.999)["token"].low < 1e-6


def saved(x: Sequences, draws: Draws) -> Estimate:
    return cross_entropy_reduction(score_sequences(TARGET, x, draws), unit_counts(x, None), test="sample", confidence=0.95)[
        "token"
    ]


def test_what_tilting_saves_is_the_difference_of_cross_entropies():
    x, draws = held_out(200, 3), Importance()(TARGET, empty_prompts(1), 2000, rng=SeededRng(5))
    base, tilted = cross_entropy(Tilted(TARGET.base), x)["token"], cross_entropy(TARGET, x, draws=draws)["token"]
    assert saved(x, draws).value == pytest.approx(base.value - tilted.value)


def test_what_tilting_saves_is_covered_at_the_stated_rate():
    """150 replications; a correct interval fails with probability 1e-3."""
    log_a = TARGET.base.log_probs(X).sum(-1)
    truth = float((LOG_P.exp() * (LOG_P - log_a)).sum() / (LOG_P.exp() * X.lengths).sum())
    runs = Importance()(TARGET, empty_prompts(150), 500, rng=SeededRng(7))
    actual = [saved(held_out(100, seed), item) for seed, item in enumerate(per_prompt(runs))]
    assert_covers(sum(item.covers(truth) for item in actual), len(actual), 0.95)
