"""Entropy gradients where the density is known, and the recipe that compares them in games."""

import json
from pathlib import Path

import pytest
import torch

from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.papers import find_recipe
from esscher.papers.energy_gan.gradients import (
    COSINE,
    INFERENCE,
    LEFT,
    LENGTH,
    MEASURES,
    NEIGHBOURS,
    NOISES,
    PANELS_FILE,
    TABLES_FILE,
    _known,
    _measures,
    affine_game,
    affine_gradient,
    entropy_gradient,
    gradient_effects,
    known_rows,
    make_gradient_rows,
)
from esscher.papers.energy_gan.recipe import game_folder
from esscher.papers.games.calibration import NeighbourEntropy, VariationalEntropy
from esscher.papers.study import OPEN, REFUTED, REPRODUCED, StudyContext


def affine_points(noise=1.0, count=500, seed=3):
    game = affine_game(noise)
    z = game.generator.draw_noise(count, rng=SeededRng(seed))
    return game, z, game.generator(z).detach()


def test_the_known_gradient_is_that_of_the_normal_density():
    game, z, x = affine_points()
    matrix, offset = game.generator.network.weight.detach(), game.generator.network.bias.detach()
    density = torch.distributions.MultivariateNormal(offset, matrix @ matrix.T)
    x.requires_grad_()
    (expected,) = torch.autograd.grad(density.log_prob(x).sum(), x)
    assert torch.allclose(affine_gradient(game, z), expected, atol=1e-4)
    assert torch.allclose(matrix.T @ matrix, torch.diag(torch.tensor([1.0, 9.0])), atol=1e-5)


def regression(neighbours, sign=1):
    """The matrix B of the least squares fit estimate = truth B, over 4 batches of 2,000 points."""
    estimates, truths = [], []
    for seed in range(4):
        game, z, x = affine_points(count=2_000, seed=seed)
        estimates.append(sign * entropy_gradient(NeighbourEntropy(neighbours), game, z, x))
        truths.append(affine_gradient(game, z))
    return torch.linalg.lstsq(torch.cat(truths), torch.cat(estimates)).solution


def test_neighbours_point_along_the_gradient_on_average():
    """Each entry of B is within 0.3 of the identity's: the largest is 1.23, by points whose neighbours all lie inwards. Wrong
    versions: towards the mean of all points, which in a round normal density would be right, and away from the neighbours."""
    assert torch.allclose(regression(60), torch.eye(2), atol=0.3)
    for wrong in (regression(1_999), regression(60, sign=-1)):
        assert not torch.allclose(wrong / wrong.norm() * 2**0.5, torch.eye(2), atol=0.3)


def test_at_a_point_neighbours_are_as_noisy_as_20_of_500_are():
    """The mean cosine over 20 batches has a standard error of 0.008."""
    assert _known(NeighbourEntropy(), 1.0, 1, 20)["cosine"].value == pytest.approx(0.62, abs=0.03)


def test_the_exact_inference_net_is_right_only_over_its_noise():
    """Its gradient at a point is -z a / (a^2 + s^2) by axis, and a^2 e / (s (a^2 + s^2)) of noise."""
    rows = {row["estimator"]: row for row in known_rows(batches=2)}
    for noise in NOISES:
        one, mean = (rows[f"{INFERENCE}, exact, noise {noise:g}{many}"] for many in ("", ", mean of 100"))
        assert one["cosine"].value < mean["cosine"].value - 0.2
    game, z, x = affine_points(noise=0.5)
    matrix = game.generator.network.weight.detach()
    with SeededRng(4).fork_torch_rng():
        many = torch.stack([entropy_gradient(VariationalEntropy(), game, z, x) for _ in range(400)]).mean(0)
    blurred = matrix @ matrix.T + 0.25 * torch.eye(2)
    expected = -(x - game.generator.network.bias.detach()) @ blurred.inverse()
    error = (many - expected).square().mean().sqrt()  # its deviation: a^2 / (s (a^2 + s^2)) / sqrt(400), about 0.09
    assert float(error) < 0.11 and float((many + expected).square().mean().sqrt()) > 0.5


def test_measures_by_hand():
    cost, entropy, data = torch.tensor([[2.0, 0.0]]), torch.tensor([[-1.0, 0.0]]), torch.tensor([[-1.0, 1.0]])
    batches = [{"cost": cost, INFERENCE: entropy, "data's": data}] * 2
    measured = _measures(batches, INFERENCE, 0.5)
    assert measured[COSINE].value == pytest.approx(0.5**0.5)
    assert (measured[LENGTH].value, measured[LEFT].value) == (pytest.approx(0.25), pytest.approx(0.75))


def test_claims_are_judged_over_seeds():
    def rows(seeds):
        of_game = {
            ("EGAN-Ent-NN", NEIGHBOURS): (0.9, 1.0, 0.3),
            ("EGAN-Ent-VI", INFERENCE): (0.2, 0.5, 0.2),
            ("EGAN-Ent-VI", NEIGHBOURS): (0.8, 1.0, 0.4),
        }
        return [
            {"process": "pair", "model": model, "estimator": estimator, "seed": seed}
            | {name: Estimate.exact(value * (1 + 0.01 * seed)) for name, value in zip(MEASURES, values, strict=True)}
            for (model, estimator), values in of_game.items()
            for seed in range(seeds)
        ]

    nearer, same, longer, left = gradient_effects(rows(3))
    assert nearer["effect"].value == pytest.approx(0.7 * 1.01) and same["effect"].value == pytest.approx(0.6 * 1.01)
    assert longer["effect"].value == pytest.approx(0.5 * 1.01 - 1) and left["effect"].value == pytest.approx(-0.1 * 1.01)
    assert [row["verdict"] for row in (nearer, same, longer, left)] == [REPRODUCED, REPRODUCED, REFUTED, REFUTED]
    assert {row["verdict"] for row in gradient_effects(rows(1))} == {OPEN}


@pytest.mark.slow
def test_smoke(tmp_path: Path, monkeypatch):
    result = find_recipe("energy-gan-gradients").run(scale="smoke", out=tmp_path, seeds=1)
    assert len(result["rows"]) == 9 and len(result["known"]) == 6 and {row["verdict"] for row in result["effects"]} == {OPEN}
    content = json.loads((tmp_path / TABLES_FILE).read_text())
    assert content["missing"] == 0 and content["pictured"] == ["four Gaussians", "biased pair", "two spirals"]
    assert (tmp_path / "gradients-biased-pair.png").is_file() and (tmp_path / "report.html").is_file()
    context = StudyContext(scale="smoke", out=tmp_path)
    assert (game_folder(context, "biased pair", "EGAN-Ent-VI", 0) / PANELS_FILE).is_file()
    monkeypatch.setattr("esscher.papers.games.networks.Trainer", None)
    assert make_gradient_rows(context, "biased pair", "EGAN-Ent-VI", 0) == result["rows"][4:6]
