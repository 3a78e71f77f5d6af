"""Every sampler against exact enumeration, and the check itself against wrong samplers."""

import pytest
import torch
from languages import PROMPTS, random_automaton, random_target

from esscher.randomness import Seeded
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.exhaustive import Exhaustive
from esscher.samplers.importance import Importance
from esscher.samplers.metropolis import Metropolis
from esscher.samplers.particles import Particles
from esscher.samplers.pool import AdaptivePool, Pool
from esscher.samplers.rejection import QuasiRejection, Rejection
from esscher.samplers.twists import FittedParticles
from esscher.space import Sequences, Space, prompts_of
from esscher.target import Tilted
from esscher.testing import assert_draws_follow

FIXED, ENDING = Space(3, 4), Space(3, 4, eos=0)


def prefix_twist(x: Sequences) -> torch.Tensor:
    return 0.3 * x.lengths.double() - 0.2 * (x.counted & (x.tokens == 1)).sum(-1)


SAMPLERS = {
    "importance": Importance(),
    "importance, other proposal": Importance(proposal=random_automaton(FIXED, seed=3)),
    "pool": Pool(64),
    "pool, shared": Pool(256, shared=True),
    "pool, of particles": Pool(64, Particles(prefix_twist, threshold=0.9), shared=True),
    "adaptive pool": AdaptivePool(effective=24, smallest=8),
    "adaptive pool, shared": AdaptivePool(effective=48, smallest=8, shared=True),
    "rejection": Rejection(log_bound=5.0),
    "quasi-rejection": QuasiRejection(log_bound=5.0),
    "metropolis": Metropolis(steps=60),
    "particles": Particles(),
    "particles, twist": Particles(prefix_twist, threshold=0.9),
    "particles, blocks": Particles(prefix_twist, threshold=0.9, block=2),
    "particles, halved": Particles(prefix_twist, threshold=0.9, halvings=2),
    "particles, halved by blocks": Particles(prefix_twist, block=2, halvings=3),
    "particles, fitted": FittedParticles(block=1, halvings=1),
    "exhaustive": Exhaustive(),
}


def many_prompts(count: int) -> Sequences:
    return prompts_of([PROMPTS[row % len(PROMPTS)] for row in range(count)])


def for_space(sampler, space: Space):
    if isinstance(sampler, Importance) and sampler.proposal is not None:
        return Importance(proposal=random_automaton(space, seed=3))
    return sampler


