"""Expectations under the target and divergences from weighted draws, and which part of `Draws` is an independent replicate.

`prompts` chooses how a per-prompt statistic becomes one number:

    "same"     every row is a run of one problem: draws are pooled; replicates are draws, or whole runs of dependent draws
    "fixed"    the mean over exactly these prompts: replicates are the draws of each prompt
    "sample"   the mean over all prompts like these: replicates are the prompts, whose spread includes the error of the draws

`divergences` compares two distributions by their log densities relative to the law of the draws, each up to a constant: KL both
ways, Jensen-Shannon (nats) and total variation (at most 1). KL is infinite where a draw has probability 0 under its second
distribution only. Draws of the target itself (SIR, Rejection, Metropolis) serve only as far as the target covers the other
distribution. Letters: P prompts, N or n draws of each, F features.

Intervals from independent draws reach as far as a few more draws of each prompt, like its draw of largest weight, would move
the estimate (`UNSEEN_DRAWS`): what was not drawn may weigh as much.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.target import Base, Tilted
from esscher.energies.features import log_weight_bounds
from esscher.estimators.intervals import Scale, Statistic, hall_quantiles, interval, log_mean, ratio, unseen_draws
from esscher.samplers.scoring import log_prob, log_weight

Prompts = Literal["same", "fixed", "sample"]
PerPrompt = Callable[..., Tensor]
"""`statistic(count [P, n], *columns [P, n]) -> [P]`; its bias is a function of the columns."""
Columns = Float[Tensor, "P n"]
UnseenColumns = Callable[[list[Tensor], Tensor], list[list[Tensor]]]
"""`unseen(columns [P, n], top [P, 1]) -> alternatives`: what a draw that was not drawn may have in each column [P, 1]."""
METHOD = "weighted draws, skewness-corrected infinitesimal jackknife"
DEPENDENT = (
    "The {n} draws of each prompt depend on each other (particles of one run), so their spread does not show their error, and "
    "{p} prompts give no other replicates. Nothing was estimated; repeat the prompt in at least 2 rows, better 10 "
    '(prompts="same"), or treat different prompts as a sample (prompts="sample").'
)


def per_prompt(draws: Draws) -> list[Draws]:
    """The draws of each prompt as separate `Draws`, without `info`."""
    prompts, n = draws.log_weight.shape
    parts = zip(draws.x.split(n), torch.split(draws.log_weight, 1), torch.split(draws.log_base, 1), strict=True)
    alone = replace(draws, cost=draws.cost // prompts, info={})
    return [replace(alone, x=x, log_weight=log_weight, log_base=log_base) for x, log_weight, log_base in parts]


def estimate_from_draws(
    draws: Draws,
    statistic: PerPrompt,
    columns: list[Tensor],
    *,
    bias: PerPrompt | None = None,
    unseen: UnseenColumns | None = None,
    monotone: bool = True,
    scale: Scale = "linear",
    limits: tuple[float, float] = (-math.inf, math.inf),
    prompts: Prompts,
    confidence: float,
    method: str,
    unit: str = "",
) -> Estimate:
    """One number from a per-prompt statistic of columns [P, N], with the replicates that `prompts` names. `bias` is the
    first-order bias of the statistic; it is subtracted where draws are independent. A draw that was not drawn is taken to be
    like the one of largest weight unless `unseen` says otherwise. A statistic that is not `monotone` in how often large weights
    occur may have its largest or least value at what was drawn, where its derivative is 0."""
    if prompts not in get_args(Prompts):
        raise ValueError(f"Unknown prompts={prompts!r}; known: {', '.join(get_args(Prompts))}.")
    require_weights(draws)
    p, n = draws.log_weight.shape
    columns = [column.detach().cpu().double() for column in (*columns, draws.log_weight)]
    if prompts == "same":
        require_one_prompt(draws)
        columns = [column.reshape(1, p * n) for column in columns]
    *columns, log_weight = columns
    if not draws.independent and (prompts == "fixed" or (prompts == "same" and p < 2)):
        raise ValueError(DEPENDENT.format(p=p, n=n))
    offset = bias(*columns) if bias is not None and draws.independent else 0.0
    if bias is not None:
        method += ", bias corrected" if draws.independent else ", bias left in"

    def each(count: Tensor) -> Tensor:
        return statistic(count, *columns) - offset

    total: Statistic
    if prompts == "same":
        replicates, repeats = (p * n, 1) if draws.independent else (p, n)
        total, shape = (lambda count: each(count.repeat_interleave(repeats, 1))[0]), (1, replicates)
        method += f"; {p * n} draws" if draws.independent else f"; {p} runs of {n} draws"
    elif prompts == "fixed":
        total, shape = (lambda count: each(count).mean()), (p, n)
        method += f"; {n} draws for each of {p} fixed prompts"
    else:
        total, shape = ratio(each(torch.ones(p, n, dtype=torch.float64))), (1, p)
        method += f"; {p} prompts as a sample, {n} draws each"
    reach, beyond = (math.inf, -math.inf), (0.0, 0.0)
    if draws.independent:
        more = unseen_draws(len(log_weight))
        beyond = _moved_by_unseen(statistic, columns, log_weight, unseen, more)
        if not monotone and len(log_weight) == 1:
            reach = _reach(statistic, columns, log_weight, confidence)
    scale = scale if len(log_weight) == 1 else "linear"
    return interval(
        total, [shape], confidence=confidence, n=p * n, method=method, unit=unit, scale=scale, reach=reach, unseen=beyond,
        limits=limits,
    )  # fmt: skip


def _moved_by_unseen(
    statistic: PerPrompt, columns: list[Tensor], log_weight: Columns, unseen: UnseenColumns | None, more: float
) -> tuple[float, float]:
    """How far down and up `more` draws of each prompt that were not drawn may move the mean of the statistic."""
    top = log_weight.argmax(-1, keepdim=True)
    alternatives = [[column.gather(1, top) for column in columns]] if unseen is None else unseen(columns, top)
    once = torch.ones_like(log_weight)
    counts = torch.cat([once, torch.full_like(once[:, :1], more)], 1)
    before = statistic(once, *columns)
    moved = [
        float((statistic(counts, *(torch.cat(pair, 1) for pair in zip(columns, values, strict=True))) - before).mean())
        for values in alternatives
    ]
    return max(0.0, -min(moved)), max(0.0, *moved)


def _reach(statistic: PerPrompt, columns: list[Tensor], log_weight: Columns, confidence: float) -> tuple[float, float]:
    """The least and the largest value of the statistic while the mean weight moves through its own interval."""
    n, share = log_weight.shape[1], torch.softmax(log_weight, -1)
    move = (share - 1 / n) * math.sqrt(n / (n - 1))
    error = float(move.square().sum().sqrt())
    if error < 1e-12:
        return math.inf, -math.inf
    direction, steps = move / error, torch.linspace(0.25, 1, 4, dtype=torch.float64)
    ends = hall_quantiles(direction, confidence)
    values = [statistic((1 - float(x) * end * direction).clamp(min=0), *columns) for end in ends for x in steps]
    finite = [float(value) for value in values if bool(value.isfinite())]
    return min(finite, default=math.inf), max(finite, default=-math.inf)


def require_one_prompt(draws: Draws) -> None:
    """Raise unless all rows have the same prompt."""
    different = len(set(draws.prompts().prompt_keys()))
    if different > 1:
        raise ValueError(
            f"The draws belong to {different} different prompts, so they do not estimate one number. Nothing was "
            f'estimated; use prompts="sample" or "fixed" for the mean over prompts, or split them by per_prompt(draws).'
        )


def require_weights(draws: Draws) -> None:
    """Raise unless every prompt has a draw of positive weight."""
    empty = (draws.log_weight == -torch.inf).all(-1)
    if draws.log_weight.numel() == 0 or bool(empty.any()):
        raise ValueError(
            f"{int(empty.sum())} of {len(empty)} prompts have no draw with any weight among {draws.log_weight.shape[1]}: the "
            f"energy forbids them all. Nothing was estimated; draw more, or propose from a base that meets the constraint "
            f"more often."
        )


def check_independent(what: str, independent: bool, n: int, fewest: int = 2) -> None:
    """Raise unless there are at least `fewest` independent draws of each prompt."""
    if not independent or n < fewest:
        problem = f"{n} draws" if independent else f"{n} draws that depend on each other"
        raise ValueError(
            f"{what} needs at least {fewest} independent draws of each prompt, not {problem}. Nothing was estimated; draw more "
            f"with Importance."
        )


def independent_log_weights(draws: Draws, what: str, fewest: int = 2) -> Float[Tensor, "P N"]:
    """The log weights of independent draws that estimate log Z, in float64; raises for any other draws."""
    draws.log_z()  # raises where the sampler discards its normaliser
    require_weights(draws)
    check_independent(what, draws.independent, draws.log_weight.shape[1], fewest)
    return draws.log_weight.detach().cpu().double()


def moments(
    draws: Draws, features: Float[Tensor, "P N F"], *, prompts: Prompts = "same", confidence: float = 0.95
) -> list[Estimate]:
    """E_p[feature] of each feature, self-normalised, so draws need not estimate Z; each interval holds by itself."""
    return [
        estimate_from_draws(
            draws,
            weighted_mean,
            [draws.log_weight, features[..., feature]],
            bias=bias_of_weighted_mean,
            unseen=_unseen_feature,
            limits=_feature_limits(features[..., feature]),
            prompts=prompts,
            confidence=confidence,
            method="self-normalised mean, skewness-corrected infinitesimal jackknife",
        )
        for feature in range(features.shape[-1])
    ]


def _feature_limits(values: Tensor) -> tuple[float, float]:
    """[0, 1] where all values are 0 or 1: the mean is then taken for a probability."""
    return (0.0, 1.0) if bool(((values == 0) | (values == 1)).all()) else (-math.inf, math.inf)


def _unseen_feature(columns: list[Tensor], top: Tensor) -> list[list[Tensor]]:
    """A draw of the largest weight whose feature has the least or the largest value that was seen; 0 or 1, if all have."""
    log_weight, values = columns
    weight, seen = log_weight.gather(1, top), values[log_weight > -torch.inf]
    low, high = _feature_limits(seen)
    ends = (low, high) if math.isfinite(low) else (float(seen.min()), float(seen.max()))
    return [[weight, torch.full_like(weight, end)] for end in ends]


def weighted_mean(count: Columns, log_weight: Columns, values: Columns) -> Float[Tensor, "P"]:
    """The weighted mean of the values, with each draw counted `count` times; values of weight 0 may be NaN or infinite."""
    weight = (log_weight.double() - log_weight.amax(-1, keepdim=True)).exp()
    values = torch.where(weight > 0, values, 0.0).double()
    return (count * weight * values).sum(-1) / (count * weight).sum(-1)


def bias_of_weighted_mean(log_weight: Columns, values: Columns) -> Float[Tensor, "P"]:
    """First-order bias of the weighted mean: a draw of large weight also enlarges its own normaliser."""
    share = torch.softmax(log_weight.double(), -1)
    values = torch.where(share > 0, values, 0.0).double()
    return -(share**2 * (values - (share * values).sum(-1, keepdim=True))).sum(-1)


def bias_of_log_mean(log_weight: Columns) -> Float[Tensor, "P"]:
    """First-order bias of the log of a mean weight: minus half its squared relative error; above -1/2, unlike leave-one-out."""
    n = log_weight.shape[1]
    share = torch.softmax(log_weight.double(), -1)
    return -((share**2).sum(-1) - 1 / n) * n / (2 * max(n - 1, 1))


def kullback_leibler(count: Columns, first: Columns, second: Columns) -> Float[Tensor, "P"]:
    """KL(first || second) from log densities relative to the law of the draws."""
    return weighted_mean(count, first, first - second) - log_mean(count, first) + log_mean(count, second)


def bias_of_kullback_leibler(first: Columns, second: Columns) -> Float[Tensor, "P"]:
    """First-order bias of `kullback_leibler`."""
    return bias_of_weighted_mean(first, first - second) - bias_of_log_mean(first) + bias_of_log_mean(second)


def total_variation(count: Columns, first: Columns, second: Columns) -> Float[Tensor, "P"]:
    """Half the mean absolute difference of the normalised weights, in [0, 1]."""
    p, q = ((side - log_mean(count, side)[..., None]).exp() for side in (first, second))
    return ((count * (p - q).abs()).sum(-1) / count.sum(-1) / 2).clamp(0, 1)


def jensen_shannon(count: Columns, first: Columns, second: Columns) -> Float[Tensor, "P"]:
    """The mean divergence of both from their mixture, in [0, log 2]."""
    log_p, log_q = (side - log_mean(count, side)[..., None] for side in (first, second))

    def to_mixture(log_density: Tensor, log_other: Tensor) -> Tensor:
        gap = torch.where(log_density > -torch.inf, log_other - log_density, 0.0)
        return (count * log_density.exp() * (math.log(2) - softplus(gap))).sum(-1) / count.sum(-1)

    return ((to_mixture(log_p, log_q) + to_mixture(log_q, log_p)) / 2).clamp(0, math.log(2))


DIVERGENCES: dict[str, tuple[PerPrompt, PerPrompt | None, str, float]] = {  # statistic, bias, unit, largest value
    "kl": (kullback_leibler, bias_of_kullback_leibler, "nats", math.inf),
    "reverse_kl": (kullback_leibler, bias_of_kullback_leibler, "nats", math.inf),
    "tv": (total_variation, None, "", 1.0),
    "js": (jensen_shannon, None, "nats", math.log(2)),
}


def _unseen_above(name: str, nats: float) -> UnseenColumns:
    """A draw that was not drawn, whose log weight is so much above the largest. The first distribution is in the first column,
    or in the second for `reverse_kl`."""

    def unseen(columns: list[Tensor], top: Tensor) -> list[list[Tensor]]:
        values = [column.gather(1, top) for column in columns]
        values[name == "reverse_kl"] = values[name == "reverse_kl"] + nats
        return [values]

    return unseen


def divergences(
    target: Tilted, draws: Draws, *, other: Base | None = None, prompts: Prompts = "same", confidence: float = 0.95
) -> dict[str, Estimate]:
    """The four divergences between the target (first) and `other` (second; by default the target's base)."""
    shape = draws.log_weight.shape
    negative_energy = log_weight(target, draws.x).view(shape)
    first = draws.log_weight.detach().cpu().double()
    base = torch.where(negative_energy == -torch.inf, torch.nan, first - negative_energy)  # log a - log q
    forbidden = base.isnan()
    if bool(forbidden.any()):  # their log a - log q is lost; it is 0 for all draws if it is 0 for the others
        if not draws.estimates_z or bool((base[~forbidden].abs() > 1e-3).any()):
            raise ValueError(
                f"The energy forbids {int(forbidden.sum())} draws that were not proposed by the base, so their share under the "
                f"base is unknown. Nothing was estimated; draw with Importance() from the base."
            )
        base = torch.zeros_like(base)
    second = base if other is None else base + log_prob(other, draws.x).view(shape) - draws.log_base.cpu().double()
    bounds = log_weight_bounds(target.energy) if bool((base.abs() < 1e-3).all()) else None  # proposed by the base
    above = 1.0 if bounds is None else min(1.0, max(0.0, bounds[1] - float(first.max())))
    return divergences_of_densities(draws, first, second, prompts=prompts, confidence=confidence, unseen_above=above)


def divergences_of_densities(
    draws: Draws,
    first: Columns,
    second: Columns,
    *,
    names: Collection[str] = tuple(DIVERGENCES),
    prompts: Prompts = "same",
    confidence: float = 0.95,
    unseen_above: float = 1.0,
) -> dict[str, Estimate]:
    """The named divergences between two distributions, from their log densities relative to the law of the draws, each up to a
    constant. Draws that were not drawn may have a density of the first that is `unseen_above` nats above the largest seen: KL
    depends on log weights themselves, not on means of weights only."""
    estimates = {}
    for name in names:
        statistic, bias, unit, largest = DIVERGENCES[name]
        left, right = (second, first) if name == "reverse_kl" else (first, second)
        if bias is not None and bool(((right == -torch.inf) & (left > -torch.inf)).any()):
            method = "one distribution forbids a draw that the other allows"
            estimates[name] = Estimate(math.inf, math.inf, math.inf, confidence, first.numel(), method, unit)
        else:
            estimates[name] = estimate_from_draws(
                draws, statistic, [left, right], bias=bias, unseen=_unseen_above(name, unseen_above), monotone=False,
                limits=(0.0, largest), prompts=prompts, confidence=confidence, method=METHOD, unit=unit,
            )  # fmt: skip
    return estimates


def quasi_rejection_gap(
    draws: Draws, log_bound: float, *, prompts: Prompts = "same", confidence: float = 0.95
) -> dict[str, Estimate]:
    """The four divergences between the target (first) and `QuasiRejection(log_bound)` (second), from all candidates."""
    if "proposed_log_weight" not in draws.info:
        raise ValueError(
            "These draws do not hold their proposed candidates. Nothing was estimated; draw with QuasiRejection or Rejection."
        )
    proposed, prompt = draws.info["proposed_log_weight"].cpu().double(), draws.info["proposed_prompt"].cpu()
    rows = [proposed[prompt == row][None] for row in range(len(draws.log_weight))]  # prompts differ in their candidates
    if prompts == "same":
        require_one_prompt(draws)
        rows = [torch.cat(rows, 1)]
    sizes = [row.shape[1] for row in rows]

    def estimate(name: str) -> Estimate:
        statistic, bias, unit, largest = DIVERGENCES[name]
        pairs = [(row, row.clamp(max=log_bound)) for row in rows]
        if name == "reverse_kl":
            pairs = [(second, first) for first, second in pairs]
        offsets = [0.0 if bias is None else bias(*pair) for pair in pairs]

        def each(*counts: Tensor) -> Tensor:
            parts = zip(counts, pairs, offsets, strict=True)
            return torch.cat([statistic(count, *pair) - offset for count, pair, offset in parts])

        mean: Statistic
        if prompts == "sample":
            mean = ratio(each(*[torch.ones(1, size, dtype=torch.float64) for size in sizes]))
            sources, method = [(1, len(sizes))], f"{METHOD}, {len(sizes)} prompts as a sample"
        else:
            mean, sources, method = (lambda *counts: each(*counts).mean()), [(1, size) for size in sizes], METHOD
        return interval(
            mean, sources, confidence=confidence, n=sum(sizes), method=method, unit=unit, counted="candidates",
            limits=(0.0, largest),
        )  # fmt: skip

    return {name: estimate(name) for name in DIVERGENCES}
