"""The recipe on global autoregressive models, tiny: all its parts run, and what is finished is not done again."""

import pytest

from esscher.papers.gam import rows
from esscher.papers.gam.recipe import run_gam, summary
from esscher.papers.gam.rows import FEATURE_SETS, SCALES, GamScale, _base, run_name
from esscher.papers.study import StudyContext
from esscher.training.config import DistilConfig

TINY = GamScale(
    base=_base(length=9, width=8, steps=15), distil=DistilConfig(draws=100, candidates=2000), distil_epochs=1,
    motifs=("1001",), sizes=(60,), mixtures=(1.0,),
    feature_sets=FEATURE_SETS[:2], extra_sizes=(30,), descent_epochs=2, early_stop_updates=5,
)  # fmt: skip


@pytest.mark.slow
def test_all_parts_run_and_resume(tmp_path, monkeypatch):
    monkeypatch.setitem(SCALES, "smoke", TINY)
    actual = run_gam(StudyContext(scale="smoke", out=tmp_path, seeds=2))
    # 2 feature sets, one more seed, one more size, two sizes stopped early
    assert [row["|D|"] for row in actual["rows"]] == [60] * 3 + [30, 30, 60]
    assert {row["ft"] for row in actual["rows"]} == set(FEATURE_SETS[:2])
    for row in actual["rows"]:
        assert row["CE student"].low <= row["CE student"].value and 0 <= row["motif in student"].value <= 1
        assert row["student / H"] > 1
    assert [row["regime"] for row in actual["regimes"]] == ["newton", "snis", "rs"]
    assert len(actual["students"]) == 6 and actual["paper"][0]["|D|"] == 500
    assert "Global autoregressive models" in (tmp_path / "report.html").read_text()
    cell = tmp_path / "1001-pure-60-seed0" / FEATURE_SETS[0]
    assert {"energy", "student", "row.json"} <= {file.name for file in cell.iterdir()}

    def never(*_, **__):
        raise AssertionError("a finished part was done again")

    for place, name in ((rows, "make_row"), (rows, "_distilled"), (rows, "_regime")):
        monkeypatch.setattr(place, name, never)
    assert run_gam(StudyContext(scale="smoke", out=tmp_path, seeds=2))["rows"] == actual["rows"]


def test_averages_are_over_the_rows_of_one_kind():
    rows = [
        {"|D|": 500, "data": "pure", "base": "to the end", "seed": seed, "r / student": ratio, "student / H": 1.5}
        for seed, ratio in ((0, 1.0), (0, 2.0), (1, 9.0))
    ]
    (line,) = summary(rows)
    assert line["pure: r / student"] == "1.500 ± 0.707" and line["mixture: student / H"] == "-"


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_scales_cover_what_they_promise(scale):
    runs = list(SCALES[scale].runs(3))
    full = [run for run, feature_sets in runs if run.training.patience and run.training.seed == 0 and len(feature_sets) == 3]
    assert {run.data.mixture for run in full} == {1.0, 0.9} and len({run.data.motif for run in full}) >= 2
    assert {500, 5000} <= {run.data.size for run in full}
    assert sum(run.training.seed > 0 for run, _ in runs) == 2 * len(SCALES[scale].sizes)
    assert len({run_name(run) for run, _ in runs}) == len(runs)
