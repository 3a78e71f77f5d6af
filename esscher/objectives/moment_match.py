"""Weights of a log-linear energy from moments, by Newton's method on one fixed sample of the base.

With the base fixed, p(x) ~ a(x) exp <weights, features(x)> is an exponential family: the likelihood is
concave in the weights, and at its maximum the model's moments equal the data's. The base's draws do not
depend on the weights, so one sample serves the whole search: minimise log mean_i exp <weights, features_i>
- <weights, moments>. Standard errors carry both samples, the base's and the data's.

A feature that all the data have would get an infinite weight. The data are therefore joined by `prior`
observations from the base: half an observation, the default, is Jeffreys' choice for a share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.estimate import Estimate


@dataclass(frozen=True)
class MomentFit:
    """The weights with intervals, and what a person needs to judge them."""

    names: tuple[str, ...]
    weights: tuple[Estimate, ...]
    moments_wanted: tuple[float, ...]
    moments_base: tuple[float, ...]
    moments_model: tuple[float, ...]
    effective: float  # effective sample size of the base's draws under the fitted weights
    iterations: int

    def tensor(self) -> Float[Tensor, "F"]:
        return torch.tensor([weight.value for weight in self.weights], dtype=torch.float64)


def match_moments(
    names: Sequence[str],
    base: Float[Tensor, "N F"],
    data: Float[Tensor, "M F"],
    *,
    prior: float = 0.5,
    level: float = 0.95,
) -> MomentFit:
    """Weights under which the base's draws have the data's moments; `prior` base observations join the data.

    A feature whose moment the base's draws cannot give at any finite weight is an error that names it.
    """
    wanted = (len(data) * data.mean(0) + prior * base.mean(0)) / (len(data) + prior)
    _refuse_impossible(names, base, wanted)
    weights = torch.zeros(len(names), dtype=torch.float64)
    value, gradient, curvature, share = _dual(weights, base, wanted)
    iterations = 0
    while float(gradient.abs().max()) > 1e-10 and iterations < 200:
        step = torch.linalg.lstsq(curvature, gradient).solution
        size = 1.0
        while size > 1e-12:
            trial = _dual(weights - size * step, base, wanted)
            if float(trial[0]) <= float(value) - 1e-4 * size * float(gradient @ step) or size * float(step.abs().max()) < 1e-14:
                break
            size /= 2
        weights = weights - size * step
        value, gradient, curvature, share = trial
        iterations += 1
        if size * float(step.abs().max()) < 1e-12:
            break
    error = _standard_errors(base, data, share, curvature)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    method = f"Newton on {len(base):,} base draws and {len(data):,} data, sandwich standard errors"
    estimates = tuple(
        Estimate(w, w - z * e, w + z * e, level, len(base), method)
        for w, e in zip(weights.tolist(), error.tolist(), strict=True)
    )
    model = share @ base
    return MomentFit(
        tuple(names), estimates, _floats(wanted), _floats(base.mean(0)), _floats(model), float(1 / (share**2).sum()), iterations
    )


def _dual(
    weights: Float[Tensor, "F"], base: Float[Tensor, "N F"], wanted: Float[Tensor, "F"]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The convex function to minimise, its gradient, its curvature, and each draw's share of the model."""
    score = base @ weights
    share = torch.softmax(score, 0)
    mean = share @ base
    value = torch.logsumexp(score, 0) - weights @ wanted
    centred = base - mean
    curvature = (centred * share[:, None]).T @ centred
    return value, mean - wanted, curvature, share


def _standard_errors(
    base: Float[Tensor, "N F"], data: Float[Tensor, "M F"], share: Float[Tensor, "N"], curvature: Float[Tensor, "F F"]
) -> Float[Tensor, "F"]:
    inverse = torch.linalg.pinv(curvature)
    from_base = share[:, None] * (base - share @ base)
    from_data = (data - data.mean(0)) / len(data)
    return (inverse @ (from_base.T @ from_base + from_data.T @ from_data) @ inverse).diagonal().clamp(min=0).sqrt()


def _refuse_impossible(names: Sequence[str], base: Tensor, wanted: Tensor) -> None:
    for name, low, high, want in zip(names, _floats(base.amin(0)), _floats(base.amax(0)), _floats(wanted), strict=True):
        if want < low or want > high or (low < high and want in (low, high)):
            raise ValueError(
                f"Feature {name!r} should average {want:.4g}, but in the {len(base):,} draws of the base it lies between "
                f"{low:.4g} and {high:.4g}: no finite weight gets there. No weight was fitted; draw more from the base, "
                f"give the base a larger `prior` share, or drop the feature."
            )


def _floats(values: Tensor) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
