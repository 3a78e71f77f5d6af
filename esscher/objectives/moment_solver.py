"""The moments that fitted weights shall give: means of data, numbers a person states, or some of each.

The mean of data is joined by `prior` observations from the base, so that a feature all data have asks for a share
below 1. A given moment is a condition: it has no error, no prior and no ridge. M counts data, N draws of the base,
F features.

Newton's method for the weights of an exponential family on one fixed, weighted sample of its base.

    minimise   log sum_i share_i exp <weights, features_i - wanted>  +  1/2 sum_k pull_k weights_k^2

Features are first brought to coordinates of unit covariance over the draws (directions in which no draw differs are left
out: their weights are held at least norm), so that rare features and nearly dependent ones cost no accuracy. A step
whose effect on log-weights ranges over d is shortened to log(1 + d) / d of its length: the function is self-concordant
in the generalised sense (Sun and Tran-Dinh, Math. Program. 2019, nu = 2), so every such step descends and no line search
is needed. Moments that no weights give are an error: either all draws lie on one side of what is wanted, or weights run
off while the moments only come near. Cost of an iteration: N F^2; hundreds of features are no trouble, so there is no
first-order method beside it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class MomentTargets:
    """Made by `goal_of`."""

    names: tuple[str, ...]
    is_stated: Bool[Tensor, "F"]  # True where a person stated the moment
    moments: Float[Tensor, "F"]  # given, or the mean of the data
    data: Float[Tensor, "M F"] | None
    prior: float

    @property
    def prior_share(self) -> float:
        """What part of the wanted moments of data is the base's mean."""
        return 0.0 if self.data is None else self.prior / (len(self.data) + self.prior)

    def wanted(self, base_mean: Float[Tensor, "F"]) -> Float[Tensor, "F"]:
        """The moments to match, once the base's are known."""
        joined = (1 - self.prior_share) * self.moments + self.prior_share * base_mean
        return torch.where(self.is_stated, self.moments, joined)


def moment_targets(
    names: Sequence[str], data: Float[Tensor, "M F"] | None, wanted: Mapping[str, float] | None, *, prior: float
) -> MomentTargets:
    """The goal that data and given moments state; a feature with neither, or with a moment that is no number, is an error."""
    given = dict(wanted or {})
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"Weights are fitted for features with a name each; got {list(names)}.")
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise ValueError(f"No feature named {unknown[0]!r} to want a moment of. The features are {', '.join(names)}.")
    if not 0 <= prior < math.inf:
        raise ValueError(f"The prior is a number of observations, at least 0, not {prior}. No weight was fitted.")
    for name, value in given.items():
        if not math.isfinite(value):
            raise ValueError(f"The wanted moment of feature {name!r} is {value}. No weight was fitted; give a finite number.")
    if data is not None:
        check_feature_values("data", names, data)
    is_given = torch.tensor([name in given for name in names])
    mean = _data_mean(names, data, is_given)
    stated = torch.tensor([float(given.get(name, 0.0)) for name in names], dtype=torch.float64)
    return MomentTargets(
        tuple(names), is_given, torch.where(is_given, stated, mean), data if len(given) < len(names) else None, prior
    )


def _data_mean(names: Sequence[str], data: Float[Tensor, "M F"] | None, given: Bool[Tensor, "F"]) -> Float[Tensor, "F"]:
    """The mean of each feature in the data; 0 where no data are needed."""
    missing = [name for name, stated in zip(names, given.tolist(), strict=True) if not stated]
    if not missing:
        return torch.zeros(len(names), dtype=torch.float64)
    if data is None or len(data) == 0:
        raise ValueError(
            f"Feature {missing[0]!r} has no moment to match: there are no data, and none is given for it. No weight was "
            f"fitted; pass data, or wanted={{{missing[0]!r}: ...}}."
        )
    return data.double().mean(0)


def check_feature_values(what: str, names: Sequence[str], values: Float[Tensor, "B F"]) -> None:
    """Refuse a table with another number of features, or with a value that is not finite."""
    if values.shape[1] != len(names):
        raise ValueError(f"The {what} have {values.shape[1]} features and {len(names)} names. No weight was fitted.")
    wrong = ~torch.isfinite(values)
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"Feature {names[column]!r} is {float(values[row, column])} in row {row} of the {what}. No weight was fitted; a "
            f"feature must be finite."
        )


