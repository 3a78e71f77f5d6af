"""The level of the base's own logits as a twist: proper whatever it says, the best of all where it is the density ratio."""

import pytest
import torch
from marks import slow_except
from random_targets import PROMPTS, random_automaton, random_target
from small_networks import CONFIGS, lively

from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of
from esscher.core.target import Tilted
from esscher.energies.self_energy import SelfEnergy
from esscher.samplers.importance import Importance
from esscher.samplers.particles import Particles
from esscher.samplers.progress import ProgressCounter, with_progress
from esscher.samplers.sir import SIR
from esscher.samplers.twists import FittedParticles, HasTwist, PrefixEnergy, fitted_twist, linear_twist, logsumexp_twist
from esscher.testing import assert_draws_follow

SPACES = {"fixed length": Space(3, 4), "end symbol": Space(3, 4, eos=0)}


def lively_level(space: Space) -> Tilted:
    """A base whose levels differ by nats from prefix to prefix, tilted by them."""
    base = lively(CONFIGS["lstm, vectors"], space).double()
    with torch.no_grad():
        for weight in base.parameters():
            weight.mul_(3)
    return Tilted(base, SelfEnergy(base))


class Rated:
    """A base whose level before every token is the log density ratio of a better law to itself, as training has it at best."""

    def __init__(self, base, better):
        self.base, self.better, self.space = base, better, base.space
        self.begin, self.advance, self.select, self.log_probs = base.begin, base.advance, base.select, base.log_probs

    def logits(self, x: Sequences) -> torch.Tensor:
        log_prob, state = self.base.begin(x.prompts())
        every = [log_prob]
        for t in range(x.tokens.shape[1] - 1):
            log_prob, state = self.base.advance(state, x.tokens[:, t])
            every.append(log_prob)
        whole = Sequences(x.tokens, torch.zeros_like(x.start), x.stop)
        ratio = self.better.log_probs(whole) - self.base.log_probs(whole)
        return torch.stack(every, 1) + (ratio.cumsum(1) - ratio)[..., None]


@pytest.mark.parametrize("space", slow_except(["end symbol"], SPACES))
def test_particles_with_it_follow_the_target(space):
    """Against enumeration, with 64 events at a false-alarm rate of one in a million."""
    target, prompts = lively_level(SPACES[space]), prompts_of([PROMPTS[row % 4] for row in range(1000)])
    twist = logsumexp_twist(target)
    for sampler in (
        Particles(twist, threshold=0.9),
        Particles(twist, threshold=0.9, block=2, pruning_rounds=1),
        FittedParticles(block=1),
        SIR(64, Particles(twist)),
    ):
        assert_draws_follow(target, prompts, sampler(target, prompts, 8, rng=SeededRng(1)))


def test_a_twist_in_the_place_of_the_energy_is_caught():
    """What the level after the last token says is not the energy, which is the level before it."""
    target, prompts = lively_level(SPACES["fixed length"]), prompts_of([PROMPTS[row % 4] for row in range(1000)])
    wrong = Importance()(Tilted(target.base, lambda x: -SelfEnergy(target.base).twist(x)), prompts, 8, rng=SeededRng(1))
    with pytest.raises(AssertionError, match="standard errors apart"):
        assert_draws_follow(target, prompts, wrong)


def test_where_levels_are_density_ratios_it_makes_log_z_steadier():
    """600 runs of 32: log Z has variance 0.35, against 1.6 without a twist, each known to a tenth; the level before the last
    token of the prefix, which is what E(prefix) would be, comes a token late: 0.46. Z is 1 by construction."""
    space = Space(3, 10)
    base, better = random_automaton(space, seed=2), random_automaton(space, seed=11)
    rated = Rated(base, better)
    target, prompts = Tilted(rated, SelfEnergy(rated)), empty_prompts(600)
    late = PrefixEnergy(lambda x: target.energy(x), torch.ones(11).double(), torch.zeros(11).double())
    actual = {
        name: Particles(twist, threshold=0.7)(target, prompts, 32, rng=SeededRng(3)).log_z()
        for name, twist in (("level", logsumexp_twist(target)), ("late", late), ("none", None))
    }
    spread = {name: float(log_z.var()) for name, log_z in actual.items()}
    assert spread["level"] < 0.5 * spread["none"] and spread["level"] < spread["late"]
    mean = actual["level"].exp()
    assert abs(float(mean.mean()) - 1) < 5 * float(mean.std()) / 600**0.5


def test_regression_finds_that_it_can_be_believed():
    space = Space(3, 6)
    rated = Rated(random_automaton(space, seed=2), random_automaton(space, seed=4))
    target = Tilted(rated, SelfEnergy(rated))
    twist = fitted_twist(target, empty_prompts(1), block=2, draws=4000, rng=SeededRng(0))
    assert torch.allclose(twist.slope[[2, 4]], torch.ones(2).double(), atol=0.25)
    assert twist(prompts_of([[]])).shape == (1,)


def test_only_an_energy_with_a_twist_has_one():
    target = random_target(SPACES["fixed length"])
    with pytest.raises(ValueError, match=r"has no twist of its own.*linear_twist"):
        logsumexp_twist(target)
    drawn = lively_level(SPACES["fixed length"])
    assert not isinstance(target.energy, HasTwist) and isinstance(drawn.energy, HasTwist)
    x = prompts_of([[1], [2, 1]])
    assert torch.equal(linear_twist(drawn)(x), torch.zeros(2).double())


def test_watching_keeps_the_foresight():
    target, tally = lively_level(SPACES["fixed length"]), ProgressCounter(lambda text: None)
    seen = with_progress(target, tally)
    assert isinstance(seen.energy, HasTwist) and not isinstance(
        with_progress(random_target(Space(3, 4)), tally).energy, HasTwist
    )
    prompts = empty_prompts(5)
    sampler = FittedParticles(block=2, pilot=16)
    same = [sampler(item, prompts, 4, rng=SeededRng(0)) for item in (target, seen)]
    assert same[0].x.points() == same[1].x.points() and tally.weighed > 0
