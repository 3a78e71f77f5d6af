"""The numbers of a run, one JSON object a line, so that a run can be watched and drawn while it goes on."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from esscher.storage import saving_failed, write_file


@dataclass
class History:
    """Entries in order of step, kept in memory and, when there is a file, at its end."""

    file: Path | None = None
    entries: list[dict[str, Any]] = field(default_factory=list)

    def restore(self, step: int) -> None:
        """Read the file back up to a step; what was written later, or only in part, is dropped and will come again."""
        if self.file is None or not self.file.is_file():
            return
        whole = [line for line in self.file.read_text().split("\n")[:-1] if line]
        self.entries = [entry for entry in map(json.loads, whole) if entry["step"] <= step]
        write_file(self.file, "".join(map(_line, self.entries)).encode())

    def add(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)
        if self.file is not None:
            try:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                with self.file.open("a") as file:
                    file.write(_line(entry))
            except OSError as error:
                raise saving_failed(self.file, error, len(_line(entry))) from error


def _line(entry: dict[str, Any]) -> str:
    return json.dumps(entry) + "\n"
