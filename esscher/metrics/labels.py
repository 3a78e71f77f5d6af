"""How good predictions are, with intervals: accuracy, F1, Matthews' and other correlations, answers within texts, rankings.

Replicates are groups of examples that may depend on each other (questions on one passage, passages of one book); an example
that stands alone is a group of its own. A number is a function of how often each group occurs, and its interval the one of all
numbers here (`esscher.estimators.intervals`; of shares `proportions`); ranks, too, are of the counted examples.

Letters: N examples, C classes, G groups, K documents of a query.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.estimate import Estimate
from esscher.estimators.intervals import interval
from esscher.estimators.proportions import proportion

LEVEL = 0.95  # of all intervals here
ARTICLES = re.compile(r"\b(a|an|the)\b")


def accuracy(right: Sequence[bool], groups: Sequence[str]) -> Estimate:
    """The share of predictions that are right."""
    return share([float(one) for one in right], groups, method="accuracy")


def share(values: Sequence[float], groups: Sequence[str], *, method: str, verdicts: bool = True) -> Estimate:
    """The mean of numbers in [0, 1], which are `verdicts` where they are 0 or 1."""
    number, count = _numbered(groups)
    told = torch.tensor(list(values), dtype=torch.float64)

    def mean(times: Float[Tensor, "1 G"]) -> Tensor:
        weight = times[0][number]
        return (weight * told).sum() / weight.sum()

    method = _method(method, len(told), count)
    if count < 2:
        return Estimate(float(told.mean()), 0.0, 1.0, LEVEL, len(told), f"{method}: no interval")
    return proportion(mean, [(1, count)], level=LEVEL, draws=len(told), method=method, verdicts=verdicts)


def macro_f1(predicted: Sequence[int], right: Sequence[int], groups: Sequence[str]) -> Estimate:
    """The mean over classes of 2 hits / (predicted + right); a class that is neither is left out."""

    def value(table: Float[Tensor, "C C"]) -> Tensor:
        size = table.sum(0) + table.sum(1)
        return (2 * table.diagonal()[size > 0] / size[size > 0]).mean()

    return _of_table(value, predicted, right, groups, "mean F1 of the classes")


def matthews(predicted: Sequence[int], right: Sequence[int], groups: Sequence[str]) -> Estimate:
    """The correlation of predicted and right classes (Gorodkin, 2004); 0 where either is always the same."""

    def value(table: Float[Tensor, "C C"]) -> Tensor:
        total, own, told = table.sum(), table.sum(0), table.sum(1)
        spread = (total**2 - own.square().sum()) * (total**2 - told.square().sum())
        return (table.diagonal().sum() * total - own @ told) / spread.clamp(min=1e-12).sqrt() * (spread > 1e-12)

    return _of_table(value, predicted, right, groups, "Matthews' correlation")


def pearson(predicted: Sequence[float], right: Sequence[float], groups: Sequence[str]) -> Estimate:
    """The correlation of two numbers."""
    return _correlation(predicted, right, groups, "Pearson's correlation", lambda weight, x: x)


def spearman(predicted: Sequence[float], right: Sequence[float], groups: Sequence[str]) -> Estimate:
    """The correlation of their ranks; equal numbers have equal ranks."""

    def ranks(weight: Float[Tensor, "N"], x: Float[Tensor, "N"]) -> Tensor:
        below = (x[:, None] > x).double() + (x[:, None] == x).double() / 2
        return below @ weight

    return _correlation(predicted, right, groups, "Spearman's correlation", ranks)


def plain_words(text: str) -> list[str]:
    """The words of an answer as SQuAD compares them: small letters, without articles and punctuation."""
    kept = "".join(one for one in text.lower() if one not in string.punctuation)
    return ARTICLES.sub(" ", kept).split()


def exact_match(said: str, answers: Sequence[str]) -> float:
    """Whether an answer is one of the right ones; where there is none, whether it is empty."""
    return float(any(plain_words(said) == plain_words(one) for one in answers or ("",)))


def word_f1(said: str, answers: Sequence[str]) -> float:
    """The best F1 of an answer's words with those of a right one; of no answer, whether both are empty."""
    return max(_overlap(plain_words(said), plain_words(one)) for one in answers or ("",))


