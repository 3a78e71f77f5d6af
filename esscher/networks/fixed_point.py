"""Fixed points of maps of sequences: Anderson acceleration for each position, and the gradient of a fixed point.

Each position mixes its own iterates with its own coefficients, and stops as soon as it and everything it can depend on change
by less than the tolerance. So for a causal map the result at a position is a function of the inputs up to there, to the last
bit: neither later positions nor other rows change its coefficients or when it stops.

`implicit_gradient` gives a fixed point z = f(z) its gradient by the implicit function theorem: with g the gradient with respect
to z, the gradient of the parameters of f is that of f at w, where w = g + (df/dz)^T w is solved in the same way, backwards in
time.

Shape letters beside those of `esscher.core.space`: W width, K iterates that are mixed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from esscher.networks.incremental_decoding import Vectors

MIN_TOLERANCE_EPS = 8  # the smallest tolerance, in units of the machine epsilon
RIDGE = 1e-2  # keeps coefficients small where iterates are nearly equal, or other positions still change

Dependence = Literal["before", "after", "all"]
"""The positions of its row that a position can depend on."""


@dataclass(frozen=True)
class SolverConfig:
    """Iterate until the map changes no position by more than `tolerance`, relative to its norm, at most `limit` times; mix the
    last `anderson_history` iterates."""

    tolerance: float
    limit: int
    anderson_history: int = 6


@dataclass(frozen=True)
class SolverResult:
    """How often the map was applied, the largest relative change of the last application, and whether it is small enough."""

    iterations: int
    change: float
    converged: bool


def fixed_point(
    apply: Callable[[Tensor], Tensor],
    start: Float[Tensor, "B T W"],
    solver: SolverConfig,
    order: Dependence,
    inside: Bool[Tensor, "B T"] | None = None,
) -> tuple[Float[Tensor, "B T W"], SolverResult]:
    """The fixed point of a map, which returns a new tensor; positions that are not `inside` need not converge."""
    at, past = start, list[tuple[Tensor, Tensor]]()  # iterates, and the changes the map makes to them
    tolerance = max(solver.tolerance, MIN_TOLERANCE_EPS * torch.finfo(start.dtype).eps)
    change, done = start.new_zeros(()), None
    for number in range(1, solver.limit + 1):
        output = apply(at)
        step = output - at
        size = step.norm(dim=-1) / output.norm(dim=-1).clamp(min=torch.finfo(start.dtype).tiny)
        change = _max_dependent_change(size if inside is None else size * inside, order)
        done = change <= tolerance if done is None else done | (change <= tolerance)
        if bool(done.all()):
            return at, SolverResult(number, float(change.max()) if change.numel() else 0.0, True)
        past = [*past, (at, step)][-solver.anderson_history :]
        at = torch.where(done[..., None], at, _anderson_step(past))
    return at, SolverResult(solver.limit, float(change.max()), False)


def implicit_gradient(
    point: Vectors, output: Vectors, solver: SolverConfig, order: Dependence, report: Callable[[SolverResult], None]
) -> Vectors:
    """`output`, the map of the leaf `point`, with the gradient of the fixed point; `report` gets the result of its solve."""
    result: Tensor = _Implicit.apply(output, point, (output, solver, order, report))  # type: ignore[no-untyped-call]
    return result


class _Implicit(torch.autograd.Function):
    """The identity, whose gradient is the solution of the adjoint equation."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, point: Tensor, settings: Any) -> Tensor:
        ctx.settings, ctx.point = settings, point
        return output.view_as(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        output, solver, order, report = ctx.settings

        def adjoint(weight: Tensor) -> Tensor:
            (product,) = torch.autograd.grad(output, ctx.point, weight, retain_graph=True)
            return grad + product

        weight, result = fixed_point(adjoint, grad, solver, order)
        report(result)
        return weight, None, None


def _max_dependent_change(change: Float[Tensor, "B T"], order: Dependence) -> Float[Tensor, "B T"]:
    """The largest change of all positions that a position can depend on."""
    if change.numel() == 0:
        return change
    if order == "all":
        return change.amax(1, keepdim=True).expand_as(change)
    if order == "after":
        return change.flip(1).cummax(1).values.flip(1)
    return change.cummax(1).values


def _anderson_step(past: list[tuple[Tensor, Tensor]]) -> Float[Tensor, "B T W"]:
    """The next iterate (Anderson 1965): the map of the mixture of iterates whose mixed change is smallest."""
    *earlier, (at, step) = past
    if not earlier:
        return at + step
    changes = torch.stack([other - step for _, other in earlier], -2)  # [B, T, K, W]
    moves = torch.stack([before + other - at - step for before, other in earlier], -2)
    products = changes @ changes.mT
    size = products.diagonal(dim1=-2, dim2=-1)
    scale = (size + torch.finfo(size.dtype).tiny ** 0.5).rsqrt()  # to norm 1, so that early, large changes do not dominate
    gram = products * scale[..., None] * scale[..., None, :]
    gram = gram + torch.eye(len(earlier), dtype=size.dtype, device=size.device) * RIDGE
    coefficients = torch.linalg.solve(gram, -(changes @ step[..., None])[..., 0] * scale) * scale
    return at + step + (coefficients[..., None, :] @ moves)[..., 0, :]
