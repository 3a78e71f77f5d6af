"""Every sampler under the laws of samplers: this is their list."""

from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch
from laws.parts import calls_give, check_complete, one_of_each, part_of, parts
from marks import slow
from random_targets import PROMPTS, random_automaton, random_target
from random_twists import random_twist

from esscher.bases.truncated import Truncated
from esscher.core.draws import Draws
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, prompts_of
from esscher.core.target import Tilted
from esscher.exact.automaton import Automaton
from esscher.exact.enumeration import enumerate_points
from esscher.samplers import particles, proposals
from esscher.samplers.accept_reject import Metropolis, QuasiRejection, Rejection
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Exhaustive, Importance
from esscher.samplers.ladder import Ladder
from esscher.samplers.particles import Particles
from esscher.samplers.proposals import defensive
from esscher.samplers.scoring import log_prob
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


def other_base(target: Tilted) -> Automaton:
    """A proposal whose weights are about as even as those of the base, and quite different ones."""
    return random_automaton(target.space, seed=11)


def proposing(make):
    """A sampler with a proposal of its own, and a bound on the log weights if it needs one."""

    def case(target, constant=0.0):
        proposal = other_base(target)
        x = enumerate_points(target.space, prompts_of(PROMPTS))
        bound = float((target.log_score(x) - proposal.log_probs(x).sum(-1)).max()) - constant
        return make(proposal, bound + 0.5, constant), target

    return case


PROPOSING = {
    "samplers.Importance, proposal": proposing(lambda q, bound, c: Importance(q)),
    "samplers.Importance, defensive proposal": lambda target, c=0.0: (
        Importance(defensive(target.base, other_base(target), base_share=0.3)),
        target,
    ),
    "samplers.Importance, truncated proposal beside the base": lambda target, c=0.0: (
        Importance(defensive(target.base, Truncated(target.base, top_k=1), base_share=0.5)),
        target,
    ),
    "samplers.SIR, proposal": proposing(lambda q, bound, c: SIR(64, shared=False, proposal=q)),
    "samplers.AdaptiveSIR, proposal": proposing(lambda q, bound, c: AdaptiveSIR(48, min_candidates=8, proposal=q)),
    "samplers.Rejection, proposal": proposing(lambda q, bound, c: Rejection(bound, proposal=q)),
    "samplers.QuasiRejection, proposal": proposing(lambda q, bound, c: QuasiRejection(bound, proposal=q)),
    "samplers.Metropolis, proposal": proposing(lambda q, bound, c: Metropolis(steps=60, proposal=q)),
    "samplers.Particles, proposal": proposing(lambda q, bound, c: Particles(proposal=q)),
    "samplers.Particles, proposal and twist": proposing(
        lambda q, bound, c: Particles(twist(c), threshold=0.9, block=2, proposal=q)
    ),
    "samplers.Particles, proposal, halved": proposing(lambda q, bound, c: Particles(twist(c), pruning_rounds=2, proposal=q)),
    "samplers.FittedParticles, proposal": proposing(lambda q, bound, c: FittedParticles(block=1, proposal=q)),
    "samplers.ParticleSIR, proposal": proposing(lambda q, bound, c: ParticleSIR(512, block=1, proposal=q)),
    "training.ResumableByDraws, proposal": proposing(lambda q, bound, c: ResumableByDraws(Importance(q), rows=3000)),
}
SAMPLERS = {
    "samplers.Ancestral": of_the_base(lambda base: Ancestral()),
    "samplers.Importance": tilted(Importance()),
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
    "samplers.Particles, learnt twist": lambda target, constant=0.0: (
        Particles(random_twist(target.base, offset=-constant, scale=0.3), threshold=0.9),
        target,
    ),
    "samplers.FittedParticles": tilted(FittedParticles(block=1, pruning_rounds=1)),
    "samplers.FittedParticles, few allowed": tilted(FittedParticles(block=1, pilot=8)),
    "samplers.ParticleSIR": tilted(ParticleSIR(512, block=1)),
    "samplers.ParticleSIR, learnt twist": lambda target, constant=0.0: (
        ParticleSIR(512, block=1, twist=random_twist(target.base, offset=-constant, scale=0.3)),
        target,
    ),
    "samplers.Ladder": tilted(Ladder(4, moves=1, overlap=0.7, pilot=32)),
    "samplers.Ladder, guided": tilted(Ladder(4, moves=1, overlap=0.7, pilot=32, guide=guide, guided_share=0.6)),
    "samplers.Exhaustive": tilted(Exhaustive()),
    "training.ResumableByDraws": tilted(ResumableByDraws(Importance(), rows=3000)),
    "training.ResumableByPrompts": tilted(ResumableByPrompts(SIR(64, shared=False), rows=1500)),
    **PROPOSING,
}
APART = {
    "objectives.StoredNegatives": "draws repeat a table, and follow the base over tables: tests/objectives/test_negatives.py",
    "objectives.store_negatives": "gives a StoredNegatives",
    "objectives.concatenate_negatives": "gives a StoredNegatives",
    "objectives.load_negatives": "gives a StoredNegatives",
    "workflow.draw_negatives": "gives a StoredNegatives",
    "workflow.pool_for": "gives an AdaptiveSIR",
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


def test_every_sampler_with_a_proposal_is_listed():
    fields = {name for name, part in found().items() if "proposal" in getattr(part, "__dataclass_fields__", {})}
    assert fields <= {part_of(name) for name in PROPOSING}


FAST = ("samplers.Importance, proposal", "samplers.Metropolis, proposal", "samplers.Particles, proposal and twist")


@pytest.mark.parametrize("name", [name if name in FAST else slow(name) for name in PROPOSING if "truncated" not in name])
def test_weights_without_the_proposal_are_caught(monkeypatch, name):
    """The wrong version: weights a exp(-E) instead of a exp(-E) / q, up to the mean of log q, which bounds would notice."""
    right = proposals.propose

    def undivided(target, prompts, draws, proposal=None, *, rng):
        drawn = right(target, prompts, draws, proposal, rng=rng)
        log_q = (
            torch.zeros_like(drawn.log_weight) if proposal is None else log_prob(proposal, drawn.x).view_as(drawn.log_weight)
        )
        return replace(drawn, log_weight=drawn.log_weight + log_q)

    monkeypatch.setattr("esscher.samplers.importance.propose", undivided)
    extend = particles._ParticleCloud.extend

    def undivided_steps(self):
        extend(self)
        self.log_ratio = torch.zeros_like(self.log_ratio)

    monkeypatch.setattr(particles._ParticleCloud, "extend", undivided_steps)
    sampler, target = SAMPLERS[name](TARGETS["end symbol, some forbidden"])
    with pytest.raises(AssertionError, match="standard errors apart"):
        check_sampler(sampler, target, MANY, rng=SeededRng(1, name), shifted=lambda c: SAMPLERS[name](target, c)[0])


@pytest.mark.parametrize("name", [name for name in SAMPLERS if part_of(name) != "samplers.Exhaustive"])
def test_another_seed_gives_other_draws(name):
    sampler, target = SAMPLERS[name](TARGETS["fixed length"])
    item, other = (sampler(target, MANY.rows(slice(0, 8)), 4, rng=SeededRng(seed)).x.points() for seed in (1, 2))
    assert item != other