def reciprocal_rank(scores: Float[Tensor, "K"], grades: Float[Tensor, "K"]) -> float:
    """1 over the rank of the first document with a grade above 0; the mean over the orders of equal scores is not taken: they
    stay in the order they were given in. 0 where there is none."""
    found = (grades[scores.argsort(descending=True, stable=True)] > 0).nonzero()
    return 1.0 / (int(found[0, 0]) + 1) if len(found) else 0.0


def discounted_gain(scores: Float[Tensor, "K"], grades: Float[Tensor, "K"], first: int = 20) -> float:
    """nDCG: the sum of (2^grade - 1) / log2(1 + rank) over the first documents, of the largest that could be; 0 of nothing."""

    def gain(order: Int[Tensor, "K"]) -> float:
        kept = grades[order][:first].double()
        return float(((2**kept - 1) / torch.arange(2, len(kept) + 2).double().log2()).sum())

    best = gain(grades.argsort(descending=True))
    return gain(scores.argsort(descending=True, stable=True)) / best if best > 0 else 0.0


def _overlap(said: list[str], right: list[str]) -> float:
    if not said or not right:
        return float(said == right)
    shared = sum((Counter(said) & Counter(right)).values())
    return 2 * shared / (len(said) + len(right))


def _of_table(
    value: Callable[[Tensor], Tensor],
    predicted: Sequence[int],
    right: Sequence[int],
    groups: Sequence[str],
    method: str,
) -> Estimate:
    """A function of the table of predicted and right classes."""
    number, count = _numbered(groups)
    ours, theirs = torch.tensor(list(predicted)), torch.tensor(list(right))
    classes = int(max(ours.max(), theirs.max())) + 1
    cell = ours * classes + theirs

    def statistic(times: Float[Tensor, "1 G"]) -> Tensor:
        empty = torch.zeros(classes * classes, dtype=torch.float64)
        return value(empty.index_add(0, cell, times[0][number]).view(classes, classes))

    return _bounded(statistic, count, len(ours), method)


def _correlation(
    predicted: Sequence[float],
    right: Sequence[float],
    groups: Sequence[str],
    method: str,
    told: Callable[[Tensor, Tensor], Tensor],
) -> Estimate:
    number, count = _numbered(groups)
    both = [torch.tensor(list(one), dtype=torch.float64) for one in (predicted, right)]

    def statistic(times: Float[Tensor, "1 G"]) -> Tensor:
        weight = times[0][number]
        x, y = (one - (weight * one).sum() / weight.sum() for one in (told(weight, values) for values in both))
        spread = ((weight * x * x).sum() * (weight * y * y).sum()).clamp(min=1e-300).sqrt()
        return (weight * x * y).sum() / spread

    return _bounded(statistic, count, len(both[0]), method)


def _bounded(statistic: Callable[[Tensor], Tensor], count: int, draws: int, method: str) -> Estimate:
    """The estimate of a number in [-1, 1]; of one group without an interval."""
    method = _method(method, draws, count)
    if count < 2:
        value = float(statistic(torch.ones(1, count, dtype=torch.float64)))
        return Estimate(value, -1.0, 1.0, LEVEL, draws, f"{method}: no interval")
    found = interval(statistic, [(1, count)], level=LEVEL, draws=draws, method=method)
    low, high = (end if math.isfinite(end) else edge for end, edge in ((found.low, -1.0), (found.high, 1.0)))
    return Estimate(found.value, max(low, -1.0), min(high, 1.0), LEVEL, draws, method)


def _numbered(groups: Sequence[str]) -> tuple[Int[Tensor, "N"], int]:
    """The number of each example's group, and how many there are."""
    known: dict[str, int] = {}
    numbers = [known.setdefault(one, len(known)) for one in groups]
    if not numbers:
        raise ValueError("There is no prediction at all. Nothing was measured; give examples with labels.")
    return torch.tensor(numbers), len(known)


def _method(what: str, examples: int, groups: int) -> str:
    return f"{what}, {examples:,} examples" + ("" if groups == examples else f" in {groups:,} groups")
