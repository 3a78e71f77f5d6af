"""Numbers in [0, 1] that are means over replicates: accuracies, rates, shares.

The interval is that of Clopper and Pearson for a binomial share, with the number of trials for which a binomial share would
vary as this one does, shrunk where few replicates tell its variance (Korn and Graubard, Survey Methodology, 1998). It keeps to
[0, 1], and stays an interval when every replicate says 0, or every one 1. So it does when all agree on another number, where
they are verdicts: then agreement is luck.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from esscher.estimate import Estimate
from esscher.estimators.intervals import Statistic, interval

ROUNDING = 1e-18  # a variance that is none


def proportion(
    statistic: Statistic, sources: Sequence[tuple[int, int]], *, level: float, draws: int, method: str, verdicts: bool = True
) -> Estimate:
    """The statistic at counts of 1, and the interval of a binomial share that varies alike; arguments as for `interval`.

    `verdicts` are replicates that are made of yes and no, `draws` of them in all: they tell no more than as many trials. Others
    may agree on a number between because it is the truth, and vary less than any verdicts would.
    """
    plain = interval(statistic, sources, level=level, draws=draws, method=method)  # refuses what has no interval
    value = plain.value
    if not -1e-9 < value < 1 + 1e-9:
        raise ValueError(f"A proportion lies in [0, 1], not at {value}. Nothing was estimated.")
    value = min(max(value, 0.0), 1.0)
    variance, replicates = _variance(statistic, sources)
    trials = float(replicates)
    if variance <= ROUNDING and 0 < value < 1 and not verdicts:
        return replace(plain, low=value, high=value)
    if variance > ROUNDING and 0 < value < 1:
        most = float(draws) if verdicts else math.inf
        trials = min(value * (1 - value) / variance, most) * _shrunk(replicates, level)
    low, high = _clopper_pearson(value * trials, trials, level)
    return Estimate(value, min(value, low), max(value, high), level, draws, f"{method}; as a binomial share of {trials:.0f}")


def _variance(statistic: Statistic, sources: Sequence[tuple[int, int]]) -> tuple[float, int]:
    """By the infinitesimal jackknife, and the replicates of the smallest source that matters."""
    counts = [torch.ones(shape, dtype=torch.float64, requires_grad=True) for shape in sources]
    with torch.enable_grad():
        effects = torch.autograd.grad(statistic(*counts), counts, materialize_grads=True)
    parts = [_squares(effect) for effect in effects]
    matter = [n for (_, n), effect in zip(sources, effects, strict=True) if bool((effect != 0).any())]
    return sum(parts), min(matter or [n for _, n in sources])


def _squares(effect: Tensor) -> float:
    n = effect.shape[1]
    return float((effect - effect.mean(-1, keepdim=True)).square().sum()) * n / (n - 1)


def _shrunk(replicates: int, level: float) -> float:
    """Normal over Student's quantile, squared."""
    from scipy.special import ndtri, stdtrit

    tail = (1 + level) / 2
    return float((ndtri(tail) / stdtrit(replicates - 1, tail)) ** 2)


def _clopper_pearson(successes: float, trials: float, level: float) -> tuple[float, float]:
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    failures = trials - successes
    low = 0.0 if successes <= 0 else float(betaincinv(successes, failures + 1, tail))
    high = 1.0 if failures <= 0 else float(betaincinv(successes + 1, failures, 1 - tail))
    return (0.0 if math.isnan(low) else low), (1.0 if math.isnan(high) else high)
