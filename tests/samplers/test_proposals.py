"""Proposals: which are refused, what the draws state of them, and that all samplers share one place."""

import math

import pytest
import torch
from random_targets import random_automaton, random_target

from esscher.bases.truncated import Truncated
from esscher.bases.wrappers import FirstTokenRestricted
from esscher.core.draws import Draws
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts
from esscher.core.target import Tilted, unwrapped
from esscher.exact.automaton import Automaton
from esscher.samplers.accept_reject import Metropolis, QuasiRejection, Rejection
from esscher.samplers.importance import Importance
from esscher.samplers.particles import Particles
from esscher.samplers.progress import ProgressCounter, with_progress
from esscher.samplers.proposals import AssumeCovering, defensive
from esscher.samplers.sir import SIR, AdaptiveSIR
from esscher.samplers.twists import FittedParticles, ParticleSIR
from esscher.training.resumable import read_draws, write_draws

SPACE = Space(3, 4, eos=0)
TARGET = random_target(SPACE)
ONE = empty_prompts(1)
OTHER = random_automaton(SPACE, seed=11)
EVERY = {
    "importance": Importance,
    "sir": lambda q: SIR(8, proposal=q),
    "adaptive-sir": lambda q: AdaptiveSIR(4, proposal=q),
    "rejection": lambda q: Rejection(50.0, proposal=q),
    "quasi-rejection": lambda q: QuasiRejection(0.0, proposal=q),
    "metropolis": lambda q: Metropolis(3, proposal=q),
    "particles": lambda q: Particles(proposal=q),
    "fitted particles": lambda q: FittedParticles(2, proposal=q),
    "sir of particles": lambda q: ParticleSIR(8, 2, proposal=q),
}


def restricted(base):
    return FirstTokenRestricted(base, torch.tensor([True, True, False]))


def with_a_zero() -> Automaton:
    """An automaton that never emits token 2."""
    return Automaton(torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64).log(), torch.zeros(1, 3, dtype=torch.long), SPACE)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("proposal", [Truncated(OTHER, top_k=2), Truncated(OTHER, top_p=0.9), restricted(OTHER), with_a_zero()])
def test_a_proposal_that_cannot_reach_all_points_is_refused_by_every_sampler(name, proposal):
    with pytest.raises(ValueError, match=r"gives some tokens probability 0.*Nothing was drawn.*AssumeCovering"):
        EVERY[name](proposal)(TARGET, ONE, 2, rng=SeededRng(0))


@pytest.mark.parametrize("name", EVERY)
def test_a_proposal_over_another_space_is_refused_by_every_sampler(name):
    with pytest.raises(ValueError, match=r"The proposal draws from Space.*Nothing was drawn"):
        EVERY[name](random_automaton(Space(3, 5, eos=0)))(TARGET, ONE, 2, rng=SeededRng(0))


def test_a_target_that_drops_the_same_takes_a_truncated_proposal():
    base = TARGET.base
    target = Tilted(Truncated(base, top_k=2), TARGET.energy)
    for proposal in (Truncated(base, top_k=2), Truncated(base, top_k=2, temperature=2.0)):
        assert bool(Importance(proposal)(target, ONE, 50, rng=SeededRng(0)).log_weight.isfinite().all())
    nucleus = Tilted(Truncated(base, top_p=0.8), TARGET.energy)
    for other, proposal in (
        (target, Truncated(base, top_k=1)),  # fewer tokens
        (target, Truncated(OTHER, top_k=2)),  # other tokens
        (nucleus, Truncated(base, top_p=0.8, temperature=2.0)),  # a temperature changes the nucleus
    ):
        with pytest.raises(ValueError, match="does not drop the same"):
            Importance(proposal)(other, ONE, 2, rng=SeededRng(0))


def test_who_vouches_for_a_proposal_may_use_it():
    """The energy forbids what the proposal cannot draw, so the weights are proper."""
    target = Tilted(TARGET.base, lambda x: torch.where((x.counted & (x.tokens == 2)).any(-1), torch.inf, TARGET.energy(x)))
    proposal = AssumeCovering(with_a_zero())
    inside, plain = (Importance(q)(target, ONE, 20_000, rng=SeededRng(1)).log_z() for q in (proposal, None))
    assert float(inside) == pytest.approx(float(plain), abs=0.05)


def test_a_tempered_proposal_needs_no_word():
    tempered = Truncated(TARGET.base, temperature=1.5)
    assert not tempered.drops_tokens
    assert Importance(tempered)(TARGET, ONE, 5, rng=SeededRng(0)).max_log_ratio == math.inf


def test_a_mixture_with_the_base_reaches_all_and_bounds_the_ratio(tmp_path):
    mixture = defensive(TARGET.base, Truncated(OTHER, top_k=1), base_share=0.2)
    drawn = Importance(mixture)(TARGET, ONE, 2000, rng=SeededRng(0))
    ratio = drawn.log_weight - TARGET.log_weight(drawn.x)[None]  # log a - log q
    assert drawn.max_log_ratio == pytest.approx(math.log(5)) and float(ratio.max()) <= drawn.max_log_ratio + 1e-9
    assert float(ratio.max()) > drawn.max_log_ratio - 0.1  # the bound is nearly reached
    write_draws(tmp_path / "draws", drawn)
    assert read_draws(tmp_path / "draws").max_log_ratio == drawn.max_log_ratio
    assert Draws.cat([drawn, Importance()(TARGET, ONE, 10, rng=SeededRng(0))], 1).max_log_ratio == drawn.max_log_ratio
    with pytest.raises(ValueError, match="above 0 and below 1, not 1"):
        defensive(TARGET.base, OTHER, base_share=1.0)


def test_wrappers_that_only_watch_do_not_hide_a_base():
    watched = with_progress(TARGET, ProgressCounter(lambda text: None))
    assert unwrapped(watched.base) is TARGET.base and unwrapped(restricted(OTHER)) is not OTHER
    assert Importance(defensive(TARGET.base, OTHER))(watched, ONE, 5, rng=SeededRng(0)).max_log_ratio < math.inf


def test_candidates_of_another_sampler_have_their_own_proposal():
    with pytest.raises(ValueError, match="give the proposal to the sampler of the candidates"):
        SIR(8, candidates=Importance(), proposal=OTHER)


def test_without_a_proposal_nothing_changes():
    """The base as its own proposal gives the same draws and weights as none."""
    for make in (Importance, lambda q: Particles(lambda x: 0.1 * x.lengths.double(), threshold=0.9, proposal=q)):
        one, other = (make(q)(TARGET, ONE, 40, rng=SeededRng(3)) for q in (None, TARGET.base))
        assert one.x.points() == other.x.points() and torch.allclose(one.log_weight, other.log_weight, atol=1e-12)
