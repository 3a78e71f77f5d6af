"""The recipe on images: what its studies are, where weights come from, and its smallest run from end to end."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

from esscher.core.estimate import Estimate
from esscher.data.config import DataConfig, ImageConfig
from esscher.data.splits import read_image_splits
from esscher.objectives.config import EForcingConfig, LikelihoodConfig
from esscher.papers.eforcing import images as studies
from esscher.papers.eforcing.images import (
    COMPLETED,
    LIKELIHOOD_WEIGHTS,
    OWN_WEIGHTS,
    PIXELCNN,
    SAMPLES,
    chosen_strength,
    effects,
    forcing,
    image_studies,
    run,
    train_and_measure,
    verdicts,
)
from esscher.papers.eforcing.language import FORCED, ONCE, PLAIN, SMOOTH
from esscher.papers.study import StudyContext


def test_models_of_a_study_differ_in_their_objective_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "MNIST", tmp_path / "none")
    made, missing = image_studies("small")
    assert {item.images for item in made} == {"digits, 8 x 8, binarised, 240"}
    assert missing == [f"{tmp_path}/none is not here; ESSCHER_DATA names another folder that holds it."]
    monkeypatch.setattr(studies, "MNIST", tmp_path)
    for scale in ("smoke", "small", "paper"):
        for study in image_studies(scale)[0]:
            assert list(study.models) == [PLAIN, SMOOTH, FORCED, ONCE] == list(study.names_for_seed(4))
            plain = study.models[PLAIN]
            for model, item in study.models.items():
                unsmoothed = replace(item.training, label_smoothing=0.0)
                assert (item.base, item.data, item.images, unsmoothed) == (plain.base, plain.data, plain.images, plain.training)
                assert isinstance(item.objective, LikelihoodConfig) == (model in (PLAIN, SMOOTH))
                assert getattr(item.objective, "counts", "again") == ("once" if model == ONCE else "again")


def test_at_small_e_forcing_begins_after_a_third_and_nothing_is_averaged(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "MNIST", tmp_path)
    for study in image_studies("small")[0]:
        for model in (FORCED, ONCE):
            item = study.models[model]
            assert item.training.swa_start is None and item.training.swa_patience is None
            assert item.objective.after_steps == item.training.steps // 3
            assert item.objective.draws * item.training.batch_size == 128


@pytest.mark.parametrize("decay", [0.9, 0.97, 0.9975])
def test_weights_of_all_positions_sum_to_3(decay):
    made = forcing(decay, after=7)
    assert made.after_steps == 7 and sum(made.weight * decay**k for k in range(20_000)) == pytest.approx(3.0)


def test_a_strength_is_the_sum_of_weights_or_the_smoothing():
    study = image_studies("small")[0][0]
    forced, smooth = study.run_of(FORCED, 0, 10.0), study.run_of(SMOOTH, 0, 0.03)
    assert forced.objective.weight / (1 - forced.objective.decay) == pytest.approx(10.0)
    assert smooth.training.label_smoothing == 0.03 and study.run_of(PLAIN, 0, None) == study.models[PLAIN]


def test_seeds_have_other_images():
    study = image_studies("small")[0][0]
    sets = [read_image_splits(made.data, made.images) for made in (study.run_of(PLAIN, seed, None) for seed in range(5))]
    assert all(len(train) == 240 for train, _, _ in sets)
    pixels = [torch.from_numpy(part[0].values).flatten(1) for part in sets]
    shared = {seed: (torch.cdist(pixels[0].double(), other.double()) == 0).any().item() for seed, other in enumerate(pixels)}
    assert shared == {0: True, 1: False, 2: False, 3: False, 4: False}
    assert all((part[k].values == sets[0][k].values).all() for part in sets for k in (1, 2))


def test_images_after_the_last_are_refused():
    with pytest.raises(ValueError, match="no training images after the first 9,000"):
        read_image_splits(DataConfig("digits"), ImageConfig(skip=9_000))
    with pytest.raises(ValueError, match="skip is at least 0"):
        ImageConfig(skip=-1)


def short(one, *, begin: int):
    objective = one.objective
    if isinstance(objective, EForcingConfig):
        objective = replace(objective, after_steps=begin)
    return replace(one, training=replace(one.training, steps=2, evaluate_every=1), objective=objective)


def test_the_smallest_run(tmp_path, monkeypatch):
    whole = studies._smoke()[0]
    models = {name: short(whole.models[name], begin=1) for name in (PLAIN, SMOOTH, FORCED)}
    few = replace(whole, models=models, grid_images=4, test_limit=6)
    monkeypatch.setattr(studies, "_smoke", lambda: [few])
    result = run(StudyContext(scale="smoke", out=tmp_path, seeds=2))
    assert len(result["rows"]) == 6 and len(result["over seeds"]) == 3 and len(result["effects"]) == 2
    for row in result["rows"]:
        assert row["test"].low <= row["test"].value <= row["test"].high and (row["saved"] is None) == (row["model"] == PLAIN)
        assert row["last test"].value >= 0 and row["network"] == PIXELCNN
        assert row["at step"] == 2 or row["test"].value != row["last test"].value
    assert {row["strength"] for row in result["rows"] if row["model"] == SMOOTH} <= {0.03, 0.1}
    assert [row["model"] for row in result["effects"]] == [SMOOTH, FORCED]
    kept = json.loads((tmp_path / "images.json").read_text())
    assert kept["missing"] == 0 and len(kept["rows"]) == 6
    context = StudyContext(scale="smoke", out=tmp_path)
    place = context.run_dir(few.name, FORCED, 1)
    for grid in (SAMPLES, COMPLETED):
        with Image.open(place / grid) as picture:
            assert max(picture.size) > 400
    assert "what was drawn after that" in (tmp_path / "report.html").read_text()
    again = context.row(few.name, FORCED, 1, lambda run_dir: pytest.fail("the row was made again"))
    assert again.items() <= result["rows"][5].items()
    assert chosen_strength(context, few, FORCED) is None


@pytest.mark.parametrize(("begin", "weights"), [(1, OWN_WEIGHTS), (2, LIKELIHOOD_WEIGHTS)])
def test_a_row_says_whose_weights_have_the_lowest_loss(tmp_path, begin, weights):
    """After two updates the loss still falls, so the last weights are the best: E-Forcing's own only if it began before."""
    whole = studies._smoke()[0]
    few = replace(whole, models={FORCED: short(whole.models[FORCED], begin=begin)}, grid_images=1, test_limit=2)
    row = train_and_measure(few, FORCED, 0, None, tmp_path)
    assert row["at step"] == 2 and row["weights"] == weights and row["test"] == row["last test"]


