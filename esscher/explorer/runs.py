"""What the page shows of run folders, without a model: a run while it trains (`history.jsonl` and its status), and several runs
side by side. Folders are found before the page is served; a visitor names one of these, and never a path."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from esscher.reports.document import HISTORY, read_history
from esscher.reports.report import ANSWER, Report, compare_reports, read_report
from esscher.training.run_status import STATUS, RunStatus, read_status

MODEL = "config.json"
INSIDE = ("energy", "student")  # folders of runs inside a model's
STAGES = "checkpoints"  # where `distil` keeps the runs of its stages
SILENT = 60.0  # seconds without a word after which a run is taken to be gone
MAX_LOOKED_AT, MAX_RUNS, MAX_PICKED = 1_000, 60, 6  # folders; run folders that are offered, and that are compared at once


@dataclass(frozen=True)
class TrainingView:
    """A run as it is now: the entries of its history, the status it wrote last, and whether it is finished."""

    folder: Path
    history: Sequence[Mapping[str, Any]]
    status: RunStatus | None
    finished: bool
    now: float = field(default_factory=time.time)

    @property
    def running(self) -> bool:
        return not self.finished and self.status is not None and self.now - self.status.time < SILENT

    @property
    def step(self) -> int:
        last = max((int(entry["step"]) for entry in self.history), default=0)
        return last if self.status is None else max(last, self.status.step)

    @property
    def learning_rate(self) -> float | None:
        rates = [entry["learning_rate"] for entry in self.history if "learning_rate" in entry]
        return self.status.learning_rate if self.status is not None else (float(rates[-1]) if rates else None)

    @property
    def validation(self) -> Mapping[str, Any] | None:
        """The last evaluation."""
        return next((entry for entry in reversed(self.history) if "validation" in entry), None)


def is_run(folder: Path) -> bool:
    """Whether something was or is trained in a folder, or reported there."""
    return any((folder / name).is_file() for name in (HISTORY, STATUS, ANSWER))


def is_unfinished(folder: Path) -> bool:
    """Whether a folder holds a run that has not saved its model yet."""
    settings = any(folder.glob("*.yaml")) if folder.is_dir() else False
    started = is_run(folder) or (settings and (folder / STAGES).is_dir())
    return started and not (folder / MODEL).is_file()


def training_runs(folder: Path) -> dict[str, Path]:
    """The runs that can be watched in a folder, by name: its own, the stages of a distillation, and those of folders inside."""
    stages = sorted((folder / STAGES).glob("*")) if (folder / STAGES).is_dir() else []
    inside = sorted(place for place in folder.iterdir() if place.is_dir()) if folder.is_dir() else []
    runs = {folder.name or str(folder): folder} | {f"stage {place.name}": place for place in stages}
    runs |= {place.name: place for place in inside}
    return {name: place for name, place in runs.items() if any((place / file).is_file() for file in (HISTORY, STATUS))}


def view_training(folder: Path) -> TrainingView:
    """The run in a folder as it is now."""
    stage = folder.parent.name == STAGES
    finished = ((folder.parent.parent if stage else folder) / ANSWER).is_file()
    return TrainingView(folder, read_history(folder), read_status(folder), finished)


def find_runs(folder: Path, named: Sequence[str] = ()) -> dict[str, Path]:
    """The run folders to compare, by name: those named, or else the folder, those beside it, and those of energies and
    students inside."""
    if named:
        missing = [name for name in named if not is_run(Path(name))]
        if missing:
            raise FileNotFoundError(
                f"{missing[0]} holds no run: neither {HISTORY} nor {ANSWER} is there. Nothing was served; name run folders."
            )
        return {name: Path(name) for name in named}
    here = folder.resolve()
    try:
        beside = sorted(place for place in islice(here.parent.iterdir(), MAX_LOOKED_AT) if place.is_dir() and place != here)
    except OSError:  # a parent that may not be listed
        beside = []
    places = [below for place in (here, *beside) for below in (place, *(place / name for name in INSIDE))]
    found = [place for place in places if is_run(place)]
    return {place.relative_to(here.parent).as_posix(): place for place in found[:MAX_RUNS]}


@dataclass(frozen=True)
class RunComparison:
    """Runs side by side: rows of the numbers that two or more share, histories, settings that differ, and what is missing."""

    rows: Sequence[Mapping[str, Any]]
    histories: Mapping[str, Sequence[Mapping[str, Any]]]
    differ: Sequence[Mapping[str, Any]]
    notes: Sequence[str]


def compare_runs(runs: Mapping[str, Path]) -> RunComparison:
    """Compare the reports and histories of run folders; a run that is not finished has only a history."""
    reports: dict[str, Report] = {}
    notes, histories = [], {}
    for name, folder in runs.items():
        histories[name] = read_history(folder)
        if (folder / ANSWER).is_file():
            reports[name] = read_report(folder)
        else:
            notes.append(f"{name} is not finished: it has a curve, and no measured numbers yet.")
    rows, differ = compare_reports(reports) if len(reports) > 1 else ([], [])
    return RunComparison(rows, histories, differ, notes)
