"""Every sampler against exact enumeration, and the check itself against wrong samplers."""

import pytest
import torch
from languages import PROMPTS, random_automaton, random_target, taste

from esscher.randomness import Seeded
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.exhaustive import Exhaustive
from esscher.samplers.importance import Importance
from esscher.samplers.metropolis import Metropolis
from esscher.samplers.particles import Particles
from esscher.samplers.pool import Pool
from esscher.samplers.rejection import QuasiRejection, Rejection
from esscher.space import Sequences, Space, prompts_of
from esscher.target import Tilted
from esscher.testing import assert_draws_follow, every_outcome

FIXED, ENDING = Space(3, 4), Space(3, 4, eos=0)
BOUND = 12.0


def prefix_twist(x: Sequences) -> torch.Tensor:
    return 0.3 * x.lengths.double() - 0.2 * (x.counted & (x.tokens == 1)).sum(-1)


SAMPLERS = {
    "importance": Importance(),
    "importance, other proposal": Importance(proposal=random_automaton(FIXED, seed=3)),
    "pool": Pool(64),
    "rejection": Rejection(log_bound=5.0),
    "quasi-rejection": QuasiRejection(log_bound=5.0),
    "metropolis": Metropolis(steps=60),
    "particles": Particles(),
    "particles, twist": Particles(prefix_twist, threshold=0.9),
    "particles, blocks": Particles(prefix_twist, threshold=0.9, block=2),
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


def test_estimates_of_z_are_unbiased_over_every_outcome():
    """No statistics: the mean of e^w f over all outcomes of the dice is Z E_p[f]."""
    space = Space(2, 3, eos=0)
    target, prompts = random_target(space), prompts_of([[1]])
    exact = Exhaustive()(target, prompts, 0, rng=Seeded(0)).log_z().exp()
    for sampler in (Importance(), Particles(threshold=0.9), Particles(prefix_twist, threshold=1.1)):
        runs = list(every_outcome(lambda rng, s=sampler: s(target, prompts, 2, rng=rng).log_z().exp()))
        assert sum(p for p, _ in runs) == pytest.approx(1)
        assert sum(p * float(z) for p, z in runs) == pytest.approx(float(exact))


if __name__ == "__main__":
    taste(FIXED)
