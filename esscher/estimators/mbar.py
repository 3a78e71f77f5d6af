"""Multistate reweighting (MBAR; Shirts and Chodera, J. Chem. Phys., 2008): draws of several densities, pooled for all of them.

State k has the unnormalised density a(x) exp(w_k(x)), and counts[k] of the N draws are its own. With log Z_k up to a common
constant, the equations

    Z_k = sum_n exp(w_k(x_n)) / D_n,    D_n = sum_j counts[j] exp(w_j(x_n)) / Z_j

say that every draw is one of the mixture of all states: the maximum of a concave function, which Newton's method finds.
exp(w_k(x_n)) / (Z_k D_n) is then the weight of draw n for state k, and sums to 1 over n. States without draws may be asked for.
In the words of molecular simulation, -w_k is the reduced energy and -log Z_k the free energy.

`solve_mbar` gives the covariance of log Z for independent draws. Particles of a ladder are not independent: `mbar_log_z` and
`mbar_moments` take whole runs as replicates (jackknife over runs, Student's quantile). They are consistent, not unbiased: the
unbiased estimate of Z by a ladder is that of `LadderRuns.log_z`. Letters: K states, N draws of all of them, F features.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.estimate import Estimate
from esscher.estimators.intervals import check_confidence
from esscher.samplers.ladder import LadderRuns

MAX_ITERATIONS = 500
TOLERANCE = 1e-12  # largest change of a log Z in the last iteration
RANK = 1e-10  # eigenvalues below this share of the largest count as 0


@dataclass(frozen=True)
class MBAR:
    """The solution; log Z of state 0 is 0."""

    log_z: Float[Tensor, "K"]
    log_weight: Float[Tensor, "K N"]  # normalised weights of all draws for each state
    counts: Int[Tensor, "K"]

    def covariance(self) -> Float[Tensor, "K K"]:
        """Of log Z - log Z_0, for independent draws; row and column 0 are 0."""
        weight, counts = self.log_weight.exp(), self.counts.double()
        values, vectors = torch.linalg.eigh(weight @ weight.T)
        root = values.clamp(min=0).sqrt()
        inner = torch.eye(len(root), dtype=torch.float64) - root[:, None] * (vectors.T @ (counts[:, None] * vectors)) * root
        theta = vectors * root @ torch.linalg.pinv(inner, rtol=RANK, hermitian=True) @ (root[:, None] * vectors.T)
        return theta - theta[:1] - theta[:, :1] + theta[0, 0]

    def expect(self, values: Float[Tensor, "N"], state: int = -1) -> float:
        """The expectation of a function of the draws in a state, by default the last one."""
        weight = self.log_weight[state].exp()
        return float((weight * torch.where(weight > 0, values.double(), 0.0)).sum())

    def ess(self) -> Float[Tensor, "K"]:
        """The effective number of the pooled draws for each state, as if they were independent."""
        return 1 / self.log_weight.exp().square().sum(-1)


def solve_mbar(log_density: Float[Tensor, "K N"], counts: Int[Tensor, "K"], *, start: Float[Tensor, "K"] | None = None) -> MBAR:
    """Solve the equations for draws in the order of their states: the first counts[0] are of state 0, and so on. `log_density`
    has w_k of every draw, -inf where a state forbids it."""
    log_density, counts = log_density.detach().cpu().double(), counts.cpu()
    _check(log_density, counts)
    drawn = (counts > 0).nonzero()[:, 0]
    density, log_count = log_density[drawn], counts[drawn].double().log()
    log_z = torch.zeros(len(drawn), dtype=torch.float64) if start is None else start.double()[drawn]
    log_z = _substituted(density, log_count, log_z - log_z[0])
    for _ in range(MAX_ITERATIONS):
        best = _better_of(density, log_count, log_z)
        change, log_z = float((best - log_z).abs().max()), best
        if change < TOLERANCE * (1 + float(log_z.abs().max())):
            break
    else:
        raise ValueError(
            f"The equations of {len(counts)} states were not solved after {MAX_ITERATIONS} iterations; the last one changed a "
            f"log Z by {change:.2g}. Nothing was estimated; states that do not overlap have no common scale: add more between."
        )
    log_mixture = torch.logsumexp(density + (log_count - log_z)[:, None], 0)
    every = torch.logsumexp(log_density - log_mixture, -1)
    return MBAR(every - every[0], log_density - log_mixture - every[:, None], counts)


def _substituted(density: Float[Tensor, "K N"], log_count: Float[Tensor, "K"], log_z: Float[Tensor, "K"]) -> Tensor:
    """The right-hand side of the equations."""
    mixture = torch.logsumexp(density + (log_count - log_z)[:, None], 0)
    new = torch.logsumexp(density - mixture, -1)
    return new - new[0]


def _better_of(density: Float[Tensor, "K N"], log_count: Float[Tensor, "K"], log_z: Float[Tensor, "K"]) -> Tensor:
    """One step of Newton's method, or of substitution, whichever leaves the smaller gradient."""
    fixed = _substituted(density, log_count, log_z)
    if len(log_z) == 1:
        return fixed
    gradient, hessian = _derivatives(density, log_count, log_z)
    step = torch.linalg.lstsq(hessian[1:, 1:], gradient[1:, None], driver="gelsd").solution[:, 0]
    newton = log_z.clone()
    newton[1:] -= step
    sizes = [_derivatives(density, log_count, candidate)[0].norm() for candidate in (newton, fixed)]
    return newton if bool(sizes[0] < sizes[1]) else fixed


