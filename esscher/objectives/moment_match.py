"""Weights of a log-linear energy from moments, by Newton's method on one fixed sample of the base.

With the base fixed, p(x) ~ a(x) exp <weights, features(x)> is an exponential family: the likelihood is
concave in the weights, and at its maximum the model's moments equal the data's. The base's draws do not
depend on the weights, so one sample serves the whole search: minimise log mean_i exp <weights, features_i>
- <weights, moments>. Intervals carry the chance of both samples, the base's and the data's.

Moments may also be given, for some features or all ("half of the sequences contain ..."): the fitted model is then the
one nearest to the base, in KL(p || a), of all that have them. A feature that all the data have would get an infinite
weight. The data are therefore joined by `prior` observations from the base: half an observation, the default, is
Jeffreys' choice for a share. `ridge` is the other regulariser: a normal prior on weights.

Left out: draws after several prompts (weights that depend on the prompt are `esscher.energies.conditional`).
"""

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from scipy.special import stdtrit
from torch import Tensor

from esscher.estimate import Estimate
from esscher.objectives.moment_fit import FitStep, MomentFit, warnings_of
from esscher.objectives.moment_goal import Goal, check_values, goal_of, impossible_together, refuse_impossible
from esscher.objectives.moment_newton import RunOffError, Sample, Solution, newton


def match_moments(
    names: Sequence[str],
    base: Float[Tensor, "N F"],
    data: Float[Tensor, "M F"] | None = None,
    *,
    wanted: Mapping[str, float] | None = None,
    log_weight: Float[Tensor, "N"] | None = None,
    prior: float = 0.5,
    ridge: float | None = None,
    level: float = 0.95,
) -> MomentFit:
    """Weights under which the base's draws have the data's moments, or for the features in `wanted` those.

    `prior` base observations join the data. `log_weight` is log a(x) - log q(x), up to a constant, where the draws come
    from another proposal q. `ridge` is the standard deviation of a normal prior on the weights of features that are not
    in `wanted`. A moment that the draws cannot give at any finite weight is an error that names the feature.
    """
    if not 0 < level < 1:
        raise ValueError(f"An interval covers at a rate between 0 and 1, not {level}. No weight was fitted; 0.95 is usual.")
    goal, sample = goal_of(names, data, wanted, prior=prior), sample_of(names, base, log_weight)
    pull = _pull(goal, ridge)
    moments = goal.wanted(sample.mean)
    refuse_impossible(goal, sample.base, moments, edge_allowed=pull > 0)
    try:
        found = newton(sample, moments, pull)
    except RunOffError as off:
        raise ValueError(impossible_together(goal.names, sample.base, moments, off.direction)) from off
    error, degrees = _errors(_effects(goal, sample, found), _ridge_effects(goal, found, pull))
    weights = _estimates(goal, sample, found, error, degrees, level)
    notes = warnings_of(goal, sample, found.share, prior_effect=_prior_effect(goal, sample, found), degrees=degrees)
    seen = [None if given else mean for given, mean in zip(goal.given.tolist(), goal.moments.tolist(), strict=True)]
    return MomentFit(
        names=goal.names,
        weights=weights,
        moments_wanted=tuple(moments.tolist()),
        moments_base=tuple(sample.mean.tolist()),
        moments_model=tuple((found.share @ sample.base).tolist()),
        effective=float(1 / (found.share**2).sum()),
        iterations=len(found.path) - 1,
        moments_data=tuple(seen),
        base_samples=sample.drawn,
        warnings=notes,
        history=_history(sample, moments, found),
    )


def sample_of(names: Sequence[str], base: Float[Tensor, "N F"], log_weight: Float[Tensor, "N"] | None) -> Sample:
    """The draws that have weight, and their shares of the base."""
    check_values("base's draws", names, base)
    if log_weight is not None and log_weight.shape != (len(base),):
        raise ValueError(f"{len(base)} draws need as many log-weights, not {tuple(log_weight.shape)}. No weight was fitted.")
    log_weight = torch.zeros(len(base)) if log_weight is None else log_weight
    if bool((log_weight.isnan() | (log_weight == torch.inf)).any()):
        raise ValueError("A log-weight of the base's draws is NaN or infinite. No weight was fitted; mend the proposal.")
    kept = log_weight > -torch.inf
    if int(kept.sum()) < 2:
        raise ValueError(f"{int(kept.sum())} of {len(base)} draws of the base have weight. No weight was fitted; draw more.")
    shares = torch.softmax(log_weight[kept].detach().double().cpu(), 0)
    return Sample(base[kept].detach().double().cpu(), shares, drawn=len(base))


