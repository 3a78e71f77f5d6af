"""Parts that the reports of several recipes have: the published table, tables that may be empty, losses while learning."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from esscher.recipes.rows import place_of
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import curves


def published(paper: Sequence[Mapping[str, Any]]) -> Section:
    """The paper's table."""
    return Section("Published", "At the published sizes.", [Table("Results", paper)])


def if_any(table: Table) -> list[Table]:
    """The table, unless it has no rows."""
    return [table] if table.rows else []


def validations(place: Path) -> list[tuple[int, float]]:
    """The step and the loss of every evaluation of a run, in order."""
    entries = [json.loads(line) for line in (place / "history.jsonl").read_text(encoding="utf8").splitlines()]
    return [(entry["step"], entry["validation"]) for entry in entries if "validation" in entry]


def learning(folder: Path, models: Iterable[str], y: str, meaning: str = "Seed 0.") -> list[Picture]:
    """The validation losses of a study's models with the first seed; nothing where none was evaluated while it learnt."""
    seen = {model: validations(place_of(folder, model, 0)) for model in models}
    lines = {model: ([step for step, _ in some], [loss for _, loss in some]) for model, some in seen.items() if some}
    return [Picture(curves(lines, x="step", y=y), meaning)] if lines else []
