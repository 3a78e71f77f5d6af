"""Twists for `Particles`: guesses of the final log weight of an unfinished prefix, derived from the energy itself.

The optimal twist is log E[exp(-E(x))] over the base's completions of the prefix. `PrefixEnergy` is linear in the energy of the
prefix, with a slope and an offset for each length. An energy with a twist of its own (`HasTwist`, such as
`esscher.energies.self_energy`) replaces -E(prefix) by it. A twist never biases a sampler, but a poor one gives more variance
than independent draws, which the effective sample size does not show (`docs/guide/sampling.md` has measurements). A constant of
the energy shifts these twists as it shifts -E, so the draws do not depend on it.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from esscher.core.config import check_at_least
from esscher.core.device import on_device_of
from esscher.core.draws import Draws, checked_sampler
from esscher.core.randomness import Rng
from esscher.core.space import Sequences
from esscher.core.target import Base, Energy, Tilted
from esscher.energies.twist import LearntTwist
from esscher.samplers.importance import Importance
from esscher.samplers.particles import Particles
from esscher.samplers.scoring import score_in_batches
from esscher.samplers.sir import SIR, CandidateSelection

MIN_DRAWS = 8  # unfinished draws needed to fit the slope of a length; and pilot draws for each prompt
TWIST_CLAMP = 1e6  # an energy of +inf forbids a sequence, never a prefix


@runtime_checkable
class HasTwist(Protocol):
    """An energy with a twist of its own."""

    def __call__(self, x: Sequences) -> Tensor: ...

    def twist(self, x: Sequences) -> Float[Tensor, "B"]:
        """A guess of -E of the finished sequence, for each prefix."""
        ...


@dataclass(frozen=True)
class PrefixEnergy:
    """offset[t] - slope[t] E(prefix) for a prefix of t tokens, in float64 on the CPU; the energy's own twist, if it has one,
    replaces -E(prefix)."""

    energy: Energy
    slope: Float[Tensor, "L"]
    offset: Float[Tensor, "L"] | None  # None is -(1 - slope[t]) E(empty prefix)

    def __call__(self, x: Sequences) -> Float[Tensor, "B"]:
        length = x.lengths.cpu()
        slope = self.slope.cpu()[length]
        guess = slope * _prefix_log_weight(self.energy, x).cpu().double()
        if self.offset is None:
            return guess + (1 - slope) * _prefix_log_weight(self.energy, x.prompts()).cpu().double()
        return guess + self.offset.cpu()[length]


@checked_sampler
@dataclass(frozen=True)
class FittedParticles:
    """Particles with a twist fitted on pilot draws of the base, which count in the cost and are dropped."""

    block: int = 8
    """Tokens between two weighings."""
    pruning_rounds: int = 0
    """Start with 2^this times as many prefixes, and keep half of them after each block."""
    pilot: int = 256
    """Draws of the base, over all prompts, to fit the twist on."""
    proposal: Base | None = None
    """The base that draws the particles; None is the base of the target."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "pilot", note=" Nothing was drawn.")
        Particles(block=self.block, pruning_rounds=self.pruning_rounds)  # refuses impossible settings

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        pilot_prompts = prompts.rows(slice(0, max(1, self.pilot // MIN_DRAWS)))
        each = max(MIN_DRAWS, self.pilot // len(pilot_prompts))
        twist = fitted_twist(target, pilot_prompts, block=self.block, draws=each, rng=rng)
        particles = Particles(twist, block=self.block, pruning_rounds=self.pruning_rounds, proposal=self.proposal)
        drawn = particles(target, prompts, draws, rng=rng)
        return replace(drawn, cost=drawn.cost + each * len(pilot_prompts))


@checked_sampler
@dataclass(frozen=True)
class ParticleSIR:
    """SIR among the particles of one sequential Monte Carlo run for each prompt, with a learnt twist, or else a fitted one."""

    num_candidates: int = 64
    """Particles of each prompt."""
    block: int = 8
    """Tokens between two weighings."""
    pruning_rounds: int = 0
    """Start with 2^this times as many prefixes, and keep half of them after each block."""
    proposal: Base | None = None
    """The base that draws the particles; None is the base of the target."""
    twist: LearntTwist | None = None
    """The learnt twist of the target; None fits one on pilot draws. The verb `sample` takes that of the energy's folder."""

    def __post_init__(self) -> None:
        self._sir()  # refuses impossible settings

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        return self._sir()(target, prompts, draws, rng=rng)

    def choose(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> list[CandidateSelection]:
        """The draws together with the particles they are chosen from."""
        return self._sir().choose(target, prompts, draws, rng=rng)

    def _sir(self) -> SIR:
        if self.twist is None:
            return SIR(self.num_candidates, FittedParticles(self.block, self.pruning_rounds, proposal=self.proposal))
        learnt = Particles(self.twist, block=self.block, pruning_rounds=self.pruning_rounds, proposal=self.proposal)
        return SIR(self.num_candidates, learnt)


def linear_twist(target: Tilted, *, scale: float = 1.0) -> PrefixEnergy:
    """-E(prefix) scaled by s = scale * t / max_length for a prefix of t tokens; with an end symbol, where prefixes are compared
    with finished sequences, -E of the empty prefix scaled by 1 - s is added."""
    length = torch.arange(target.space.max_length + 1, dtype=torch.float64)
    offset = torch.zeros_like(length) if target.space.eos is None else None
    return PrefixEnergy(target.energy, scale * length / target.space.max_length, offset)


def logsumexp_twist(target: Tilted) -> PrefixEnergy:
    """The energy's own twist, unscaled: with `SelfEnergy` the logsumexp of the base's logits after the prefix. Constants that
    depend on the length cancel where all sequences have one length; otherwise `fitted_twist` fits them."""
    if not isinstance(target.energy, HasTwist):
        raise ValueError(
            f"The energy {type(target.energy).__name__} has no twist of its own. Nothing was made; use linear_twist or "
            f"fitted_twist, or the energy SelfEnergy(base)."
        )
    slope = torch.ones(target.space.max_length + 1, dtype=torch.float64)
    return PrefixEnergy(target.energy, slope, torch.zeros_like(slope))


@torch.no_grad()
def fitted_twist(target: Tilted, prompts: Sequences, *, block: int, draws: int = 64, rng: Rng) -> PrefixEnergy | None:
    """Slopes and offsets at every `block` tokens, fitted on `draws` draws of the base after each of these prompts.

    The slope is that of the regression of -E(x) on -E(prefix), or on the energy's own twist, within the unfinished draws of a
    prompt, shrunk by its sampling variance; the offset makes the twist right on average if the residuals are normal. Lengths
    between blocks, and those that too few draws have, use the values of the previous block; before the first block the slope is
    0. None, with which `Particles` does not resample, if fewer than 8 of all draws are allowed by the energy.
    """
    drawn = Importance()(target, prompts, draws, rng=rng)
    length, allowed = target.space.max_length, drawn.log_weight.isfinite()
    if int(allowed.sum()) < MIN_DRAWS:
        return None
    level = _regression(torch.zeros_like(drawn.log_weight), drawn.log_weight, allowed)
    slope, offset = (value.repeat(length + 1) for value in level)
    for t in range(block, length, block):
        goes_on = (drawn.x.lengths > t).cpu().view(drawn.log_weight.shape) & allowed
        if int(goes_on.sum()) < MIN_DRAWS:
            break
        rows = goes_on.view(-1).nonzero()[:, 0]
        unfinished = on_device_of(drawn.x.rows(rows.to(drawn.x.tokens.device)), target.base, target.energy)
        prefixes = Sequences(unfinished.tokens, unfinished.start, unfinished.start + t)
        guess = torch.zeros_like(drawn.log_weight)
        guess[goes_on] = score_in_batches(partial(_prefix_log_weight, target.energy), prefixes)
        slope[t:], offset[t:] = _regression(guess, drawn.log_weight, goes_on)
    return PrefixEnergy(target.energy, slope, offset)


def _prefix_log_weight(energy: Energy, x: Sequences) -> Float[Tensor, "B"]:
    """The energy's own twist of a prefix, or else -E(prefix)."""
    guess = energy.twist(x) if isinstance(energy, HasTwist) else -energy(x)
    return guess.clamp(-TWIST_CLAMP, TWIST_CLAMP)


def _regression(
    x: Float[Tensor, "P N"], y: Float[Tensor, "P N"], counted: Bool[Tensor, "P N"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The common slope of y on x within rows, and the offset of log E[exp y] given x over all rows."""
    weight = counted.double()
    count = weight.sum(-1, keepdim=True).clamp(min=1)

    def centred(values: Tensor) -> Tensor:
        filled = torch.where(counted, values, 0.0)
        return weight * (filled - filled.sum(-1, keepdim=True) / count)

    dx, dy = centred(x), centred(y)
    spread, dof = dx.square().sum(), weight.sum() - (weight.sum(-1) > 0).sum() - 1
    if float(spread) < 1e-12 or float(dof) < 1:
        slope, residual = torch.zeros_like(spread), dy.square().sum() / dof.clamp(min=1)
    else:
        slope = (dx * dy).sum() / spread
        residual = (dy - slope * dx).square().sum() / dof
        variance = residual / spread  # of the slope
        slope = slope * (1 - variance / slope.square().clamp(min=1e-300)).clamp(min=0)
    mean = torch.where(counted, y - slope * x, 0.0).sum() / weight.sum()
    return slope, mean + residual / 2
