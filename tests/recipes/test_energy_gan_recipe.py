"""The recipe on calibrated energy GANs at its smallest: rows, pictures, and that nothing is made twice."""

from pathlib import Path

import pytest

from esscher.adversarial.calibration import NeighbourEntropy
from esscher.adversarial.planar import PROCESSES
from esscher.recipes import find
from esscher.recipes.energy_gan_rows import MODELS, ROW, make_row, place_of, planned


def test_smoke(tmp_path: Path, monkeypatch):
    found = find("energy-gan").run(scale="smoke", out=tmp_path, seeds=1)
    assert [(row["process"], row["model"]) for row in found["rows"]] == [(p, m) for p in PROCESSES for m in MODELS]
    assert found["rows"][0]["KL(disc||data)"].draws == 0 < found["rows"][0]["KL(gen||data)"].draws
    assert (tmp_path / "report.html").is_file() and (tmp_path / "two-spirals.png").is_file()
    monkeypatch.setattr("esscher.recipes.energy_gan_rows.Trainer", None)  # nothing is trained again
    row = make_row("smoke", "biased pair", "GAN", 0, tmp_path)
    assert row["KL(gen||data)"] == found["rows"][4]["KL(gen||data)"]
    assert (place_of(tmp_path, "biased pair", "GAN", 0) / ROW).is_file()


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
