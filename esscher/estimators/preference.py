"""Which of two models people prefer, from votes on pairs of their texts, and how far the raters agree.

Pairs are the replicates: the majority of a pair counts once, and a pair without one (a tie, or "equal") is left out of the
rate. The p-value is that of the exact two-sided binomial test that the rate is 1/2. `alpha` is Krippendorff's, agreement
corrected for chance. The intervals of agreement and alpha are for other pairs, judged by the same raters.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from esscher.core.estimate import Estimate
from esscher.estimators.intervals import Statistic, interval, ratio

Choice = Literal["a", "b", "equal"]
CHOICES: tuple[Choice, ...] = get_args(Choice)
MIN_ATTENTION = 2 / 3  # of a rater's attention checks that must be right


class Vote(NamedTuple):
    """The choice of one rater on one pair."""

    pair: str
    rater: str
    choice: Choice


@dataclass(frozen=True)
class Preference:
    """Summary of the votes."""

    rate: Estimate | None  # of B, over pairs with a majority; None where no pair has one
    p_value: float | None
    pairs: int  # with a majority
    undecided: int
    votes: Mapping[str, int]  # how often each choice was made
    agreement: Estimate | None  # None where no pair has two votes
    alpha: Estimate | None  # None also where all votes are equal, so chance agreement is 1
    left_out: Mapping[str, float]  # share of correct attention checks of each excluded rater


def preference(votes: Sequence[Vote], checks: Mapping[str, Choice], *, confidence: float = 0.95) -> Preference:
    """The preference for B over A; `checks` has the correct choice of each attention check, used only to exclude raters."""
    from scipy.stats import binomtest

    right = attention(votes, checks)
    left_out = {rater: share for rater, share in right.items() if share < MIN_ATTENTION}
    valid = [vote for vote in votes if vote.pair not in checks and vote.rater not in left_out]
    by_pair: dict[str, list[Choice]] = defaultdict(list)
    for vote in valid:
        by_pair[vote.pair].append(vote.choice)
    leads = [choices.count("b") - choices.count("a") for choices in by_pair.values()]
    for_b, decided = sum(lead > 0 for lead in leads), sum(lead != 0 for lead in leads)
    rate = p_value = None
    if decided:
        test = binomtest(for_b, decided)
        low, high = test.proportion_ci(confidence, "exact")
        method = "majorities of pairs, Clopper-Pearson"
        rate = Estimate(for_b / decided, float(low), float(high), confidence, decided, method, counted="pairs")
        p_value = float(test.pvalue)
    agreement, alpha = agreement_of(list(by_pair.values()), confidence=confidence)
    counted: dict[str, int] = {choice: sum(vote.choice == choice for vote in valid) for choice in CHOICES}
    return Preference(rate, p_value, decided, len(leads) - decided, counted, agreement, alpha, left_out)


def attention(votes: Sequence[Vote], checks: Mapping[str, Choice]) -> dict[str, float]:
    """Each rater's share of correct attention checks; raters without checks are left out."""
    correct: dict[str, list[bool]] = defaultdict(list)
    for vote in votes:
        if vote.pair in checks:
            correct[vote.rater].append(vote.choice == checks[vote.pair])
    return {rater: sum(answers) / len(answers) for rater, answers in correct.items()}


def agreement_of(votes: Sequence[Sequence[Choice]], *, confidence: float = 0.95) -> tuple[Estimate | None, Estimate | None]:
    """Observed agreement and Krippendorff's alpha for nominal choices; `votes` has the choices on each pair."""
    several = [choices for choices in votes if len(choices) > 1]
    if not several:
        return None, None
    counts = torch.tensor([[choices.count(choice) for choice in CHOICES] for choices in several], dtype=torch.float64)
    voters = counts.sum(-1)
    meetings = voters * (voters - 1) / 2  # pairs of votes on the same pair
    same = (counts * (counts - 1) / 2).sum(-1)

    def by_chance(times: Tensor) -> Tensor:
        margins = (times[0, :, None] * counts).sum(0)
        return (margins.sum().square() - margins.square().sum()) / (margins.sum() - 1)

    def alpha(times: Tensor) -> Tensor:
        times = times * times.shape[1] / times.sum()
        return 1 - (times[0] * 2 * (meetings - same) / (voters - 1)).sum() / by_chance(times)

    pairs = len(several)
    once = torch.ones(1, pairs, dtype=torch.float64)

    def estimate(statistic: Statistic) -> Estimate:
        return interval(statistic, [(1, pairs)], confidence=confidence, n=pairs, method="jackknife", counted="pairs")

    agreed = estimate(ratio(same, meetings))
    if agreed.value == 1:  # no spread: as for `pairs` successes in a row
        agreed = replace(agreed, low=((1 - confidence) / 2) ** (1 / pairs), method="Clopper-Pearson")
    chance = float(by_chance(once) / voters.sum())
    if chance == 0:
        return agreed, None
    if agreed.value == 1:
        return agreed, replace(agreed, low=1 - (1 - agreed.low) / chance)
    return agreed, estimate(alpha)
