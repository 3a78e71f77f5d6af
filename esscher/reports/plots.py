"""The library's pictures: functions from rows to a matplotlib figure, drawn without a screen."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from esscher.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, BASE, TILTED, TRUTH = "#1d2430", "#8b98a9", "#1f5fa8", "#c2410c"


def intervals(rows: Mapping[str, Estimate], *, label: str, truth: float | None = None, truth_label: str = "exact") -> "Figure":
    """One horizontal interval for each row, the exact value as a line where it is known."""
    figure, axes = _canvas(6.4, 0.9 + 0.45 * len(rows))
    for place, (name, estimate) in enumerate(rows.items()):
        colour = BASE if place == 0 else TILTED
        axes.plot([estimate.low, estimate.high], [place, place], color=colour, linewidth=5, alpha=0.35, solid_capstyle="round")
        axes.plot([estimate.value], [place], "o", color=colour)
        axes.annotate(
            f"{estimate.value:.4g}", (estimate.value, place), (0, 8), textcoords="offset points", ha="center", fontsize=9
        )
        axes.text(-0.02, place, name, transform=axes.get_yaxis_transform(), ha="right", va="center", color=INK)
    axes.set_yticks([])
    axes.set_ylim(len(rows) - 0.4, -0.7)
    axes.set_xlabel(label)
    if truth is not None:
        axes.axvline(truth, color=TRUTH, linestyle="--", linewidth=1.2, label=f"{truth_label}: {truth:.4g}")
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), fontsize=9)
    return figure


def bars(rows: Sequence[Mapping[str, float | str]], *, series: Mapping[str, str], label: str) -> "Figure":
    """Groups of bars: one group for each row (its "name"), one bar for each series, keyed to its colour."""
    figure, axes = _canvas(6.4, 0.9 + 0.28 * len(rows) * len(series))
    height = 0.8 / len(series)
    for number, (name, colour) in enumerate(series.items()):
        places = [row + number * height for row in range(len(rows))]
        widths = [float(row[name]) for row in rows]
        axes.barh(places, widths, height=height * 0.9, color=colour, label=name)
        for place, width in zip(places, widths, strict=True):
            axes.annotate(f"{width:.3g}", (width, place), (3, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(rows))], [str(row["name"]) for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.margins(x=0.12)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(series), fontsize=9)
    return figure


def curves(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x: str,
    y: str,
    floor: float | None = None,
    log: bool = False,
) -> "Figure":
    """Curves over steps, with a floor that nothing can go below drawn where it is known; `log` both scales."""
    figure, axes = _canvas(6.4, 3.2)
    colours, dashes = (BASE, TILTED, TRUTH, INK), ("-", "--", ":", "-.")
    for number, (name, (across, up)) in enumerate(lines.items()):
        colour, dash = colours[number % 4], dashes[number // 4 % 4]
        axes.plot(across, up, color=colour, linestyle=dash, label=name, linewidth=1.6, marker="o" if len(across) == 1 else None)
    if floor is not None:
        axes.axhline(floor, color=TRUTH, linestyle="--", linewidth=1.2, label=f"entropy floor {floor:.4g}")
    if log:
        axes.set_xscale("log")
        axes.set_yscale("log")
    _name(axes, x, y)
    return figure


def cumulative(lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, x: str, y: str) -> "Figure":
    """Steps from 0 to 1 over values between 0 and 1 in logarithm; values of 0 are not drawn."""
    figure, axes = _canvas(6.4, 3.4)
    for (name, (across, up)), colour in zip(lines.items(), cycle((BASE, TILTED, TRUTH, INK)), strict=False):
        seen = [(place, share) for place, share in zip(across, up, strict=True) if place > 0]
        places, shares = [place for place, _ in seen], [share for _, share in seen]
        axes.step(places, shares, where="post", color=colour, label=name, linewidth=1.6)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    _name(axes, x, y)
    return figure


Coloured = tuple[str, Sequence[float], Sequence[Estimate]]
"""A colour, places, and an estimate at each."""


def sizes(
    lines: Mapping[str, Coloured], dashed: Mapping[str, Coloured], *, x: str, y: str, dashed_y: str, floor: float
) -> "Figure":
    """Estimates against sizes (in logarithm), a second kind of them dashed on an axis of its own from 0 to 1."""
    figure, axes = _canvas(6.4, 3.8)
    other = axes.twinx()
    other.set_ylim(0, 1.05)
    other.set_ylabel(dashed_y)
    other.spines["top"].set_visible(False)
    for where, group, style in ((axes, lines, "-o"), (other, dashed, ":s")):
        for name, (colour, across, found) in group.items():
            label = name if where is axes else None
            where.errorbar(
                across, [one.value for one in found], _whiskers(found), fmt=style, color=colour, label=label, markersize=4,
                capsize=2,
            )  # fmt: skip
    axes.axhline(floor, color=TRUTH, linestyle="--", linewidth=1.2, label=f"entropy {floor:.4g}")
    axes.set_xscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=1 + len(lines))
    return figure


def blank(width: float, height: float) -> "Figure":
    """A figure of so many inches with nothing on it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _canvas(width: float, height: float) -> tuple["Figure", "Axes"]:
    figure = blank(width, height)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#aab3bf")
    axes.tick_params(colors=INK, labelsize=9)
    return figure, axes


