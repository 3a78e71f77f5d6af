"""Tables of few labels, complete, in part, and before any row is made."""

import json

import figures
import figures_bad_gan
import pytest

ESTIMATE = {"value": 2.5, "low": 1.25, "high": 4.0}
CLAIM = {
    "points": "MNIST, 100 labels",
    "model": "FM + LD",
    "against points": "MNIST, 100 labels",
    "against": "FM",
    "thesis": "0.8",
}
LONGER = "MNIST, 100 labels, 80,000 updates"


def content():
    made = {"quantity": "error", "draws": 3, "less": ESTIMATE, "more": {"value": 5.0, "low": 4, "high": 6}, "saved": ESTIMATE}
    single = {**made, "draws": 1, "points": LONGER, "verdict": "open", "quantity": "above the threshold"}
    nothing = {**CLAIM, "quantity": "error", "draws": 0, "less": None, "more": None, "saved": None, "verdict": "open"}
    dense = {
        "max log p": [-12.2, -13.7],
        "threshold": [-90.4, -91.0],
        "generated": [1000, 1000],
        "above the threshold": ESTIMATE,
    }
    level = {"points": LONGER, "model": "FM", "draws": 2, "errors": [2.0, 3.0], "error": ESTIMATE, "published": 0.85}
    plane = {**level, "points": "four spins", "class boundary in generated": ESTIMATE, "above the threshold": ESTIMATE}
    return {
        "missing": 7, "rows": [{}, {}],
        "effects": [{**CLAIM, **made, "verdict": "reproduced"}, {**CLAIM, **single}, nothing],
        "levels": [{**level, **dense, "published max log p": -297}, {**plane, "draws": 1, "published": None}],
        "longer": {LONGER: {"FM": [[2000, 9.5], [80000, 1.25]]}},
    }  # fmt: skip


def test_a_part_of_a_run(tmp_path):
    (tmp_path / "few_labels.json").write_text(json.dumps(content()))
    for name in ("few-labels-longer", "four-spins-regions", "two-circles-features", "four-spins"):
        (tmp_path / f"{name}.png").touch()
    made = figures_bad_gan.few_label_figures(tmp_path)
    assert made["pictures"] == ["few-labels-longer", "four-spins-regions", "two-circles-features"]
    assert "2 rows are made; 7 are not made" in figures_bad_gan.status(made)
    first, single, _, nothing = figures_bad_gan.effects(made).strip().splitlines()[2:]
    assert first == "| MNIST, 100 labels | FM + LD | FM | 3 | 5 → 2.5 | 2.5 [1.25, 4] | 0.8 | *reproduced* |"
    assert single.startswith(f"| {LONGER} | FM + LD | FM, MNIST, 100 labels | 1 | generated images above")
    assert single.endswith("5 → 2.5 | 2.5 (one draw) | 0.8 | *open* |")
    assert nothing == "*Not run*, so *open*: MNIST, 100 labels: FM + LD against FM (thesis 0.8)."
    (line,) = figures_bad_gan.errors(made).strip().splitlines()[2:]
    assert line == (
        f"| {LONGER} | FM | 2.00, 3.00 | 2.5 [1.25, 4] | 0.85 | -12, -14 (of 1,000) | -90, -91 | 2.5 [1.25, 4] | -297 |"
    )
    (line,) = figures_bad_gan.plane(made).strip().splitlines()[2:]
    assert line == "| four spins | FM | 2.00, 3.00 | 2.5 [1.25, 4] | 2.5 [1.25, 4] | 2.5 [1.25, 4] |"
    shown = figures_bad_gan.regions(made)
    assert "(../images/four-spins-regions.png)" in shown and "(../images/two-circles-features.png)" in shown
    assert "few-labels" not in shown and shown.count("![") == 2
    longest = figures_bad_gan.longest(made)
    assert "few-labels-longer.png" in longest and "FM 1.25 % after 80,000 updates" in longest


def test_what_is_not_run_has_no_verdict_and_no_picture():
    nothing = {**content()["effects"][2]}
    empty = {"missing": 9, "made": 0, "levels": [], "effects": [nothing], "longer": {LONGER: {}}, "pictures": []}
    assert "**Not run**" in figures_bad_gan.status(empty) and "*Not run*, so *open*: " in figures_bad_gan.effects(empty)
    for block in (figures_bad_gan.errors, figures_bad_gan.plane, figures_bad_gan.regions):
        assert block(empty) == "\n*Not run.*\n"
    assert "../images/few-labels.png" in figures_bad_gan.longest(empty)


@pytest.mark.parametrize("name", [name for recipe, name in figures_bad_gan.BLOCKS if recipe == "bad_gan"])
def test_the_page_has_every_block(name):
    page = (figures.ROOT / "docs" / "papers" / "bad_gan.md").read_text(encoding="utf8")
    assert f"<!-- figures: bad_gan.{name} -->" in page
