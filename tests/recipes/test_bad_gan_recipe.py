"""The recipe on few labels at its smallest: rows, pictures, that nothing is made twice, and published settings."""

from pathlib import Path

import pytest

from esscher.recipes import find
from esscher.recipes.bad_gan_rows import make_row, over_draws, saved
from esscher.recipes.bad_gan_studies import few_label_studies


def test_smoke(tmp_path: Path, monkeypatch):
    found = find("bad-gan").run(scale="smoke", out=tmp_path, seeds=1)
    models = [(study.name, model) for study in few_label_studies("smoke")[0] for model in study.models]
    assert [(row["points"], row["model"]) for row in found["rows"]] == models
    assert all(row["error"].low <= row["error"].value <= row["error"].high for row in found["rows"])
    assert (tmp_path / "report.html").is_file() and (tmp_path / "four-spins.png").is_file()
    assert (tmp_path / "digits, 20 labels" / "fm-+-ld-seed0" / "made.png").is_file()
    monkeypatch.setattr("esscher.recipes.bad_gan_rows.Trainer", None)  # nothing is trained again
    row = make_row("smoke", "four spins", "FM", 0, tmp_path)
    assert row == found["rows"][1] and saved(row, tmp_path).value == 0
    twice = over_draws([row, {**row, "draw": 0}], tmp_path)
    assert twice[0]["seeds"] == 2 and twice[0]["error"].value == row["error"].value
    with pytest.raises(ValueError, match="There is no row 'four spins', 'GAN' at smoke; known are four spins: labels only, FM"):
        make_row("smoke", "four spins", "GAN", 0, tmp_path)


def test_published_settings():
    studies, left_out = few_label_studies("paper")
    mnist, svhn, cifar = studies
    assert not left_out and (mnist.fresh, svhn.fresh, mnist.matching, cifar.matching) == (
        True,
        False,
        "mean-square",
        "absolute",
    )
    assert (mnist.start, mnist.share, mnist.points, mnist.models["FM + LD"].low_density) == (9_000, 0.1, 30, 1e-4)
    assert svhn.models["FM + PT + Ent"].pull_away == 0.8 and cifar.models["FM + VI"].variational == 1e-2
    assert cifar.training.learning_rate * cifar.paces["generator"].rate == pytest.approx(3e-4)
