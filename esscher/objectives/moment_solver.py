"""The moments that fitted weights must give, and Newton's method for the weights on one weighted sample of the base.

    minimise   log sum_i share_i exp <weights, features_i - wanted>  +  1/2 sum_k ridge_precision_k weights_k^2

A stated moment is a condition: it has no error, no prior and no ridge. M counts data, N draws of the base, F features. Features
are first whitened over the draws, so that rare and nearly dependent features cost no accuracy. A step that changes log-weights
over a range d is shortened to log(1 + d) / d of its length: the function is generalised self-concordant (Sun and Tran-Dinh,
Math. Program. 2019, nu = 2), so every such step descends without a line search. Moments that no finite weights give are an
error. An iteration costs N F^2.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MAX_ITERATIONS = 200
STEP_TOLERANCE = 1e-9  # range of log-weights that the last step may change
ROUNDING_STEP_TOLERANCE = 1e-3  # the same where rounding hides the rest
GRADIENT_TOLERANCE = 1e-13  # a smaller gradient, in units of the features' spread, is rounding; a long step then diverges
MIN_EIGENVALUE = 1e-10  # of the features' correlations over the draws: below it a direction counts as constant
CONSTANT_TOLERANCE = 1e-7  # distance from a constant direction, in units of the features' spread, that is rounding


@dataclass(frozen=True)
class MomentTargets:
    """The moments to match, made by `moment_targets`."""

    names: tuple[str, ...]
    is_stated: Bool[Tensor, "F"]
    moments: Float[Tensor, "F"]  # stated, or the mean of the data
    data: Float[Tensor, "M F"] | None  # None if all moments are stated
    prior: float

    @property
    def free(self) -> Float[Tensor, "F"]:
        """1 for the features whose moment comes from the data, else 0."""
        return (~self.is_stated).double()

    @property
    def prior_share(self) -> float:
        """The share of the base's mean in the moments of the data."""
        return 0.0 if self.data is None else self.prior / (len(self.data) + self.prior)

    def wanted(self, base_mean: Float[Tensor, "F"]) -> Float[Tensor, "F"]:
        """The moments to match, given those of the base."""
        joined = (1 - self.prior_share) * self.moments + self.prior_share * base_mean
        return torch.where(self.is_stated, self.moments, joined)


def moment_targets(
    names: Sequence[str], data: Float[Tensor, "M F"] | None, wanted: Mapping[str, float] | None, *, prior: float
) -> MomentTargets:
    """The targets of data and stated moments; a feature with neither, or with a moment that is not finite, is an error."""
    stated = dict(wanted or {})
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"Weights are fitted for features with a name each; got {list(names)}.")
    unknown = sorted(set(stated) - set(names))
    if unknown:
        raise ValueError(f"No feature named {unknown[0]!r} to want a moment of. The features are {', '.join(names)}.")
    if not 0 <= prior < math.inf:
        raise ValueError(f"The prior is a number of observations, at least 0, not {prior}. No weight was fitted.")
    for name, value in stated.items():
        if not math.isfinite(value):
            raise ValueError(f"The wanted moment of feature {name!r} is {value}. No weight was fitted; give a finite number.")
    if data is not None:
        check_feature_values("data", names, data)
    is_stated = torch.tensor([name in stated for name in names])
    moments = torch.tensor([float(stated.get(name, 0.0)) for name in names], dtype=torch.float64)
    if bool(is_stated.all()):
        return MomentTargets(tuple(names), is_stated, moments, None, prior)
    if data is None or len(data) == 0:
        missing = next(name for name in names if name not in stated)
        raise ValueError(
            f"Feature {missing!r} has no moment to match: there are no data, and none is given for it. No weight was fitted; "
            f"pass data, or wanted={{{missing!r}: ...}}."
        )
    return MomentTargets(tuple(names), is_stated, torch.where(is_stated, moments, data.double().mean(0)), data, prior)


