"""Translations by the length of the source, and two translations of the same lines compared.

The difference of two systems has the interval of `LineCounts.minus` and a p-value by approximate randomisation (Noreen, 1989;
for translation Riezler and Maxwell, 2005). If the systems were alike, the two translations of each line could be swapped, so
the difference is compared with those after random swaps. The p-value is two-sided, works for every metric, and is
conservative: the observed difference counts as one of the swaps.

Letters: L lines, S counts of a line.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise as neighbours

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.core.estimate import Estimate
from esscher.core.randomness import Rng
from esscher.estimators.intervals import interval, proportion, ratio
from esscher.metrics.metric import LineCounts, Metric, References, TextMetric, get_metric

AT_ONCE = 2**22  # entries of the table of swaps
ROUNDING = 1e-9  # a difference that counts as none
SWAPS = 10_000


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
    step = max(1, AT_ONCE // len(change))
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