def refuse_impossible(
    goal: MomentTargets, base: Float[Tensor, "N F"], wanted: Float[Tensor, "F"], edge_allowed: Bool[Tensor, "F"]
) -> None:
    """An error for the first feature whose moment no finite weight gives, by the range that the draws show."""
    low, high = base.amin(0).tolist(), base.amax(0).tolist()
    for k, (name, want) in enumerate(zip(goal.names, wanted.tolist(), strict=True)):
        if low[k] == high[k]:
            possible = abs(want - low[k]) <= 1e-12 * max(1.0, abs(low[k]))
        elif bool(edge_allowed[k]):
            possible = low[k] <= want <= high[k]
        else:
            possible = low[k] < want < high[k]
        if not possible:
            raise ValueError(_unreachable_message(goal, k, name, want, low[k], high[k], len(base)))


def _unreachable_message(goal: MomentTargets, k: int, name: str, want: float, low: float, high: float, draws: int) -> str:
    given = bool(goal.is_stated[k])
    seen = f"it is always {low:.4g}" if low == high else f"it lies between {low:.4g} and {high:.4g}"
    says = (
        f"Feature {name!r} should average {want:.4g}, but in the {draws:,} draws of the base {seen}: no finite weight gets "
        f"there."
    )
    if given and (low, high) == (0.0, 1.0):
        hint = "its moment is a share of the sequences: give a number above 0 and below 1, or make it a condition of sampling"
    elif low == high:
        hint = "draw more from the base, draw from a proposal that shows the feature (with log_weight), or drop the feature"
    elif given:
        hint = "give a moment strictly inside that range, draw more from the base, or drop the feature"
    else:
        hint = "draw more from the base, give the base a larger `prior` share, or drop the feature"
    return f"{says} No weight was fitted; {hint}."


def infeasible_message(
    names: Sequence[str], base: Float[Tensor, "N F"], wanted: Float[Tensor, "F"], direction: Float[Tensor, "F"]
) -> str:
    """What to say when each moment is possible alone: which features are at odds, and the nearest moments that are not."""
    width = base.amax(0) - base.amin(0)
    width = torch.where(width > 0, width, 1.0)
    nearest, plane = _nearest_feasible(base / width, wanted / width)
    apart = float((nearest * width - wanted).abs().max()) > 1e-7
    blame = (plane if apart else direction * width).abs()
    involved = (blame > 0.01 * blame.max()).nonzero()[:, 0].tolist()
    wants = ", ".join(f"{names[k]!r} {float(wanted[k]):.4g}" for k in involved)
    if apart:
        gives = ", ".join(f"{float(nearest[k] * width[k]):.4g}" for k in involved)
        why = f"they contradict each other; the nearest that weighted draws can give is {gives}"
    else:
        why = "they lie on the edge of what weighted draws can give, where weights are infinite"
    return (
        f"No finite weights give these moments together, though each alone is possible: {wants}. In the {len(base):,} draws of "
        f"the base {why}. No weight was fitted; change one of these moments, drop one of these features, draw more from the "
        f"base, or (with data) raise `prior` or set `ridge`."
    )


def _nearest_feasible(base: Float[Tensor, "N F"], wanted: Float[Tensor, "F"]) -> tuple[Float[Tensor, "F"], Float[Tensor, "F"]]:
    """The weighted mean of draws with the least summed distance from what is wanted, and the plane that parts the two."""
    import numpy as np
    from scipy.optimize import linprog

    rows = np.unique(base.numpy(), axis=0)
    features = rows.shape[1]
    slack = np.eye(features)
    equal = np.vstack([np.hstack([rows.T, slack, -slack]), [[1.0] * len(rows) + [0.0] * 2 * features]])
    cost = [0.0] * len(rows) + [1.0] * 2 * features
    found = linprog(cost, A_eq=equal, b_eq=[*wanted.tolist(), 1.0], method="highs")
    mean = found.x[: len(rows)] @ rows
    return torch.from_numpy(mean), torch.tensor(found.eqlin.marginals[:features], dtype=torch.float64)


MAX_ITERATIONS = 200
STEP_TOLERANCE = 1e-9  # range of log-weights that the last step may change
ROUNDING_STEP_TOLERANCE = 1e-3  # the same where rounding hides the rest
GRADIENT_TOLERANCE = 1e-13  # a gradient this small, in units of the features' spread, is rounding; a long step then runs off
MIN_EIGENVALUE = 1e-10  # of the features' correlations over the draws: below it a direction is taken as constant
CONSTANT_TOLERANCE = 1e-7  # distance from a constant direction, in units of the features' spread, that is rounding


