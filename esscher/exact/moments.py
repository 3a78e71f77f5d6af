"""The weights of an exact exponential family that give wanted moments: Newton's method on exact moments.

log Z(weights) - <weights, moments> is convex, its gradient is model moments minus wanted ones and its curvature
the covariance of the features, all exact here. A minimum exists exactly when the moments lie inside the set
that distributions over the base's points can have; on its edge the weights would be infinite.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.exact.automaton import FiniteState
from esscher.exact.features import Tally
from esscher.exact.tilting import Family, family
from esscher.space import Sequences

STEPS = 200
LONGEST_STEP = 20.0  # in log-weight: a rare feature would otherwise ask for a step of 1 / its variance
SMALLEST_EIGENVALUE = 1e-12  # of the features' correlations: below it a direction is taken as fixed


def exact_lambda(
    base: FiniteState, features: Sequence[Tally], moments: Float[Tensor, "F"], prompts: Sequences | None = None
) -> Float[Tensor, "F"]:
    """The weights under which the tilted base has these moments (averaged over the prompts, if given).

    Where features depend on each other, so that several have, steps are of least norm. Moments that no finite
    weights give are an error that names the feature.
    """
    tilted, wanted = family(base, features), moments.double()
    if wanted.shape != (len(features),):
        raise ValueError(f"{len(features)} features need as many moments, not {tuple(wanted.shape)}.")
    width = _widths(tilted, wanted, prompts)
    weights, directions = torch.zeros_like(wanted), None
    for _ in range(STEPS):
        mean, covariance = tilted.moments(weights, prompts)
        step, rank = _newton_step(covariance, wanted - mean, width)
        directions = rank if directions is None else directions
        length = float((step.abs() * width).max()) if len(step) else 0.0
        if length <= 1e-8:
            if rank == directions and not bool((_relative_gap(wanted, mean, width) > 1e-7).any()):
                return weights + step
            break
        weights = weights + _step_size(tilted, weights, step, length, wanted - mean, wanted, prompts) * step
    raise ValueError(_together_message(tilted, weights, width, wanted, mean))


def _newton_step(
    covariance: Float[Tensor, "F F"], gap: Float[Tensor, "F"], width: Float[Tensor, "F"]
) -> tuple[Float[Tensor, "F"], int]:
    """covariance^-1 gap in the directions that vary, and how many there are; features are first brought to one scale."""
    deviation = torch.where(width > 0, covariance.diagonal().sqrt(), 0.0)
    scale = torch.where(deviation > 0, deviation, torch.inf)
    value, vector = torch.linalg.eigh(covariance / scale / scale[:, None])
    varies = value > SMALLEST_EIGENVALUE
    inverse = torch.where(varies, 1 / torch.where(varies, value, 1.0), 0.0)
    return vector @ (inverse * (vector.T @ (gap / scale))) / scale, int(varies.sum())


def _step_size(
    tilted: Family,
    weights: Float[Tensor, "F"],
    step: Float[Tensor, "F"],
    length: float,
    gap: Float[Tensor, "F"],
    wanted: Float[Tensor, "F"],
    prompts: Sequences | None,
) -> float:
    """The longest of 1, 1/2, 1/4, ... times the step (first cut to `LONGEST_STEP`) that lowers the convex function enough."""

    def value(at: Float[Tensor, "F"]) -> float:
        return float(tilted.log_z(at, prompts).mean() - at @ wanted)

    size, here, slope = min(1.0, LONGEST_STEP / length), value(weights), float(gap @ step)
    slack = 1e-13 * (1 + abs(here))
    while value(weights + size * step) > here - 1e-4 * size * slope + slack and size > 1e-12:
        size /= 2
    return size


def _widths(tilted: Family, wanted: Float[Tensor, "F"], prompts: Sequences | None) -> Float[Tensor, "F"]:
    """How far each feature can range; an error where a wanted moment is not strictly inside."""
    widths = []
    for k, (name, want) in enumerate(zip(tilted.names, wanted.tolist(), strict=True)):
        low, high = tilted.extremes(torch.eye(len(wanted), dtype=torch.float64)[k], prompts)
        margin = 1e-12 * max(abs(low), abs(high))
        constant = high - low <= margin
        inside = abs(want - low) <= 10 * margin if constant else low + margin < want < high - margin
        if not inside:
            span = f"it is always {low:.6g}" if constant else f"its values range from {low:.6g} to {high:.6g}"
            raise ValueError(
                f"No finite weight gives feature {name!r} the moment {want:.6g}: over the points of the base {span}, and a "
                f"moment must lie strictly inside. No weights were computed; smooth the moment, drop the feature, or restrict "
                f"the base to the points that have it (`esscher.exact.products.intersect`)."
            )
        widths.append(0.0 if constant else high - low)
    return torch.tensor(widths, dtype=torch.float64)


def _relative_gap(wanted: Float[Tensor, "F"], mean: Float[Tensor, "F"], width: Float[Tensor, "F"]) -> Float[Tensor, "F"]:
    return torch.where(width > 0, (wanted - mean).abs() / width.clamp(min=1e-300), 0.0)


def _together_message(
    tilted: Family,
    weights: Float[Tensor, "F"],
    width: Float[Tensor, "F"],
    wanted: Float[Tensor, "F"],
    mean: Float[Tensor, "F"],
) -> str:
    gap = _relative_gap(wanted, mean, width)
    blame = gap if float(gap.max()) > 1e-7 else weights.abs() * width
    said = "; ".join(
        f"{tilted.names[k]!r} (wanted {float(wanted[k]):.6g}, reached {float(mean[k]):.6g} at weight {float(weights[k]):.3g})"
        for k in (blame >= 0.5 * blame.max()).nonzero()[:, 0].tolist()
    )
    return (
        f"No finite weights give these moments together, though each alone is possible: {said}. No weights are returned; "
        f"the moments contradict each other or lie on the edge of what is possible: smooth them, or drop one of the features."
    )
