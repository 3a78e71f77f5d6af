"""Reports of runs: whole, escaped, read back, compared."""

import json
import math
from dataclasses import replace

import pytest

from esscher.core.estimate import Estimate
from esscher.core.manifest import MANIFEST
from esscher.reports.document import MEANINGS, figure_svg, meaning, write_comparison
from esscher.reports.plots import intervals
from esscher.reports.report import MODELS, Report, compare_reports, print_report, read_report

EVIL = "<img src=x onerror=alert(1)>"


def found(value, *, high=None):
    return Estimate(value, value - 0.1, value + 0.1 if high is None else high, 0.95, 100, "delta", "nats")


def answer(value, **facts):
    rows = [{"model": name, "per": "token", "perplexity": found(value + shift)} for name, shift in (("base", 1), ("tilted", 0))]
    return Report("esscher measure", {"log_z": found(value), "seed": 0, **facts}, {"perplexities": rows}, [EVIL])


def test_a_report_has_each_number_with_unit_interval_and_meaning(tmp_path):
    kept = answer(2.0, name=EVIL).save(tmp_path, {"data": EVIL, "fit": {"draws": 5}})
    page = kept.facts["report"].read_text().replace("&#39;", "'")
    assert kept.facts["report"] == tmp_path / "report.html" and "<img" not in page and "<script" not in page
    for words in (
        "2.00 [1.90, 2.10] nats",
        "95 % interval, 100 draws, delta",
        meaning("log_z"),
        "fit.draws",
        "torch",
        'class="chart',
    ):
        assert words in page, words


