"""Confidence intervals for functions of independent replicates.

`interval` is the skewness-corrected infinitesimal jackknife behind almost every estimate. A statistic is a function of how
often each replicate occurs, `statistic(*counts)`, evaluated at counts of 1. Its derivative with respect to a count is the
*effect* of that replicate; with d the effects over their root sum of squares,

    standard error        sqrt(sum effect^2)        Efron (1982), the infinitesimal jackknife
    skewness              sum d^3                   removed by Hall's cubic transformation (J. R. Stat. Soc. B, 1992)
    degrees of freedom    2 / (sum d^4 - 1 / n)     of the standard error, for Student's quantile

The ends of the interval are the statistic at counts moved along d: the ends for log Z are the logarithms of the ends for Z.
Counts come in *sources* of independent chance, each a table [strata, n]; replicates of a stratum are drawn alike (the draws of
one prompt, the sequences of a test set). The caller decides what a replicate is. Measured coverage: `docs/why/intervals.md`,
`docs/why/streams.md`. Left out: the bias of a statistic, which vanishes faster than its error.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.core.estimate import Estimate
from esscher.core.randomness import Rng

Statistic = Callable[..., Tensor]
"""`statistic(*counts) -> scalar`: one table of counts [strata, n] for each source, unchanged when a stratum is scaled."""

ROUNDING = 1e-18  # a variance that counts as 0
MAX_COUNTS = 2**22  # bootstrap counts held at a time
BLOCKS = (40, 20, 10)


def interval(
    statistic: Statistic,
    sources: Sequence[tuple[int, int]],
    *,
    confidence: float,
    n: int,
    method: str,
    unit: str = "",
    counted: str = "draws",
) -> Estimate:
    """The statistic at counts of 1, with an interval that covers its true value at the rate `confidence`. `sources` are the
    shapes [strata, replicates] of the counts; `n`, `counted`, `method` and `unit` go into the `Estimate`."""
    from scipy.special import stdtrit

    check_confidence(confidence)
    fewest = min(size for _, size in sources)
    if fewest < 2:
        raise ValueError(
            f"An interval needs at least 2 independent replicates and has {fewest}. Nothing was estimated; draw more, or "
            f"give more prompts or test sequences."
        )
    value, effects = _effects(statistic, sources)
    moves = [_scaled(effect) for effect in effects]
    error = math.sqrt(sum(float(move.square().sum()) for move in moves))
    if error == 0:
        return Estimate(value, value, value, confidence, n, method, unit, counted)
    directions = [move / error for move in moves]
    skewness = sum(float(direction.pow(3).sum()) for direction in directions)
    quantile = float(stdtrit(_degrees_of_freedom(directions), (1 + confidence) / 2))
    with torch.no_grad():
        ends = [
            float(statistic(*[1 - _unskewed(x, skewness) * _scaled(direction) for direction in directions]))
            for x in (quantile, -quantile)
        ]
    return Estimate(value, min(value, *ends), max(value, *ends), confidence, n, method, unit, counted)


def ratio(above: Float[Tensor, "n"], below: Float[Tensor, "n"] | None = None) -> Statistic:
    """The statistic sum(above) / sum(below) of replicates in one stratum; the mean of `above` without `below`."""

    def statistic(count: Float[Tensor, "1 n"]) -> Tensor:
        return (count[0] * above).sum() / (count.sum() if below is None else (count[0] * below).sum())

    return statistic


def log_mean(count: Float[Tensor, "*S n"], log_weight: Float[Tensor, "*S n"], *, floor: float = 0.0) -> Float[Tensor, "*S"]:
    """log of the mean weight, with each draw counted `count` times. Counts may be negative at the low end of an interval, so
    the mean is at least `floor` times that at counts of 1: the true mean is lower with probability at most `floor` (Markov)."""
    log_weight = log_weight.double()
    top = log_weight.amax(-1, keepdim=True)
    weight = (log_weight - top).exp()
    mean = (count * weight).sum(-1) / count.sum(-1)
    return top[..., 0] + torch.maximum(mean, floor * weight.mean(-1)).log()


def check_confidence(confidence: float, outcome: str = "Nothing was estimated") -> None:
    """Raise unless a confidence level lies strictly between 0 and 1."""
    if not 0 < confidence < 1:
        raise ValueError(f"A confidence level lies between 0 and 1, not {confidence}. {outcome}; 0.95 is usual.")


def _effects(statistic: Statistic, sources: Sequence[tuple[int, int]]) -> tuple[float, list[Tensor]]:
    """The statistic at counts of 1, and its derivatives with respect to the counts of each source."""
    counts = [torch.ones(shape, dtype=torch.float64, requires_grad=True) for shape in sources]
    with torch.enable_grad():
        value = statistic(*counts)
        if not value.requires_grad:
            return float(value), [torch.zeros_like(count) for count in counts]
        effects = torch.autograd.grad(value, counts, materialize_grads=True)
    return float(value.detach()), [effect.detach() for effect in effects]


def _scaled(effect: Float[Tensor, "G n"]) -> Float[Tensor, "G n"]:
    """Effects centred in each stratum and enlarged by sqrt(n / (n - 1)), as in the unbiased variance."""
    n = effect.shape[1]
    return (effect - effect.mean(-1, keepdim=True)) * math.sqrt(n / (n - 1))


def _degrees_of_freedom(directions: Sequence[Tensor]) -> float:
    """Satterthwaite's degrees of freedom of a sum of squares: from its fourth moments, at most those of its sizes."""
    spread, sizes = 0.0, 0.0
    for direction in directions:
        n = direction.shape[1]
        variance = direction.square().sum(-1)
        spread += float((direction.pow(4).sum(-1) - variance.square() / n).sum()) / 2
        sizes += float(variance.square().sum()) / (n - 1)
    return 1 / max(spread, sizes)


