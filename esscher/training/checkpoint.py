"""Checkpoints that survive a kill at any moment, a full disk and a flipped bit, without pickle; and the history of a run.

    checkpoints/
      current.json                names the last checkpoint and the best one; replaced in one rename
      step-00000120/
        weights.safetensors       parameters and buffers of every module
        optimizer.safetensors     tensors of every optimizer
        extra.safetensors         other tensors, if there are any: memories of streams, averaged weights
        state.json                the rest: step, best evaluation, history, settings, versions, optimizers' plain values
        manifest.json             size and SHA-256 of these files

A checkpoint is renamed from a temporary folder, so it is complete or absent. The last two and the best are kept. What it leaves
out: random state, because random numbers are a function of (seed, step, rank).
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from esscher.core.manifest import CHECKPOINT_MANIFEST, compare_with_manifest, write_manifest
from esscher.core.reading import read_json_object
from esscher.core.storage import (
    SavingError,
    fsync_folder,
    full_tensor,
    load_module_tensors,
    make_folder,
    module_tensors,
    read_tensors,
    saving_error,
    shard_like,
    write_file,
    write_json,
    write_tensors,
)

WEIGHTS, OPTIMIZER, EXTRA = "weights.safetensors", "optimizer.safetensors", "extra.safetensors"
STATE, MANIFEST, CURRENT = "state.json", CHECKPOINT_MANIFEST, "current.json"
STEP = re.compile(r"step-\d{8,}")
RESTORE_BEST = "restore it from a copy, or train anew in another folder"
KEEP_LAST = 2  # checkpoints that are kept besides the best


@dataclass(frozen=True)
class CheckpointData:
    """The content of a checkpoint: named tensors and plain values."""

    weights: Mapping[str, Tensor]
    optimizers: Mapping[str, Tensor]
    state: Mapping[str, Any]
    extra: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointManager:
    """The checkpoints of one run."""

    folder: Path

    def save(self, step: int, saved: CheckpointData, *, best: bool) -> Path:
        """Write the checkpoint of a step, mark it as the last one, and as the best if it is; then delete old ones."""
        place = self.at(step)
        beside = self.folder / f".writing-{place.name}-{os.getpid()}"  # `folder_lock` removes those of killed processes
        try:
            make_folder(self.folder)
            beside.mkdir()
            write_tensors(beside / WEIGHTS, saved.weights)
            write_tensors(beside / OPTIMIZER, saved.optimizers)
            if saved.extra:
                write_tensors(beside / EXTRA, saved.extra)
            write_json(beside / STATE, saved.state)
            written = [name for name in (WEIGHTS, OPTIMIZER, EXTRA, STATE) if (beside / name).is_file()]
            write_manifest(beside, written, manifest=MANIFEST)
            fsync_folder(beside)
            if place.exists():  # from a run that was killed between this rename and the next
                shutil.rmtree(place)
            os.replace(beside, place)
            current = {"last": place.name, "best": place.name if best else self.current().get("best")}
            write_json(self.folder / CURRENT, current)
        except BaseException as error:
            shutil.rmtree(beside, ignore_errors=True)
            if not isinstance(error, OSError | SafetensorError):
                raise
            cause, last = saving_error(place, error, 0), self.last()
            earlier = "There was none before it" if last is None else f"The checkpoint {last.name} survives"
            what = f"Step {step} could not be saved, and training stopped. {cause.what}"
            raise SavingError(cause.errno or 0, what, f"{earlier} in {self.folder}; make room and resume.") from error
        self.prune()
        return place

    def restore_names(self, last: Path, best_step: int | None) -> None:
        """Name the last and the best checkpoint again, where a kill or a full disk came before their names were written."""
        names = self.current()
        best = None if best_step is None or not self.at(best_step).is_dir() else self.at(best_step).name
        restored = {"last": names.get("last") or last.name, "best": names.get("best") or best}
        if restored != names:
            write_json(self.folder / CURRENT, restored)

    def prune(self) -> None:
        """Delete all but the last checkpoints and the best."""
        current = self.current()
        for old in self._all()[:-KEEP_LAST]:
            if old.name not in current.values():
                shutil.rmtree(old, ignore_errors=True)

    def current(self) -> dict[str, Any]:
        """The names of the last and the best checkpoint; empty before the first."""
        file = self.folder / CURRENT
        if not file.is_file():
            return {}
        then = f"Nothing was loaded; delete {CURRENT} and resume: training then goes on from the newest checkpoint."
        names = read_json_object(file, then=then)
        if set(names) != {"last", "best"} or not all(name is None or STEP.fullmatch(str(name)) for name in names.values()):
            raise ValueError(f"{file} does not name the last and the best checkpoint. {then}")
        return names

    def last(self) -> Path | None:
        """The folder of the last checkpoint, or of the newest one left if that was deleted."""
        return self._folder_of("last") or next(reversed(self._all()), None)

    def best(self) -> Path | None:
        """The folder of the checkpoint with the best evaluation."""
        return self._folder_of("best")

    def at(self, step: int) -> Path:
        """The folder of the checkpoint of a step, whether it is there or not."""
        return self.folder / f"step-{step:08d}"

    def _folder_of(self, role: str) -> Path | None:
        name = self.current().get(role)
        return None if name is None or not (self.folder / name).is_dir() else self.folder / name

    def read(self, place: Path) -> CheckpointData:
        """Read a checkpoint, checking every file against the manifest."""
        try:
            differences = compare_with_manifest(place, manifest=MANIFEST)
            for names, how in (
                (differences.missing, f"is missing, by {MANIFEST}"),
                (differences.changed, f"is not what was written, by {MANIFEST}"),
                (differences.added, f"is not in {MANIFEST}"),
            ):
                if names:
                    raise ValueError(f"{names[0]} {how}")
            state = read_json_object(place / STATE)
            extra = read_tensors(place / EXTRA) if (place / EXTRA).is_file() else {}
            return CheckpointData(read_tensors(place / WEIGHTS), read_tensors(place / OPTIMIZER), state, extra)
        except (OSError, ValueError, KeyError, AttributeError) as error:
            others = [other for other in self._all() if other != place]
            then = f"training then goes on from {others[-1].name}" if others else "training then starts anew"
            advice = f"delete that folder and resume: {then}"
            if place == self.best() != self.last():
                advice = f"it has the best weights: {RESTORE_BEST}"
            raise ValueError(f"The checkpoint {place} is corrupted: {error}. Nothing was loaded; {advice}.") from error

    def _all(self) -> list[Path]:
        return sorted(self.folder.glob("step-*")) if self.folder.is_dir() else []


def collect_state(
    modules: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    state: Mapping[str, Any],
    extra: Mapping[str, Tensor] | None = None,
) -> CheckpointData:
    """Modules, optimizers and extra tensors as named tensors and plain values; all processes must call it."""
    weights = {f"{key}/{name}": tensor for key, module in modules.items() for name, tensor in module_tensors(module).items()}
    tensors, plain = dict[str, Tensor](), dict[str, Any]()
    for module, optimizer in optimizers.items():
        saved = optimizer.state_dict()
        entries = {f"{index}/{key}": value for index, slots in saved["state"].items() for key, value in slots.items()}
        tensors |= {f"{module}/{name}": full_tensor(value) for name, value in entries.items() if isinstance(value, Tensor)}
        values = {name: value for name, value in entries.items() if not isinstance(value, Tensor)}
        plain[module] = {"param_groups": saved["param_groups"], "values": values}
    return CheckpointData(weights, tensors, {**state, "optimizers": plain}, {} if extra is None else extra)


def restore_state(
    saved: CheckpointData, modules: Mapping[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer], source: Path
) -> None:
    """Load what `collect_state` returned into modules and optimizers."""
    restore_weights(saved, modules, source)
    for module, optimizer in optimizers.items():
        plain = saved.state["optimizers"][module]
        entries = _entries_of(saved.optimizers, module) | plain["values"]
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        state: dict[int, dict[str, Any]] = {}
        for name, value in entries.items():
            index, key = name.split("/", 1)
            per_weight = isinstance(value, Tensor) and value.shape == weights[int(index)].shape
            state.setdefault(int(index), {})[key] = shard_like(weights[int(index)], value) if per_weight else value
        groups = [
            {key: tuple(value) if isinstance(value, list) and key != "params" else value for key, value in group.items()}
            for group in plain["param_groups"]
        ]
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def restore_weights(saved: CheckpointData, modules: Mapping[str, nn.Module], source: Path) -> None:
    """Load the weights only."""
    for name, module in modules.items():
        load_module_tensors(module, _entries_of(saved.weights, name), source / WEIGHTS)


def _entries_of(tensors: Mapping[str, Tensor], module: str) -> dict[str, Any]:
    prefix = f"{module}/"
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@dataclass
class History:
    """Entries in order of step, in memory and, if there is a file, appended to it."""

    file: Path | None = None
    entries: list[dict[str, Any]] = field(default_factory=list)

    def restore(self, entries: list[dict[str, Any]]) -> None:
        """Take these entries, those of a checkpoint, in place of what is in the file: it may have later ones, or be damaged."""
        self.entries = entries
        if self.file is not None:
            write_file(self.file, "".join(json.dumps(entry) + "\n" for entry in entries).encode())

    def add(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)
        if self.file is not None:
            line = json.dumps(entry) + "\n"
            try:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                with self.file.open("a") as file:
                    file.write(line)
            except OSError as error:
                raise saving_error(self.file, error, len(line)) from error