def check_feature_values(what: str, names: Sequence[str], values: Float[Tensor, "B F"]) -> None:
    """Refuse a table with another number of features, or with a value that is not finite."""
    if values.shape[1] != len(names):
        raise ValueError(f"The {what} have {values.shape[1]} features and {len(names)} names. No weight was fitted.")
    wrong = ~torch.isfinite(values)
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"Feature {names[column]!r} is {float(values[row, column])} in row {row} of the {what}, not finite. "
            "No weight was fitted."
        )


@dataclass(frozen=True)
class WeightedFeatures:
    """The features of the draws that have weight, and the share of each in the base; the shares sum to 1."""

    base: Float[Tensor, "N F"]
    share: Float[Tensor, "N"]
    drawn: int  # draws with and without weight

    @property
    def mean(self) -> Float[Tensor, "F"]:
        return self.share @ self.base

    def tilted(self, weights: Float[Tensor, "F"]) -> Float[Tensor, "N"]:
        """The share of each draw in the model with these weights."""
        return torch.softmax(self.share.log() + self.base @ weights, 0)


def weighted_features(
    names: Sequence[str], base: Float[Tensor, "N F"], log_weight: Float[Tensor, "N"] | None
) -> WeightedFeatures:
    """The draws that have weight, and their shares of the base."""
    check_feature_values("base's draws", names, base)
    if log_weight is not None and log_weight.shape != (len(base),):
        raise ValueError(f"{len(base)} draws need as many log-weights, not {tuple(log_weight.shape)}. No weight was fitted.")
    log_weight = torch.zeros(len(base)) if log_weight is None else log_weight
    if bool((log_weight.isnan() | (log_weight == torch.inf)).any()):
        raise ValueError("A log-weight of the base's draws is NaN or infinite. No weight was fitted; correct the proposal.")
    positive = log_weight > -torch.inf
    if int(positive.sum()) < 2:
        raise ValueError(
            f"{int(positive.sum())} of {len(base)} draws of the base have weight. No weight was fitted; draw more."
        )
    shares = torch.softmax(log_weight[positive].detach().cpu().double(), 0)
    return WeightedFeatures(base[positive].detach().cpu().double(), shares, drawn=len(base))


def refuse_unreachable(
    targets: MomentTargets, base: Float[Tensor, "N F"], wanted: Float[Tensor, "F"], edge_allowed: Bool[Tensor, "F"]
) -> None:
    """Raise an error for the first feature whose moment is outside the range of the draws: no finite weight gives it."""
    ranges = zip(targets.names, wanted.tolist(), base.amin(0).tolist(), base.amax(0).tolist(), strict=True)
    for k, (name, want, low, high) in enumerate(ranges):
        if low == high:
            reachable = abs(want - low) <= 1e-12 * max(1.0, abs(low))
        else:
            reachable = low <= want <= high if bool(edge_allowed[k]) else low < want < high
        if reachable:
            continue
        if bool(targets.is_stated[k]) and (low, high) == (0.0, 1.0):
            hint = (
                "its moment is a share of the sequences: give a number above 0 and below 1, or make it a condition of sampling"
            )
        elif low == high:
            hint = "draw more from the base, draw from a proposal that shows the feature (with log_weight), or drop the feature"
        elif bool(targets.is_stated[k]):
            hint = "give a moment strictly inside that range, draw more from the base, or drop the feature"
        else:
            hint = "draw more from the base, give the base a larger `prior` share, or drop the feature"
        seen = f"it is always {low:.4g}" if low == high else f"it lies between {low:.4g} and {high:.4g}"
        raise ValueError(
            f"Feature {name!r} should average {want:.4g}, but in the {len(base):,} draws of the base {seen}: no finite weight "
            f"gives that. No weight was fitted; {hint}."
        )


def infeasible_error(
    names: Sequence[str], base: Float[Tensor, "N F"], wanted: Float[Tensor, "F"], direction: Float[Tensor, "F"]
) -> ValueError:
    """The error for moments that are possible alone, not together: the features in conflict, and the nearest feasible moments.
    `direction` is the one in which the weights diverged."""
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
    return ValueError(
        f"No finite weights give these moments together, though each alone is possible: {wants}. In the {len(base):,} draws of "
        f"the base {why}. No weight was fitted; change one of these moments, drop one of these features, draw more from the "
        f"base, or (with data) raise `prior` or set `ridge`."
    )


