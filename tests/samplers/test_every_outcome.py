"""Unbiasedness with no statistics: samplers run on every outcome of their dice."""

import math

import pytest
import torch
from random_targets import random_automaton, random_target

from esscher.core.draws import Draws
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import Sequences, Space, prompts_of
from esscher.core.target import Tilted
from esscher.samplers import particles
from esscher.samplers.accept_reject import Metropolis
from esscher.samplers.importance import Exhaustive, Importance
from esscher.samplers.particles import Particles
from esscher.samplers.proposals import defensive
from esscher.samplers.sir import SIR
from esscher.samplers.twists import linear_twist
from esscher.testing import every_outcome
from esscher.testing.statistics import point_number

SHORT, LONGER = random_target(Space(2, 2, eos=0)), random_target(Space(2, 3, eos=0))
PROMPTS = prompts_of([[1]])
OTHER, SHORTER_OTHER = random_automaton(LONGER.space, seed=3), random_automaton(SHORT.space, seed=3)


def twist(x: Sequences) -> torch.Tensor:
    return 0.7 * x.lengths.double()


def share_of_long(draws: Draws) -> float:
    """mean_n e^w f(x) with f = 1 for points of more than one token."""
    return float((draws.log_weight.double().exp().view(-1) * (draws.x.lengths > 1)).mean())


def mean_over_outcomes(sampler, target: Tilted = SHORT, draws: int = 2) -> tuple[float, float, int]:
    """Expectations of the weight and of the weighted f, and the number of outcomes."""
    runs = list(every_outcome(lambda rng: sampler(target, PROMPTS, draws, rng=rng)))
    assert sum(p for p, _ in runs) == pytest.approx(1)
    weight = sum(p * float(result.log_weight.double().exp().mean()) for p, result in runs)
    return weight, sum(p * share_of_long(result) for p, result in runs), len(runs)


def exact(target: Tilted) -> tuple[float, float]:
    draws = Exhaustive()(target, PROMPTS, 0, rng=SeededRng(0))
    return float(draws.log_z().exp()), share_of_long(draws)


Z, Z_LONG = exact(SHORT)


@pytest.mark.parametrize(
    "sampler",
    [
        Importance(),
        Particles(threshold=1.1),
        Particles(pruning_rounds=1),
        Particles(linear_twist(LONGER), threshold=1.1),
        Particles(twist, threshold=0.9),
        Particles(twist, threshold=1.1, block=2),
        Particles(twist, threshold=0.0, pruning_rounds=1),
        Particles(twist, threshold=1.1, block=2, pruning_rounds=1),
    ],
)
def test_weights_are_exactly_proper(sampler):
    weight, long, outcomes = mean_over_outcomes(sampler, LONGER, draws=1 if getattr(sampler, "pruning_rounds", 0) else 2)
    assert outcomes > 10
    assert (weight, long) == pytest.approx(exact(LONGER))


@pytest.mark.parametrize(
    "sampler",
    [
        Importance(OTHER),
        Importance(defensive(LONGER.base, OTHER, base_share=0.25)),
        Particles(proposal=OTHER),
        Particles(twist, threshold=1.1, proposal=OTHER),
        Particles(twist, threshold=1.1, block=2, proposal=OTHER),
        Particles(twist, threshold=0.0, pruning_rounds=1, proposal=OTHER),
    ],
)
def test_weights_towards_another_proposal_are_exactly_proper(sampler):
    weight, long, outcomes = mean_over_outcomes(sampler, LONGER, draws=1 if getattr(sampler, "pruning_rounds", 0) else 2)
    assert outcomes > 10
    assert (weight, long) == pytest.approx(exact(LONGER))


def test_particles_that_forget_the_proposal_are_caught(monkeypatch):
    """The wrong version: prefixes are weighed by the twist alone, without a / q."""

    def forgets(self) -> None:
        extend(self)
        self.log_ratio = torch.zeros_like(self.log_ratio)

    extend = particles._ParticleCloud.extend
    monkeypatch.setattr(particles._ParticleCloud, "extend", forgets)
    weight, _, _ = mean_over_outcomes(Particles(twist, threshold=1.1, proposal=OTHER), LONGER)
    assert weight != pytest.approx(exact(LONGER)[0], rel=1e-3)


