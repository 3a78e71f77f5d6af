"""Pools: their bias by every outcome of the dice; that a pilot decides honestly; that sharing keeps the law of a draw."""

import math

import pytest
import torch
from random_targets import PROMPTS as SOME_PROMPTS
from random_targets import random_target

from esscher.core.draws import Draws
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of
from esscher.core.target import Tilted
from esscher.exact.automaton import Automaton
from esscher.exact.enumeration import enumerate_points
from esscher.samplers.importance import Importance
from esscher.samplers.sir import SIR, AdaptiveSIR, selected_draws
from esscher.testing import every_outcome

SPACE, PROMPT = Space(2, 1), empty_prompts(1)  # one token: a 1 comes with probability 0.3, and weighs 4


def likes_ones(x: Sequences) -> torch.Tensor:
    return -math.log(4) * (x.counted & (x.tokens == 1)).sum(-1).double()


COIN = Automaton(torch.tensor([[0.7, 0.3]], dtype=torch.float64).log(), torch.zeros(1, 2, dtype=torch.long), SPACE)
TARGET = Tilted(COIN, likes_ones)
TRUTH = 1.2 / 1.9  # of a 1, under the target
ADAPTIVE = AdaptiveSIR(min_ess=1.5, min_candidates=2, max_candidates=3, shared=False)


def ones(draws: Draws) -> float:
    return float((draws.x.tokens == 1).double().mean())


def probability_of_one(sampler, draws: int = 1) -> float:
    return sum(p * ones(actual) for p, actual in every_outcome(lambda rng: sampler(TARGET, PROMPT, draws, rng=rng)))


def sizes() -> dict[int, float]:
    """The law of the size that the pilot chooses."""
    law: dict[int, float] = {}
    for p, (size, _, _) in every_outcome(lambda rng: ADAPTIVE.pilot(TARGET, PROMPT, rng=rng)):
        law[int(size)] = law.get(int(size), 0.0) + p
    return law


def from_the_pilot(target, prompts, draws, *, rng) -> Draws:
    """The wrong version: look at the pool, stop when it looks even, and choose from it."""
    pool = Importance()(target, prompts, 2, rng=rng)
    log_weight, x = pool.log_weight, pool.x.tokens
    if float(torch.softmax(log_weight, -1).max()) > 1 / ADAPTIVE.min_ess:
        more = Importance()(target, prompts, 1, rng=rng)
        log_weight, x = torch.cat([log_weight, more.log_weight], 1), torch.cat([x, more.x.tokens])
    item = x[rng.categorical(log_weight)[:, 0]]
    zero = torch.zeros(1, 1, dtype=torch.float64)
    return Draws(Sequences(item, torch.tensor([0]), torch.tensor([1])), zero, zero, False, True, 2)


def test_an_adaptive_pool_is_a_mixture_of_pools():
    law = sizes()
    assert law == {2: pytest.approx(0.58), 3: pytest.approx(0.42)}
    mixture = sum(p * probability_of_one(SIR(n, shared=False)) for n, p in law.items())
    assert probability_of_one(ADAPTIVE) == pytest.approx(mixture)
    assert probability_of_one(from_the_pilot) != pytest.approx(mixture, rel=1e-2)


def test_choosing_from_the_pilot_is_worse_than_the_smallest_pool():
    """Pools without a heavy candidate look even: they stop, and all of them are the base's."""
    gap = {name: TRUTH - probability_of_one(sampler) for name, sampler in (("fresh", ADAPTIVE), ("pilot", from_the_pilot))}
    min_candidates = TRUTH - probability_of_one(SIR(2, shared=False))
    assert 0 < gap["fresh"] < min_candidates < gap["pilot"]


def test_sharing_keeps_the_law_of_a_draw():
    own, shared = SIR(2, shared=False), SIR(2)
    assert probability_of_one(shared, draws=2) == pytest.approx(probability_of_one(own))
    actual = shared(TARGET, PROMPT, 2, rng=SeededRng(0))
    assert (actual.cost, actual.independent) == (2, False)
    assert own(TARGET, PROMPT, 2, rng=SeededRng(0)).independent
    outcomes = every_outcome(lambda rng: shared(TARGET, PROMPT, 2, rng=rng))
    both = sum(p for p, actual in outcomes if ones(actual) == 1)
    assert both > probability_of_one(own) ** 2 + 0.01  # one pool's luck is in both draws


