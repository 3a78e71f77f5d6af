"""Processes in the plane have the density they state; grids count, normalise and compare."""

import math

import pytest
import torch

from esscher.core.randomness import SeededRng
from esscher.papers.games.evaluation import CellDistribution, Grid, divergence
from esscher.papers.games.points import PROCESSES, GaussianMixture2d, Points, two_spirals, with_unit_covariance


@pytest.mark.parametrize("name", PROCESSES)
def test_draws_follow_the_density(name):
    process = PROCESSES[name]()
    points = process.draw(20_000, rng=SeededRng(1))
    grid = Grid.around(points, 60)
    truth, drawn = grid.density(process.log_density(grid.centres)), grid.histogram(points)
    other = grid.density(process.log_density(grid.centres - torch.tensor([2.0, 0.0])))
    assert divergence(drawn, truth).value < 0.08 < 0.12 < divergence(drawn, other).value
    area = math.prod(high - low for low, high in zip(grid.low, grid.high, strict=True)) / 60**2
    assert float(process.log_density(grid.centres).exp().sum()) * area == pytest.approx(1, abs=0.02)


def test_processes_are_the_same_in_every_run():
    first, again = PROCESSES["four Gaussians"](), PROCESSES["four Gaussians"]()
    assert first.mean.equal(again.mean) and first.variance.equal(again.variance)
    drawn = [first.draw(5, rng=SeededRng(seed)).values for seed in (0, 0, 1)]
    assert drawn[0].equal(drawn[1]) and not drawn[0].equal(drawn[2])


def test_spirals_of_the_thesis_and_as_released():
    assert (len(two_spirals().mean), len(two_spirals("released").mean)) == (200, 100)
    assert with_unit_covariance(two_spirals()).variance.eq(1).all()


def test_divergences_by_hand():
    left, right = (
        CellDistribution(torch.tensor([0.5, 0.5]).double().log()),
        CellDistribution(torch.tensor([0.25, 0.75]).double().log()),
    )
    exact = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert divergence(left, right).value == pytest.approx(exact) and divergence(left, right).n == 0
    histogram = CellDistribution.histogram(torch.tensor([0] * 30 + [1] * 10), 3)
    known = CellDistribution(torch.tensor([0.5, 0.25, 0.25]).double().log())
    assert divergence(histogram, known).value == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(1))
    assert divergence(known, histogram).value == pytest.approx(
        0.5 * math.log(0.5 / 0.75) + 0.25 * math.log(1) + 0.25 * math.log(0.25 / (0.5 / 40))
    )


def test_the_interval_of_a_counted_divergence_covers():
    truth, other = torch.tensor([0.5, 0.3, 0.2]).double(), CellDistribution(torch.tensor([0.2, 0.3, 0.5]).double().log())
    exact = divergence(CellDistribution(truth.log()), other).value
    actual = [
        divergence(CellDistribution.histogram(SeededRng(s).categorical(truth.log()[None], 400)[0], 3), other) for s in range(60)
    ]
    assert sum(item.covers(exact) for item in actual) >= 50  # 95 % of 60 are 57; fewer than 50 has probability below 1e-4
    assert sum(item.covers(exact + 0.15) for item in actual) < 10


def test_points_outside_the_grid_count_in_the_nearest_cell():
    grid = Grid((0.0, 0.0), (1.0, 1.0), 2)
    cells = grid.histogram(Points(torch.tensor([[-5.0, -5.0], [0.9, 0.1], [7.0, 7.0], [0.1, 0.9]])))
    assert torch.allclose(cells.prob, torch.full((4,), 0.25, dtype=torch.float64))
    assert grid.centres.tolist() == [[0.25, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.75]]


def test_the_density_of_one_gaussian():
    item = GaussianMixture2d(torch.ones(1).double(), torch.zeros(1, 2).double(), torch.ones(1, 2).double())
    assert float(item.log_density(torch.zeros(1, 2))) == pytest.approx(-math.log(2 * math.pi))
