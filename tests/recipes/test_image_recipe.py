"""The recipe on images: what its studies are, and its smallest run from end to end."""

from dataclasses import replace

import pytest
from PIL import Image

from esscher.recipes import image_studies as studies
from esscher.recipes.eforcing_images import run
from esscher.recipes.eforcing_studies import FORCED, ONCE, PLAIN
from esscher.recipes.image_rows import COMPLETED, SAMPLES, make_row
from esscher.recipes.image_studies import forcing, image_studies
from esscher.recipes.rows import place_of


def test_models_of_a_study_differ_in_their_objective_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "MNIST", tmp_path / "none")
    made, left_out = image_studies("small")
    assert [one.name for one in made] == ["digits, 16 levels"]
    assert left_out == [f"{tmp_path}/none is not here; ESSCHER_DATA names another folder that holds it."]
    monkeypatch.setattr(studies, "MNIST", tmp_path)
    for scale in ("smoke", "small", "paper"):
        for study in image_studies(scale)[0]:
            for model, one in study.models.items():
                plain = study.models[study.against(model)]
                assert (one.base, one.data, one.images, one.training) == (plain.base, plain.data, plain.images, plain.training)
                assert (one.objective.kind == "likelihood") == model.endswith(PLAIN)
                assert one.objective.counts == ("once" if model.endswith(ONCE) else "again")
                assert model in study.of_seed(0) and (model in study.of_seed(1)) == (not model.endswith(ONCE))


@pytest.mark.parametrize("decay", [0.9, 0.97, 0.9975])
def test_weights_of_all_positions_sum_to_3(decay):
    made = forcing(decay, after=7)
    assert made.after_steps == 7 and sum(made.weight * decay**k for k in range(20_000)) == pytest.approx(3.0)


def test_the_smallest_run(tmp_path, monkeypatch):
    whole = studies._smoke()
    chosen = [f"Gated PixelCNN, {objective}" for objective in (PLAIN, FORCED)]

    def short(one):
        objective = replace(one.objective, after_steps=1 if one.objective.after_steps else None)
        return replace(one, training=replace(one.training, steps=2, evaluate_every=1), objective=objective)

    few = replace(whole, models={name: short(whole.models[name]) for name in chosen}, shown=4, most=6)
    monkeypatch.setattr(studies, "_smoke", lambda: few)
    found = run(scale="smoke", out=tmp_path, seeds=2)
    assert len(found["rows"]) == 4 and len(found["over seeds"]) == 2
    for row in found["rows"]:
        assert row["test"].low <= row["test"].value <= row["test"].high and (row["saved"] is None) == (
            row["model"] == chosen[0]
        )
    place = place_of(tmp_path / few.name, chosen[1], 1)
    for grid in (SAMPLES, COMPLETED):
        with Image.open(place / grid) as picture:
            assert max(picture.size) > 400
    assert "what was drawn after that" in (tmp_path / "report.html").read_text()
    again = make_row(few, chosen[1], 1, tmp_path / few.name)
    assert again == {name: value for name, value in found["rows"][3].items() if name != "saved"}
