"""Learnt twists: their proposal is a base, and particles with them are properly weighted whatever they have learnt."""

import causal_models
import pytest
import torch
from random_targets import PROMPTS, random_automaton, random_target
from random_twists import random_twist
from small_networks import CONFIGS, lively

from esscher.bases.truncated import Truncated
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, prompts_of
from esscher.core.target import Tilted
from esscher.energies.config import TwistConfig
from esscher.energies.twist import TwistedBase, build_twist
from esscher.samplers import particles
from esscher.samplers.importance import Exhaustive, Importance
from esscher.samplers.particles import Particles
from esscher.testing import check_base, every_outcome

SPACE = Space(3, 4, eos=0)
SHORT = random_target(Space(2, 3, eos=0))
NETWORK = lively(CONFIGS["lstm, vectors"], SPACE).double()


def test_the_proposal_of_an_untrained_twist_is_the_base():
    base = random_automaton(SPACE)
    twisted = TwistedBase(base, build_twist(TwistConfig(), base, rng=SeededRng(0)))
    torch.testing.assert_close(twisted.begin(prompts_of(PROMPTS))[0], base.begin(prompts_of(PROMPTS))[0])


@pytest.mark.parametrize(
    "base", [NETWORK, Truncated(NETWORK, temperature=0.7), causal_models.tiny_base("llama")], ids=["lstm", "truncated", "llama"]
)
def test_particles_read_the_hidden_vectors_of_any_base(base):
    """Estimates of Z from a random twist agree with the sum over all points; false-alarm rate below 1e-6 at 5 deviations."""
    twist = random_twist(base, memory=0, scale=0.5).to(torch.float32 if hasattr(base, "model") else torch.float64)
    target, prompts = Tilted(base, random_target(SPACE).energy), prompts_of([[1, 2]] * 400)
    exact = Exhaustive()(target, prompts_of([[1, 2]]), 0, rng=SeededRng(0)).log_z().exp()
    for sampler in (Particles(twist, threshold=0.9), Importance(TwistedBase(base, twist))):
        z = sampler(target, prompts, 8, rng=SeededRng(1)).log_z().exp()
        assert abs(float(z.mean() - exact)) < 5 * float(z.std()) / 20


def weights_over_outcomes(sampler, draws: int) -> tuple[float, float]:
    runs = list(every_outcome(lambda rng: sampler(SHORT, prompts_of([[1]]), draws, rng=rng)))
    assert sum(p for p, _ in runs) == pytest.approx(1)
    weights = [(p, run.log_weight.exp().view(-1), run.x.lengths > 1) for p, run in runs]
    return sum(p * float(w.mean()) for p, w, _ in weights), sum(p * float((w * long).mean()) for p, w, long in weights)


def exact() -> tuple[float, float]:
    every = Exhaustive()(SHORT, prompts_of([[1]]), 0, rng=SeededRng(0))
    return float(every.log_z().exp()), float((every.log_weight.exp().view(-1) * (every.x.lengths > 1)).mean())


TWIST = random_twist(SHORT.base, offset=0.7)
SAMPLERS = {
    "resampled": (Particles(TWIST, threshold=1.1), 2),
    "sometimes resampled": (Particles(TWIST, threshold=0.9), 2),
    "blocks": (Particles(TWIST, threshold=1.1, block=2), 2),
    "never resampled": (Particles(TWIST, threshold=0.0), 2),
    "halved": (Particles(TWIST, threshold=0.0, pruning_rounds=1), 1),
    "halved by blocks": (Particles(TWIST, threshold=1.1, block=2, pruning_rounds=1), 1),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_weights_are_exactly_proper_over_every_outcome(name):
    sampler, draws = SAMPLERS[name]
    assert weights_over_outcomes(sampler, draws) == pytest.approx(exact())


@pytest.mark.parametrize("wrong", ["no ratio of base and proposal", "the twist of a finished sequence instead of its energy"])
def test_wrong_weights_are_caught(monkeypatch, wrong):
    weigh = particles._ParticleCloud.weigh

    def wrongly(self, twist):
        if wrong == "no ratio of base and proposal":
            self.log_ratio = torch.zeros_like(self.log_ratio)
            weigh(self, twist)
        else:
            guess = self.log_psi.clone()
            closing = self.closing.clone()
            weigh(self, twist)
            change = torch.where(closing, guess - self.log_twist, 0.0)
            self.log_weight = self.log_weight + change.view(self.shape)

    monkeypatch.setattr(particles._ParticleCloud, "weigh", wrongly)
    assert weights_over_outcomes(Particles(TWIST, threshold=1.1), 2) != pytest.approx(exact(), rel=1e-3)


def test_a_twist_of_other_sizes_is_refused():
    twist = random_twist(random_automaton(SPACE))
    with pytest.raises(ValueError, match="learn a twist for this base"):
        TwistedBase(random_automaton(Space(3, 5, eos=0)), twist)


def test_a_base_without_hidden_vectors_needs_a_memory():
    with pytest.raises(ValueError, match="memory=64"):
        build_twist(TwistConfig(memory=0), random_automaton(SPACE), rng=SeededRng(0))
    assert build_twist(TwistConfig(), random_automaton(SPACE), rng=SeededRng(0)).config.memory == 64
    assert build_twist(TwistConfig(), NETWORK, rng=SeededRng(0)).config.memory == 0


@pytest.mark.parametrize("memory", [0, 4])
def test_the_proposal_obeys_the_laws_of_bases(memory):
    check_base(TwistedBase(NETWORK, random_twist(NETWORK, memory=memory)), prompts=PROMPTS)
