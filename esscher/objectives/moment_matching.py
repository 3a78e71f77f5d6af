"""What a fit of weights returns, by whatever way it was found: weights with intervals, moments, and what to mind.

A warning names the features it is about and says what to do; it never stops a fit. What stops one is in
`esscher.objectives.moment_solver`.

Weights of a log-linear energy from moments, by Newton's method on one fixed sample of the base.

With the base fixed, p(x) ~ a(x) exp <weights, features(x)> is an exponential family: the likelihood is
concave in the weights, and at its maximum the model's moments equal the data's. The base's draws do not
depend on the weights, so one sample serves the whole search: minimise log mean_i exp <weights, features_i>
- <weights, moments>. Intervals carry the chance of both samples, the base's and the data's.

Moments may also be given, for some features or all ("half of the sequences contain ..."): the fitted model is then the
one nearest to the base, in KL(p || a), of all that have them. A feature that all the data have would get an infinite
weight. The data are therefore joined by `prior` observations from the base: half an observation, the default, is
Jeffreys' choice for a share. `ridge` is the other regulariser: a normal prior on weights.

Left out: draws after several prompts (weights that depend on the prompt are `esscher.energies.features`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from scipy.special import stdtrit
from torch import Tensor

from esscher.core.draws import ess
from esscher.core.estimate import Estimate
from esscher.estimators.intervals import check_confidence
from esscher.objectives.moment_solver import (
    MomentTargets,
    NewtonSolution,
    UnboundedWeightsError,
    WeightedFeatures,
    check_feature_values,
    infeasible_message,
    moment_targets,
    newton_weights,
    refuse_impossible,
    whitened_basis,
)

MIN_DEGREES_OF_FREEDOM = 15  # degrees of freedom of a standard error, below which intervals were measured to be too narrow
MAX_PRIOR_EFFECT = 0.6  # change of a log-weight by the prior, above which the data do not limit it
MIN_DIFFERING_DRAWS = 10  # draws that differ from all others in a feature

Kind = Literal["no support", "separable", "rare", "collinear", "few effective", "not matched", "bound raised"]


@dataclass(frozen=True)
class FitWarning:
    """Something to mind: its kind, the features it is about (none: all), what was seen and what to do."""

    kind: Kind
    features: tuple[str, ...]
    advice: str

    def __str__(self) -> str:
        return f"{', '.join(self.features) or 'all features'}: {self.advice}"


@dataclass(frozen=True)
class FitStep:
    """The state before one update: the l1 distance of moments as it was then known, the weights, and the draws used so far."""

    step: int
    l1: float
    weights: tuple[float, ...]
    base_samples: int


@dataclass(frozen=True)
class MomentFit:
    """The weights with intervals, and what a person needs to judge them."""

    names: tuple[str, ...]
    weights: tuple[Estimate, ...]
    moments_wanted: tuple[float, ...]
    moments_base: tuple[float, ...]
    moments_model: tuple[float, ...]
    ess: float  # effective sample size of the base's draws under the fitted weights
    iterations: int
    moments_data: tuple[float | None, ...]  # None where the moment was given
    base_samples: int  # draws of the base that the fit cost
    warnings: tuple[FitWarning, ...]
    history: tuple[FitStep, ...]

    @property
    def l1(self) -> float:
        """The summed distance of the model's moments from the wanted ones."""
        return sum(abs(model - want) for model, want in zip(self.moments_model, self.moments_wanted, strict=True))

    def tensor(self) -> Float[Tensor, "F"]:
        return torch.tensor([weight.value for weight in self.weights], dtype=torch.float64)

    def rows(self) -> list[dict[str, Any]]:
        """A row of a table for each feature."""
        columns = (self.weights, self.moments_data, self.moments_wanted, self.moments_base, self.moments_model)
        return [
            {
                "feature": name, "weight": weight, "in the data": seen, "wanted": want, "in the base": base,
                "under the model": model, "note": self._note(name),
            }
            for name, weight, seen, want, base, model in zip(self.names, *columns, strict=True)
        ]  # fmt: skip

    def _note(self, name: str) -> str:
        given = ["given"] if self.moments_data[self.names.index(name)] is None else []
        return ", ".join([*given, *(one.kind for one in self.warnings if name in one.features)])


