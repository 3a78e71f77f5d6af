"""Calibration of an adversarial cost: a convex functional K of the generator's density, by its gradient at generated points.

In max_c min_p  E_p[c] - E_data[c] + K(p)  the optimal cost is c*(x) = -dK/dp(x) + const at p = p_data (Dai et al. 2017, B.4):

    Constant              K = 0                  c* is constant and says nothing of the density
    NeighbourEntropy      K = -H(p)              c* = -log p_data + const: the energy of the data
    VariationalEntropy    K = -H(p), bounded     the same, as far as the bound is tight
    NeighbourSquare       K = |p|^2 / 2          c* = -p_data + const

The gradient of K by the generator's weights is E_z[dx/dw . d(dK/dp)/dx] at x = g(z), where the gradient of dK/dp by x is
estimated from the nearest neighbours in a batch. Letters: N points, D numbers of each, Z of its noise, k neighbours.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.papers.games.networks import Game

EPSILON = 1e-6
Form = Literal["ball", "variance", "unit"]


@runtime_checkable
class Calibration(Protocol):
    """A term of the generator's loss whose gradient is that of K; the inference net, if there is one, minimises it too."""

    def __call__(self, game: Game, z: Float[Tensor, "N Z"], x: Float[Tensor, "N *S"]) -> Tensor: ...


@dataclass(frozen=True)
class Constant:
    """K = 0: an energy GAN without calibration (EGAN-Const)."""

    def __call__(self, game: Game, z: Float[Tensor, "N Z"], x: Float[Tensor, "N *S"]) -> Tensor:
        return x.new_zeros(())


@dataclass(frozen=True)
class NeighbourEntropy:
    """Minus entropy, by the nearest neighbours in the batch (EGAN-Ent-NN); the forms are those of `log_density_gradient`."""

    neighbours: int = 20
    form: Form = "ball"

    def __call__(self, game: Game, z: Float[Tensor, "N Z"], x: Float[Tensor, "N *S"]) -> Tensor:
        return _along(x, log_density_gradient(x.detach().flatten(1), self.neighbours, self.form))


@dataclass(frozen=True)
class NeighbourSquare:
    """Half the squared norm of the density, by nearest neighbours: dK/dp is the density itself."""

    neighbours: int = 20

    def __call__(self, game: Game, z: Float[Tensor, "N Z"], x: Float[Tensor, "N *S"]) -> Tensor:
        flat = x.detach().flatten(1)
        density = neighbour_density(flat, self.neighbours)
        return _along(x, density[:, None] * log_density_gradient(flat, self.neighbours))


@dataclass(frozen=True)
class VariationalEntropy:
    """A bound of minus entropy, E[-log q(z | x)], by the inference net (EGAN-Ent-VI). `form` is "gaussian", the log-density of
    a Gaussian, or "released", with half of the logarithm of the deviation, as in the released code. `bound` is the largest
    deviation of q (Dai et al. 2017b, C.5.1; their code has none)."""

    form: Literal["gaussian", "released"] = "gaussian"
    bound: float | None = None

    def __call__(self, game: Game, z: Float[Tensor, "N Z"], x: Float[Tensor, "N *S"]) -> Tensor:
        if game.inference is None:
            raise ValueError("A variational entropy needs an inference net, and the game has none. Nothing was learnt; add it.")
        mean, log_deviation = game.inference(x).chunk(2, -1)
        if self.bound is not None:
            log_deviation = math.log(self.bound) - torch.nn.functional.softplus(math.log(self.bound) - log_deviation)
        share = 1.0 if self.form == "gaussian" else 0.5
        square = ((z - mean) / (EPSILON + log_deviation.exp())).square()
        return (share * log_deviation + 0.5 * square).sum(-1).mean()


def log_density_gradient(x: Float[Tensor, "N D"], neighbours: int, form: Form = "ball") -> Float[Tensor, "N D"]:
    """The gradient of log p at each point of a batch from p, by its nearest neighbours without itself.

    In a small ball of radius h the mean of the neighbours is h^2 / (D + 2) . gradient from the centre, and h^2 / (D + 2) is the
    variance of each coordinate. "ball" divides by their variance pooled over coordinates, which estimates the gradient;
    "variance" by that of each coordinate, x included (the released code for the plane), about a third too long there; "unit"
    has length 1 (the thesis, B.11, and the released code for images).
    """
    near = x[_nearest(x, neighbours)[1]]
    step = near.mean(1) - x
    if form == "ball":
        return step / near.var(1).mean(-1, keepdim=True).clamp(min=EPSILON)
    if form == "unit":
        return step / step.norm(dim=-1, keepdim=True).clamp(min=EPSILON)
    return step / torch.cat([near, x[:, None]], 1).var(1, correction=0).clamp(min=EPSILON)


def neighbour_density(x: Float[Tensor, "N D"], neighbours: int) -> Float[Tensor, "N"]:
    """p at each point of a batch from p: (k - 1) / (N - 1) over the volume of the ball that reaches the k-th neighbour."""
    count, size = x.shape
    radius = _nearest(x, neighbours)[0][:, -1]
    log_ball = size / 2 * math.log(math.pi) - math.lgamma(size / 2 + 1) + size * radius.clamp(min=EPSILON).log()
    return (math.log((neighbours - 1) / (count - 1)) - log_ball).exp()


def _nearest(x: Float[Tensor, "N D"], neighbours: int) -> tuple[Tensor, Tensor]:
    """Distances and indices of the nearest other points, the nearest first."""
    if not 1 < neighbours < len(x):
        raise ValueError(f"{neighbours} neighbours are wanted in a batch of {len(x)}; raise batch_size, or want 2 or more.")
    nearest = torch.cdist(x, x).fill_diagonal_(math.inf).topk(neighbours, largest=False)
    return nearest.values, nearest.indices


def _along(x: Float[Tensor, "N *S"], gradient: Float[Tensor, "N D"]) -> Tensor:
    """A scalar whose gradient by each point is the given one over N."""
    return (x.flatten(1) * gradient).sum(-1).mean()
