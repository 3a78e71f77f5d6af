"""Progress in each form: rate, time left, the estimate with its interval; nothing when quiet."""

import io
import json
import re

from cli_calls import call
from rich.console import Console

from esscher.core import progress
from esscher.core.estimate import Estimate
from esscher.core.progress import ProgressBar, Stages, current_progress, progress_as
from esscher.core.randomness import SeededRng

FOUND = Estimate(1.25, 1.0, 1.5, 0.95, 100, "delta", "nats")


def run(shown):
    shown.begin(0, 2)
    shown.update(1, 3.0, 50)
    shown.evaluation_done(1, FOUND, True)
    shown.update(2, 2.0, 50)
    shown.say("done <b>")
    shown.end()


def test_lines_have_rate_time_left_and_the_last_estimate(capsys):
    run(current_progress())
    out, err = capsys.readouterr()
    assert out == ""
    evaluation_done, last, said = err.splitlines()
    assert evaluation_done == "step 1/2  validation 1.2500 [1.0000, 1.5000]  best so far" and said == "done <b>"
    assert all(words in last for words in ("step 2/2", "loss 2.0000", "tokens/s", "0:00 left", "1.2500 [1.0000, 1.5000]"))


def test_json_lines_are_objects_with_the_same(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PROGRESS_INTERVAL", 0.0)
    with progress_as("json-lines"):
        run(current_progress())
    assert not isinstance(current_progress(), progress.JsonLinesProgress)
    output = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [item["event"] for item in output] == ["begin", "update", "evaluated", "update", "said", "end"]
    assert output[2]["validation"]["low"] == 1.0 and output[3]["seconds_left"] == 0 and output[3]["tokens_per_second"] > 0


def test_quiet_shows_nothing(capsys):
    with progress_as("quiet"):
        run(current_progress())
    assert capsys.readouterr() == ("", "")


def test_the_flag_works_with_every_verb(capsys, tmp_path):
    tiny = ["--data.source", "motif:101", "--data.length", "6", "--data.size", "60", "--base.kind", "lstm", "--base.width", "8"]
    flags = ["--out", str(tmp_path / "run"), *tiny, "--training.steps", "2", "--json", "--json-lines"]
    code, out, err = call(capsys, "train", *flags)
    assert code == 0
    events = {json.loads(line)["event"] for line in err.splitlines() if line}
    assert {"begin", "update", "said", "end"} <= events
    assert json.loads(out.splitlines()[-1])["report"] == str(tmp_path / "run" / "report.html")
    assert (tmp_path / "run" / "answer.json").is_file()


def test_drawing_tells_log_z_so_far(monkeypatch):
    from random_targets import random_target

    from esscher.core.space import Space, empty_prompts
    from esscher.samplers.importance import Importance
    from esscher.training.resumable import ResumableByDraws

    monkeypatch.setattr(progress, "PROGRESS_INTERVAL", -1.0)
    said = []
    target = random_target(Space(3, 4, eos=0))
    ResumableByDraws(Importance(), None, 20, said.append)(target, empty_prompts(1), 40, rng=SeededRng(0))
    assert len(said) == 2 and all("/s  " in line and "log Z so far" in line and "[" in line for line in said)


def test_stages_are_one_line_each_and_what_is_said_within_is_left_out(capsys):
    with Stages({"training": 1, "tilting": 3}) as stages:
        with stages.stage("training"):
            current_progress().say("Training starts at the beginning.")
            stages.say("0.69 nats")
        with stages.stage("tilting"):
            current_progress().begin(0, 10)
    assert capsys.readouterr().err == "1/2 training ...\n0.69 nats\n2/2 tilting ...\n"
    with progress_as("quiet"), Stages({"training": 1}) as stages, stages.stage("training"):
        stages.say("0.69 nats")
    assert capsys.readouterr().err == ""


def test_on_a_terminal_stages_are_one_bar(monkeypatch):
    output = io.StringIO()
    monkeypatch.setattr("esscher.core.progress.console", lambda error: Console(file=output, force_terminal=True, width=80))
    with Stages({"training": 1, "tilting": 3}) as stages:
        with stages.stage("training"):
            shown = current_progress()
            shown.begin(0, 4)
            shown.update(2, 0.1, 100)
            assert stages.bar.tasks[0].completed == 0.125
        with stages.stage("tilting"):
            assert stages.bar.tasks[0].completed == 0.25
    assert "2/2 tilting" in output.getvalue() and len(stages.bar.tasks) == 1


def test_the_bar_of_training_fits_a_terminal():
    output = io.StringIO()
    shown = ProgressBar(Console(file=output, force_terminal=True, width=80))
    shown.begin(900, 10_000)
    shown.update(960, 3.4567, 2_000)
    shown.evaluation_done(960, Estimate(4.3085, 4.0828, 4.5217, 0.95, 9, "mean"), True)
    shown.end()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.getvalue())
    line = next(line for line in text.replace("\r", "\n").splitlines() if "validation" in line)
    assert len(line) <= 80 and "…" not in line
    assert all(part in line for part in ("960/10000", "tokens/s", "loss 3.4567", "validation 4.3085")) and ":" in line