def fit_warnings(
    goal: MomentTargets,
    sample: WeightedFeatures,
    share: Float[Tensor, "N"],
    *,
    prior_effect: Float[Tensor, "F"],
    degrees: Float[Tensor, "F"],
) -> tuple[FitWarning, ...]:
    """What to mind about weights under which the draws have these shares; `degrees` are those of their standard errors.

    `prior_effect` is how far the prior moves the log-weight over each feature's range. It is 1 where only the prior
    speaks against an infinite weight, and 1/3 where one of the data does, too.
    """
    constant = sample.base.amax(0) == sample.base.amin(0)
    found = [_no_support(name) for name in _chosen(goal, constant)]
    separable = ((prior_effect > MAX_PRIOR_EFFECT) | _all_at_an_end(goal, sample)) & ~constant
    if bool(separable.any()):
        found.append(_separable(goal, _chosen(goal, separable)))
    found += [
        _rare(sample, name, int(k))
        for name, k in zip(goal.names, _rarities(sample), strict=True)
        if 0 < k < MIN_DIFFERING_DRAWS
    ]
    found += _collinear(goal, sample)
    if bool((degrees < MIN_DEGREES_OF_FREEDOM).any()):
        found.append(_few(_chosen(goal, degrees < MIN_DEGREES_OF_FREEDOM), float(degrees.min()), float(ess(share)), len(share)))
    model = share @ sample.base
    apart = (model - goal.wanted(sample.mean)).abs() > 0.01 * (sample.base.amax(0) - sample.base.amin(0))
    if bool(apart.any()):
        found.append(_unmatched(_chosen(goal, apart)))
    return tuple(found)


def _chosen(goal: MomentTargets, which: Bool[Tensor, "F"]) -> tuple[str, ...]:
    return tuple(name for name, take in zip(goal.names, which.tolist(), strict=True) if take)


def _no_support(name: str) -> FitWarning:
    advice = "the same in every draw of the base, so its weight means nothing and is held at 0; draw more, or drop it"
    return FitWarning("no support", (name,), advice)


def _separable(goal: MomentTargets, names: tuple[str, ...]) -> FitWarning:
    advice = (
        f"the data are all on one side, so that without the prior of {goal.prior:g} observations (or a ridge) the weight would "
        f"be infinite; its size is the prior's choice, its sign the data's"
    )
    return FitWarning("separable", names, advice)


def _all_at_an_end(goal: MomentTargets, sample: WeightedFeatures) -> Bool[Tensor, "F"]:
    """True where all data have the least, or the greatest, value that the draws show."""
    if goal.data is None:
        return torch.zeros_like(goal.is_stated)
    low, high = goal.data.amin(0), goal.data.amax(0)
    return (low == high) & ((low == sample.base.amin(0)) | (low == sample.base.amax(0))) & ~goal.is_stated


def _rarities(sample: WeightedFeatures) -> list[int]:
    """For each feature with two or more values, how many draws differ from its most frequent value; else 0."""
    middle = sample.base.mode(0).values
    return [int(count) for count in (sample.base != middle).sum(0)]


def _rare(sample: WeightedFeatures, name: str, draws: int) -> FitWarning:
    advice = f"only {draws} of {len(sample.base):,} draws of the base differ in it, which decide its weight; draw more"
    return FitWarning("rare", (name,), advice)


def _collinear(goal: MomentTargets, sample: WeightedFeatures) -> list[FitWarning]:
    """One warning for each group of features that some constant combination ties together."""
    constant = whitened_basis(sample.base).constant
    tied = (constant @ constant.T).abs() * sample.base.std(0) * sample.base.std(0)[:, None] > 1e-6
    groups: list[set[int]] = []
    for row in range(len(goal.names)):
        group = {row, *tied[row].nonzero()[:, 0].tolist()} if bool(tied[row].any()) else set()
        near = [one for one in groups if one & group]
        groups = [one for one in groups if not one & group] + ([group.union(*near)] if group else [])
    advice = "in every draw of the base some combination of them is the same, so only the others are known; drop one of them"
    named = [tuple(goal.names[k] for k in sorted(group)) for group in groups]
    return [FitWarning("collinear", names, advice) for names in named if len(names) > 1]


