"""Figures in README and docs are what their command printed."""

import json
import subprocess
import sys

import figures
import pytest


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda page: str(page.relative_to(figures.ROOT)))
def test_pages_show_the_figures_that_were_recorded(page):
    text = page.read_text(encoding="utf8")
    assert figures.rendered(text) == text, "stale: run `python tests/figures.py render`"


def test_a_changed_figure_makes_its_pages_stale(tmp_path, monkeypatch):
    recorded = json.loads((figures.FIGURES / "quickstart.json").read_text())
    recorded["figures"]["nats"]["tilted"] += 0.001
    (tmp_path / "quickstart.json").write_text(json.dumps(recorded))
    monkeypatch.setattr(figures, "FIGURES", tmp_path)
    readme = (figures.ROOT / "README.md").read_text(encoding="utf8")
    assert figures.rendered(readme) != readme


def test_a_study_that_is_not_complete_has_no_verdict():
    about = {"process": "motif", "network": "LSTM", "strings": 50, "seeds": 5, "likelihood": 0.5}
    effect = {**about, "method": "one", "KL": [3.0, 1.0, 5.0], "prefix KL": [1.0, -1.0, 3.0], "verdict": "gains"}
    verdicts = [{"method": "one", "conditions": 1, "gains": 1, "open": 0, "loses": 0, "verdict": "reproduced"}]
    complete, partial = ({"missing": missing, "verdicts": verdicts, "effects": [effect]} for missing in (0, 7))
    assert "reproduced" in figures.laboratory_verdicts(complete) and "reproduced" not in figures.laboratory_verdicts(partial)
    assert "7 rows are not made" in figures.laboratory_status(partial) and "5 seeds" in figures.laboratory_status(complete)
    assert "| **3.0 [1.0, 5.0]** |" in figures.laboratory_effects(complete, "KL")
    assert "| 1.0 [-1.0, 3.0] |" in figures.laboratory_effects(complete, "prefix KL")


def test_images_have_a_verdict_when_they_are_complete():
    effect = {
        "images": "digits, few", "network": "PixelCNN", "model": "E-Forcing", "seeds": 5, "likelihood": [0.5, 0.4, 0.6],
        "saved": [0.01, 0.005, 0.015], "last saved": [0.01, -0.002, 0.03], "rise saved": [0.1, 0.05, 0.2], "of likelihood": 1,
        "verdict": "gains",
    }  # fmt: skip
    verdicts = [{"model": "E-Forcing", "conditions": 1, "gains": 1, "open": 0, "loses": 0, "verdict": "reproduced"}]
    about = {"made": 3, "verdicts": verdicts, "effects": [effect], "over seeds": []}
    complete, partial = ({"missing": missing, **about} for missing in (0, 7))
    assert figures.one_verdict(complete, "E-Forcing") == " *reproduced* "
    assert figures.one_verdict(partial, "E-Forcing") == " *open*: not complete "
    assert "| 1 of 5 | gains |" in figures.image_effects(complete) and "| gains |" not in figures.image_effects(partial)
    assert "**0.0100 [0.0050, 0.0150]** | 0.0100 [-0.0020, 0.0300] |" in figures.image_effects(complete)
    assert "7 are not" in figures.image_status(partial) and "no network has two seeds" in figures.image_summary(
        {**about, "effects": []}, "E-Forcing"
    )


def test_counts_of_the_laboratory_are_of_one_objective():
    row = {"method": "one", "conditions": 9, "gains": 1, "open": 6, "loses": 2, "verdict": "open"}
    assert figures.laboratory_summary({"verdicts": [row]}, "one") == " of 9 conditions it gains in 1 and loses in 2 "


def test_a_table_of_spans_says_what_is_not_made_and_what_one_seed_cannot():
    numbers = {"denoising": [0.5, 0.4, 0.6], "permutation LM": [0.1, 0.0, 0.2], "saved": [0.4, 0.3, 0.5]}
    numbers |= {"denoising, filled": [0.2, 0.1, 0.3], "filled minus permutation LM": [0.1, -0.1, 0.3]}
    row = {"process": "phrases", "span": 2, "entropy": [0.9] * 3, "independence": [0.45] * 3, **numbers}
    rows = [{**row, "seeds": 3, "verdict": "reproduced"}, {**row, "span": 3, "seeds": 1, "verdict": "open"}]
    text = figures.span_table({"missing": 7, "effects": rows})
    assert (
        "| 0.450 | 0.5 [0.4, 0.6] | 0.1 [0, 0.2] | 0.4 [0.3, 0.5] | *reproduced* | 0.2 [0.1, 0.3] | 0.1 [-0.1, 0.3] |" in text
    )
    assert (
        "| phrases | 3 | 1 | 0.900 | 0.450 | 0.5 | 0.1 | 0.4 | *open* | 0.2 | 0.1 |" in text and "7 rows are not made" in text
    )


def test_a_table_of_games_has_ten_columns_and_a_line_of_the_thesis():
    recorded = json.loads((figures.FIGURES / "energy_gan.json").read_text())["figures"]
    head, _, ours, thesis, *_ = figures.energy_gan_table(recorded).strip().splitlines()
    assert head.count("‖") == 11 and ours.count("|") == thesis.count("|") == head.count("|")
    assert "| thesis | 0.303 | 0.502 | 0.25 | 0.481 | 6.76 | 2.06 | 6.2 | 2.06 | 2.46 | 7.09 |  |" in thesis
    about = {"claim": "nearer", "process": "spirals", "quantity": "KL(disc||data)", "thesis": 0.5}
    claims = [{**about, "ratio": [0.2, 0.1, 0.4], "verdict": "reproduced"}, {**about, "ratio": None, "verdict": "open"}]
    text = figures.energy_gan_claims({"missing": 0, "claims": claims})
    assert (
        "| 0.2 [0.1, 0.4] | 0.5 | *reproduced* |" in text and "| one seed | 0.5 | *open* |" in text and "not made" not in text
    )


@pytest.mark.slow
def test_the_quick_start_gives_the_recorded_figures(tmp_path):
    command = [sys.executable, "-m", "esscher", "reproduce", "quickstart", "--scale", "small", "--out", str(tmp_path / "run")]
    subprocess.run(command, check=True, capture_output=True)
    recorded = json.loads((figures.FIGURES / "quickstart.json").read_text())["figures"]
    again = figures.quickstart_figures(tmp_path / "run")  # another machine rounds otherwise, and so draws some other texts
    assert again["nats"] == pytest.approx(recorded["nats"], abs=2e-3)
    assert {name: share[0] for name, share in again["shares"].items()} == pytest.approx(
        {name: share[0] for name, share in recorded["shares"].items()}, abs=0.1
    )
