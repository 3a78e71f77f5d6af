"""Newton's method for the weights of an exponential family on one fixed, weighted sample of its base.

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
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

STEPS = 200
DONE = 1e-9  # range of log-weights that the last step may change
NEARLY = 1e-3  # the same where rounding hides the rest
VANISHED = 1e-13  # a gradient this small, in units of the features' spread, is rounding; a long step then runs off
SMALLEST_EIGENVALUE = 1e-10  # of the features' correlations over the draws: below it a direction is taken as constant
TOUCHES = 1e-7  # distance from a constant direction, in units of the features' spread, that is rounding


class RunOffError(ValueError):
    """No finite weights give the moments; `direction` is where the weights went."""

    def __init__(self, direction: Float[Tensor, "F"]):
        super().__init__("no finite weights give these moments together")
        self.direction = direction


@dataclass(frozen=True)
class Sample:
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
class Basis:
    """The directions in which draws differ: coordinates = (features - wanted) @ inward, weights = inward @ coordinates'."""

    inward: Float[Tensor, "F R"]
    constant: Float[Tensor, "F C"]  # directions, per spread of the features, in which they do not


@dataclass(frozen=True)
class Solution:
    """The weights, each draw's share of the model, the inverse curvature, and the way there."""

    weights: Float[Tensor, "F"]
    share: Float[Tensor, "N"]
    inverse: Float[Tensor, "F F"]
    path: tuple[Float[Tensor, "F"], ...]  # weights before each step


def basis_of(base: Float[Tensor, "N F"]) -> Basis:
    """Coordinates of unit covariance over the draws, each counted once whatever its share."""
    centred = base - base.mean(0)
    spread = centred.square().mean(0).sqrt()
    varies = base.amax(0) > base.amin(0)
    scale = torch.where(varies, spread, torch.inf)
    value, vector = torch.linalg.eigh((centred / scale).T @ (centred / scale) / len(base))
    kept = value > SMALLEST_EIGENVALUE
    inward = vector[:, kept] / value[kept].sqrt() / scale[:, None]
    return Basis(inward, vector[:, ~kept] / scale[:, None])


def newton(sample: Sample, wanted: Float[Tensor, "F"], pull: Float[Tensor, "F"]) -> Solution:
    """The weights at the minimum; `RunOffError` where there is none."""
    basis = basis_of(sample.base)
    gap = sample.base - wanted
    _refuse_constant_gap(basis, gap)
    z, log_share = gap @ basis.inward, sample.share.log()
    ridge = basis.inward.T @ (pull[:, None] * basis.inward)
    at = torch.zeros(z.shape[1], dtype=torch.float64)
    path: list[Tensor] = []
    for _ in range(STEPS):
        path.append(basis.inward @ at)
        score = z @ at
        share = torch.softmax(score + log_share, 0)
        mean = share @ z
        centred = z - mean
        gradient, curvature = mean + ridge @ at, (centred * share[:, None]).T @ centred + ridge
        factor, failed = torch.linalg.cholesky_ex(curvature)
        if int(failed) or (not bool(pull.any()) and float(score.max()) < 0):
            raise RunOffError(basis.inward @ at)
        step = torch.cholesky_solve(gradient[:, None], factor)[:, 0]
        change = z @ step
        reach = float(change.amax() - change.amin())
        vanished = float(gradient.abs().amax()) < VANISHED if len(at) else True
        if reach < DONE or (vanished and reach < NEARLY):
            inverse = basis.inward @ torch.cholesky_inverse(factor) @ basis.inward.T
            return Solution(basis.inward @ at, share, inverse, tuple(path))
        if vanished:
            raise RunOffError(basis.inward @ step)
        at = at - step * math.log1p(reach) / reach
    raise RunOffError(basis.inward @ at)


def _refuse_constant_gap(basis: Basis, gap: Float[Tensor, "N F"]) -> None:
    """Where no draw differs in some combination of features, its wanted value must be that of the draws."""
    along = gap @ basis.constant
    outside = (along.amin(0) > TOUCHES) | (along.amax(0) < -TOUCHES)
    if bool(outside.any()):
        raise RunOffError(basis.constant[:, outside].abs().sum(1))
