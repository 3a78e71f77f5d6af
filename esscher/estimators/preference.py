"""Which of two models people prefer, from votes on pairs of their texts, and how far the people agree.

    rate       share of pairs whose majority prefers B, with the exact (Clopper-Pearson) interval
    p_value    of the exact two-sided binomial test that the rate is 1/2
    agreement  share of pairs of votes on the same pair that are equal; `alpha` is Krippendorff's, which takes off chance

Pairs are the replicates, votes on one pair are not: their majority counts once, and a pair without one (a tie, or "equal") is
left out of the rate. Raters who fail too many attention checks are left out beforehand.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

from esscher.estimate import Estimate

Choice = Literal["a", "b", "equal"]
TRUSTED = 2 / 3  # of a rater's attention checks that must be right


class Vote(NamedTuple):
    """One rater's word on one pair."""

    pair: str
    rater: str
    choice: Choice


@dataclass(frozen=True)
class Preference:
    """What the votes come to."""

    rate: Estimate | None  # of B, over pairs with a majority; None where no pair has one
    p_value: float | None
    pairs: int  # with a majority
    undecided: int
    votes: Mapping[str, int]  # how often each choice was made
    agreement: float | None  # None where no pair has two votes
    alpha: float | None
    left_out: Mapping[str, float]  # raters with too few checks right, and their share of right ones


def preference(votes: Sequence[Vote], checks: Mapping[str, Choice], *, level: float = 0.95) -> Preference:
    """The preference for B over A; `checks` are the pairs whose right answer is known, which count for nothing else."""
    from scipy.stats import binomtest

    right = attention(votes, checks)
    left_out = {rater: share for rater, share in right.items() if share < TRUSTED}
    kept = [vote for vote in votes if vote.pair not in checks and vote.rater not in left_out]
    by_pair: dict[str, list[Choice]] = defaultdict(list)
    for vote in kept:
        by_pair[vote.pair].append(vote.choice)
    winners = [_majority(choices) for choices in by_pair.values()]
    for_b, decided = winners.count("b"), sum(winner is not None for winner in winners)
    rate = p_value = None
    if decided:
        test = binomtest(for_b, decided)
        low, high = test.proportion_ci(level, "exact")
        method = f"majorities of {decided} pairs, Clopper-Pearson"
        rate, p_value = Estimate(for_b / decided, float(low), float(high), level, decided, method), float(test.pvalue)
    agreement, alpha = agreement_of(list(by_pair.values()))
    counted: dict[str, int] = {choice: sum(vote.choice == choice for vote in kept) for choice in ("a", "b", "equal")}
    return Preference(rate, p_value, decided, len(winners) - decided, counted, agreement, alpha, left_out)


def attention(votes: Sequence[Vote], checks: Mapping[str, Choice]) -> dict[str, float]:
    """Each rater's share of right answers to the checks; raters who met none are not listed."""
    met: dict[str, list[bool]] = defaultdict(list)
    for vote in votes:
        if vote.pair in checks:
            met[vote.rater].append(vote.choice == checks[vote.pair])
    return {rater: sum(found) / len(found) for rater, found in met.items()}


def agreement_of(votes: Sequence[Sequence[Choice]]) -> tuple[float | None, float | None]:
    """Observed agreement and Krippendorff's alpha for unordered choices; `votes` are those on each pair."""
    several = [choices for choices in votes if len(choices) > 1]
    if not several:
        return None, None
    total = sum(len(choices) for choices in several)
    same = [sum(one == other for one, other in combinations(choices, 2)) for choices in several]
    agreement = sum(same) / sum(math.comb(len(choices), 2) for choices in several)
    apart = sum(
        2 * (math.comb(len(choices), 2) - equal) / (len(choices) - 1) for choices, equal in zip(several, same, strict=True)
    )
    counts = Counter(choice for choices in several for choice in choices)
    by_chance = (total**2 - sum(count**2 for count in counts.values())) / (total - 1)
    return agreement, 1.0 if by_chance == 0 else 1 - apart / by_chance


def _majority(choices: Sequence[Choice]) -> Choice | None:
    """The model that more voters prefer; None where neither has more."""
    for_a, for_b = choices.count("a"), choices.count("b")
    return None if for_a == for_b else "a" if for_a > for_b else "b"
