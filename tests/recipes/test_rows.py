"""Rows of all recipes: where they stand, that they are made once, and that estimates among them survive."""

from esscher.estimate import Estimate
from esscher.recipes.rows import kept, place_of


def test_a_row_is_made_once_and_is_then_what_it_was(tmp_path):
    row = {"a": Estimate(1.0, 0.5, 1.5, 0.95, 10, "counted"), "b": [1, {"c": Estimate.exact(2.0)}], "d": "text", "e": None}
    file = place_of(tmp_path, "MoS, of Two", 3) / "row.json"
    assert file == tmp_path / "mos-of-two-seed3" / "row.json"
    made = []

    def make():
        made.append(row)
        return row

    assert kept(file, make) == kept(file, make) == row and len(made) == 1
