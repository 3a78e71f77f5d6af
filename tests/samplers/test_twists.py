"""Twists made of the energy: what regression finds where the answer is known; pruning by them is cheaper and proper."""

import math

import pytest
import torch
from random_targets import taste

from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.exact.automaton import Automaton
from esscher.samplers.importance import Importance
from esscher.samplers.particles import Particles
from esscher.samplers.twists import FittedParticles, PrefixEnergy, fitted_twist, linear_twist

SPACE = Space(3, 12)
COIN = Automaton(torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log(), torch.zeros(1, 3, dtype=torch.long), SPACE)
ADDITIVE = Tilted(COIN, lambda x: -1.0 * (x.counted & (x.tokens == 2)).sum(-1).double())


def last_token(x: Sequences) -> torch.Tensor:
    return 2.0 * (x.tokens.gather(1, (x.stop - 1).clamp(min=0)[:, None])[:, 0] == 1).double()


def test_a_prefix_of_an_additive_energy_counts_once():
    """-E(x) = -E(prefix) + what is to come, independent of it: slope 1, and the twist is log E[exp(-E) | prefix]."""
    twist = fitted_twist(ADDITIVE, prompts_of([[], [1]]), block=4, draws=2000, rng=SeededRng(0))
    exact = torch.tensor([(12 - t) * math.log(0.8 + 0.2 * math.e) for t in (4, 8)])
    assert torch.allclose(twist.slope[[4, 8]], torch.ones(2).double(), atol=0.1)
    assert torch.allclose(twist.offset[[4, 8]], exact.double(), atol=0.25)  # the rest is a binomial law, not a normal one
    assert twist.slope[:4].tolist() == [0.0] * 4 and torch.equal(twist.slope[5:8], twist.slope[4:5].expand(3))
    level = 12 * math.log(0.8 + 0.2 * math.e)  # log Z
    assert torch.allclose(twist.offset[:4], torch.full((4,), level).double(), atol=0.25)


def test_a_prefix_that_tells_nothing_gets_no_slope():
    twist = fitted_twist(Tilted(COIN, last_token), empty_prompts(4), block=3, draws=100, rng=SeededRng(1))
    assert float(twist.slope.abs().max()) < 0.15


def test_on_trust_the_slope_grows_with_the_length():
    x = sequences([[1, 1, 0], [1, 0, 0]])
    actual = linear_twist(ADDITIVE, scale=2.0)(x)
    assert torch.allclose(actual, -2.0 * 3 / 12 * ADDITIVE.energy(x))


ENDS = Tilted(Automaton(COIN.log_emission, COIN.next_state, Space(3, 12, eos=0)), ADDITIVE.energy)  # half end at once


def plus(target: Tilted, constant: float) -> Tilted:
    return Tilted(target.base, lambda x: target.energy(x) + constant)


@pytest.mark.parametrize("draws", [200, 20])
def test_a_constant_of_the_energy_shifts_a_fitted_twist(draws):
    """Of 20 draws too few go on to fit a slope; the twist is then a constant, which is shifted, too."""
    x = prompts_of([[]] * 3)
    x = Sequences(torch.tensor([[1, 2, 2, 1, 1], [1, 1, 0, 0, 0], [2, 0, 0, 0, 0]]), x.start, torch.tensor([5, 2, 1]))
    first, second = (
        fitted_twist(item, empty_prompts(1), block=4, draws=draws, rng=SeededRng(7)) for item in (ENDS, plus(ENDS, 6))
    )
    assert bool(first.slope.any()) == (draws == 200)
    assert torch.allclose(second(x), first(x) - 6, atol=1e-9)


def test_a_linear_twist_begins_with_the_energy_of_nothing():
    """-E(empty) = -6 at length 0; after 3 of 12 tokens a quarter of the way to -E(prefix) = -4."""
    twist = linear_twist(plus(ENDS, 6))
    assert twist(sequences([[]])).tolist() == [-6.0] and twist(sequences([[2, 1, 2]])).tolist() == [-5.5]


def test_without_allowed_draws_there_is_no_twist():
    def seldom(x: Sequences) -> torch.Tensor:
        return torch.where((x.counted & (x.tokens == 2)).sum(-1) > 5, 0.0, torch.inf).double()

    assert fitted_twist(Tilted(ENDS.base, seldom), empty_prompts(1), block=2, draws=64, rng=SeededRng(0)) is None


def test_without_a_twist_draws_are_those_of_the_base():
    """Each has the weight of its own energy, whatever the threshold."""
    draws = Particles(threshold=1.1)(ENDS, empty_prompts(50), 4, rng=SeededRng(8))
    assert torch.allclose(draws.log_weight.view(-1), -ENDS.energy(draws.x), atol=1e-12)


def test_a_forbidden_prefix_is_not_forbidden():
    infinite = PrefixEnergy(lambda x: torch.full((len(x),), torch.inf), torch.ones(13).double(), torch.zeros(13).double())
    assert bool(infinite(sequences([[1]])).isfinite().all())


@pytest.mark.parametrize("pruning_rounds", [0, 1])
def test_a_good_twist_makes_log_z_steadier_at_equal_cost(pruning_rounds):
    """1,000 runs each: the variances of log Z are 0.09 to 0.10 against 0.19, and their ratio is known to about 0.05."""
    twist = fitted_twist(ADDITIVE, empty_prompts(1), block=3, draws=500, rng=SeededRng(2))
    cloud = Particles(twist, threshold=1.1, block=3, pruning_rounds=pruning_rounds)(
        ADDITIVE, empty_prompts(1000), 32, rng=SeededRng(3)
    )
    plain = Importance()(ADDITIVE, empty_prompts(1000), cloud.cost // 1000, rng=SeededRng(4))
    assert cloud.cost == 1000 * (40 if pruning_rounds else 32)
    assert float(cloud.log_z().var() / plain.log_z().var()) < 0.75


def test_the_pilot_is_paid_for():
    target = Tilted(COIN, taste(SPACE))
    draws = FittedParticles(block=4, pilot=64)(target, empty_prompts(3), 8, rng=SeededRng(5))
    assert draws.cost == 3 * 8 + 3 * 21
    draws = FittedParticles(block=4, pilot=64)(target, empty_prompts(30), 8, rng=SeededRng(5))
    assert draws.cost == 30 * 8 + 8 * 8  # a pilot takes at most so many prompts that each has 8 draws


def test_given_up_prefixes_cost_their_part():
    """12 tokens: 4 prefixes of 3 tokens halved to 2, these halved at 6 to 1: 12 + 3 + 3 + 6 of 12 tokens."""
    draws = Particles(linear_twist(ADDITIVE), block=3, pruning_rounds=2)(ADDITIVE, empty_prompts(10), 1, rng=SeededRng(6))
    assert draws.cost == 10 + 10 * 12 // 12
    late = Particles(pruning_rounds=2)(ADDITIVE, empty_prompts(10), 1, rng=SeededRng(6))
    assert late.cost == 40  # without a twist all four are finished


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="block is at least 1, not 0"):
        Particles(block=0)
