"""An interval for log Z that holds at any number of draws, for energies with known bounds.

Confidence by betting (Waudby-Smith and Ramdas, J. R. Stat. Soc. B, 2024): for every candidate mean m, a gambler who bets
that the weights exceed m, and one who bets that they fall short, multiply their capital by 1 +- lambda (y - m) at every
draw, lambda fixed before the draw is seen. If m is the true mean, neither capital ever exceeds 2 / (1 - level) with
probability above (1 - level) / 2, so the m where one does are ruled out. No approximation, no assumption but the
bounds; the price is a wider interval than `log_z`, the more so the further the bounds are from where the weights lie.

For the mean over several prompts a promise for each of them, all at once, would be wide. Instead two averages are bounded:

    from below   E[T_k] <= log Z for the log T_k of a mean of k weights, as log is concave
    from above   log Z <= log u - 1 + E[w / u] for any u, the tangent of log; u is the mean of other draws of the prompt

Their terms are independent and bounded, but not alike; a gambler with one stake for all draws is still unlikely to win, since
the mean of products of 1 + lambda (y - m) is at most 1 where m is the average of their means (arithmetic above geometric).
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.draws import Draws
from esscher.estimate import Estimate
from esscher.estimators.log_z import bias_of_log_mean
from esscher.estimators.replicates import check_weights, per_prompt

LARGEST_STAKE = 0.75  # of what a bet could lose
BISECTIONS = 60
STAKES = 8  # of the gambler who keeps to one; he divides his capital among them
ENOUGH = 1000  # averages of draws, from which the mean over prompts is bounded below
SMALLEST = 8  # draws of such an average: fewer are cheap, and too low


def guaranteed_log_z(draws: Draws, *, low: float, high: float, level: float = 0.95) -> list[Estimate]:
    """log Z of each prompt from independent draws whose log weights (-E, if drawn from the base) lie in [low, high]."""
    draws.log_z()
    check_weights(draws)
    if not draws.independent:
        raise ValueError(
            "The guarantee is for independent draws, and these depend on each other. Nothing was estimated; use Importance."
        )
    _check_bounds(draws.log_weight, low, high)
    return [_guaranteed(one.log_weight[0].detach().double().cpu(), low, high, level) for one in per_prompt(draws)]


def guaranteed_mean_log_z(
    log_weight: Float[Tensor, "C n"],
    *,
    low: float,
    high: float,
    weights: Float[Tensor, "C"] | None = None,
    level: float = 0.95,
) -> Estimate:
    """The mean of log Z over just these prompts, in proportion to `weights`, from n independent draws of each.

    Log weights lie in [low, high], seen or not.
    """
    contexts, n = log_weight.shape
    _check_bounds(log_weight, low, high)
    if contexts == 1:
        return _guaranteed(log_weight[0], low, high, level)
    if n < 2:
        raise ValueError(f"The guarantee needs at least 2 draws of each prompt, not {n}. Nothing was estimated; draw more.")
    share = torch.full((contexts,), 1 / contexts).double() if weights is None else weights / weights.sum()
    value = float(share @ (torch.logsumexp(log_weight, -1) - math.log(n) - bias_of_log_mean(log_weight)))
    least = max(low, _mean_from_below(log_weight, share, low, high, (1 - level) / 2))
    most = min(high, _mean_from_above(log_weight, share, high, (1 - level) / 2))
    where = f"for log weights in [{low:.4g}, {high:.4g}]"
    method = f"betting on the mean over {contexts} fixed prompts, exact at {n} draws each, {where}"
    return Estimate(min(max(value, least), most), least, most, level, log_weight.numel(), method, "nats")


def _mean_from_below(
    log_weight: Float[Tensor, "C n"], share: Float[Tensor, "C"], low: float, high: float, alpha: float
) -> float:
    """Less than the mean of log Z, but for a chance of `alpha`."""
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
    """More than the mean of log Z, but for a chance of `alpha`; the first half of the draws says where the tangents touch."""
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
    """A number below the average of the means of independent y in [0, 1], but for a chance of `alpha`.

    The gambler's capital at a candidate m is the mean over stakes s of prod(1 - s + s y / m), which falls as m grows.
    """
    limit = math.log(1 / alpha)
    smallest = min(0.5, math.sqrt(2 * limit / len(y)) / 4)
    stake = torch.linspace(math.log(smallest), math.log(0.95), STAKES, dtype=torch.float64).exp()[:, None]

    def allowed(m: float) -> bool:
        capital = torch.log1p(stake * (y / m - 1)).sum(-1)
        return float(torch.logsumexp(capital, 0)) - math.log(STAKES) < limit

    return _first_allowed(allowed, float(y.mean()))


def _check_bounds(log_weight: Float[Tensor, "C n"], low: float, high: float) -> None:
    rounding = 1e-5 * max(1.0, abs(high))
    outside = (log_weight < low - rounding) | (log_weight > high + rounding)
    if not low < high or bool(outside.any()):
        found = f"{float(log_weight.min()):.4g} to {float(log_weight.max()):.4g}"
        raise ValueError(
            f"[{low:.4g}, {high:.4g}] is not a bound: the log weights go from {found}, {int(outside.sum())} of them outside. "
            f"Nothing was estimated; give bounds that hold for every point of the space, seen or not."
        )


def _guaranteed(log_weight: Float[Tensor, "n"], low: float, high: float, level: float) -> Estimate:
    """Bets on y = (w - e^low) / (e^high - e^low), which lies in [0, 1]."""
    floor = math.exp(low - high)
    y = (((log_weight - high).exp() - floor) / (1 - floor)).clamp(0, 1)
    limit = math.log(2 / (1 - level))
    stake = _stakes(y, limit)
    mean = float(y.mean())
    least = _first_allowed(lambda m: _log_capital(y - m, stake.clamp(max=LARGEST_STAKE / m)) < limit, mean)
    most = 1 - _first_allowed(lambda m: _log_capital((1 - y) - m, stake.clamp(max=LARGEST_STAKE / m)) < limit, 1 - mean)
    ends = [high + math.log(floor + (1 - floor) * m) if m > 0 or low > -math.inf else -math.inf for m in (least, mean, most)]
    n = len(log_weight)
    method = f"betting, exact at {n} draws, for log weights in [{low:.4g}, {high:.4g}]"
    return Estimate(ends[1], min(ends[:2]), max(ends[1:]), level, n, method, "nats")


def _stakes(y: Float[Tensor, "n"], limit: float) -> Float[Tensor, "n"]:
    """What to bet at each draw: from the mean and variance of the draws before it only."""
    n = len(y)
    seen = torch.arange(1, n + 1, dtype=torch.float64)
    mean = (0.5 + y.cumsum(0)) / (seen + 1)
    variance = (0.25 + (y - mean).square().cumsum(0)) / (seen + 1)
    before = torch.cat([torch.tensor([0.25], dtype=torch.float64), variance[:-1]])
    return (2 * limit / (n * before)).sqrt()


def _log_capital(gain: Float[Tensor, "n"], stake: Float[Tensor, "n"]) -> float:
    return float(torch.log1p(stake * gain).sum())


def _first_allowed(allowed: Callable[[float], bool], high: float) -> float:
    """The least m in [0, high] that is not ruled out; the capital falls as m grows."""
    low = 0.0
    if high <= low or not allowed(high):
        return high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if allowed(middle) else (middle, high)
    return low
