"""Objectives of two or three players: the energy GAN, calibrated or not (Dai et al. 2017), and the GAN it is compared with.

    discriminator    minimises  E_data[c] - E_gen[c]
    generator        minimises  E_gen[c] + temperature * K(p_gen)
    inference net    minimises  the bound that stands for K, if it is a variational one

Both move at once, from one batch. At the optimum c = -temperature * dK/dp + const, so that with minus entropy for K the data's
density is exp(-c / temperature) up to its normaliser: `energy`. A cost is low on real points, also in the GAN, whose
discriminator says "real" with probability sigmoid(-c). Left out: a limit on how often one player may move alone.
"""

from dataclasses import dataclass, field

from torch import Tensor
from torch.nn.functional import softplus

from esscher.adversarial.calibration import Calibration, Constant, VariationalEntropy
from esscher.adversarial.networks import Game, in_pieces
from esscher.adversarial.points import Points
from esscher.objective import Loss
from esscher.randomness import Continuous


@dataclass(frozen=True)
class Gate:
    """Who moves: the gap is the mean cost of real points less that of generated ones.

    Above `high` the discriminator is behind and moves alone, with the inference net; below `low` the generator does. The gap
    is that of the batch itself, so that a run needs no memory of the last one.
    """

    low: float
    high: float

    def moving(self, gap: float) -> tuple[str, ...]:
        if gap > self.high:
            return ("discriminator", "inference")
        return ("generator",) if gap < self.low else ("generator", "discriminator", "inference")


@dataclass(frozen=True)
class EnergyGan:
    """An energy GAN with the calibration K.

    With a `margin` no generated point counts for more than that above the real ones; `smoothness` weighs the mean square of
    all costs. The thesis has neither these nor a gate. The inference net moves `alone` in so many updates before each one in
    which the others do, so that its bound is nearly tight.
    """

    calibration: Calibration = field(default_factory=Constant)
    temperature: float = 1.0
    gate: Gate | None = None
    margin: float | None = None
    smoothness: float = 0.0
    alone: int = 0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"The temperature is more than 0, not {self.temperature}; Constant() is the game without K.")
        if self.alone < 0 or (self.alone and not isinstance(self.calibration, VariationalEntropy)):
            raise ValueError(f"An inference net that moves alone = {self.alone} times wants a VariationalEntropy.")

    def __call__(self, target: Game, data: Points, *, rng: Continuous, step: int = 0) -> Loss:
        z = target.generator.draw_noise(len(data), rng=rng)
        made = target.generator(z)
        if step % (self.alone + 1) != self.alone:
            term = self.calibration(target, z, made.detach())
            return Loss({"inference": term}, {"calibration": float(term.detach())}, len(data))
        real, fake = target.discriminator(data.values), target.discriminator(made)
        gap = real.mean() - fake.mean()
        term = self.calibration(target, z, made)
        losses = {
            "discriminator": self._margin(real, fake) + self.smoothness * (real.square().mean() + fake.square().mean()),
            "generator": fake.mean() + self.temperature * term,
        }
        if target.inference is not None:
            losses["inference"] = term
        moving = losses if self.gate is None else self.gate.moving(float(gap.detach()))
        metrics = {"gap": float(gap.detach()), "calibration": float(term.detach())}
        return Loss({name: value for name, value in losses.items() if name in moving}, metrics, len(data))

    def _margin(self, real: Tensor, fake: Tensor) -> Tensor:
        if self.margin is None:
            return real.mean() - fake.mean()
        return (real.mean() - fake).clamp(min=-self.margin).mean()


@dataclass(frozen=True)
class Gan:
    """The game of Goodfellow et al. (2014); the generator makes its points look real, not just less generated.

    With a `calibration` the same K is added as to an energy GAN, which does not make this cost an energy (B.7.3).
    """

    calibration: Calibration = field(default_factory=Constant)
    temperature: float = 1.0

    def __call__(self, target: Game, data: Points, *, rng: Continuous, step: int = 0) -> Loss:
        z = target.generator.draw_noise(len(data), rng=rng)
        made = target.generator(z)
        real, fake = target.discriminator(data.values), target.discriminator(made)
        losses = {
            "discriminator": softplus(real).mean() + softplus(-fake).mean(),
            "generator": softplus(fake).mean() + self.temperature * self.calibration(target, z, made),
        }
        return Loss(losses, {"gap": float((real.mean() - fake.mean()).detach())}, len(data))


def energy(game: Game, x: Tensor, temperature: float = 1.0) -> Tensor:
    """-log of the density that the cost stands for, up to a constant."""
    return in_pieces(game.discriminator, x).double() / temperature
