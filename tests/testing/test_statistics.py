"""The assertions themselves: they cry wolf as rarely as they say, and they catch samplers that are subtly wrong."""

from dataclasses import replace

import pytest
import torch
from marks import slow
from random_targets import random_target

from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.samplers.ancestral import draw
from esscher.samplers.importance import Importance
from esscher.samplers.particles import Particles
from esscher.samplers.sir import SIR
from esscher.testing import assert_covers, assert_draws_follow, check_sampler

SPACE = Space(3, 3, eos=0)
TARGET = random_target(SPACE)
PROMPTS = empty_prompts(1000)


def follows(draws, target=TARGET, **settings) -> bool:
    try:
        assert_draws_follow(target, empty_prompts(len(draws.log_weight)), draws, **settings)
    except AssertionError:
        return False
    return True


# calibration


def knows_nothing(x):
    return torch.zeros(len(x))


@pytest.mark.parametrize(
    "sampler", [slow(Importance()), Particles(knows_nothing, threshold=0.9)], ids=["independent", "dependent"]
)
def test_false_alarms_are_as_rare_as_stated(sampler):
    """Nominal 10 % over 200 repetitions: Bonferroni over related events gives fewer, never more than 36 (1 in 10,000)."""
    alarms = 0
    draws = sampler(TARGET, empty_prompts(200 * 300), 4, rng=SeededRng(1))
    for first in range(0, 200 * 300, 300):
        rows = slice(first, first + 300)
        part = replace(
            draws,
            x=draws.x.rows(slice(4 * first, 4 * first + 1200)),
            log_weight=draws.log_weight[rows],
            log_base=draws.log_base[rows],
        )
        alarms += not follows(part, false_alarm=0.1, events=16)
    assert 1 <= alarms <= 36


def test_coverage_assertion_is_calibrated_and_has_power():
    """At a nominal 10 % a true 95 % interval fails at most 1 time in 10; 88 % coverage of 500 is caught each time."""
    hits = torch.rand(2000, 500, generator=torch.Generator().manual_seed(2))

    def failures(rate: float, repetitions: int, false_alarm: float) -> int:
        failed = 0
        for row in (hits[:repetitions] < rate).sum(-1).tolist():
            try:
                assert_covers(row, 500, 0.95, false_alarm=false_alarm)
            except AssertionError:
                failed += 1
        return failed

    assert 100 <= failures(0.95, 2000, 0.1) <= 260
    assert failures(0.88, 100, 1e-3) >= 95
    assert failures(0.995, 100, 1e-3) >= 95  # too wide is wrong as well


# power: wrong samplers


def ignores_the_energy(rng):
    x, log_base = draw(TARGET.base, PROMPTS, 8, rng=rng)
    draws = Importance()(TARGET, PROMPTS, 8, rng=rng)
    return replace(draws, x=x, log_base=log_base, log_weight=torch.zeros_like(log_base), estimates_z=False)


def forgets_the_last_token(rng):
    """The energy is paid for every token but the last."""
    draws = Importance()(TARGET, PROMPTS, 8, rng=rng)
    shorter = replace(draws.x, stop=torch.maximum(draws.x.stop - 1, draws.x.start))
    return replace(draws, log_weight=TARGET.log_weight(shorter).view(draws.log_weight.shape))


def drops_the_weight_of_one_token(rng):
    """Token 2 costs nothing."""
    draws = Importance()(TARGET, PROMPTS, 8, rng=rng)
    energy = float(TARGET.energy(sequences([[2]]))[0])
    times = (draws.x.counted & (draws.x.tokens == 2)).sum(-1).view(draws.log_weight.shape)
    return replace(draws, log_weight=draws.log_weight + energy * times)


def forgets_the_mean_weight(rng):
    """Self-normalised weights that claim to estimate Z."""
    draws = Importance()(TARGET, PROMPTS, 8, rng=rng)
    return replace(draws, log_weight=draws.log_weight - draws.log_z()[:, None])


@pytest.mark.parametrize(
    "wrong", [ignores_the_energy, forgets_the_last_token, drops_the_weight_of_one_token, forgets_the_mean_weight]
)
def test_wrong_samplers_are_caught(wrong):
    assert not follows(wrong(SeededRng(3, wrong.__name__)))


def test_the_right_sampler_passes():
    assert follows(Importance()(TARGET, PROMPTS, 8, rng=SeededRng(4)))


