"""Weights of a log-linear energy from moments, by Newton's method on one fixed sample of the base.

p(x) ~ a(x) exp <weights, features(x)> is an exponential family: at the maximum of the likelihood the model's moments equal the
data's. With stated moments the fitted model is the one nearest to the base, in KL(p || a), of all that have them. A feature
that all data have would get an infinite weight, so `prior` observations from the base join the data: half an observation, the
default, is Jeffreys' choice for a share. Intervals contain the sampling error of the base's draws and of the data. Left out:
draws after several prompts (weights that depend on the prompt are in `esscher.energies.features`).
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
    WeightedFeatures,
    moment_targets,
    newton_weights,
    refuse_unreachable,
    weighted_features,
    whitened_basis,
)

MIN_DEGREES_OF_FREEDOM = 15  # of a standard error; below it, intervals were measured to be too narrow
MAX_PRIOR_EFFECT = 0.6  # change of a log-weight by the prior, above which the data do not limit it
MIN_DIFFERING_DRAWS = 10  # draws that differ from the most frequent value of a feature

WarningKind = Literal["no support", "separable", "rare", "collinear", "few effective", "not matched", "bound raised"]


@dataclass(frozen=True)
class FitWarning:
    """A problem of a fit: its kind, the features it is about (none: all), what was seen and what to do."""

    kind: WarningKind
    features: tuple[str, ...]
    advice: str

    def __str__(self) -> str:
        return f"{', '.join(self.features) or 'all features'}: {self.advice}"


@dataclass(frozen=True)
class FitStep:
    """The state before one update: the l1 distance of moments, the weights, and the number of draws so far."""

    step: int
    l1: float
    weights: tuple[float, ...]
    base_samples: int


@dataclass(frozen=True)
class MomentFit:
    """The weights with intervals, the moments, and diagnostics."""

    names: tuple[str, ...]
    weights: tuple[Estimate, ...]
    moments_wanted: tuple[float, ...]
    moments_base: tuple[float, ...]
    moments_model: tuple[float, ...]
    ess: float  # effective sample size of the base's draws under the fitted weights
    iterations: int
    moments_data: tuple[float | None, ...]  # None where the moment was stated
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
        columns = (self.weights, self.moments_data, self.moments_wanted, self.moments_base, self.moments_model)
        rows = []
        for name, weight, data, want, base, model in zip(self.names, *columns, strict=True):
            notes = ["given"] * (data is None) + [warning.kind for warning in self.warnings if name in warning.features]
            moments = {"in the data": data, "wanted": want, "in the base": base, "under the model": model}
            rows.append({"feature": name, "weight": weight, **moments, "note": ", ".join(notes)})
        return rows


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
    """Weights under which the base's draws have the data's moments, or those in `wanted`.

    A moment that the draws cannot give at any finite weight is an error that names the feature.

    Args:
        names: Names of the features.
        base: Features of draws of the base.
        data: Features of the data; not needed for the features in `wanted`.
        wanted: Stated moments by the name of the feature.
        log_weight: log a(x) - log q(x), up to a constant, where the draws come from another proposal q.
        prior: Number of base observations that join the data.
        ridge: Standard deviation of a normal prior on the weights of features that are not in `wanted`.
        confidence: Of the intervals.
    """
    check_confidence(confidence, "No weight was fitted")
    targets, sample = moment_targets(names, data, wanted, prior=prior), weighted_features(names, base, log_weight)
    ridge_precision = _ridge_precision(targets, ridge)
    moments = targets.wanted(sample.mean)
    refuse_unreachable(targets, sample.base, moments, edge_allowed=ridge_precision > 0)
    solution = newton_weights(targets.names, sample, moments, ridge_precision)
    error, degrees = _standard_errors(targets, sample, solution, ridge_precision)
    size = "" if targets.data is None else f" and {len(targets.data):,} data"
    method = f"Newton on {sample.drawn:,} base draws{size}, infinitesimal jackknife"
    half = (torch.from_numpy(stdtrit(degrees.clamp(max=1e9).numpy(), (1 + confidence) / 2)) * error).tolist()
    varies = (sample.base.amax(0) > sample.base.amin(0)).tolist()
    constant = Estimate.exact(0.0, method="held at 0: the base's draws do not differ in it")
    data_moments = zip(targets.is_stated.tolist(), targets.moments.tolist(), strict=True)
    distances = [float((sample.tilted(at) @ sample.base - moments).abs().sum()) for at in solution.path]
    return MomentFit(
        names=targets.names,
        weights=tuple(
            Estimate(weight, weight - wide, weight + wide, confidence, sample.drawn, method) if moves else constant
            for weight, wide, moves in zip(solution.weights.tolist(), half, varies, strict=True)
        ),
        moments_wanted=tuple(moments.tolist()),
        moments_base=tuple(sample.mean.tolist()),
        moments_model=tuple((solution.share @ sample.base).tolist()),
        ess=float(ess(solution.share)),
        iterations=len(solution.path) - 1,
        moments_data=tuple(None if stated else mean for stated, mean in data_moments),
        base_samples=sample.drawn,
        warnings=_fit_warnings(targets, sample, solution, degrees),
        history=tuple(
            FitStep(step, l1, tuple(at.tolist()), sample.drawn)
            for step, (l1, at) in enumerate(zip(distances, solution.path, strict=True))
        ),
    )


def _ridge_precision(targets: MomentTargets, ridge: float | None) -> Float[Tensor, "F"]:
    """The curvature that the ridge adds to each weight, for one observation of the data."""
    if ridge is None:
        return torch.zeros(len(targets.names), dtype=torch.float64)
    if not 0 < ridge < math.inf:
        raise ValueError(f"The ridge is a standard deviation of weights, more than 0, not {ridge}. No weight was fitted.")
    if targets.data is None:
        raise ValueError("All moments are given, and a ridge needs data. No weight was fitted; leave `ridge` out.")
    return targets.free / (ridge**2 * len(targets.data))


def _standard_errors(
    targets: MomentTargets, sample: WeightedFeatures, solution: NewtonSolution, ridge_precision: Float[Tensor, "F"]
) -> tuple[Float[Tensor, "F"], Float[Tensor, "F"]]:
    """The standard error of each weight, and its degrees of freedom (Satterthwaite), from the influence of each observation:
    the draws, and the data with the prior's observations. A stated moment has no error. The influence of the data is measured
    from the wanted moments, so that data that all agree still have the error that the prior implies. The ridge is one more
    observation of each weight, 0 with its standard deviation, which costs no degrees of freedom."""
    moments, free = targets.wanted(sample.mean), targets.free
    drawn = solution.share[:, None] * (sample.base - solution.share @ sample.base)
    parts = [targets.prior_share * sample.share[:, None] * (sample.base - sample.mean) * free - drawn]
    if targets.data is not None:
        size = len(targets.data) + targets.prior
        parts.append((targets.data.double() - moments) * free / size)
        parts.append((targets.prior * sample.share).sqrt()[:, None] * (sample.base - moments) * free / size)
    influence = torch.cat(parts) @ solution.inverse
    ridge = torch.diag((ridge_precision / (1 if targets.data is None else len(targets.data))).sqrt()) @ solution.inverse
    square = influence.square().sum(0) + ridge.square().sum(0)
    degrees = 2 * square.square() / influence.pow(4).sum(0).clamp(min=1e-300)
    return square.sqrt(), torch.where(square > 0, degrees.clamp(min=1.0), torch.inf)


def _fit_warnings(
    targets: MomentTargets, sample: WeightedFeatures, solution: NewtonSolution, degrees: Float[Tensor, "F"]
) -> tuple[FitWarning, ...]:
    """The warnings of a fit; `degrees` are the degrees of freedom of the standard errors."""
    base, moments, draws = sample.base, targets.wanted(sample.mean), len(sample.base)
    low, high = base.amin(0), base.amax(0)
    constant = low == high
    # the change of the log-weight over a feature's range by the prior, to first order: 1 where only the prior opposes an
    # infinite weight, and 1/3 where one observation of the data does, too
    prior_effect = (solution.inverse @ ((moments - targets.moments) * targets.free)).abs() * (high - low)
    separable = prior_effect > MAX_PRIOR_EFFECT
    if targets.data is not None:
        least, greatest = targets.data.amin(0), targets.data.amax(0)
        separable |= (least == greatest) & ((least == low) | (least == high)) & ~targets.is_stated
    differing = (base != base.mode(0).values).sum(0).tolist()
    few = degrees < MIN_DEGREES_OF_FREEDOM
    unmatched = (solution.share @ base - moments).abs() > 0.01 * (high - low)

    def features(mask: Bool[Tensor, "F"]) -> tuple[str, ...]:
        return tuple(name for name, flagged in zip(targets.names, mask.tolist(), strict=True) if flagged)

    no_support = "the same in every draw of the base, so its weight means nothing and is held at 0; draw more, or drop it"
    warnings = [FitWarning("no support", (name,), no_support) for name in features(constant)]
    warnings.append(FitWarning(
        "separable", features(separable & ~constant),
        f"the data are all on one side, so that without the prior of {targets.prior:g} observations (or a ridge) the weight "
        f"would be infinite; the data determine its sign, the prior its size",
    ))  # fmt: skip
    warnings += [
        FitWarning("rare", (name,), f"only {count} of {draws:,} draws of the base differ in it, so they decide; draw more")
        for name, count in zip(targets.names, differing, strict=True)
        if 0 < count < MIN_DIFFERING_DRAWS
    ]
    collinear = "in every draw of the base some combination of them is the same, so their weights are not determined; drop one"
    warnings += [FitWarning("collinear", group, collinear) for group in _collinear_groups(targets.names, base)]
    warnings.append(FitWarning(
        "few effective", features(few),
        f"a few observations decide the weight: its standard error has {float(degrees.min()):.0f} degrees of freedom, and "
        f"{float(ess(solution.share)):.0f} of {draws:,} draws are effective under the weights, so the interval may be too "
        f"narrow; draw more from the base or from a model nearer the target (log_weight), or give more data",
    ))  # fmt: skip
    not_matched = "the model's moment is more than 1 % of the feature's range from the wanted one: the ridge or an early stop"
    warnings.append(FitWarning("not matched", features(unmatched), not_matched))
    return tuple(warning for warning in warnings if warning.features)


def _collinear_groups(names: tuple[str, ...], base: Float[Tensor, "N F"]) -> list[tuple[str, ...]]:
    """The groups of features that some combination constant over all draws ties together."""
    constant = whitened_basis(base)[1]
    tied = (constant @ constant.T).abs() * base.std(0) * base.std(0)[:, None] > 1e-6
    groups: list[set[int]] = []
    for row in tied.any(1).nonzero()[:, 0].tolist():
        group = {row, *tied[row].nonzero()[:, 0].tolist()}
        overlapping = [other for other in groups if other & group]
        groups = [*(other for other in groups if not other & group), group.union(*overlapping)]
    return [tuple(names[k] for k in sorted(group)) for group in groups if len(group) > 1]
