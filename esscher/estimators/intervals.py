"""The one interval behind every estimate: the infinitesimal jackknife, corrected for skewness and for a shaky error.

A number got from chance is a function of how often each replicate occurs: `statistic(*counts)`, all counts 1. Its
derivative by a count is the *effect* of that replicate, and with d the effects over their root sum of squares:

    standard error    sqrt(sum effect^2)          Efron (1982), the infinitesimal jackknife
    skewness          sum d^3                     removed by Hall's cubic transformation (J. R. Stat. Soc. B, 1992)
    degrees           2 / (sum d^4 - 1 / n)       of the standard error itself, for Student's quantile

The ends of the interval are the statistic at counts moved along d, so that they respect its curvature: for log Z they
are logarithms of the ends for Z. `docs/why/intervals.md` compares what else could be done, with the figures.

Counts come in *sources* of independent chance, each a table [strata, n]: replicates within a stratum are drawn alike
(the draws of one prompt, the sequences of a test set). What is a replicate is for the caller to say; draws that
depend on each other are not. Left out: the bias of a statistic, which vanishes faster than its error.
"""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.estimate import Estimate

Statistic = Callable[..., Tensor]
"""`statistic(*counts) -> scalar`: one table of counts [strata, n] for each source, unchanged when a stratum is scaled."""


def interval(
    statistic: Statistic, sources: Sequence[tuple[int, int]], *, level: float, draws: int, method: str, unit: str = ""
) -> Estimate:
    """The statistic at counts of 1, and the interval that covers its truth at the rate `level`."""
    _check(sources, level)
    counts = [torch.ones(shape, dtype=torch.float64, requires_grad=True) for shape in sources]
    with torch.enable_grad():
        found = statistic(*counts)
        effects = torch.autograd.grad(found, counts, materialize_grads=True) if found.requires_grad else counts
    value = float(found.detach())
    moves = [_scaled(effect.detach()) for effect in effects]
    error = math.sqrt(sum(float(move.square().sum()) for move in moves))
    if error == 0:
        return Estimate(value, value, value, level, draws, method, unit)
    directions = [move / error for move in moves]
    skewness = sum(float(direction.pow(3).sum()) for direction in directions)
    quantile = _student(_degrees(directions), level)
    with torch.no_grad():
        ends = [
            float(statistic(*[1 - _unskewed(x, skewness) * _scaled(direction) for direction in directions]))
            for x in (quantile, -quantile)
        ]
    return Estimate(value, min(value, *ends), max(value, *ends), level, draws, method, unit)


def log_mean(count: Float[Tensor, "*S n"], log_weight: Float[Tensor, "*S n"], *, floor: float = 0.0) -> Float[Tensor, "*S"]:
    """log of the mean weight, each draw counted as told.

    Counts may be negative at the low end of an interval; the mean is held above `floor` times the mean at counts
    of 1. By Markov's inequality the true mean is that low with probability at most `floor`, whatever the tails.
    """
    log_weight = log_weight.double()
    top = log_weight.amax(-1, keepdim=True)
    weight = (log_weight - top).exp()
    mean = (count * weight).sum(-1) / count.sum(-1)
    return top[..., 0] + torch.maximum(mean, floor * weight.mean(-1)).log()


def _check(sources: Sequence[tuple[int, int]], level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"An interval covers at a rate between 0 and 1, not {level}. Nothing was estimated; 0.95 is usual.")
    few = min(n for _, n in sources)
    if few < 2:
        raise ValueError(
            f"An interval needs at least 2 independent replicates and has {few}. Nothing was estimated; draw more, or "
            f"give more prompts or test sequences."
        )


def _scaled(effect: Float[Tensor, "G n"]) -> Float[Tensor, "G n"]:
    """Centred in each stratum, and enlarged as the unbiased variance is."""
    n = effect.shape[1]
    return (effect - effect.mean(-1, keepdim=True)) * math.sqrt(n / (n - 1))


def _degrees(directions: Sequence[Tensor]) -> float:
    """Satterthwaite's degrees of freedom of the sum of squares, from its fourth moments and at most from its sizes."""
    spread, sizes = 0.0, 0.0
    for direction in directions:
        n = direction.shape[1]
        variance = direction.square().sum(-1)
        spread += float((direction.pow(4).sum(-1) - variance.square() / n).sum()) / 2
        sizes += float(variance.square().sum()) / (n - 1)
    return 1 / max(spread, sizes)


def _student(degrees: float, level: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + level) / 2))


def _unskewed(x: float, skewness: float) -> float:
    """The studentised deviation that Hall's transformation takes to x: (3/A) (cbrt(1 + A (x - A/6)) - 1)."""
    if abs(skewness) < 1e-6:
        return x
    return 3 / skewness * (math.cbrt(1 + skewness * (x - skewness / 6)) - 1)
