"""What the theory of calibrated energy GANs says, computed: optimal costs on a finite space, gradients of entropies."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

from esscher.core.randomness import SeededRng
from esscher.papers.energy_gan.objectives import FiniteGame, FiniteGan, constant, half_square, minus_entropy
from esscher.papers.games.calibration import (
    NeighbourEntropy,
    NeighbourSquare,
    VariationalEntropy,
    log_density_gradient,
    neighbour_density,
)
from esscher.papers.games.networks import Discriminator, Game, GaussianNoise, Generator
from esscher.papers.games.points import Points

DATA = torch.tensor([0.1, 0.15, 0.2, 0.25, 0.3], dtype=torch.float64)


def settled(objective, steps=300, rate=2.0):
    """Both players after exact extragradient steps (Korpelevich 1976): plain ones only circle round a flat cost."""
    begin = SeededRng(0).normal(2, len(DATA)).double()
    game = FiniteGame(begin[0].clone().requires_grad_(), begin[1].clone().requires_grad_())
    players = {"generator": game.logits, "discriminator": game.cost}

    def gradients():
        losses = objective(game, Points(DATA[None]), rng=SeededRng(0)).value
        return {name: torch.autograd.grad(losses[name], player)[0] for name, player in players.items()}

    for _ in range(steps):
        here = {name: player.detach().clone() for name, player in players.items()}
        for move in (gradients(), None):
            for name, gradient in (move or gradients()).items():
                with torch.no_grad():
                    players[name].copy_(here[name] - rate * gradient)
    return game.prob.detach(), game.cost.detach()


def distances(p, cost, expected):
    """Total variation from the data, correlation with the expected cost."""
    variation = float((p - DATA).abs().sum() / 2)
    return variation, float(torch.corrcoef(torch.stack([cost, expected]))[0, 1])


@pytest.mark.parametrize(
    ("convex", "temperature", "expected"), [(minus_entropy, 1.0, -DATA.log()), (half_square, 4.0, -4 * DATA)]
)
def test_a_calibrated_cost_is_the_derivative_of_k(convex, temperature, expected):
    p, cost = settled(FiniteGan(convex, temperature))
    variation, correlation = distances(p, cost, expected)
    assert variation < 0.01 and correlation > 0.99
    assert torch.allclose(cost - cost.mean(), expected - expected.mean(), atol=0.02)


def test_without_calibration_the_cost_is_flat():
    p, cost = settled(FiniteGan(constant))
    assert distances(p, cost, -DATA.log())[0] < 0.01
    assert float(cost.max() - cost.min()) < 0.01


@pytest.mark.parametrize(
    "wrong",
    [
        FiniteGan(constant),
        FiniteGan(half_square, 4.0),
        FiniteGan(lambda p: -minus_entropy(p)),
        FiniteGan(minus_entropy, loss=softplus),
    ],
    ids=["constant", "square", "entropy lowered", "K added to a GAN"],
)
def test_other_games_have_another_cost(wrong):
    p, cost = settled(wrong, steps=200)
    energy = -DATA.log()
    variation, _ = distances(p, cost, energy)
    assert variation > 0.01 or not torch.allclose(cost - cost.mean(), energy - energy.mean(), atol=0.05)


class Scaled(nn.Module):
    """x_i = s_i z_i: a Gaussian whose entropy is sum log s_i."""

    def __init__(self, scale):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, z):
        return self.scale * z


def scale_gradient(calibration, scale, count=4_000):
    """The mean of s_i times the gradient by s_i; of minus entropy it is -1 for each number."""
    generator = Generator(Scaled(scale), len(scale))
    z = generator.draw_noise(count, rng=SeededRng(3))
    (gradient,) = torch.autograd.grad(calibration(Game(generator, nothing()), z, generator(z)), generator.network.scale)
    return gradient * torch.tensor(scale)


def nothing():
    return Discriminator(nn.Identity(), nn.Identity())


def test_the_entropy_gradient_of_neighbours_is_a_gaussians():
    right = scale_gradient(NeighbourEntropy(20), [1.0, 2.0])
    assert torch.allclose(right, torch.full((2,), -1.0), atol=0.15), right
    for wrong in (NeighbourEntropy(20, "variance"), NeighbourEntropy(20, "unit"), NeighbourSquare(20)):
        assert not torch.allclose(scale_gradient(wrong, [1.0, 2.0]), torch.full((2,), -1.0), atol=0.15)


def test_neighbours_tell_density_and_its_gradient():
    x = SeededRng(4).normal(4_000, 2)
    inner = x.square().sum(-1) < 2
    density = (-0.5 * x.square().sum(-1)).exp() / (2 * math.pi)
    actual = neighbour_density(x, 30)
    assert float((actual / density)[inner].log().mean().abs()) < 0.05
    pull = log_density_gradient(x, 30)
    slope = float((pull * -x)[inner].sum() / x.square()[inner].sum())
    assert slope == pytest.approx(1, abs=0.15)
    assert torch.allclose(log_density_gradient(x, 30, "unit").norm(dim=-1), torch.ones(len(x)))
    with pytest.raises(ValueError, match="30 neighbours are wanted in a batch of 10"):
        log_density_gradient(x[:10], 30, "unit")


class Summed(nn.Module):
    """x = s z_1 + t z_2, a Gaussian whose entropy is log(s^2 + t^2) / 2 + const."""

    def __init__(self, scale, peak):
        super().__init__()
        self.scale, self.peak = nn.Parameter(torch.tensor(scale)), peak

    def forward(self, z):
        return (self.scale * z[:, :1]) + self.peak * z[:, 1:]


class Posterior(nn.Module):
    """The best diagonal Gaussian for the noise of `Summed`, with a deviation that is the best one of the form used."""

    def __init__(self, scale, peak, share):
        super().__init__()
        total = scale**2 + peak**2
        self.slope = torch.tensor([scale / total, peak / total])
        self.log_deviation = (torch.tensor([peak**2, scale**2]) / total / share).log() / 2
        self.log_deviation.requires_grad_()

    def forward(self, x):
        return torch.cat([x * self.slope, self.log_deviation.expand(len(x), -1)], -1)


@pytest.mark.parametrize(("form", "share"), [("gaussian", 1.0), ("released", 0.5)])
def test_the_variational_gradient_is_a_gaussians_and_half_of_it_as_released(form, share):
    scale, peak = 1.5, 0.1
    generator, posterior = Generator(Summed(scale, peak), 2), Posterior(scale, peak, share)
    z = generator.draw_noise(1_000, rng=SeededRng(5))
    z = torch.linalg.solve_triangular(torch.linalg.cholesky(z.T @ z / len(z)), z.T, upper=False).T  # exact second moments
    term = VariationalEntropy(form)(Game(generator, nothing(), posterior), z, generator(z))
    by_scale, by_deviation = torch.autograd.grad(term, [generator.network.scale, posterior.log_deviation])
    assert float(by_deviation.abs().max()) < 1e-3  # the inference net has nothing left to learn
    exact, loose = scale / (scale**2 + peak**2), peak**2 / (scale**2 + peak**2) / scale  # the bound's own error vanishes with t
    assert float(by_scale) == pytest.approx(-share * (exact - loose), rel=1e-3) and loose < 0.01 * exact


class Fixed(nn.Module):
    """The posterior of z given a z + noise of deviation s, a Gaussian."""

    def __init__(self, scale, blur):
        super().__init__()
        self.slope = scale / (scale**2 + blur**2)
        self.log_deviation = torch.tensor(blur / math.sqrt(scale**2 + blur**2)).log().requires_grad_()

    def forward(self, x):
        return torch.cat([x * self.slope, self.log_deviation.expand_as(x)], -1)


@pytest.mark.parametrize(("blur", "settles"), [(0.5, True), (0.0, False)])
def test_with_noise_before_the_inference_net_the_bound_is_an_entropy(blur, settles):
    """x~ = a z + s e: the gradient of minus its entropy is -a / (a^2 + s^2); without the noise the net would never settle."""
    scale = 1.5
    generator, posterior = Generator(Scaled([scale]), 1), Fixed(scale, 0.5)
    z = generator.draw_noise(200_000, rng=SeededRng(6))
    with SeededRng(7).fork_torch_rng():
        term = VariationalEntropy()(Game(generator, nothing(), nn.Sequential(GaussianNoise(blur), posterior)), z, generator(z))
    by_scale, by_deviation = torch.autograd.grad(term, [generator.network.scale, posterior.log_deviation])
    assert float(by_scale) == pytest.approx(-scale / (scale**2 + 0.25), rel=0.03)  # 6 standard errors
    assert (abs(float(by_deviation)) < 0.02) == settles


def test_a_bounded_deviation_and_a_missing_net():
    generator = Generator(Scaled([1.0, 1.0]), 2)
    z = generator.draw_noise(8, rng=SeededRng(0))
    wide = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 4))
    with torch.no_grad():
        for parameter in wide.parameters():
            parameter.zero_()
        wide[1].bias[2:] = 20.0
    game = Game(generator.requires_grad_(False), nothing(), wide.requires_grad_(False))
    bounded, free = (float(VariationalEntropy(bound=bound)(game, z, generator(z))) for bound in (0.5, None))
    expected = 2 * math.log(0.5) + 0.5 * float((z / 0.5).square().sum(-1).mean())
    assert bounded == pytest.approx(expected, rel=1e-3) and free > 39
    with pytest.raises(ValueError, match="needs an inference net"):
        VariationalEntropy()(Game(generator, nothing()), z, generator(z))
