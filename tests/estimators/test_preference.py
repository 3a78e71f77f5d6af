"""Preference rates against counts by hand and the exact binomial law."""

import math
import random
from itertools import combinations

import pytest

from esscher.estimators.preference import Vote, agreement_of, preference


def ballots(choices, rater="r"):
    return [Vote(f"p{number}", rater, choice) for number, choice in enumerate(choices)]


def test_nine_of_ten():
    actual = preference(ballots("b" * 9 + "a"), {})
    assert actual.rate.value == 0.9 and actual.pairs == 10 and actual.undecided == 0
    assert actual.p_value == pytest.approx(2 * (1 + 10) / 2**10)
    assert actual.rate.low == pytest.approx(0.5550, abs=1e-4) and actual.rate.high == pytest.approx(0.9975, abs=1e-4)


def test_the_exact_interval_covers_at_its_rate():
    """Summed over every outcome of 20 pairs, not drawn."""
    for truth in (0.1, 0.5, 0.77):
        covered = 0.0
        for wins in range(21):
            rate = preference(ballots("b" * wins + "a" * (20 - wins)), {}).rate
            covered += math.comb(20, wins) * truth**wins * (1 - truth) ** (20 - wins) * rate.covers(truth)
        assert covered >= 0.95


def test_a_majority_counts_once_and_ties_not_at_all():
    votes = [*ballots("ab", "x"), *ballots("bb", "y"), *ballots("bb", "z"), Vote("tied", "x", "a"), Vote("tied", "y", "b")]
    actual = preference([*votes, Vote("even", "x", "equal")], {})
    assert (actual.rate.value, actual.pairs, actual.undecided) == (1.0, 2, 2)
    assert actual.votes == {"a": 2, "b": 6, "equal": 1}


def test_raters_who_do_not_look_are_left_out():
    checks = {"c0": "a", "c1": "a"}
    careful = [*ballots("bbb", "careful"), Vote("c0", "careful", "a"), Vote("c1", "careful", "a")]
    careless = [*ballots("aaa", "careless"), Vote("c0", "careless", "b"), Vote("c1", "careless", "a")]
    actual = preference([*careful, *careless], checks)
    assert actual.left_out == {"careless": 0.5} and actual.rate.value == 1.0 and actual.pairs == 3
    assert preference([*careful, *careless], {}).undecided == 4


def test_nothing_yet():
    actual = preference([], {})
    assert actual.rate is None and actual.p_value is None and actual.agreement is None


def test_agreement_by_hand():
    agreed, alpha = agreement_of([["a", "a"], ["b", "b"], ["a", "b"], ["a"]])
    assert agreed.value == pytest.approx(2 / 3)
    assert alpha.value == pytest.approx(1 - (5 * 2) / (2 * 3 * 3))  # (n - 1) times disagreements, over products of the margins
    assert agreement_of([["a", "b"], ["b", "a"]])[1].value < 0


def test_raters_who_always_agree_are_not_known_to_do_so_for_ever():
    agreed, alpha = agreement_of([["a", "a"], ["b", "b"]])
    assert (agreed.value, agreed.high, alpha.value) == (1, 1, 1)
    assert agreed.low == pytest.approx(0.025**0.5) and alpha.low < agreed.low
    assert agreement_of([["a", "a"], ["a", "a"]])[1] is None


@pytest.mark.parametrize(("replicates", "calibrated"), [pytest.param("pairs", True, marks=pytest.mark.slow), ("votes", False)])
def test_intervals_of_agreement_cover_at_their_rate(replicates, calibrated):
    """Pairs that are easy (0.95 of raters prefer b), hard (even) or clear for a (0.8), alike often, five raters for each. Two
    votes on one pair taken for a replicate of its own, ten from each pair, cover far too rarely."""
    draws, shares = random.Random(0), (0.95, 0.5, 0.2)
    truth = sum(share**2 + (1 - share) ** 2 for share in shares) / 3
    mean = sum(shares) / 3
    truths, covered = (truth, 1 - (1 - truth) / (2 * mean * (1 - mean))), [0, 0]
    for _ in range(300):
        votes = [["b" if draws.random() < share else "a" for _ in range(5)] for share in draws.choices(shares, k=60)]
        if replicates == "votes":
            votes = [list(two) for choices in votes for two in combinations(choices, 2)]
        covered = [n + actual.covers(true) for n, actual, true in zip(covered, agreement_of(votes), truths, strict=True)]
    assert (min(covered) >= 276) == calibrated  # of 285 wanted; fewer than 276 by chance once in a hundred times
