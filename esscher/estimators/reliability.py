"""Whether the weights of a sample can be trusted: a verdict for each prompt, by the effective sample size, the degrees of
freedom of the standard error, and the Pareto index k of the tail (Zhang and Stephens, 2009; Vehtari et al., JMLR 2024): no
finite variance above 1/2, no finite mean above 1. All are blind to what was never drawn."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.core.draws import Draws
from esscher.estimators.expectations import require_weights

TOO_FEW = 10  # effective draws
FEW_DEGREES = 30  # Student's quantile is 4 % above the normal one
UNEVEN = 1 / 3  # share of effective draws below which `UNEVEN_DEGREES` are required
UNEVEN_DEGREES = 200  # the standard error is then known to 5 %
INFINITE_VARIANCE = 0.5
SMALLEST_TAIL = 5
SEEN_OFTEN = 10  # draws of the largest weight that make it the end of the tail

Verdict = Literal["good", "doubtful", "unreliable"]


@dataclass(frozen=True)
class Reliability:
    """A verdict on the weights of one prompt, its symptoms, and advice."""

    ess: float
    max_share: float  # of the largest weight in their sum
    pareto_k: float  # -inf: no tail; NaN: too few draws to fit one
    dof: float  # degrees of freedom of the standard error
    verdict: Verdict
    advice: str


def reliability(draws: Draws) -> list[Reliability]:
    """A verdict for each prompt."""
    require_weights(draws)
    log_weight = draws.log_weight.detach().cpu().double()
    n = log_weight.shape[1]
    symptoms = draws.ess(), torch.softmax(log_weight, -1).amax(-1), pareto_k(log_weight), degrees_of_freedom(log_weight)
    rows = zip(*(symptom.tolist() for symptom in symptoms), strict=True)
    return [_judged(n, *row, independent=draws.independent) for row in rows]


def _judged(n: int, ess: float, max_share: float, k: float, dof: float, *, independent: bool) -> Reliability:
    limit = min(max(1 - 1 / math.log10(n), INFINITE_VARIANCE), 0.7) if n > 1 else 0.0  # the prior alone gives 1/2
    seen = f"{ess:.1f} of {n} draws are effective, tail index {k:.2f}"
    more = "draw more, tilt less, or propose from something nearer the target"

    def verdict(word: Verdict, advice: str) -> Reliability:
        return Reliability(ess, max_share, k, dof, word, f"{seen}: {advice}.")

    if ess < TOO_FEW:
        return verdict("unreliable", f"a handful of draws decides everything; {more}")
    if k >= limit:
        return verdict("unreliable", f"above {limit:.2f} no affordable number of draws settles the mean weight; {more}")
    if not independent:
        return verdict("doubtful", "the draws depend on each other, which their weights do not show; compare several runs")
    if k >= INFINITE_VARIANCE:
        return verdict("doubtful", f"the weights look as if their variance were infinite; {more}")
    if dof < (FEW_DEGREES if ess > UNEVEN * n else UNEVEN_DEGREES) or math.isnan(k):
        return verdict("doubtful", f"the standard error rests on {dof:.0f} degrees of freedom; {more}")
    return verdict("good", "nothing speaks against the interval")


def degrees_of_freedom(log_weight: Float[Tensor, "P N"]) -> Float[Tensor, "P"]:
    """Degrees of freedom of the standard error of the mean weight, as in `intervals`; inf for equal weights."""
    n = log_weight.shape[1]
    gap = torch.softmax(log_weight.double(), -1) * n - 1
    square = gap.square().sum(-1)
    spread = gap.pow(4).sum(-1) / square.square() - 1 / n
    return torch.where(square > 1e-20 * n, (2 / spread.clamp(min=1e-12)).clamp(max=n - 1), torch.inf)


def pareto_k(log_weight: Float[Tensor, "P N"]) -> Float[Tensor, "P"]:
    """Tail index of each prompt's weights, from the largest min(n / 5, 3 sqrt(n)) of them."""
    return torch.tensor([_tail_index(row) for row in log_weight.double()], dtype=torch.float64)


def _tail_index(log_weight: Float[Tensor, "n"]) -> float:
    """The index of the tail above the largest weight strictly below it, so that equal weights fall on one side."""
    n = len(log_weight)
    tail = math.ceil(min(0.2 * n, 3 * math.sqrt(n)))
    weight = (log_weight - log_weight.max()).exp().sort().values
    if int((weight > 1 - 1e-9).sum()) >= SEEN_OFTEN:  # weights of a few features take few values: no Pareto law applies
        return -math.inf
    below = weight[weight < weight[-tail]]
    excess = weight[-tail:] - (below[-1] if len(below) else 0.0)
    excess = excess[excess > 0]
    if bool((excess[-1] - excess[0]) <= 1e-12):
        return -math.inf
    if len(excess) < SMALLEST_TAIL:
        return math.nan
    tail = len(excess)
    return (tail * _generalised_pareto(excess) + 10 * 0.5) / (tail + 10)  # the weak prior of the PSIS paper


def _generalised_pareto(excess: Float[Tensor, "M"]) -> float:
    """The shape k by Zhang and Stephens: a posterior mean over a data-driven grid of theta = -k / sigma."""
    m = len(excess)
    grid = 30 + math.isqrt(m)
    step = torch.arange(1, grid + 1, dtype=torch.float64)
    theta = 1 / excess[-1] + (1 - (grid / (step - 0.5)).sqrt()) / (3 * excess[int(m / 4 + 0.5) - 1])
    shape = torch.log1p(-theta[:, None] * excess).mean(-1)
    log_like = m * ((-theta / shape).log() - shape - 1)
    best = (torch.softmax(log_like, -1) * theta).sum()
    return float(torch.log1p(-best * excess).mean())
