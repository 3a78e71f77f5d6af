"""Preference rates against counts by hand and the exact binomial law."""

import math

import pytest

from esscher.estimators.preference import Vote, agreement_of, preference


def ballots(choices, rater="r"):
    return [Vote(f"p{number}", rater, choice) for number, choice in enumerate(choices)]


def test_nine_of_ten():
    found = preference(ballots("b" * 9 + "a"), {})
    assert found.rate.value == 0.9 and found.pairs == 10 and found.undecided == 0
    assert found.p_value == pytest.approx(2 * (1 + 10) / 2**10)
    assert found.rate.low == pytest.approx(0.5550, abs=1e-4) and found.rate.high == pytest.approx(0.9975, abs=1e-4)


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
    found = preference([*votes, Vote("even", "x", "equal")], {})
    assert (found.rate.value, found.pairs, found.undecided) == (1.0, 2, 2)
    assert found.votes == {"a": 2, "b": 6, "equal": 1}


def test_raters_who_do_not_look_are_left_out():
    checks = {"c0": "a", "c1": "a"}
    careful = [*ballots("bbb", "careful"), Vote("c0", "careful", "a"), Vote("c1", "careful", "a")]
    careless = [*ballots("aaa", "careless"), Vote("c0", "careless", "b"), Vote("c1", "careless", "a")]
    found = preference([*careful, *careless], checks)
    assert found.left_out == {"careless": 0.5} and found.rate.value == 1.0 and found.pairs == 3
    assert preference([*careful, *careless], {}).undecided == 4


def test_nothing_yet():
    found = preference([], {})
    assert found.rate is None and found.p_value is None and found.agreement is None


def test_agreement_by_hand():
    assert agreement_of([["a", "a"], ["b", "b"]]) == (1.0, 1.0)
    agreed, alpha = agreement_of([["a", "a"], ["b", "b"], ["a", "b"], ["a"]])
    assert agreed == pytest.approx(2 / 3)
    assert alpha == pytest.approx(1 - (5 * 2) / (2 * 3 * 3))  # (n - 1) times disagreements, over products of the margins
    assert agreement_of([["a", "b"], ["b", "a"]])[1] < 0
