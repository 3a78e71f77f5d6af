"""The calibrated game on a finite space, where nothing is drawn: the theory of energy GANs as something to compute.

Both players are tables with a number for each of C points: the generator's is p = softmax(numbers), the discriminator's is the
cost. Data are one row, the probabilities (or several, whose mean counts). Gradients are exact, whatever the convex K.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from esscher.adversarial.points import Points
from esscher.objective import Loss
from esscher.randomness import Rng

Convex = Callable[[Tensor], Tensor]
"""K: probabilities [C] -> number."""


def constant(p: Float[Tensor, "C"]) -> Tensor:
    """K = 0."""
    return p.new_zeros(())


def minus_entropy(p: Float[Tensor, "C"]) -> Tensor:
    """K = sum p log p."""
    return torch.xlogy(p, p).sum()


def half_square(p: Float[Tensor, "C"]) -> Tensor:
    """K = |p|^2 / 2."""
    return p.square().sum() / 2


class Numbers(nn.Module):
    """A number for each point."""

    def __init__(self, values: Float[Tensor, "C"]):
        super().__init__()
        self.values = nn.Parameter(values)


@dataclass(frozen=True)
class FiniteGame:
    """A generator and a discriminator that are tables."""

    generator: Numbers
    discriminator: Numbers

    @property
    def prob(self) -> Float[Tensor, "C"]:
        """p_gen."""
        return self.generator.values.softmax(0)


@dataclass(frozen=True)
class FiniteEnergyGan:
    """E_gen[c] - E_data[c] + temperature * K(p_gen), raised by the cost and lowered by the generator."""

    convex: Convex = constant
    temperature: float = 1.0

    def __call__(self, target: FiniteGame, data: Points, *, rng: Rng, step: int = 0) -> Loss:
        cost, p = target.discriminator.values, target.prob
        gap = (data.values.mean(0) - p) @ cost
        losses = {"discriminator": gap, "generator": p @ cost + self.temperature * self.convex(p)}
        return Loss(losses, {"gap": float(gap.detach())}, len(data))


@dataclass(frozen=True)
class FiniteGan:
    """The game of Goodfellow et al. (2014) with K added, which does not make its cost an energy (B.7.3)."""

    convex: Convex = constant
    temperature: float = 1.0

    def __call__(self, target: FiniteGame, data: Points, *, rng: Rng, step: int = 0) -> Loss:
        cost, p, softplus = target.discriminator.values, target.prob, nn.functional.softplus
        told = data.values.mean(0) @ softplus(cost) + p @ softplus(-cost)
        return Loss({"discriminator": told, "generator": p @ softplus(cost) + self.temperature * self.convex(p)}, {}, len(data))
