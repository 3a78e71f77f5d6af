"""Whether an interval from weighted draws can be trusted: a verdict for each prompt, and one for a mean over prompts.

Samples that missed the large weights look best, so a verdict by the weights that happened to be drawn (effective sample size,
tail index) picks out the lucky ones. The verdict therefore looks at the bulk of the log weights, which luck hardly moves: with
s their root mean square above the median, log-normal weights of that spread have exp(s^2) draws for each effective one, and
`DRAWS_PER_EFFECTIVE` times as many are required. It looks at what cannot have been drawn: weights that are all alike, a feature
with a weight that no draw shows, weights of few values below the bound of the energy. And it asks whether one draw holds more
than a third of the weight, whether the tail has a mean (Pareto index k; Zhang and Stephens, 2009; Vehtari et al., JMLR 2024),
and whether log Z agrees with one that was stored. Calibration: docs/why/intervals.md. A mode that nothing hints at no
diagnostic sees."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.target import Energy
from esscher.energies.features import LogLinear, feature_values, log_weight_bounds
from esscher.estimators.expectations import require_weights
from esscher.estimators.log_z import Bounds, equal_weights

TOO_FEW = 10  # effective draws below which a table of shares says little
DRAWS_PER_EFFECTIVE = 2.0
FEWEST_DRAWS = 20
FEW_DRAWS, NARROW = 100, 0.5  # fewer draws do not tell a heavy tail from a light one, unless log weights spread less than this
LARGEST_SHARE = 1 / 3
NO_MEAN, TAIL_SHARE = 1.0, 0.1  # a Pareto index from which weights have no mean, where the largest has such a share
SMALLEST_TAIL = 5
SEEN_OFTEN = 5  # draws of the largest weight that make it the end of the tail, as far as draws can tell
MISSED, NEGLIGIBLE = 3.7, 0.1  # n draws miss a share of 3.7 / n with probability 2.5 %; what may hide there, over Z
BULK = 0.1  # share of prompts that may be unreliable in a mean over prompts

Verdict = Literal["good", "doubtful", "unreliable"]


@dataclass(frozen=True)
class Reliability:
    """A verdict on the weights of one prompt, its symptoms, and advice."""

    ess: float
    max_share: float  # of the largest weight in their sum
    pareto_k: float  # -inf: no tail; NaN: too few draws to fit one
    spread: float  # of the log weights above their median, in nats
    verdict: Verdict
    advice: str


def reliability(
    draws: Draws, *, energy: Energy | None = None, bounds: Bounds | None = None, stored: Estimate | None = None
) -> list[Reliability]:
    """A verdict for each prompt. An `energy` tells what the weights may be beyond those drawn, as do `bounds` of the log
    weights of all points; `stored` is another estimate of log Z of the same prompt, which must agree."""
    require_weights(draws)
    log_weight = draws.log_weight.detach().cpu().double()
    bounds = log_weight_bounds(energy) if bounds is None and energy is not None else bounds
    if bounds is not None and bool((log_weight > bounds[1] + 1e-5 * (1 + abs(bounds[1]))).any()):
        bounds = None  # those of the energy, and the draws were proposed by something other than the base
    unseen = _unseen_features(draws, energy)
    symptoms = draws.ess(), torch.softmax(log_weight, -1).amax(-1), pareto_k(log_weight), upper_spread(log_weight)
    rows = zip(*(symptom.tolist() for symptom in symptoms), strict=True)
    judged = []
    for values, (ess, share, k, spread) in zip(log_weight, rows, strict=True):
        word, advice = _verdict(values, share, k, spread, bounds, unseen, stored, independent=draws.independent)
        seen = f"{ess:.1f} of {len(values)} draws are effective, their log weights spread by {spread:.2g} nats"
        judged.append(Reliability(ess, share, k, spread, word, f"{seen}: {advice}."))
    return judged


def _verdict(
    log_weight: Float[Tensor, "n"],
    max_share: float,
    k: float,
    spread: float,
    bounds: Bounds | None,
    unseen: Sequence[str],
    stored: Estimate | None,
    *,
    independent: bool,
) -> tuple[Verdict, str]:
    n, top, value = len(log_weight), float(log_weight.max()), float(torch.logsumexp(log_weight, -1)) - math.log(len(log_weight))
    more = "draw more, tilt less, or propose from something nearer the target"
    constant = bounds is not None and bounds[0] == bounds[1]
    hidden = math.inf if bounds is None else MISSED / n * math.exp(min(bounds[1] - value, 700.0))
    reached = bounds is not None and top >= bounds[1] - 1e-6 * (1 + abs(bounds[1]))
    needed = DRAWS_PER_EFFECTIVE * math.exp(min(spread**2, 700.0))
    if unseen:
        names = ", ".join(unseen)
        return "unreliable", f"no draw shows {names}, which the energy weighs; draw more, or from a base that shows it"
    if not constant and bool(equal_weights(log_weight[None])):
        return "unreliable", "all weights are equal, so nothing is known of what was not drawn; draw more, or state bounds"
    if max_share > LARGEST_SHARE and n > 1:
        return "unreliable", f"one draw holds {max_share:.0%} of the weight; {more}"
    if not independent:
        return "doubtful", "the draws depend on each other, which their weights do not show; compare several runs"
    if stored is not None and not (stored.low <= value <= stored.high) and not _agrees(log_weight, stored):
        return "doubtful", f"log Z is {value:.4g} by these draws and {stored.value:.4g} as stored; draw more"
    if constant or reached or hidden < NEGLIGIBLE:
        return "good", "nothing speaks against the interval"
    if int((log_weight > top - 1e-9).sum()) >= SEEN_OFTEN:
        limit = "any weight" if bounds is None else f"up to {bounds[1] - top:.3g} nats more"
        return "doubtful", f"the weights take few values, and what was not drawn may have {limit}; state bounds, or draw more"
    if k >= NO_MEAN and max_share > TAIL_SHARE:
        return "unreliable", f"a tail index of {k:.2f} means that no number of draws settles the mean weight; {more}"
    if n < needed:
        word: Verdict = "unreliable" if n * DRAWS_PER_EFFECTIVE < needed else "doubtful"
        return word, f"so wide a spread needs about {needed:,.0f} draws; {more}"
    if n < FEWEST_DRAWS or (n < FEW_DRAWS and spread > NARROW):
        return "doubtful", f"fewer than {FEW_DRAWS} draws do not tell a heavy tail from a light one; {more}"
    return "good", "nothing speaks against the interval"


def mean_reliability(rows: Sequence[Reliability], draws: int) -> tuple[Verdict, str]:
    """The verdict on a mean of log Z over prompts, each with so many draws: heavy weights lower every log Z, so the prompts
    together show what one does not."""
    if len(rows) == 1:
        return rows[0].verdict, rows[0].advice
    spread = float(torch.tensor([row.spread for row in rows]).median())
    poor = sum(row.verdict == "unreliable" for row in rows) / len(rows)
    needed = DRAWS_PER_EFFECTIVE * math.exp(min(spread**2, 700.0))
    seen = f"{draws} draws for each of {len(rows)} prompts, of which {poor:.0%} are unreliable"
    if draws < needed:
        return "unreliable", f"{seen}: a spread of {spread:.2g} nats needs about {needed:,.0f} draws for each."
    if poor > BULK:
        return "doubtful", f"{seen}: draw more for each."
    if draws * len(rows) < FEW_DRAWS and spread > NARROW:
        return "doubtful", f"{seen}: too few to tell a heavy tail from a light one."
    return "good", f"{seen}: nothing speaks against the interval."


def _agrees(log_weight: Float[Tensor, "n"], stored: Estimate) -> bool:
    """Whether an interval of these draws, a rough one, holds the stored value."""
    share = torch.softmax(log_weight, -1)
    n = len(share)
    error = 4 * float((share - 1 / n).square().sum().sqrt()) + 3 * float(share.max() - 1 / n)
    value = float(torch.logsumexp(log_weight, -1)) - math.log(n)
    return abs(stored.value - value) <= math.log1p(error)


def _unseen_features(draws: Draws, energy: Energy | None) -> list[str]:
    """Features with a weight that are 0 in all draws."""
    if not isinstance(energy, LogLinear):
        return []
    shown = (feature_values(energy.features, draws.x) != 0).any(0).cpu()
    weights = energy.weights.detach().cpu()
    return [f"{feature.name!r}" for feature, some, weight in zip(energy.features, shown, weights, strict=True)
            if not some and float(weight) != 0]  # fmt: skip


def upper_spread(log_weight: Float[Tensor, "P N"]) -> Float[Tensor, "P"]:
    """The root mean square of the log weights above their median, from it; of draws with a weight."""
    spreads = []
    for row in log_weight.double():
        row = row[row > -torch.inf]
        above = row[row > row.median()] - row.median()
        spreads.append(above.square().mean().sqrt() if len(above) else torch.zeros((), dtype=torch.float64))
    return torch.stack(spreads)


def pareto_k(log_weight: Float[Tensor, "P N"]) -> Float[Tensor, "P"]:
    """Tail index of each prompt's weights, from the largest min(n / 5, 3 sqrt(n)) of them."""
    return torch.tensor([_tail_index(row) for row in log_weight.double()], dtype=torch.float64)


def _tail_index(log_weight: Float[Tensor, "n"]) -> float:
    """The index of the tail above the largest weight strictly below it, so that equal weights fall on one side."""
    n = len(log_weight)
    tail = math.ceil(min(0.2 * n, 3 * math.sqrt(n)))
    weight = (log_weight - log_weight.max()).exp().sort().values
    if int((weight > 1 - 1e-9).sum()) >= SEEN_OFTEN:  # weights of few values: no Pareto law applies
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
