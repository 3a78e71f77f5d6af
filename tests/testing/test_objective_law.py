"""The law of objectives: right ones pass, wrong ones are caught."""

import pytest
import torch
from random_targets import random_automaton

from esscher.bases.network import build_base
from esscher.core.objective import Loss
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts
from esscher.core.target import Tilted
from esscher.energies.features import LogLinear, contains, length
from esscher.exact.enumeration import enumerate_points
from esscher.networks.recurrent_config import LstmConfig
from esscher.objectives.likelihood import Likelihood
from esscher.samplers.importance import Exhaustive, Importance
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
    base = build_base(LstmConfig(width=6, layers=1), SPACE, rng=SeededRng(0))
    weights = list(base.parameters())

    def exact() -> torch.Tensor:
        return -base.log_probs(DATA).sum() / int(DATA.lengths.sum())

    def per_sequence(target: Tilted, data: Sequences, *, rng, step: int = 0) -> Loss:
        return Loss(-(target.base.log_probs(data).sum(-1) / data.lengths).mean())

    def without_the_end(target: Tilted, data: Sequences, *, rng, step: int = 0) -> Loss:
        score = torch.where(data.tokens == SPACE.eos, 0.0, target.base.log_probs(data))
        return Loss(-score.sum() / int(data.lengths.sum()))

    check_objective(Likelihood(), Tilted(base), DATA, exact, weights, rng=SeededRng(0))
    for wrong in (per_sequence, without_the_end):
        with pytest.raises(AssertionError, match=LAW):
            check_objective(wrong, Tilted(base), DATA, exact, weights, rng=SeededRng(0))


def test_a_loss_that_is_no_mean_of_numbers_is_caught():
    base = build_base(LstmConfig(width=6, layers=1), SPACE, rng=SeededRng(0))

    def exact() -> torch.Tensor:
        return -base.log_probs(DATA).sum() / int(DATA.lengths.sum())

    def game() -> dict[str, torch.Tensor]:
        return {"actor": exact(), "critic": -exact()}

    weights = list(base.parameters())
    both, wrong_sign = {"actor": exact(), "critic": -exact()}, {"actor": exact(), "critic": exact()}
    cases = [
        (Loss(exact()[None]), "a loss is one finite number"),
        (Loss(exact() * torch.inf), "a loss is one finite number"),
        (Loss(exact(), {"nll": float("nan")}), "metrics must be finite numbers; got {'nll': nan}"),
        (Loss(exact(), {}, 0), "a mean over at least one unit, not 0"),
        (Loss(both), r"a value for each player: expected \[''\], got \['actor', 'critic'\]"),
    ]
    for loss, message in cases:
        with pytest.raises(AssertionError, match=message):
            check_objective(lambda *given, loss=loss, **more: loss, Tilted(base), DATA, exact, weights, rng=SeededRng(0))
    players = {"actor": weights, "critic": weights}
    check_objective(lambda *given, **more: Loss(game()), Tilted(base), DATA, game, players, rng=SeededRng(0))
    with pytest.raises(AssertionError, match=r"exact loss \(parameter 0 of the critic\)"):
        check_objective(lambda *given, **more: Loss(wrong_sign), Tilted(base), DATA, game, players, rng=SeededRng(0))


def test_without_an_rng_the_dice_fall_every_way():
    """A coin that is biased, or thrown by no rng, has another mean."""
    weight = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)

    def by_coin(share: float):
        def objective(target, data, *, rng, step=0) -> Loss:
            return Loss(weight**2 if bool(rng.bernoulli(torch.tensor([share]).log())) else 0 * weight)

        return objective

    target = Tilted(random_automaton(SPACE))
    check_objective(by_coin(0.25), target, DATA, lambda: 0.25 * weight**2, [weight])
    with pytest.raises(AssertionError, match=LAW):
        check_objective(by_coin(0.3), target, DATA, lambda: 0.25 * weight**2, [weight])


def test_an_objective_that_samples_is_exact_with_the_exhaustive_sampler():
    energy = LogLinear([contains([1, 2]), length()], torch.tensor([0.7, -0.3]))
    target = Tilted(random_automaton(SPACE), energy)

    def exact() -> torch.Tensor:
        return (torch.logsumexp(target.log_score(POINTS), 0) - target.log_score(DATA)).mean()

    check_objective(contrast(Exhaustive()), target, DATA, exact, [energy.weights], rng=SeededRng(0))
    for wrong in (contrast(Importance()), contrast(Exhaustive(), sign=-1.0)):
        with pytest.raises(AssertionError, match=LAW):
            check_objective(wrong, target, DATA, exact, [energy.weights], rng=SeededRng(0))