def chain_law(steps: int, divided: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """The target over the points of SHORT, and the law of a chain that starts with a proposal of OTHER; its kernel moves from x
    to y with probability q(y) min(1, w(y) / w(x)), which keeps detailed balance."""
    x = Exhaustive()(SHORT, PROMPTS, 0, rng=SeededRng(0)).x
    log_p, log_q = SHORT.log_score(x), SHORTER_OTHER.log_probs(x).sum(-1)
    log_w = log_p - log_q if divided else log_p
    kernel = log_q.exp()[None] * (log_w[None] - log_w[:, None]).exp().clamp(max=1)
    kernel = kernel + torch.diag(1 - kernel.sum(-1))
    p, law = torch.softmax(log_p, 0), log_q.exp()
    flow = p[:, None] * kernel
    assert torch.allclose(flow, flow.T) == divided  # detailed balance
    for _ in range(steps):
        law = law @ kernel
    return p, law


def test_metropolis_with_a_proposal_has_the_kernel_that_keeps_detailed_balance():
    sampler = Metropolis(2, proposal=SHORTER_OTHER)
    outcomes = every_outcome(lambda rng: sampler(SHORT, PROMPTS, 1, rng=rng))
    law = torch.zeros(3, dtype=torch.float64)
    for probability, result in outcomes:
        law[point_number(SHORT.space, result.x)] += probability
    p, expected = chain_law(2)
    assert torch.allclose(law, expected)
    assert not torch.allclose(law, chain_law(2, divided=False)[1], rtol=1e-3)  # the wrong version: weights without / q
    assert torch.allclose(p @ torch.eye(3, dtype=torch.float64), chain_law(200)[1])


def test_particles_with_three_draws():
    weight, long, outcomes = mean_over_outcomes(Particles(twist, threshold=1.1), draws=3)
    assert outcomes > 100
    assert (weight, long) == pytest.approx((Z, Z_LONG))


def test_particles_that_forget_the_mean_weight_are_caught(monkeypatch):
    """The wrong version: after resampling, weights of 1 instead of their mean."""

    def forgets(self, threshold: float) -> None:
        before = self.log_weight
        resample(self, threshold)
        if self.log_weight is not before:
            self.log_weight = torch.zeros_like(self.log_weight)

    resample = particles._ParticleCloud.resample
    monkeypatch.setattr(particles._ParticleCloud, "resample", forgets)
    weight, _, _ = mean_over_outcomes(Particles(twist, threshold=1.1))
    assert weight != pytest.approx(Z, rel=1e-3)


def test_halving_four_prefixes_to_two_to_one():
    weight, long, outcomes = mean_over_outcomes(Particles(twist, threshold=0.0, pruning_rounds=2), draws=1)
    assert outcomes > 100
    assert (weight, long) == pytest.approx((Z, Z_LONG))


@pytest.mark.parametrize("wrong", ["the stronger's weight instead of the mean", "always the stronger"])
def test_wrong_halvings_are_caught(monkeypatch, wrong):
    class First:
        def categorical(self, log_weight, draws=1):
            return torch.zeros(len(log_weight), draws, dtype=torch.long)

    def halve(self) -> None:
        before, count, rng = self.log_weight, self.shape[1] // 2, self.rng
        if wrong == "always the stronger":
            self.rng = First()
        right(self)
        self.rng = rng
        if wrong == "the stronger's weight instead of the mean":
            self.log_weight = before.sort(-1, descending=True).values[:, :count]

    right = particles._ParticleCloud.halve
    monkeypatch.setattr(particles._ParticleCloud, "halve", halve)
    actual = mean_over_outcomes(Particles(twist, threshold=0.0, pruning_rounds=1), draws=1)
    assert actual[:2] != pytest.approx((Z, Z_LONG), rel=1e-3)


def test_a_pool_is_biased_by_the_amount_theory_says():
    """One survivor of n candidates: bias shrinks with n, and is there at n = 2."""
    gaps = [abs(mean_over_outcomes(SIR(pool, shared=False), draws=1)[1] - Z_LONG / Z) for pool in (1, 2, 3)]
    assert gaps[0] > gaps[1] > gaps[2] > 1e-6


def test_metropolis_forgets_its_start_with_every_step():
    gaps = [abs(mean_over_outcomes(Metropolis(steps), draws=1)[1] - Z_LONG / Z) for steps in (1, 2, 3)]
    assert gaps[0] > gaps[1] > gaps[2]


def test_a_metropolis_that_accepts_everything_is_caught():
    class Easy:
        def __init__(self, rng: Rng):
            self.rng = rng

        def __getattr__(self, name):
            return getattr(self.rng, name)

        def bernoulli(self, log_probability):
            return torch.ones_like(log_probability, dtype=torch.bool)

    def gap(run) -> float:
        return abs(sum(p * share_of_long(run_) for p, run_ in every_outcome(run)) - Z_LONG / Z)

    honest = gap(lambda rng: Metropolis(3)(SHORT, PROMPTS, 1, rng=rng))
    easy = gap(lambda rng: Metropolis(3)(SHORT, PROMPTS, 1, rng=Easy(rng)))
    assert easy > 2 * honest


def test_exhaustive_knows_the_total():
    draws = Exhaustive()(SHORT, PROMPTS, 0, rng=SeededRng(0))
    log_score = SHORT.log_score(draws.x)
    assert math.isclose(Z, float(log_score.exp().sum()))
    assert float(draws.expect(log_score[None])) == pytest.approx(float((torch.softmax(log_score, 0) * log_score).sum()))
    assert float(Exhaustive()(Tilted(SHORT.base), PROMPTS, 0, rng=SeededRng(0)).log_z()) == pytest.approx(0, abs=1e-12)
