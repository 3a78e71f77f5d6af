"""What a run keeps in its folder beside the model: its settings, with which alone it is resumed, and its results."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from esscher.launch import first_process
from esscher.settings.changes import refuse_change
from esscher.settings.data import DataConfig, LengthConfig
from esscher.settings.train import TrainRun, from_dict
from esscher.storage import write_file

TRAIN_SETTINGS, TILT_SETTINGS, DISTIL_SETTINGS, FINETUNE_SETTINGS = "run.yaml", "tilt.yaml", "distil.yaml", "finetune.yaml"
RESULTS = "results.json"


def keep_settings(file: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of a run, unless it has checkpoints: these belong to the settings that are there."""
    if first_process() and not (file.parent / "checkpoints").is_dir():
        write_file(file, yaml.safe_dump(settings, sort_keys=False).encode())


def refuse_other_settings(file: Path, settings: Mapping[str, Any]) -> None:
    """A run is resumed with the settings that it was started with, which it kept in a file."""
    if file.is_file():
        refuse_change(f"The run in {file.parent}", read_settings(file), yaml.safe_load(yaml.safe_dump(settings)))


def read_settings(file: Path) -> dict[str, Any]:
    """What a run kept as its settings; none where there is no such file."""
    return yaml.safe_load(file.read_text()) if file.is_file() else {}


def settings_of(folder: str | Path) -> TrainRun | None:
    """The settings that a base was trained with here; None of any other."""
    settings = read_settings(Path(folder) / TRAIN_SETTINGS)
    return from_dict(settings) if settings else None


def trained_on_streams(folder: str | Path) -> TrainRun | None:
    """The settings of a base that learnt from a stream; None of any other."""
    settings = read_settings(Path(folder) / TRAIN_SETTINGS)
    return from_dict(settings) if settings.get("length", {}).get("stream") else None


def manner_of(folder: str | Path) -> tuple[DataConfig, LengthConfig]:
    """How texts make a stream for a model: as where it learnt from one."""
    learnt = trained_on_streams(folder)
    return (DataConfig(), LengthConfig()) if learnt is None else (learnt.data, learnt.length)
