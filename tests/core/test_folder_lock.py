"""One process at a time in a folder: who is refused, whose lock is stale, and what a killed write leaves."""

import json
import os
import signal
import threading
import time

import pytest
from cli_calls import call
from forks import forks

from esscher.core import folder_lock
from esscher.core.folder_lock import LOCK, locked_folder
from esscher.core.storage import write_json


def hold(folder, ready):
    with locked_folder(folder):
        ready.set()
        time.sleep(60)


@pytest.fixture
def holder(tmp_path):
    """A process that holds the folder."""
    context = forks()
    ready = context.Event()
    child = context.Process(target=hold, args=(tmp_path / "run", ready))
    child.start()
    assert ready.wait(60)
    yield child
    child.kill()
    child.join()


def test_a_second_process_is_refused_by_name_until_the_first_is_gone(holder, tmp_path, capsys):
    folder = tmp_path / "run"
    with pytest.raises(BlockingIOError, match=rf"run is in use by process {holder.pid} on .*, since 20.*Nothing was changed"):
        with locked_folder(folder):
            pass
    with locked_folder(tmp_path):  # a folder around it is another
        assert (folder / LOCK).exists()
    code, _, err = call(capsys, "train", "--out", str(folder), "--data", "motif:101", "--training.steps", "1", "--quiet")
    assert code == 1 and f"in use by process {holder.pid}" in err and "Traceback" not in err
    assert [file.name for file in folder.iterdir()] == [LOCK]
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    with locked_folder(folder):  # its lock is stale
        assert json.loads((folder / LOCK).read_text())["pid"] == os.getpid()
    assert not (folder / LOCK).exists()


def test_a_lock_of_another_host_is_respected_and_says_how_to_clear_it(tmp_path):
    (tmp_path / LOCK).write_text(json.dumps({"pid": 1, "host": "elsewhere", "since": "noon", "started": "1"}))
    with pytest.raises(BlockingIOError, match=r"process 1 on elsewhere, since noon.*delete .*\.esscher\.lock"):
        with locked_folder(tmp_path):
            pass
    (tmp_path / LOCK).unlink()
    with locked_folder(tmp_path):
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}'])
def test_a_lock_that_was_killed_before_it_was_written_is_stale(tmp_path, content):
    (tmp_path / LOCK).write_text(content)
    with locked_folder(tmp_path):
        pass


def test_without_locks_of_the_file_system_the_process_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock, "_flock", lambda *arguments: False)
    mine = {"pid": os.getpid(), "host": os.uname().nodename, "since": "noon", "started": folder_lock._start_of(os.getpid())}
    (tmp_path / LOCK).write_text(json.dumps(mine))
    with pytest.raises(BlockingIOError, match="in use"), locked_folder(tmp_path):
        pass
    (tmp_path / LOCK).write_text(json.dumps({**mine, "started": "1"}))  # a later process with the same number
    with locked_folder(tmp_path):
        pass


def test_a_thread_holds_what_is_inside_and_another_thread_does_not(tmp_path):
    refused = []

    def other() -> None:
        try:
            with locked_folder(tmp_path):
                pass
        except BlockingIOError:
            refused.append(True)

    with locked_folder(tmp_path), locked_folder(tmp_path), locked_folder(tmp_path / "inside"):
        assert not (tmp_path / "inside").exists()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert refused == [True] and not any(tmp_path.iterdir())


def test_what_killed_writes_left_is_removed_but_not_that_of_a_run_inside(tmp_path):
    write_json(tmp_path / "kept.json", {})
    left = [".kept.json.0-12.tmp", "checkpoints/.writing-step-00000003-12", "deeper/.a.safetensors.1-3.tmp"]
    for name in [*left, "running/.b.json.0-9.tmp", f"running/{LOCK}", ".hidden"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).mkdir() if "writing" in name else (tmp_path / name).touch()
    with locked_folder(tmp_path):
        assert not any((tmp_path / name).exists() for name in left)
    assert sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()) == [
        ".hidden", "kept.json", "running/.b.json.0-9.tmp", f"running/{LOCK}",
    ]  # fmt: skip


def test_a_folder_in_which_nothing_was_done_is_not_left(tmp_path):
    with pytest.raises(KeyError), locked_folder(tmp_path / "new" / "run"):
        raise KeyError
    assert not (tmp_path / "new").exists()
