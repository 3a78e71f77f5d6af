"""Classes from few labels: the losses by hand, a perfect generator that adds nothing, and the game in the trainer."""

import math

import pytest
import torch

from esscher.adversarial.calibration import VariationalEntropy
from esscher.adversarial.complement_gan import ComplementGan, LowDensity, matched, pulled_away, real_or_made
from esscher.adversarial.networks import PlanarNets
from esscher.adversarial.planar import biased_pair
from esscher.randomness import Seeded
from esscher.settings.training import TrainingConfig
from esscher.training.trainer import Trainer

NETS = PlanarNets(width=8, noise_size=3)


def test_a_perfect_generator_adds_nothing():
    """Proposition 4: whatever classifier the labels led to, one with the same classes is optimal beside it."""
    x = biased_pair().draw(300, rng=Seeded(0)).values
    classifier = NETS.build(classes=3, rng=Seeded(1)).discriminator
    logits = classifier(x).detach()
    twin = logits.log_softmax(-1).requires_grad_()  # the same classes, and a log-sum-exp of 0
    assert torch.allclose(twin.softmax(-1), logits.softmax(-1), atol=1e-6)
    loss = real_or_made(twin, twin)  # the generator's points are the data
    (gradient,) = torch.autograd.grad(loss, twin)
    assert float(loss.detach()) == pytest.approx(2 * math.log(2), rel=1e-5) and float(gradient.abs().max()) < 1e-6
    moved = twin.detach() + 0.3 * Seeded(2).normal(*twin.shape)
    assert float(real_or_made(moved, moved)) > float(loss.detach())


def test_a_generator_of_the_complement_does():
    process = biased_pair()
    x = process.draw(300, rng=Seeded(0)).values
    far = (Seeded(1).uniform(2_000, 2) - 0.5) * 40
    far = far[process.log_density(far) < -12]  # a box without the data
    classifier = NETS.build(classes=3, rng=Seeded(1)).discriminator
    twin = classifier(torch.cat([x, far])).detach().log_softmax(-1).requires_grad_()
    (gradient,) = torch.autograd.grad(real_or_made(twin[:300], twin[300:]), twin)
    assert float(gradient[:300].sum()) < -0.4 and float(gradient[300:].sum()) > 0.4  # it tells them apart


@torch.no_grad()
def test_losses_by_hand():
    nets, process = PlanarNets(width=8, noise_size=3, deviation=0.2), biased_pair()
    game = nets.build(inference=True, classes=2, rng=Seeded(3))
    data, labelled = process.draw(40, rng=Seeded(4)), process.draw(6, rng=Seeded(5))
    objective = ComplementGan(
        labelled, 6, pull_away=0.7, variational=0.2, conditional_entropy=0.3, unlabelled=0.5,
        low_density=LowDensity(process.log_density, -9.0, weight=2.0),
    )  # fmt: skip
    found = objective(game, data, rng=Seeded(6)).value
    rng = Seeded(6)
    rng.permutation(6)
    z = game.generator.draw_noise(40, rng=rng)
    made = game.generator(z)
    probability = torch.cat([game.discriminator(data.values), torch.zeros(40, 1)], -1).softmax(-1)
    generated = torch.cat([game.discriminator(made), torch.zeros(40, 1)], -1).softmax(-1)
    among = game.discriminator(data.values).softmax(-1)
    told = game.discriminator(labelled.values).log_softmax(-1)[torch.arange(6), labelled.labels]
    expected = -told.mean() + 0.5 * (-(1 - probability[:, 2]).log().mean() - generated[:, 2].log().mean())
    expected -= 0.3 * (among * among.log()).sum(-1).mean()
    assert float(found["discriminator"]) == pytest.approx(float(expected), rel=1e-3)
    real, fake = game.discriminator.features(data.values), game.discriminator.features(made)
    cosines = [torch.cosine_similarity(fake[i], fake[j], 0) ** 2 for i in range(40) for j in range(40) if i != j]
    excess = process.log_density(made) + 9
    bound = VariationalEntropy()(game, z, made)
    terms = [
        (real.mean(0) - fake.mean(0)).square().sum(),
        0.7 * sum(cosines) / 1560,
        2 * excess[excess > 0].mean(),
        0.2 * bound,
    ]
    assert float(found["generator"]) == pytest.approx(sum(float(term) for term in terms), rel=1e-3)
    assert float(matched(real, fake, "absolute")) == pytest.approx(float((real.mean(0) - fake.mean(0)).abs().mean()))


def test_pulled_away_and_low_density():
    assert float(pulled_away(torch.eye(3))) == pytest.approx(0) and float(pulled_away(torch.ones(4, 2))) == pytest.approx(1)
    x = torch.tensor([[0.0], [1.0], [2.0]])
    late = LowDensity(lambda x: x[:, 0], 0.5, start=3)
    assert float(late(x, rng=Seeded(0), step=2)) == 0 and float(late(x, rng=Seeded(0), step=3)) == pytest.approx(1.0)
    assert float(LowDensity(lambda x: x[:, 0], 9.0)(x, rng=Seeded(0), step=0)) == 0
    seldom = [float(LowDensity(lambda x: x[:, 0], 0.5, share=0.1)(x, rng=Seeded(s), step=0)) > 0 for s in range(200)]
    assert 5 < sum(seldom) < 45  # 10 % of 200; false alarm below 1e-5


def test_it_learns_classes_in_the_trainer():
    process = biased_pair()
    data, labelled = process.draw(400, rng=Seeded(1)), process.draw(30, rng=Seeded(2))
    game = PlanarNets(width=16).build(classes=2, rng=Seeded(3))
    config = TrainingConfig(steps=40, batch_size=50, learning_rate=5e-3, optimiser="adam", clip=None)
    Trainer(config, quiet=True)(ComplementGan(labelled, 30, fresh=True), game, data, modules=game.players)
    test = process.draw(500, rng=Seeded(9))
    right = float((game.discriminator(test.values).argmax(-1) == test.labels).double().mean())
    assert right > 0.92
