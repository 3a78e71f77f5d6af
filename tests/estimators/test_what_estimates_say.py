"""What every estimate says of itself beside its value: its rate, how much chance it rests on, its unit and its replicates."""

import math
from dataclasses import replace

import pytest
import torch
from random_targets import random_target

from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.estimators.continuations import next_tokens, prefix_log_probs
from esscher.estimators.expectations import divergences, moments, quasi_rejection_gap
from esscher.estimators.exposure_bias import LogSumExps, SelfConditionedScores, exposure_of, ratio_of
from esscher.estimators.intervals import interval, proportion, ratio_of_sums
from esscher.estimators.log_prob_rank import log_prob_spectrum, mean_divergence
from esscher.estimators.log_z import log_z, log_z_bounds, log_z_std
from esscher.estimators.long_context import ContextLosses, stream_cross_entropy
from esscher.estimators.per_position import per_position
from esscher.estimators.perplexity import (
    as_bits,
    as_perplexity,
    bounded_cross_entropy,
    cross_entropy,
    cross_entropy_reduction,
    guaranteed_cross_entropy,
    score_sequences,
    unit_counts,
)
from esscher.estimators.populations import compare_energies, populations, unique_ngrams
from esscher.estimators.preference import agreement_of
from esscher.samplers.accept_reject import QuasiRejection
from esscher.samplers.importance import Importance

CONFIDENCE = 0.8
TARGET = random_target(Space(3, 4, eos=0))
ALONE, BASE = Tilted(TARGET.base), TARGET.base
X = sequences([[1, 2, 0], [2, 0], [1, 1, 2, 1]])  # 9 tokens after one prompt
TWO = sequences([[1, 2, 0], [2, 0], [1, 1, 2, 1]], [[], [1], []])
SAME = Importance()(TARGET, empty_prompts(2), 5, rng=SeededRng(0))
RUNS = replace(SAME, independent=False)
AFTER_TWO = Importance()(TARGET, prompts_of([[], [1]]), 5, rng=SeededRng(1))
WORDS = {"word": torch.tensor([2, 1, 3])}


def of_x(draws=SAME, x=X, **options):
    return cross_entropy(TARGET, x, draws=draws, confidence=CONFIDENCE, **options)["token"]


def step(number: int, **options):
    return per_position(TARGET, X, Importance(), 5, confidence=CONFIDENCE, rng=SeededRng(0), **options)[number]


def levels(rows: int) -> LogSumExps:
    every = torch.arange(2.0 * rows, dtype=torch.float64).view(rows, 2).sin()
    return LogSumExps(every, torch.ones(rows, 2, dtype=torch.bool), torch.ones(rows).double(), torch.arange(rows))


def own(seed: int) -> SelfConditionedScores:
    return SelfConditionedScores(
        torch.randn(12, 2, generator=torch.Generator().manual_seed(seed)).double(), torch.ones(12, 2).bool()
    )


def compared():
    return compare_energies(
        TARGET,
        populations(X, Importance()(TARGET, empty_prompts(1), 5, rng=SeededRng(0))),
        confidence=CONFIDENCE,
        rng=SeededRng(0),
    )


