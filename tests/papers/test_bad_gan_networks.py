"""Networks of images: normed weights and the pass that sets them, published sizes, noise in training only."""

import pytest
import torch
from torch import nn

from esscher.core.randomness import SeededRng
from esscher.papers.bad_gan.networks import ConvNets, DenseNets, WeightNorm, data_dependent_init, data_dependent_init_game


def layers():
    with SeededRng(0).fork_torch_rng():
        first = [WeightNorm(nn.Conv2d(2, 5, 3), init_std=0.5), nn.ReLU(), WeightNorm(nn.ConvTranspose2d(5, 3, 3, 2))]
        return nn.Sequential(*first, nn.Flatten(), WeightNorm(nn.Linear(3 * 81, 4), trainable_scale=True))


def test_after_settling_every_output_has_mean_0_and_its_spread():
    network, x = layers(), 3 + 2 * SeededRng(1).normal(40, 2, 6, 6)
    data_dependent_init(network, x, rng=SeededRng(2))
    for layer in network:
        before, x = x, layer(x)
        if isinstance(layer, WeightNorm):
            flat = x.detach().transpose(0, 1).flatten(1)
            assert torch.allclose(flat.mean(1), torch.zeros(len(flat)), atol=1e-4)
            assert torch.allclose(flat.std(1), torch.full((len(flat),), layer.init_std), rtol=1e-3)
            free = layer.layer(before).detach().transpose(0, 1).flatten(1)  # weights that are not normed are told apart
            assert not torch.allclose(free.std(1), flat.std(1), rtol=1e-2)


def test_the_length_of_weights_is_theirs_and_learns_only_if_said():
    network = layers()
    for layer, axis in ((network[0], 0), (network[2], 1), (network[4], 0)):
        with torch.no_grad():
            layer.scale.fill_(1.7)
        norm = layer.weight().detach().transpose(0, axis).flatten(1).norm(dim=1)
        assert torch.allclose(norm, torch.full_like(norm, 1.7), rtol=1e-3)
    assert [layer.scale.requires_grad for layer in network if isinstance(layer, WeightNorm)] == [False, False, True]


@pytest.mark.parametrize(
    ("nets", "image", "features"),
    [(DenseNets((1, 8, 8), (20, 12), (9, 7), 6), (1, 8, 8), 12), (ConvNets((3, 16, 16), 4, 16, 6), (3, 16, 16), 8)],
)
def test_games_of_images(nets, image, features):
    game = nets.build(classes=10, inference=True, rng=SeededRng(0))
    images = SeededRng(1).uniform(50, *image)
    data_dependent_init_game(game, images, rng=SeededRng(2))
    made = game.generator.draw(7, rng=SeededRng(3))
    assert made.shape == (7, *image) and game.inference(made).shape == (7, 12)
    assert game.discriminator(images).shape == (50, 10) and game.discriminator.features(images).shape == (50, features)
    assert not game.discriminator(images).equal(game.discriminator(images))  # noise
    game.discriminator.eval()
    assert game.discriminator(images).equal(game.discriminator(images))
    again = nets.build(classes=10, inference=True, rng=SeededRng(0))
    data_dependent_init_game(again, images, rng=SeededRng(2))
    assert all(a.equal(b) for a, b in zip(game.discriminator.parameters(), again.discriminator.parameters(), strict=True))


def test_published_sizes():
    game = DenseNets().build(classes=10, rng=SeededRng(0))
    assert sum(p.numel() for p in game.discriminator.body.parameters() if p.ndim == 2) == 784_000 + 500_000 + 125_000 + 125_000
    assert sum(p.numel() for p in game.generator.parameters() if p.ndim == 2) == 50_000 + 250_000 + 392_000
    conv = [
        layer
        for layer in ConvNets(width=96).build(classes=10, rng=SeededRng(0)).discriminator.body
        if isinstance(layer, WeightNorm)
    ]
    assert [layer.layer.out_channels for layer in conv] == 3 * [96] + 6 * [192]