def _few(names: tuple[str, ...], degrees: float, ess: float, draws: int) -> FitWarning:
    advice = (
        f"a few observations decide the weight: its standard error has {degrees:.0f} degrees of freedom, and "
        f"{ess:.0f} of {draws:,} draws are effective under the weights, so the interval may be too narrow; draw more "
        f"from the base or from a model nearer the goal (log_weight), or give more data"
    )
    return FitWarning("few effective", names, advice)


def _unmatched(names: tuple[str, ...]) -> FitWarning:
    advice = (
        "the model's moment is more than 1 % of the feature's range from the wanted one: the ridge or an early stop keeps it"
    )
    return FitWarning("not matched", names, advice)


def match_moments(
    names: Sequence[str],
    base: Float[Tensor, "N F"],
    data: Float[Tensor, "M F"] | None = None,
    *,
    wanted: Mapping[str, float] | None = None,
    log_weight: Float[Tensor, "N"] | None = None,
    prior: float = 0.5,
    ridge: float | None = None,
    confidence: float = 0.95,
) -> MomentFit:
    """Weights under which the base's draws have the data's moments, or for the features in `wanted` those.

    `prior` base observations join the data. `log_weight` is log a(x) - log q(x), up to a constant, where the draws come
    from another proposal q. `ridge` is the standard deviation of a normal prior on the weights of features that are not
    in `wanted`. A moment that the draws cannot give at any finite weight is an error that names the feature.
    """
    check_confidence(confidence, "No weight was fitted")
    goal, sample = moment_targets(names, data, wanted, prior=prior), weighted_features(names, base, log_weight)
    ridge_precision = _ridge_precision(goal, ridge)
    moments = goal.wanted(sample.mean)
    refuse_impossible(goal, sample.base, moments, edge_allowed=ridge_precision > 0)
    try:
        found = newton_weights(sample, moments, ridge_precision)
    except UnboundedWeightsError as off:
        raise ValueError(infeasible_message(goal.names, sample.base, moments, off.direction)) from off
    error, degrees = _errors(_influence(goal, sample, found), _ridge_influence(goal, found, ridge_precision))
    weights = _estimates(goal, sample, found, error, degrees, confidence)
    notes = fit_warnings(goal, sample, found.share, prior_effect=_prior_effect(goal, sample, found), degrees=degrees)
    seen = [None if given else mean for given, mean in zip(goal.is_stated.tolist(), goal.moments.tolist(), strict=True)]
    return MomentFit(
        names=goal.names,
        weights=weights,
        moments_wanted=tuple(moments.tolist()),
        moments_base=tuple(sample.mean.tolist()),
        moments_model=tuple((found.share @ sample.base).tolist()),
        ess=float(ess(found.share)),
        iterations=len(found.path) - 1,
        moments_data=tuple(seen),
        base_samples=sample.drawn,
        warnings=notes,
        history=_history(sample, moments, found),
    )


def weighted_features(
    names: Sequence[str], base: Float[Tensor, "N F"], log_weight: Float[Tensor, "N"] | None
) -> WeightedFeatures:
    """The draws that have weight, and their shares of the base."""
    check_feature_values("base's draws", names, base)
    if log_weight is not None and log_weight.shape != (len(base),):
        raise ValueError(f"{len(base)} draws need as many log-weights, not {tuple(log_weight.shape)}. No weight was fitted.")
    log_weight = torch.zeros(len(base)) if log_weight is None else log_weight
    if bool((log_weight.isnan() | (log_weight == torch.inf)).any()):
        raise ValueError("A log-weight of the base's draws is NaN or infinite. No weight was fitted; mend the proposal.")
    kept = log_weight > -torch.inf
    if int(kept.sum()) < 2:
        raise ValueError(f"{int(kept.sum())} of {len(base)} draws of the base have weight. No weight was fitted; draw more.")
    shares = torch.softmax(log_weight[kept].detach().double().cpu(), 0)
    return WeightedFeatures(base[kept].detach().double().cpu(), shares, drawn=len(base))


