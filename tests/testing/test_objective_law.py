"""The law of objectives: right ones pass, wrong ones are caught."""

import pytest
import torch
from languages import random_automaton

from esscher.bases.config import RecurrentConfig
from esscher.bases.network import build_base
from esscher.energies.features import LogLinear, contains, length
from esscher.exact.enumeration import enumerate_points
from esscher.objective import Loss
from esscher.objectives.likelihood import Likelihood
from esscher.randomness import Seeded
from esscher.samplers.exhaustive import Exhaustive
from esscher.samplers.importance import Importance
from esscher.space import Sequences, Space, empty_prompts
from esscher.target import Tilted
from esscher.testing import check_objective

SPACE = Space(3, 4, eos=0)
POINTS = enumerate_points(SPACE)
DATA = POINTS.rows(torch.tensor([0, 3, 7, 20, 30]))
LAW = "gradient must be that of the exact loss"


def contrast(sampler, sign: float = 1.0):
    """E(data) - E_p[E]: the gradient of -log p with respect to the energy, negatives from a sampler."""

    def objective(target: Tilted, data: Sequences, *, rng, step: int = 0) -> Loss:
        negative = sampler(target, empty_prompts(1), 50, rng=rng)
        energy = target.energy(negative.x).view(1, -1)
        return Loss(target.energy(data).mean() - sign * negative.expect(energy).mean())

    return objective


def test_likelihood_has_the_gradient_of_the_mean_per_token():
    base = build_base(RecurrentConfig(width=6, layers=1), SPACE, rng=Seeded(0))
    weights = list(base.parameters())

    def exact() -> torch.Tensor:
        return -base.log_probs(DATA).sum() / int(DATA.lengths.sum())

    def per_sequence(target: Tilted, data: Sequences, *, rng, step: int = 0) -> Loss:
        return Loss(-(target.base.log_probs(data).sum(-1) / data.lengths).mean())

    def without_the_end(target: Tilted, data: Sequences, *, rng, step: int = 0) -> Loss:
        score = torch.where(data.tokens == SPACE.eos, 0.0, target.base.log_probs(data))
        return Loss(-score.sum() / int(data.lengths.sum()))

    check_objective(Likelihood(), Tilted(base), DATA, exact, weights, rng=Seeded(0))
    for wrong in (per_sequence, without_the_end):
        with pytest.raises(AssertionError, match=LAW):
            check_objective(wrong, Tilted(base), DATA, exact, weights, rng=Seeded(0))


def test_an_objective_that_samples_is_exact_with_the_exhaustive_sampler():
    energy = LogLinear([contains([1, 2]), length()], torch.tensor([0.7, -0.3]))
    target = Tilted(random_automaton(SPACE), energy)

    def exact() -> torch.Tensor:
        return (torch.logsumexp(target.log_score(POINTS), 0) - target.log_score(DATA)).mean()

    check_objective(contrast(Exhaustive()), target, DATA, exact, [energy.weights], rng=Seeded(0))
    for wrong in (contrast(Importance()), contrast(Exhaustive(), sign=-1.0)):
        with pytest.raises(AssertionError, match=LAW):
            check_objective(wrong, target, DATA, exact, [energy.weights], rng=Seeded(0))
