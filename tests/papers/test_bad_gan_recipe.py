"""The recipe on few labels at its smallest: rows, pictures, that nothing is made twice, and published settings."""

from pathlib import Path

import pytest

from esscher.papers import find_recipe
from esscher.papers.bad_gan.objective import LowDensity
from esscher.papers.bad_gan.recipe import errors_saved, few_label_studies, make_row, over_draws
from esscher.papers.study import StudyContext


@pytest.mark.slow
def test_smoke(tmp_path: Path, monkeypatch):
    result = find_recipe("bad-gan").run(scale="smoke", out=tmp_path, seeds=1)
    models = [(study.name, model) for study in few_label_studies("smoke")[0] for model in study.models]
    assert [(row["points"], row["model"]) for row in result["rows"]] == models
    assert all(row["error"].low <= row["error"].value <= row["error"].high for row in result["rows"])
    assert (tmp_path / "report.html").is_file() and (tmp_path / "four-spins.png").is_file()
    assert (tmp_path / "digits, 20 labels" / "fm-+-ld-seed0" / "made.png").is_file()
    monkeypatch.setattr("esscher.papers.games.networks.Trainer", None)  # nothing is trained again
    context = StudyContext(scale="smoke", out=tmp_path)
    row = make_row(context, "four spins", "FM", 0)
    assert row == result["rows"][1] and errors_saved(context, row).value == 0
    twice = over_draws(context, [row, {**row, "draw": 0}])
    assert twice[0]["seeds"] == 2 and twice[0]["error"].value == row["error"].value
    with pytest.raises(ValueError, match="There is no row 'four spins', 'GAN' at smoke; known are four spins: labels only, FM"):
        make_row(context, "four spins", "GAN", 0)


def test_published_settings():
    studies, missing = few_label_studies("paper")
    _, svhn, cifar = studies
    assert not missing
    assert [study.models["FM"].separate_generator_batch for study in studies] == [True, False, False]
    assert [study.models["FM"].matching for study in studies] == ["mean-square", "absolute", "absolute"]
    assert {study.point_source.base.base.upsampling for study in studies} == {"2x3"}
    assert all(study.models["FM + LD"].low_density == LowDensity(1e-4, 9_000, 0.1, 30) for study in studies)
    assert svhn.models["FM + PT + Ent"].pull_away == 0.8 and cifar.models["FM + VI"].variational == 1e-2
    assert cifar.training.learning_rate * cifar.optimizers["generator"].lr_scale == pytest.approx(3e-4)