def _ridge_precision(goal: MomentTargets, ridge: float | None) -> Float[Tensor, "F"]:
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
    return (~goal.is_stated).double() / (ridge**2 * len(goal.data))


def _influence(goal: MomentTargets, sample: WeightedFeatures, found: NewtonSolution) -> Float[Tensor, "K F"]:
    """What each observation did to the weights: the draws, and the data with the prior's observations as some of them.

    A given moment has no chance in it. The data's effects are measured from the wanted moments, so that data which all
    agree still leave the chance that the prior concedes.
    """
    moments, free = goal.wanted(sample.mean), (~goal.is_stated).double()
    drawn = found.share[:, None] * (sample.base - found.share @ sample.base)
    parts = [goal.prior_share * sample.share[:, None] * (sample.base - sample.mean) * free - drawn]
    if goal.data is not None:
        size = len(goal.data) + goal.prior
        parts.append((goal.data.double() - moments) * free / size)
        parts.append((goal.prior * sample.share).sqrt()[:, None] * (sample.base - moments) * free / size)
    return torch.cat(parts) @ found.inverse


def _ridge_influence(goal: MomentTargets, found: NewtonSolution, ridge_precision: Float[Tensor, "F"]) -> Float[Tensor, "F F"]:
    """A ridge is one more observation of each weight, 0 give or take its standard deviation, and its chance is known."""
    size = 1 if goal.data is None else len(goal.data)
    return torch.diag((ridge_precision / size).sqrt()) @ found.inverse


def _errors(effects: Float[Tensor, "K F"], known: Float[Tensor, "L F"]) -> tuple[Float[Tensor, "F"], Float[Tensor, "F"]]:
    """The standard error of each weight, and Satterthwaite's degrees of freedom of it; `known` chance costs none."""
    square = effects.square().sum(0) + known.square().sum(0)
    degrees = 2 * square.square() / effects.pow(4).sum(0).clamp(min=1e-300)
    return square.sqrt(), torch.where(square > 0, degrees.clamp(min=1.0), torch.inf)


def _estimates(
    goal: MomentTargets,
    sample: WeightedFeatures,
    found: NewtonSolution,
    error: Float[Tensor, "F"],
    degrees: Float[Tensor, "F"],
    confidence: float,
) -> tuple[Estimate, ...]:
    """Student's interval for each weight; one of a feature in which no draw differs is 0 by decree."""
    size = "" if goal.data is None else f" and {len(goal.data):,} data"
    method = f"Newton on {sample.drawn:,} base draws{size}, infinitesimal jackknife"
    half = (torch.from_numpy(stdtrit(degrees.clamp(max=1e9).numpy(), (1 + confidence) / 2)) * error).tolist()
    varies = (sample.base.amax(0) > sample.base.amin(0)).tolist()
    held = Estimate.exact(0.0, method="held at 0: the base's draws do not differ in it")
    return tuple(
        Estimate(weight, weight - wide, weight + wide, confidence, sample.drawn, method) if moves else held
        for weight, wide, moves in zip(found.weights.tolist(), half, varies, strict=True)
    )


def _prior_effect(goal: MomentTargets, sample: WeightedFeatures, found: NewtonSolution) -> Float[Tensor, "F"]:
    """How far the prior moved the log-weight between each feature's least and greatest value, to first order."""
    moved = found.inverse @ ((goal.wanted(sample.mean) - goal.moments) * (~goal.is_stated).double())
    return moved.abs() * (sample.base.amax(0) - sample.base.amin(0))


def _history(sample: WeightedFeatures, moments: Float[Tensor, "F"], found: NewtonSolution) -> tuple[FitStep, ...]:
    return tuple(
        FitStep(step, float((sample.tilted(at) @ sample.base - moments).abs().sum()), tuple(at.tolist()), sample.drawn)
        for step, at in enumerate(found.path)
    )
