"""Cells of the tables in the docs: estimates with their intervals, and names as plain text."""

import re


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