LOG_PROBS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double().log_softmax(-1)
SERIES = torch.arange(90.0).cos().double()
LOSSES = ContextLosses((1, 2), {"one": SERIES.abs().view(2, 45), "other": SERIES.square().view(2, 45)})
JACKKNIFE = "skewness-corrected infinitesimal jackknife"
COUNTED = "end symbols counted, prompts not"
CASES = {  # the estimate, its sample, its unit, and the end of its method
    "interval": (
        lambda: interval(lambda c: (c[0] * SERIES).sum() / c.sum(), [(1, 90)], confidence=CONFIDENCE, n=7, method="x"),
        "7 draws",
        "",
        "x",
    ),
    "no spread": (
        lambda: interval(lambda c: c.sum() / c.sum(), [(1, 9)], confidence=CONFIDENCE, n=7, method="x", unit="m"),
        "7 draws",
        "m",
        "x",
    ),
    "log_z": (lambda: log_z(SAME, confidence=CONFIDENCE), "10 draws", "nats", f"log of the mean weight, {JACKKNIFE}; 10 draws"),
    "log_z, runs": (lambda: log_z(RUNS, confidence=CONFIDENCE), "10 draws", "nats", f"{JACKKNIFE}; 2 runs of 5 draws"),
    "log_z, fixed": (
        lambda: log_z(AFTER_TWO, prompts="fixed", confidence=CONFIDENCE),
        "10 draws",
        "nats",
        f"{JACKKNIFE}, bias corrected; 5 draws for each of 2 fixed prompts",
    ),
    "log_z, sample": (
        lambda: log_z(AFTER_TWO, prompts="sample", confidence=CONFIDENCE),
        "10 draws",
        "nats",
        f"{JACKKNIFE}, bias corrected; 2 prompts as a sample, 5 draws each",
    ),
    "log_z_std": (
        lambda: log_z_std(AFTER_TWO, confidence=CONFIDENCE),
        "10 draws",
        "nats",
        "spread over 2 prompts as a sample, less the error of 5 draws each",
    ),
    "log_z_bounds, lower": (
        lambda: log_z_bounds(SAME, confidence=CONFIDENCE).lower,
        "10 draws",
        "nats",
        "lower bound in expectation, T_5",
    ),
    "log_z_bounds, upper": (
        lambda: log_z_bounds(SAME, confidence=CONFIDENCE).upper,
        "10 draws",
        "nats",
        "asymptotic upper bound, leave-one-out at n = 5",
    ),
    "moments": (
        lambda: moments(SAME, SAME.log_base[..., None], confidence=CONFIDENCE)[0],
        "10 draws",
        "",
        f"self-normalised mean, {JACKKNIFE}, bias corrected; 10 draws",
    ),
    "moments, runs": (
        lambda: moments(RUNS, SAME.log_base[..., None], confidence=CONFIDENCE)[0],
        "10 draws",
        "",
        f"{JACKKNIFE}, bias left in; 2 runs of 5 draws",
    ),
    **{
        f"divergences, {name}": (
            lambda name=name: divergences(TARGET, SAME, confidence=CONFIDENCE)[name],
            "10 draws",
            unit,
            f"weighted draws, {JACKKNIFE}{', bias corrected' if 'kl' in name else ''}; 10 draws",
        )
        for name, unit in (("kl", "nats"), ("reverse_kl", "nats"), ("tv", ""), ("js", "nats"))
    },
    "base, sample": (
        lambda: cross_entropy(ALONE, X, confidence=CONFIDENCE)["token"],
        "3 test sequences",
        "nats per token",
        f"ratio over texts, {COUNTED}",
    ),
    "base, words": (
        lambda: cross_entropy(ALONE, X, units=WORDS, confidence=CONFIDENCE)["word"],
        "3 test sequences",
        "nats per word",
        COUNTED,
    ),
    "tilted, one prompt": (
        of_x,
        "10 draws",
        "nats per token",
        f"3 test sequences (sample) after 1 prompt, 10 draws each, {COUNTED}",
    ),
    "tilted, fixed": (
        lambda: of_x(test="fixed"),
        "10 draws",
        "nats per token",
        f"3 test sequences (fixed) after 1 prompt, 10 draws each, {COUNTED}",
    ),
    "tilted, runs": (
        lambda: of_x(RUNS),
        "10 draws",
        "nats per token",
        f"(sample) after 1 prompt, 2 runs of 5 dependent draws each, {COUNTED}",
    ),
    "tilted, two prompts": (
        lambda: of_x(AFTER_TWO, TWO),
        "10 draws",
        "nats per token",
        f"3 test sequences (sample) after 2 prompts, 5 draws each, bias of each log Z corrected, {COUNTED}",
    ),
    "saved": (
        lambda: cross_entropy_reduction(
            score_sequences(TARGET, X, SAME), unit_counts(X, WORDS), test="sample", confidence=CONFIDENCE
        )["word"],
        "10 draws",
        "nats per word",
        COUNTED,
    ),
    "perplexity": (lambda: as_perplexity({"token": of_x()})["token"], "10 draws", "per token", COUNTED),
    "bits": (lambda: as_bits({"token": of_x()})["token"], "10 draws", "bits per token", COUNTED),
    "guaranteed": (
        lambda: guaranteed_cross_entropy(
            score_sequences(TARGET, X, SAME), unit_counts(X, WORDS), bounds=(-9, 9), confidence=CONFIDENCE
        )["word"],
        "10 draws",
        "nats per word",
        f"exact at 10 draws, for log weights in [-9, 9]; fixed test set, {COUNTED}",
    ),
    "step, base": (lambda: step(1).base, "3 test sequences", "nats per token", "base; 3 sequences as a sample"),
    "step, tilted": (
        lambda: step(1).tilted,
        "3 test sequences",
        "nats per token",
        "5 draws after each prefix, bias corrected; 3 sequences as a sample",
    ),
    "step, lower": (
        lambda: step(1).bounds.lower,
        "3 test sequences",
        "nats per token",
        "lower bound in expectation, 5 draws after each prefix; 3 sequences as a sample",
    ),
    "step, upper": (
        lambda: step(1).bounds.upper,
        "3 test sequences",
        "nats per token",
        "after each prefix; 3 sequences as a sample",
    ),
    "step, fixed": (
        lambda: step(0, test="fixed").reduction,
        "30 draws",
        "nats per token",
        "5 draws after each prefix, bias corrected, fixed test set",
    ),
    "step, one sequence": (
        lambda: step(3).base,
        "1 test sequences",
        "nats per token",
        "base; one sequence reaches this position, so there is no interval",
    ),
    "exposure": (
        lambda: exposure_of(levels(11), levels(13), sources=((1, 11), (1, 13)), confidence=CONFIDENCE).mean,
        "24 sequences and draws",
        "nats",
        f"bias corrected, {JACKKNIFE}; 11 replicates of the data, 13 of the draws",
    ),
    "ratio, greedy": (
        lambda: ratio_of(own(0), own(1), torch.arange(12), confidence=CONFIDENCE).at[1].ratio,
        "12 tokens",
        "",
        "greedy outputs of both, 12 replicates; as a binomial share of 10",
    ),
    "ratio, sampled": (
        lambda: ratio_of(own(0), own(1), torch.arange(12), greedy=False, confidence=CONFIDENCE).ratio,
        "24 tokens",
        "",
        "sampled outputs of both, 12 replicates; as a binomial share of 21",
    ),
    "beginnings": (
        lambda: prefix_log_probs(TARGET, sequences([[1]]), 5, confidence=CONFIDENCE, rng=SeededRng(0)).each[0],
        "5 draws",
        "nats",
        "5 draws after each prompt and each row",
    ),
    "next tokens": (
        lambda: next_tokens(TARGET, empty_prompts(1), top=1, draws=5, confidence=CONFIDENCE, rng=SeededRng(2)).rows[0].joint,
        "15 draws",
        "",
        "ratio of mean weights, 5 draws for each of 3 rows",
    ),
    "blocks": (
        lambda: ratio_of_sums(SERIES, torch.ones(90).double(), confidence=CONFIDENCE, unit="m"),
        "90 tokens",
        "m",
        "blocks of 2 tokens",
    ),
    "one block": (
        lambda: ratio_of_sums(torch.ones(1), torch.ones(1), confidence=CONFIDENCE, unit="m"),
        "1 tokens",
        "m",
        "one block; one replicate, too few for an interval",
    ),
    "stream": (
        lambda: stream_cross_entropy(-SERIES.abs(), {"byte": torch.ones(90)}, confidence=CONFIDENCE)["byte"],
        "90 tokens",
        "nats per byte",
        " tokens",
    ),
    "context": (
        lambda: LOSSES.by_length("one", confidence=CONFIDENCE)[0],
        "45 places",
        "nats per token",
        "40 blocks of 1 places",
    ),
    "effective context": (
        lambda: LOSSES.effective_length("one", 0.5, confidence=CONFIDENCE, rng=SeededRng(0)),
        "45 places",
        "tokens",
        "200 resamples, 2 models",
    ),
    "divergence of contexts": (
        lambda: mean_divergence(LOG_PROBS, confidence=CONFIDENCE),
        "6 contexts",
        "nats",
        "pairs of contexts in 6 blocks",
    ),
    "spread of contexts": (
        lambda: log_prob_spectrum(LOG_PROBS, confidence=CONFIDENCE).divergence,
        "6 contexts",
        "nats",
        "pairs of contexts in 6 blocks",
    ),
    "energies, mean": (
        lambda: compared().mean["joint"],
        "8 sequences and draws",
        "nats",
        "mean; 3 sequences and 5 draws after one prompt",
    ),
    "energies, above": (
        lambda: compared().above["joint"],
        "8 sequences and draws",
        "nats",
        "difference of means; 3 sequences and 5 draws after one prompt",
    ),
    "energies, distance": (
        lambda: compared().distance["base"],
        "8 sequences and draws",
        "nats",
        "half-width from 400 bootstraps of its error; 3 sequences and 5 draws after one prompt",
    ),
    "n-grams": (
        lambda: unique_ngrams(populations(TWO, AFTER_TWO), [2], confidence=CONFIDENCE)[0].above["joint"],
        "13 sequences and draws",
        "",
        "difference of different 2-grams of a point over all of them; 3 sequences after 2 prompts, 5 draws each",
    ),
    "effective draws": (
        lambda: populations(TWO, AFTER_TWO).ess(confidence=CONFIDENCE),
        "13 sequences and draws",
        "draws",
        "mean; 3 sequences after 2 prompts, 5 draws each",
    ),
    "proportion": (
        lambda: proportion(lambda c: c[0, 0] / c.sum(), [(1, 4)], confidence=CONFIDENCE, n=4, method="x"),
        "4 draws",
        "",
        "x; as a binomial share of 2",
    ),
    "agreement": (
        lambda: agreement_of([["a", "b"], ["a", "a"], ["b", "b"]], confidence=CONFIDENCE)[0],
        "3 pairs",
        "",
        "jackknife",
    ),
    "alpha": (lambda: agreement_of([["a", "b"], ["a", "a"], ["b", "b"]], confidence=CONFIDENCE)[1], "3 pairs", "", "jackknife"),
    "all agree": (lambda: agreement_of([["a", "a"], ["b", "b"]], confidence=CONFIDENCE)[0], "2 pairs", "", "Clopper-Pearson"),
}
EXACT = {  # numbers without chance: their unit and their method
    "base, fixed": (
        lambda: cross_entropy(ALONE, X, test="fixed")["token"],
        "nats per token",
        f"exact, fixed test set, {COUNTED}",
    ),
    "step, base, fixed": (lambda: step(0, test="fixed").base, "nats per token", "exact, fixed test set"),
    "step, last, fixed": (lambda: step(3, test="fixed").tilted, "nats per token", "the rest summed up, fixed test set"),
    "beginnings of a base": (lambda: prefix_log_probs(ALONE, X, 5, rng=SeededRng(0)).total, "nats", "exact"),
    "stream, fixed": (
        lambda: stream_cross_entropy(-SERIES.abs(), {"byte": torch.ones(90)}, test="fixed")["byte"],
        "nats per byte",
        "exact, fixed text",
    ),
    "rank": (lambda: log_prob_spectrum(LOG_PROBS).rank, "", "singular values above round-off"),
    "effective draws": (
        lambda: populations(X, Importance()(TARGET, empty_prompts(1), 5, rng=SeededRng(0))).ess(),
        "draws",
        "of these very draws",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rate_chance_unit_and_replicates(name):
    make, sample, unit, method = CASES[name]
    actual = make()
    assert (actual.confidence, f"{actual.n} {actual.counted}", actual.unit) == (CONFIDENCE, sample, unit)
    assert actual.method.endswith(method)


@pytest.mark.parametrize("name", EXACT)
def test_what_is_known_without_chance(name):
    make, unit, method = EXACT[name]
    actual = make()
    assert actual == Estimate.exact(actual.value, method=method, unit=unit)


def test_the_bounds_of_the_paper_state_no_rate():
    (actual,) = bounded_cross_entropy(score_sequences(TARGET, X, SAME), unit_counts(X, WORDS)).values()
    assert math.isnan(actual.confidence) and (actual.n, actual.unit) == (10, "nats per word")
    assert actual.method.endswith(f"no stated rate; 10 draws for each of 1 fixed prompts, {COUNTED}")


def test_what_was_proposed_counts_where_it_was_rejected():
    draws = QuasiRejection(0.5)(TARGET, prompts_of([[], [1]]), 4, rng=SeededRng(0))
    for prompts, ending in (("fixed", "jackknife"), ("sample", "jackknife, 2 prompts as a sample")):
        actual = quasi_rejection_gap(draws, 0.2, prompts=prompts, confidence=CONFIDENCE)
        assert [value.unit for value in actual.values()] == ["nats", "nats", "", "nats"]
        assert {(value.confidence, value.n, value.counted) for value in actual.values()} == {
            (CONFIDENCE, draws.cost, "candidates")
        }
        assert all(value.method.endswith(ending) for value in actual.values())


def test_an_infinite_divergence_says_why():
    forbids = Tilted(BASE, lambda x: torch.where((x.counted & (x.tokens == 1)).any(-1), torch.inf, 0.0).double())
    actual = divergences(forbids, Importance()(forbids, empty_prompts(1), 40, rng=SeededRng(0)), confidence=CONFIDENCE)[
        "reverse_kl"
    ]
    why = "one distribution forbids a draw that the other allows"
    assert actual == Estimate(math.inf, math.inf, math.inf, CONFIDENCE, 40, why, "nats")