def test_the_text_of_a_report_is_what_its_command_prints(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    print_report(answer(2.0), as_json=False)
    printed = capsys.readouterr().out
    assert str(answer(2.0)) == printed.rstrip("\n") and "2.00 [1.90, 2.10] nats" in printed


def test_a_run_is_read_back_as_it_was(tmp_path):
    output = answer(2.0, wide=found(1.0, high=math.inf))
    output.save(tmp_path, {})
    run = read_report(tmp_path)
    assert run.facts["log_z"] == output.facts["log_z"] and run.facts["wide"].high == math.inf
    assert run.estimates()["perplexities, tilted token: perplexity"] == found(2.0)
    (tmp_path / "answer.json").write_text(json.dumps({"title": "x"}))
    with pytest.raises(ValueError, match=r"answer.json is not what was written"):
        read_report(tmp_path)
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(ValueError, match="a report has"):
        read_report(tmp_path)
    with pytest.raises(FileNotFoundError, match="no command finished there"):
        read_report(tmp_path / "none")


def test_runs_are_compared_by_the_numbers_they_share(tmp_path):
    for name, value in (("a", 2.0), ("b", 3.0)):
        answer(value, **{name: found(1.0)}).save(tmp_path / name, {"seed": 1, "data": name, "draws": None})
    runs = {name: read_report(tmp_path / name) for name in ("a", "b")}
    rows, differ = compare_reports(runs)
    shared = {row["number"]: row for row in rows}
    assert set(shared) == {"log z", "perplexities, base token: perplexity", "perplexities, tilted token: perplexity"}
    assert (shared["log z"]["a"].value, shared["log z"]["b"].value) == (2.0, 3.0)
    assert differ == [{"setting": "data", "a": "a", "b": "b"}]  # not draws, which has its default
    page = write_comparison(tmp_path / "both.html", runs).read_text()
    assert page.count('class="chart whiskers"') == 3 and "Settings that differ" in page


def test_a_page_starts_with_samples_and_curves_and_ends_with_the_settings_that_were_changed(tmp_path):
    entries = [
        {"step": 1, "loss": 2.0},
        {"step": 1, "validation": 1.5},
        {"step": 1, "samples": [EVIL]},
        {"step": 2, "loss": 1.0},
    ]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    page = (
        answer(2.0)
        .save(tmp_path, {"data": "x", "fit": {"draws": 5}}, changed={"fit": {"draws": 5}})
        .facts["report"]
        .read_text()
    )
    places = [
        page.index(words)
        for words in (">Samples<", "&lt;img src=x", ">Training<", "<polyline", ">Results<", "<details>", "fit.draws")
    ]
    assert places == sorted(places) and "<img" not in page
    assert "1 of 2 settings" in page and page.count("<details>") == 1 and "<td>data</td>" not in page
    assert set(read_report(tmp_path).settings) == {"data", "fit"}


def test_models_beside_each_other_are_one_chart_on_one_scale(tmp_path):
    distance = [{"distance": "total variation", "base": found(0.4), "student": found(0.3)}]
    nats = [{"per": "token", **{name: replace(found(4.0), unit="nats per token") for name in MODELS}}]
    page = Report("esscher distil", {}, {"distance": distance, "nats": nats}).save(tmp_path, {}).facts["report"].read_text()
    charts = page.split('class="chart')[1:]
    assert len(charts) == 2 and "0.40 [0.30, 0.50]" in charts[0] and "0.30 [0.20, 0.40]" in charts[0]
    assert "total variation" in charts[0] and "nats per token" in charts[1] and all(name in charts[1] for name in MODELS)


def test_a_picture_of_matplotlib_has_a_dark_form():
    svg = figure_svg(intervals({"a": found(1.0), "b": found(2.0)}, label="nats"))
    assert "var(--es-ink, #1d2430)" in svg and "var(--es-tilted, #1f5fa8)" in svg
    assert "#ffffff" not in svg, "the background is the page's"


def test_unlike_runs_are_compared_by_meaning_and_unit():
    """A base and its student: the perplexity of the model that each run made, from nats where it has these."""
    perplexity = Estimate(8.0, 7.5, 8.5, 0.95, 100, "delta", "per token")
    nats = {name: Estimate(value, value - 0.1, value + 0.1, 0.95, 100, "delta", "nats per token")
            for name, value in (("base", math.log(8)), ("tilted", 1.9), ("student", 2.0))}  # fmt: skip
    trained = Report(
        "esscher train", {"validation": found(2.0)}, {"measured": [{"on the test data": "perplexity", "value": perplexity}]},
        settings={"out": "a", "data": {"source": "docstrings"}, "training": {"steps": 7, "batch_size": 32}},
    )  # fmt: skip
    student = Report(
        "esscher distil", {"log_z": found(1.0)}, {"nats": [{"per": "token", **nats}]},
        settings={"out": "b", "distil": {"draws": 5, "stages": 3}, "model": "a"},
    )  # fmt: skip
    rows, differ = compare_reports({"a": trained, "b": student})
    shared = {row["number"]: row for row in rows}
    assert set(shared) == {"perplexity per token", "perplexity per token of the base"}
    assert shared["perplexity per token"]["b"].value == pytest.approx(math.exp(2.0))
    assert shared["perplexity per token of the base"]["b"].value == pytest.approx(8.0)
    assert {row["setting"] for row in differ} == {"data.source", "training.steps", "distil.draws", "model"} - {"data.source"}


def test_a_folder_that_cannot_be_written_costs_the_report_only(tmp_path):
    (tmp_path / "file").write_text("")
    kept = answer(2.0).save(tmp_path / "file", {})
    assert "report" not in kept.facts and "No report was saved" in kept.notes[-1]


def test_meanings_are_sentences():
    assert all(sentence.endswith(".") for sentence in MEANINGS.values())
    assert meaning("perplexity per token") == MEANINGS["perplexity"] and meaning("unheard of") == ""


def test_programs_may_get_other_tables_than_people(capsys):
    report = Report("title", {"seed": 0}, {"rows": [{"name": "a"}]}, ["a note"], json_tables={"rows": {"a": math.inf}})
    print_report(report, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"seed": 0, "rows": {"a": None}, "notes": ["a note"]}
    print_report(report, as_json=False)
    shown = capsys.readouterr().out
    assert "title" in shown and "name" in shown and "inf" not in shown
