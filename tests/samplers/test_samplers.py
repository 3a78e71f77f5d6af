"""Samplers that are biased for a reason, what they hand back, and their errors."""

import pytest
import torch
from random_targets import PROMPTS, random_automaton, random_target

from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, prompts_of
from esscher.core.target import Tilted
from esscher.samplers.accept_reject import Metropolis, QuasiRejection, Rejection
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Importance
from esscher.samplers.particles import Particles
from esscher.samplers.sir import SIR, AdaptiveSIR
from esscher.testing import assert_draws_follow

FIXED, ENDING = Space(3, 4), Space(3, 4, eos=0)


def many_prompts(count: int) -> Sequences:
    return prompts_of([PROMPTS[row % len(PROMPTS)] for row in range(count)])


def test_ancestral_knows_no_energy():
    with pytest.raises(ValueError, match="cannot use an energy"):
        Ancestral()(random_target(ENDING), many_prompts(1), 1, rng=SeededRng(2))


@pytest.mark.parametrize("space", [FIXED, ENDING], ids=["fixed length", "end symbol"])
def test_a_small_pool_is_biased_and_a_large_one_is_not(space):
    target, prompts = random_target(space), many_prompts(4000)
    with pytest.raises(AssertionError, match="standard errors apart"):
        assert_draws_follow(target, prompts, SIR(2, shared=False)(target, prompts, 1, rng=SeededRng(3)))
    assert_draws_follow(target, prompts, SIR(64, shared=False)(target, prompts, 1, rng=SeededRng(3)))


def test_short_chains_and_low_bounds_are_caught():
    """Metropolis that did not move long enough, and quasi-rejection with a bound far below the weights."""
    target, prompts = random_target(ENDING), many_prompts(4000)
    for biased in (Metropolis(steps=1), QuasiRejection(log_bound=-1.0)):
        with pytest.raises(AssertionError, match="standard errors apart"):
            assert_draws_follow(target, prompts, biased(target, prompts, 4, rng=SeededRng(4)))


def test_quasi_rejection_hands_back_what_it_proposed():
    target, prompts = random_target(ENDING), many_prompts(3)
    draws = QuasiRejection(log_bound=0.0)(target, prompts, 5, rng=SeededRng(1))
    assert draws.info["proposed_log_weight"].shape == draws.info["proposed_prompt"].shape == (draws.cost,)
    assert set(draws.info["proposed_prompt"].tolist()) == {0, 1, 2}


def forbid_everything(x: Sequences) -> torch.Tensor:
    return torch.full((len(x),), torch.inf, dtype=torch.float64)


@pytest.mark.parametrize(
    ("sampler", "energy", "message"),
    [
        (
            Rejection(-9.0),
            None,
            r"Rejection\(log_bound=-9\) is not a bound: a draw has log weight .* were dropped; raise log_bound",
        ),
        (Rejection(0.0, patience=3), forbid_everything, r"40 of 40 draws are still missing .* lower log_bound"),
        (SIR(4, shared=False), forbid_everything, r"forbids all 4 candidates.*raise num_candidates"),
        (AdaptiveSIR(2, 4, 8, shared=False), forbid_everything, r"forbids all 8 candidates.*raise num_candidates"),
        (Metropolis(4), forbid_everything, r"chain of 4 steps never left.*raise `steps`"),
        (Particles(lambda x: torch.full((len(x),), torch.inf)), None, "twist must be finite"),
        (Importance(), lambda x: torch.full((len(x),), torch.nan), r"energy of 40 of 40 sequences is nan, first in row 0"),
        (Importance(), lambda x: torch.full((len(x),), -torch.inf), "energy of 40 of 40 sequences is -inf"),
    ],
)
def test_errors_say_what_to_do(sampler, energy, message):
    target = random_target(ENDING) if energy is None else Tilted(random_automaton(ENDING), energy)
    with pytest.raises((ValueError, RuntimeError), match=message):
        sampler(target, many_prompts(10), 4, rng=SeededRng(0))


def test_a_base_that_diverged_is_named():
    broken = random_automaton(ENDING)
    broken.log_emission[:] = torch.nan
    with pytest.raises(ValueError, match="log-probabilities are not finite"):
        Importance()(Tilted(broken), many_prompts(4), 2, rng=SeededRng(0))


def test_an_energy_of_another_vocabulary_is_refused():
    def energy(x: Sequences) -> torch.Tensor:
        return torch.zeros(len(x))

    energy.vocab_size = 7
    with pytest.raises(ValueError, match=r"energy reads 7 tokens and the base speaks 3.*different tokenizers"):
        Tilted(random_automaton(ENDING), energy)
