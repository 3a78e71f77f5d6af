"""What a run keeps in its folder beside the model: its settings, with which alone it is resumed, and its results."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from esscher.core.chunking import Chunking
from esscher.core.config import from_dict, refuse_change, to_dict
from esscher.core.distributed import is_main_process
from esscher.core.manifest import check_manifest, write_manifest
from esscher.core.reading import describing, read_yaml_mapping
from esscher.core.storage import write_file, write_json
from esscher.data.config import DataConfig, LengthConfig
from esscher.workflow.config.train import TrainRun

TRAIN_SETTINGS, TILT_SETTINGS, DISTIL_SETTINGS, FINETUNE_SETTINGS = "run.yaml", "tilt.yaml", "distil.yaml", "finetune.yaml"
RESULTS = "results.json"
C = TypeVar("C")


def save_settings(file: Path, settings: Any) -> None:
    """Write the settings of a run; with checkpoints and not resumed it keeps those that are there, which these belong to."""
    if is_main_process() and (settings.resume or not (file.parent / "checkpoints").is_dir()):
        write_file(file, yaml.safe_dump(run_settings(settings), sort_keys=False).encode())


def refuse_other_settings(file: Path, settings: Any) -> None:
    """Refuse to resume a run with other settings than it was started with; where the run folder stands may change."""
    if file.is_file():
        old, new = read_yaml_mapping(file), run_settings(settings)
        check_manifest(file.parent, [file.name])
        refuse_change(f"By {file}, the run", {**old, "out": None}, {**new, "out": None})


def read_settings(file: Path, cls: type[C]) -> C | None:
    """The settings that a run kept; None where there is no such file."""
    if not file.is_file():
        return None
    values = read_yaml_mapping(file)
    with describing(file, "the settings of a run"):
        return from_dict(cls, values)


def write_results(folder: Path, results: Any) -> None:
    """Write the results of a run into its finished folder."""
    write_json(folder / RESULTS, results)
    write_manifest(folder, [RESULTS])


def trained_chunking(run: TrainRun | None) -> Chunking:
    """How text is cut for a model where neither its energy nor the user says: as in its training, if that was on chunks."""
    return Chunking(prompt_tokens=run.length.prompt_tokens if run is not None and run.length.chunks else None)


def stream_settings(run: TrainRun | None) -> tuple[DataConfig, LengthConfig]:
    """How texts make a stream for a model: as in its training, if that was on a stream."""
    return (DataConfig(), LengthConfig()) if run is None or not run.length.stream else (run.data, run.length)


def run_settings(settings: Any) -> dict[str, Any]:
    """What of the settings belongs to the run: not whether it is resumed or replaces another."""
    return {key: value for key, value in to_dict(settings).items() if key not in ("resume", "overwrite")}


def changed_settings(settings: Any) -> dict[str, Any]:
    """The settings of a run that differ from their defaults or have none, nested; of a kind that was chosen, its name, too."""
    return _changed(settings, settings, run_settings(settings))


def _changed(settings: Any, default: Any, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Of a dataclass, the plain values of the fields that differ from those of `default`, or from the defaults of its class."""
    changed: dict[str, Any] = {}
    for field in fields(settings):
        if field.name not in plain:
            continue
        value, usual = getattr(settings, field.name), getattr(default, field.name, MISSING)
        if default is settings or type(default) is not type(settings):
            usual = field.default if field.default_factory is MISSING else field.default_factory()
        if is_dataclass(value) and isinstance(plain[field.name], Mapping):
            inner = _changed(value, usual if type(usual) is type(value) else None, plain[field.name])
            if type(usual) is not type(value) and "kind" in plain[field.name]:
                inner = {"kind": plain[field.name]["kind"], **inner}
            changed |= {field.name: inner} if inner else {}
        elif value != usual:
            changed[field.name] = plain[field.name]
    return changed
