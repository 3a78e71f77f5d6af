"""Rows as tables: for the terminal (rich) and for HTML."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from esscher.estimate import Estimate


def cell(value: Any) -> str:
    """One value as people read it: an estimate with its interval, a float with five digits."""
    if isinstance(value, Estimate):
        unit = f" {value.unit}" if value.unit else ""
        if value.draws == 0:
            return f"{value.value:.5g}{unit}"
        return f"{value.value:.5g} [{value.low:.5g}, {value.high:.5g}]{unit}"
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """All keys of the rows, in the order they first appear."""
    return list(dict.fromkeys(key for row in rows for key in row))


def rich_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table with one line for each row; numbers to the right."""
    table = Table(title=title.replace("_", " "), title_justify="left", title_style="bold")
    for key in columns(rows):
        numeric = all(isinstance(row.get(key), int | float | Estimate | None) for row in rows)
        table.add_column(key.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(row.get(key))) for key in columns(rows)))
    return table


def rich_facts(title: str, facts: Mapping[str, Any]) -> Table:
    """A table of names and values."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for key, value in facts.items():
        shown = str(value) if isinstance(value, Estimate) and value.draws else cell(value)
        table.add_row(key.replace("_", " "), Text(shown))
    return table
