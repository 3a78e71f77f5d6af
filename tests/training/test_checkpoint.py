"""CheckpointManager: what is kept, and what is said of a damaged one."""

import errno
import os

import pytest
import torch
from tiny_run import fingerprint, new_base, run

from esscher.core.storage import SavingError
from esscher.training.checkpoint import CheckpointData, CheckpointManager, collect_state, restore_state


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
