"""Checkpoints that survive a kill at any moment, a full disk and a flipped bit, without pickle.

    checkpoints/
      current.json                names the last checkpoint and the best one; replaced in one rename
      step-00000120/
        weights.safetensors       every player's parameters and buffers
        optimiser.safetensors     every optimiser's tensors
        carried.safetensors       what else goes on, where something does: memories of streams, averaged weights
        state.json                the rest: step, best evaluation, settings, versions, optimisers' plain values
        manifest.json             size and SHA-256 of these

A checkpoint is written to a folder beside, flushed, and renamed: it is whole or not there. The last two and
the best are kept. What it leaves out: random state, because chance is a function of (seed, step, rank).
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

from esscher.storage import (
    SavingError,
    fill_module,
    module_tensors,
    parted_as,
    read_tensors,
    saving_failed,
    sync_folder,
    whole,
    write_json,
    write_tensors,
)

WEIGHTS, OPTIMISER, CARRIED, STATE, MANIFEST, CURRENT = (
    "weights.safetensors",
    "optimiser.safetensors",
    "carried.safetensors",
    "state.json",
    "manifest.json",
    "current.json",
)
RECENT = 2  # checkpoints that are kept beside the best


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds, as plain names, tensors and values."""

    weights: Mapping[str, Tensor]
    optimisers: Mapping[str, Tensor]
    state: Mapping[str, Any]
    carried: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run."""

    folder: Path

    def save(self, step: int, saved: Saved, *, best: bool) -> Path:
        """Write the checkpoint of a step and name it the last one, and the best one if it is; then drop old ones."""
        place = self.folder / _name(step)
        beside = self.folder / f".writing-{_name(step)}-{os.getpid()}"
        try:
            self._clean()
            beside.mkdir(parents=True)
            write_tensors(beside / WEIGHTS, saved.weights)
            write_tensors(beside / OPTIMISER, saved.optimisers)
            if saved.carried:
                write_tensors(beside / CARRIED, saved.carried)
            write_json(beside / STATE, saved.state)
            written = [name for name in (WEIGHTS, OPTIMISER, CARRIED, STATE) if (beside / name).is_file()]
            write_json(beside / MANIFEST, {name: _stamp(beside / name) for name in written})
            sync_folder(beside)
            if place.exists():  # the same step again, after a kill between this rename and the next
                shutil.rmtree(place)
            os.replace(beside, place)
            current = {"last": place.name, "best": place.name if best else self.current().get("best")}
            write_json(self.folder / CURRENT, current)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(beside, ignore_errors=True)
            raise self._explain(step, error) from error
        self._drop_old(current)
        return place

    def current(self) -> dict[str, Any]:
        """The names of the last and the best checkpoint; none, before the first."""
        file = self.folder / CURRENT
        return json.loads(file.read_text()) if file.is_file() else {}

    def last(self) -> Path | None:
        """The folder of the last checkpoint; of the newest that is left, when the last was deleted."""
        name = self.current().get("last")
        if name is not None and (self.folder / name).is_dir():
            return self.folder / name
        left = self._all()
        return left[-1] if left else None

    def best(self) -> Path | None:
        """The folder of the checkpoint with the best evaluation."""
        name = self.current().get("best")
        return None if name is None or not (self.folder / name).is_dir() else self.folder / name

    def read(self, place: Path) -> Saved:
        """A checkpoint, every byte of it checked against its manifest."""
        try:
            manifest = json.loads((place / MANIFEST).read_text())
            for name, stamp in manifest.items():
                if _stamp(place / name) != stamp:
                    size = (place / name).stat().st_size
                    raise ValueError(f"{name} is not what was written ({size:,} bytes now, {stamp['bytes']:,} then)")
            state = json.loads((place / STATE).read_text())
            carried = read_tensors(place / CARRIED) if CARRIED in manifest else {}
            return Saved(read_tensors(place / WEIGHTS), read_tensors(place / OPTIMISER), state, carried)
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise ValueError(self._corrupted(place, error)) from error

    def _corrupted(self, place: Path, error: Exception) -> str:
        reason = f"{Path(error.filename).name} is missing" if isinstance(error, FileNotFoundError) and error.filename else error
        others = [other for other in self._all() if other != place]
        then = f"training then goes on from {others[-1].name}" if others else "training then starts anew"
        return f"The checkpoint {place} is corrupted: {reason}. Nothing was loaded; delete that folder and resume: {then}."

    def _explain(self, step: int, error: Exception) -> SavingError:
        cause = saving_failed(self.folder / _name(step), error, 0)
        last = self.last()
        kept = "There was none before it" if last is None else f"The checkpoint {last.name} survives"
        what = f"Step {step} could not be saved, and training stopped. {cause.what}"
        return SavingError(cause.errno or 0, what, f"{kept} in {self.folder}; make room and resume.")

    def _all(self) -> list[Path]:
        return sorted(self.folder.glob("step-*")) if self.folder.is_dir() else []

    def _clean(self) -> None:
        """Remove what a kill left half-written."""
        for left in self.folder.glob(".writing-*"):
            shutil.rmtree(left, ignore_errors=True)

    def _drop_old(self, current: Mapping[str, Any]) -> None:
        recent = self._all()[-RECENT:]
        for place in self._all():
            if place not in recent and place.name not in current.values():
                shutil.rmtree(place, ignore_errors=True)


def pack(
    modules: Mapping[str, nn.Module],
    optimisers: Mapping[str, torch.optim.Optimizer],
    state: Mapping[str, Any],
    carried: Mapping[str, Tensor] | None = None,
) -> Saved:
    """Players, their optimisers and what else is carried on as named tensors and plain values; all processes call it."""
    weights = {
        f"{player}/{name}": tensor for player, module in modules.items() for name, tensor in module_tensors(module).items()
    }
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for player, optimiser in optimisers.items():
        found = optimiser.state_dict()
        entries = {f"{index}/{key}": value for index, kept in found["state"].items() for key, value in kept.items()}
        tensors |= {f"{player}/{name}": whole(value) for name, value in entries.items() if isinstance(value, Tensor)}
        values = {name: value for name, value in entries.items() if not isinstance(value, Tensor)}
        plain[player] = {"param_groups": found["param_groups"], "values": values}
    return Saved(weights, tensors, {**state, "optimisers": plain}, {} if carried is None else carried)


def unpack(
    saved: Saved, modules: Mapping[str, nn.Module], optimisers: Mapping[str, torch.optim.Optimizer], source: Path
) -> None:
    """Put what `pack` took back into players and optimisers."""
    unpack_weights(saved, modules, source)
    for player, optimiser in optimisers.items():
        plain = saved.state["optimisers"][player]
        entries = _of_player(saved.optimisers, player) | plain["values"]
        weights = [weight for group in optimiser.param_groups for weight in group["params"]]
        state: dict[int, dict[str, Any]] = {}
        for name, value in entries.items():
            index, key = name.split("/", 1)
            alike = isinstance(value, Tensor) and value.shape == weights[int(index)].shape
            state.setdefault(int(index), {})[key] = parted_as(weights[int(index)], value) if alike else value
        groups = [
            {key: tuple(value) if isinstance(value, list) and key != "params" else value for key, value in group.items()}
            for group in plain["param_groups"]
        ]
        optimiser.load_state_dict({"state": state, "param_groups": groups})


def unpack_weights(saved: Saved, modules: Mapping[str, nn.Module], source: Path) -> None:
    """Put the weights back, and leave the optimisers."""
    for player, module in modules.items():
        fill_module(module, _of_player(saved.weights, player), source / WEIGHTS)


def _of_player(tensors: Mapping[str, Tensor], player: str) -> dict[str, Any]:
    prefix = f"{player}/"
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _stamp(file: Path) -> dict[str, Any]:
    with file.open("rb") as content:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(content, "sha256").hexdigest()}
