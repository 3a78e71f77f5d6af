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


def test_a_cell_that_is_not_made_is_said_and_refutes_nothing():
    def row(size, ratio, seed=0):
        about = {"data": "pure", "|D|": size, "patience of 20": "updates", "seed": seed, "student / H": 1.1}
        return about | {"r / student": ratio, "motif: student / r": 40.0}

    missing = [{"reading": "updates"}, {"reading": "epochs"}]
    some = {"rows": [row(500, 1.3), row(500, 9.9, seed=1)], "not made": missing}
    assert "| pure | 500 | 1.24 ± 0.07; 1.19 ± 0.07; [32, 392] | 1.30; 1.10; 40 | *not run* |" in figures.gam_effects(some)
    assert "| updates | pure | *open* | 1 of 5 sizes are made, within two of the paper's ± |" in figures.gam_verdicts(some)
    wrong = {"rows": [row(500, 1.3), row(20000, 1.4)], "not made": missing}
    assert "*refuted under these conditions* | 20,000 strings: 1.40, the paper 0.99" in figures.gam_verdicts(wrong)
    whole = {
        "rows": [row(*each) for each in ((500, 1.2), (1000, 1.2), (5000, 1.1), (10000, 1.0), (20000, 1.0))],
        "not made": [],
    }
    assert "| updates | pure | *reproduced* |" in figures.gam_verdicts(whole)


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
