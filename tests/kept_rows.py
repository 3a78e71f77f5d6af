"""Rows of studies that are not finished, kept in the repository, so that they go on in another clone or on another machine.

    python tests/kept_rows.py save gam runs/gam         # every row.json of the folder, into docs/figures/rows/gam.jsonl
    python tests/kept_rows.py restore gam runs/gam      # back into the folder, before `esscher reproduce gam --out runs/gam`

A row is made again if its file is missing (`esscher.papers.study`), so deleting its line makes it anew.
"""

import json
import sys
from pathlib import Path

from esscher.papers.study import ROW_FILE

KEPT = Path(__file__).parents[1] / "docs" / "figures" / "rows"


def save(name: str, folder: Path, kept: Path = KEPT) -> int:
    """Keep all rows of a study's folder; returns how many there are."""
    files = sorted(folder.rglob(ROW_FILE))
    lines = [json.dumps([str(file.parent.relative_to(folder)), json.loads(file.read_text())]) + "\n" for file in files]
    kept.mkdir(parents=True, exist_ok=True)
    (kept / f"{name}.jsonl").write_text("".join(lines), encoding="utf8")
    return len(files)


def restore(name: str, folder: Path, kept: Path = KEPT) -> int:
    """Write kept rows where the recipe looks for them, except those that are there; returns how many were written."""
    written = 0
    for line in (kept / f"{name}.jsonl").read_text(encoding="utf8").splitlines():
        place, row = json.loads(line)
        file = folder / place / ROW_FILE
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(row, indent=2) + "\n", encoding="utf8")
            written += 1
    return written


if __name__ == "__main__":
    verb, study, out = sys.argv[1:]
    print({"save": save, "restore": restore}[verb](study, Path(out)), "rows")
