"""How far texts are from their references, over a whole corpus, with a bootstrap interval: what a metric of texts is.

It is a function of counts that add up over texts: `counts` of each candidate, `value` of their sum. A corpus value is
therefore cheap for any choice among candidates and any resample of texts. The metrics themselves are `esscher.metrics`.

The interval is the percentile bootstrap over texts (Efron, 1979; for word errors Bisani and Ney, 2004). Two systems on the same
texts are compared by resampling the texts of both together, which takes out what makes a text hard for either. Left out: the
dependence of texts of one speaker or document on each other, and the chance in tuning a system.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.estimate import Estimate
from esscher.estimators.bootstrap import AT_ONCE, bootstrap_counts
from esscher.randomness import Rng


@runtime_checkable
class TextMetric(Protocol):
    """A measure of a corpus by counts that add up."""

    @property
    def name(self) -> str: ...

    @property
    def unit(self) -> str: ...

    @property
    def sign(self) -> int:
        """1 where a higher value is better, -1 where a lower one is."""
        ...

    def counts(self, candidates: Sequence[str], references: Sequence[str]) -> Float[Tensor, "N S"]:
        """What each candidate adds to the sums, against the references of one text."""
        ...

    def value(self, sums: Float[Tensor, "*R S"]) -> Float[Tensor, "*R"]:
        """The measure of a corpus with these sums."""
        ...


def corpus_value(
    metric: TextMetric, counts: Float[Tensor, "L S"], *, level: float = 0.95, resamples: int = 10_000, rng: Rng
) -> Estimate:
    """The metric of a corpus with these counts of its texts, for all texts like them."""
    method = f"percentile bootstrap over {len(counts):,} texts, {resamples:,} resamples"
    sums = _resampled(counts, level, resamples, rng)
    return _estimate(metric.value(counts.sum(0)), metric.value(sums), level, len(counts), method, metric.unit)


def corpus_difference(
    metric: TextMetric,
    counts: Float[Tensor, "L S"],
    against: Float[Tensor, "L S"],
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    rng: Rng,
) -> Estimate:
    """The metric of one system minus that of another on the same texts, which are resampled together."""
    method = f"paired percentile bootstrap over {len(counts):,} texts, {resamples:,} resamples"
    both = torch.stack([counts, against], -2)
    sums = metric.value(_resampled(both.flatten(1), level, resamples, rng).view(-1, *both.shape[1:]))
    whole = metric.value(both.sum(0))
    return _estimate(whole[0] - whole[1], sums[:, 0] - sums[:, 1], level, len(counts), method, metric.unit)


def _resampled(counts: Float[Tensor, "L S"], level: float, resamples: int, rng: Rng) -> Float[Tensor, "R S"]:
    """Sums over texts drawn with replacement, as many as there are."""
    texts = len(counts)
    if not 0 < level < 1:
        raise ValueError(f"An interval covers at a rate between 0 and 1, not {level}. Nothing was estimated; 0.95 is usual.")
    if texts < 2:
        raise ValueError(f"A bootstrap needs at least 2 texts and has {texts}. Nothing was estimated; give more lists.")
    if resamples < 100:
        raise ValueError(f"{resamples} resamples are too few to tell an interval. Nothing was estimated; 10,000 are usual.")
    step = max(1, AT_ONCE // texts)
    parts = []
    for first in range(0, resamples, step):
        rows = min(step, resamples - first)
        parts.append(bootstrap_counts(texts, rows, rng=rng) @ counts)
    return torch.cat(parts)


def _estimate(value: Tensor, found: Float[Tensor, "R"], level: float, texts: int, method: str, unit: str) -> Estimate:
    ends = torch.quantile(found, torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=found.dtype)).tolist()
    middle = float(value)
    return Estimate(middle, min(middle, ends[0]), max(middle, ends[1]), level, texts, method, unit)
