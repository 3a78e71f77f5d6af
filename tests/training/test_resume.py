"""Killed and resumed equals never killed, to the bit; and wrong ways to resume that the comparison catches."""

import contextlib
import functools
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import interrupted
import killable_run
import pytest
import torch
from distributed_runs import together
from fsdp_runs import furthest, learn
from killable_run import outcome, start
from tiny_run import SETTINGS, fingerprint, new_base, run, toy_data

from esscher.core.randomness import SeededRng
from esscher.training import batches, trainer
from esscher.training.checkpoint import CheckpointManager, restore_weights


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What a run on so many processes gives that nothing disturbs."""

    @functools.cache
    def whole(processes: int) -> dict:
        folder = tmp_path_factory.mktemp("whole")
        assert start(folder, processes=processes, resume=False) == [0] * processes
        return outcome(folder)

    return whole


@pytest.mark.parametrize("processes", [1, 2])
def test_three_kills_at_random_places_change_no_bit(undisturbed, tmp_path, processes):
    """In one life of the run: each place is drawn among a third of all events, so that all kills come before the end."""
    whole = undisturbed(processes)
    places = (1 + SeededRng(11, processes).permutation(whole["events"] // 3)[:3]).tolist()
    for number, place in enumerate(places):
        codes = start(tmp_path, processes=processes, resume=number > 0, at=place)
        assert codes[0] == -signal.SIGKILL, f"not killed at {places}"
    assert start(tmp_path, processes=processes, resume=True) == [0] * processes
    for rank in range(processes):
        assert outcome(tmp_path, rank)["hash"] == whole["hash"], f"killed at events {places}"
    assert outcome(tmp_path)["history"] == whole["history"]
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == whole["history"]


def test_two_processes_learn_what_one_does_in_twice_the_passes():
    """In double precision, without dropout, only the order of sums differs; a batch that is read otherwise is told."""
    right, same = together(learn, "lstm", None, {})
    (left,) = together(learn, "lstm", None, {"gradient_accumulation_steps": 4}, processes=1)
    (other,) = together(learn, "lstm", None, {"batch_size": 4}, processes=1)
    assert right == same
    assert furthest(left["weights"], right["weights"]) < 1e-9 and furthest(left["numbers"], right["numbers"]) < 1e-9
    assert furthest(other["weights"], right["weights"]) > 1e-3


def test_a_full_disk_keeps_the_old_checkpoint_and_the_run(tmp_path, undisturbed):
    whole = undisturbed(1)
    late = 2 * whole["events"] // 3
    assert start(tmp_path, resume=False, at=late, disk=True) == [0]
    actual = outcome(tmp_path)
    assert actual["kind"] == "SavingError"
    assert "could not be saved, and training stopped" in actual["error"] and "File too large" in actual["error"]
    checkpoints = CheckpointManager(tmp_path / "checkpoints")
    last = checkpoints.last()
    assert last is not None and f"The checkpoint {last.name} survives" in actual["error"]
    assert checkpoints.read(last).state["trainer_state"]["step"] > 0
    assert not list((tmp_path / "checkpoints").glob(".writing*"))
    assert start(tmp_path, resume=True) == [0]
    assert outcome(tmp_path)["hash"] == whole["hash"]


@pytest.mark.slow
def test_the_same_under_torchrun(tmp_path):
    def torchrun(folder: Path, *arguments: str) -> int:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node",
            "2",
            killable_run.__file__,
        ]
        return subprocess.run([*command, str(folder), *arguments], check=False, capture_output=True).returncode

    for folder in (tmp_path / "whole", tmp_path / "killed"):
        folder.mkdir()
    assert torchrun(tmp_path / "whole", "new", "-1") == 0
    assert torchrun(tmp_path / "killed", "new", "40") != 0
    assert torchrun(tmp_path / "killed", "resume", "-1") == 0
    assert (
        outcome(tmp_path / "killed")["hash"] == outcome(tmp_path / "whole")["hash"] == outcome(tmp_path / "killed", 1)["hash"]
    )


def stopped_and_resumed(folder: Path, *, at: int = 25) -> str:
    return fingerprint(interrupted.stopped_and_resumed(run, new_base, folder, lambda stop: killable_run.Events(at, stop)))


@pytest.fixture(scope="module")
def expected():
    base = new_base()
    run(base)
    return fingerprint(base)


def test_resuming_within_a_process(tmp_path, expected):
    assert stopped_and_resumed(tmp_path) == expected


class Unseeded(SeededRng):
    def stream(self, *path):
        return Unseeded(self.seed, *self.path, *path)

    def fork_torch_rng(self):
        return contextlib.nullcontext()


WRONG = {
    "optimizer forgotten": (
        trainer,
        "restore_state",
        lambda saved, modules, optimizers, place: restore_weights(saved, modules, place),
    ),
    "dropout not seeded by the step": (trainer, "SeededRng", Unseeded),
    "order of the data not by the step": (
        batches.ShuffledOrder,
        "batch",
        lambda self, step: torch.randint(self.count, (self.batch_size,)),
    ),
    "schedule begun anew": (trainer, "learning_rate", lambda config, step, steps: 0.02 * torch.rand(()).item()),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_ways_to_resume_are_caught(tmp_path, monkeypatch, name, expected):
    place, attribute, wrong = WRONG[name]
    monkeypatch.setattr(place, attribute, wrong)
    assert stopped_and_resumed(tmp_path) != expected


def test_a_finished_run_is_resumed_to_the_same_weights(tmp_path):
    first, second = new_base(), new_base(seed=4)
    record = run(first, tmp_path)
    again = run(second, tmp_path, resume=True)
    assert fingerprint(first) == fingerprint(second)
    assert (record.steps, record.best, record.history) == (again.steps, again.best, again.history)


def test_resuming_where_nothing_was_saved_starts_at_the_beginning(tmp_path, expected):
    base = new_base()
    run(base, tmp_path, resume=True)
    assert fingerprint(base) == expected


def test_a_run_is_not_overwritten(tmp_path):
    run(new_base(), tmp_path)
    with pytest.raises(FileExistsError, match=r"holds step-00000017 of another run. Nothing was trained or changed; resume it"):
        run(new_base(), tmp_path)


def test_a_changed_setting_is_named(tmp_path):
    run(new_base(), tmp_path)
    with pytest.raises(ValueError, match=r"started with learning_rate = 0.02, and is resumed with learning_rate = 0.5"):
        run(new_base(), tmp_path, resume=True, config=replace(SETTINGS, learning_rate=0.5))
    train, held_out = toy_data()
    with pytest.raises(ValueError, match="started with data = "):
        run(new_base(), tmp_path, resume=True, dataset=(train.rows(slice(1, None)), held_out))
    with pytest.raises(ValueError, match=r"weights.safetensors does not fit the model.*has shape"):
        run(new_base(width=5), tmp_path, resume=True)
