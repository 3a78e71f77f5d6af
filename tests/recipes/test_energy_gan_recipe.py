"""The recipe on calibrated energy GANs at its smallest: rows, pictures, and that nothing is made twice."""

from pathlib import Path

import pytest

from esscher.adversarial.calibration import NeighbourEntropy
from esscher.adversarial.energy_gan import Gate
from esscher.adversarial.planar import PROCESSES
from esscher.recipes import find
from esscher.recipes.energy_gan_images import image_games, make_image_row
from esscher.recipes.energy_gan_options import OPTIONS, make_option_row
from esscher.recipes.energy_gan_rows import MODELS, make_row, place_of_game, planned
from esscher.recipes.rows import ROW


def test_smoke(tmp_path: Path, monkeypatch):
    found = find("energy-gan").run(scale="smoke", out=tmp_path, seeds=1)
    assert [(row["process"], row["model"]) for row in found["rows"]] == [(p, m) for p in PROCESSES for m in MODELS]
    assert found["rows"][0]["KL(disc||data)"].draws == 0 < found["rows"][0]["KL(gen||data)"].draws
    assert (tmp_path / "report.html").is_file() and (tmp_path / "two-spirals.png").is_file()
    assert [row["option"] for row in found["options"]] == list(OPTIONS)[:2]
    assert [row["model"] for row in found["images"]] == ["random", "GAN", "EGAN-Const", "EGAN-Ent-VI", "EGAN-Ent-NN"]
    assert all(0 <= row["probe"].value <= 100 and row["mean image"].value > 0 for row in found["images"])
    assert (tmp_path / "digits" / "egan-ent-nn-seed0" / "ranked.png").is_file()
    monkeypatch.setattr("esscher.recipes.energy_gan_rows.Trainer", None)  # nothing is trained again
    row = make_row("smoke", "biased pair", "GAN", 0, tmp_path)
    assert row["KL(gen||data)"] == found["rows"][4]["KL(gen||data)"]
    assert (place_of_game(tmp_path, "biased pair", "GAN", 0) / ROW).is_file()


def test_published_settings():
    plan = planned("paper", "biased pair", "EGAN-Ent-NN")
    assert plan.objective.temperature == 0.15 and plan.objective.calibration == NeighbourEntropy(20, "variance")
    assert (plan.objective.gate.low, plan.objective.margin, plan.training.epochs) == (-0.2, 10.0, 100)
    assert planned("paper", "two spirals", "GAN").training.optimiser == "adagrad"
    assert all(
        planned(scale, p, m).training.batch_size == 500 for scale in ("small", "paper") for p in PROCESSES for m in MODELS
    )
    with pytest.raises(ValueError, match="There is no row 'plane', 'GAN'; known are four Gaussians"):
        planned("small", "plane", "GAN")


def test_published_settings_of_images():
    games = image_games("paper")
    assert games["MNIST"].gate == Gate(-1.2, 0.1) and games["MNIST"].temperature == 0.02 * 200
    cifar = games["CIFAR-10"]
    assert (cifar.nets.noise_size, cifar.nets.positive, cifar.smoothness, cifar.variational) == (100, True, 0.01, 0.1)
    with pytest.raises(ValueError, match="There is no row 'faces', 'GAN'"):
        make_image_row("smoke", "faces", "GAN", 0, Path("nowhere"))
    with pytest.raises(ValueError, match="There is no option 'none'; known are direction over"):
        make_option_row("smoke", "none", 0, Path("nowhere"))
