"""What every estimate says of itself beside its value: its rate, how much chance it rests on, its unit and its replicates."""

import math
from dataclasses import replace

import pytest
import torch
from languages import random_target

from esscher.estimate import Estimate
from esscher.estimators.beginnings import log_beginnings
from esscher.estimators.blocks import ratio_of_sums
from esscher.estimators.context_length import ContextLosses
from esscher.estimators.divergences import divergences, quasi_rejection_gap
from esscher.estimators.energy_histograms import compare_energies
from esscher.estimators.exposure import Levels, exposure_of
from esscher.estimators.exposure_ratio import OwnScores, ratio_of
from esscher.estimators.intervals import interval
from esscher.estimators.log_z import log_z, log_z_bounds, log_z_spread
from esscher.estimators.moments import moments
from esscher.estimators.next_token import next_tokens
from esscher.estimators.perplexity import as_bits, as_perplexity, cross_entropy, saved_by_tilting, units_of
from esscher.estimators.perplexity_bounds import bounded_cross_entropy, guaranteed_cross_entropy
from esscher.estimators.populations import populations
from esscher.estimators.preference import agreement_of
from esscher.estimators.proportions import proportion
from esscher.estimators.rank import mean_divergence, spread_of
from esscher.estimators.repetition import unique_ngrams
from esscher.estimators.scored import scored
from esscher.estimators.steps import per_step
from esscher.estimators.streams import stream_cross_entropy
from esscher.randomness import Seeded
from esscher.samplers.importance import Importance
from esscher.samplers.rejection import QuasiRejection
from esscher.space import Space, empty_prompts, prompts_of, sequences
from esscher.target import Tilted

LEVEL = 0.8
TARGET = random_target(Space(3, 4, eos=0))
ALONE, BASE = Tilted(TARGET.base), TARGET.base
X = sequences([[1, 2, 0], [2, 0], [1, 1, 2, 1]])  # 9 tokens after one prompt
TWO = sequences([[1, 2, 0], [2, 0], [1, 1, 2, 1]], [[], [1], []])
SAME = Importance()(TARGET, empty_prompts(2), 5, rng=Seeded(0))
RUNS = replace(SAME, independent=False)
AFTER_TWO = Importance()(TARGET, prompts_of([[], [1]]), 5, rng=Seeded(1))
WORDS = {"word": torch.tensor([2, 1, 3])}


def of_x(draws=SAME, x=X, **options):
    return cross_entropy(TARGET, x, draws=draws, level=LEVEL, **options)["token"]


def step(number: int, **options):
    return per_step(TARGET, X, Importance(), 5, level=LEVEL, rng=Seeded(0), **options)[number]


def levels(rows: int) -> Levels:
    every = torch.arange(2.0 * rows, dtype=torch.float64).view(rows, 2).sin()
    return Levels(every, torch.ones(rows, 2, dtype=torch.bool), torch.ones(rows).double(), torch.arange(rows))


def own(seed: int) -> OwnScores:
    return OwnScores(torch.randn(12, 2, generator=torch.Generator().manual_seed(seed)).double(), torch.ones(12, 2).bool())


def compared():
    return compare_energies(
        TARGET, populations(X, Importance()(TARGET, empty_prompts(1), 5, rng=Seeded(0))), level=LEVEL, rng=Seeded(0)
    )


