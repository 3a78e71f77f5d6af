"""What a verb leaves in its folder beside what it prints: `report.html` for people, `answer.json` for programs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from esscher.commands.output import Answer, plain
from esscher.launch import first_process


def keep(answer: Answer, folder: Path, settings: Mapping[str, Any], *, own_page: bool = False) -> Answer:
    """Leave both files in the folder, or only the second where a page is there already; the answer then says where it is.

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
