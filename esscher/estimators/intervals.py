"""Confidence intervals for functions of independent replicates.

A statistic is a function of how often each replicate occurs, `statistic(*counts)`, evaluated at counts of 1. Its derivative
with respect to a count is the *effect* of that replicate (the infinitesimal jackknife). A replicate with a share h of the
denominator (a text with a share h of all tokens) pulls the statistic towards itself, which hides a part of its effect; with
d = effect / sqrt(1 - h) over the standard error,

    standard error        sqrt(sum effect^2 / (1 - h))      Bell and McCaffrey (Survey Methodology, 2002)
    degrees of freedom    theirs, from the shares, or 2 / (sum d^4 - 1 / n), whichever is smaller, for Student's quantile
    skewness              sum d^3, removed by Hall's cubic transformation (J. R. Stat. Soc. B, 1992)

The ends are closed forms on the `Scale` of the statistic. What was not drawn has no effect: estimates from weighted draws reach
as far as `UNSEEN_DRAWS` more draws like the one of largest weight would move them (`unseen`). Counts come in *sources* of
independent chance, each a table [strata, n]; replicates of a stratum are drawn alike (the draws of one prompt, the sequences of
a test set). The caller decides what a replicate is. Measured coverage: `docs/why/intervals.md`, `docs/why/streams.md`. Left
out: the bias of a statistic, which vanishes faster than its error.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.core.estimate import Estimate
from esscher.core.randomness import Rng

Scale = Literal["linear", "positive", "log mean"]
"""Where the error of a statistic is symmetric but for its skewness: as it is; for a quantity above 0, in its logarithm; for the
log of a mean, in the mean."""
Statistic = Callable[..., Tensor]
"""`statistic(*counts) -> scalar`: one table of counts [strata, n] for each source, unchanged when a stratum is scaled."""

UNSEEN_DRAWS = 3.0  # with probability 95 % an event that 1 draw in n / 3 shows is among n draws
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
    scale: Scale = "linear",
    leverage: Float[Tensor, "n"] | None = None,
    reach: tuple[float, float] = (math.inf, -math.inf),
    unseen: tuple[float, float] = (0.0, 0.0),
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> Estimate:
    """The statistic at counts of 1, with an interval that covers its true value at the rate `confidence`. `sources` are the
    shapes [strata, replicates] of the counts; `leverage` the shares of the replicates of the first source, of one stratum, in
    a denominator, by default equal. The interval holds at least `reach`, goes on by what was not drawn may move the statistic
    down and up (`unseen`), and stays within `limits`. `n`, `counted`, `method` and `unit` go into the `Estimate`."""
    from scipy.special import stdtrit

    check_confidence(confidence)
    fewest = min(size for _, size in sources)
    if fewest < 2:
        raise ValueError(
            f"An interval needs at least 2 independent replicates and has {fewest}. Nothing was estimated; draw more, or "
            f"give more prompts or test sequences."
        )
    value, effects = _effects(statistic, sources)
    shares = [torch.full((size,), 1 / size, dtype=torch.float64) for _, size in sources]
    if leverage is not None:
        shares[0] = leverage.double() / leverage.double().sum()
    moves = [_scaled(effect, share) for effect, share in zip(effects, shares, strict=True)]
    error = math.sqrt(sum(float(move.square().sum()) for move in moves))
    down, up = value, value
    if max(float(share.max()) for share in shares) > 1 - 1e-9:  # all others are empty: a single replicate
        down, up = limits
    elif error > 0:
        directions = [move / error for move in moves]
        quantile = float(stdtrit(_degrees_of_freedom(directions, shares), (1 + confidence) / 2))
        skewness = sum(float(direction.pow(3).sum()) for direction in directions)
        down, up = _ends(value, error, quantile, skewness, scale, (1 - confidence) / 2)
    low, high = max(min(down, reach[0]) - unseen[0], limits[0]), min(max(up, reach[1]) + unseen[1], limits[1])
    return Estimate(value, min(value, low), max(value, high), confidence, n, method, unit, counted)


def _ends(value: float, error: float, quantile: float, skewness: float, scale: Scale, floor: float) -> tuple[float, float]:
    """Both ends on the scale of the statistic, infinite where they overflow; a log mean falls by at most -log(floor)."""
    if scale == "positive" and value > 0:
        width = min(quantile * error / value, 700.0)
        return value * math.exp(-width), value * math.exp(width) if width < 700 else math.inf
    low, high = (-_unskewed(x, skewness) * error for x in (quantile, -quantile))
    if scale == "log mean":
        low, high = math.log(max(1 + low, floor)), math.log1p(high)
    return value + low, value + high


def one_replicate(
    value: float, *, confidence: float, n: int, method: str, unit: str = "", counted: str, limits: tuple[float, float]
) -> Estimate:
    """A value from a single replicate, which says nothing of its own error: the interval is all that is possible."""
    return Estimate(value, *limits, confidence, n, f"{method}; one replicate, too few for an interval", unit, counted)


def combined(
    value: float, parts: Sequence[tuple[float, Estimate]], *, n: int, method: str, limits: tuple[float, float] | None = None
) -> Estimate:
    """An estimate that is, but for constants, a sum of factors times independent parts, of which each has an interval: the
    distances from the value to the ends, by Pythagoras, which keeps the asymmetry of each part (Zou and Donner, Statistics in
    Medicine, 2008). Confidence and unit are those of the first part."""
    low, high = 0.0, 0.0
    for factor, part in parts:
        below, above = part.value - part.low, part.high - part.value
        below, above = (below, above) if factor >= 0 else (above, below)
        low, high = math.hypot(low, factor * below), math.hypot(high, factor * above)
    least, most = (-math.inf, math.inf) if limits is None else limits
    ends = max(value - low, min(value, least)), min(value + high, max(value, most))
    first = parts[0][1]
    return replace(first, value=value, low=ends[0], high=ends[1], n=n, method=method)


def ratio(above: Float[Tensor, "n"], below: Float[Tensor, "n"] | None = None) -> Statistic:
    """The statistic sum(above) / sum(below) of replicates in one stratum; the mean of `above` without `below`."""

    def statistic(count: Float[Tensor, "1 n"]) -> Tensor:
        return (count[0] * above).sum() / (count.sum() if below is None else (count[0] * below).sum())

    return statistic


def log_mean(count: Float[Tensor, "*S n"], log_weight: Float[Tensor, "*S n"]) -> Float[Tensor, "*S"]:
    """log of the mean weight, with each draw counted `count` times."""
    log_weight = log_weight.double()
    top = log_weight.amax(-1, keepdim=True)
    weight = (log_weight - top).exp()
    return top[..., 0] + ((count * weight).sum(-1) / count.sum(-1)).log()


def unseen_draws(prompts: int) -> float:
    """So many draws may be missing for each prompt: `UNSEEN_DRAWS` of one, and of several together, at least 1 of each, because
    heavy weights lower every log Z."""
    return max(1.0, UNSEEN_DRAWS / prompts)


def raised_by_unseen(log_weight: Float[Tensor, "*S n"], prompts: int) -> Float[Tensor, "*S"]:
    """By how much `unseen_draws(prompts)` more draws like the largest raise each log mean."""
    n, more = log_weight.shape[-1], unseen_draws(prompts)
    return torch.log1p((torch.softmax(log_weight.double(), -1).amax(-1) - 1 / n) * (more * n / (n + more)))


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


def _scaled(effect: Float[Tensor, "G n"], share: Float[Tensor, "n"]) -> Float[Tensor, "G n"]:
    """Effects centred in each stratum, without the part that a replicate hides by its share."""
    return (effect - effect.mean(-1, keepdim=True)) / (1 - share).clamp(min=1e-12).sqrt()


def _degrees_of_freedom(directions: Sequence[Tensor], shares: Sequence[Tensor]) -> float:
    """Satterthwaite's degrees of freedom of a sum of squares: from its fourth moments, at most those of its shares, where the
    variance of a replicate grows like its share (n - 1 for equal shares)."""
    spread, sizes = 0.0, 0.0
    for direction, share in zip(directions, shares, strict=True):
        variance, cross = direction.square().sum(-1), share.square() / (1 - share).clamp(min=1e-12)
        spread += float((direction.pow(4).sum(-1) - variance.square() / len(share)).sum()) / 2
        each = float(share.square().sum() + cross.sum() ** 2 - cross.square().sum())
        sizes += float(variance.square().sum()) * each
    return 1 / max(spread, sizes)


def hall_quantiles(direction: Float[Tensor, "1 n"], confidence: float) -> tuple[float, float]:
    """The studentised deviations at both ends of an interval for a mean of equal shares, of which `direction` has the effects
    over their root sum of squares."""
    from scipy.special import stdtrit

    size = direction.shape[1]
    dof = _degrees_of_freedom([direction], [torch.full((size,), 1 / size, dtype=torch.float64)])
    quantile, skewness = float(stdtrit(dof, (1 + confidence) / 2)), float(direction.pow(3).sum())
    return _unskewed(quantile, skewness), _unskewed(-quantile, skewness)


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
        value, method = float(above.sum() / below.sum()), "one block"
        limits = (-math.inf, math.inf)
        return one_replicate(value, confidence=confidence, n=n, method=method, unit=unit, counted=counted, limits=limits)
    method = f"{len(above)} blocks of {n // len(above):,} {counted}"
    return interval(
        ratio(above, below), [(1, len(above))], confidence=confidence, n=n, method=method, unit=unit, counted=counted,
        leverage=below,
    )  # fmt: skip
