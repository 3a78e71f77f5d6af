"""An interval for log Z that holds at any number of draws, for energies with known bounds.

Confidence by betting (Waudby-Smith and Ramdas, J. R. Stat. Soc. B, 2024): for every candidate mean m, a gambler who bets
that the weights exceed m, and one who bets that they fall short, multiply their capital by 1 +- lambda (y - m) at every
draw, lambda fixed before the draw is seen. If m is the true mean, neither capital ever exceeds 2 / (1 - level) with
probability above (1 - level) / 2, so the m where one does are ruled out. No approximation, no assumption but the
bounds; the price is a wider interval than `log_z`, the more so the further the bounds are from where the weights lie.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.draws import Draws
from esscher.estimate import Estimate
from esscher.estimators.replicates import check_weights, per_prompt

LARGEST_STAKE = 0.75  # of what a bet could lose
BISECTIONS = 60


def guaranteed_log_z(draws: Draws, *, low: float, high: float, level: float = 0.95) -> list[Estimate]:
    """log Z of each prompt from independent draws whose log weights (-E, if drawn from the base) lie in [low, high]."""
    draws.log_z()
    check_weights(draws)
    if not draws.independent:
        raise ValueError(
            "The guarantee is for independent draws, and these depend on each other. Nothing was estimated; use Importance."
        )
    rounding = 1e-5 * max(1.0, abs(high))
    outside = (draws.log_weight < low - rounding) | (draws.log_weight > high + rounding)
    if not low < high or bool(outside.any()):
        found = f"{float(draws.log_weight.min()):.4g} to {float(draws.log_weight.max()):.4g}"
        raise ValueError(
            f"[{low:.4g}, {high:.4g}] is not a bound: the log weights go from {found}, {int(outside.sum())} of them outside. "
            f"Nothing was estimated; give bounds that hold for every point of the space, seen or not."
        )
    return [_guaranteed(one, low, high, level) for one in per_prompt(draws)]


def _guaranteed(draws: Draws, low: float, high: float, level: float) -> Estimate:
    """Bets on y = (w - e^low) / (e^high - e^low), which lies in [0, 1]."""
    floor = math.exp(low - high)
    y = (((draws.log_weight[0].detach().double().cpu() - high).exp() - floor) / (1 - floor)).clamp(0, 1)
    limit = math.log(2 / (1 - level))
    stake = _stakes(y, limit)
    mean = float(y.mean())
    least = _first_allowed(lambda m: _log_capital(y - m, stake.clamp(max=LARGEST_STAKE / m)) < limit, 0.0, mean)
    most = 1 - _first_allowed(lambda m: _log_capital((1 - y) - m, stake.clamp(max=LARGEST_STAKE / m)) < limit, 0.0, 1 - mean)
    ends = [high + math.log(floor + (1 - floor) * m) if m > 0 or low > -math.inf else -math.inf for m in (least, mean, most)]
    n = draws.log_weight.shape[1]
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


def _first_allowed(allowed: Callable[[float], bool], low: float, high: float) -> float:
    """The least m in [low, high] that is not ruled out; the capital falls as m grows."""
    if high <= low or not allowed(high):
        return high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if allowed(middle) else (middle, high)
    return low
