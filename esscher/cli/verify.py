"""`esscher verify`: what differs between a finished folder, with those inside it, and the manifests that were written last."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from esscher.core.manifest import CHECKPOINT_MANIFEST, MANIFEST, compare_with_manifest, read_manifest, write_manifest
from esscher.reports.report import Report

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class VerifyConfig:
    """What differs between a folder and its manifest, which has the size and SHA-256 of every file: missing, changed and added
    files, also in folders inside it and in its checkpoints. The exit code is 1 if something does.

    With --accept the manifest is written anew, after a deliberate edit or for a folder from elsewhere; checkpoints stay as they
    are.
    """

    folder: str
    """A folder that train, tilt, distil, finetune, measure or `Model.save` wrote; or any model folder, with --accept."""
    accept: bool = field(default=False, kw_only=True)
    """Record the files as they are now."""


def verify(settings: VerifyConfig) -> Report:
    """Compare a folder with its manifests, or write them anew."""
    folder = Path(settings.folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}. Nothing was compared; check the path.")
    inside = sorted(file.parent for file in folder.rglob(MANIFEST) if file.parent != folder)
    if settings.accept:
        for place in (folder, *inside):
            write_manifest(place)
        recorded = sum(len(read_manifest(place) or {}) for place in (folder, *inside))
        return Report("esscher verify", {"folder": settings.folder, "recorded": recorded, "folders": 1 + len(inside)}, {})
    checkpoints = sorted(file.parent for file in folder.glob(f"{CHECKPOINTS}/*/{CHECKPOINT_MANIFEST}"))
    manifests = dict.fromkeys((folder, *inside), MANIFEST) | dict.fromkeys(checkpoints, CHECKPOINT_MANIFEST)
    if not (folder / MANIFEST).is_file():
        del manifests[folder]
    if not manifests:
        raise FileNotFoundError(
            f"There is no {MANIFEST} in {folder}: it is from elsewhere or unfinished. Nothing was compared; to record its "
            f"files as they are: esscher verify {folder} --accept"
        )
    rows: list[dict[str, Any]] = []
    for place, manifest in manifests.items():
        differences = compare_with_manifest(place, manifest=manifest)
        for how in ("missing", "changed", "added"):
            rows += [{"file": str(place / name), "what": how} for name in getattr(differences, how)]
    facts = {"folder": settings.folder, "folders": len(manifests), "differences": len(rows)}
    advice = f"Restore what differs from {MANIFEST}, or, if this was deliberate: esscher verify {folder} --accept"
    return Report("esscher verify", facts, {"differences": rows}, [advice] if rows else [], failed=bool(rows))
