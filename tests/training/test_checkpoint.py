"""CheckpointManager: what is kept, and what is said of a damaged one."""

import errno
import json
import os
import shutil
from dataclasses import replace

import pytest
import torch
from tiny_run import SETTINGS, fingerprint, new_base, run, toy_data

from esscher.core.estimate import Estimate
from esscher.core.storage import SavingError
from esscher.core.target import Tilted
from esscher.objectives.likelihood import Likelihood
from esscher.training.checkpoint import CheckpointData, CheckpointManager, History, collect_state, restore_state
from esscher.training.trainer import Trainer


def saved(number: float) -> CheckpointData:
    return CheckpointData({"model/a": torch.full((3,), number)}, {}, {"number": number})


def names(checkpoints):
    return sorted(place.name for place in checkpoints.folder.glob("*-*"))


def test_the_last_two_and_the_best_are_kept(tmp_path):
    checkpoints = CheckpointManager(tmp_path)
    assert checkpoints.last() is None and checkpoints.best() is None
    for step in range(1, 6):
        checkpoints.save(step, saved(step), best=step == 2)
    assert names(checkpoints) == ["step-00000002", "step-00000004", "step-00000005"]
    assert checkpoints.last().name == "step-00000005" and checkpoints.best().name == "step-00000002"
    assert checkpoints.read(checkpoints.best()).state == {"number": 2}
    assert checkpoints.read(checkpoints.last()).weights["model/a"].tolist() == [5.0] * 3


@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd"])
def test_modules_and_optimisers_come_back_to_the_bit(tmp_path, kind):
    def made(seed):
        base = new_base(seed=seed)
        make = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)}
        return {"model": base}, {"model": make[kind](base.parameters())}

    def move(modules, optimizers):
        for number, parameter in enumerate(modules["model"].parameters()):
            parameter.grad = torch.full_like(parameter, 0.1 * number)
        optimizers["model"].step()

    modules, optimizers = made(1)
    move(modules, optimizers)
    place = CheckpointManager(tmp_path).save(1, collect_state(modules, optimizers, {}), best=False)
    others = made(2)
    restore_state(CheckpointManager(tmp_path).read(place), *others, place)
    for both in ((modules, optimizers), others):
        move(*both)
    assert fingerprint(modules["model"]) == fingerprint(others[0]["model"])


def damage(file, how):
    content = bytearray(file.read_bytes())
    if how == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif how == "flipped":
        content[-3] ^= 1
        file.write_bytes(content)
    else:
        file.unlink()


FILES = ["weights.safetensors", "optimizer.safetensors", "state.json"]
DAMAGES = [(name, how) for name in FILES for how in ("cut", "flipped", "gone")] + [
    ("manifest.json", "cut"),
    ("manifest.json", "gone"),
]


@pytest.mark.parametrize(("name", "how"), DAMAGES)
def test_damage_is_found_named_and_survived(tmp_path, name, how):
    checkpoints = CheckpointManager(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, saved(step), best=False)
    damage(tmp_path / "step-00000002" / name, how)
    with pytest.raises(ValueError, match=r"checkpoint .*step-00000002 is corrupted") as caught:
        checkpoints.read(checkpoints.last())
    message = str(caught.value)
    assert name == "manifest.json" or name in message
    assert "Nothing was loaded; delete that folder and resume: training then goes on from step-00000001" in message
    for file in (tmp_path / "step-00000002").iterdir():
        file.unlink()
    (tmp_path / "step-00000002").rmdir()
    assert checkpoints.read(checkpoints.last()).state == {"number": 1}


def test_a_corrupted_checkpoint_stops_resuming(tmp_path):
    run(new_base(), tmp_path)
    damage(tmp_path / "checkpoints" / "step-00000017" / "weights.safetensors", "flipped")
    with pytest.raises(ValueError, match=r"step-00000017 is corrupted: weights.safetensors is not what was written"):
        run(new_base(), tmp_path, resume=True)


