"""How verbs print: a table for people, or one JSON object as the last line for programs.

What is printed for people goes to standard output too; progress and notes go to standard error.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from esscher.estimate import Estimate
from esscher.launch import first_process

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object as the last line.")]
Seed = Annotated[int, Parameter(name="--seed", help="One seed for everything random; printed back.")]
Sharded = Annotated[
    bool, Parameter(name="--sharded", negative="", help="Share out the base's weights among the processes of torchrun.")
]
ENERGY = "Folder of the energy that tilts the base; or `own`, the level of the base's own logits."


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
