"""Every estimator covers at its stated rate: the test that shows it, or the tiny process here on which it is shown.

An estimator is a public function below the verbs whose result is an `Estimate`, or holds one.
"""

import ast
import dataclasses
import inspect
import math
import typing
from pathlib import Path

import pytest
import torch
from laws.parts import annotation, check_complete, parts

from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.metrics.labels import accuracy, macro_f1, matthews, pearson, share, spearman
from esscher.metrics.metric import word_ratio
from esscher.papers.games.evaluation import error_rate, mean_image_rmse
from esscher.papers.games.points import Points
from esscher.testing import assert_covers

TESTS = Path(__file__).parents[1]
LAYERS = ("bases", "energies", "samplers", "estimators", "metrics", "decoding", "objectives", "exact")
GAMES = "esscher.papers.games"  # of all papers, only what several of them share
SHOWN = {  # where coverage is asserted
    "papers.divergence": "papers/test_games_plane.py::test_the_interval_of_a_counted_divergence_covers",
    "estimators.prefix_log_probs": "estimators/test_continuations.py::test_intervals_cover_at_their_rate",
    "estimators.ratio_of_sums": "estimators/test_stream_estimators.py::test_blocks_cover_and_single_tokens_do_not",
    "estimators.divergences": "estimators/test_moments_divergences.py::test_moments_and_divergences_cover",
    "estimators.moments": "estimators/test_moments_divergences.py::test_moments_and_divergences_cover",
    "estimators.quasi_rejection_gap": "estimators/test_moments_divergences.py::test_quasi_rejection_gap_covers",
    "estimators.wasserstein": "estimators/test_populations.py::test_the_distance_covers_zero_where_joint_and_data_are_equal",
    "estimators.exposure_of": "estimators/test_exposure_bias.py::test_intervals_cover_the_exact_bound",
    "estimators.ratio_of": "estimators/test_exposure_ratio.py::test_tokens_as_replicates_cover_too_seldom",
    "estimators.betting_log_z": (
        "estimators/test_log_z.py::test_guarantee_covers_at_small_numbers_of_draws_where_the_interval_is_unbounded"
    ),
    "estimators.betting_mean_log_z": "estimators/test_measure.py::test_the_guarantee_for_a_mean_keeps_its_word",
    "estimators.guaranteed_cross_entropy": "estimators/test_measure.py::test_the_guarantee_of_a_perplexity_covers",
    "estimators.interval": "estimators/test_intervals.py::test_coverage_for_heavy_tails_and_the_naive_interval_that_fails",
    "estimators.log_z": "estimators/test_log_z.py::test_per_prompt_intervals_cover",
    "estimators.mbar_log_z": "estimators/test_mbar.py::test_runs_as_replicates_cover",
    "estimators.mbar_moments": "estimators/test_mbar.py::test_runs_as_replicates_cover",
    "estimators.log_z_std": (
        "estimators/test_measure.py::test_the_spread_of_log_z_covers_and_without_the_correction_it_does_not"
    ),
    "estimators.next_tokens": "estimators/test_next_token.py::test_intervals_cover",
    "estimators.cross_entropy": ("estimators/test_perplexity.py::test_tilted_interval_covers_and_ignoring_a_source_does_not"),
    "estimators.cross_entropy_reduction": (
        "estimators/test_perplexity.py::test_what_tilting_saves_is_covered_at_the_stated_rate"
    ),
    "estimators.preference": "estimators/test_preference.py::test_the_exact_interval_covers_at_its_rate",
    "estimators.agreement_of": "estimators/test_preference.py::test_intervals_of_agreement_cover_at_their_rate",
    "estimators.proportion": "estimators/test_proportions.py::test_covers_at_its_rate",
    "estimators.mean_divergence": "estimators/test_log_prob_rank.py::test_the_interval_covers_the_divergence_of_two_contexts",
    "estimators.unique_ngrams": "estimators/test_repetition.py::test_intervals_cover_the_exact_ratio",
    "estimators.per_position": "estimators/test_per_position.py::test_intervals_cover_every_position",
    "metrics.corpus_value": "metrics/test_metric.py::test_the_intervals_cover_and_wrong_ones_do_not",
    "metrics.paired_comparison": "metrics/test_comparison.py::test_differences_cover_and_unpaired_ones_are_wide",
    "metrics.randomisation_p_value": "metrics/test_comparison.py::test_systems_that_are_alike_part_at_the_stated_rate",
    "objectives.match_moments": "objectives/test_moment_matching.py::test_intervals_cover_the_exact_weights",
}
APART = {
    "energies.load_energy": "reads what was measured when the energy was saved",
    "energies.load_twist": "reads what was measured when the twist was learnt",
    "estimators.direct_probability": "is the interval of Clopper and Pearson: test_rare_events.py",
    "estimators.weighted_probability": "is `log_mean` of weights: test_rare_events.py, and `esscher reproduce risk`",
    "estimators.twisted_runs_probability": "needs runs of particles: test_rare_events.py, and `esscher reproduce risk`",
    "estimators.contradicted": "compares two intervals",
    "estimators.splitting_probability": "needs runs of splitting: test_rare_events.py, and `esscher reproduce risk`",
    "papers.probe_error": "is `error_rate` of a fitted probe",
    "estimators.estimate_from_draws": "is `interval`, of replicates",
    "estimators.compare_energies": "is `wasserstein`, and shares of populations",
    "estimators.exposure": "is `exposure_of` of draws",
    "estimators.exposure_ratio": "is `ratio_of` of draws",
    "estimators.log_z_bounds": "two ends on both sides of log Z, whose truth they hold on average: test_log_z.py",
    "estimators.bounded_cross_entropy": "is `log_z_bounds`",
    "estimators.measure": "is all of `perplexity`, `log_z`, ... in one call",
    "estimators.measure_with_draws": "is the same of draws at hand",
    "estimators.perplexity": "is `cross_entropy`, in another unit",
    "estimators.as_perplexity": "is another unit",
    "estimators.as_bits": "is another unit",
    "estimators.nonnegative": "is another end of the interval",
    "estimators.combined": "is `interval` of parts: test_perplexity.py, where both chances are covered",
    "estimators.one_replicate": "has all that is possible as its interval",
    "estimators.divergences_of_densities": "is `divergences` of densities at hand",
    "estimators.log_mean_weight": "is `log_z` of weights at hand",
    "estimators.base_cross_entropy": "is `cross_entropy` of scores at hand",
    "estimators.tilted_cross_entropy": "is `cross_entropy` of scores at hand",
    "estimators.log_prob_spectrum": "is `mean_divergence`, and the shares beside it",
    "estimators.stream_cross_entropy": "is `ratio_of_sums`",
    "metrics.corpus_difference": "is `corpus_value` of pairs: test_metric.py::test_differences_are_paired",
    "metrics.by_length": "is `corpus_value` of groups",
    "metrics.score_translation": "is `paired_comparison` and `by_length`",
}
TABLE = torch.tensor([[0.3, 0.06, 0.04], [0.05, 0.2, 0.05], [0.1, 0.05, 0.15]], dtype=torch.float64)  # predicted, right
EACH = [str(number) for number in range(150)]


