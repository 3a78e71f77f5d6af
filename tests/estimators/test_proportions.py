"""Intervals of numbers in [0, 1]: coverage with replicates of several verdicts each, and where all agree."""

import pytest
import torch

from esscher.estimators.intervals import interval, proportion
from esscher.testing import assert_covers

CONFIDENCE = 0.9


def mean_of(score):
    return lambda count: (count[0] * score).sum() / count.sum()


def scores(generator, share: float, replicates: int, verdicts: int):
    """Replicates differ: each has its own share, a beta number around `share`, and so many verdicts."""
    strength = 4.0
    beta = torch.distributions.Beta(strength * share, strength * (1 - share))
    with torch.random.fork_rng():
        torch.random.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
        drawn = beta.sample((replicates,)).double()
    return (torch.rand(replicates, verdicts, generator=generator, dtype=torch.float64) < drawn[:, None]).double().mean(-1)


@pytest.mark.parametrize(("share", "verdicts"), [(0.5, 1), (0.85, 8)])
def test_covers_at_its_rate(share, verdicts):
    """False alarm 1e-3; an interval that takes every verdict for a replicate of its own is caught."""
    generator, hits, wrong = torch.Generator().manual_seed(1), 0, 0
    for _ in range(300):
        score = scores(generator, share, 60, verdicts)
        actual = proportion(mean_of(score), [(1, 60)], confidence=CONFIDENCE, n=60 * verdicts, method="")
        hits += actual.covers(share)
        split = torch.cat(
            [torch.ones(int((score * verdicts).sum())), torch.zeros(int(((1 - score) * verdicts).sum()))]
        ).double()
        each = proportion(mean_of(split), [(1, len(split))], confidence=CONFIDENCE, n=len(split), method="")
        wrong += each.covers(share)
    assert hits >= 0.9 * 300 or assert_covers(hits, 300, CONFIDENCE)
    assert hits / 300 < 0.96, "the price of a binomial interval is small"
    if verdicts > 1:
        with pytest.raises(AssertionError):
            assert_covers(wrong, 300, CONFIDENCE)


def test_when_all_agree_it_stays_an_interval():
    score = torch.ones(50, dtype=torch.float64)
    actual = proportion(mean_of(score), [(1, 50)], confidence=0.95, n=500, method="all right")
    assert (actual.value, actual.high) == (1.0, 1.0)
    assert actual.low == pytest.approx(0.025 ** (1 / 50))  # Clopper and Pearson at 50 of 50
    assert interval(mean_of(score), [(1, 50)], confidence=0.95, n=500, method="").low == 1.0  # which would be certainty
    nothing = proportion(mean_of(0 * score), [(1, 50)], confidence=0.95, n=500, method="")
    assert (nothing.low, nothing.value) == (0.0, 0.0) and nothing.high == pytest.approx(1 - actual.low)


def test_agreement_between_0_and_1_is_luck_for_verdicts_only():
    score = torch.full((50,), 0.25, dtype=torch.float64)
    actual = {
        kind: proportion(mean_of(score), [(1, 50)], confidence=0.95, n=200, method="", binary=kind) for kind in (True, False)
    }
    assert actual[True].low < 0.2 < 0.3 < actual[True].high
    assert actual[False].low == actual[False].value == actual[False].high == 0.25


def test_what_is_no_proportion_is_refused():
    with pytest.raises(ValueError, match=r"not at 2"):
        proportion(mean_of(torch.full((5,), 2.0, dtype=torch.float64)), [(1, 5)], confidence=0.95, n=5, method="")
