"""Classes from few labels: the losses by hand, a perfect generator that adds nothing, and the game in the trainer."""

import math

import pytest
import torch

from esscher.core.randomness import SeededRng
from esscher.papers.bad_gan.objective import (
    ComplementGan,
    ComplementGanConfig,
    LowDensity,
    UniformComplement,
    class_entropy_loss,
    feature_matching_loss,
    pull_away_loss,
    real_or_generated_loss,
)
from esscher.papers.games.calibration import VariationalEntropy
from esscher.papers.games.networks import PlanarNets
from esscher.papers.games.points import biased_pair
from esscher.training.config import TrainingConfig
from esscher.training.trainer import Trainer

NETS = PlanarNets(width=8, noise_size=3)


def test_a_perfect_generator_adds_nothing():
    """Proposition 4: whatever classifier the labels led to, one with the same classes is optimal beside it."""
    x = biased_pair().draw(300, rng=SeededRng(0)).values
    classifier = NETS.build(classes=3, rng=SeededRng(1)).discriminator
    logits = classifier(x).detach()
    twin = logits.log_softmax(-1).requires_grad_()  # the same classes, and a log-sum-exp of 0
    assert torch.allclose(twin.softmax(-1), logits.softmax(-1), atol=1e-6)
    loss = real_or_generated_loss(twin, twin)  # the generator's points are the data
    (gradient,) = torch.autograd.grad(loss, twin)
    assert float(loss.detach()) == pytest.approx(2 * math.log(2), rel=1e-5) and float(gradient.abs().max()) < 1e-6
    moved = twin.detach() + 0.3 * SeededRng(2).normal(*twin.shape)
    assert float(real_or_generated_loss(moved, moved)) > float(loss.detach())


def test_a_generator_of_the_complement_does():
    process = biased_pair()
    x = process.draw(300, rng=SeededRng(0)).values
    far = (SeededRng(1).uniform(2_000, 2) - 0.5) * 40
    far = far[process.log_density(far) < -12]  # a box without the data
    classifier = NETS.build(classes=3, rng=SeededRng(1)).discriminator
    twin = classifier(torch.cat([x, far])).detach().log_softmax(-1).requires_grad_()
    (gradient,) = torch.autograd.grad(real_or_generated_loss(twin[:300], twin[300:]), twin)
    assert float(gradient[:300].sum()) < -0.4 and float(gradient[300:].sum()) > 0.4  # it tells them apart


@torch.no_grad()
def test_losses_by_hand():
    nets, process = PlanarNets(width=8, noise_size=3, std=0.2), biased_pair()
    game = nets.build(inference=True, classes=2, rng=SeededRng(3))
    data, labelled = process.draw(40, rng=SeededRng(4)), process.draw(6, rng=SeededRng(5))
    config = ComplementGanConfig(
        labelled_batch_size=6, pull_away=0.7, variational=0.2, conditional_entropy=0.3, unlabelled_weight=0.5,
        low_density=LowDensity(2.0),
    )  # fmt: skip
    with pytest.raises(ValueError, match="LowDensity needs a density"):
        ComplementGan(labelled, config)
    objective = ComplementGan(labelled, config, (process.log_density, -9.0))
    value = objective(game, data, rng=SeededRng(6)).value
    rng = SeededRng(6)
    rng.permutation(6)
    z = game.generator.draw_noise(40, rng=rng)
    made = game.generator(z)
    probability = torch.cat([game.discriminator(data.values), torch.zeros(40, 1)], -1).softmax(-1)
    generated = torch.cat([game.discriminator(made), torch.zeros(40, 1)], -1).softmax(-1)
    among = game.discriminator(data.values).softmax(-1)
    output = game.discriminator(labelled.values).log_softmax(-1)[torch.arange(6), labelled.labels]
    expected = -output.mean() + 0.5 * (-(1 - probability[:, 2]).log().mean() - generated[:, 2].log().mean())
    expected -= 0.3 * (among * among.log()).sum(-1).mean()
    assert float(value["discriminator"]) == pytest.approx(float(expected), rel=1e-3)
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
    assert float(value["generator"]) == pytest.approx(sum(float(term) for term in terms), rel=1e-3)
    assert float(feature_matching_loss(real, fake, "absolute")) == pytest.approx(
        float((real.mean(0) - fake.mean(0)).abs().mean())
    )


