"""The recipe on few labels at its smallest: rows, pictures, that nothing is made twice, and the settings of studies."""

import json
from dataclasses import replace
from pathlib import Path

import kept_rows
import pytest

from esscher.papers import find_recipe
from esscher.papers.bad_gan.effects import LONGER
from esscher.papers.bad_gan.objective import LowDensity
from esscher.papers.bad_gan.recipe import make_row
from esscher.papers.bad_gan.studies import few_label_studies
from esscher.papers.sources import MNIST
from esscher.papers.study import StudyContext


@pytest.mark.slow
def test_smoke(tmp_path: Path, monkeypatch):
    result = find_recipe("bad-gan").run(scale="smoke", out=tmp_path, seeds=1)
    models = [(study.name, model) for study in few_label_studies("smoke")[0] for model in study.models]
    assert [(row["points"], row["model"]) for row in result["rows"]] == models
    assert all(row["error"].low <= row["error"].value <= row["error"].high for row in result["rows"])
    assert (tmp_path / "report.html").is_file() and (tmp_path / "four-spins.png").is_file()
    assert (tmp_path / "digits, 20 labels" / "fm-+-ld-seed0" / "made.png").is_file()
    pictures = ("four-spins-regions", "two-circles-features", "few-labels-longer")
    assert all((tmp_path / f"{name}.png").is_file() for name in pictures)
    assert all(row["generated"] == 1_000 for row in result["rows"] if row["model"] != "labels only")
    kept = json.loads((tmp_path / "few_labels.json").read_text())
    assert kept["missing"] == 0 and len(kept["rows"]) == len(models) == len(kept["levels"])
    assert [len(history) for history in kept["longer"]["digits, 20 labels, 12 updates"].values()] == [2, 2]
    monkeypatch.setattr("esscher.papers.games.networks.Trainer", None)  # nothing is trained again
    context = StudyContext(scale="smoke", out=tmp_path)
    row = make_row(context, "four spins", "FM", 0)
    assert row == result["rows"][1]
    with pytest.raises(ValueError, match="There is no row 'four spins', 'GAN' at smoke; known are four spins: labels only, FM"):
        make_row(context, "four spins", "GAN", 0)
    kept_rows.save("bad-gan", tmp_path, tmp_path / "kept")
    kept_rows.restore("bad-gan", tmp_path / "again", tmp_path / "kept")  # rows without their run folders
    assert find_recipe("bad-gan").run(scale="smoke", out=tmp_path / "again", seeds=1)["rows"] == result["rows"]


@pytest.mark.skipif(not MNIST.exists(), reason="MNIST is not here")
def test_a_longer_study_differs_in_its_length_alone():
    studies = {study.name: study for study in few_label_studies("small")[0]}
    mnist, longer = studies["MNIST, 100 labels"], studies[LONGER]
    assert list(studies)[-1] == LONGER and list(longer.models) == ["FM", "FM + PT"]
    assert all(longer.models[name] == mnist.models[name] for name in longer.models)
    assert replace(longer.training, steps=20_000, evaluate_every=500, save_every=1_000) == mnist.training
    assert (longer.training.steps, longer.training.evaluate_every, longer.training.save_every) == (80_000, 2_000, 2_000)
    assert replace(longer, name=mnist.name, models=mnist.models, training=mnist.training) == mnist
    quantiles = {name: model.low_density.quantile for name, model in mnist.models.items() if model and model.low_density}
    plain, *others = quantiles.values()
    assert plain == 0.1 and others == [0.1, 0.02, 0.2, 1.0]
    assert mnist.models["FM + LD + Ent"] == replace(mnist.models["FM + LD"], conditional_entropy=0.1)
    assert studies["two circles, two features"].nets == replace(studies["two circles"].nets, features=2)


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
