"""Maximum likelihood of tilted models: exact gradients, and training that ends where the exact answer is."""

import pytest
import torch
from random_targets import PROMPTS, random_automaton

from esscher.bases.network import build_base
from esscher.core.objective import Loss
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, concatenate, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.energies.features import ConditionalLogLinear, Feature, LogLinear, contains, feature_values, length, prompt_network
from esscher.exact import features as tallies
from esscher.exact.enumeration import enumerate_points
from esscher.exact.exponential_family import exact_moment_weights
from esscher.networks.recurrent_config import LstmConfig
from esscher.objectives.likelihood import TiltedLikelihood
from esscher.objectives.moment_matching import match_moments
from esscher.samplers.importance import Exhaustive, Importance
from esscher.samplers.sir import SIR
from esscher.testing import check_objective
from esscher.training.config import TrainingConfig
from esscher.training.trainer import Trainer

SPACE = Space(3, 4, eos=0)
FEATURES = [contains([1, 2]), length()]
LAW = "gradient must be that of the exact loss"


def points_after(prompts: list[list[int]], *, each: int = 5, seed: int = 2) -> Sequences:
    """Some points of every prompt, each prompt several times."""
    every = enumerate_points(SPACE, prompts_of(prompts))
    per = len(every) // len(prompts)
    rng = SeededRng(seed)
    return every.rows(torch.cat([number * per + rng.permutation(per)[:each] for number in range(len(prompts))]))


def exact_loss(target: Tilted, data: Sequences, *, base: bool = False):
    """-log p(x) written down: a sum over every point after each row's prompt."""

    def loss() -> torch.Tensor:
        every = enumerate_points(SPACE, data.prompts())
        log_z = torch.logsumexp(target.log_score(every).double().view(len(data), -1), -1)
        return (log_z - (target.log_score(data) if base else target.log_weight(data)).double()).mean()

    return loss


@pytest.mark.parametrize("conditional", [False, True], ids=["one weight", "weights of the prompt"])
def test_gradient_is_exact_with_the_exhaustive_sampler(conditional):
    energy = LogLinear(FEATURES, torch.tensor([0.7, -0.3]))
    if conditional:
        energy = ConditionalLogLinear(FEATURES, prompt_network(3, 2, width=4, rng=SeededRng(3)).double())
        torch.nn.init.normal_(energy.network.head.weight, generator=torch.Generator().manual_seed(0))
    target, data = Tilted(random_automaton(SPACE), energy), points_after(PROMPTS)
    parameters = list(energy.parameters())
    objective = TiltedLikelihood(Exhaustive())
    check_objective(objective, target, data, exact_loss(target, data), parameters, rng=SeededRng(0))
    loss = objective(target, data, rng=SeededRng(0))
    assert float(loss.value.detach()) == pytest.approx(float(exact_loss(target, data)().detach()))
    assert loss.count == len(data) and loss.metrics["ess"] > 1

    def unweighted(target, data, *, rng, step=0):
        every = enumerate_points(SPACE, data.prompts())
        return Loss(target.energy(data).mean() - target.energy(every).mean())

    def one_prompt_for_all(target, data, *, rng, step=0):
        actual = objective(target, data.rows(slice(0, 1)), rng=rng)
        return Loss(actual.value - target.energy(data.rows(slice(0, 1))).mean() + target.energy(data).mean())

    for wrong in (unweighted, one_prompt_for_all, TiltedLikelihood(Importance(), draws=20)):
        with pytest.raises(AssertionError, match=LAW):
            check_objective(wrong, target, data, exact_loss(target, data), parameters, rng=SeededRng(0))


def test_base_and_energy_may_learn_together():
    base = build_base(LstmConfig(width=5, layers=1), SPACE, rng=SeededRng(1)).double().eval()
    energy = LogLinear(FEATURES, torch.tensor([0.7, -0.3]))
    target, data = Tilted(base, energy), points_after([[], [2, 1]])
    exact, parameters = exact_loss(target, data, base=True), [*base.parameters(), energy.weights]
    check_objective(TiltedLikelihood(Exhaustive(), train_base=True), target, data, exact, parameters, rng=SeededRng(0))
    with pytest.raises(AssertionError, match=LAW):
        check_objective(TiltedLikelihood(Exhaustive()), target, data, exact, parameters, rng=SeededRng(0))


def test_with_many_draws_the_gradient_is_near_whatever_the_sampler():
    """Mean gradient over 30 batches of 400 draws; 6 standard errors of 30 replicates (false alarm 1e-5), and the bias."""
    energy = LogLinear(FEATURES, torch.tensor([0.7, -0.3]))
    target, data = Tilted(random_automaton(SPACE), energy), points_after([[1], []])
    (exact,) = torch.autograd.grad(exact_loss(target, data)(), [energy.weights])
    for sampler in (Importance(), Importance(random_automaton(SPACE, seed=3)), SIR(16, shared=False)):
        objective = TiltedLikelihood(sampler, draws=400)
        actual = torch.stack(
            [torch.autograd.grad(objective(target, data, rng=SeededRng(seed)).value, [energy.weights])[0] for seed in range(30)]
        )
        error = actual.std(0) / 30**0.5
        assert bool(((actual.mean(0) - exact).abs() < 6 * error + 5e-3).all())


