"""Every sampler under the laws of samplers: this is their list."""

from functools import cache
from itertools import product

import pytest
import torch
from laws.parts import calls_give, check_complete, one_of_each, part_of, parts
from marks import slow
from random_targets import PROMPTS, random_automaton, random_target

from esscher.core.draws import Draws
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, prompts_of
from esscher.core.target import Tilted
from esscher.samplers.accept_reject import Metropolis, QuasiRejection, Rejection
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Exhaustive, Importance
from esscher.samplers.ladder import Ladder
from esscher.samplers.particles import Particles
from esscher.samplers.sir import SIR, AdaptiveSIR
from esscher.samplers.twists import FittedParticles, ParticleSIR, linear_twist
from esscher.testing import check_sampler
from esscher.training.resumable import ResumableByDraws, ResumableByPrompts


def guide(x: Sequences) -> torch.Tensor:
    """The share of the point that is token 1: a guide for ladders."""
    return (x.counted & (x.tokens == 1)).sum(-1).double() / x.lengths.clamp(min=1)


MANY = prompts_of([PROMPTS[row % len(PROMPTS)] for row in range(1000)])


def twist(constant: float):
    """A twist for E + constant."""
    return lambda x: 0.3 * x.lengths.double() - 0.2 * (x.counted & (x.tokens == 1)).sum(-1) - constant


def some_forbidden(space: Space) -> Tilted:
    """An energy of +inf forbids: no sampler may give such a point any weight."""
    target = random_target(space)

    def energy(x: Sequences) -> torch.Tensor:
        return torch.where((x.counted & (x.tokens == 2)).sum(-1) > 1, torch.inf, target.energy(x))

    return Tilted(target.base, energy)


TARGETS = {"fixed length": random_target(Space(3, 4)), "end symbol, some forbidden": some_forbidden(Space(3, 4, eos=0))}


def plus(target: Tilted, constant: float) -> Tilted:
    return Tilted(target.base, lambda x: target.energy(x) + constant)


# A case gives the sampler and its target. Called with a constant as well, it gives the sampler for E + constant: settings on
# the scale of the energy are a bound (`log_bound`) and a twist, and no others.


def tilted(sampler):
    return lambda target, constant=0.0: (sampler, target)


def scaled(make):
    """A sampler with a setting on the scale of the energy."""
    return lambda target, constant=0.0: (make(constant), target)


def of_the_base(make):
    """A sampler that knows no energy, made for a base."""
    return lambda target, constant=0.0: (make(target.base), Tilted(target.base))


SAMPLERS = {
    "samplers.Ancestral": of_the_base(lambda base: Ancestral()),
    "samplers.Importance": tilted(Importance()),
    "samplers.Importance, other proposal": lambda target, constant=0.0: (
        Importance(random_automaton(target.space, seed=3)),
        target,
    ),
    "samplers.SIR": tilted(SIR(64, shared=False)),
    "samplers.SIR, shared": tilted(SIR(256)),
    "samplers.SIR, of particles": scaled(lambda constant: SIR(512, Particles(twist(constant), threshold=0.9))),
    "samplers.AdaptiveSIR": tilted(AdaptiveSIR(min_ess=24, min_candidates=8, shared=False)),
    "samplers.AdaptiveSIR, shared": tilted(AdaptiveSIR(min_ess=48, min_candidates=8)),
    "samplers.Rejection": scaled(lambda constant: Rejection(log_bound=5.0 - constant)),
    "samplers.QuasiRejection": scaled(lambda constant: QuasiRejection(log_bound=5.0 - constant)),
    "samplers.Metropolis": tilted(Metropolis(steps=60)),
    "samplers.Particles": tilted(Particles()),
    "samplers.Particles, halved at the end": tilted(Particles(pruning_rounds=2)),
    "samplers.Particles, linear twist": lambda target, constant=0.0: (
        Particles(linear_twist(plus(target, constant)), threshold=0.9),
        target,
    ),
    "samplers.Particles, twist": scaled(lambda constant: Particles(twist(constant), threshold=0.9)),
    "samplers.Particles, blocks": scaled(lambda constant: Particles(twist(constant), threshold=0.9, block=2)),
    "samplers.Particles, halved": scaled(lambda constant: Particles(twist(constant), threshold=0.9, pruning_rounds=2)),
    "samplers.Particles, halved by blocks": scaled(lambda constant: Particles(twist(constant), block=2, pruning_rounds=3)),
    "samplers.FittedParticles": tilted(FittedParticles(block=1, pruning_rounds=1)),
    "samplers.FittedParticles, few allowed": tilted(FittedParticles(block=1, pilot=8)),
    "samplers.ParticleSIR": tilted(ParticleSIR(512, block=1)),
    "samplers.Ladder": tilted(Ladder(4, moves=1, overlap=0.7, pilot=32)),
    "samplers.Ladder, guided": tilted(Ladder(4, moves=1, overlap=0.7, pilot=32, guide=guide, guided_share=0.6)),
    "samplers.Exhaustive": tilted(Exhaustive()),
    "training.ResumableByDraws": tilted(ResumableByDraws(Importance(), rows=3000)),
    "training.ResumableByPrompts": tilted(ResumableByPrompts(SIR(64, shared=False), rows=1500)),
}
APART = {
    "objectives.StoredNegatives": "draws repeat a table, and follow the base over tables: tests/objectives/test_negatives.py",
    "objectives.store_negatives": "gives a StoredNegatives",
    "objectives.concatenate_negatives": "gives a StoredNegatives",
    "objectives.load_negatives": "gives a StoredNegatives",
    "workflow.draw_negatives": "gives a StoredNegatives",
}


@cache
def found() -> dict[str, object]:
    """What the package has; a function, because other tests that use the list need not import all of it."""
    return parts(calls_give(Draws))


def test_the_list_is_complete():
    check_complete(found(), SAMPLERS, APART, __file__)


FIXED = [name for name in one_of_each(SAMPLERS) if not name.endswith("SIR")]  # pools take long


@pytest.mark.parametrize(
    ("name", "target"),
    [
        slow(name, target) if target == "fixed length" and name not in FIXED else (name, target)
        for name, target in product(SAMPLERS, TARGETS)
    ],
)
def test_every_sampler_obeys_the_laws(name, target):
    """False-alarm rate 1e-6 for each."""
    sampler, target = SAMPLERS[name](TARGETS[target])
    assert isinstance(sampler, found()[part_of(name)])
    check_sampler(sampler, target, MANY, rng=SeededRng(1, name), shifted=lambda c: SAMPLERS[name](target, c)[0])


@pytest.mark.parametrize("name", [name for name in SAMPLERS if part_of(name) != "samplers.Exhaustive"])
def test_another_seed_gives_other_draws(name):
    sampler, target = SAMPLERS[name](TARGETS["fixed length"])
    item, other = (sampler(target, MANY.rows(slice(0, 8)), 4, rng=SeededRng(seed)).x.points() for seed in (1, 2))
    assert item != other
