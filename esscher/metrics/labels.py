"""Metrics of predictions with intervals: accuracy, F1, Matthews' and other correlations, answers within texts, rankings.

Replicates are groups of examples that may depend on each other (questions on one passage, passages of one book); an independent
example is its own group. Letters: N examples, C classes, G groups, K documents of a query.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.estimate import Estimate
from esscher.estimators.intervals import interval, proportion

CONFIDENCE = 0.95
COUNTED = "examples"
ARTICLES = re.compile(r"\b(a|an|the)\b")


def accuracy(right: Sequence[bool], groups: Sequence[str]) -> Estimate:
    """The share of predictions that are right."""
    return share([float(hit) for hit in right], groups, method="accuracy")


def share(values: Sequence[float], groups: Sequence[str], *, method: str, binary: bool = True) -> Estimate:
    """The mean of numbers in [0, 1]; `binary` if each is 0 or 1."""
    number, count, method = _numbered(groups, method)
    x = torch.tensor(list(values), dtype=torch.float64)

    def mean(times: Float[Tensor, "1 G"]) -> Tensor:
        weight = times[0][number]
        return (weight * x).sum() / weight.sum()

    if count < 2:
        return Estimate(float(x.mean()), 0.0, 1.0, CONFIDENCE, len(x), f"{method}: no interval", counted=COUNTED)
    return proportion(mean, [(1, count)], confidence=CONFIDENCE, n=len(x), method=method, binary=binary, counted=COUNTED)


def macro_f1(predicted: Sequence[int], right: Sequence[int], groups: Sequence[str]) -> Estimate:
    """The mean F1 of the classes, 2 hits / (predicted + right); classes that never occur are left out."""

    def value(table: Float[Tensor, "C C"]) -> Tensor:
        size = table.sum(0) + table.sum(1)
        return (2 * table.diagonal()[size > 0] / size[size > 0]).mean()

    return _of_table(value, predicted, right, groups, "mean F1 of the classes")


def matthews(predicted: Sequence[int], right: Sequence[int], groups: Sequence[str]) -> Estimate:
    """Matthews' correlation of predicted and right classes (Gorodkin, 2004); 0 where either is constant."""

    def value(table: Float[Tensor, "C C"]) -> Tensor:
        total, true_counts, predicted_counts = table.sum(), table.sum(0), table.sum(1)
        spread = (total**2 - true_counts.square().sum()) * (total**2 - predicted_counts.square().sum())
        return (
            (table.diagonal().sum() * total - true_counts @ predicted_counts)
            / spread.clamp(min=1e-12).sqrt()
            * (spread > 1e-12)
        )

    return _of_table(value, predicted, right, groups, "Matthews' correlation")


def pearson(predicted: Sequence[float], right: Sequence[float], groups: Sequence[str]) -> Estimate:
    """Pearson's correlation."""
    return _correlation(predicted, right, groups, "Pearson's correlation", lambda weight, x: x)


def spearman(predicted: Sequence[float], right: Sequence[float], groups: Sequence[str]) -> Estimate:
    """Spearman's rank correlation; ties share their mean rank."""

    def ranks(weight: Float[Tensor, "N"], x: Float[Tensor, "N"]) -> Tensor:
        below = (x[:, None] > x).double() + (x[:, None] == x).double() / 2
        return below @ weight

    return _correlation(predicted, right, groups, "Spearman's correlation", ranks)


def squad_words(text: str) -> list[str]:
    """The words of an answer as SQuAD compares them: lower case, without articles and punctuation."""
    letters = "".join(character for character in text.lower() if character not in string.punctuation)
    return ARTICLES.sub(" ", letters).split()


def exact_match(predicted: str, answers: Sequence[str]) -> float:
    """1 if an answer is one of the right ones, else 0; without right answers the empty one is right."""
    return float(any(squad_words(predicted) == squad_words(answer) for answer in answers or ("",)))