def _nearest_feasible(base: Float[Tensor, "N F"], wanted: Float[Tensor, "F"]) -> tuple[Float[Tensor, "F"], Float[Tensor, "F"]]:
    """The weighted mean of draws nearest to the wanted moments (in l1), and the normal of the plane that separates the two."""
    import numpy as np
    from scipy.optimize import linprog

    rows = np.unique(base.numpy(), axis=0)
    features = rows.shape[1]
    slack = np.eye(features)
    equal = np.vstack([np.hstack([rows.T, slack, -slack]), [[1.0] * len(rows) + [0.0] * 2 * features]])
    cost = [0.0] * len(rows) + [1.0] * 2 * features
    optimum = linprog(cost, A_eq=equal, b_eq=[*wanted.tolist(), 1.0], method="highs")
    mean = optimum.x[: len(rows)] @ rows
    return torch.from_numpy(mean), torch.tensor(optimum.eqlin.marginals[:features], dtype=torch.float64)


def whitened_basis(base: Float[Tensor, "N F"]) -> tuple[Float[Tensor, "F R"], Float[Tensor, "F C"]]:
    """Directions of unit covariance over the draws (each counted once, whatever its share), and those in which none differs."""
    centred = base - base.mean(0)
    spread = centred.square().mean(0).sqrt()
    scale = torch.where(base.amax(0) > base.amin(0), spread, torch.inf)
    value, vector = torch.linalg.eigh((centred / scale).T @ (centred / scale) / len(base))
    varies = value > MIN_EIGENVALUE
    return vector[:, varies] / value[varies].sqrt() / scale[:, None], vector[:, ~varies] / scale[:, None]


@dataclass(frozen=True)
class NewtonSolution:
    """The weights, the share of each draw in the model, the inverse curvature, and the weights before each step."""

    weights: Float[Tensor, "F"]
    share: Float[Tensor, "N"]
    inverse: Float[Tensor, "F F"]
    path: tuple[Float[Tensor, "F"], ...]


def newton_weights(
    names: Sequence[str], sample: WeightedFeatures, wanted: Float[Tensor, "F"], ridge_precision: Float[Tensor, "F"]
) -> NewtonSolution:
    """The weights at the minimum; an error if there is none."""
    (basis, constant), gap = whitened_basis(sample.base), sample.base - wanted
    along = gap @ constant  # where no draw differs, the wanted moments must be those of the draws
    outside = (along.amin(0) > CONSTANT_TOLERANCE) | (along.amax(0) < -CONSTANT_TOLERANCE)
    if bool(outside.any()):
        raise infeasible_error(names, sample.base, wanted, constant[:, outside].abs().sum(1))
    z, log_share = gap @ basis, sample.share.log()
    ridge = basis.T @ (ridge_precision[:, None] * basis)
    at = torch.zeros(z.shape[1], dtype=torch.float64)
    path: list[Tensor] = []
    for _ in range(MAX_ITERATIONS):
        path.append(basis @ at)
        score = z @ at
        share = torch.softmax(score + log_share, 0)
        mean = share @ z
        centred = z - mean
        gradient, curvature = mean + ridge @ at, (centred * share[:, None]).T @ centred + ridge
        factor, failed = torch.linalg.cholesky_ex(curvature)
        if int(failed) or (not bool(ridge_precision.any()) and float(score.max()) < 0):
            break
        step = torch.cholesky_solve(gradient[:, None], factor)[:, 0]
        change = z @ step
        spread = float(change.amax() - change.amin())
        vanished = float(gradient.abs().amax()) < GRADIENT_TOLERANCE if len(at) else True
        if spread < STEP_TOLERANCE or (vanished and spread < ROUNDING_STEP_TOLERANCE):
            return NewtonSolution(basis @ at, share, basis @ torch.cholesky_inverse(factor) @ basis.T, tuple(path))
        if vanished:
            at = step
            break
        at = at - step * math.log1p(spread) / spread
    raise infeasible_error(names, sample.base, wanted, basis @ at)
