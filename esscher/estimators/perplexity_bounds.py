"""Other ways to the perplexity of a tilted model than the interval of `perplexity`, for just these test sequences.

    bounds      of the residual paper (Deng et al., 2020): log Z of each context from below by T_n, from above by leaving one
                draw out. No rate is stated, so `level` is NaN; the value is the middle, which is the jackknife's estimate
    guarantee   for energies with known bounds: covers at the stated rate at any number of draws, without approximation

Both treat the test sequences as fixed: whether other text would give another number, only `perplexity` says.
"""

import math

from torch import Tensor

from esscher.estimate import Estimate
from esscher.estimators.guarantee import guaranteed_mean_log_z
from esscher.estimators.log_z import lower_and_upper
from esscher.estimators.perplexity import COUNTED, Units
from esscher.estimators.scored import Scored

BOUNDS = "bounds of the residual paper, in expectation and as draws grow many: no stated rate"


def bounded_cross_entropy(score: Scored, units: Units) -> dict[str, Estimate]:
    """Nats per unit between the paper's lower and upper bound of every log Z."""
    if not score.independent:
        raise ValueError("Leave-one-out needs draws that are independent. Nothing was estimated; draw with Importance.")
    lower, upper = lower_and_upper(score.drawn)
    found = {}
    for name, count in units.items():
        low, high = (float((score.surprise + log_z[score.context]).sum() / count.double().sum()) for log_z in (lower, upper))
        method = f"{BOUNDS}; {score.drawn.shape[1]} draws for each of {score.contexts} fixed prompts, {COUNTED}"
        middle = (low + high) / 2
        found[name] = Estimate(middle, low, high, math.nan, score.drawn.numel(), method, f"nats per {name}")
    return found


def guaranteed_cross_entropy(
    score: Scored, units: Units, *, bounds: tuple[float, float], level: float = 0.95
) -> dict[str, Estimate]:
    """Nats per unit, where every log weight lies within `bounds`, seen or not."""
    if not score.independent:
        raise ValueError("The guarantee is for independent draws. Nothing was estimated; draw with Importance.")
    sequences = score.context.bincount(minlength=score.contexts).double()
    log_z = guaranteed_mean_log_z(score.drawn, low=bounds[0], high=bounds[1], weights=sequences, level=level)

    def nats(mean_log_z: float, count: Tensor) -> float:
        return (float(score.surprise.sum()) + len(score.surprise) * mean_log_z) / float(count.sum())

    found = {}
    for name, count in units.items():
        value, low, high = (nats(end, count) for end in (log_z.value, log_z.low, log_z.high))
        method = f"{log_z.method}; fixed test set, {COUNTED}"
        found[name] = Estimate(value, low, high, level, score.drawn.numel(), method, f"nats per {name}")
    return found
