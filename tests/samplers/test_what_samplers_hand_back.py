"""What draws say of themselves: which law their weights have, on what they depend, what they cost; and small exact cases."""

import math

import pytest
import torch
from random_targets import PROMPTS, random_target
from small_networks import CONFIGS, lively

from esscher.core.device import on_device_of
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.exact.automaton import Automaton
from esscher.samplers import accept_reject, ancestral
from esscher.samplers.accept_reject import Metropolis, QuasiRejection, Rejection
from esscher.samplers.ancestral import Ancestral, draw, rows_at_once
from esscher.samplers.importance import Exhaustive, Importance
from esscher.samplers.particles import Particles
from esscher.samplers.sir import SIR, AdaptiveSIR
from esscher.samplers.twists import FittedParticles, _regression
from esscher.testing import every_outcome

TARGET = random_target(Space(3, 4, eos=0))
FLAT = Tilted(TARGET.base)
CASES = {  # sampler, target, weighted by Z, independent, cost of 4 prompts of 5 draws
    "ancestral": (Ancestral(), FLAT, True, True, 20),
    "importance": (Importance(), TARGET, True, True, 20),
    "exhaustive": (Exhaustive(), TARGET, True, False, 4 * 31),
    "metropolis": (Metropolis(3), TARGET, False, True, 80),
    "pool": (SIR(3, shared=False), TARGET, False, True, 60),
    "pool, shared": (SIR(3), TARGET, False, False, 12),
    "pool of particles": (SIR(3, Particles(), shared=False), TARGET, False, False, 60),
    "adaptive": (AdaptiveSIR(1, 2, 2, shared=False), TARGET, False, True, 4 * 2 + 40),
    "rejection": (Rejection(0.0), FLAT, False, True, 24),  # 1.1 times what is missing, rounded up
    "quasi-rejection": (QuasiRejection(-1.0), FLAT, False, True, 24),
    "particles": (Particles(), TARGET, True, False, 20),
    "fitted": (FittedParticles(block=2, pilot=32), TARGET, True, False, 20 + 32),
}


@pytest.mark.parametrize("name", CASES)
def test_weights_dependence_and_cost(name):
    sampler, target, estimates_z, independent, cost = CASES[name]
    actual = sampler(target, prompts_of(PROMPTS), 5, rng=SeededRng(0))
    assert (actual.estimates_z, actual.independent, actual.cost) == (estimates_z, independent, cost)
    assert actual.log_weight.dtype == actual.log_base.dtype == torch.float64
    assert actual.x.prompts().prompt_keys() == [tuple(prompt) for prompt in PROMPTS for _ in range(actual.log_weight.shape[1])]
    assert torch.allclose(actual.log_base.view(-1), TARGET.base.log_probs(actual.x).sum(-1), atol=1e-12)
    if not estimates_z:
        assert not bool(actual.log_weight.any())


def test_one_draw_of_a_shared_pool_depends_on_no_other():
    assert SIR(3)(TARGET, empty_prompts(2), 1, rng=SeededRng(0)).independent


def test_a_pool_knows_how_even_it_is():
    actual = SIR(4, shared=False)(TARGET, empty_prompts(2), 3, rng=SeededRng(0))
    drawn = Importance()(TARGET, empty_prompts(2), 12, rng=SeededRng(0)).log_weight.view(2, 3, 4)
    assert torch.allclose(actual.info["ess"], 1 / (drawn.softmax(-1) ** 2).sum(-1))
    assert actual.info["num_candidates"].tolist() == [4, 4] and actual.info["large_enough"].tolist() == [True, True]


# a coin that gives 1 three times in ten, and a 1 weighs 4

COIN = Automaton(torch.tensor([[0.7, 0.3]], dtype=torch.float64).log(), torch.zeros(1, 2, dtype=torch.long), Space(2, 1))
HEAVY = Tilted(COIN, lambda x: -math.log(4) * x.tokens[:, -1].double())


def mean_over_outcomes(run):
    return sum(p * run(draws) for p, draws in every_outcome(lambda rng: Metropolis(2)(HEAVY, empty_prompts(1), 1, rng=rng)))