LOG_PROBS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double().log_softmax(-1)
SERIES = torch.arange(90.0).cos().double()
LOSSES = ContextLosses((1, 2), {"one": SERIES.abs().view(2, 45), "other": SERIES.square().view(2, 45)})
JACKKNIFE = "skewness-corrected infinitesimal jackknife"
COUNTED = "end symbols counted, prompts not"
CASES = {  # the estimate, what it counts as draws, its unit, and the end of its method
    "interval": (
        lambda: interval(lambda c: (c[0] * SERIES).sum() / c.sum(), [(1, 90)], level=LEVEL, draws=7, method="x"), 7, "", "x"
    ),
    "no spread": (
        lambda: interval(lambda c: c.sum() / c.sum(), [(1, 9)], level=LEVEL, draws=7, method="x", unit="m"), 7, "m", "x"
    ),
    "log_z": (lambda: log_z(SAME, level=LEVEL), 10, "nats", f"log of the mean weight, {JACKKNIFE}; 10 draws"),
    "log_z, runs": (lambda: log_z(RUNS, level=LEVEL), 10, "nats", f"{JACKKNIFE}; 2 runs of 5 draws"),
    "log_z, fixed": (
        lambda: log_z(AFTER_TWO, prompts="fixed", level=LEVEL), 10, "nats",
        f"{JACKKNIFE}, bias corrected; 5 draws for each of 2 fixed prompts",
    ),
    "log_z, sample": (
        lambda: log_z(AFTER_TWO, prompts="sample", level=LEVEL), 10, "nats",
        f"{JACKKNIFE}, bias corrected; 2 prompts as a sample, 5 draws each",
    ),
    "log_z_spread": (
        lambda: log_z_spread(AFTER_TWO, level=LEVEL), 10, "nats",
        "spread over 2 prompts as a sample, less the error of 5 draws each",
    ),
    "log_z_bounds, lower": (lambda: log_z_bounds(SAME, level=LEVEL).lower, 10, "nats", "lower bound in expectation, T_5"),
    "log_z_bounds, upper": (
        lambda: log_z_bounds(SAME, level=LEVEL).upper, 10, "nats", "asymptotic upper bound, leave-one-out at n = 5"
    ),
    "moments": (
        lambda: moments(SAME, SAME.log_base[..., None], level=LEVEL)[0], 10, "",
        f"self-normalised mean, {JACKKNIFE}, bias corrected; 10 draws",
    ),
    "moments, runs": (
        lambda: moments(RUNS, SAME.log_base[..., None], level=LEVEL)[0], 10, "", f"{JACKKNIFE}, bias left in; 2 runs of 5 draws"
    ),
    **{
        f"divergences, {name}": (
            lambda name=name: divergences(TARGET, SAME, level=LEVEL)[name], 10, unit,
            f"weighted draws, {JACKKNIFE}{', bias corrected' if 'kl' in name else ''}; 10 draws",
        )
        for name, unit in (("kl", "nats"), ("reverse_kl", "nats"), ("tv", ""), ("js", "nats"))
    },
    "base, sample": (
        lambda: cross_entropy(ALONE, X, level=LEVEL)["token"], 3, "nats per token", f"3 test sequences as a sample, {COUNTED}"
    ),
    "base, words": (lambda: cross_entropy(ALONE, X, units=WORDS, level=LEVEL)["word"], 3, "nats per word", COUNTED),
    "tilted, one prompt": (
        of_x, 10, "nats per token", f"3 test sequences (sample) after 1 prompt, 10 draws each, {COUNTED}"
    ),
    "tilted, fixed": (
        lambda: of_x(test="fixed"), 10, "nats per token", f"3 test sequences (fixed) after 1 prompt, 10 draws each, {COUNTED}"
    ),
    "tilted, runs": (
        lambda: of_x(RUNS), 10, "nats per token", f"(sample) after 1 prompt, 2 runs of 5 dependent draws each, {COUNTED}"
    ),
    "tilted, two prompts": (
        lambda: of_x(AFTER_TWO, TWO), 10, "nats per token",
        f"3 test sequences (sample) after 2 prompts, 5 draws each, bias of each log Z corrected, {COUNTED}",
    ),
    "saved": (
        lambda: saved_by_tilting(scored(TARGET, X, SAME), units_of(X, WORDS), test="sample", level=LEVEL)["word"], 10,
        "nats per word", COUNTED,
    ),
    "perplexity": (lambda: as_perplexity({"token": of_x()})["token"], 10, "per token", COUNTED),
    "bits": (lambda: as_bits({"token": of_x()})["token"], 10, "bits per token", COUNTED),
    "guaranteed": (
        lambda: guaranteed_cross_entropy(scored(TARGET, X, SAME), units_of(X, WORDS), bounds=(-9, 9), level=LEVEL)["word"], 10,
        "nats per word", f"exact at 10 draws, for log weights in [-9, 9]; fixed test set, {COUNTED}",
    ),
    "step, base": (lambda: step(1).base, 3, "nats per token", "base; 3 sequences as a sample"),
    "step, tilted": (
        lambda: step(1).tilted, 3, "nats per token", "5 draws after each prefix, bias corrected; 3 sequences as a sample"
    ),
    "step, lower": (
        lambda: step(1).bounds.lower, 3, "nats per token",
        "lower bound in expectation, 5 draws after each prefix; 3 sequences as a sample",
    ),
    "step, upper": (lambda: step(1).bounds.upper, 3, "nats per token", "after each prefix; 3 sequences as a sample"),
    "step, fixed": (
        lambda: step(0, test="fixed").saved, 30, "nats per token", "5 draws after each prefix, bias corrected, fixed test set"
    ),
    "step, one sequence": (
        lambda: step(3).base, 1, "nats per token", "base; one sequence reaches this position, so there is no interval"
    ),
    "exposure": (
        lambda: exposure_of(levels(11), levels(13), sources=((1, 11), (1, 13)), level=LEVEL).mean, 24, "nats",
        f"bias corrected, {JACKKNIFE}; 11 replicates of the data, 13 of the draws",
    ),
    "ratio, greedy": (
        lambda: ratio_of(own(0), own(1), torch.arange(12), level=LEVEL).at[1].ratio, 12, "",
        "greedy outputs of both, 12 replicates; as a binomial share of 10",
    ),
    "ratio, sampled": (
        lambda: ratio_of(own(0), own(1), torch.arange(12), greedy=False, level=LEVEL).ratio, 24, "",
        "sampled outputs of both, 12 replicates; as a binomial share of 21",
    ),
    "beginnings": (
        lambda: log_beginnings(TARGET, sequences([[1]]), 5, level=LEVEL, rng=Seeded(0)).each[0], 5, "nats",
        "5 draws after each prompt and each beginning",
    ),
    "next tokens": (
        lambda: next_tokens(TARGET, empty_prompts(1), top=1, draws=5, level=LEVEL, rng=Seeded(2)).rows[0].joint, 15, "",
        "ratio of mean weights, 5 draws for each of 3 rows",
    ),
    "blocks": (
        lambda: ratio_of_sums(SERIES, torch.ones(90).double(), level=LEVEL, unit="m"), 90, "m", "blocks of 2 tokens"
    ),
    "one block": (
        lambda: ratio_of_sums(torch.ones(1), torch.ones(1), level=LEVEL, unit="m"), 1, "m", "one block: no interval"
    ),
    "stream": (
        lambda: stream_cross_entropy(-SERIES.abs(), {"byte": torch.ones(90)}, level=LEVEL)["byte"], 90, "nats per byte",
        " tokens",
    ),
    "context": (lambda: LOSSES.by_length("one", level=LEVEL)[0], 45, "nats per token", "40 blocks of 1 places"),
    "effective context": (
        lambda: LOSSES.effective_length("one", 0.5, level=LEVEL, rng=Seeded(0)), 45, "tokens",
        "200 resamples of 45 places, 2 models",
    ),
    "divergence of contexts": (lambda: mean_divergence(LOG_PROBS, level=LEVEL), 6, "nats", "pairs of 6 contexts in 6 blocks"),
    "spread of contexts": (lambda: spread_of(LOG_PROBS, level=LEVEL).divergence, 6, "nats", "pairs of 6 contexts in 6 blocks"),
    "energies, mean": (lambda: compared().mean["joint"], 8, "nats", "mean; 3 sequences and 5 draws after one prompt"),
    "energies, above": (
        lambda: compared().above["joint"], 8, "nats", "difference of means; 3 sequences and 5 draws after one prompt"
    ),
    "energies, distance": (
        lambda: compared().distance["base"], 8, "nats",
        "half-width from 400 bootstraps of its error; 3 sequences and 5 draws after one prompt",
    ),
    "n-grams": (
        lambda: unique_ngrams(populations(TWO, AFTER_TWO), [2], level=LEVEL)[0].above["joint"], 13, "",
        "difference of different 2-grams of a point over all of them; 3 sequences after 2 prompts, 5 draws each",
    ),
    "effective draws": (
        lambda: populations(TWO, AFTER_TWO).effective(level=LEVEL), 13, "draws",
        "mean; 3 sequences after 2 prompts, 5 draws each",
    ),
    "proportion": (
        lambda: proportion(lambda c: c[0, 0] / c.sum(), [(1, 4)], level=LEVEL, draws=4, method="x"), 4, "",
        "x; as a binomial share of 2",
    ),
    "agreement": (lambda: agreement_of([["a", "b"], ["a", "a"], ["b", "b"]], level=LEVEL)[0], 3, "", "3 pairs as a sample"),
    "alpha": (lambda: agreement_of([["a", "b"], ["a", "a"], ["b", "b"]], level=LEVEL)[1], 3, "", "3 pairs as a sample"),
    "all agree": (lambda: agreement_of([["a", "a"], ["b", "b"]], level=LEVEL)[0], 2, "", "2 pairs, Clopper-Pearson"),
}  # fmt: skip
EXACT = {  # numbers without chance: their unit and their method
    "base, fixed": (
        lambda: cross_entropy(ALONE, X, test="fixed")["token"], "nats per token", f"exact, fixed test set, {COUNTED}"
    ),
    "step, base, fixed": (lambda: step(0, test="fixed").base, "nats per token", "exact, fixed test set"),
    "step, last, fixed": (
        lambda: step(3, test="fixed").tilted, "nats per token", "the rest summed up, fixed test set"
    ),
    "beginnings of a base": (lambda: log_beginnings(ALONE, X, 5, rng=Seeded(0)).total, "nats", "exact"),
    "stream, fixed": (
        lambda: stream_cross_entropy(-SERIES.abs(), {"byte": torch.ones(90)}, test="fixed")["byte"], "nats per byte",
        "exact, fixed text",
    ),
    "rank": (lambda: spread_of(LOG_PROBS).rank, "", "singular values above round-off"),
    "effective draws": (
        lambda: populations(X, Importance()(TARGET, empty_prompts(1), 5, rng=Seeded(0))).effective(), "draws",
        "of these very draws",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rate_chance_unit_and_replicates(name):
    make, draws, unit, method = CASES[name]
    found = make()
    assert (found.level, found.draws, found.unit) == (LEVEL, draws, unit)
    assert found.method.endswith(method)


@pytest.mark.parametrize("name", EXACT)
def test_what_is_known_without_chance(name):
    make, unit, method = EXACT[name]
    found = make()
    assert found == Estimate.exact(found.value, method=method, unit=unit)


def test_the_bounds_of_the_paper_state_no_rate():
    (found,) = bounded_cross_entropy(scored(TARGET, X, SAME), units_of(X, WORDS)).values()
    assert math.isnan(found.level) and (found.draws, found.unit) == (10, "nats per word")
    assert found.method.endswith(f"no stated rate; 10 draws for each of 1 fixed prompts, {COUNTED}")


def test_what_was_proposed_counts_where_it_was_rejected():
    draws = QuasiRejection(0.5)(TARGET, prompts_of([[], [1]]), 4, rng=Seeded(0))
    for prompts, ending in (("fixed", "candidates"), ("sample", "candidates, 2 prompts as a sample")):
        found = quasi_rejection_gap(draws, 0.2, prompts=prompts, level=LEVEL)
        assert [one.unit for one in found.values()] == ["nats", "nats", "", "nats"]
        assert {(one.level, one.draws) for one in found.values()} == {(LEVEL, draws.cost)}
        assert all(one.method.endswith(f"; {draws.cost} {ending}") for one in found.values())


def test_an_infinite_divergence_says_why():
    forbids = Tilted(BASE, lambda x: torch.where((x.counted & (x.tokens == 1)).any(-1), torch.inf, 0.0).double())
    found = divergences(forbids, Importance()(forbids, empty_prompts(1), 40, rng=Seeded(0)), level=LEVEL)["reverse_kl"]
    why = "one distribution forbids a draw that the other allows"
    assert found == Estimate(math.inf, math.inf, math.inf, LEVEL, 40, why, "nats")
