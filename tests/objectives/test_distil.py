"""Gradients of distillation against exact enumeration, and wrong versions that the comparison catches."""

import pytest
import torch
from random_targets import PROMPTS, random_target

from esscher.bases.network import build_base
from esscher.core.objective import Loss
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts, prompts_of
from esscher.core.target import Tilted
from esscher.exact.enumeration import enumerate_points
from esscher.networks.recurrent_config import LstmConfig
from esscher.objectives.distil import F_DIVERGENCE_DERIVATIVES, Distil, PolicyGradient, ReweightedDistil
from esscher.samplers.importance import Exhaustive
from esscher.testing import check_objective, every_outcome

SPACE = Space(3, 3, eos=0)
TEACHER = random_target(SPACE)
LAW = "gradient must be that of the exact loss"


def student(space: Space = SPACE):
    return build_base(LstmConfig(width=5, layers=1), space, rng=SeededRng(3)).double().eval()


def both(base, prompts):
    """Log-probabilities of teacher and student over all points, a row for each prompt."""
    x = enumerate_points(SPACE, prompts)
    shape = (len(prompts), -1)
    return torch.log_softmax(TEACHER.log_score(x).view(shape), -1), base.log_probs(x).sum(-1).view(shape)


def divergence(name: str, log_p, log_q):
    p, q = log_p.exp(), log_q.exp()
    middle = ((p + q) / 2).log()
    return {
        "kl": (p * (log_p - log_q)).sum(-1),
        "reverse-kl": (q * (log_q - log_p)).sum(-1),
        "total-variation": (p - q).abs().sum(-1) / 2,
        "jensen-shannon": ((p * (log_p - middle)).sum(-1) + (q * (log_q - middle)).sum(-1)) / 2,
    }[name].mean()


@pytest.mark.parametrize("prompts", [empty_prompts(1), prompts_of(PROMPTS)], ids=["no prompt", "prompts"])
@pytest.mark.parametrize("name", F_DIVERGENCE_DERIVATIVES)
def test_policy_gradient_is_that_of_the_divergence(name, prompts):
    base = student()
    target, weights = Tilted(base), list(base.parameters())

    def exact():
        return divergence(name, *both(base, prompts))

    for baseline in (True, False):
        objective = PolicyGradient(TEACHER, name, sampler=Exhaustive(), baseline=baseline)
        check_objective(objective, target, prompts, exact, weights, rng=SeededRng(0))
    other = "reverse-kl" if name == "kl" else "kl"
    with pytest.raises(AssertionError, match=LAW):
        check_objective(PolicyGradient(TEACHER, other, sampler=Exhaustive()), target, prompts, exact, weights, rng=SeededRng(0))


def test_distil_has_the_gradient_of_the_cross_entropy():
    base, prompts = student(), prompts_of(PROMPTS)
    target, weights = Tilted(base), list(base.parameters())
    lengths = enumerate_points(SPACE, prompts).lengths.view(len(prompts), -1)

    def exact():
        log_p, log_q = both(base, prompts)
        return -(log_p.exp() * log_q).sum() / (log_p.exp() * lengths).sum()

    check_objective(Distil(TEACHER, Exhaustive()), target, prompts, exact, weights, rng=SeededRng(0))
    with pytest.raises(AssertionError, match=LAW):  # the base instead of the tilted model as the teacher
        check_objective(Distil(Tilted(TEACHER.base), Exhaustive()), target, prompts, exact, weights, rng=SeededRng(0))


class Judged:
    """A teacher's base that is a network, so that it tells whole distributions."""

    base = build_base(LstmConfig(width=5, layers=1), SPACE, rng=SeededRng(8)).double().eval()
    teacher = Tilted(base, TEACHER.energy)


def test_reweighted_has_the_gradient_of_the_cross_entropy_and_none_of_the_noise_at_the_base():
    base, prompts = student(), prompts_of([[1, 2]])
    x = enumerate_points(SPACE, prompts)
    log_a = Judged.base.log_probs(x).sum(-1).detach()
    log_z = float(torch.logsumexp(Judged.teacher.log_score(x).detach(), 0))
    weights = list(base.parameters())

    def gradient(value):
        return torch.cat([gradients.flatten() for gradients in torch.autograd.grad(value, weights)])

    p = (Judged.teacher.log_score(x).detach() - log_z).exp()
    exact = gradient(-(p * base.log_probs(x).sum(-1)).sum() / SPACE.max_length)

    def mean(objective):
        rows = [x.rows(slice(row, row + 1)) for row in range(len(x))]
        return sum(
            share * gradient(objective(Tilted(base), row, rng=SeededRng(0)).value)
            for share, row in zip(log_a.exp(), rows, strict=True)
        )

    assert torch.allclose(mean(ReweightedDistil(Judged.teacher, log_z)), exact, atol=1e-9)
    assert not torch.allclose(mean(ReweightedDistil(Judged.teacher, log_z + 0.5)), exact, atol=1e-4)  # another Z
    flat = ReweightedDistil(Tilted(Judged.base), 0.0)(Tilted(Judged.base), x.rows(slice(3, 4)), rng=SeededRng(0))
    at_rest = torch.autograd.grad(flat.value, list(Judged.base.parameters()))
    assert max(float(gradients.abs().max()) for gradients in at_rest) < 1e-12  # one draw, and no noise
    with pytest.raises(ValueError, match="Automaton has no `logits`"):
        ReweightedDistil(TEACHER, 0.0)(Tilted(base), x, rng=SeededRng(0))


def mean_gradient(objective, base):
    """The expected gradient over every outcome of the student's draws, as one vector."""
    total = torch.zeros(sum(weight.numel() for weight in base.parameters()), dtype=torch.float64)

    def gradient(rng):
        value = objective(Tilted(base), empty_prompts(1), rng=rng).value
        return torch.cat([gradients.flatten() for gradients in torch.autograd.grad(value, list(base.parameters()))])

    for probability, actual in every_outcome(gradient):
        total += probability * actual
    return total


@pytest.mark.parametrize("name", F_DIVERGENCE_DERIVATIVES)
def test_drawn_gradients_are_right_on_average_with_and_without_baseline(name):
    """Exact, over all outcomes of two draws; a baseline that includes the draw itself is caught."""
    space = Space(2, 2)
    teacher, base = random_target(space), student(space)
    x = enumerate_points(space)
    log_z = float(torch.logsumexp(teacher.log_score(x), 0))
    log_p, log_q = teacher.log_score(x) - log_z, base.log_probs(x).sum(-1)
    value = divergence(name, log_p[None], log_q[None])
    exact = torch.cat([gradients.flatten() for gradients in torch.autograd.grad(value, list(base.parameters()))])

    for baseline in (True, False):
        actual = mean_gradient(PolicyGradient(teacher, name, draws=2, log_z=log_z, baseline=baseline), base)
        assert torch.allclose(actual, exact, atol=1e-9)

    def own_mean(target, data, *, rng, step=0) -> Loss:
        plain = PolicyGradient(teacher, name, draws=2, log_z=log_z)(target, data, rng=rng)
        return Loss(plain.value / 2)  # subtracting the mean of both draws halves the gradient

    assert not torch.allclose(mean_gradient(own_mean, base), exact, atol=1e-4)


def test_errors():
    with pytest.raises(ValueError, match=r"No divergence named 'hellinger'\. Choose from: kl, reverse-kl"):
        PolicyGradient(TEACHER, "hellinger")
    with pytest.raises(ValueError, match="at least 2, not 1"):
        PolicyGradient(TEACHER, draws=1)
