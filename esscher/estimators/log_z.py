"""log Z from weighted draws: with a confidence interval, and with the bounds of the residual paper.

The estimate is the log of the mean weight, never the mean of logs. Where log Z is averaged over prompts, the bias of
each log does not average out, so it is corrected. The finite-sample bound for
bounded energies is in `guarantee`, the verdict on whether to believe any of this in `reliability`.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.draws import Draws
from esscher.estimate import Estimate
from esscher.estimators.intervals import interval, log_mean
from esscher.estimators.replicates import Prompts, check_weights, estimate

METHOD = "log of the mean weight, skewness-corrected infinitesimal jackknife"


def log_z(draws: Draws, *, prompts: Prompts = "same", level: float = 0.95) -> Estimate:
    """log Z of one problem, or its mean over prompts, with an interval."""
    draws.log_z()  # refuses draws that discard their normaliser
    return estimate(
        draws,
        partial(log_mean, floor=(1 - level) / 2),
        [draws.log_weight],
        bias=None if prompts == "same" else bias_of_log_mean,
        prompts=prompts,
        level=level,
        method=METHOD,
        unit="nats",
    )


def bias_of_log_mean(log_weight: Float[Tensor, "P n"]) -> Float[Tensor, "P"]:
    """That of the log of a mean weight, to first order: minus half its squared relative error.

    Leave-one-out agrees with it to first order, but runs away when one draw holds most of the weight; this stays
    above -1/2.
    """
    n = log_weight.shape[1]
    share = torch.softmax(log_weight.double(), -1)
    return -((share**2).sum(-1) - 1 / n) * n / (2 * max(n - 1, 1))


def log_z_spread(draws: Draws, *, level: float = 0.95) -> Estimate:
    """The standard deviation of log Z over prompts like these, without what the draws' own error adds to it.

    Where log Z is the same after every prompt it is 0: the energy needs no constant that depends on the prompt.
    """
    draws.log_z()
    check_weights(draws)
    p, n = draws.log_weight.shape
    if not draws.independent or n < 2:
        raise ValueError("The error of each log Z needs 2 or more independent draws. Nothing was estimated; use Importance.")
    log_weight = draws.log_weight.detach().double().cpu()
    noise = -2 * bias_of_log_mean(log_weight)  # its variance, to first order
    each = draws.log_z().cpu() - bias_of_log_mean(log_weight)

    def variance(count: Tensor) -> Tensor:
        share = count[0] / count.sum()
        mean = (share * each).sum()
        return (share * (each - mean) ** 2).sum() * p / (p - 1) - (share * noise).sum()

    method = f"spread over {p} prompts as a sample, less the error of {n} draws each"
    found = interval(variance, [(1, p)], level=level, draws=p * n, method=method, unit="nats")
    return found.map(lambda square: math.sqrt(max(square, 0.0)))


@dataclass(frozen=True)
class Bounds:
    """Averages over prompts that lie below and, as the draws grow many, above the average log Z."""

    lower: Estimate
    upper: Estimate


def log_z_bounds(draws: Draws, *, level: float = 0.95) -> Bounds:
    """The two bounds of Deng et al. (2020), in expectation: E[T_n] <= log Z, and a leave-one-out upper bound.

    The second is asymptotic only, and neither knows its own error: each comes with an interval for its expectation,
    with the prompts fixed. Look at `log_z` for an interval that covers log Z itself.
    """
    draws.log_z()
    check_weights(draws)
    p, n = draws.log_weight.shape
    if not draws.independent:
        raise ValueError("Leave-one-out needs draws that are independent. Nothing was estimated; use log_z over several runs.")
    log_weight = draws.log_weight.detach().double().cpu()
    lower, upper = lower_and_upper(log_weight)

    def bound(shift: Tensor, name: str) -> Estimate:
        def statistic(count: Tensor) -> Tensor:
            return log_mean(count, log_weight, floor=(1 - level) / 2).mean() + shift.mean()

        return interval(statistic, [(p, n)], level=level, draws=p * n, method=name, unit="nats")

    return Bounds(
        bound(torch.zeros_like(lower), f"lower bound in expectation, T_{n}"),
        bound(upper - lower, f"asymptotic upper bound, leave-one-out at n = {n}"),
    )


def lower_and_upper(log_weight: Float[Tensor, "P N"]) -> tuple[Float[Tensor, "P"], Float[Tensor, "P"]]:
    """T_n and (2n-1) T_n - 2(n-1) mean_j T_{n-1}^(-j) for each prompt, in O(n) and log space.

    The upper one is infinite where a single draw has weight.
    """
    n = log_weight.shape[1]
    if n < 2:
        raise ValueError(f"Leaving one draw out of {n} leaves none. Nothing was estimated; draw at least 2.")
    ordered = log_weight.double().sort(-1, descending=True).values
    total = torch.logsumexp(ordered, -1, keepdim=True)
    log_rest = torch.log1p(-(ordered - total).exp().clamp(max=1))  # log of the weight left, relative to all
    log_rest[:, 0] = torch.logsumexp(ordered[:, 1:], -1) - total[:, 0]  # the largest share may be near 1
    gap = log_rest.mean(-1) + math.log(n / (n - 1))  # mean_j T_{n-1}^(-j) - T_n, at most 0
    lower = total[:, 0] - math.log(n)
    return lower, lower - 2 * (n - 1) * gap.clamp(max=0.0)
