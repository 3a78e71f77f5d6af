"""What a metric of texts is: counts that add up over texts, and a function of their sums; values by name, with intervals.

Lines (texts) are the replicates. A corpus metric (BLEU, chrF, TER, word error rate) has the percentile bootstrap over lines
(Efron, 1979; Koehn, 2004; for word errors Bisani and Ney, 2004); a mean over lines (ROUGE, METEOR) has the interval of
`esscher.estimators.intervals`. Two systems are compared on the same lines, resampled together; the p-value of their difference
is that of approximate randomisation, which swaps the two texts of random lines (Noreen, 1989; Riezler and Maxwell, 2005),
two-sided, with the observed difference as one of the swaps. Lines may be empty; each has one or more references. Left out:
dependence between lines of one document or speaker, and chance in tuning a system. Letters: L lines, N candidates, S counts, R
resamples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise as neighbours
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.estimate import Estimate
from esscher.core.randomness import Rng
from esscher.estimators.intervals import MAX_COUNTS, bootstrap_counts, check_confidence, interval, proportion, ratio
from esscher.metrics.text_metrics import Bleu, Chrf, Meteor, Rouge, TranslationEditRate, WordErrorRate

SWAPS_AT_ONCE = 2**22  # entries of the table of swaps
ROUNDING = 1e-9  # a difference that counts as none
SWAPS = 10_000
References = Sequence[str] | Sequence[Sequence[str]]
"""One reference text for each line, or several."""


@runtime_checkable
class TextMetric(Protocol):
    """A metric of a corpus from counts that add up over its texts."""

    @property
    def name(self) -> str: ...

    @property
    def unit(self) -> str: ...

    @property
    def sign(self) -> int:
        """1 if higher values are better, -1 if lower ones are."""
        ...

    def counts(self, candidates: Sequence[str], references: Sequence[str]) -> Float[Tensor, "N S"]:
        """The counts of each candidate against the references of one text."""
        ...

    def value(self, sums: Float[Tensor, "*R S"]) -> Float[Tensor, "*R"]:
        """The metric of a corpus whose counts have these sums."""
        ...

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        """The settings that reproduce the value, given the references of each line."""
        ...


def corpus_value(
    metric: TextMetric, counts: Float[Tensor, "L S"], *, confidence: float = 0.95, resamples: int = 10_000, rng: Rng
) -> Estimate:
    """The metric of a corpus whose texts have these counts, with an interval for all texts like them."""
    sums = _resampled(counts, confidence, resamples, rng)
    method = f"percentile bootstrap, {resamples:,} resamples"
    return _estimate(metric.value(counts.sum(0)), metric.value(sums), confidence, len(counts), method, metric.unit)


def corpus_difference(
    metric: TextMetric,
    counts: Float[Tensor, "L S"],
    against: Float[Tensor, "L S"],
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    rng: Rng,
) -> Estimate:
    """The metric of one system minus that of another on the same texts, resampled together."""
    method = f"paired percentile bootstrap, {resamples:,} resamples"
    both = torch.stack([counts, against], -2)
    sums = metric.value(_resampled(both.flatten(1), confidence, resamples, rng).view(-1, *both.shape[1:]))
    whole = metric.value(both.sum(0))
    return _estimate(whole[0] - whole[1], sums[:, 0] - sums[:, 1], confidence, len(counts), method, metric.unit)


def _resampled(counts: Float[Tensor, "L S"], confidence: float, resamples: int, rng: Rng) -> Float[Tensor, "R S"]:
    """Sums of the counts over bootstrap samples of the texts."""
    check_confidence(confidence)
    texts = len(counts)
    if texts < 2:
        raise ValueError(f"A bootstrap needs at least 2 texts and has {texts}. Nothing was estimated; give more texts.")
    if resamples < 100:
        raise ValueError(f"{resamples} resamples are too few for an interval. Nothing was estimated; 10,000 are usual.")
    step = max(1, MAX_COUNTS // texts)
    sizes = (min(step, resamples - first) for first in range(0, resamples, step))
    return torch.cat([bootstrap_counts(texts, size, rng=rng) @ counts for size in sizes])


def _estimate(at: Tensor, resampled: Float[Tensor, "R"], confidence: float, texts: int, method: str, unit: str) -> Estimate:
    quantiles = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=resampled.dtype)
    value, (low, high) = float(at), torch.quantile(resampled, quantiles).tolist()
    return Estimate(value, min(value, low), max(value, high), confidence, texts, method, unit, "texts")


@dataclass(frozen=True)
class Metric:
    """A named metric of a whole translation; a mean over lines unless `resampled`."""

    name: str
    measure: TextMetric
    resampled: bool = True

    def count(self, hypotheses: Sequence[str], references: References) -> "LineCounts":
        """The counts of each line, from which the values of all, some or resampled lines follow."""
        answers = [[line] if isinstance(line, str) else list(line) for line in references]
        if len(hypotheses) != len(answers):
            raise ValueError(
                f"There are {len(hypotheses):,} hypotheses and references for {len(answers):,} lines. Nothing was computed; "
                f"line k of both must belong together, empty lines too."
            )
        if not hypotheses:
            raise ValueError("There is no line at all. Nothing was computed; give hypotheses and their references.")
        if [] in answers:
            line = answers.index([]) + 1
            raise ValueError(f"Line {line} has no reference. Nothing was computed; give each line one, or leave the line out.")
        rows = [self.measure.counts([ours], theirs) for ours, theirs in zip(hypotheses, answers, strict=True)]
        return LineCounts(self, torch.cat(rows), self.measure.signature(answers))

    def score(
        self, hypotheses: Sequence[str], references: References, *, confidence: float = 0.95, resamples: int = 1_000, rng: Rng
    ) -> Estimate:
        """The value of the translation, for all lines like these; a single line has no interval."""
        return self.count(hypotheses, references).estimate(confidence=confidence, resamples=resamples, rng=rng)


@dataclass(frozen=True)
class LineCounts:
    """The counts of a metric in each line of one translation."""

    metric: Metric
    rows: Float[Tensor, "L S"]
    signature: str

    def of(self, lines: Int[Tensor, "K"]) -> "LineCounts":
        """The counts of some lines."""
        return replace(self, rows=self.rows[lines])

    def estimate(self, *, confidence: float = 0.95, resamples: int = 1_000, rng: Rng) -> Estimate:
        """The value of all lines."""
        measure, rows = self.metric.measure, self.rows
        if len(rows) < 2:
            return self._unbounded(measure.value(rows.sum(0)), confidence)
        if self.metric.resampled:
            return self._signed(corpus_value(measure, rows, confidence=confidence, resamples=resamples, rng=rng))
        mean = self._mean(rows, confidence)
        return replace(mean, low=max(mean.low, 0.0), high=min(mean.high, 100.0))

    def minus(self, other: "LineCounts", *, confidence: float = 0.95, resamples: int = 1_000, rng: Rng) -> Estimate:
        """The value minus that of another translation of the same lines, resampled together."""
        measure, rows, others = self.metric.measure, self.rows, other.rows
        if len(rows) < 2:
            return self._unbounded(measure.value(rows.sum(0)) - measure.value(others.sum(0)), confidence)
        if self.metric.resampled:
            return self._signed(corpus_difference(measure, rows, others, confidence=confidence, resamples=resamples, rng=rng))
        return self._mean(torch.stack([rows[:, 0] - others[:, 0], rows[:, 1]], -1), confidence)

    def _mean(self, rows: Float[Tensor, "L S"], confidence: float) -> Estimate:
        def statistic(times: Tensor) -> Tensor:
            return self.metric.measure.value((times[0, :, None] * rows).sum(0))

        n, unit, method = len(rows), self.metric.measure.unit, f"{self.signature}; interval of a mean"
        return interval(statistic, [(1, n)], confidence=confidence, n=n, method=method, unit=unit, counted="texts")

    def _signed(self, estimate: Estimate) -> Estimate:
        return replace(estimate, method=f"{self.signature}; {estimate.method}")

    def _unbounded(self, value: Tensor, confidence: float) -> Estimate:
        method, unit = f"{self.signature}; one text has no interval", self.metric.measure.unit
        return Estimate(float(value), -math.inf, math.inf, confidence, len(self.rows), method, unit, "texts")


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


def get_metric(name: str) -> Metric:
    """The metric of this name."""
    if name not in METRICS:
        raise ValueError(f"No metric named {name!r}. Nothing was computed; choose from: {', '.join(METRICS)}.")
    return METRICS[name]


@dataclass(frozen=True)
class LengthGroup:
    """The value of the lines whose source has at least `low` and fewer than `high` words."""

    low: int
    high: int | None
    lines: int
    value: Estimate

    @property
    def name(self) -> str:
        return f"[{self.low}, {'inf' if self.high is None else self.high})"


@dataclass(frozen=True)
class PairedComparison:
    """Two translations of the same lines: their values, the first minus the second, and the p-value of the difference."""

    metric: str
    first: Estimate
    second: Estimate
    difference: Estimate
    p_value: Estimate


@dataclass(frozen=True)
class MetricReport:
    """A translation by one metric: the value of all lines, by length, and against another translation."""

    metric: Metric
    value: Estimate
    groups: tuple[LengthGroup, ...]
    against: PairedComparison | None


def by_length(
    counts: LineCounts,
    sources: Sequence[str],
    bounds: Sequence[int] = (25, 50),
    *,
    confidence: float = 0.95,
    resamples: int = 1_000,
    rng: Rng,
) -> tuple[LengthGroup, ...]:
    """The value of lines grouped by the words of their source at ascending `bounds`; empty groups are left out."""
    if len(sources) != len(counts.rows):
        raise ValueError(
            f"There are {len(sources):,} sources and {len(counts.rows):,} hypotheses. Nothing was computed; line k of both "
            f"must belong together, empty lines too."
        )
    edges = [0, *bounds]
    if any(high <= low for low, high in neighbours(edges)):
        raise ValueError(f"Bounds of lengths ascend from above 0, unlike {list(bounds)}. Nothing was computed; 25 50 is usual.")
    words = torch.tensor([len(source.split()) for source in sources])
    groups: list[LengthGroup] = []
    for low, high in zip(edges, [*bounds, None], strict=True):
        lines = ((words >= low) & (words < (math.inf if high is None else high))).nonzero()[:, 0]
        if len(lines):
            value = counts.of(lines).estimate(confidence=confidence, resamples=resamples, rng=rng.stream("length", low))
            groups.append(LengthGroup(low, high, len(lines), value))
    return tuple(groups)


def paired_comparison(
    first: LineCounts, second: LineCounts, *, confidence: float = 0.95, resamples: int = 1_000, swaps: int = SWAPS, rng: Rng
) -> PairedComparison:
    """Compare two translations of the same lines, counted by the same metric."""
    metric = first.metric
    return PairedComparison(
        metric.name,
        first.estimate(confidence=confidence, resamples=resamples, rng=rng.stream("value")),
        second.estimate(confidence=confidence, resamples=resamples, rng=rng.stream("value")),
        first.minus(second, confidence=confidence, resamples=resamples, rng=rng.stream("difference")),
        randomisation_p_value(
            metric.measure, first.rows, second.rows, swaps=swaps, confidence=confidence, rng=rng.stream("swaps")
        ),
    )


def score_translation(
    names: Sequence[str],
    hypotheses: Sequence[str],
    references: References,
    *,
    against: Sequence[str] | None = None,
    sources: Sequence[str] | None = None,
    bounds: Sequence[int] = (25, 50),
    confidence: float = 0.95,
    resamples: int = 1_000,
    rng: Rng,
) -> tuple[MetricReport, ...]:
    """A translation by several metrics, by length where `sources` are given, and compared with the translation `against`."""
    reports = []
    for metric in [get_metric(name) for name in names]:
        counts, stream = metric.count(hypotheses, references), rng.stream(metric.name)
        value = counts.estimate(confidence=confidence, resamples=resamples, rng=stream.stream("value"))
        groups: tuple[LengthGroup, ...] = ()
        comparison: PairedComparison | None = None
        if sources is not None:
            groups = by_length(counts, sources, bounds, confidence=confidence, resamples=resamples, rng=stream)
        if against is not None:
            other = metric.count(against, references)
            comparison = paired_comparison(counts, other, confidence=confidence, resamples=resamples, rng=stream)
        reports.append(MetricReport(metric, value, groups, comparison))
    return tuple(reports)


def randomisation_p_value(
    measure: TextMetric,
    first: Float[Tensor, "L S"],
    second: Float[Tensor, "L S"],
    *,
    swaps: int = SWAPS,
    confidence: float = 0.95,
    rng: Rng,
) -> Estimate:
    """The share of random swaps with at least the observed difference; its interval is for the share of all swaps."""
    if swaps < 99:
        raise ValueError(f"{swaps} swaps are too few for a p-value. Nothing was computed; 10,000 are usual.")
    sums, change = torch.stack([first.sum(0), second.sum(0)]), second - first
    observed = float((measure.value(sums[0]) - measure.value(sums[1])).abs())
    step = max(1, SWAPS_AT_ONCE // len(change))
    parts = []
    for start in range(0, swaps, step):
        half = torch.full((min(step, swaps - start), len(change)), -math.log(2), dtype=torch.float64)
        moved = rng.bernoulli(half).double() @ change
        parts.append((measure.value(sums[0] + moved) - measure.value(sums[1] - moved)).abs() >= observed - ROUNDING)
    exceeds, method = torch.cat(parts).double(), "approximate randomisation"
    share = proportion(ratio(exceeds), [(1, swaps)], confidence=confidence, n=swaps, method=method, counted="swaps")
    value = (int(exceeds.sum()) + 1) / (swaps + 1)  # the observed difference is one of the swaps
    return replace(share, value=value, low=min(share.low, value), high=max(share.high, value), method=method)


def word_ratio(hypotheses: Sequence[str], references: Sequence[str]) -> Estimate:
    """The number of words of all translations over that of all references, for other lines like these."""
    ours, theirs = (
        torch.tensor([len(line.split()) for line in side], dtype=torch.float64) for side in (hypotheses, references)
    )
    if float(theirs.sum()) == 0:
        raise ValueError("The references hold no word. Nothing was computed; give the right translations.")
    n, method = len(ours), "ratio of sums over lines"
    return interval(ratio(ours, theirs), [(1, n)], confidence=0.95, n=n, method=method, counted="lines")