def test_a_chain_of_two_steps_moves_as_its_kernel_says():
    """From 0 a proposed 1 is always taken; from 1 a proposed 0 one time in four. Taking the same again is a move."""
    ones, moves = 0.3, 0.0
    for _ in range(2):
        moves += (1 - ones) + ones * (0.3 + 0.7 / 4)
        ones = (1 - ones) * 0.3 + ones * (0.3 + 0.7 * 3 / 4)
    assert mean_over_outcomes(lambda draws: float(draws.x.tokens.sum())) == pytest.approx(ones)
    assert mean_over_outcomes(lambda draws: float(draws.info["acceptance"])) == pytest.approx(moves / 2)


def test_a_chain_leaves_forbidden_points_and_never_goes_there():
    only_ones = Tilted(COIN, lambda x: torch.where(x.tokens[:, -1] == 0, torch.inf, 0.0).double())
    actual = Metropolis(40)(only_ones, empty_prompts(200), 2, rng=SeededRng(0))
    assert bool((actual.x.tokens == 1).all()) and actual.log_base.tolist() == [[math.log(0.3)] * 2] * 200


# rejection, round by round


def test_rounds_are_sized_by_what_was_accepted(monkeypatch):
    """11 are proposed for 10; then 1.1 times what is missing over the rate so far, with one more proposed and accepted."""
    sizes: list[int] = []
    taken: list[int] = []
    importance, accept = Importance.__call__, SeededRng.bernoulli

    def counting(self, log_probability):
        yes = accept(self, log_probability)
        taken.append(int(yes.sum()))
        return yes

    monkeypatch.setattr(SeededRng, "bernoulli", counting)
    monkeypatch.setattr(
        Importance, "__call__", lambda self, *given, rng: (sizes.append(given[2]), importance(self, *given, rng=rng))[1]
    )
    actual = Rejection(math.log(3))(Tilted(COIN), empty_prompts(1), 10, rng=SeededRng(10))
    assert sum(sizes) == actual.cost and len(sizes) > 2 and sizes[0] == 11
    for number in range(1, len(sizes)):
        kept = sum(taken[:number])
        assert sizes[number] == math.ceil(1.1 * (10 - kept) * (sum(sizes[:number]) + 1) / (kept + 1))
    assert actual.info["proposed_prompt"].tolist() == [0] * actual.cost


def test_no_round_is_larger_than_it_should_be(monkeypatch):
    monkeypatch.setattr(accept_reject, "MAX_CANDIDATES_PER_ROUND", 6)
    actual = Rejection(0.0)(Tilted(COIN), empty_prompts(3), 5, rng=SeededRng(0))
    assert actual.info["proposed_prompt"].tolist() == [0, 0, 1, 1, 2, 2] * 2 + [0, 0, 1, 1, 2, 2]
    assert actual.cost == 18


@pytest.mark.parametrize(("bound", "slack"), [(0.5, 1e-5), (-20.0, 2e-4)])
def test_a_bound_is_one_but_for_rounding(bound, slack):
    for above, passes in ((0.9 * slack, True), (1.1 * slack, False)):
        target = Tilted(COIN, lambda x, high=bound + above: torch.full((len(x),), -high, dtype=torch.float64))
        if passes:
            Rejection(bound)(target, empty_prompts(1), 2, rng=SeededRng(0))
        else:
            with pytest.raises(ValueError, match="is not a bound"):
                Rejection(bound)(target, empty_prompts(1), 2, rng=SeededRng(0))


def test_patience_is_counted_for_each_draw(monkeypatch):
    """Of 3 draws of 2 prompts, each may take 5 candidates: the round that goes beyond 30 is the last."""
    monkeypatch.setattr(accept_reject, "MAX_CANDIDATES_PER_ROUND", 10)
    with pytest.raises(RuntimeError, match=r"6 of 6 draws are still missing after 38 candidates"):
        Rejection(60.0, patience=5)(Tilted(COIN), empty_prompts(2), 3, rng=SeededRng(0))


# how many rows at once


@pytest.mark.parametrize(
    ("vocabulary", "length", "rows"),
    [
        (2, 1, 4096),
        (1024, 1, 4096),
        (4096, 1, 2048),
        (2, 64, 2048),
        (2**20, 1, 32),
        (2, 2**16, 32),
        (2**16, 4, 128),
        (2**15, 1, 256),
    ],
)
def test_rows_that_one_pass_holds(vocabulary, length, rows):
    assert rows_at_once(Space(vocabulary, length)) == rows