@pytest.mark.parametrize("space", [FIXED, ENDING], ids=["fixed length", "end symbol"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_sampler_follows_its_target(space, name):
    sampler = for_space(SAMPLERS[name], space)
    target, prompts = random_target(space), many_prompts(1000)
    draws = sampler(target, prompts, 8, rng=Seeded(1, name))
    assert_draws_follow(target, prompts, draws)
    assert torch.allclose(draws.log_base.view(-1).double(), target.base.log_probs(draws.x).sum(-1))


@pytest.mark.parametrize("space", [FIXED, ENDING], ids=["fixed length", "end symbol"])
def test_ancestral_follows_the_base(space):
    target, prompts = Tilted(random_automaton(space)), many_prompts(1000)
    assert_draws_follow(target, prompts, Ancestral()(target, prompts, 8, rng=Seeded(2)))
    with pytest.raises(ValueError, match="knows no energy"):
        Ancestral()(random_target(space), prompts, 1, rng=Seeded(2))


@pytest.mark.parametrize("space", [FIXED, ENDING], ids=["fixed length", "end symbol"])
def test_a_small_pool_is_biased_and_a_large_one_is_not(space):
    target, prompts = random_target(space), many_prompts(4000)
    with pytest.raises(AssertionError, match="standard errors apart"):
        assert_draws_follow(target, prompts, Pool(2)(target, prompts, 1, rng=Seeded(3)))
    assert_draws_follow(target, prompts, Pool(64)(target, prompts, 1, rng=Seeded(3)))


def test_short_chains_and_low_bounds_are_caught():
    """Metropolis that did not move long enough, and quasi-rejection with a bound far below the weights."""
    target, prompts = random_target(ENDING), many_prompts(4000)
    for biased in (Metropolis(steps=1), QuasiRejection(log_bound=-1.0)):
        with pytest.raises(AssertionError, match="standard errors apart"):
            assert_draws_follow(target, prompts, biased(target, prompts, 4, rng=Seeded(4)))


def test_the_same_seed_gives_the_same_draws():
    target, prompts = random_target(ENDING), many_prompts(8)
    for sampler in (
        Importance(),
        Particles(prefix_twist),
        Rejection(5.0),
        Metropolis(5),
        Pool(4),
        AdaptivePool(3, 4, 32),
        FittedParticles(2, 1),
    ):
        one, two, other = (sampler(target, prompts, 4, rng=Seeded(seed)).x for seed in (1, 1, 2))
        assert one.points() == two.points() != other.points()


def test_quasi_rejection_hands_back_what_it_proposed():
    target, prompts = random_target(ENDING), many_prompts(3)
    draws = QuasiRejection(log_bound=0.0)(target, prompts, 5, rng=Seeded(1))
    assert draws.info["proposed_log_weight"].shape == draws.info["proposed_prompt"].shape == (draws.cost,)
    assert set(draws.info["proposed_prompt"].tolist()) == {0, 1, 2}


def forbid_everything(x: Sequences) -> torch.Tensor:
    return torch.full((len(x),), torch.inf, dtype=torch.float64)


def test_hard_constraints_are_kept():
    """An energy of +inf forbids: no sampler may return such a point with weight."""

    def no_twos(x: Sequences) -> torch.Tensor:
        return torch.where((x.counted & (x.tokens == 2)).any(-1), torch.inf, 0.0).double()

    target, prompts = Tilted(random_automaton(ENDING), no_twos), many_prompts(1000)
    for sampler in (
        Importance(),
        Pool(64),
        AdaptivePool(24, shared=True),
        Rejection(0.0),
        Metropolis(60),
        Particles(halvings=1),
    ):
        assert_draws_follow(target, prompts, sampler(target, prompts, 8, rng=Seeded(5)))


@pytest.mark.parametrize(
    ("sampler", "energy", "message"),
    [
        (
            Rejection(-9.0),
            None,
            r"Rejection\(log_bound=-9\) is not a bound: a draw has log weight .* were dropped; raise log_bound",
        ),
        (Rejection(0.0, patience=3), forbid_everything, r"40 of 40 draws are still missing .* lower log_bound"),
        (Pool(4), forbid_everything, r"pool of 4 candidates has no weight at all.*raise `pool`"),
        (AdaptivePool(2, 4, 8), forbid_everything, r"pool of 8 candidates has no weight at all.*raise `pool`"),
        (Metropolis(4), forbid_everything, r"chain of 4 steps never left.*raise `steps`"),
        (Particles(lambda x: torch.full((len(x),), torch.inf)), None, "twist must be finite"),
        (Importance(), lambda x: torch.full((len(x),), torch.nan), r"energy of 40 of 40 sequences is nan, first in row 0"),
        (Importance(), lambda x: torch.full((len(x),), -torch.inf), "energy of 40 of 40 sequences is -inf"),
    ],
)
def test_errors_say_what_to_do(sampler, energy, message):
    target = random_target(ENDING) if energy is None else Tilted(random_automaton(ENDING), energy)
    with pytest.raises((ValueError, RuntimeError), match=message):
        sampler(target, many_prompts(10), 4, rng=Seeded(0))


def test_a_base_that_diverged_is_named():
    broken = random_automaton(ENDING)
    broken.emit[:] = torch.nan
    with pytest.raises(ValueError, match="log-probabilities are not finite"):
        Importance()(Tilted(broken), many_prompts(4), 2, rng=Seeded(0))


def test_an_energy_of_another_vocabulary_is_refused():
    def energy(x: Sequences) -> torch.Tensor:
        return torch.zeros(len(x))

    energy.vocab_size = 7
    with pytest.raises(ValueError, match=r"energy reads 7 tokens and the base speaks 3.*different tokenizers"):
        Tilted(random_automaton(ENDING), energy)
