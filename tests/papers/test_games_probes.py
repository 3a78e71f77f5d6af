"""What a game on images has learnt: a probe that finds what is linear, order by energy, the mean image; and its networks."""

import pytest
import torch
from torch import nn

from esscher.core.randomness import SeededRng
from esscher.papers.games.evaluation import fit_linear, mean_image_rmse, probe_error, sort_by_energy
from esscher.papers.games.networks import Discriminator, Game, Generator, ImageNets
from esscher.papers.games.points import Points


def game(body):
    return Game(Generator(nn.Linear(1, 1), 1), Discriminator(body, nn.Linear(2, 1)))


def test_a_probe_finds_classes_that_are_linear_in_the_features_only():
    values = SeededRng(0).normal(200, 2)
    points = Points(values, (values.prod(-1) > 0).long())
    train, test = points.rows(slice(0, 100)), points.rows(slice(100, None))

    class Product(nn.Module):
        def forward(self, x):
            return torch.stack([x.prod(-1), x[:, 0]], -1)

    good, bad = probe_error(Product(), train, test), probe_error(nn.Identity(), train, test)
    assert good.value < 15 and bad.value > 30 and good.unit == "%" and good.covers(good.value)


def test_the_fit_is_the_minimum():
    x, labels = SeededRng(1).normal(50, 3).double(), torch.arange(50) % 3
    weight = fit_linear(x, labels)
    by_itself = fit_linear(x.repeat(2, 1), labels.repeat(2))
    assert weight.shape == (4, 3) and torch.allclose(weight, by_itself, atol=1e-3)


def test_order_by_energy_and_the_mean_image():
    body = nn.Identity()
    item = game(body)
    with torch.no_grad():
        item.discriminator.head.weight.copy_(torch.tensor([[1.0, 0.0]]))
    x = Points(torch.tensor([[3.0, 0.0], [1.0, 5.0], [2.0, -1.0]]))
    assert sort_by_energy(item, x).tolist() == [1, 2, 0]
    made, real = Points(torch.zeros(40, 1, 2, 2)), Points(torch.full((30, 1, 2, 2), 0.5))
    assert mean_image_rmse(made, real).value == pytest.approx(0.5)


@pytest.mark.parametrize(
    "nets",
    [
        ImageNets((1, 8, 8), 4, 6, noise_size=3),
        ImageNets((3, 12, 8), 4, 6, noise_size=3, pixel_min=-1.0, positive=True),
        ImageNets((1, 8, 12), 4, form="thesis", noise_size=3),
    ],
)
def test_networks_of_images(nets):
    actual = nets.build(inference=True, rng=SeededRng(0))
    made = actual.generator.draw(5, rng=SeededRng(1))
    assert made.shape == (5, *nets.image) and nets.pixel_min <= float(made.detach().min()) and float(made.detach().max()) <= 1
    assert actual.inference(made).shape == (5, 6) and actual.discriminator.features(made).shape == (5, nets.feature_size)
    energy = actual.discriminator(made)
    assert energy.shape == (5,) and (not nets.positive or bool((energy > 0).all()))


@pytest.mark.parametrize("form", ["thesis", "released"])
def test_a_probe_reads_each_convolution_block_at_a_quarter_of_each_side(form):
    nets = ImageNets((1, 8, 12), 4, 6, form=form, noise_size=3)
    discriminator = nets.build(rng=SeededRng(0)).discriminator.eval()
    x = SeededRng(1).uniform(5, 1, 8, 12)
    blocks = nets.convolution_blocks(discriminator)
    assert list(blocks) == ["convolution 1", "convolution 2"]
    norm = list(discriminator.body)[1]
    first = torch.nn.functional.leaky_relu((norm if form == "thesis" else nn.Identity())(discriminator.body[0](x)), 0.2)
    places = first.unflatten(2, (2, -1)).unflatten(4, (3, -1)).mean((3, 5))  # 2 x 3 places
    assert torch.allclose(blocks["convolution 1"](x), places.flatten(1), atol=1e-6)
    assert [block(x).shape for block in blocks.values()] == [(5, 6 * 4), (5, 6 * 8)]


def test_the_networks_of_the_thesis_have_its_sizes():
    """B.8.1: three convolutions with batch norm; a probe reads 256 channels of 7 x 7 places."""
    game = ImageNets(width=64, form="thesis").build(inference=True, rng=SeededRng(0))
    shapes = {name: [tuple(p.shape[:2]) for p in part.parameters() if p.ndim > 1] for name, part in game.modules.items()}
    assert shapes["discriminator"] == [(64, 1), (128, 64), (256, 128), (1, 256 * 49)]
    assert shapes["inference"] == [(64, 1), (128, 64), (256, 128), (20, 256 * 49)]
    assert shapes["generator"] == [(512 * 49, 10), (512, 256), (256, 128), (128, 1)]
