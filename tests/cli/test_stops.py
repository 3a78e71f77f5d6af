"""Signals: a run saves at the next step and says how to go on; other commands end at once; a second signal always does."""

import os
import signal
import time

import pytest
from cli_calls import call
from forks import forks

from esscher.core.interruption import Interrupted, handled_signals, stop_requested, stops_at_boundaries

TRAIN = (
    "train", "--data", "motif:101", "--data.size", "24", "--data.length", "5", "--base.kind", "lstm", "--base.width", "4",
    "--training.steps", "4", "--training.evaluate-every", "4", "--training.batch-size", "8",
)  # fmt: skip


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 143)])
def test_a_run_saves_at_the_next_step_and_says_how_to_go_on(capsys, tmp_path, monkeypatch, number, code):
    from esscher.training.trainer import TrainingLoop

    update = TrainingLoop.update

    def stopped_in_the_second(self):
        if self.step == 1:
            os.kill(os.getpid(), number)
        update(self)

    monkeypatch.setattr(TrainingLoop, "update", stopped_in_the_second)
    arguments = (*TRAIN, "--out", str(tmp_path / "stopped"), "--quiet")
    ended, out, err = call(capsys, *arguments)
    assert (ended, out) == (code, "")
    assert f"esscher: Stopped by {number.name}. Step 2 of 4 is saved in {tmp_path / 'stopped'}; --resume goes on" in err
    assert [file.name for file in (tmp_path / "stopped" / "checkpoints").glob("step-*")] == ["step-00000002"]
    assert not (tmp_path / "stopped" / ".esscher.lock").exists()
    monkeypatch.undo()
    assert call(capsys, *arguments, "--resume")[0] == 0
    if number == signal.SIGTERM:
        assert call(capsys, *TRAIN, "--out", str(tmp_path / "whole"), "--quiet")[0] == 0
        weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("stopped", "whole")]
        assert weights[0] == weights[1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_command_without_checkpoints_ends_with_one_line(capsys, monkeypatch, number, code):
    monkeypatch.setattr("esscher.papers.find_recipe", lambda name: os.kill(os.getpid(), number))
    ended, _, err = call(capsys, "reproduce", "laboratory")
    assert ended == code
    assert err == f"esscher: Stopped by {number.name}. What was saved is kept; the same command starts again.\n"


def hang(ready) -> None:
    with handled_signals(), stops_at_boundaries():
        ready.set()
        while True:
            time.sleep(0.01)


def test_a_second_signal_ends_at_once():
    context = forks()
    ready = context.Event()
    child = context.Process(target=hang, args=(ready,))
    child.start()
    assert ready.wait(60)
    os.kill(child.pid, signal.SIGTERM)
    child.join(0.5)
    assert child.exitcode is None
    os.kill(child.pid, signal.SIGTERM)
    child.join(10)
    assert child.exitcode == -signal.SIGTERM


def test_handlers_are_those_of_before_and_a_stop_that_nobody_asked_for_is_raised():
    before = signal.getsignal(signal.SIGTERM)

    def interrupted_inside_nested_boundaries():
        with handled_signals(), stops_at_boundaries(), stops_at_boundaries():
            os.kill(os.getpid(), signal.SIGUSR1)
            assert stop_requested() == signal.SIGUSR1

    with pytest.raises(Interrupted) as stop:
        interrupted_inside_nested_boundaries()
    assert stop.value.exit_code == 143 and stop_requested() is None and signal.getsignal(signal.SIGTERM) == before
