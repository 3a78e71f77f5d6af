"""Figures of the recipe on global autoregressive models, and the published numbers that they show beside ours (Table 3)."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from statistics import mode
from typing import Any

from esscher.core.estimate import Estimate
from esscher.papers.gam.rows import FEATURE_SETS
from esscher.papers.study import Row
from esscher.reports.plots import BASE, TILTED, TRUTH, blank_figure, curves, estimate_panels

Ratio = tuple[float, float]  # a mean over motifs and feature sets, and its standard deviation
PUBLISHED: Mapping[tuple[str, int], tuple[Ratio, Ratio, tuple[float, float]]] = {
    ("pure", 500): ((1.24, 0.07), (1.19, 0.07), (32, 392)),
    ("pure", 1000): ((1.24, 0.07), (1.16, 0.07), (23.87, 653.33)),
    ("pure", 5000): ((1.18, 0.08), (1.09, 0.05), (3.59, 206.67)),
    ("pure", 10000): ((1.08, 0.10), (1.04, 0.02), (0.89, 196)),
    ("pure", 20000): ((0.99, 0.01), (1.02, 0.01), (0.81, 1.76)),
    ("mixture", 500): ((1.23, 0.03), (1.16, 0.03), (59.26, 433.33)),
    ("mixture", 1000): ((1.21, 0.03), (1.14, 0.03), (26.29, 233.33)),
    ("mixture", 5000): ((1.16, 0.05), (1.08, 0.04), (7.32, 130)),
    ("mixture", 10000): ((1.02, 0.03), (1.04, 0.03), (1.0, 4.97)),
    ("mixture", 20000): ((0.99, 0.0), (1.02, 0.0), (0.85, 1.04)),
}
"""By kind of data and number of strings, regime rs: r / student, student / H, and the range of the ratios of motif frequencies:
those of the student over those of r."""

SIZES = (500, 20000)  # the least and the most strings of the paper
COLOURS = {"r": BASE, "p": TILTED, "student": TRUTH}
MARKERS = {"pure": "o", "mixture": "s"}
POINTS = (TILTED, TRUTH, "#1d2430", "#2e8b57", "#8e44ad", "#b8860b", "#d6338a")


def figure_of(rows: Sequence[Row]) -> Any:
    """A column for each reading of the patience: r, p and student by number of strings, pure data of the first motif."""
    first = rows[0]
    same = [row for row in rows if all(row[key] == first[key] for key in ("motif", "data", "ft", "seed"))]
    readings = dict.fromkeys(row["patience of 20"] for row in same)
    return _panels({reading: [row for row in same if row["patience of 20"] == reading] for reading in readings})


def figure_of_cells(rows: Sequence[Row]) -> Any:
    """A column for each motif and kind of data, with the reading that most rows have."""
    reading = mode(row["patience of 20"] for row in rows)
    same = [row for row in rows if (row["patience of 20"], row["ft"], row["seed"]) == (reading, FEATURE_SETS[0], 0)]
    cells = dict.fromkeys((row["motif"], row["data"]) for row in same)
    return _panels({
        f"{motif}, {kind}": [row for row in same if (row["motif"], row["data"]) == (motif, kind)] for motif, kind in cells
    })  # fmt: skip


def _panels(columns: Mapping[str, Sequence[Row]]) -> Any:
    """Cross-entropies over H, motif frequencies and l1 by number of strings: a column for each group of rows."""
    grid, shown = {}, list(SIZES)
    for title, rows in columns.items():
        group = sorted(rows, key=lambda row: row["|D|"])
        sizes, entropy = [row["|D|"] for row in group], group[0]["H"]
        nats = {name: [row[f"CE {name}"].map(lambda each, h=entropy: each / h) for row in group] for name in COLOURS}
        shares = {name: [row[f"motif in {name}"] for row in group] for name in COLOURS}
        grid[title] = {
            "cross-entropy / H": {name: (colour, sizes, nats[name]) for name, colour in COLOURS.items()},
            "motif frequency": {name: (colour, sizes, shares[name]) for name, colour in COLOURS.items()},
            "l1 of moments": {"p": (TILTED, sizes, [Estimate.exact(row["l1"]) for row in group])},
        }
        shown += sizes
    figure = estimate_panels(grid, x="strings to learn from")
    for number, axes in enumerate(figure.axes):
        axes.set_xlim(0.7 * min(shown), 1.4 * max(shown))
        if number < 2 * len(grid):  # all but the last row
            axes.set_yscale("linear")
    return figure


def descent_figure(weights: Sequence[Row]) -> Any:
    """The l1 distance of moments as each method to fit weights knew it, by the base samples that it had drawn."""
    distances = {regime["row"]["regime"]: tuple(regime["curve"]) for regime in weights}
    return curves(distances, x="base samples", y="l1 distance of moments", log=True)


def weakness_figure(rows: Sequence[Row]) -> Any:
    """What the features bring, r / student, by how weak the base is, r / H: a point for each row, and the paper's averages."""
    figure = blank_figure(6.4, 4.0)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    readings = list(dict.fromkeys(row["patience of 20"] for row in rows))
    for kind, marker in MARKERS.items():
        theirs = [numbers[:2] for (of, _), numbers in PUBLISHED.items() if of == kind]
        axes.errorbar(
            [first * second for (first, _), (second, _) in theirs], [first for (first, _), _ in theirs],
            yerr=[spread for (_, spread), _ in theirs], fmt=marker, color=BASE, capsize=2, markersize=5,
            label=f"paper, {kind}: mean ± standard deviation",
        )  # fmt: skip
        for reading, colour in zip(readings, cycle(POINTS), strict=False):
            ours = [row for row in rows if (row["data"], row["patience of 20"]) == (kind, reading)]
            if ours:
                across = [row["CE r"].value / row["H"] for row in ours]
                label = f"ours, {kind}: patience of 20 {reading}"
                axes.plot(across, [row["r / student"] for row in ours], marker, color=colour, markersize=4, label=label)
    axes.set_xlabel("how weak the base is: cross-entropy of r over H")
    axes.set_ylabel("what features bring: r / student")
    axes.legend(fontsize=7, frameon=False)
    return figure