def _derivatives(
    density: Float[Tensor, "K N"], log_count: Float[Tensor, "K"], log_z: Float[Tensor, "K"]
) -> tuple[Tensor, Tensor]:
    """Of the log-likelihood of the states of the draws, with respect to log Z."""
    share = torch.softmax(density + (log_count - log_z)[:, None], 0)  # of each state in the mixture at each draw
    total = share.sum(-1)
    return total - log_count.exp(), share @ share.T - torch.diag(total)


def _check(log_density: Float[Tensor, "K N"], counts: Int[Tensor, "K"]) -> None:
    states, draws = log_density.shape
    if counts.shape != (states,) or int(counts.min()) < 0 or int(counts.sum()) != draws:
        raise ValueError(
            f"The counts of {states} states sum to the number of draws, {draws}; they are {counts.tolist()}. Nothing was "
            f"estimated."
        )
    if bool(torch.isnan(log_density).any()) or bool((log_density == torch.inf).any()):
        raise ValueError("A log density is a number, or -inf where a state forbids a draw. Nothing was estimated.")
    if bool((log_density.amax(0) == -torch.inf).any()):
        raise ValueError("A draw is forbidden by all states, its own among them. Nothing was estimated.")


def ladder_mbar(runs: LadderRuns) -> MBAR:
    """The draws of all rungs and runs of a ladder, pooled; its states are the rungs."""
    return _of_runs(runs, torch.ones(runs.log_base.shape[1], dtype=torch.bool), None)


def _of_runs(runs: LadderRuns, kept: Tensor, start: Tensor | None) -> MBAR:
    density = runs.log_density()[:, :, kept]
    counts = torch.full((len(density),), density[0, 0].numel())
    return solve_mbar(density.flatten(1), counts, start=start)


def mbar_log_z(runs: LadderRuns, *, confidence: float = 0.95) -> Estimate:
    """log Z of the target by all draws of a ladder, with an interval from its independent runs."""
    return _jackknife(
        runs, lambda solution, kept: float(solution.log_z[-1]), "log Z by multistate reweighting", "nats", confidence
    )


def mbar_moments(runs: LadderRuns, features: Float[Tensor, "K R M F"], *, confidence: float = 0.95) -> list[Estimate]:
    """The expectation of each feature under the target by all draws of a ladder, whose features are given, in the order of
    `runs.x`; each interval holds by itself."""
    if features.shape[:3] != runs.log_base.shape:
        raise ValueError(
            f"The features of {tuple(runs.log_base.shape)} draws (rungs, runs, particles) have shape {tuple(features.shape)}. "
            f"Nothing was estimated; give one row of features a draw."
        )

    def mean_of(column: Float[Tensor, "K R M"]) -> Callable[[MBAR, Tensor], float]:
        return lambda solution, kept: solution.expect(column[:, kept].reshape(-1))

    columns = features.double().unbind(-1)
    return [_jackknife(runs, mean_of(column), "mean by multistate reweighting", "", confidence) for column in columns]


def _jackknife(
    runs: LadderRuns, statistic: Callable[[MBAR, Tensor], float], method: str, unit: str, confidence: float
) -> Estimate:
    """A function of the pooled draws, with the spread that leaving out each run gives it."""
    from scipy.special import stdtrit

    check_confidence(confidence)
    number, draws = runs.log_base.shape[1], runs.log_base.numel()
    if number < 2:
        raise ValueError(
            "One run of a ladder does not show its own error. Nothing was estimated; make at least 2 runs, better 8."
        )
    every = torch.ones(number, dtype=torch.bool)
    whole = _of_runs(runs, every, None)
    value, without = statistic(whole, every), []
    for run in range(number):
        kept = torch.arange(number) != run
        without.append(statistic(_of_runs(runs, kept, whole.log_z), kept))
    left = torch.tensor(without, dtype=torch.float64)
    error = math.sqrt((number - 1) / number * float((left - left.mean()).square().sum()))
    half = float(stdtrit(number - 1, (1 + confidence) / 2)) * error
    how = f"{method}, jackknife over {number} runs"
    return Estimate(value, value - half, value + half, confidence, draws, how, unit)
