"""Manifests: the size and SHA-256 of every file of a finished folder, so that a damaged or edited one never loads silently.

A writer of a folder calls `write_manifest` last, and a loader calls `check_manifest` first, which reads each file that loading
depends on once. `esscher verify` compares all files. A folder without a manifest is from elsewhere, and loads unchecked.
Folders inside are folders of their own, except those of `INSIDE`.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from esscher.core.bounded_files import refuse_link_outside
from esscher.core.reading import read_json_object

MANIFEST = "esscher-manifest.json"
CHECKPOINT_MANIFEST = "manifest.json"
INSIDE = ("encoder", "reader")  # folders whose files belong to the folder around them
LOADED = (  # what loading depends on; reports, cards and results are compared where they are read
    "*config.json", "model*.safetensors*", "twist.safetensors", "tokenizer*", "special_tokens_map.json", "added_tokens.json",
    "vocab*", "merges.txt", "*.model", "*.spm", "codec.json", "esscher.json", "run.yaml", "tilt.yaml",
    *(f"{folder}/*" for folder in INSIDE),
)  # fmt: skip
Record = Mapping[str, Any]  # {"bytes": size, "sha256": digest}


@dataclass(frozen=True)
class Differences:
    """Names of files that are no longer there, have another content, or were not there."""

    missing: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.changed or self.added)


def record_of(file: Path) -> Record:
    """The size and SHA-256 of a file."""
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}


def write_manifest(folder: Path, names: Iterable[str] | None = None, *, manifest: str = MANIFEST) -> None:
    """Record these files as they are now, beside what is recorded already; by default all files of the folder, and no others.
    Written atomically, as the last step of a finished folder."""
    from esscher.core.storage import write_json  # here, because reading a manifest needs no torch

    old = read_manifest(folder, manifest=manifest) if names is not None else None
    chosen = files_of(folder, manifest=manifest) if names is None else [name for name in names if (folder / name).is_file()]
    records = {**(old or {}), **{name: record_of(folder / name) for name in chosen}}
    write_json(folder / manifest, dict(sorted(records.items())))


def read_manifest(folder: Path, *, manifest: str = MANIFEST) -> dict[str, Record] | None:
    """The records of a folder by file; None for a folder from elsewhere, which has none."""
    file = folder / manifest
    if not file.is_file():
        return None
    then = f"Nothing was loaded; restore it, or record the files as they are: esscher verify {folder} --accept"
    records = read_json_object(file, then=then)
    for name, record in records.items():
        if not isinstance(record, dict) or set(record) != {"bytes", "sha256"} or Path(name).is_absolute() or ".." in name:
            raise ValueError(f"{file} has no size and digest of {name!r}: it is damaged. {then}")
    return records


def files_of(folder: Path, *, manifest: str = MANIFEST) -> list[str]:
    """The names of the files that belong to a folder: visible ones, and those of folders that are part of it."""
    places = [folder, *(folder / name for name in INSIDE if (folder / name).is_dir())]
    files = [file for place in places for file in place.iterdir() if file.is_file() and not file.name.startswith(".")]
    return sorted(name for file in files if (name := file.relative_to(folder).as_posix()) != manifest)


def compare_with_manifest(folder: Path, *, manifest: str = MANIFEST) -> Differences:
    """What differs from the manifest, of all files."""
    records, present = read_manifest(folder, manifest=manifest) or {}, files_of(folder, manifest=manifest)
    missing = tuple(name for name in records if name not in present)
    changed = tuple(name for name in records if name in present and record_of(folder / name) != records[name])
    return Differences(missing, changed, tuple(name for name in present if name not in records))


def check_manifest(folder: Path, names: Iterable[str] | None = None) -> None:
    """Refuse a folder in which one of these files is missing or has another content than the manifest says. By default these
    are the files that loading depends on, and no such file may have come to those of a finished model."""
    records = read_manifest(folder)
    if records is None:
        return
    chosen = [name for name in records if _is_loaded(name)] if names is None else [name for name in names if name in records]
    for name in chosen:
        if not (folder / name).is_file():
            size = records[name]["bytes"]
            raise FileNotFoundError(f"There is no file {folder / name}; {MANIFEST} says {size} bytes. {_advice(folder)}")
        refuse_link_outside(folder / name, folder)
        now = record_of(folder / name)
        if now != records[name]:
            raise ValueError(
                f"The file {folder / name} is not what was written: it has {_in_words(now)}, and {MANIFEST} says "
                f"{_in_words(records[name])}. {_advice(folder)}"
            )
    added = [name for name in files_of(folder) if name not in records and _is_loaded(name)]
    if names is None and added and "config.json" in records:
        raise ValueError(
            f"The file {folder / added[0]} is not in {MANIFEST}: it came later, or from elsewhere. {_advice(folder)}"
        )


def _is_loaded(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in LOADED)


def _in_words(record: Record) -> str:
    return f"{record['bytes']} bytes with SHA-256 {str(record['sha256'])[:12]}…"


def _advice(folder: Path) -> str:
    return (
        f"Nothing was loaded; restore the file from a copy, or, if the change was deliberate, accept the folder as it is: "
        f"esscher verify {folder} --accept"
    )
