"""Effects over draws of the labels, levels beside the published figures, and the file that a part of a run leaves."""

import json
from pathlib import Path

import pytest

from esscher.core.estimate import Estimate
from esscher.papers.bad_gan.effects import LONGER, effects, keep, levels, made_rows, published
from esscher.papers.bad_gan.studies import MNIST_100
from esscher.papers.study import Study, StudyContext


def row(points, model, draw, error, above=None):
    made = {"points": points, "model": model, "draw": draw, "error": Estimate(error, error - 1, error + 1, 0.95, 100, "test")}
    if above is None:
        return made
    share = Estimate(above, 0.0, 100.0, 0.95, 1_000, "test")
    return {**made, "generated": 1_000, "max log p": -above, "threshold": -80.0, "above the threshold": share}


ROWS = [
    *(row(MNIST_100, "FM", draw, error, 50.0) for draw, error in enumerate((3.0, 4.0, 5.0))),
    *(row(MNIST_100, "FM + LD", draw, error, above) for draw, error, above in ((0, 2.0, 10.0), (1, 3.5, 20.0), (2, 2.5, 90.0))),
    *(row(MNIST_100, "FM + VI", draw, error, 9.0) for draw, error in ((0, 2.5), (1, 3.0))),
    row(LONGER, "FM", 0, 1.5, 60.0), row(LONGER, "FM", 7, 9.5, 60.0),
]  # fmt: skip


def test_effects_are_differences_of_the_same_draw():
    table = {(each["points"], each["model"], each["against"], each["quantity"]): each for each in effects(ROWS)}
    low = table[MNIST_100, "FM + LD", "FM", "error"]
    assert low["draws"] == 3 and low["saved"].value == pytest.approx((1 + 0.5 + 2.5) / 3) and low["verdict"] == "open"
    assert low["more"].value == pytest.approx(4) and low["less"].value == pytest.approx(8 / 3)
    half = 4.302653 * 1.040833 / 3**0.5  # Student's quantile, the deviation of 1, 0.5 and 2.5
    assert low["saved"].low == pytest.approx(4 / 3 - half, abs=1e-4)
    dense = table[MNIST_100, "FM + LD", "FM", "above the threshold"]
    assert dense["saved"].value == pytest.approx((40 + 30 - 40) / 3)
    worse = table[MNIST_100, "FM", "FM + VI", "error"]  # FM has more: 3.0 against 2.5, and 4.0 against 3.0
    assert worse["saved"].value == pytest.approx(-0.75) and worse["draws"] == 2
    longer = table[LONGER, "FM", "FM", "error"]  # draw 7 has no partner
    assert longer["draws"] == 1 and longer["saved"].value == 1.5 and longer["verdict"] == "open"
    missing = table["four spins", "ideal complement", "FM", "error"]
    assert missing["draws"] == 0 and missing["saved"] is None and missing["verdict"] == "open"
    clear = [
        row("four spins", model, draw, error) for draw in (0, 1) for model, error in (("FM", 9.0), ("labels only", 40.0 + draw))
    ]
    assert [each["verdict"] for each in effects(clear) if each["draws"] == 2] == ["reproduced"]


def test_levels_have_the_numbers_of_every_draw():
    table = {(each["points"], each["model"]): each for each in levels([*ROWS, row(MNIST_100, "labels only", 0, 20.0)])}
    low = table[MNIST_100, "FM + LD"]
    assert low["errors"] == [2.0, 3.5, 2.5] and low["error"].value == pytest.approx(8 / 3) and low["draws"] == 3
    assert low["max log p"] == [-10.0, -20.0, -90.0] and low["published"] == 0.795 and low["published max log p"] == -659
    single = table[MNIST_100, "labels only"]
    assert single["draws"] == 1 and single["error"].n == 100 and "max log p" not in single and single["published"] is None
    assert published(LONGER, "FM") == 0.85 and published("SVHN, 1,000 labels", "FM") == 6.83


def test_a_part_of_a_run_is_kept(tmp_path: Path):
    study = Study(name="digits, 12 updates", models={"FM": None, "FM + PT": None})
    context = StudyContext(scale="smoke", out=tmp_path, seeds=2)
    keep(context, [study])
    empty = json.loads((tmp_path / "few_labels.json").read_text())
    assert empty["missing"] == 4 and not empty["rows"] and not empty["longer"][study.name]
    assert {each["verdict"] for each in empty["effects"]} == {"open"} and not (tmp_path / "few-labels-longer.png").exists()
    for model, draw in (("FM + PT", 0), ("FM", 0), ("FM", 5)):
        context.row(study.name, model, draw, lambda folder, m=model, d=draw: row(study.name, m, d, 3.0))
        history = [{"step": step, "validation": 50 / step} for step in (6, 12)]
        file = context.run_dir(study.name, model, draw) / "history.jsonl"
        file.write_text("".join(json.dumps(entry) + "\n" for entry in history))
    keep(context, [study])
    kept = json.loads((tmp_path / "few_labels.json").read_text())
    assert kept["missing"] == 2  # draw 1 of both; draw 5 was not asked for
    assert [(each["model"], each["draw"]) for each in made_rows(context, [study])] == [("FM", 0), ("FM + PT", 0), ("FM", 5)]
    assert kept["longer"][study.name]["FM"] == [[6, pytest.approx(50 / 6)], [12, pytest.approx(50 / 12)]]
    assert (tmp_path / "few-labels-longer.png").is_file()
