"""Pieces shared by processes: the draws of one, whoever makes them, and whoever is killed."""

import math
import signal

import pytest
from distributed_draws import outcomes, start
from random_targets import random_target

from esscher.core.space import Space, empty_prompts
from esscher.exact.enumeration import enumerate_points
from esscher.training import resumable
from esscher.training.made_with import claim_folder
from esscher.training.resumable import WorkItem, run_resumable


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process draws, and the files that it keeps."""
    folder = tmp_path_factory.mktemp("alone")
    assert start(folder, folder / "kept", processes=1) == [0]
    return outcomes(folder, 1)[0], contents(folder / "kept")


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.glob("*.safetensors")}


def test_two_processes_draw_what_one_does_and_cover_the_exact_log_z(alone, tmp_path):
    assert start(tmp_path, None, processes=2) == [0, 0]
    first, second = outcomes(tmp_path, 2)
    assert first["weights"] == second["weights"] == alone[0]["weights"]
    assert first["log_z"] == second["log_z"] == alone[0]["log_z"]
    assert (len(first["made"]), len(second["made"])) == (5, 4)  # nine pieces, so that one process has none in the last turn
    target = random_target(Space(3, 4, eos=0))
    exact = float(target.log_score(enumerate_points(target.space, empty_prompts(1))).logsumexp(0))
    assert first["log_z"]["low"] <= exact <= first["log_z"]["high"]


@pytest.mark.parametrize("kill", [0, 2])
def test_a_killed_process_loses_the_piece_in_its_hands(alone, tmp_path, kill):
    kept = tmp_path / "kept"
    assert start(tmp_path, kept, processes=2, kill=kill)[-1] == -signal.SIGKILL
    before = contents(kept) if kept.exists() else {}
    assert len(before) < 9 and before.items() <= alone[1].items()
    assert start(tmp_path, kept, processes=2) == [0, 0]
    assert contents(kept) == alone[1]
    first, second = outcomes(tmp_path, 2)
    assert first["weights"] == second["weights"] == alone[0]["weights"]
    shared = abs(len(first["made"]) - len(second["made"]))
    assert len(first["made"]) + len(second["made"]) == 9 - len(before) and shared <= 1


def test_processes_that_do_not_share_a_folder_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(resumable, "broadcast_object", lambda missing: missing[:1])  # as if another made the second
    work = [WorkItem(name, 1, lambda: 1) for name in "ab"]
    with pytest.raises(RuntimeError, match=r"Another process made b, and it is not in .* here"):
        run_resumable(work, folder=tmp_path, made_with={}, read=lambda file: 0, write=lambda file, part: file.touch())


def test_progress_counts_what_was_there_and_what_others_make(tmp_path, monkeypatch):
    said, work = [], [WorkItem(name, 10, lambda: math.pi) for name in "abcd"]
    claim_folder(tmp_path, {})
    (tmp_path / "a.safetensors").touch()
    monkeypatch.setattr("esscher.core.progress.PROGRESS_INTERVAL", -1.0)
    write = lambda file, part: file.touch()  # noqa: E731
    run_resumable(work, folder=tmp_path, made_with={}, read=lambda file: 0.0, write=write, say=said.append)
    assert [line.split("  ")[0] for line in said] == ["drawn 20 of 40", "drawn 30 of 40", "drawn 40 of 40"]
