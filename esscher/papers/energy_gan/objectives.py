"""Objectives of energy GANs, calibrated or not (Dai et al. 2017), of the usual GAN, and of both on a finite space.

    discriminator    minimises  E_data[c] - E_gen[c]
    generator        minimises  E_gen[c] + temperature * K(p_gen)
    inference net    minimises  the bound that stands for K, if it is a variational one

All are updated at once, from one batch. At the optimum c = -temperature * dK/dp + const, so with K = minus entropy the data's
density is exp(-c / temperature) up to its normaliser: `energy`. A cost is low on real points, also in the GAN, whose
discriminator says "real" with probability sigmoid(-c). On a finite space of C points generator and discriminator are tables;
data are rows of probabilities, whose mean counts; gradients are exact for any convex K.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from esscher.core.objective import Loss
from esscher.core.randomness import Rng, SeededRng
from esscher.papers.games.calibration import Calibration, Constant, VariationalEntropy
from esscher.papers.games.networks import Game, eval_in_batches
from esscher.papers.games.points import Points


@dataclass(frozen=True)
class Gate:
    """Which players are updated, by the gap, the mean cost of real minus that of generated points of a batch: above `high` only
    the discriminator and the inference net, below `low` only the generator."""

    low: float
    high: float

    def moving(self, gap: float) -> tuple[str, ...]:
        if gap > self.high:
            return ("discriminator", "inference")
        return ("generator",) if gap < self.low else ("generator", "discriminator", "inference")


@dataclass(frozen=True)
class EnergyGan:
    """An energy GAN with the calibration K.

    A `margin` bounds how far the cost of a generated point counts above that of real ones; `smoothness` is the weight of the
    mean square of all costs. The thesis has neither of them, and no gate. In `inference_only_steps` updates before each update
    of all players only the inference net is updated, so that its bound is nearly tight.
    """

    calibration: Calibration = field(default_factory=Constant)
    temperature: float = 1.0
    gate: Gate | None = None
    margin: float | None = None
    smoothness: float = 0.0
    inference_only_steps: int = 0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"The temperature is more than 0, not {self.temperature}; Constant() is the game without K.")
        variational = isinstance(self.calibration, VariationalEntropy)
        if self.inference_only_steps < 0 or (self.inference_only_steps and not variational):
            raise ValueError(
                f"inference_only_steps is 0 or more, and above 0 needs a VariationalEntropy; got {self.inference_only_steps} "
                f"with {type(self.calibration).__name__}."
            )

    def __call__(self, target: Game, data: Points, *, rng: SeededRng, step: int = 0) -> Loss:
        z = target.generator.draw_noise(len(data), rng=rng)
        generated = target.generator(z)
        if step % (self.inference_only_steps + 1) != self.inference_only_steps:
            term = self.calibration(target, z, generated.detach())
            return Loss({"inference": term}, {"calibration": float(term.detach())}, len(data))
        real, fake = target.discriminator(data.values), target.discriminator(generated)
        gap = real.mean() - fake.mean()
        contrast = gap if self.margin is None else (real.mean() - fake).clamp(min=-self.margin).mean()
        term = self.calibration(target, z, generated)
        losses = {
            "discriminator": contrast + self.smoothness * (real.square().mean() + fake.square().mean()),
            "generator": fake.mean() + self.temperature * term,
        }
        if target.inference is not None:
            losses["inference"] = term
        moving = losses if self.gate is None else self.gate.moving(float(gap.detach()))
        metrics = {"gap": float(gap.detach()), "calibration": float(term.detach())}
        return Loss({name: value for name, value in losses.items() if name in moving}, metrics, len(data))


@dataclass(frozen=True)
class Gan:
    """The game of Goodfellow et al. (2014) with the non-saturating loss of the generator. A `calibration` is added as to an
    energy GAN, which does not make this cost an energy (B.7.3)."""

    calibration: Calibration = field(default_factory=Constant)
    temperature: float = 1.0

    def __call__(self, target: Game, data: Points, *, rng: SeededRng, step: int = 0) -> Loss:
        z = target.generator.draw_noise(len(data), rng=rng)
        generated = target.generator(z)
        real, fake = target.discriminator(data.values), target.discriminator(generated)
        losses = {
            "discriminator": softplus(real).mean() + softplus(-fake).mean(),
            "generator": softplus(fake).mean() + self.temperature * self.calibration(target, z, generated),
        }
        return Loss(losses, {"gap": float((real.mean() - fake.mean()).detach())}, len(data))


def energy(game: Game, x: Tensor, temperature: float = 1.0) -> Tensor:
    """Minus the log-density that the cost represents, up to a constant."""
    return eval_in_batches(game.discriminator, x).double() / temperature


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


@dataclass(frozen=True)
class FiniteGame:
    """A generator and a discriminator that are tables."""

    logits: Float[Tensor, "C"]
    cost: Float[Tensor, "C"]

    @property
    def prob(self) -> Float[Tensor, "C"]:
        """p_gen."""
        return self.logits.softmax(0)


@dataclass(frozen=True)
class FiniteGan:
    """E_gen[c] - E_data[c] + temperature * K(p_gen), maximised by the cost and minimised by the generator. With `loss=softplus`
    it is the GAN of Goodfellow et al. (2014) with K added."""

    convex: Convex = constant
    temperature: float = 1.0
    loss: Callable[[Tensor], Tensor] = torch.positive  # of a cost: the identity

    def __call__(self, target: FiniteGame, data: Points, *, rng: Rng, step: int = 0) -> Loss:
        cost, p = target.cost, target.prob
        discriminator = data.values.mean(0) @ self.loss(cost) + p @ self.loss(-cost)
        generator = p @ self.loss(cost) + self.temperature * self.convex(p)
        return Loss({"discriminator": discriminator, "generator": generator}, count=len(data))
