"""Charts as HTML: lines, and dots with whiskers. Labels are text of the page and colours are variables of `theme.css`, so that
a chart is readable on a phone and in the dark; the interval of a point is in its title, and in words beside it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esscher.core.estimate import Estimate
from esscher.reports.tables import format_estimate

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

MAX_POINTS = 400  # of a line; more are thinned out
TICKS = 4
COLOURS = ("tilted", "truth", "base", "third", "fourth", "fifth")


@dataclass(frozen=True)
class Line:
    """A curve by the name of its colour; `low` and `high` are drawn as a band, `marks` as points with their values in words."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = "tilted"
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    marks: bool = False
    filled: bool = False


@dataclass(frozen=True)
class Axis:
    """The part of the numbers that is shown, and round numbers within."""

    low: float
    high: float
    ticks: tuple[float, ...]

    @classmethod
    def around(cls, values: Sequence[float]) -> "Axis":
        """An axis from a round number below the values to one above; infinite values are left out."""
        finite = [value for value in values if math.isfinite(value)]
        low, high = min(finite, default=0.0), max(finite, default=1.0)
        if high - low < 1e-12 * max(1.0, abs(high)):
            low, high = low - 0.5, high + 0.5
        step = _round_step((high - low) / TICKS)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        ticks = tuple(step * number for number in range(first, last + 1))
        return cls(ticks[0], ticks[-1], ticks)

    def percent(self, value: float) -> float:
        """Where a value stands, in percent of the axis; values outside stand at its end."""
        share = (value - self.low) / (self.high - self.low) if value == value else 0.0
        return 100 * min(1.0, max(0.0, share))

    def labels(self) -> list[tuple[float, str]]:
        step = self.ticks[1] - self.ticks[0]
        decimals = next((digits for digits in range(7) if abs(round(step, digits) - step) < 1e-6 * step), 7)
        plain = step >= 1e-4 and max(map(abs, self.ticks)) < 1e6
        return [(self.percent(tick), f"{tick + 0.0:,.{decimals}f}" if plain else f"{tick:.3g}") for tick in self.ticks]


def _round_step(least: float) -> float:
    """The least of 1, 2, 5, 10, ... times a power of ten that is at least that large."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= least * (1 - 1e-9))


def line_chart(lines: Sequence[Line], *, x: str, y: str, from_zero: bool = False) -> "Markup":
    """Lines over one x axis, with a legend; `from_zero` starts the y axis at 0."""
    lines = [_thinned(line) for line in lines]
    across = Axis.around([value for line in lines for value in line.x])
    across = Axis(min(v for line in lines for v in line.x), across.high, across.ticks) if len(across.ticks) < 3 else across
    ends = [value for line in lines for value in (*line.y, *line.low, *line.high)]
    up = Axis.around([*ends, 0.0] if from_zero else ends)
    shown = [_drawn(line, across, up, x) for line in lines]
    return _render("lines", shown, across.labels(), up.labels(), x, y)


def _drawn(line: Line, across: Axis, up: Axis, x: str) -> dict[str, Any]:
    def path(values: Sequence[float], places: Sequence[float]) -> list[str]:
        return [f"{across.percent(at):.2f},{100 - up.percent(value):.2f}" for at, value in zip(places, values, strict=True)]

    band = [*path(line.high, line.x), *reversed(path(line.low, line.x))] if line.low else []
    points = path(line.y, line.x)
    if line.filled:
        floor = f"{100 - up.percent(0.0):.2f}"
        band = [f"{across.percent(line.x[0]):.2f},{floor}", *points, f"{across.percent(line.x[-1]):.2f},{floor}"]
    marks = []
    if line.marks or len(line.x) == 1:
        for number, (at, value) in enumerate(zip(line.x, line.y, strict=True)):
            ends = f" [{line.low[number]:.4g}, {line.high[number]:.4g}]" if line.low else ""
            words = f"{line.name}: {value:.4g}{ends} at {x} {at:,.6g}"
            marks.append((across.percent(at), up.percent(value), words))
    return {"name": line.name, "colour": line.colour, "path": " ".join(points), "band": " ".join(band), "marks": marks}


def _thinned(line: Line) -> Line:
    if len(line.x) <= MAX_POINTS:
        return line
    stride = math.ceil(len(line.x) / MAX_POINTS)
    keep = sorted({*range(0, len(line.x), stride), len(line.x) - 1})
    columns = {name: [getattr(line, name)[at] for at in keep] for name in ("x", "y", "low", "high") if getattr(line, name)}
    return Line(**{**vars(line), **columns})


def whisker_chart(
    rows: Mapping[str, Estimate],
    *,
    label: str,
    colours: Mapping[str, str] | None = None,
    include: Sequence[float] = (),
) -> "Markup":
    """A dot and its interval for each row on one scale, which also shows the numbers of `include`; the numbers are in words,
    too. `colours` are names by row."""
    axis = Axis.around([*include, *(end for each in rows.values() for end in (each.low, each.value, each.high))])
    shown = []
    for number, (name, estimate) in enumerate(rows.items()):
        colour = (colours or {}).get(name, COLOURS[number % len(COLOURS)])
        low, high = axis.percent(estimate.low), axis.percent(estimate.high)
        place = {"left": low, "width": high - low, "dot": axis.percent(estimate.value)}
        shown.append({"name": name, "colour": colour, "words": format_estimate(estimate), "title": str(estimate), **place})
    return _render("whiskers", shown, axis.labels(), label)


def theme() -> str:
    """The style sheet that charts need: colours for light and dark pages, and the layout of charts."""
    return Path(__file__).with_name("theme.css").read_text(encoding="utf8")


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader

    return Environment(loader=PackageLoader("esscher.reports", "."), autoescape=True).get_template("charts.html")


def _render(name: str, *values: Any) -> "Markup":
    from markupsafe import Markup

    return Markup(getattr(_template().module, name)(*values))
