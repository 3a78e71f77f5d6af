"""Guesses of what an unfinished prefix will come to, made of the energy itself: twists for `Particles`.

The best twist is log E[exp(-E(x))] over the base's ways to finish the prefix. An energy that reads whole sequences can also
read a prefix of one, though it was never taught to; how much that tells differs from energy to energy and grows with the
length. `PrefixEnergy` is linear in it, with a slope and an offset for each length: `linear_twist` takes them on trust,
`fitted_twist` learns them by regression from draws of the base, and finds slopes near 0 where a prefix tells nothing.
`FittedParticles` does that first and then draws. An energy that foresees (`esscher.energies.own_level`) has a guess of its own
for a prefix, which takes the place of -E(prefix): `level_twist` believes it, the others weigh it.

A twist never biases a sampler, but a poor one makes it less steady than independent draws, which the effective sample size does
not show. Energies that were taught on whole sequences only made poor ones where it was measured (`docs/guide/sampling.md`); an
energy that adds up over tokens makes a good one.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from esscher.draws import Draws
from esscher.randomness import Rng
from esscher.samplers.importance import Importance
from esscher.samplers.particles import Particles
from esscher.samplers.scores import by_rows
from esscher.space import Sequences
from esscher.target import Energy, Tilted

FEWEST = 8  # unfinished draws that a length needs for a slope of its own; and draws of each prompt of a pilot
FARTHEST = 1e6  # an energy of +inf forbids a point, never a prefix


@runtime_checkable
class Foresees(Protocol):
    """An energy with a guess of its own what a prefix will come to."""

    def __call__(self, x: Sequences) -> Tensor: ...

    def after(self, x: Sequences) -> Float[Tensor, "B"]:
        """The guess of -E of the finished points."""
        ...


@dataclass(frozen=True)
class PrefixEnergy:
    """offset[t] - slope[t] E(prefix) for a prefix of t tokens; in place of -E(prefix) what the energy foresees, if it does."""

    energy: Energy
    slope: Float[Tensor, "L"]
    offset: Float[Tensor, "L"]

    def __call__(self, x: Sequences) -> Float[Tensor, "B"]:
        length = x.lengths.cpu()
        return self.offset[length] + self.slope[length] * _guess(self.energy, x).double().cpu()


@dataclass(frozen=True)
class FittedParticles:
    """Particles with a twist fitted on about `pilot` draws of the base, which are counted in the cost and dropped."""

    block: int
    halvings: int = 0
    pilot: int = 256

    def __post_init__(self) -> None:
        Particles(block=self.block, halvings=self.halvings)  # refuses impossible settings

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        some = prompts.rows(slice(0, max(1, self.pilot // FEWEST)))
        each = max(FEWEST, self.pilot // len(some))
        twist = fitted_twist(target, some, block=self.block, draws=each, rng=rng)
        found = Particles(twist, block=self.block, halvings=self.halvings)(target, prompts, draws, rng=rng)
        return replace(found, cost=found.cost + each * len(some))


def linear_twist(target: Tilted, *, scale: float = 1.0) -> PrefixEnergy:
    """As if -E grew with the length: a prefix of t tokens counts by scale * t / max_length."""
    length = torch.arange(target.space.max_length + 1, dtype=torch.float64)
    return PrefixEnergy(target.energy, scale * length / target.space.max_length, torch.zeros_like(length))


def level_twist(target: Tilted) -> PrefixEnergy:
    """What the energy foresees, on trust: with `OwnLevel` the level of the base's logits after the prefix.

    Only differences between prefixes that are weighed together matter, so constants that depend on the length do no harm where
    all points have one length; where they end, `fitted_twist` finds them.
    """
    if not isinstance(target.energy, Foresees):
        raise ValueError(
            f"The energy {type(target.energy).__name__} foresees nothing of its own. Nothing was made; take linear_twist or "
            f"fitted_twist, or the energy OwnLevel(base)."
        )
    one = torch.ones(target.space.max_length + 1, dtype=torch.float64)
    return PrefixEnergy(target.energy, one, torch.zeros_like(one))


@torch.no_grad()
def fitted_twist(target: Tilted, prompts: Sequences, *, block: int, draws: int = 64, rng: Rng) -> PrefixEnergy:
    """Slopes and offsets at every `block` tokens, from `draws` points of the base after each of these prompts.

    The slope is that of -E(x) on -E(prefix), or on what the energy foresees, among the draws of one prompt that go on, shrunk
    by what chance alone would give; the offset makes the twist right on average, as a normal law of the rest has it. Lengths
    between blocks, and those that too few draws reach, have those of the last block before.
    """
    drawn = Importance()(target, prompts, draws, rng=rng)
    length = target.space.max_length
    slope, offset = torch.zeros(length + 1, dtype=torch.float64), torch.zeros(length + 1, dtype=torch.float64)
    for t in range(block, length, block):
        goes_on = (drawn.x.lengths > t).cpu().view(drawn.log_weight.shape) & drawn.log_weight.isfinite()
        if int(goes_on.sum()) < FEWEST:
            break
        rows = goes_on.view(-1).nonzero()[:, 0]
        some = drawn.x.rows(rows.to(drawn.x.tokens.device))
        prefix = torch.zeros_like(drawn.log_weight)
        prefix[goes_on] = by_rows(partial(_guess, target.energy), Sequences(some.tokens, some.start, some.start + t))
        slope[t:], offset[t:] = _regression(prefix, drawn.log_weight, goes_on)
    return PrefixEnergy(target.energy, slope, offset)


def _guess(energy: Energy, x: Sequences) -> Float[Tensor, "B"]:
    """What the energy says of a prefix."""
    guess = energy.after(x) if isinstance(energy, Foresees) else -energy(x)
    return guess.clamp(-FARTHEST, FARTHEST)


def _regression(
    x: Float[Tensor, "P N"], y: Float[Tensor, "P N"], counted: Bool[Tensor, "P N"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The common slope of y on x within rows, and the offset of log E[exp y] given x over all rows."""
    weight = counted.double()
    many = weight.sum(-1, keepdim=True).clamp(min=1)

    def centred(values: Tensor) -> Tensor:
        filled = torch.where(counted, values, 0.0)
        return weight * (filled - filled.sum(-1, keepdim=True) / many)

    dx, dy = centred(x), centred(y)
    spread, free = dx.square().sum(), weight.sum() - (weight.sum(-1) > 0).sum() - 1
    if float(spread) < 1e-12 or float(free) < 1:
        plain, rest = torch.zeros_like(spread), dy.square().sum() / free.clamp(min=1)
    else:
        plain = (dx * dy).sum() / spread
        rest = (dy - plain * dx).square().sum() / free
        chance = rest / spread  # the variance of the slope
        plain = plain * (1 - chance / plain.square().clamp(min=1e-300)).clamp(min=0)
    gap = torch.where(counted, y - plain * x, 0.0).sum() / weight.sum()
    return plain, gap + rest / 2
