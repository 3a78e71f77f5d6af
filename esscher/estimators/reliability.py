"""Whether an interval from weighted draws can be trusted: a verdict for each prompt, and one for a mean over prompts.

Samples that missed the large weights look best, so a verdict by the weights that happened to be drawn (effective sample size,
tail index) picks out the lucky ones. The verdict therefore looks at the bulk of the log weights, which luck hardly moves: with
s their root mean square above the median, log-normal weights of that spread have exp(s^2) draws for each effective one, and
`DRAWS_PER_EFFECTIVE` times as many are required. It looks at what cannot have been drawn: weights that are all alike, a feature
with a weight that no draw shows, weights of few values below the bound of the energy. (Equal weights are good only where the
form of the energy says that no others exist: `flat`, weights of 0, equal bounds.) And it asks whether one draw holds more
than a third of the weight, whether the tail has a mean (Pareto index k; Zhang and Stephens, 2009; Vehtari et al., JMLR 2024),
and whether log Z and the means of features agree with those that were stored (`StoredEstimates`): what they hold and the draws
lack is `missing`, and such draws are never good. Calibration: docs/why/intervals.md. A mode that nothing hints at no
diagnostic sees."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.target import Energy
from esscher.energies.features import Feature, feature_values, weighted_features
from esscher.estimators.expectations import require_weights
from esscher.estimators.log_z import Bounds, equal_weights, weight_bounds

TOO_FEW = 10  # effective draws below which a table of shares says little
DRAWS_PER_EFFECTIVE = 2.0
FEW_DRAWS = 100  # fewer draws neither show a mode that one in thirty has nor tell a heavy tail from a light one
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
    missing: tuple[str, ...] = ()  # what is known of the target that the draws do not show: more of them, or other ones, would


@dataclass(frozen=True)
class StoredEstimates:
    """What is known of a tilted model after one prompt, such as the folder of its energy holds: log Z, the means of features by
    name, and whether the draws behind these were reliable."""

    log_z: Estimate
    moments: Mapping[str, Estimate] = field(default_factory=dict)
    reliable: bool = True


def reliability(
    draws: Draws,
    *,
    energy: Energy | None = None,
    bounds: Bounds | None = None,
    stored: StoredEstimates | Estimate | None = None,
) -> list[Reliability]:
    """A verdict for each prompt. An `energy` tells what the weights may be beyond those drawn, as do `bounds` of the log
    weights of all points; `stored` is what is known of the same prompt, or log Z alone, which must agree."""
    require_weights(draws)
    log_weight = draws.log_weight.detach().cpu().double()
    bounds = weight_bounds(draws, energy) if bounds is None and energy is not None else bounds
    if bounds is not None and bool(((log_weight > _widened(bounds[1], 1)) | (log_weight < _widened(bounds[0], -1))).any()):
        bounds = None  # those of the energy, and the draws were proposed by something other than the base
    known = StoredEstimates(stored) if isinstance(stored, Estimate) else stored
    features = _FeatureTable.of(draws, energy)
    unseen = features.unseen()
    symptoms = draws.ess(), torch.softmax(log_weight, -1).amax(-1), pareto_k(log_weight), upper_spread(log_weight)
    rows = zip(*(symptom.tolist() for symptom in symptoms), strict=True)
    judged = []
    for row, (values, (ess, share, k, spread)) in enumerate(zip(log_weight, rows, strict=True)):
        hidden = [text for text, _ in unseen[row]]
        word, advice = _verdict(values, share, k, spread, bounds, hidden, independent=draws.independent)
        missing = [text for text, heavy in unseen[row] if heavy]
        if known is None and not _constant(bounds) and bool(equal_weights(values[None])):
            missing.append("all weights are equal")
        if known is not None and not known.reliable:
            unsure = "what is stored with the energy was unreliable itself, so that agreement says little"
            word, advice = ("doubtful", unsure) if word == "good" else (word, f"{advice}; {unsure}")
        elif known is not None:
            others = [*filter(None, [_disagreement(values, known.log_z)]), *features.disagreements(row, known.moments)]
            missing += others
            if others:
                other = f"{'; '.join(others)}; draw more, or propose from a model that shows it"
                advice = other if word == "good" else f"{advice}; {other}"
                word = "unreliable"
        seen = f"{ess:.1f} of {len(values)} draws are effective, their log weights spread by {spread:.2g} nats"
        judged.append(Reliability(ess, share, k, spread, word, f"{seen}: {advice}.", tuple(missing)))
    return judged


def missing_of(draws: Draws, *, energy: Energy, stored: StoredEstimates | None = None) -> tuple[str, ...]:
    """What is known of the tilted model that the draws of one prompt do not show. Those of equal weight, from a sampler that
    discards its normaliser, are compared with the stored means of features only."""
    if draws.estimates_z:
        return reliability(draws, energy=energy, stored=stored)[0].missing
    if stored is None or not stored.reliable:
        return ()
    return tuple(_FeatureTable.of(draws, energy).disagreements(0, stored.moments))


def _constant(bounds: Bounds | None) -> bool:
    return bounds is not None and bounds[0] == bounds[1]


def _verdict(
    log_weight: Float[Tensor, "n"],
    max_share: float,
    k: float,
    spread: float,
    bounds: Bounds | None,
    unseen: Sequence[str],
    *,
    independent: bool,
) -> tuple[Verdict, str]:
    n, top, value = len(log_weight), float(log_weight.max()), float(torch.logsumexp(log_weight, -1)) - math.log(len(log_weight))
    more = "draw more, tilt less, or propose from something nearer the target"
    constant = _constant(bounds)
    hidden = math.inf if bounds is None else MISSED / n * math.exp(min(bounds[1] - value, 700.0))
    reached = bounds is not None and top >= bounds[1] - 1e-6 * (1 + abs(bounds[1]))
    needed = DRAWS_PER_EFFECTIVE * math.exp(min(spread**2, 700.0))
    if unseen:
        return "unreliable", f"{', '.join(unseen)}; draw more, or from a base that shows what the energy weighs"
    if not constant and bool(equal_weights(log_weight[None])):
        return "unreliable", "all weights are equal, so nothing is known of what was not drawn; draw more, or state bounds"
    if max_share > LARGEST_SHARE and n > 1:
        return "unreliable", f"one draw holds {max_share:.0%} of the weight; {more}"
    if not independent:
        return "doubtful", "the draws depend on each other, which their weights do not show; compare several runs"
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
    if n < FEW_DRAWS:
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
    if draws * len(rows) < FEW_DRAWS:
        return "doubtful", f"{seen}: too few to tell a heavy tail from a light one."
    return "good", f"{seen}: nothing speaks against the interval."


def _widened(bound: float, direction: int) -> float:
    """A bound with room for rounding."""
    return bound + direction * 1e-5 * (1 + abs(bound)) if math.isfinite(bound) else bound


def _disagreement(log_weight: Float[Tensor, "n"], stored: Estimate) -> str:
    """What to say where log Z of these draws is outside the stored interval, and the stored log Z outside a rough interval of
    these draws; else nothing."""
    share, n = torch.softmax(log_weight, -1), len(log_weight)
    error = 4 * float((share - 1 / n).square().sum().sqrt()) + 3 * float(share.max() - 1 / n)
    value = float(torch.logsumexp(log_weight, -1)) - math.log(n)
    if stored.low <= value <= stored.high or abs(stored.value - value) <= math.log1p(error):
        return ""
    return f"log Z is {value:.4g} by these draws and {stored.value:.4g} as stored with the energy"


@dataclass(frozen=True)
class _FeatureTable:
    """The features that an energy weighs, each with its weight after each prompt and its value in each draw."""

    log_weight: Float[Tensor, "P N"]
    weighted: list[tuple[Feature, Tensor]]
    columns: list[Tensor]

    @classmethod
    def of(cls, draws: Draws, energy: Energy | None) -> "_FeatureTable":
        weighted = [] if energy is None else weighted_features(energy, draws.prompts())
        log_weight = draws.log_weight.detach().cpu().double()
        values = feature_values([feature for feature, _ in weighted], draws.x).cpu().double()
        return cls(log_weight, weighted, list(values.view(*log_weight.shape, -1).unbind(-1)))

    def unseen(self) -> list[list[tuple[str, bool]]]:
        """For each prompt, what its draws do not show, and whether it may weigh much: features that are 0 in all draws of all
        prompts; and those that are the same in all draws of this one, where other values weigh so much more that it
        matters."""
        prompts, n = self.log_weight.shape
        unseen: list[list[tuple[str, bool]]] = [[] for _ in range(prompts)]
        for (feature, weights), values in zip(self.weighted, self.columns, strict=True):
            shown = bool((values != 0).any())
            ends = feature.bounds or (float(values.min()), float(values.max()))
            same = (values == values[:, :1]).all(-1) & (weights != 0)
            for row in same.nonzero()[:, 0].tolist():
                value, weight = float(values[row, 0]), float(weights[row])
                heavier = max(weight * (end - value) for end in ends)
                heavy = MISSED / n * math.expm1(min(heavier, 700.0)) >= NEGLIGIBLE
                if value == 0 and not shown:
                    text = f"no draw shows {feature.name!r}, which the energy weighs"
                    unseen[row].append((text, heavy or feature.bounds is None))
                elif heavy:
                    more = f"and other values weigh up to {heavier:.3g} nats more"
                    unseen[row].append((f"all draws have {feature.name!r} = {value:g}, {more}", True))
        return unseen

    def disagreements(self, row: int, moments: Mapping[str, Estimate]) -> list[str]:
        """Features whose mean by the draws of a prompt is outside the stored interval, and the stored mean outside a rough
        interval of these draws, with room for what so few draws may miss."""
        share, n = torch.softmax(self.log_weight[row], -1), self.log_weight.shape[1]
        lines = []
        for (feature, _), column in zip(self.weighted, self.columns, strict=True):
            stored, values = moments.get(feature.name), column[row]
            if stored is None:
                continue
            mean = float(share @ values)
            low, high = feature.bounds or (min(float(values.min()), stored.low), max(float(values.max()), stored.high))
            error = 4 * float((share * (values - mean)).square().sum().sqrt())
            error += MISSED * max(float(share.max()), 1 / n) * (high - low)
            if not stored.covers(mean) and abs(stored.value - mean) > error:
                lines.append(f"the mean of {feature.name!r} is {mean:.3g} by these draws and {stored.value:.3g} as stored")
        return lines


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
