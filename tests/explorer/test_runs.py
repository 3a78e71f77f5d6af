"""Run folders on the page: found, watched while they train, compared; a visitor names them and never a path."""

import json
import time

import pytest

from esscher.core.estimate import Estimate
from esscher.explorer.runs import compare_runs, find_runs, is_unfinished, training_runs, view_training
from esscher.explorer.runs_page import RunHandlers, duration, render_training
from esscher.reports.report import Report
from esscher.training.run_status import STATUS, StatusWriter, read_status

ENTRIES = [
    {"step": 10, "loss": 3.0, "learning_rate": 0.001},
    {"step": 10, "validation": 2.9, "validation_low": 2.8, "validation_high": 3.0},
    {"step": 10, "samples": ["a first <text>"]},
    {"step": 20, "loss": 2.0, "learning_rate": 0.0005},
    {"step": 20, "validation": 2.1, "validation_low": 2.05, "validation_high": 2.2},
    {"step": 20, "samples": ["a second <text>"]},
]


def write_run(folder, entries=ENTRIES, *, value=None, **status):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "history.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    if status:
        usual = {
            "step": 15,
            "steps": 40,
            "seconds": 30.0,
            "seconds_left": 50.0,
            "tokens_per_second": 1234.0,
            "learning_rate": 3e-4,
        }
        (folder / STATUS).write_text(json.dumps({**usual, "time": time.time(), **status}))
    if value is not None:
        estimate = Estimate(value, value - 0.1, value + 0.1, 0.95, 100, "delta", "nats")
        Report("esscher train", {"validation": estimate}, {}).save(folder, {"seed": 0, "out": str(folder)})
    return folder


def test_a_run_that_goes_on_shows_where_it_is_its_speed_and_its_texts(tmp_path):
    view = view_training(write_run(tmp_path / "run", step=25))
    assert view.running and view.step == 25 and view.learning_rate == 3e-4
    html = render_training(view)
    for words in (
        "Training.",
        "50 s",
        "1,234",
        "tokens/s",
        "of 40",
        "a second &lt;text&gt;",
        "2.100",
        "[2.050, 2.200]",
        "<polyline",
    ):
        assert words in html, words
    assert "a first" not in html and "<text>" not in html
    html, goes_on = RunHandlers(tmp_path / "run", {}).training(None)
    assert goes_on and "62.5%" in html


def test_a_run_that_stopped_or_ended_says_so(tmp_path):
    stopped = view_training(write_run(tmp_path / "stopped"))
    assert not stopped.running and "--resume" in render_training(stopped)
    silent = view_training(write_run(tmp_path / "silent", time=time.time() - 3_600))
    assert not silent.running and "60 min ago" in render_training(silent)
    finished = view_training(write_run(tmp_path / "done", value=2.0))
    assert finished.finished and "Finished." in render_training(finished)
    assert RunHandlers(tmp_path / "done", {}).training(None)[1] is False


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    folder = write_run(tmp_path / "run")
    with (folder / "history.jsonl").open("a") as file:
        file.write('{"step": 30, "lo')
    assert view_training(folder).step == 20
    (folder / STATUS).write_text('{"step": ')
    assert read_status(folder) is None and view_training(folder).step == 20


def test_stages_and_folders_inside_are_watched_too(tmp_path):
    folder = tmp_path / "plain"
    write_run(folder / "checkpoints" / "first")
    (folder / "distil.yaml").write_text("out: plain\n")
    assert is_unfinished(folder) and list(training_runs(folder)) == ["stage first"]
    base = write_run(tmp_path / "base", value=1.0)
    (base / "config.json").write_text("{}")
    write_run(base / "energy", step=5)
    assert not is_unfinished(base) and list(training_runs(base)) == ["base", "energy"]
    assert not is_unfinished(tmp_path / "nowhere")


def test_runs_beside_the_folder_are_found_and_only_those_are_read(tmp_path):
    for name, value in (("a", 2.0), ("b", 3.0)):
        write_run(tmp_path / name, value=value)
    write_run(tmp_path / "going")
    (tmp_path / "other").mkdir()
    runs = find_runs(tmp_path / "b")
    assert list(runs) == ["b", "a", "going"]
    found = compare_runs(runs)
    (row,) = found.rows
    assert (row["b"].value, row["a"].value) == (3.0, 2.0) and "going is not finished" in found.notes[0]
    html = RunHandlers(tmp_path, runs).compare(["b", "a", "../../etc", "going"])
    assert html.count('class="whisker of-') == 2 and html.count("<polyline") == 3 and "etc" not in html
    assert "Pick two runs" in RunHandlers(tmp_path, runs).compare(None)
    with pytest.raises(FileNotFoundError, match="other holds no run"):
        find_runs(tmp_path / "b", [str(tmp_path / "other")])
    assert list(find_runs(tmp_path, [str(tmp_path / "a")])) == [str(tmp_path / "a")]


def test_a_damaged_report_is_a_message_on_the_page(tmp_path):
    folder = write_run(tmp_path / "a", value=1.0)
    (folder / "answer.json").write_text("{")
    assert "error" in RunHandlers(tmp_path, find_runs(folder)).compare(["a"])
    assert "no run named" in RunHandlers(folder, {}).training("nobody")[0]


def test_the_status_is_written_now_and_then_and_removed_at_the_end(tmp_path):
    writer = StatusWriter(tmp_path)
    writer.begin(10)
    for step in (11, 12, 13):
        writer.update(step, 20, 100, 0.1)
    status = read_status(tmp_path)
    assert (status.step, status.steps, status.learning_rate) == (11, 20, 0.1) and status.seconds_left >= 0
    writer.end()
    assert read_status(tmp_path) is None and list(tmp_path.iterdir()) == []
    StatusWriter(tmp_path / "no" / "folder").end()
    nowhere = StatusWriter(None)
    nowhere.update(1, 2, 3, 0.1)
    nowhere.end()


def test_durations_are_said_as_people_do():
    assert [duration(seconds) for seconds in (5, 89, 600, 7_500)] == ["5 s", "89 s", "10 min", "2 h 05 min"]
