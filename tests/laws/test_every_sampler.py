"""Every sampler under the laws of samplers: this is their list."""

from functools import cache

import pytest
import torch
from laws.parts import calls_give, check_complete, part_of, parts
from random_targets import PROMPTS, random_automaton, random_target

from esscher.core.draws import Draws
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, prompts_of
from esscher.core.target import Tilted
from esscher.samplers.accept_reject import Metropolis, QuasiRejection, Rejection
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Exhaustive, Importance
from esscher.samplers.particles import Particles
from esscher.samplers.sir import SIR, AdaptiveSIR
from esscher.samplers.twists import FittedParticles, ParticleSIR
from esscher.testing import check_sampler
from esscher.training.resumable import ResumableByDraws, ResumableByPrompts

MANY = prompts_of([PROMPTS[row % len(PROMPTS)] for row in range(1000)])


def twist(x: Sequences) -> torch.Tensor:
    return 0.3 * x.lengths.double() - 0.2 * (x.counted & (x.tokens == 1)).sum(-1)


def some_forbidden(space: Space) -> Tilted:
    """An energy of +inf forbids: no sampler may give such a point any weight."""
    target = random_target(space)

    def energy(x: Sequences) -> torch.Tensor:
        return torch.where((x.counted & (x.tokens == 2)).sum(-1) > 1, torch.inf, target.energy(x))

    return Tilted(target.base, energy)


TARGETS = {"fixed length": random_target(Space(3, 4)), "end symbol, some forbidden": some_forbidden(Space(3, 4, eos=0))}


def tilted(sampler):
    return lambda target: (sampler, target)


def of_the_base(make):
    """A sampler that knows no energy, made for a base."""
    return lambda target: (make(target.base), Tilted(target.base))


SAMPLERS = {
    "samplers.Ancestral": of_the_base(lambda base: Ancestral()),
    "samplers.Importance": tilted(Importance()),
    "samplers.Importance, other proposal": lambda target: (Importance(random_automaton(target.space, seed=3)), target),
    "samplers.SIR": tilted(SIR(64, shared=False)),
    "samplers.SIR, shared": tilted(SIR(256)),
    "samplers.SIR, of particles": tilted(SIR(512, Particles(twist, threshold=0.9))),
    "samplers.AdaptiveSIR": tilted(AdaptiveSIR(min_ess=24, min_candidates=8, shared=False)),
    "samplers.AdaptiveSIR, shared": tilted(AdaptiveSIR(min_ess=48, min_candidates=8)),
    "samplers.Rejection": tilted(Rejection(log_bound=5.0)),
    "samplers.QuasiRejection": tilted(QuasiRejection(log_bound=5.0)),
    "samplers.Metropolis": tilted(Metropolis(steps=60)),
    "samplers.Particles": tilted(Particles()),
    "samplers.Particles, twist": tilted(Particles(twist, threshold=0.9)),
    "samplers.Particles, blocks": tilted(Particles(twist, threshold=0.9, block=2)),
    "samplers.Particles, halved": tilted(Particles(twist, threshold=0.9, pruning_rounds=2)),
    "samplers.Particles, halved by blocks": tilted(Particles(twist, block=2, pruning_rounds=3)),
    "samplers.FittedParticles": tilted(FittedParticles(block=1, pruning_rounds=1)),
    "samplers.ParticleSIR": tilted(ParticleSIR(512, block=1)),
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


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_obeys_the_laws(name, target):
    """False-alarm rate 1e-6 for each."""
    sampler, target = SAMPLERS[name](target)
    assert isinstance(sampler, found()[part_of(name)])
    check_sampler(sampler, target, MANY, rng=SeededRng(1, name))


@pytest.mark.parametrize("name", [name for name in SAMPLERS if part_of(name) != "samplers.Exhaustive"])
def test_another_seed_gives_other_draws(name):
    sampler, target = SAMPLERS[name](TARGETS["fixed length"])
    item, other = (sampler(target, MANY.rows(slice(0, 8)), 4, rng=SeededRng(seed)).x.points() for seed in (1, 2))
    assert item != other
