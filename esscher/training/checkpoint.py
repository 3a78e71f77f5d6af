"""Checkpoints that survive a kill at any moment, a full disk and a flipped bit, without pickle; and the history of a run.

    checkpoints/
      current.json                names the last checkpoint and the best one; replaced in one rename
      step-00000120/
        weights.safetensors       parameters and buffers of every module
        optimizer.safetensors     tensors of every optimizer
        extra.safetensors         other tensors, if there are any: memories of streams, averaged weights
        state.json                the rest: step, best evaluation, settings, versions, optimizers' plain values
        manifest.json             size and SHA-256 of these files

A checkpoint is renamed from a temporary folder, so it is complete or absent. The last two and the best are kept. What it leaves
out: random state, because random numbers are a function of (seed, step, rank).
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from esscher.core.storage import (
    SavingError,
    fsync_folder,
    full_tensor,
    load_module_tensors,
    module_tensors,
    read_tensors,
    saving_error,
    shard_like,
    write_file,
    write_json,
    write_tensors,
)

WEIGHTS, OPTIMIZER, EXTRA = "weights.safetensors", "optimizer.safetensors", "extra.safetensors"
STATE, MANIFEST, CURRENT = "state.json", "manifest.json", "current.json"
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
        place = self.folder / f"step-{step:08d}"
        beside = self.folder / f".writing-{place.name}-{os.getpid()}"
        try:
            for leftover in self.folder.glob(".writing-*"):  # of a process that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            beside.mkdir(parents=True)
            write_tensors(beside / WEIGHTS, saved.weights)
            write_tensors(beside / OPTIMIZER, saved.optimizers)
            if saved.extra:
                write_tensors(beside / EXTRA, saved.extra)
            write_json(beside / STATE, saved.state)
            written = [name for name in (WEIGHTS, OPTIMIZER, EXTRA, STATE) if (beside / name).is_file()]
            write_json(beside / MANIFEST, {name: _checksum(beside / name) for name in written})
            fsync_folder(beside)
            if place.exists():  # from a run that was killed between this rename and the next
                shutil.rmtree(place)
            os.replace(beside, place)
            current = {"last": place.name, "best": place.name if best else self.current().get("best")}
            write_json(self.folder / CURRENT, current)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(beside, ignore_errors=True)
            cause, last = saving_error(place, error, 0), self.last()
            earlier = "There was none before it" if last is None else f"The checkpoint {last.name} survives"
            what = f"Step {step} could not be saved, and training stopped. {cause.what}"
            raise SavingError(cause.errno or 0, what, f"{earlier} in {self.folder}; make room and resume.") from error
        for old in self._all()[:-KEEP_LAST]:
            if old.name not in current.values():
                shutil.rmtree(old, ignore_errors=True)
        return place

    def current(self) -> dict[str, Any]:
        """The names of the last and the best checkpoint; empty before the first."""
        file = self.folder / CURRENT
        return json.loads(file.read_text()) if file.is_file() else {}

    def last(self) -> Path | None:
        """The folder of the last checkpoint, or of the newest one left if that was deleted."""
        return self._folder_of("last") or next(reversed(self._all()), None)

    def best(self) -> Path | None:
        """The folder of the checkpoint with the best evaluation."""
        return self._folder_of("best")

    def _folder_of(self, role: str) -> Path | None:
        name = self.current().get(role)
        return None if name is None or not (self.folder / name).is_dir() else self.folder / name

    def read(self, place: Path) -> CheckpointData:
        """Read a checkpoint, checking every file against the manifest."""
        try:
            manifest = json.loads((place / MANIFEST).read_text())
            for name, stamp in manifest.items():
                if _checksum(place / name) != stamp:
                    size = (place / name).stat().st_size
                    raise ValueError(f"{name} is not what was written ({size:,} bytes now, {stamp['bytes']:,} then)")
            state = json.loads((place / STATE).read_text())
            extra = read_tensors(place / EXTRA) if EXTRA in manifest else {}
            return CheckpointData(read_tensors(place / WEIGHTS), read_tensors(place / OPTIMIZER), state, extra)
        except (OSError, ValueError, KeyError, AttributeError) as error:
            missing = error.filename if isinstance(error, FileNotFoundError) else None
            reason = f"{Path(missing).name} is missing" if missing else error
            others = [other for other in self._all() if other != place]
            then = f"training then goes on from {others[-1].name}" if others else "training then starts anew"
            raise ValueError(
                f"The checkpoint {place} is corrupted: {reason}. Nothing was loaded; delete that folder and resume: {then}."
            ) from error

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


def _checksum(file: Path) -> dict[str, Any]:
    with file.open("rb") as content:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(content, "sha256").hexdigest()}


@dataclass
class History:
    """Entries in order of step, in memory and, if there is a file, appended to it."""

    file: Path | None = None
    entries: list[dict[str, Any]] = field(default_factory=list)

    def restore(self, step: int) -> None:
        """Read the file up to a step; later or incomplete entries are dropped, because the run will write them again."""
        if self.file is None or not self.file.is_file():
            return
        lines = [line for line in self.file.read_text().split("\n")[:-1] if line]
        self.entries = [entry for entry in map(json.loads, lines) if entry["step"] <= step]
        write_file(self.file, "".join(json.dumps(entry) + "\n" for entry in self.entries).encode())

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