def _pull(goal: Goal, ridge: float | None) -> Float[Tensor, "F"]:
    """The curvature that the ridge adds to each weight, for one observation of the data."""
    if ridge is None:
        return torch.zeros(len(goal.names), dtype=torch.float64)
    if not 0 < ridge < math.inf:
        raise ValueError(f"The ridge is a standard deviation of weights, more than 0, not {ridge}. No weight was fitted.")
    if goal.data is None:
        raise ValueError(
            "All moments are given, and a ridge weighs a prior against data: there are none. No weight was fitted; leave "
            "`ridge` out, or give softer moments."
        )
    return (~goal.given).double() / (ridge**2 * len(goal.data))


def _effects(goal: Goal, sample: Sample, found: Solution) -> Float[Tensor, "K F"]:
    """What each observation did to the weights: the draws, and the data with the prior's observations as some of them.

    A given moment has no chance in it. The data's effects are measured from the wanted moments, so that data which all
    agree still leave the chance that the prior concedes.
    """
    moments, free = goal.wanted(sample.mean), (~goal.given).double()
    drawn = found.share[:, None] * (sample.base - found.share @ sample.base)
    parts = [goal.prior_share * sample.share[:, None] * (sample.base - sample.mean) * free - drawn]
    if goal.data is not None:
        size = len(goal.data) + goal.prior
        parts.append((goal.data.double() - moments) * free / size)
        parts.append((goal.prior * sample.share).sqrt()[:, None] * (sample.base - moments) * free / size)
    return torch.cat(parts) @ found.inverse


def _ridge_effects(goal: Goal, found: Solution, pull: Float[Tensor, "F"]) -> Float[Tensor, "F F"]:
    """A ridge is one more observation of each weight, 0 give or take its standard deviation, and its chance is known."""
    size = 1 if goal.data is None else len(goal.data)
    return torch.diag((pull / size).sqrt()) @ found.inverse


def _errors(effects: Float[Tensor, "K F"], known: Float[Tensor, "L F"]) -> tuple[Float[Tensor, "F"], Float[Tensor, "F"]]:
    """The standard error of each weight, and Satterthwaite's degrees of freedom of it; `known` chance costs none."""
    square = effects.square().sum(0) + known.square().sum(0)
    degrees = 2 * square.square() / effects.pow(4).sum(0).clamp(min=1e-300)
    return square.sqrt(), torch.where(square > 0, degrees.clamp(min=1.0), torch.inf)


def _estimates(
    goal: Goal, sample: Sample, found: Solution, error: Float[Tensor, "F"], degrees: Float[Tensor, "F"], level: float
) -> tuple[Estimate, ...]:
    """Student's interval for each weight; one of a feature in which no draw differs is 0 by decree."""
    size = "" if goal.data is None else f" and {len(goal.data):,} data"
    method = f"Newton on {sample.drawn:,} base draws{size}, infinitesimal jackknife"
    half = (torch.from_numpy(stdtrit(degrees.clamp(max=1e9).numpy(), (1 + level) / 2)) * error).tolist()
    varies = (sample.base.amax(0) > sample.base.amin(0)).tolist()
    held = Estimate.exact(0.0, method="held at 0: the base's draws do not differ in it")
    return tuple(
        Estimate(weight, weight - wide, weight + wide, level, sample.drawn, method) if moves else held
        for weight, wide, moves in zip(found.weights.tolist(), half, varies, strict=True)
    )


def _prior_effect(goal: Goal, sample: Sample, found: Solution) -> Float[Tensor, "F"]:
    """How far the prior moved the log-weight between each feature's least and greatest value, to first order."""
    moved = found.inverse @ ((goal.wanted(sample.mean) - goal.moments) * (~goal.given).double())
    return moved.abs() * (sample.base.amax(0) - sample.base.amin(0))


def _history(sample: Sample, moments: Float[Tensor, "F"], found: Solution) -> tuple[FitStep, ...]:
    return tuple(
        FitStep(step, float((sample.tilted(at) @ sample.base - moments).abs().sum()), tuple(at.tolist()), sample.drawn)
        for step, at in enumerate(found.path)
    )
