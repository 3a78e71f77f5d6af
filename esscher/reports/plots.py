"""Figures of reports and analyses (matplotlib, no display needed), and grids of N images of H rows, W columns, C channels."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from esscher.core.estimate import Estimate
from esscher.core.storage import write_file
from esscher.reports.tables import format_estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, BASE, TILTED, TRUTH = "#1d2430", "#8b98a9", "#1f5fa8", "#c2410c"
COLOURS, DASHES = (BASE, TILTED, TRUTH, INK), ("-", "--", ":", "-.")
POPULATIONS = {"data": TRUTH, "base": BASE, "joint": TILTED}
GAP, FRAME = 1, 96  # pixels between images, and their grey value
MIN_PIXELS = 560  # of the longer side of an image file

Points = tuple[Sequence[float], Sequence[float]]
"""x and y coordinates."""
ColouredSeries = tuple[str, Sequence[float], Sequence[Estimate]]
"""A colour, x coordinates, and an estimate at each."""


def intervals(rows: Mapping[str, Estimate], *, label: str, truth: float | None = None, truth_label: str = "exact") -> "Figure":
    """One horizontal interval per row, and the exact value as a vertical line if `truth` is known. The first row is the base,
    in grey, unless rows are differences, whose `truth` is 0."""
    figure, axes = _canvas(6.4, 0.9 + 0.45 * len(rows))
    _draw_intervals(axes, rows, label, truth, truth_label)
    return figure


def interval_panels(panels: Mapping[str, tuple[Mapping[str, Estimate], str, float | None, str]]) -> "Figure":
    """Several charts of `intervals` beside each other: by title, the rows, the label, the exact value and what it is."""
    figure = blank_figure(5.6 * len(panels), 1.2 + 0.5 * max(len(rows) for rows, *_ in panels.values()))
    charts = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, (rows, label, truth, truth_label)) in zip(charts, panels.items(), strict=True):
        _style(axes)
        _draw_intervals(axes, rows, label, truth, truth_label)
        axes.set_title(title, loc="left", fontsize=10, color=INK, pad=22)
    return figure


def _draw_intervals(axes: "Axes", rows: Mapping[str, Estimate], label: str, truth: float | None, truth_label: str) -> None:
    for row, (name, estimate) in enumerate(rows.items()):
        colour = BASE if row == 0 and truth != 0 else TILTED
        axes.plot([estimate.low, estimate.high], [row, row], color=colour, linewidth=5, alpha=0.35, solid_capstyle="round")
        axes.plot([estimate.value], [row], "o", color=colour)
        where = (estimate.value, row)
        shown = min(f"{estimate.value:.4g}", format_estimate(estimate).partition(" ")[0], key=len)
        axes.annotate(shown, where, (0, 8), textcoords="offset points", ha="center", fontsize=9)
        axes.text(-0.02, row, name, transform=axes.get_yaxis_transform(), ha="right", va="center", color=INK)
    axes.set_yticks([])
    axes.set_ylim(len(rows) - 0.4, -0.7)
    axes.set_xlabel(label)
    if truth is not None:
        axes.axvline(truth, color=TRUTH, linestyle="--", linewidth=1.2, label=f"{truth_label}: {truth:.4g}")
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), fontsize=9)


def bars(rows: Sequence[Mapping[str, float | str]], *, series: Mapping[str, str], label: str) -> "Figure":
    """Groups of horizontal bars: one group per row (its "name"), one bar per series, which maps names to colours."""
    figure, axes = _canvas(6.4, 0.9 + 0.28 * len(rows) * len(series))
    for number, (name, colour) in enumerate(series.items()):
        height, positions = _bar_positions(len(rows), number, len(series))
        widths = [float(row[name]) for row in rows]
        axes.barh(positions, widths, height=height * 0.9, color=colour, label=name)
        for position, width in zip(positions, widths, strict=True):
            axes.annotate(f"{width:.3g}", (width, position), (3, 0), textcoords="offset points", va="center", fontsize=8)
    axes.margins(x=0.12)
    _label_bars(axes, [str(row["name"]) for row in rows], len(series), label)
    return figure


def estimate_bars(
    names: Sequence[str],
    series: Mapping[str, Sequence[Estimate | None]],
    *,
    label: str,
    colours: Mapping[str, str] = POPULATIONS,
) -> "Figure":
    """Groups of horizontal bars with error bars: one group per name, one bar per series that has an estimate for it."""
    figure, axes = _canvas(6.4, 0.9 + 0.2 * len(names) * len(series))
    for number, (name, estimates) in enumerate(series.items()):
        height, positions = _bar_positions(len(names), number, len(series))
        there = [(place, estimate) for place, estimate in zip(positions, estimates, strict=True) if estimate is not None]
        positions, (values, errors) = [place for place, _ in there], _errors([estimate for _, estimate in there])
        colour = colours.get(name, INK)
        style: dict[str, Any] = {"color": colour, "ecolor": INK, "error_kw": {"elinewidth": 1}}
        axes.barh(positions, values, height=height * 0.9, xerr=errors, label=name, **style)
    _label_bars(axes, [name.replace("$", r"\$") for name in names], len(series), label)
    return figure


def curves(lines: Mapping[str, Points], *, x: str, y: str, floor: float | None = None, log: bool = False) -> "Figure":
    """Lines, with the lowest possible value as a horizontal one if `floor` is known; `log` makes both axes logarithmic."""
    figure, axes = _canvas(6.4, 3.2)
    for number, (name, (across, up)) in enumerate(lines.items()):
        colour, dash = COLOURS[number % 4], DASHES[number // 4 % 4]
        axes.plot(across, up, color=colour, linestyle=dash, label=name, linewidth=1.6, marker="o" if len(across) == 1 else None)
    if floor is not None:
        axes.axhline(floor, color=TRUTH, linestyle="--", linewidth=1.2, label=f"entropy floor {floor:.4g}")
    if log:
        axes.set_xscale("log")
        axes.set_yscale("log")
        places = [place for across, _ in lines.values() for place in across if place > 0]
        if places and max(places) >= 10 * min(places):  # labels between powers of ten would overlap
            axes.tick_params(axis="x", which="minor", labelbottom=False)
    _label_axes(axes, x, y)
    return figure


def cumulative_distribution(lines: Mapping[str, Points], *, x: str, y: str) -> "Figure":
    """Step functions from 0 to 1 on a logarithmic x axis; points at x = 0 are not drawn."""
    figure, axes = _canvas(6.4, 3.4)
    for number, (name, (across, up)) in enumerate(lines.items()):
        positive = [(value, share) for value, share in zip(across, up, strict=True) if value > 0]
        values, shares = [value for value, _ in positive], [share for _, share in positive]
        axes.step(values, shares, where="post", color=COLOURS[number % 4], label=name, linewidth=1.6)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    _label_axes(axes, x, y)
    return figure


def estimate_lines(places: Sequence[int], lines: Mapping[str, Sequence[Estimate]], *, x: str, y: str) -> "Figure":
    """Lines with error bars over whole numbers; series are shifted a little so that they do not hide each other."""
    figure, axes = _canvas(6.4, 3.4)
    for number, (name, estimates) in enumerate(lines.items()):
        across = [place + 0.06 * (number - (len(lines) - 1) / 2) for place in places]
        style: dict[str, Any] = {"color": POPULATIONS.get(name, INK), "markersize": 4, "capsize": 3, "linewidth": 1.4}
        axes.errorbar(across, *_errors(estimates), fmt="-o", label=name, **style)
    axes.set_xticks(list(places))
    _label_axes(axes, x, y)
    return figure


def interval_bands(lines: Mapping[str, ColouredSeries], *, x: str, y: str) -> "Figure":
    """Lines with intervals as bands; infinite intervals are not drawn, and the y axis is limited to about the values."""
    figure, axes = _canvas(6.4, 3.4)
    for name, (colour, across, estimates) in lines.items():
        finite = [(at, each) for at, each in zip(across, estimates, strict=True) if math.isfinite(each.low + each.high)]
        low, high = [each.low for _, each in finite], [each.high for _, each in finite]
        axes.fill_between([at for at, _ in finite], low, high, color=colour, alpha=0.2, lw=0)
        axes.plot(across, [each.value for each in estimates], "-o", color=colour, label=name, linewidth=1.4, markersize=3)
    values = [each.value for _, _, estimates in lines.values() for each in estimates if math.isfinite(each.value)]
    least, most = min(values, default=0.0), max(values, default=1.0)
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(bottom, least - 0.5 * (most - least or 1)), min(top, most + 0.5 * (most - least or 1)))
    _label_axes(axes, x, y)
    return figure


def estimate_panels(grid: Mapping[str, Mapping[str, Mapping[str, ColouredSeries]]], *, x: str) -> "Figure":
    """Panels of lines with error bars over a logarithmic x axis: a column for each key of the grid, a row for each quantity. A
    colour may be followed by a line style ("#1f5fa8 --"); a quantity that is above 0 throughout has a logarithmic axis."""
    quantities = list(next(iter(grid.values())))
    figure = blank_figure(0.6 + 2.7 * len(grid), 0.8 + 2.2 * len(quantities))
    axes = figure.subplots(len(quantities), len(grid), sharex=True, sharey="row", squeeze=False)
    for column, (title, panels) in enumerate(grid.items()):
        axes[0, column].set_title(title, fontsize=10)
        axes[-1, column].set_xlabel(x)
        for row, quantity in enumerate(quantities):
            panel = axes[row, column]
            panel.spines[["top", "right"]].set_visible(False)
            panel.tick_params(colors=INK, labelsize=8)
            panel.set_xscale("log")
            for number, (name, (style, across, estimates)) in enumerate(panels[quantity].items()):
                colour, _, dash = style.partition(" ")
                look: dict[str, Any] = {"color": colour, "markersize": 3, "capsize": 2, "linewidth": 1.2, "label": name}
                shifted = [at * 1.03 ** (number - len(panels[quantity]) / 2) for at in across]  # so that bars do not overlap
                panel.errorbar(shifted, *_errors(estimates), fmt="o", linestyle=dash or "-", **look)
    for row, quantity in enumerate(quantities):
        axes[row, 0].set_ylabel(quantity)
        shown = [each.low for panels in grid.values() for _, _, line in panels[quantity].values() for each in line]
        if shown and min(shown) > 0:
            axes[row, 0].set_yscale("log")
        else:
            for panel in axes[row]:
                panel.axhline(0, color=BASE, linewidth=0.8)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure


def step_histograms(edges: Sequence[float], shares: Mapping[str, Sequence[float]], *, label: str) -> "Figure":
    """Outlines of histograms, the first one filled: for each series its share between neighbouring edges."""
    figure, axes = _canvas(6.4, 3.4)
    for number, (name, heights) in enumerate(shares.items()):
        colour = POPULATIONS.get(name, INK)
        density = [height / (right - left) for height, left, right in zip(heights, edges[:-1], edges[1:], strict=True)]
        if number == 0:
            axes.stairs(density, edges, color=colour, fill=True, alpha=0.18, linewidth=0)
        axes.stairs(density, edges, color=colour, linewidth=1.6, label=name)
    _label_axes(axes, label, "density")
    return figure


def blank_figure(width: float, height: float) -> "Figure":
    """An empty figure of that size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: "Figure", path: Path) -> Path:
    """Write the figure in the format of the file's suffix; an unknown suffix is an error that lists the known ones."""
    known = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise ValueError(f"No picture is written to {path}: its name must end in one of {', '.join(sorted(known))}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160, bbox_inches="tight")
    return path


def _canvas(width: float, height: float) -> tuple["Figure", "Axes"]:
    figure = blank_figure(width, height)
    axes = figure.subplots()
    _style(axes)
    return figure, axes


def _style(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#aab3bf")
    axes.tick_params(colors=INK, labelsize=9)


def _label_axes(axes: "Axes", x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(frameon=False, fontsize=9)


def _bar_positions(groups: int, number: int, series: int) -> tuple[float, list[float]]:
    """The height of a bar, and where the bars of one series stand."""
    height = 0.8 / series
    return height, [group + number * height for group in range(groups)]


def _label_bars(axes: "Axes", names: Sequence[str], series: int, label: str) -> None:
    axes.set_yticks([group + 0.4 - 0.4 / series for group in range(len(names))], names)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=min(series, 3), fontsize=9)


def _errors(estimates: Sequence[Estimate]) -> tuple[list[float], tuple[list[float], list[float]]]:
    """Values, and the lengths of their error bars below and above."""
    errors = [each.value - each.low for each in estimates], [each.high - each.value for each in estimates]
    return [each.value for each in estimates], errors


def save_image_grid(path: Path, images: NDArray[np.uint8], columns: int | None = None) -> Path:
    """Write N H W C images as a PNG: a grid with that many columns, by default about a square, of at least `MIN_PIXELS`."""
    from PIL import Image

    count, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(count)) if columns is None else columns
    rows = math.ceil(count / columns)
    grid = np.full((rows * (height + GAP) + GAP, columns * (width + GAP) + GAP, channels), FRAME, np.uint8)
    for number, image in enumerate(images):
        row, column = divmod(number, columns)
        top, left = GAP + row * (height + GAP), GAP + column * (width + GAP)
        grid[top : top + height, left : left + width] = image
    scale = max(1, MIN_PIXELS // max(grid.shape[:2]))
    large = grid.repeat(scale, 0).repeat(scale, 1)
    buffer = io.BytesIO()
    Image.fromarray(large[..., 0] if large.shape[2] == 1 else large).save(buffer, format="PNG", optimize=True)
    write_file(path, buffer.getvalue())
    return path


def figure_from_file(path: Path) -> "Figure":
    """An image file as a figure."""
    from matplotlib.figure import Figure
    from PIL import Image

    with Image.open(path) as picture:
        pixels = np.asarray(picture)
    figure = Figure(figsize=(4.8, 4.8 * pixels.shape[0] / pixels.shape[1]))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_axis_off()
    return figure