def test_effects_are_over_seeds_and_count_likelihoods_weights():
    def rows(saved, weights=OWN_WEIGHTS):
        made = []
        for seed, bits in enumerate(saved):
            about = {"images": "some", "network": "one", "seed": seed}
            plain = {"test": Estimate(0.5, 0.4, 0.6, 0.95, 9, "images"), "last test": Estimate.exact(0.7)}
            made.append({**about, "model": PLAIN, "weights": OWN_WEIGHTS, **plain, "late rise": Estimate.exact(0.3)})
            forced = {"test": Estimate(0.5 - bits, 0.3, 0.7, 0.95, 9, "images"), "last test": Estimate.exact(0.6)}
            made.append({**about, "model": FORCED, "weights": weights, **forced, "late rise": Estimate.exact(0.1)})
        return made

    (gains,) = effects(rows((0.03, 0.032, 0.031)))
    assert (gains["verdict"], gains["of likelihood"], gains["seeds"]) == ("gains", 0, 3)
    assert gains["saved"].value == pytest.approx(0.031) and gains["saved"].low > 0.028
    assert gains["last saved"].value == pytest.approx(0.1) and gains["rise saved"].value == pytest.approx(0.2)
    (unsure,) = effects(rows((0.03, 0.032, -0.04), LIKELIHOOD_WEIGHTS))
    assert (unsure["verdict"], unsure["of likelihood"]) == ("open", 3)
    assert effects(rows((0.03,))) == [], "one seed has no interval, so no verdict"
    assert verdicts([gains, gains, unsure])[0]["verdict"] == "reproduced"
    assert verdicts([gains, unsure, unsure])[0]["verdict"] == "open"


def test_rows_that_were_restored_without_their_folders_are_summed_up(tmp_path, monkeypatch):
    """A clone has the rows alone: effects are of them, and only intervals over images are gone."""
    few = replace(studies._smoke()[0], grid_images=1, test_limit=6)
    few = replace(few, models={name: short(few.models[name], begin=1) for name in (PLAIN, FORCED)}, strengths={})
    monkeypatch.setattr(studies, "_smoke", lambda: [few])
    first = run(StudyContext(scale="smoke", out=tmp_path / "first", seeds=2))
    for file in (tmp_path / "first").rglob("row.json"):
        copy = tmp_path / "second" / file.relative_to(tmp_path / "first")
        copy.parent.mkdir(parents=True)
        copy.write_text(file.read_text())
    second = run(StudyContext(scale="smoke", out=tmp_path / "second", seeds=2))
    assert second["effects"] == first["effects"] and second["rows"][1]["saved"] is None
    assert first["rows"][1]["saved"].value == pytest.approx(
        first["rows"][0]["test"].value - first["rows"][1]["test"].value, abs=1e-6
    )
