"""Where a translation is good, and which of two is better: groups by the length of the source, differences on the same lines.

The difference of two systems has the interval of `LineCounts.minus` and a p-value by approximate randomisation (Noreen, 1989;
for translation Riezler and Maxwell, 2005): were the systems alike, each line's two translations could be swapped, so the
difference is compared with those after random swaps. It is two-sided, holds for every metric, and never promises too much: the
difference that was found counts as one of the swaps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise as neighbours

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from esscher.estimate import Estimate
from esscher.estimators.proportions import proportion
from esscher.estimators.text_metrics import TextMetric
from esscher.metrics.metric import LineCounts, Metric, References, metric_of
from esscher.randomness import Rng

AT_ONCE = 2**22  # entries of the table of swaps
ROUNDING = 1e-9  # a difference that is none
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
class Paired:
    """Two translations of the same lines, the first less the second, and the chance of as much if they were alike."""

    metric: str
    first: Estimate
    second: Estimate
    difference: Estimate
    p_value: Estimate


@dataclass(frozen=True)
class Verdict:
    """All that was asked about a translation by one metric."""

    metric: Metric
    value: Estimate
    groups: tuple[LengthGroup, ...]
    against: Paired | None


def by_length(
    metric: Metric,
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: References,
    bounds: Sequence[int] = (25, 50),
    *,
    level: float = 0.95,
    resamples: int = 1_000,
    rng: Rng,
) -> tuple[LengthGroup, ...]:
    """The value by words of the source: fewer than the first bound, from there to the next, ...; empty groups are left out."""
    counts = metric.count(hypotheses, references)
    return _groups(counts, sources, bounds, level=level, resamples=resamples, rng=rng)


def paired(
    metric: Metric,
    first: Sequence[str],
    second: Sequence[str],
    references: References,
    *,
    level: float = 0.95,
    resamples: int = 1_000,
    swaps: int = SWAPS,
    rng: Rng,
) -> Paired:
    """How much the first translation is above the second, with an interval and a p-value."""
    counts = metric.count(first, references), metric.count(second, references)
    return _paired(*counts, level=level, resamples=resamples, swaps=swaps, rng=rng)


def judge(
    names: Sequence[str],
    hypotheses: Sequence[str],
    references: References,
    *,
    against: Sequence[str] | None = None,
    sources: Sequence[str] | None = None,
    bounds: Sequence[int] = (25, 50),
    level: float = 0.95,
    resamples: int = 1_000,
    rng: Rng,
) -> tuple[Verdict, ...]:
    """A translation by several metrics, by length where sources are given and beside another where there is one."""
    found = []
    for metric in [metric_of(name) for name in names]:
        counts, chance = metric.count(hypotheses, references), rng.stream(metric.name)
        value = counts.estimate(level=level, resamples=resamples, rng=chance.stream("value"))
        groups: tuple[LengthGroup, ...] = ()
        other: Paired | None = None
        if sources is not None:
            groups = _groups(counts, sources, bounds, level=level, resamples=resamples, rng=chance)
        if against is not None:
            second = metric.count(against, references)
            other = _paired(counts, second, level=level, resamples=resamples, swaps=SWAPS, rng=chance)
        found.append(Verdict(metric, value, groups, other))
    return tuple(found)


def swap_p_value(
    measure: TextMetric,
    first: Float[Tensor, "L S"],
    second: Float[Tensor, "L S"],
    *,
    swaps: int = SWAPS,
    level: float = 0.95,
    rng: Rng,
) -> Estimate:
    """The share of random swaps that part the systems at least as far; its interval holds the share of all swaps."""
    if swaps < 99:
        raise ValueError(f"{swaps} swaps are too few to tell a p-value. Nothing was computed; 10,000 are usual.")
    sums, change = torch.stack([first.sum(0), second.sum(0)]), second - first
    found = float((measure.value(sums[0]) - measure.value(sums[1])).abs())
    step = max(1, AT_ONCE // len(change))
    parts = []
    for start in range(0, swaps, step):
        half = torch.full((min(step, swaps - start), len(change)), -math.log(2), dtype=torch.float64)
        moved = rng.accept(half).double() @ change
        parts.append((measure.value(sums[0] + moved) - measure.value(sums[1] - moved)).abs() >= found - ROUNDING)
    return _share(torch.cat(parts), level)


def _share(as_far: Bool[Tensor, "K"], level: float) -> Estimate:
    """Their share with one more that is as far, which keeps the p-value from promising too much."""
    swaps = len(as_far)
    method = f"approximate randomisation, {swaps:,} swaps"
    plain = proportion(
        lambda times: (times[0] * as_far).sum() / times.sum(), [(1, swaps)], level=level, draws=swaps, method=method
    )
    value = (int(as_far.sum()) + 1) / (swaps + 1)
    return replace(plain, value=value, low=min(plain.low, value), high=max(plain.high, value), method=method)


def _groups(
    counts: LineCounts, sources: Sequence[str], bounds: Sequence[int], *, level: float, resamples: int, rng: Rng
) -> tuple[LengthGroup, ...]:
    if len(sources) != len(counts.rows):
        raise ValueError(
            f"There are {len(sources):,} sources and {len(counts.rows):,} hypotheses. Nothing was computed; line k of both "
            f"must belong together, empty lines too."
        )
    edges = [0, *bounds]
    if any(high <= low for low, high in neighbours(edges)):
        raise ValueError(f"Bounds of lengths rise from above 0, unlike {list(bounds)}. Nothing was computed; 25 50 is usual.")
    words = torch.tensor([len(source.split()) for source in sources])
    found: list[LengthGroup] = []
    for low, high in zip(edges, [*bounds, None], strict=True):
        lines = ((words >= low) & (words < (math.inf if high is None else high))).nonzero()[:, 0]
        if len(lines):
            value = counts.of(lines).estimate(level=level, resamples=resamples, rng=rng.stream("length", low))
            found.append(LengthGroup(low, high, len(lines), value))
    return tuple(found)


def _paired(first: LineCounts, second: LineCounts, *, level: float, resamples: int, swaps: int, rng: Rng) -> Paired:
    return Paired(
        first.metric.name,
        first.estimate(level=level, resamples=resamples, rng=rng.stream("value")),
        second.estimate(level=level, resamples=resamples, rng=rng.stream("value")),
        first.minus(second, level=level, resamples=resamples, rng=rng.stream("difference")),
        swap_p_value(first.metric.measure, first.rows, second.rows, swaps=swaps, level=level, rng=rng.stream("swaps")),
    )
