"""The recipe on images: what its studies are, and its smallest run from end to end."""

from dataclasses import replace

import pytest
from PIL import Image

from esscher.objectives.config import EForcingConfig, LikelihoodConfig
from esscher.papers.eforcing import images as studies
from esscher.papers.eforcing.images import COMPLETED, SAMPLES, forcing, image_studies, run
from esscher.papers.eforcing.language import FORCED, ONCE, PLAIN
from esscher.papers.study import StudyContext


def test_models_of_a_study_differ_in_their_objective_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "MNIST", tmp_path / "none")
    made, missing = image_studies("small")
    assert [item.name for item in made] == ["digits, 16 levels"]
    assert missing == [f"{tmp_path}/none is not here; ESSCHER_DATA names another folder that holds it."]
    monkeypatch.setattr(studies, "MNIST", tmp_path)
    for scale in ("smoke", "small", "paper"):
        for study in image_studies(scale)[0]:
            for model, item in study.models.items():
                plain = study.models[study.baseline_of(model)]
                assert (item.base, item.data, item.images, item.training) == (
                    plain.base,
                    plain.data,
                    plain.images,
                    plain.training,
                )
                assert isinstance(item.objective, LikelihoodConfig) == model.endswith(PLAIN)
                assert getattr(item.objective, "counts", "again") == ("once" if model.endswith(ONCE) else "again")
                assert model in study.names_for_seed(0) and (model in study.names_for_seed(1)) == (not model.endswith(ONCE))


@pytest.mark.parametrize("decay", [0.9, 0.97, 0.9975])
def test_weights_of_all_positions_sum_to_3(decay):
    made = forcing(decay, after=7)
    assert made.after_steps == 7 and sum(made.weight * decay**k for k in range(20_000)) == pytest.approx(3.0)


def test_the_smallest_run(tmp_path, monkeypatch):
    whole = studies._smoke()
    chosen = [f"Gated PixelCNN, {objective}" for objective in (PLAIN, FORCED)]

    def short(one):
        objective = one.objective
        if isinstance(objective, EForcingConfig):
            objective = replace(objective, after_steps=1 if objective.after_steps else None)
        return replace(one, training=replace(one.training, steps=2, evaluate_every=1), objective=objective)

    few = replace(whole, models={name: short(whole.models[name]) for name in chosen}, grid_images=4, test_limit=6)
    monkeypatch.setattr(studies, "_smoke", lambda: few)
    result = run(StudyContext(scale="smoke", out=tmp_path, seeds=2))
    assert len(result["rows"]) == 4 and len(result["over seeds"]) == 2
    for row in result["rows"]:
        assert row["test"].low <= row["test"].value <= row["test"].high and (row["saved"] is None) == (
            row["model"] == chosen[0]
        )
    context = StudyContext(scale="smoke", out=tmp_path)
    place = context.run_dir(few.name, chosen[1], 1)
    for grid in (SAMPLES, COMPLETED):
        with Image.open(place / grid) as picture:
            assert max(picture.size) > 400
    assert "what was drawn after that" in (tmp_path / "report.html").read_text()
    again = context.row(few.name, chosen[1], 1, lambda run_dir: pytest.fail("the row was made again"))
    assert again == {name: value for name, value in result["rows"][3].items() if name != "saved"}
