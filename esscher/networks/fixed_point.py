"""Fixed points of maps of sequences: Anderson's mixing, position by position, and the gradient of a fixed point.

A position mixes its own iterates by its own coefficients, and stands still as soon as it and all that it can depend on change
by less than the tolerance. So where a map is causal, the point found at a position is a function of what the map is given up to
there, to the last bit: neither later positions nor other rows change its coefficients, or when it stops.

`implicit` gives a fixed point z = f(z) its gradient by the implicit function theorem: with g the gradient with respect to z,
that of whatever f depends on is its own at w, where w = g + (df/dz)^T w is solved in the same way, backwards in time.

Letters beside those of `esscher.space`: W width, K iterates that are mixed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

LEAST = 8  # times the precision of the numbers: no tolerance is taken to be lower
RIDGE = 1e-2  # of the size of what is mixed: what keeps coefficients small where iterates are alike, or others still move

Order = Literal["before", "after", "all"]
"""What a position can depend on in its row: those before it, those after it, or all of them."""


@dataclass(frozen=True)
class Solve:
    """How a fixed point is to be sought: until the map changes no position by more than `tolerance`, relative to its size, or
    `limit` times; of the last `mixed` iterates."""

    tolerance: float
    limit: int
    mixed: int = 6


@dataclass(frozen=True)
class Found:
    """How it went: how often the map was applied, and the largest relative change that it still makes."""

    iterations: int
    change: float
    settled: bool


def fixed_point(
    apply: Callable[[Tensor], Tensor],
    start: Float[Tensor, "B T W"],
    solve: Solve,
    order: Order,
    inside: Bool[Tensor, "B T"] | None = None,
) -> tuple[Float[Tensor, "B T W"], Found]:
    """The point where the map, which gives a new tensor, changes nothing; what is not `inside` need not settle."""
    at, past = start, list[tuple[Tensor, Tensor]]()  # iterates, and the changes the map makes to them
    tolerance, change, still = max(solve.tolerance, LEAST * torch.finfo(start.dtype).eps), start.new_zeros(()), None
    for number in range(1, solve.limit + 1):
        made = apply(at)
        step = made - at
        size = step.norm(dim=-1) / made.norm(dim=-1).clamp(min=torch.finfo(start.dtype).tiny)
        change = _dependent(size if inside is None else size * inside, order)
        still = change <= tolerance if still is None else still | (change <= tolerance)
        if bool(still.all()):
            return at, Found(number, float(change.max()) if change.numel() else 0.0, True)
        past = [*past, (at, step)][-solve.mixed :]
        at = torch.where(still[..., None], at, _mixed(past))
    return at, Found(solve.limit, float(change.max()), False)


def implicit(
    point: Float[Tensor, "B T W"], made: Float[Tensor, "B T W"], solve: Solve, order: Order, tell: Callable[[Found], None]
) -> Float[Tensor, "B T W"]:
    """`made`, which is the map of `point`, a leaf with gradient, as a fixed point: with the gradient of one.

    How the solve of the gradient goes is told when it is done.
    """
    found: Tensor = _Implicit.apply(made, point, (made, solve, order, tell))  # type: ignore[no-untyped-call]
    return found


class _Implicit(torch.autograd.Function):
    """The same values; the gradient passes through once as many times as the map would have been applied."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, point: Tensor, solving: Any) -> Tensor:
        ctx.solving, ctx.point = solving, point
        return made.view_as(made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        made, solve, order, tell = ctx.solving

        def adjoint(weight: Tensor) -> Tensor:
            (back,) = torch.autograd.grad(made, ctx.point, weight, retain_graph=True)
            return slope + back

        weight, found = fixed_point(adjoint, slope, solve, order)
        tell(found)
        return weight, None, None


def _dependent(change: Float[Tensor, "B T"], order: Order) -> Float[Tensor, "B T"]:
    """The largest change of all that a position can depend on."""
    if change.numel() == 0:
        return change
    if order == "all":
        return change.amax(1, keepdim=True).expand_as(change)
    if order == "after":
        return change.flip(1).cummax(1).values.flip(1)
    return change.cummax(1).values


def _mixed(past: list[tuple[Tensor, Tensor]]) -> Float[Tensor, "B T W"]:
    """The next iterate: the map of that mixture of iterates whose changes, mixed alike, are smallest (Anderson 1965)."""
    *earlier, (at, step) = past
    if not earlier:
        return at + step
    changes = torch.stack([other - step for _, other in earlier], -2)  # [B, T, K, W]
    moves = torch.stack([before + other - at - step for before, other in earlier], -2)
    products = changes @ changes.mT
    size = products.diagonal(dim1=-2, dim2=-1)
    least = torch.finfo(size.dtype).tiny ** 0.5
    # each is scaled to length 1, so that those of long ago do not drown the last ones
    scale = (size + least).rsqrt()
    alike = products * scale[..., None] * scale[..., None, :]
    alike = alike + torch.eye(len(earlier), dtype=size.dtype, device=size.device) * RIDGE
    share = torch.linalg.solve(alike, -(changes @ step[..., None])[..., 0] * scale) * scale
    return at + step + (share[..., None, :] @ moves)[..., 0, :]
