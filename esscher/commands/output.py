"""What verbs tell: printed, as tables for people or one JSON object as the last line for programs; and kept in files.

What is printed for people goes to standard output too; progress and notes go to standard error.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

from esscher.estimate import Estimate
from esscher.launch import first_process


@dataclass(frozen=True)
class Answer:
    """What a verb found: single facts, tables of rows, and lines of advice."""

    title: str
    facts: Mapping[str, Any]
    tables: Mapping[str, Sequence[Mapping[str, Any]]]
    notes: Sequence[str] = ()


def show(answer: Answer, *, as_json: bool) -> None:
    """Print an answer, in the first of several processes."""
    if not first_process():
        return
    if as_json:
        notes = {"notes": list(answer.notes)} if answer.notes else {}
        print(json.dumps(plain({**answer.facts, **answer.tables, **notes})))
        return
    from rich.console import Console

    from esscher.reports.tables import rich_facts, rich_table

    console = Console()
    if answer.facts:
        console.print(rich_facts(answer.title, answer.facts))
    for name, rows in answer.tables.items():
        console.print(rich_table(name, rows))
    for note in answer.notes:
        console.print(note, markup=False)


def keep(answer: Answer, folder: Path, settings: Mapping[str, Any], *, own_page: bool = False) -> Answer:
    """Leave `report.html` for people and `answer.json` for programs in the folder, or only the second where a page is there
    already; the answer then says where it is.

    A folder that cannot be written to costs the report, never the answer, which says so.
    """
    from esscher.reports.run_report import Run, versions, write_run

    if not first_process():
        return answer
    run = Run(answer.title, answer.facts, answer.tables, list(answer.notes), plain(settings), versions())
    try:
        report = write_run(folder, run, plain(dict(vars(run))), own_page=own_page)
    except OSError as error:
        return replace(answer, notes=[*answer.notes, f"No report was left in {folder}: {error}. The numbers are whole."])
    return replace(answer, facts={**answer.facts, "report": report})


def write_lines(file: Path, rows: Sequence[Any]) -> None:
    """One JSON object a line, the file whole or not there."""
    from esscher.storage import write_file

    write_file(file, "".join(f"{json.dumps(plain(row), ensure_ascii=False)}\n" for row in rows).encode())


def plain(value: Any) -> Any:
    """The value in terms of JSON; an infinite or undefined number becomes null."""
    if isinstance(value, Estimate):
        return plain(value.to_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