@pytest.mark.parametrize(("draws", "at_once", "sizes"), [(3, 6, [6, 6]), (7, 3, [2, 2, 3] * 4), (6, 3, [3, 3] * 4)])
def test_draws_are_taken_in_passes_of_even_size(monkeypatch, draws, at_once, sizes):
    """Four prompts: several together, or one by one where their draws fill a pass; each pass has its own states."""
    seen: list[int] = []
    monkeypatch.setattr(ancestral, "rows_at_once", lambda space: at_once)
    monkeypatch.setattr(ancestral, "SHARE_BELOW", 0.0)
    advance = Automaton.advance
    base = random_target(Space(3, 2)).base
    monkeypatch.setattr(
        Automaton, "advance", lambda self, state, token: (seen.append(len(token)), advance(self, state, token))[1]
    )
    x, log_base = draw(base, prompts_of(PROMPTS), draws, rng=SeededRng(0))
    assert seen == sizes and log_base.shape == (4, draws)
    assert torch.allclose(log_base.view(-1), base.log_probs(x).sum(-1))


@pytest.mark.parametrize("longest", [1, 3, 9])
def test_points_are_drawn_no_further_than_asked(longest):
    x, log_base = draw(random_target(Space(3, 4)).base, empty_prompts(2), 3, rng=SeededRng(0), max_new_tokens=longest)
    assert x.lengths.tolist() == [min(longest, 4)] * 6 and log_base.shape == (2, 3)


def test_rows_go_to_the_device_of_the_weights():
    x = sequences([[1]])
    assert on_device_of(x, lively(CONFIGS["gru, one-hot"], TARGET.space).to("meta")).tokens.device.type == "meta"
    assert on_device_of(x, TARGET.base) is x


# the regression behind a twist


def test_the_common_slope_is_that_of_least_squares_shrunk_by_chance():
    """Against least squares with a constant for each row; the mean of a log-normal law is half its variance higher."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 6, generator=generator).double()
    y = 0.8 * x + torch.tensor([[0.0], [2.0], [-1.0]]).double() + 0.3 * torch.randn(3, 6, generator=generator).double()
    counted = torch.ones(3, 6, dtype=torch.bool)
    counted[0, 4:] = counted[2, :] = False
    row = torch.arange(3)[:, None].expand(3, 6)[counted]
    design = torch.cat([x[counted][:, None], torch.nn.functional.one_hot(row, 2).double()], 1)
    solved = torch.linalg.lstsq(design, y[counted][:, None]).solution
    variance = float((y[counted][:, None] - design @ solved).square().sum()) / (10 - 2 - 1)
    within = sum(float((x[r][counted[r]] - x[r][counted[r]].mean()).square().sum()) for r in (0, 1))
    plain = float(solved[0])
    shrunk = plain * (1 - variance / within / plain**2)
    slope, offset = _regression(x, y, counted)
    assert float(slope) == pytest.approx(shrunk)
    assert float(offset) == pytest.approx(float((y - shrunk * x)[counted].mean()) + variance / 2)


def test_where_prefixes_do_not_differ_there_is_no_slope():
    y = torch.tensor([[1.0, 3.0, 2.0, 2.0], [0.0, 0.0, 2.0, 2.0]]).double()
    slope, offset = _regression(torch.ones_like(y), y, torch.ones(2, 4, dtype=torch.bool))
    assert (float(slope), float(offset)) == (0.0, pytest.approx(1.5 + 6 / 5 / 2))
    few = torch.tensor([[1.0, 2.0]]).double()  # two draws of a row: no degree of freedom is left
    slope, offset = _regression(few, 3 * few, torch.ones(1, 2, dtype=torch.bool))
    assert (float(slope), float(offset)) == (0.0, pytest.approx(4.5 + 4.5 / 2))


def test_noise_that_exceeds_the_slope_leaves_none():
    x, y = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).double(), torch.tensor([[1.0, -1.0, 1.0, -0.9]]).double()
    slope, _ = _regression(x, y, torch.ones(1, 4, dtype=torch.bool))
    assert float(slope) == 0.0
