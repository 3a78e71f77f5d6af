"""The tables of the translation recipe beside BLEU, on rows that are written by hand."""

import json

import pytest

from esscher.core.estimate import Estimate
from esscher.papers.eforcing.translation_tables import (
    curve_rows,
    metric_rows,
    over_pairs,
    own_energy_rows,
    setting_rows,
    verdict_rows,
)
from esscher.papers.study import StudyContext


def test_curves_say_what_was_still_falling_and_what_rose(tmp_path):
    context = StudyContext(scale="small", out=tmp_path)
    folder = context.run_dir("pairs", "one")
    folder.mkdir(parents=True)
    losses = (5.0, 4.0, 3.0, 2.5, 2.2, 2.1, 2.0, 2.4)
    lines = [json.dumps({"step": step, "validation": loss}) + "\n" for step, loss in enumerate(losses)]
    (folder / "history.jsonl").write_text("".join(lines))
    (row,) = curve_rows(context, "pairs", [("one", 0)])
    assert (row["of"], row["least at"]) == (8, 7)
    numbers = {name: row[name].value for name in ("validation", "fell", "rose")}
    assert numbers == pytest.approx({"validation": 2.0, "fell": 0.1, "rose": 0.4})


def test_settings_are_those_that_were_tried(tmp_path):
    context = StudyContext(scale="small", out=tmp_path)
    folder = context.run_dir("pairs", "learning rate", 1_000)
    folder.mkdir(parents=True)
    tried = [{"value": 0.1, "validation": 2.0}, {"value": 0.2, "validation": 1.0}]
    (folder / "row.json").write_text(json.dumps({**tried[1], "tried": tried}))
    rows = setting_rows(context, "pairs", ("learning rate", "strength"))
    assert [(row["value"], row["chosen"]) for row in rows] == [(0.1, False), (0.2, True)]


def test_metrics_are_compared_within_a_seed():
    texts = {("plain", 0): ["a b c d", "a"], ("forced", 0): ["a b", "b"]}
    names = list(texts)
    rows = metric_rows("pairs", names, lambda system: "plain", lambda *name: texts[name], ["a b c d", "a"])
    by = {(row["metric"], row["system"]): row for row in rows}
    assert by["rouge1", "plain"]["value"].value == pytest.approx(100) and by["rouge1", "plain"]["gained"] is None
    assert by["rouge1", "forced"]["gained"].value < 0 and by["ter", "forced"]["gained"].value < 0


def test_draws_chosen_by_the_own_energy_are_compared_with_one_draw():
    def row(seed: int, decoded: str, value: float) -> dict[str, object]:
        return {"pairs": "pairs", "system": "one", "seed": seed, "decoded": decoded, "BLEU": Estimate.exact(value)}

    rows = [row(seed, decoded, value + seed) for seed in (0, 1) for decoded, value in (("one draw", 3.0), ("greedy", 9.0))]
    rows += [row(seed, "one of 5 draws by the own energy", 4.0 + 2 * seed) for seed in (0, 1)]
    assert [each["gained"].value for each in own_energy_rows(rows)] == pytest.approx([1.0, 2.0])


def test_verdicts_need_an_interval_without_what_would_be_without_effect():
    rows = [{"system": name, "share": Estimate(0.5 * (low + high), low, high, 0.95, 3, "t")} for name, low, high in (
        ("above", 0.51, 0.6), ("below", 0.3, 0.49), ("around", 0.4, 0.6))]  # fmt: skip
    verdicts = verdict_rows({"exposure": ([*rows, {"system": "none"}], "share", 0.5)})
    words = {row["system"]: row["verdict"] for row in verdicts}
    assert words == {"above": "reproduced", "below": "refuted under these conditions", "around": "open"}


def test_a_mean_over_pairs_is_taken_within_a_seed_that_has_them_all():
    rows = [
        {"decoded": "greedy", "seed": seed, "system": system, "gained": Estimate.exact(value + seed)}
        for seed in (0, 1, 2)
        for system, value in (("one", 1.0), ("two", 3.0), ("other", 90.0))
    ]
    (mean,) = over_pairs(rows[:-2], ("decoded",), "gained", ("one", "two"))
    assert mean["seeds"] == 2 and mean["gained"].value == pytest.approx(2.5) and mean["system"] == "mean of both"
