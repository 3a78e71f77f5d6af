"""log Z from weighted draws: an interval, the bounds of the residual paper, and a finite-sample guarantee by betting.

`log_z` is the log of the mean weight, never the mean of logs; a mean over prompts is corrected for the bias of each log.

`betting_log_z` covers at any number of draws, for energies with known bounds (Waudby-Smith and Ramdas, J. R. Stat. Soc. B,
2024). For every candidate mean m, one gambler bets that the weights exceed m and one that they fall short; each multiplies its
capital by 1 +- lambda (y - m) at every draw, with lambda fixed before the draw is seen. At the true mean a capital exceeds 2 /
(1 - confidence) with probability at most (1 - confidence) / 2, so candidates at which one does are ruled out.

`betting_mean_log_z` bounds the mean over prompts by terms that are independent but not identically distributed, with one stake
for all draws (AM-GM inequality):

    from below   E[T_k] <= log Z for the log T_k of a mean of k weights, as log is concave
    from above   log Z <= log u - 1 + E[w / u] for any u, the tangent of log; u is the mean of other draws of the prompt
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.target import Energy
from esscher.energies.features import log_weight_bounds
from esscher.estimators.expectations import (
    Prompts,
    bias_of_log_mean,
    check_independent,
    estimate_from_draws,
    independent_log_weights,
)
from esscher.estimators.intervals import interval, log_mean, raised_by_unseen

METHOD = "log of the mean weight, skewness-corrected infinitesimal jackknife"
EQUAL = "all weights are equal, so the draws say nothing of what they did not show"
Bounds = tuple[float, float]
"""The least and the largest log weight of all points, drawn or not."""


def log_z(draws: Draws, *, prompts: Prompts = "same", bounds: Bounds | None = None, confidence: float = 0.95) -> Estimate:
    """log Z of one prompt, or its mean over prompts, in nats; `prompts` as in `esscher.estimators.expectations`, `bounds` as in
    `log_mean_weight`."""
    draws.log_z()  # raises where the sampler discards its normaliser
    estimate = estimate_from_draws(
        draws, log_mean, [draws.log_weight], bias=None if prompts == "same" else bias_of_log_mean, scale="log mean",
        limits=(-math.inf, math.inf) if bounds is None else bounds, prompts=prompts, confidence=confidence, method=METHOD,
        unit="nats",
    )  # fmt: skip
    return _or_of_equal_weights(estimate, draws.log_weight.detach().cpu().double(), bounds, draws.independent)


def log_mean_weight(
    log_weight: Float[Tensor, "n"], *, method: str, bounds: Bounds | None = None, confidence: float, independent: bool = True
) -> Estimate:
    """The log of the mean weight of replicates: independent draws, or runs of dependent ones. Where all weights are equal the
    interval is that of the guarantee (`betting_log_z`) if the `bounds` of log weights are known, and else unbounded above."""
    log_weight, n = log_weight.double(), len(log_weight)
    estimate = interval(
        lambda count: log_mean(count[0], log_weight), [(1, n)], confidence=confidence, n=n, method=method, unit="nats",
        scale="log mean", unseen=(0.0, float(raised_by_unseen(log_weight, 1)) if independent else 0.0),
        limits=(-math.inf, math.inf) if bounds is None else bounds,
    )  # fmt: skip
    return _or_of_equal_weights(estimate, log_weight[None], bounds, independent)


def equal_weights(log_weight: Float[Tensor, "P N"]) -> Bool[Tensor, "P"]:
    """Whether all draws of a prompt have the same weight, but for rounding."""
    return log_weight.amax(-1) - log_weight.amin(-1) < 1e-6 * (1 + log_weight.amax(-1).abs())


def _or_of_equal_weights(
    estimate: Estimate, log_weight: Float[Tensor, "P N"], bounds: Bounds | None, independent: bool
) -> Estimate:
    """The estimate, unless all weights are equal: then an interval that does not rest on their spread."""
    known = bounds is not None and bounds[0] == bounds[1]
    if known or not independent or not bool(equal_weights(log_weight).all()):
        return estimate
    if bounds is not None and bool((log_weight - log_weight[0, 0]).abs().max() < 1e-6):
        guaranteed = _betting_interval(log_weight.reshape(-1), *bounds, estimate.confidence)
        return replace(estimate, low=guaranteed.low, high=guaranteed.high, method=f"{EQUAL}; {guaranteed.method}")
    missing = min(0.99, -math.log((1 - estimate.confidence) / 2) / log_weight.numel())  # a share that the draws may miss
    low, high = estimate.value + math.log1p(-missing), math.inf if bounds is None else bounds[1]
    method = f"{EQUAL}: unbounded above" if bounds is None else EQUAL
    return replace(estimate, low=min(low, estimate.low), high=max(high, estimate.high), method=method)


def weight_bounds(draws: Draws, energy: Energy) -> Bounds | None:
    """Bounds of the log weights of all points, drawn or not, as the form of the energy tells: those of -E for draws of the
    base; above by 1 / share more for a mixture with that share of the base; None for draws of another proposal."""
    bounds = log_weight_bounds(energy)
    if bounds is None or draws.max_log_ratio == 0:
        return bounds
    return None if math.isinf(draws.max_log_ratio) else (-math.inf, bounds[1] + draws.max_log_ratio)


def log_z_std(draws: Draws, *, confidence: float = 0.95) -> Estimate:
    """The standard deviation of log Z over prompts like these, without the part that the error of the draws adds."""
    log_weight = independent_log_weights(draws, "The error of each log Z")
    p, n = log_weight.shape
    noise = -2 * bias_of_log_mean(log_weight)  # its variance, to first order
    each = draws.log_z().cpu() - bias_of_log_mean(log_weight)

    def variance(count: Tensor) -> Tensor:
        share = count[0] / count.sum()
        mean = (share * each).sum()
        return (share * (each - mean) ** 2).sum() * p / (p - 1) - (share * noise).sum()

    method = f"spread over {p} prompts as a sample, less the error of {n} draws each"
    square = interval(variance, [(1, p)], confidence=confidence, n=p * n, method=method, unit="nats")
    return square.map(lambda value: math.sqrt(max(value, 0.0)))


@dataclass(frozen=True)
class LogZBounds:
    """Averages over prompts that lie below and, asymptotically in the draws, above the average log Z."""

    lower: Estimate
    upper: Estimate


def log_z_bounds(draws: Draws, *, confidence: float = 0.95) -> LogZBounds:
    """The two bounds of Deng et al. (2020): E[T_n] <= log Z, and a leave-one-out upper bound, which is only asymptotic. Each
    has an interval for its own expectation, with the prompts fixed; `log_z` has an interval that covers log Z itself."""
    log_weight = independent_log_weights(draws, "Leave-one-out")
    p, n = log_weight.shape
    lower, upper = leave_one_out_bounds(log_weight)

    def bound(shift: Tensor, method: str) -> Estimate:
        def statistic(count: Tensor) -> Tensor:
            return log_mean(count, log_weight).mean() + shift.mean()

        return interval(statistic, [(p, n)], confidence=confidence, n=p * n, method=method, unit="nats")

    low = bound(torch.zeros_like(lower), f"lower bound in expectation, T_{n}")
    return LogZBounds(low, bound(upper - lower, f"asymptotic upper bound, leave-one-out at n = {n}"))


def leave_one_out_bounds(log_weight: Float[Tensor, "P N"]) -> tuple[Float[Tensor, "P"], Float[Tensor, "P"]]:
    """T_n and (2n-1) T_n - 2(n-1) mean_j T_{n-1}^(-j) for each prompt; the latter is inf where only one draw has weight."""
    n = log_weight.shape[1]
    check_independent("Leave-one-out", True, n)
    ordered = log_weight.double().sort(-1, descending=True).values
    total = torch.logsumexp(ordered, -1, keepdim=True)
    log_rest = torch.log1p(-(ordered - total).exp().clamp(max=1))  # log of the remaining share of the weight
    log_rest[:, 0] = torch.logsumexp(ordered[:, 1:], -1) - total[:, 0]  # the largest share may be near 1
    gap = log_rest.mean(-1) + math.log(n / (n - 1))  # mean_j T_{n-1}^(-j) - T_n, at most 0
    lower = total[:, 0] - math.log(n)
    return lower, lower - 2 * (n - 1) * gap.clamp(max=0.0)


LARGEST_STAKE = 0.75  # share of the capital that one bet may lose
BISECTIONS = 60
STAKES = 8  # constant stakes, among which the capital of `_least_mean` is divided
ENOUGH = 1000  # block means from which the mean over prompts is bounded below
SMALLEST = 8  # draws of such a block: shorter ones bias the bound downwards


def betting_log_z(draws: Draws, *, low: float, high: float, confidence: float = 0.95) -> list[Estimate]:
    """log Z of each prompt from independent draws whose log weights (-E, if drawn from the base) lie in [low, high]."""
    log_weight = independent_log_weights(draws, "The guarantee", fewest=1)
    _check_bounds(log_weight, low, high)
    return [_betting_interval(row, low, high, confidence) for row in log_weight]


def betting_mean_log_z(
    log_weight: Float[Tensor, "C n"],
    *,
    low: float,
    high: float,
    weights: Float[Tensor, "C"] | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """The mean of log Z over exactly these prompts, by `weights`; [low, high] bound the log weights of all points."""
    contexts, n = log_weight.shape
    _check_bounds(log_weight, low, high)
    if contexts == 1:
        return _betting_interval(log_weight[0], low, high, confidence)
    check_independent("The guarantee", True, n)
    share = torch.full((contexts,), 1 / contexts).double() if weights is None else weights / weights.sum()
    value = float(share @ (torch.logsumexp(log_weight, -1) - math.log(n) - bias_of_log_mean(log_weight)))
    least = max(low, _mean_from_below(log_weight, share, low, high, (1 - confidence) / 2))
    most = min(high, _mean_from_above(log_weight, share, high, (1 - confidence) / 2))
    where = f"for log weights in [{low:.4g}, {high:.4g}]"
    method = f"betting on the mean over {contexts} fixed prompts, exact at {n} draws each, {where}"
    return Estimate(min(max(value, least), most), least, most, confidence, log_weight.numel(), method, "nats")


def _mean_from_below(
    log_weight: Float[Tensor, "C n"], share: Float[Tensor, "C"], low: float, high: float, alpha: float
) -> float:
    """A lower bound on the mean of log Z, which fails with probability at most `alpha`."""
    if low == -math.inf:
        return -math.inf
    contexts, n = log_weight.shape
    blocks = max(1, min(n // SMALLEST, -(-ENOUGH // contexts)))
    size = n // blocks
    log_mean = torch.logsumexp(log_weight[:, : blocks * size].view(contexts, blocks, size), -1) - math.log(size)
    scale = contexts * share[:, None] * (high - low)
    largest = float(scale.max())
    y = ((log_mean - low) / (high - low) * scale / largest).clamp(0, 1)
    return low + largest * _least_mean(y.reshape(-1), alpha)


def _mean_from_above(log_weight: Float[Tensor, "C n"], share: Float[Tensor, "C"], high: float, alpha: float) -> float:
    """An upper bound on the mean of log Z at level `alpha`; the first half of the draws chooses the points of tangency."""
    contexts, n = log_weight.shape
    half = n // 2
    touch = torch.logsumexp(log_weight[:, :half], -1) - math.log(half)
    if bool((touch == -math.inf).any()):
        return math.inf
    log_scale = (contexts * share).log() - touch
    largest = math.exp(float(log_scale.max()) + high)
    ratio = (log_weight[:, half:] + log_scale[:, None]).exp()
    y = (1 - ratio / largest).clamp(0, 1)
    return float(share @ touch) - 1 + largest * (1 - _least_mean(y.reshape(-1), alpha))


def _least_mean(y: Float[Tensor, "n"], alpha: float) -> float:
    """A lower bound at level `alpha` on the average of the means of independent y in [0, 1]."""
    limit = math.log(1 / alpha)
    smallest = min(0.5, math.sqrt(2 * limit / len(y)) / 4)
    stake = torch.linspace(math.log(smallest), math.log(0.95), STAKES, dtype=torch.float64).exp()[:, None]

    def allowed(m: float) -> bool:  # the mean over stakes s of prod(1 - s + s y / m) decreases in m
        capital = torch.log1p(stake * (y / m - 1)).sum(-1)
        return float(torch.logsumexp(capital, 0)) - math.log(STAKES) < limit

    return _first_allowed(allowed, float(y.mean()))


def _check_bounds(log_weight: Float[Tensor, "C n"], low: float, high: float) -> None:
    rounding = 1e-5 * max(1.0, abs(high))
    outside = (log_weight < low - rounding) | (log_weight > high + rounding)
    if not low < high or bool(outside.any()):
        seen = f"{float(log_weight.min()):.4g} to {float(log_weight.max()):.4g}"
        raise ValueError(
            f"[{low:.4g}, {high:.4g}] is not a bound: the log weights go from {seen}, {int(outside.sum())} of them outside. "
            f"Nothing was estimated; give bounds that hold for every point of the space, drawn or not."
        )


def _betting_interval(log_weight: Float[Tensor, "n"], low: float, high: float, confidence: float) -> Estimate:
    """Interval from bets on y = (w - e^low) / (e^high - e^low), which lies in [0, 1]."""
    floor = math.exp(low - high)
    y = (((log_weight - high).exp() - floor) / (1 - floor)).clamp(0, 1)
    limit = math.log(2 / (1 - confidence))
    stake = _stakes(y, limit)
    mean = float(y.mean())
    least = _first_allowed(lambda m: _log_capital(y - m, stake.clamp(max=LARGEST_STAKE / m)) < limit, mean)
    most = 1 - _first_allowed(lambda m: _log_capital((1 - y) - m, stake.clamp(max=LARGEST_STAKE / m)) < limit, 1 - mean)
    ends = [high + math.log(floor + (1 - floor) * m) if m > 0 or low > -math.inf else -math.inf for m in (least, mean, most)]
    n = len(log_weight)
    method = f"betting, exact at {n} draws, for log weights in [{low:.4g}, {high:.4g}]"
    return Estimate(ends[1], min(ends[:2]), max(ends[1:]), confidence, n, method, "nats")


def _stakes(y: Float[Tensor, "n"], limit: float) -> Float[Tensor, "n"]:
    """The stake at each draw, from the mean and variance of the draws before it."""
    n = len(y)
    seen = torch.arange(1, n + 1, dtype=torch.float64)
    mean = (0.5 + y.cumsum(0)) / (seen + 1)
    variance = (0.25 + (y - mean).square().cumsum(0)) / (seen + 1)
    before = torch.cat([torch.tensor([0.25], dtype=torch.float64), variance[:-1]])
    return (2 * limit / (n * before)).sqrt()


def _log_capital(gain: Float[Tensor, "n"], stake: Float[Tensor, "n"]) -> float:
    return float(torch.log1p(stake * gain).sum())


def _first_allowed(allowed: Callable[[float], bool], high: float) -> float:
    """The least m in [0, high] that is not ruled out, by bisection; `allowed` is monotone in m."""
    low = 0.0
    if high <= low or not allowed(high):
        return high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if allowed(middle) else (middle, high)
    return low
