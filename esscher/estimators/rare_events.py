"""The probability of an event with its interval and a verdict: from direct draws, from weighted draws, or from independent runs
of splitting.

Direct draws have the interval of Clopper and Pearson, which covers at least at its rate, also for draws that are spread evenly
over prompts with different probabilities (Hoeffding, 1956). Without a hit it starts at 0 and is an upper bound.

Independent weighted draws (`esscher.samplers.acceptor_twist`) have the interval of a mean weight, as log Z has it.

The estimates of runs of splitting are unbiased and nearly log-normal, so the interval is that of the mean of a log-normal law,
by Cox's method (Zhou and Gao, Statistics in Medicine, 1997) from the mean and the variance of their logarithms, with Student's
quantile; the value is the plain mean, which is unbiased. Those of runs of particles have a longer tail above (Cox's method
covers in 91 to 94 %), and the interval of a mean weight, which goes on by `UNSEEN_RUNS` more runs like the largest. The
variance is at least `LEAST_SHARE` of that with independent stages, so that runs that agree by luck do not shorten the
interval. Measured coverage: docs/guide/rare_events.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.estimate import Estimate
from esscher.estimators.intervals import check_confidence, interval, log_mean, raised_by_unseen
from esscher.estimators.reliability import FEW_DRAWS, LARGEST_SHARE, Verdict, pareto_k

FEW_HITS = 10  # hits of direct draws below which the interval says little more than an order of magnitude
FEW_ROOTS = 2.0  # first particles of a run, on average, from which its last ones come
WIDE = 1.0  # standard deviation of the logarithms of runs above which they disagree
LOST = 0.1  # share of runs that may end without the event
SKEWNESS = "skewness-corrected"
HEAVY_TAIL = 0.7  # a Pareto index above which a mean weight converges slowly (Vehtari et al., 2024)
UNSEEN_RUNS = 0.5  # chosen on 1,182 replications of the study with other seeds: 95.9 and 94.0 % cover
LEAST_SHARE = 0.7  # of the variance with independent stages, below which that of the runs is lucky


@dataclass(frozen=True)
class RareEvent:
    """The probability, the verdict on its interval, and the reason."""

    probability: Estimate
    verdict: Verdict
    advice: str


def direct_probability(hits: int, draws: int, *, confidence: float = 0.95) -> RareEvent:
    """The share of independent draws that show the event."""
    from scipy.special import betaincinv

    check_confidence(confidence)
    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(betaincinv(hits, draws - hits + 1, tail))
    high = 1.0 if hits == draws else float(betaincinv(hits + 1, draws - hits, 1 - tail))
    estimate = Estimate(hits / draws, low, high, confidence, draws, "direct draws, Clopper-Pearson")
    if hits == 0:
        return RareEvent(
            estimate, "unreliable", f"not seen in {draws:,} draws: the upper end is a bound, and below it all is open"
        )
    if hits < FEW_HITS:
        return RareEvent(estimate, "doubtful", f"{hits} of {draws:,} draws show it: the interval holds, and is wide; draw more")
    return RareEvent(estimate, "good", f"{hits:,} of {draws:,} draws show it")


def weighted_probability(log_weight: Float[Tensor, "n"], *, confidence: float = 0.95) -> RareEvent:
    """The mean weight of independent draws, of which those without the event have weight 0. Where all weights are equal, the
    draws end alike in all that matters, and the interval is as short as rounding lets it be."""
    check_confidence(confidence)
    log_weight, n = log_weight.double(), len(log_weight)
    method = f"weighted draws, {n:,}, {SKEWNESS}"
    if n < 2 or not bool((log_weight > -torch.inf).any()):
        advice = f"none of {n:,} draws that were led to the event shows it: the model may be unable to write it"
        return RareEvent(Estimate(0.0, 0.0, 1.0, confidence, n, method), "unreliable", advice)
    log_p = interval(
        lambda count: log_mean(count[0], log_weight), [(1, n)], confidence=confidence, n=n, method=method, scale="log mean",
        unseen=(0.0, float(raised_by_unseen(log_weight, 1))), limits=(-math.inf, 0.0),
    )  # fmt: skip
    estimate = log_p.map(math.exp)
    verdict, advice = weights_verdict(log_weight)
    return RareEvent(estimate, verdict, advice)


def contradicted(event: RareEvent, direct: Estimate) -> RareEvent:
    """The event, unreliable if its interval and that of direct draws have nothing in common."""
    estimate = event.probability
    if direct.low <= estimate.high and estimate.low <= direct.high:
        return event
    advice = f"direct draws say {direct.value:.2g} [{direct.low:.2g}, {direct.high:.2g}], which does not agree"
    return replace(event, verdict="unreliable", advice=advice)


def weights_verdict(log_weight: Float[Tensor, "n"]) -> tuple[Verdict, str]:
    """A verdict on independent draws that were led to an event. Their weights have a long tail below, of draws that were led
    there against the model, and a short one above, so that it looks at the tail above, not at the spread of all."""
    share = torch.softmax(log_weight, 0)
    largest, effective = float(share.max()), float(1 / share.square().sum())
    tail = float(pareto_k(log_weight[None])[0])
    seen = f"{effective:,.0f} of {len(log_weight):,} weighted draws are effective"
    if effective < FEW_HITS or largest > LARGEST_SHARE:
        return "unreliable", f"{seen}, and one holds {largest:.0%} of the weight; raise the budget"
    if effective < FEW_DRAWS / 2 or largest > LARGEST_SHARE / 4:
        return "doubtful", f"{seen}, and one holds {largest:.0%} of the weight; raise the budget"
    if tail > HEAVY_TAIL:
        return "doubtful", f"{seen}, and the tail of their weights is heavy (Pareto index {tail:.2f}); raise the budget"
    return "good", seen


def splitting_probability(
    reached: Int[Tensor, "R K"], particles: Sequence[int], roots: Int[Tensor, "R"], *, confidence: float = 0.95
) -> RareEvent:
    """The mean of the estimates of independent runs (`esscher.samplers.splitting.Splits`)."""
    check_confidence(confidence)
    runs = len(reached)
    sizes = torch.tensor(list(particles), dtype=torch.float64)
    log_p = (reached.double() / sizes).log().sum(-1)
    method = f"splitting, {runs} runs with {len(sizes)} levels, log-normal"
    return _of_runs(log_p, least_variance(reached, sizes), roots, method, confidence)


def twisted_runs_probability(
    log_p: Float[Tensor, "R"], variance: Float[Tensor, "R"], roots: Int[Tensor, "R"], *, confidence: float = 0.95
) -> RareEvent:
    """The mean of the estimates of independent runs of particles (`esscher.samplers.acceptor_twist.TwistedDraws`)."""
    from scipy.special import stdtrit

    check_confidence(confidence)
    runs, method = len(log_p), f"{len(log_p)} runs of particles with a twist, skewness-corrected"
    if runs < 2 or not bool((log_p > -torch.inf).any()):
        return _of_runs(log_p, float(variance.mean()), roots, method, confidence)
    largest = float(torch.softmax(log_p, 0).max())
    mean = interval(
        lambda count: log_mean(count[0], log_p), [(1, runs)], confidence=confidence, n=runs, method=method, counted="runs",
        scale="log mean", unseen=(0.0, math.log1p((largest - 1 / runs) * UNSEEN_RUNS * runs / (runs + UNSEEN_RUNS))),
        limits=(-math.inf, 0.0),
    )  # fmt: skip
    least = float(stdtrit(runs - 1, (1 + confidence) / 2)) * math.sqrt(LEAST_SHARE * float(variance.mean()) / runs)
    low, high = min(mean.low, mean.value - least), min(0.0, max(mean.high, mean.value + least))
    ended = log_p == -torch.inf
    return RareEvent(replace(mean, low=low, high=high).map(math.exp), *_verdict(log_p[~ended], int(ended.sum()), roots))


def _of_runs(log_p: Float[Tensor, "R"], least: float, roots: Int[Tensor, "R"], method: str, confidence: float) -> RareEvent:
    runs, value = len(log_p), float(log_p.exp().mean())
    if runs < 2:
        raise ValueError(f"An interval needs at least 2 runs and has {runs}. Nothing was estimated; raise runs.")
    if value == 0:
        advice = "no run reached the event; raise the budget, or choose an event with a score that leads to it"
        return RareEvent(Estimate(0.0, 0.0, 1.0, confidence, runs, method, counted="runs"), "unreliable", advice)
    ended = log_p == -torch.inf
    centre, error, quantile = _log_normal(log_p[~ended], float(ended.double().mean()), least, confidence)
    low, high = (math.exp(min(0.0, centre + sign * quantile * error)) for sign in (-1, 1))
    low = 0.0 if bool(ended.any()) and runs - int(ended.sum()) < 3 else low
    estimate = Estimate(value, min(low, value), max(high, value), confidence, runs, method, counted="runs")
    return RareEvent(estimate, *_verdict(log_p[~ended], int(ended.sum()), roots))


def least_variance(reached: Int[Tensor, "R K"], particles: Float[Tensor, "K"]) -> float:
    """The variance of the logarithm of a run if its stages were independent: the sum of (1 - p) / (p n)."""
    share = (reached.double().sum(0) / (len(reached) * particles)).clamp(min=1e-12, max=1.0)
    return float(((1 - share) / (share * particles)).sum())


def _log_normal(log_p: Float[Tensor, "S"], ended: float, floor: float, confidence: float) -> tuple[float, float, float]:
    """Centre and standard error of the log of the mean, and the quantile. Runs that ended early lower the centre, and count as
    if they had missed by their share."""
    from scipy.special import stdtrit

    runs = len(log_p)
    variance = max(float(log_p.var()) if runs > 1 else 1.0, LEAST_SHARE * floor)
    centre = float(log_p.mean()) + variance / 2 + math.log1p(-ended)
    error = math.sqrt(variance / runs + variance**2 / (2 * max(1, runs - 1)) + ended / (1 - ended) / runs)
    return centre, error, float(stdtrit(max(1, runs - 1), (1 + confidence) / 2))


def _verdict(log_p: Float[Tensor, "S"], ended: int, roots: Int[Tensor, "R"]) -> tuple[Verdict, str]:
    runs, more = len(log_p) + ended, "raise the budget"
    spread = float(log_p.std()) if len(log_p) > 1 else math.inf
    mean_roots = float(roots.double().mean())
    if ended > LOST * runs:
        return "unreliable", f"{ended} of {runs} runs never reached the event; {more}"
    if spread > WIDE:
        return "unreliable", f"the runs disagree: their logarithms spread by {spread:.2g}; {more}"
    if mean_roots < FEW_ROOTS:
        return "unreliable", f"the last particles of a run come from {mean_roots:.2g} first ones on average; {more}"
    if ended or spread > WIDE / 2 or mean_roots < 2 * FEW_ROOTS:
        why = f"the logarithms of the runs spread by {spread:.2g}, and {mean_roots:.3g} first particles lead to the event"
        return "doubtful", f"{why}; {more}"
    return "good", f"{runs} independent runs agree, and {mean_roots:.3g} first particles of each lead to the event"