@pytest.mark.parametrize("call", range(1, 14))
def test_a_failure_at_any_write_leaves_the_old_checkpoint(tmp_path, monkeypatch, call):
    """Every rename and flush of a save, in turn, finds the disk full."""
    checkpoints = CheckpointManager(tmp_path)
    checkpoints.save(1, saved(1), best=True)
    left = [call]

    def failing(real):
        def wrapped(*arguments):
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments)

        return wrapped

    monkeypatch.setattr(os, "replace", failing(os.replace))
    monkeypatch.setattr(os, "fsync", failing(os.fsync))
    with pytest.raises(
        SavingError, match=r"Step 2 could not be saved, and training stopped.*No space left.*make room and resume"
    ):
        checkpoints.save(2, saved(2), best=False)
    monkeypatch.undo()
    last = checkpoints.last()
    assert checkpoints.read(last).state["number"] in (1, 2) and checkpoints.best().name == "step-00000001"
    checkpoints.save(3, saved(3), best=False)
    assert checkpoints.read(checkpoints.last()).state == {"number": 3}
    assert not list(tmp_path.glob(".*"))


def run_with_best_before_last(folder):
    """A run of 6 steps whose best evaluation is that of step 4."""
    losses = iter([3.0, 1.0, 2.0])
    validation = lambda: Estimate.exact(next(losses))  # noqa: E731
    train, _ = toy_data()
    settings = replace(SETTINGS, steps=6, evaluate_every=2, save_every=2)

    def again(base):
        return Trainer(settings)(
            Likelihood(), Tilted(base), train, modules=base, validation=validation, folder=folder, resume=True
        )

    base = new_base()
    assert again(base).best_step == 4
    return again, fingerprint(base)


@pytest.mark.parametrize("harm", ["deleted", "damaged"])
def test_a_lost_best_checkpoint_is_an_error_and_never_the_last_one(tmp_path, harm):
    again, weights = run_with_best_before_last(tmp_path)
    other = new_base(seed=3)
    again(other)
    assert fingerprint(other) == weights
    best = tmp_path / "checkpoints" / "step-00000004"
    if harm == "deleted":
        shutil.rmtree(best)
        expected = (
            r"step-00000004 \(validation 1.*\) is lost.*Nothing was trained or changed; restore it from a copy, or train anew"
        )
    else:
        damage(best / "weights.safetensors", "flipped")
        expected = (
            r"step-00000004 is corrupted.*it has the best weights: restore it from a copy, or train anew in another folder"
        )
    with pytest.raises((FileNotFoundError, ValueError), match=expected):
        again(new_base())


def test_a_best_checkpoint_that_is_made_again_need_not_be_there(tmp_path):
    base = new_base()
    record = run(base, tmp_path)
    last = CheckpointManager(tmp_path / "checkpoints").last()
    assert record.best_step == 17 and last.name == "step-00000017"
    shutil.rmtree(last)
    again = new_base(seed=3)
    run(again, tmp_path, resume=True)
    assert fingerprint(again) == fingerprint(base)


@pytest.mark.parametrize("tail", [b'{"step": 99', b"\x00\x00\x00\n\x00", b"\xff\n", b"[]\n"])
def test_a_resumed_history_is_that_of_the_checkpoint_whatever_a_power_cut_left_in_the_file(tmp_path, tail):
    history = History(tmp_path / "history.jsonl")
    for step in (1, 2, 3):
        history.add({"step": step})
    with (tmp_path / "history.jsonl").open("ab") as file:
        file.write(tail)
    again = History(tmp_path / "history.jsonl")
    again.restore(history.entries[:2])
    again.add({"step": 3, "again": True})
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert lines == again.entries == [{"step": 1}, {"step": 2}, {"step": 3, "again": True}]


def test_names_that_a_kill_came_before_are_written_again(tmp_path):
    """Else the best checkpoint counts as an old one, and is deleted when two later ones are there."""
    again, weights = run_with_best_before_last(tmp_path)
    names = (tmp_path / "checkpoints" / "current.json").read_text()
    (tmp_path / "checkpoints" / "current.json").unlink()
    base = new_base(seed=3)
    again(base)
    assert (tmp_path / "checkpoints" / "current.json").read_text() == names and fingerprint(base) == weights
