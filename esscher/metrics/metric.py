"""How good a translation is, by the name of a metric: a value over all lines, with its interval.

A metric counts something in each line of a translation and its references; the value is a function of the sums. Lines are the
independent replicates. The interval of a corpus metric (BLEU, chrF, TER, word error rate) is a percentile bootstrap over
lines, as is usual for them (Koehn, 2004); that of a mean over lines (ROUGE, METEOR) is the one of all means here
(`esscher.estimators.intervals`). The method of an estimate says all it takes to get the value again.

Lines may be empty. A line has a reference, or several. Left out: the dependence of the lines of one document.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.estimate import Estimate
from esscher.estimators.intervals import interval
from esscher.estimators.text_metrics import TextMetric, corpus_difference, corpus_value
from esscher.metrics.corpus import Bleu, Chrf, TranslationEditRate, WordErrorRate
from esscher.metrics.sentences import Meteor, Rouge
from esscher.randomness import Rng

References = Sequence[str] | Sequence[Sequence[str]]
"""For each line one text, or several."""


class Measure(TextMetric, Protocol):
    """A metric of texts that can say how its values are got again."""

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        """All it takes to get the value again, with as many references of each line."""
        ...


@dataclass(frozen=True)
class Metric:
    """A measure of a whole translation by its name; a mean over lines where not `resampled`."""

    name: str
    measure: Measure
    resampled: bool = True

    def count(self, hypotheses: Sequence[str], references: References) -> "LineCounts":
        """What each line counts, from which values of all, of some, and of resampled lines follow."""
        answers = [[one] if isinstance(one, str) else list(one) for one in references]
        _check(hypotheses, answers)
        rows = [self.measure.counts([ours], theirs) for ours, theirs in zip(hypotheses, answers, strict=True)]
        return LineCounts(self, torch.cat(rows), self.measure.signature(answers))

    def score(
        self, hypotheses: Sequence[str], references: References, *, level: float = 0.95, resamples: int = 1_000, rng: Rng
    ) -> Estimate:
        """The value of the translation, for all lines like these; a single line has a value and no interval."""
        return self.count(hypotheses, references).estimate(level=level, resamples=resamples, rng=rng)


@dataclass(frozen=True)
class LineCounts:
    """What a metric counts in each line of one translation."""

    metric: Metric
    rows: Float[Tensor, "L S"]
    signature: str

    def of(self, lines: Int[Tensor, "K"]) -> "LineCounts":
        """Those of some lines."""
        return replace(self, rows=self.rows[lines])

    def estimate(self, *, level: float = 0.95, resamples: int = 1_000, rng: Rng) -> Estimate:
        """The value of all lines."""
        measure, rows = self.metric.measure, self.rows
        if len(rows) < 2:
            return self._unbounded(float(measure.value(rows.sum(0))), level)
        if self.metric.resampled:
            return self._described(corpus_value(measure, rows, level=level, resamples=resamples, rng=rng))
        found = self._mean(lambda times: measure.value((times[0, :, None] * rows).sum(0)), level)
        return replace(found, low=max(found.low, 0.0), high=min(found.high, 100.0))

    def minus(self, other: "LineCounts", *, level: float = 0.95, resamples: int = 1_000, rng: Rng) -> Estimate:
        """The value less that of another translation of the same lines, which are resampled together."""
        measure, rows, others = self.metric.measure, self.rows, other.rows
        if len(rows) < 2:
            return self._unbounded(float(measure.value(rows.sum(0)) - measure.value(others.sum(0))), level)
        if self.metric.resampled:
            return self._described(corpus_difference(measure, rows, others, level=level, resamples=resamples, rng=rng))
        differences = torch.stack([rows[:, 0] - others[:, 0], rows[:, 1]], -1)
        return self._mean(lambda times: measure.value((times[0, :, None] * differences).sum(0)), level)

    def _mean(self, statistic: Callable[[Tensor], Tensor], level: float) -> Estimate:
        lines = len(self.rows)
        method = f"interval of a mean over {lines:,} texts"
        unit = self.metric.measure.unit
        return self._described(interval(statistic, [(1, lines)], level=level, draws=lines, method=method, unit=unit))

    def _unbounded(self, value: float, level: float) -> Estimate:
        method, unit = "one text tells no interval", self.metric.measure.unit
        return self._described(Estimate(value, -math.inf, math.inf, level, len(self.rows), method, unit))

    def _described(self, found: Estimate) -> Estimate:
        return replace(found, method=f"{self.signature}; {found.method}")


METRICS = {
    "bleu": Metric("bleu", Bleu()),
    "chrf": Metric("chrf", Chrf()),
    "chrf++": Metric("chrf++", Chrf(words=2)),
    "ter": Metric("ter", TranslationEditRate()),
    "wer": Metric("wer", WordErrorRate()),
    "rouge1": Metric("rouge1", Rouge("rouge1"), resampled=False),
    "rouge2": Metric("rouge2", Rouge("rouge2"), resampled=False),
    "rougeL": Metric("rougeL", Rouge("rougeL"), resampled=False),
    "meteor": Metric("meteor", Meteor(), resampled=False),
}


def metric_of(name: str) -> Metric:
    """The metric of this name."""
    if name not in METRICS:
        raise ValueError(f"No metric named {name!r}. Nothing was computed; choose from: {', '.join(METRICS)}.")
    return METRICS[name]


def _check(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if len(hypotheses) != len(references):
        raise ValueError(
            f"There are {len(hypotheses):,} hypotheses and references for {len(references):,} lines. Nothing was computed; "
            f"line k of both must belong together, empty lines too."
        )
    if not hypotheses:
        raise ValueError("There is no line at all. Nothing was computed; give hypotheses and their references.")
    bare = next((number for number, one in enumerate(references) if not one), None)
    if bare is not None:
        raise ValueError(f"Line {bare + 1} has no reference. Nothing was computed; give each line one, or leave the line out.")
