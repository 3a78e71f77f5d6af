"""Rows of all recipes: where they stand, that they are made once, and that estimates among them survive."""

from esscher.core.estimate import Estimate
from esscher.papers.study import StudyContext, cached_json


def test_a_row_is_made_once_and_is_then_what_it_was(tmp_path):
    row = {"a": Estimate(1.0, 0.5, 1.5, 0.95, 10, "counted"), "b": [1, {"c": Estimate.exact(2.0)}], "d": "text", "e": None}
    file = StudyContext(scale="smoke", out=tmp_path).run_dir("text", "MoS, of Two", 3) / "row.json"
    assert file == tmp_path / "text" / "mos-of-two-seed3" / "row.json"
    made = []

    def make():
        made.append(row)
        return row

    assert cached_json(file, make) == cached_json(file, make) == row and len(made) == 1