def _name(axes: "Axes", x: str, y: str) -> None:
    """What stands along the axes, and what each line is."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(frameon=False, fontsize=9)


POPULATIONS = {"data": TRUTH, "base": BASE, "joint": TILTED}


def step_histograms(edges: Sequence[float], shares: Mapping[str, Sequence[float]], *, label: str) -> "Figure":
    """Histograms over one another as outlines, the first one filled: shares of each series between neighbouring edges."""
    figure, axes = _canvas(6.4, 3.4)
    for place, (name, heights) in enumerate(shares.items()):
        colour = POPULATIONS.get(name, INK)
        density = [height / (right - left) for height, left, right in zip(heights, edges[:-1], edges[1:], strict=True)]
        if place == 0:
            axes.stairs(density, edges, color=colour, fill=True, alpha=0.18, linewidth=0)
        axes.stairs(density, edges, color=colour, linewidth=1.6, label=name)
    _name(axes, label, "density")
    return figure


def estimates_by(places: Sequence[int], lines: Mapping[str, Sequence[Estimate]], *, x: str, y: str) -> "Figure":
    """A line of estimates with their intervals for each series, over whole numbers; series stand a little apart."""
    figure, axes = _canvas(6.4, 3.4)
    for number, (name, found) in enumerate(lines.items()):
        across = [place + 0.06 * (number - (len(lines) - 1) / 2) for place in places]
        axes.errorbar(
            across, [one.value for one in found], _whiskers(found), fmt="-o", color=POPULATIONS.get(name, INK), label=name,
            markersize=4, capsize=3, linewidth=1.4,
        )  # fmt: skip
    axes.set_xticks(list(places))
    _name(axes, x, y)
    return figure


def estimate_bars(names: Sequence[str], series: Mapping[str, Sequence[Estimate]], *, label: str) -> "Figure":
    """Groups of horizontal bars with their intervals: one group for each name, one bar for each series."""
    figure, axes = _canvas(6.4, 0.9 + 0.2 * len(names) * len(series))
    height = 0.8 / len(series)
    for number, (name, found) in enumerate(series.items()):
        places = [row + number * height for row in range(len(names))]
        axes.barh(
            places, [one.value for one in found], height=height * 0.9, xerr=_whiskers(found), color=POPULATIONS.get(name, INK),
            ecolor=INK, error_kw={"elinewidth": 1}, label=name,
        )  # fmt: skip
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(names))], [name.replace("$", r"\$") for name in names])
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(series), fontsize=9)
    return figure


def _whiskers(found: Sequence[Estimate]) -> tuple[list[float], list[float]]:
    return [one.value - one.low for one in found], [one.high - one.value for one in found]


def save_picture(figure: "Figure", path: Path) -> Path:
    """Write the figure in the format that the file's name ends in; an unknown one is an error that lists those known."""
    known = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise ValueError(f"No picture is written to {path}: its name must end in one of {', '.join(sorted(known))}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160, bbox_inches="tight")
    return path


def bands(lines: Mapping[str, Coloured], *, x: str, y: str) -> "Figure":
    """Estimates along an axis, their intervals as bands; infinite ones are not drawn, and wide ones leave the picture."""
    figure, axes = _canvas(6.4, 3.4)
    for name, (colour, across, found) in lines.items():
        known = [(place, one) for place, one in zip(across, found, strict=True) if math.isfinite(one.low + one.high)]
        places = [place for place, _ in known]
        axes.fill_between(places, [one.low for _, one in known], [one.high for _, one in known], color=colour, alpha=0.2, lw=0)
        axes.plot(across, [one.value for one in found], "-o", color=colour, label=name, linewidth=1.4, markersize=3)
    values = [one.value for _, _, found in lines.values() for one in found if math.isfinite(one.value)]
    least, most = min(values, default=0.0), max(values, default=1.0)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, least - 0.5 * (most - least or 1)), min(high, most + 0.5 * (most - least or 1)))
    _name(axes, x, y)
    return figure
