"""Progress in each form: rate, time left, the estimate with its interval; nothing when quiet."""

import json

import pytest

from esscher.cli import main
from esscher.estimate import Estimate
from esscher.randomness import Seeded
from esscher.training import progress
from esscher.training.progress import choose_progress, progress_as

FOUND = Estimate(1.25, 1.0, 1.5, 0.95, 100, "delta", "nats")


def run(shown):
    shown.begin(0, 2)
    shown.update(1, 3.0, 50)
    shown.evaluated(1, FOUND, True)
    shown.update(2, 2.0, 50)
    shown.say("done <b>")
    shown.end()


def test_lines_have_rate_time_left_and_the_last_estimate(capsys):
    run(choose_progress(False))
    out, err = capsys.readouterr()
    assert out == ""
    evaluated, last, said = err.splitlines()
    assert evaluated == "step 1/2  validation 1.2500 [1.0000, 1.5000]  best so far" and said == "done <b>"
    assert all(words in last for words in ("step 2/2", "loss 2.0000", "tokens/s", "0:00 left", "1.2500 [1.0000, 1.5000]"))


def test_json_lines_are_objects_with_the_same(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    with progress_as("json-lines"):
        run(choose_progress(False))
        assert isinstance(choose_progress(True), progress.Silent)
    assert not isinstance(choose_progress(False), progress.JsonLines)
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [one["event"] for one in told] == ["begin", "update", "evaluated", "update", "said", "end"]
    assert told[2]["validation"]["low"] == 1.0 and told[3]["seconds_left"] == 0 and told[3]["tokens_per_second"] > 0


def test_quiet_shows_nothing(capsys):
    with progress_as("quiet"):
        run(choose_progress(False))
    run(choose_progress(True))
    assert capsys.readouterr() == ("", "")


def test_the_flag_works_with_every_verb(capsys, tmp_path):
    tiny = ["--data.source", "motif:101", "--data.length", "6", "--data.size", "60", "--base.kind", "lstm", "--base.width", "8"]
    with pytest.raises(SystemExit) as stop:
        main(["train", "--out", str(tmp_path / "run"), *tiny, "--training.steps", "2", "--json", "--json-lines"])
    assert not stop.value.code
    out, err = capsys.readouterr()
    events = {json.loads(line)["event"] for line in err.splitlines() if line}
    assert {"begin", "update", "said", "end"} <= events
    assert json.loads(out.splitlines()[-1])["report"] == str(tmp_path / "run" / "report.html")
    assert (tmp_path / "run" / "answer.json").is_file()


def test_drawing_tells_log_z_so_far(monkeypatch):
    from languages import random_target

    from esscher.samplers.importance import Importance
    from esscher.space import Space, empty_prompts
    from esscher.training import draws_in_pieces, pieces

    monkeypatch.setattr(pieces, "PAUSE", -1.0)
    said = []
    target = random_target(Space(3, 4, eos=0))
    draws_in_pieces.collect(Importance(), target, empty_prompts(1), 40, rng=Seeded(0), shard=20, say=said.append)
    assert len(said) == 2 and all("/s  " in line and "log Z so far" in line and "[" in line for line in said)