def classes(rng: SeededRng) -> tuple[list[int], list[int]]:
    cell = rng.categorical(TABLE.flatten()[None].log(), len(EACH))[0]
    return (cell // 3).tolist(), (cell % 3).tolist()


def numbers(rng: SeededRng) -> tuple[list[float], list[float]]:
    """Normal, with correlation 0.6."""
    item, other = rng.normal(2, len(EACH)).double()
    return item.tolist(), (0.6 * item + 0.8 * other).tolist()


def hits(rng: SeededRng) -> list[bool]:
    return rng.bernoulli(torch.full((len(EACH),), 0.7).log()).tolist()


def lines(rng: SeededRng) -> tuple[list[str], list[str]]:
    """1 to 9 words for 2 to 8, independently: as many in the mean."""
    ours, theirs = (rng.categorical(torch.zeros(1, count), len(EACH))[0] + first for count, first in ((9, 1), (7, 2)))
    return ["a " * int(size) for size in ours], ["b " * int(size) for size in theirs]


def images(rng: SeededRng) -> tuple[Points, Points]:
    """Of 400 pixels, those of the first brighter by 0.1: less than the means of so few differ by chance."""
    ours, theirs = rng.normal(2, len(EACH), 400).double()
    return Points(ours + 0.1), Points(theirs)


def true_matthews() -> float:
    said, right = TABLE.sum(1), TABLE.sum(0)
    spread = (1 - (said**2).sum()) * (1 - (right**2).sum())
    return float((TABLE.trace() - (said * right).sum()) / spread.sqrt())


TRIED = {  # an estimate from a seed, and the truth
    "metrics.accuracy": (lambda rng: accuracy(hits(rng), EACH), 0.7),
    "metrics.share": (lambda rng: share([float(one) for one in hits(rng)], EACH, method="x"), 0.7),
    "metrics.macro_f1": (
        lambda rng: macro_f1(*classes(rng), EACH), float((2 * TABLE.diagonal() / (TABLE.sum(0) + TABLE.sum(1))).mean()),
    ),
    "metrics.matthews": (lambda rng: matthews(*classes(rng), EACH), true_matthews()),
    "metrics.pearson": (lambda rng: pearson(*numbers(rng), EACH), 0.6),
    "metrics.spearman": (lambda rng: spearman(*numbers(rng), EACH), 6 / math.pi * math.asin(0.3)),
    "metrics.word_ratio": (lambda rng: word_ratio(*lines(rng)), 1.0),
    "papers.mean_image_rmse": (lambda rng: mean_image_rmse(*images(rng)), 0.1),
    "papers.error_rate": (lambda rng: error_rate(torch.tensor(hits(rng)).double()), 70.0),
}  # fmt: skip
REPLICATIONS = 60


def holds_an_estimate(kind: object, depth: int = 0) -> bool:
    if kind is Estimate or depth > 3:
        return kind is Estimate
    if inspect.isclass(kind) and not typing.get_args(kind):
        fields = [field.type for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
        fields += list(getattr(kind, "__annotations__", {}).values()) if issubclass(kind, tuple) else []
        return any(holds_an_estimate(field, depth + 1) for field in fields)
    return any(holds_an_estimate(part, depth + 1) for part in typing.get_args(kind))


def test_the_list_is_complete():
    actual = parts(lambda part: inspect.isfunction(part) and holds_an_estimate(annotation(part, "return")))
    below = [name for name, part in actual.items() if name.split(".")[0] in LAYERS or part.__module__.startswith(GAMES)]
    assert not SHOWN.keys() & TRIED.keys()
    check_complete(below, {**SHOWN, **TRIED}, APART, __file__)


def says_cover(place: str) -> bool:
    """There is such a test, and coverage is its matter."""
    file, _, name = place.partition("::")
    tree = ast.parse((TESTS / file).read_text())
    actual = [item for item in tree.body if isinstance(item, ast.FunctionDef) and item.name == name]
    return len(actual) == 1 and "cover" in (TESTS / file).read_text()


@pytest.mark.parametrize("name", SHOWN)
def test_the_test_that_shows_coverage_is_there(name):
    assert says_cover(SHOWN[name]), f"{SHOWN[name]} is no test of coverage: name another in {__file__}, or write it"
    assert not says_cover(f"{SHOWN[name]}_no_more")


@pytest.mark.parametrize("name", TRIED)
def test_intervals_cover_at_their_rate(name):
    """False-alarm rate 1e-3 for each; the seed is fixed. An interval for another truth is caught."""
    estimator, truth = TRIED[name]
    actual = [estimator(SeededRng(number, name)) for number in range(REPLICATIONS)]
    assert_covers(sum(item.covers(truth) for item in actual), REPLICATIONS, actual[0].confidence)
    with pytest.raises(AssertionError):
        assert_covers(sum(item.covers(0.8 * truth) for item in actual), REPLICATIONS, actual[0].confidence)