def word_f1(predicted: str, answers: Sequence[str]) -> float:
    """The best F1 of the words of an answer and of a right one; without right answers the empty one is right."""
    words, best = squad_words(predicted), 0.0
    for right in map(squad_words, answers or ("",)):
        shared = sum((Counter(words) & Counter(right)).values())
        best = max(best, 2 * shared / (len(words) + len(right)) if words and right else float(words == right))
    return best


def reciprocal_rank(scores: Float[Tensor, "K"], grades: Float[Tensor, "K"]) -> float:
    """1 over the rank of the first document with a grade above 0, or 0 without one; equal scores keep their order."""
    relevant = (grades[scores.argsort(descending=True, stable=True)] > 0).nonzero()
    return 1.0 / (int(relevant[0, 0]) + 1) if len(relevant) else 0.0


def ndcg(scores: Float[Tensor, "K"], grades: Float[Tensor, "K"], first: int = 20) -> float:
    """nDCG: the sum of (2^grade - 1) / log2(1 + rank) over the first documents, over its maximum; 0 where that is 0."""

    def gain(order: Int[Tensor, "K"]) -> float:
        top = grades[order][:first].double()
        return float(((2**top - 1) / torch.arange(2, len(top) + 2).double().log2()).sum())

    best = gain(grades.argsort(descending=True))
    return gain(scores.argsort(descending=True, stable=True)) / best if best > 0 else 0.0


def _of_table(
    value: Callable[[Tensor], Tensor], predicted: Sequence[int], right: Sequence[int], groups: Sequence[str], method: str
) -> Estimate:
    """The estimate of a function of the table of predicted and right classes."""
    ours, theirs = torch.tensor(list(predicted)), torch.tensor(list(right))
    classes = int(max(ours.max(), theirs.max())) + 1 if groups else 0

    def statistic(weight: Float[Tensor, "N"]) -> Tensor:
        empty = torch.zeros(classes * classes, dtype=torch.float64)
        return value(empty.index_add(0, ours * classes + theirs, weight).view(classes, classes))

    return _bounded(statistic, groups, method)


def _correlation(
    predicted: Sequence[float], right: Sequence[float], groups: Sequence[str], method: str, transform: Callable[..., Tensor]
) -> Estimate:
    """The weighted correlation of both columns after `transform(weight, column)`."""
    columns = [torch.tensor(list(values), dtype=torch.float64) for values in (predicted, right)]

    def statistic(weight: Float[Tensor, "N"]) -> Tensor:
        x, y = (transform(weight, column) for column in columns)
        x, y = (values - (weight * values).sum() / weight.sum() for values in (x, y))
        spread = ((weight * x * x).sum() * (weight * y * y).sum()).clamp(min=1e-300).sqrt()
        return (weight * x * y).sum() / spread

    return _bounded(statistic, groups, method)


def _bounded(value: Callable[[Tensor], Tensor], groups: Sequence[str], method: str) -> Estimate:
    """The estimate of a function in [-1, 1] of the weights of the examples; a single group has no interval."""
    number, count, method = _numbered(groups, method)
    n = len(number)

    def statistic(times: Float[Tensor, "1 G"]) -> Tensor:
        return value(times[0][number])

    if count < 2:
        only = float(statistic(torch.ones(1, count, dtype=torch.float64)))
        return Estimate(only, -1.0, 1.0, CONFIDENCE, n, f"{method}: no interval", counted=COUNTED)
    estimate = interval(statistic, [(1, count)], confidence=CONFIDENCE, n=n, method=method, counted=COUNTED)
    low, high = (end if math.isfinite(end) else edge for end, edge in ((estimate.low, -1.0), (estimate.high, 1.0)))
    return replace(estimate, low=max(low, -1.0), high=min(high, 1.0))


def _numbered(groups: Sequence[str], method: str) -> tuple[Int[Tensor, "N"], int, str]:
    """The number of the group of each example, the number of groups, and the method with it."""
    known: dict[str, int] = {}
    numbers = [known.setdefault(group, len(known)) for group in groups]
    if not numbers:
        raise ValueError("There are no predictions. Nothing was measured; give examples with labels.")
    count = len(known)
    return torch.tensor(numbers), count, method if count == len(numbers) else f"{method}, in {count:,} groups"