class UnboundedWeightsError(ValueError):
    """No finite weights give the moments; `direction` is where the weights went."""

    def __init__(self, direction: Float[Tensor, "F"]):
        super().__init__("no finite weights give these moments together")
        self.direction = direction


@dataclass(frozen=True)
class WeightedFeatures:
    """Features of draws and the share that each has of the base; the shares sum to 1."""

    base: Float[Tensor, "N F"]
    share: Float[Tensor, "N"]
    drawn: int  # also those without a share

    @property
    def mean(self) -> Float[Tensor, "F"]:
        return self.share @ self.base

    def tilted(self, weights: Float[Tensor, "F"]) -> Float[Tensor, "N"]:
        """The share that each draw has of the model with these weights."""
        return torch.softmax(self.share.log() + self.base @ weights, 0)


@dataclass(frozen=True)
class WhitenedBasis:
    """The directions in which draws differ: coordinates = (features - wanted) @ inward, weights = inward @ coordinates'."""

    inward: Float[Tensor, "F R"]
    constant: Float[Tensor, "F C"]  # directions, per spread of the features, in which they do not


@dataclass(frozen=True)
class NewtonSolution:
    """The weights, each draw's share of the model, the inverse curvature, and the way there."""

    weights: Float[Tensor, "F"]
    share: Float[Tensor, "N"]
    inverse: Float[Tensor, "F F"]
    path: tuple[Float[Tensor, "F"], ...]  # weights before each step


def whitened_basis(base: Float[Tensor, "N F"]) -> WhitenedBasis:
    """Coordinates of unit covariance over the draws, each counted once whatever its share."""
    centred = base - base.mean(0)
    spread = centred.square().mean(0).sqrt()
    varies = base.amax(0) > base.amin(0)
    scale = torch.where(varies, spread, torch.inf)
    value, vector = torch.linalg.eigh((centred / scale).T @ (centred / scale) / len(base))
    kept = value > MIN_EIGENVALUE
    inward = vector[:, kept] / value[kept].sqrt() / scale[:, None]
    return WhitenedBasis(inward, vector[:, ~kept] / scale[:, None])


def newton_weights(sample: WeightedFeatures, wanted: Float[Tensor, "F"], ridge_precision: Float[Tensor, "F"]) -> NewtonSolution:
    """The weights at the minimum; `RunOffError` where there is none."""
    basis = whitened_basis(sample.base)
    gap = sample.base - wanted
    _refuse_constant_gap(basis, gap)
    z, log_share = gap @ basis.inward, sample.share.log()
    ridge = basis.inward.T @ (ridge_precision[:, None] * basis.inward)
    at = torch.zeros(z.shape[1], dtype=torch.float64)
    path: list[Tensor] = []
    for _ in range(MAX_ITERATIONS):
        path.append(basis.inward @ at)
        score = z @ at
        share = torch.softmax(score + log_share, 0)
        mean = share @ z
        centred = z - mean
        gradient, curvature = mean + ridge @ at, (centred * share[:, None]).T @ centred + ridge
        factor, failed = torch.linalg.cholesky_ex(curvature)
        if int(failed) or (not bool(ridge_precision.any()) and float(score.max()) < 0):
            raise UnboundedWeightsError(basis.inward @ at)
        step = torch.cholesky_solve(gradient[:, None], factor)[:, 0]
        change = z @ step
        reach = float(change.amax() - change.amin())
        vanished = float(gradient.abs().amax()) < GRADIENT_TOLERANCE if len(at) else True
        if reach < STEP_TOLERANCE or (vanished and reach < ROUNDING_STEP_TOLERANCE):
            inverse = basis.inward @ torch.cholesky_inverse(factor) @ basis.inward.T
            return NewtonSolution(basis.inward @ at, share, inverse, tuple(path))
        if vanished:
            raise UnboundedWeightsError(basis.inward @ step)
        at = at - step * math.log1p(reach) / reach
    raise UnboundedWeightsError(basis.inward @ at)


def _refuse_constant_gap(basis: WhitenedBasis, gap: Float[Tensor, "N F"]) -> None:
    """Where no draw differs in some combination of features, its wanted value must be that of the draws."""
    along = gap @ basis.constant
    outside = (along.amin(0) > CONSTANT_TOLERANCE) | (along.amax(0) < -CONSTANT_TOLERANCE)
    if bool(outside.any()):
        raise UnboundedWeightsError(basis.constant[:, outside].abs().sum(1))
