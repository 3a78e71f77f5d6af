"""Cells of the tables in the docs: estimates with their intervals, and names as plain text."""

import json
import re
from pathlib import Path

STUDENT_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # quantiles, by number of seeds


def ends(estimate: dict[str, float], digits: int) -> list[float]:
    """Value and interval of an estimate."""
    return [round(estimate[end], digits) for end in ("value", "low", "high")]


def bracketed(numbers: list[float] | None, digits: int) -> str:
    """A value with its interval, if it has one that is not exact."""
    if not numbers:
        return "-"
    value, *interval = (f"{number:.{digits}f}" for number in numbers)
    return value if not interval or set(interval) == {value} else f"{value} [{', '.join(interval)}]"


def plain(text: str) -> str:
    """A text in a cell of a table."""
    return re.sub(r"([|*_<>`$\[\]\\])", r"\\\1", text)


def rounded(estimate: dict[str, float] | None) -> list[float] | None:
    """Value, low and high with four digits."""
    return None if estimate is None else [float(f"{estimate[end]:.4g}") for end in ("value", "low", "high")]


def with_interval(numbers: list[float] | None, seeds: int = 2) -> str:
    """A number with three digits and its interval over seeds; of one seed the number alone."""
    if numbers is None:
        return ""
    value, low, high = (f"{number:.3g}" for number in numbers)
    return value if seeds < 2 or low == high == value else f"{value} [{low}, {high}]"


def unfinished(missing: object) -> str:
    return (
        f"\n{missing} rows are not made yet; what has one seed has no interval, and its verdict is *open*.\n" if missing else ""
    )


def kept_tables(file: Path, *tables: str) -> dict[str, object]:
    """How many rows are missing, and these tables of a file with their estimates rounded."""
    content = json.loads(file.read_text())
    kept = {
        name: [
            {key: rounded(value) if isinstance(value, dict) else value for key, value in row.items()} for row in content[name]
        ]
        for name in tables
    }
    return {"missing": content["missing"], **kept}