def test_temperature_error_of_five_percent_is_caught_ten_of_ten():
    """Importance draws of a * exp(-1.05 E) taken for those of a * exp(-E), over 4000 prompts."""
    prompts = empty_prompts(4000)
    hot = Tilted(TARGET.base, lambda x: 1.05 * TARGET.energy(x))
    assert sum(not follows(Importance()(hot, prompts, 16, rng=SeededRng(seed, "hot"))) for seed in range(10)) == 10
    assert all(follows(Importance()(TARGET, prompts, 16, rng=SeededRng(seed, "right"))) for seed in range(3))


def test_a_small_pool_fails_and_a_large_one_passes():
    assert not follows(SIR(2, shared=False)(TARGET, PROMPTS, 8, rng=SeededRng(5)))
    assert follows(SIR(64, shared=False)(TARGET, PROMPTS, 8, rng=SeededRng(5)))


def test_a_draw_outside_the_space_is_named():
    draws = Importance()(TARGET, PROMPTS, 1, rng=SeededRng(6))
    beyond = replace(draws.x, tokens=torch.full_like(draws.x.tokens, 0), stop=torch.full_like(draws.x.stop, 3))
    with pytest.raises(AssertionError, match="not a point of the space"):
        assert_draws_follow(TARGET, PROMPTS, replace(draws, x=beyond))


# the other laws of a sampler


def drops_the_last_draw(draws, rng):
    return replace(draws, x=draws.x.rows(slice(0, -1)))


def forgets_its_prompt(draws, rng):
    return replace(draws, x=replace(draws.x, tokens=torch.where(draws.x.counted, draws.x.tokens, 0)))


def scores_with_the_energy(draws, rng):
    return replace(draws, log_base=draws.log_base + draws.log_weight)


def weighs_by_its_own_dice(draws, rng):
    return replace(draws, log_weight=draws.log_weight + torch.rand(()))


def is_too_warm(draws, rng):
    return replace(draws, log_weight=0.7 * draws.log_weight)


WRONG_SAMPLERS = {
    drops_the_last_draw: "a sampler gives as many draws for each prompt: 2399 points and weights of 600 x 4 for 600 prompts",
    forgets_its_prompt: "a draw must begin with its prompt; 1200 of 2400 do not",
    scores_with_the_energy: r"log_base must be log a\(x\)",
    weighs_by_its_own_dice: "draws must be the same for the same seed",
    is_too_warm: "standard errors apart",
}


@pytest.mark.parametrize("wrong", WRONG_SAMPLERS, ids=lambda wrong: wrong.__name__)
def test_wrong_samplers_break_the_law_they_should(wrong):
    prompts = prompts_of([[], [2, 1]] * 300)

    def sampler(target, prompts, draws, *, rng):
        return wrong(Importance()(target, prompts, draws, rng=rng), rng)

    assert check_sampler(Importance(), TARGET, prompts, 4, rng=SeededRng(0)) < 5.7
    with pytest.raises(AssertionError, match=WRONG_SAMPLERS[wrong]):
        check_sampler(sampler, TARGET, prompts, 4, rng=SeededRng(0))


def test_a_setting_on_the_scale_of_the_energy_is_shifted_with_it():
    """A twist that does not move with the energy makes the draws depend on a constant; the weights are proper with any."""
    prompts, stays = prompts_of([[], [2, 1]] * 300), Particles(knows_nothing, threshold=0.9)
    with pytest.raises(AssertionError, match=r"a constant of the energy must not change the draws, and -3\.0 did"):
        check_sampler(stays, TARGET, prompts, 4, rng=SeededRng(0))
    check_sampler(
        *(stays, TARGET, prompts, 4),
        rng=SeededRng(0),
        shifted=lambda constant: Particles(lambda x: knows_nothing(x) - constant, threshold=0.9),
    )

    def forgets_constants(target, prompts, draws, *, rng):
        """Weights of the energy less that of a fixed sequence, which is right for one constant only."""
        fixed = float(target.energy(sequences([[1, 1, 1]])) - TARGET.energy(sequences([[1, 1, 1]])))
        drawn = Importance()(target, prompts, draws, rng=rng)
        return replace(drawn, log_weight=drawn.log_weight + fixed)

    with pytest.raises(AssertionError, match=r"log weights must be lower by the constant -3.0 of the energy; off by 3"):
        check_sampler(forgets_constants, TARGET, prompts, 4, rng=SeededRng(0))