@pytest.mark.parametrize("pool", [1, 2, 3])
def test_a_pool_is_as_near_as_its_bound_says(pool):
    """KL(p || q_n) <= log(1 + chi2 / n), with the exact law of a draw."""
    item = probability_of_one(SIR(pool, shared=False))
    q = torch.tensor([1 - item, item])
    p = torch.tensor([1 - TRUTH, TRUTH])
    weight, base = torch.tensor([1.0, 4.0]), torch.tensor([0.7, 0.3])
    chi2 = float((base * weight**2).sum() / (base * weight).sum() ** 2 - 1)
    gap = float((p * (p / q).log()).sum())
    assert 0 < gap <= math.log(1 + chi2 / pool)
    assert gap > 0.2 * math.log(1 + chi2 / pool)  # not an idle bound


def test_prompts_stop_costing_when_they_have_enough():
    """Even weights need 64 candidates; where only ones weigh, 128 have about 38 of them, and that is told."""

    def only_ones(x: Sequences) -> torch.Tensor:
        return torch.where((x.start == 4) & (x.tokens.gather(1, x.start[:, None])[:, 0] == 0), 30.0, 0.0).double()

    sampler = AdaptiveSIR(min_ess=64, min_candidates=16, max_candidates=128, shared=False)
    draws = sampler(Tilted(COIN, only_ones), prompts_of([[], [1] * 4, []]), 3, rng=SeededRng(1))
    assert draws.info["num_candidates"].tolist() == [64, 128, 64] and draws.info["large_enough"].tolist() == [True, False, True]
    assert draws.cost == 2 * (64 + 3 * 64) + 128 + 3 * 128
    assert draws.x.start.tolist() == [0, 0, 0, 4, 4, 4, 0, 0, 0]


def test_choices_come_with_their_candidates():
    target, prompts = random_target(Space(3, 4, eos=0)), prompts_of(SOME_PROMPTS)
    for sampler in (SIR(8, shared=False), SIR(8), AdaptiveSIR(4, 4, 64, shared=False), AdaptiveSIR(4, 4, 64)):
        actual = sampler.choose(target, prompts, 5, rng=SeededRng(2))
        draws = selected_draws(actual)
        again = sampler(target, prompts, 5, rng=SeededRng(2))
        assert draws.x.points() == again.x.points() and torch.equal(draws.log_base, again.log_base)
        assert sorted(torch.cat([group.prompt for group in actual]).tolist()) == [0, 1, 2, 3]
        assert torch.allclose(draws.log_base.view(-1), target.base.log_probs(draws.x).sum(-1))
        assert draws.x.start.tolist() == [len(prompt) for prompt in SOME_PROMPTS for _ in range(5)]
        for group in actual:
            assert group.candidates.log_weight.shape == (len(group.prompt), group.num_candidates * (1 if sampler.shared else 5))
            assert group.candidates.estimates_z and group.candidates.independent


def test_the_law_of_shares_is_the_target():
    """The candidates' shares, averaged over many pools, are near p; a pool of 512 is nearly exact."""
    (group,) = SIR(512).choose(TARGET, empty_prompts(50), 1, rng=SeededRng(3))
    share = torch.softmax(group.candidates.log_weight, -1)
    actual = (share * (group.candidates.x.tokens.view(50, 512) == 1)).sum(-1)
    assert abs(float(actual.mean()) - TRUTH) < 5 * float(actual.std()) / math.sqrt(50) + 0.002  # five sigma: 6e-7
    assert len(enumerate_points(SPACE)) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SIR(0), "num_candidates is at least 1, not 0"),
        (lambda: AdaptiveSIR(8, 32, 16), "not from 32 to 16"),
        (lambda: AdaptiveSIR(64, 16, 32), "no 32 candidates have 64"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
