"""What a run keeps in its folder beside the model: its settings, with which alone it is resumed, and its results."""

from pathlib import Path
from typing import Any, TypeVar

import yaml

from esscher.core.chunking import Chunking
from esscher.core.config import from_dict, refuse_change, to_dict
from esscher.core.distributed import is_main_process
from esscher.core.storage import write_file
from esscher.data.config import DataConfig, LengthConfig
from esscher.workflow.config.train import TrainRun

TRAIN_SETTINGS, TILT_SETTINGS, DISTIL_SETTINGS, FINETUNE_SETTINGS = "run.yaml", "tilt.yaml", "distil.yaml", "finetune.yaml"
RESULTS = "results.json"
C = TypeVar("C")


def save_settings(file: Path, settings: Any) -> None:
    """Write the settings of a run, unless it has checkpoints: these belong to the settings that are there."""
    if is_main_process() and not (file.parent / "checkpoints").is_dir():
        write_file(file, yaml.safe_dump(_kept(settings), sort_keys=False).encode())


def refuse_other_settings(file: Path, settings: Any) -> None:
    """Refuse to resume a run with other settings than it was started with; where the run folder stands may change."""
    if file.is_file():
        old, new = yaml.safe_load(file.read_text()), yaml.safe_load(yaml.safe_dump(_kept(settings)))
        refuse_change(f"The run in {file.parent}", {**old, "out": None}, {**new, "out": None})


def read_settings(file: Path, cls: type[C]) -> C | None:
    """The settings that a run kept; None where there is no such file."""
    return from_dict(cls, yaml.safe_load(file.read_text())) if file.is_file() else None


def trained_chunking(run: TrainRun | None) -> Chunking:
    """How text is cut for a model where neither its energy nor the user says: as in its training, if that was on chunks."""
    return Chunking(prompt_tokens=run.length.prompt_tokens if run is not None and run.length.chunks else None)


def stream_settings(run: TrainRun | None) -> tuple[DataConfig, LengthConfig]:
    """How texts make a stream for a model: as in its training, if that was on a stream."""
    return (DataConfig(), LengthConfig()) if run is None or not run.length.stream else (run.data, run.length)


def _kept(settings: Any) -> dict[str, Any]:
    """What of the settings belongs to the run: not whether it is resumed."""
    return {key: value for key, value in to_dict(settings).items() if key != "resume"}