def test_forbidden_points_do_no_harm():
    linear = LogLinear(FEATURES, torch.tensor([0.7, -0.3]))

    def energy(x: Sequences) -> torch.Tensor:
        return torch.where((x.counted & (x.tokens == 2)).any(-1), torch.inf, linear(x))

    target, data = Tilted(random_automaton(SPACE), energy), sequences([[1, 0], [0], [1, 1, 0]])
    exact = exact_loss(target, data)
    value = TiltedLikelihood(Exhaustive())(target, data, rng=SeededRng(0)).value
    assert float(value.detach()) == pytest.approx(float(exact().detach()))
    (gradient,) = torch.autograd.grad(value, [linear.weights])
    step = torch.tensor([0.0, 1e-6], dtype=torch.float64)
    with torch.no_grad():
        linear.weights += step
        up = float(exact())
        linear.weights -= 2 * step
        slope = (up - float(exact())) / 2e-6
    assert float(gradient[1]) == pytest.approx(slope, abs=1e-6)


def test_training_ends_where_newton_ends():
    """The same draws for both are impossible, so both are compared with the exact weights of these data's moments."""
    base = random_automaton(SPACE)
    exact = [tallies.contains([1, 2], SPACE), tallies.length(SPACE)]
    data = points_after([[]], each=30)
    wanted = feature_values(FEATURES, data).mean(0)
    star = exact_moment_weights(base, exact, wanted)
    every = enumerate_points(SPACE)
    drawn = feature_values(FEATURES, every.rows(SeededRng(0).categorical(base.log_probs(every).sum(-1)[None], 20_000)[0]))
    newton = match_moments([item.name for item in FEATURES], drawn, feature_values(FEATURES, data), prior=0.0)
    energy = LogLinear(FEATURES)
    config = TrainingConfig(
        steps=120, batch_size=30, learning_rate=0.1, optimizer="adam", schedule="cosine", max_grad_norm=None
    )
    Trainer(config)(TiltedLikelihood(draws=500), Tilted(base, energy), data, modules=energy)
    assert torch.allclose(energy.weights.detach(), star, atol=0.1)  # 120 steps of 500 draws, at a falling rate
    assert torch.allclose(newton.tensor(), star, atol=0.1)


@pytest.mark.slow
def test_weights_of_a_prompt_are_found():
    """Each prompt asks for its own moments: the network's weights equal the exact ones, prompt by prompt."""
    base, prompts = random_automaton(SPACE), [[], [1], [2, 1, 1], [1, 2]]
    exact = [tallies.contains([1, 2], SPACE), tallies.length(SPACE)]
    truth = torch.tensor([[1.5, 0.3], [-1.0, 0.5], [0.0, -0.8], [2.0, 0.0]], dtype=torch.float64)
    parts, star = [], []
    for prompt, weights in zip(prompts, truth, strict=True):
        every = enumerate_points(SPACE, prompts_of([prompt]))
        score = base.log_probs(every).sum(-1) + feature_values(FEATURES, every) @ weights
        parts.append(every.rows(SeededRng(1, len(parts)).categorical(score[None], 200)[0]))
        star.append(exact_moment_weights(base, exact, feature_values(FEATURES, parts[-1]).mean(0), prompts_of([prompt])))
    assert float((torch.stack(star) - truth).abs().max()) < 1.5
    energy = ConditionalLogLinear(FEATURES, prompt_network(3, 2, rng=SeededRng(0)))
    config = TrainingConfig(
        steps=100, batch_size=800, learning_rate=0.05, optimizer="adam", schedule="cosine", max_grad_norm=None
    )
    Trainer(config)(TiltedLikelihood(Exhaustive()), Tilted(base, energy), concatenate(parts), modules=energy)
    actual = energy.weights(prompts_of(prompts)).detach()
    assert torch.allclose(actual, torch.stack(star), atol=0.02)
    assert float((actual - actual.roll(1, 0)).abs().max()) > 1  # prompts differ, so a weight without a prompt would fail


def test_errors():
    target = Tilted(random_automaton(SPACE), LogLinear([Feature("odd", lambda x: x.lengths.double())]))
    with pytest.raises(ValueError, match="no sequence to learn from"):
        TiltedLikelihood()(target, sequences([]), rng=SeededRng(0))
    with pytest.raises(ValueError, match="at least 1 draw, not 0"):
        TiltedLikelihood(draws=0)
    forbidding = Tilted(random_automaton(SPACE), lambda x: torch.where(x.lengths > 0, torch.inf, 0.0).double())
    with pytest.raises(ValueError, match=r"All 8 draws of a prompt are forbidden.*raise `draws`"):
        TiltedLikelihood(draws=8)(forbidding, sequences([[1, 0]]), rng=SeededRng(0))