def test_the_ideal_complement_is_uniform_outside_the_threshold():
    def log_density(x):  # a disc of radius 1 is dense
        return -x.norm(dim=-1)

    sampler = UniformComplement((-2.0, -1.0), (2.0, 3.0), (log_density, -1.0))
    x = sampler.draw(4_000, rng=SeededRng(0))
    assert x.shape == (4_000, 2) and float(x.norm(dim=-1).min()) >= 1
    assert x.amin(0).tolist() == pytest.approx([-2, -1], abs=0.05) and x.amax(0).tolist() == pytest.approx([2, 3], abs=0.05)
    above = float((x[:, 1] > 1).double().mean())  # half of the box, and more of the rest: 8 / (16 - pi)
    assert above == pytest.approx(8 / (16 - math.pi), abs=0.035)  # 4.5 deviations


def test_beside_an_ideal_complement_only_the_classifier_learns():
    process = biased_pair()
    data, labelled = process.draw(40, rng=SeededRng(4)), process.draw(6, rng=SeededRng(5))
    game = NETS.build(classes=2, rng=SeededRng(3))
    plain, ideal = ComplementGanConfig(), ComplementGanConfig(complement_quantile=0.01)
    sampler = UniformComplement((-9.0, -9.0), (9.0, 9.0), (process.log_density, -9.0))
    for config, complement in ((plain, sampler), (ideal, None)):
        with pytest.raises(ValueError, match="give both, or none"):
            ComplementGan(labelled, config, complement=complement)
    objective = ComplementGan(labelled, ideal, complement=sampler)
    losses = objective(game, data, rng=SeededRng(6)).value
    rng = SeededRng(6)
    rng.permutation(6)
    game.generator.draw_noise(40, rng=rng)
    made = sampler.draw(40, rng=rng)
    expected = real_or_generated_loss(game.discriminator(data.values), game.discriminator(made))
    expected = expected + torch.nn.functional.cross_entropy(game.discriminator(labelled.values), labelled.labels)
    assert list(losses) == ["discriminator"]
    assert float(losses["discriminator"].detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_the_entropy_of_classes_alone_or_among_all():
    logits = torch.tensor([[0.3, -1.0, 0.5], [-9.0, -9.5, -8.0]])  # the second is taken for generated
    p = torch.cat([logits, torch.zeros(2, 1)], 1).softmax(-1)[:, :3]
    assert float(class_entropy_loss(logits, "all")) == pytest.approx(float(-(p * p.log()).sum(-1).mean()), rel=1e-5)
    q = p / p.sum(-1, keepdim=True)
    assert float(class_entropy_loss(logits, "classes")) == pytest.approx(float(-(q * q.log()).sum(-1).mean()), rel=1e-5)
    assert float(class_entropy_loss(logits[1:], "all")) < 0.02 < 0.5 < float(class_entropy_loss(logits[1:], "classes"))


def test_excess_is_over_the_points_that_exceed_or_over_all():
    x, rng = torch.tensor([[0.0], [1.0], [3.0], [0.2]]), SeededRng(0)
    terms = [LowDensity(mean_over=over)(x, (lambda x: x[:, 0], 0.5), rng=rng, step=0) for over in ("exceeding", "all")]
    assert [float(term) for term in terms] == pytest.approx([1.5, 0.75])


def test_pulled_away_and_low_density():
    assert float(pull_away_loss(torch.eye(3))) == pytest.approx(0) and float(pull_away_loss(torch.ones(4, 2))) == pytest.approx(
        1
    )
    x = torch.tensor([[0.0], [1.0], [2.0]])

    def first(x):
        return x[:, 0]

    late = [float(LowDensity(start_step=3)(x, (first, 0.5), rng=SeededRng(0), step=step)) for step in (2, 3)]
    assert late == [0, pytest.approx(1.0)]
    assert float(LowDensity()(x, (first, 9.0), rng=SeededRng(0), step=0)) == 0
    seldom = [float(LowDensity(probability=0.1)(x, (first, 0.5), rng=SeededRng(s), step=0)) > 0 for s in range(200)]
    assert 5 < sum(seldom) < 45  # 10 % of 200; false alarm below 1e-5


def test_it_learns_classes_in_the_trainer():
    process = biased_pair()
    data, labelled = process.draw(400, rng=SeededRng(1)), process.draw(30, rng=SeededRng(2))
    game = PlanarNets(width=16).build(classes=2, rng=SeededRng(3))
    config = TrainingConfig(steps=40, batch_size=50, learning_rate=5e-3, optimizer="adam", max_grad_norm=None)
    objective = ComplementGan(labelled, ComplementGanConfig(labelled_batch_size=30, separate_generator_batch=True))
    Trainer(config)(objective, game, data, modules=game.modules)
    test = process.draw(500, rng=SeededRng(9))
    right = float((game.discriminator(test.values).argmax(-1) == test.labels).double().mean())
    assert right > 0.92