def _unskewed(x: float, skewness: float) -> float:
    """The studentised deviation that Hall's transformation takes to x: (3/A) (cbrt(1 + A (x - A/6)) - 1)."""
    if abs(skewness) < 1e-6:
        return x
    return 3 / skewness * (math.cbrt(1 + skewness * (x - skewness / 6)) - 1)


def proportion(
    statistic: Statistic,
    sources: Sequence[tuple[int, int]],
    *,
    confidence: float,
    n: int,
    method: str,
    binary: bool = True,
    counted: str = "draws",
) -> Estimate:
    """A statistic in [0, 1] with Clopper and Pearson's interval at the number of trials at which a binomial share has the same
    variance (Korn and Graubard, Survey Methodology, 1998); arguments as for `interval`. With `binary`, replicates consist of
    `n` outcomes 0 or 1 in all and are worth at most `n` trials."""
    from scipy.special import ndtri, stdtrit

    plain = interval(statistic, sources, confidence=confidence, n=n, method=method, counted=counted)  # checks the arguments
    value = plain.value
    if not -1e-9 < value < 1 + 1e-9:
        raise ValueError(f"A proportion lies in [0, 1], not at {value}. Nothing was estimated.")
    value = min(max(value, 0.0), 1.0)
    _, effects = _effects(statistic, sources)
    squares = [float((effect - effect.mean(-1, keepdim=True)).square().sum()) for effect in effects]
    variance = sum(square * size / (size - 1) for square, (_, size) in zip(squares, sources, strict=True))
    active = [size for (_, size), effect in zip(sources, effects, strict=True) if bool((effect != 0).any())]
    replicates = min(active or [size for _, size in sources])
    trials = float(replicates)
    if variance <= ROUNDING and 0 < value < 1 and not binary:
        return replace(plain, low=value, high=value)
    if variance > ROUNDING and 0 < value < 1:
        most, tail = float(n) if binary else math.inf, (1 + confidence) / 2
        design = float((ndtri(tail) / stdtrit(replicates - 1, tail)) ** 2)  # for the degrees of freedom of the variance
        trials = min(value * (1 - value) / variance, most) * design
    low, high = _clopper_pearson(value * trials, trials, confidence)
    method = f"{method}; as a binomial share of {trials:.0f}"
    return replace(plain, value=value, low=min(value, low), high=max(value, high), method=method)


def _clopper_pearson(successes: float, trials: float, confidence: float) -> tuple[float, float]:
    from scipy.special import betaincinv

    tail = (1 - confidence) / 2
    failures = trials - successes
    low = 0.0 if successes <= 0 else float(betaincinv(successes, failures + 1, tail))
    high = 1.0 if failures <= 0 else float(betaincinv(successes + 1, failures, 1 - tail))
    return (0.0 if math.isnan(low) else low), (1.0 if math.isnan(high) else high)


def bootstrap_counts(size: int, samples: int, *, rng: Rng) -> Float[Tensor, "{samples} {size}"]:
    """How often each of `size` replicates occurs in each of `samples` bootstrap samples (Efron, 1979)."""
    chosen = rng.categorical(torch.zeros(1, size, dtype=torch.float64), samples * size).view(samples, size)
    return torch.zeros(samples, size, dtype=torch.float64).scatter_add(1, chosen, torch.ones_like(chosen, dtype=torch.float64))


def block_sums(series: Float[Tensor, "N"], blocks: int) -> Float[Tensor, "K"]:
    """Sums of `blocks` contiguous blocks of nearly equal length; a series of fewer entries has as many blocks as entries."""
    return torch.stack([block.sum() for block in series.double().tensor_split(max(1, min(blocks, len(series))))])


def block_correlation(total: Float[Tensor, "N"], size: Float[Tensor, "N"], blocks: int) -> float:
    """Correlation of neighbouring blocks, near 0 where blocks are long enough (`correlation_threshold`)."""
    above, below = block_sums(total, blocks), block_sums(size, blocks)
    rest = above - below * above.sum() / below.sum()
    spread = float(rest.square().sum())
    return float((rest[1:] * rest[:-1]).sum()) / spread if spread > 0 else 0.0


def correlation_threshold(blocks: int) -> float:
    """Two standard errors of the correlation of independent neighbouring blocks."""
    return 2 / math.sqrt(blocks)


def choose_blocks(total: Float[Tensor, "N"], size: Float[Tensor, "N"]) -> int:
    """The largest number in `BLOCKS` whose neighbouring blocks correlate no more than by chance; else the smallest."""
    return next(
        (blocks for blocks in BLOCKS if block_correlation(total, size, blocks) <= correlation_threshold(blocks)), BLOCKS[-1]
    )


def ratio_of_sums(
    total: Float[Tensor, "N"], size: Float[Tensor, "N"], *, confidence: float, counted: str = "tokens", unit: str = ""
) -> Estimate:
    """sum(total) / sum(size) of a series, for all series like it, with blocks of neighbours as replicates; a single block has
    no interval. Left out: dependence over more than a tenth of the series."""
    blocks = choose_blocks(total, size)
    above, below, n = block_sums(total, blocks), block_sums(size, blocks), len(total)
    if len(above) < 2:
        value, method = float(above.sum() / below.sum()), "one block: no interval"
        return Estimate(value, -math.inf, math.inf, confidence, n, method, unit, counted)
    method = f"{len(above)} blocks of {n // len(above):,} {counted}"
    return interval(
        ratio(above, below), [(1, len(above))], confidence=confidence, n=n, method=method, unit=unit, counted=counted
    )
