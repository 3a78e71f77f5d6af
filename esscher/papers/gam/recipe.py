"""Global autoregressive models (Parshakova, Andreoli, Dymetman, 2019): few strings, and features of the whole string. Exact
entropies of the processes are in `laboratory`.

Left out, at every scale: Table 4 (cyclical beside two stages) beyond the first number of strings, rows of Table 3 whose weights
are fitted by rs or snis (all are fitted by Newton's method; the three are compared on one base), and figures 3 to 5,
of cyclical training and of other feature sets.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from esscher.core.estimate import Estimate
from esscher.core.progress import current_progress
from esscher.core.storage import write_file
from esscher.exact.languages import motif_process
from esscher.papers.gam.comparisons import distillation_methods, regimes
from esscher.papers.gam.figures import PUBLISHED, descent_figure, figure_of, figure_of_cells, weakness_figure
from esscher.papers.gam.rows import KINDS, SCALES, Cell, GamContext, GamScale, make_rows, prepare_gam
from esscher.papers.laboratory.coverage import single_thread
from esscher.papers.study import Row, StudyContext, select
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import BASE, TILTED, bars

RATIO_NAMES = ("r / student", "student / H")
PAPER: list[Row] = [
    {"|D|": size}
    | {
        f"{kind}: {name}": f"{value:.2f} \u00b1 {spread:.2f}"
        for kind in KINDS for name, (value, spread) in zip(RATIO_NAMES, PUBLISHED[kind, size][:2], strict=True)
    }
    for size in sorted({size for _, size in PUBLISHED})
]  # fmt: skip
"""Table 3 of the paper, regime rs: cross-entropies on the test set, averaged over motifs and features."""

COLUMNS = (
    "motif", "data", "ft", "|D|", "patience of 20", "seed", "updates", "stopped", "CE r", "CE p", "CE student", "r / student",
    "student / H", "motif in r", "motif in student", "motif: student / r", "l1", "acceptance of r",
)  # fmt: skip
RATIOS = (
    "Ratios of cross-entropies on the test strings, and to the entropy H of the process; mean \u00b1 standard deviation over "
    "motifs and feature sets, and the range of the ratio of motif frequencies; one seed."
)
ROWS = "Cross-entropies in nats per symbol on 5,000 fresh strings; motif frequencies of each model; intervals of 95 %."
FIGURE = (
    "Pure data of the first motif, ft 1001111, by the reading of the base's patience: cross-entropy over the entropy, share of "
    "strings with the motif, and the distance of moments of p."
)
ENTROPIES_PAPER = [{"motif": "10001011111000", "entropy_per_symbol": 0.449, "mixture_entropy_per_symbol": 0.482}]
ENTROPIES_MOTIFS = ("10001011111000", "01011101101", "001001100111", "1011100111001", "10001010001", "100010100011")


def run_gam(context: StudyContext) -> dict[str, Any]:
    """The comparisons of methods; all rows, written to `gam.json` with figures after each one; and a report."""
    scale, out = SCALES[context.scale], context.out
    cells: list[tuple[Cell, str]] = list(scale.cells(context.seeds))
    rows: list[Row] = []
    with single_thread():  # as fast as two threads on these networks, and seconds are those of one core
        compared = _compare(scale, out) if scale.weak_updates is not None else None
        for rows in make_rows(cells, scale, out):
            current_progress().say(f"{len(rows)} of {len(cells)} rows are made.")
            keep_rows(rows, cells[len(rows) :], out)
    about = (
        "Strings that hold a motif. A base r learns from few of them; features of the whole string are weighted so that the "
        "tilted model p shows them as often as the data; a new student learns 20,000 accepted strings of p."
    )
    tables = {
        "rows": select(rows, COLUMNS), "summary": summary(rows), "paper": PAPER,
    }  # fmt: skip
    sections = [_rows_section(rows)]
    if compared is not None:
        weights, students, _ = compared
        tables |= {"regimes": [regime["row"] for regime in weights], "students": students}
        sections.append(_comparisons_section(*compared))
    return context.publish("Global autoregressive models", about, sections, tables)


def _compare(scale: GamScale, out: Path) -> tuple[list[Row], list[Row], GamContext]:
    """Ways to fit weights and ways to distil, on one weak base."""
    prepared = prepare_gam(scale.weak_run(), scale, out / "weak")
    weights, students = regimes(prepared), distillation_methods(prepared)
    descent_figure(weights).savefig(out / "gam_descent.png", dpi=160)
    return weights, students, prepared


def keep_rows(rows: Sequence[Row], missing: Sequence[tuple[Cell, str]], out: Path) -> None:
    """Write the rows, their summary and what is not made yet to `gam.json`, and the figure."""
    result = {
        "summary": summary(rows),
        "rows": rows,
        "not made": [{**asdict(cell), "ft": bits} for cell, bits in missing],
    }
    write_file(out / "gam.json", json.dumps(result, indent=1, default=Estimate.to_dict).encode())
    figures = {"gam": figure_of, "gam_cells": figure_of_cells, "gam_weakness": weakness_figure}
    for name, figure in figures.items():
        figure(rows).savefig(out / f"{name}.png", dpi=160)


def summary(rows: Sequence[Row]) -> list[Row]:
    """The ratios of the paper's table for each reading of the patience, averaged over motifs and feature sets as there."""
    table = []
    for reading in dict.fromkeys(row["patience of 20"] for row in rows):
        for size in sorted({row["|D|"] for row in rows if row["patience of 20"] == reading}):
            line: Row = {"patience of 20": reading, "|D|": size}
            for kind in KINDS:
                chosen = [
                    row for row in rows
                    if (row["|D|"], row["data"], row["patience of 20"], row["seed"]) == (size, kind, reading, 0)
                ]  # fmt: skip
                line[f"{kind}: rows"] = len(chosen)
                line |= {f"{kind}: {ratio}": _mean_std([row[ratio] for row in chosen]) for ratio in RATIO_NAMES}
                line[f"{kind}: motif, student / r"] = _range([row["motif: student / r"] for row in chosen])
            table.append(line)
    return table


def _mean_std(numbers: list[float]) -> str:
    spread = f" \u00b1 {stdev(numbers):.3f}" if len(numbers) > 1 else ""
    return f"{mean(numbers):.3f}{spread}" if numbers else "-"


def _range(numbers: list[float]) -> str:
    ends = [f"{number:.3g}" for number in (min(numbers, default=0.0), max(numbers, default=0.0))]
    return "-" if not numbers else ends[0] if len(numbers) == 1 else f"[{', '.join(ends)}]"


def _rows_section(rows: Sequence[Row]) -> Section:
    shown = [
        {key: replace(value, unit="") if isinstance(value, Estimate) else value for key, value in row.items()}
        for row in select(rows, COLUMNS)
    ]
    weights = [{**about, **row["weights"]} for row, about in zip(rows, select(rows, COLUMNS[:6]), strict=True)]
    return Section(
        "Rows",
        "Adam, clipped gradients; a base stops after 20 evaluations without a new best.",
        [
            Table("Averages", summary(rows), RATIOS),
            Picture(figure_of(rows), FIGURE),
            Picture(figure_of_cells(rows), "All motifs, by the reading that most rows have."),
            Picture(weakness_figure(rows), "What the features bring, by how weak the base is; grey: the paper's averages."),
            Table("All rows", shown, ROWS),
            Table("Weights", weights, "A feature is 1 where the thing is absent."),
        ],
    )


def _comparisons_section(weights: Sequence[Row], students: Sequence[Row], prepared: GamContext) -> Section:
    rows = [regime["row"] for regime in weights]
    above = [{"name": row["method"], "nats above the entropy": row["CE student"].value - prepared.entropy} for row in students]
    shares = [{"name": row["method"], "motif in student": row["motif in student"].value} for row in students]
    return Section(
        "Methods to fit weights and to distil",
        f"On the base of {prepared.run.data.size:,} strings after {prepared.run.training.steps} updates, ft 1001111.",
        [
            Table("Weights by rs, snis and Newton's method", rows, "l1 is the distance of moments."),
            Picture(
                descent_figure(weights),
                "The l1 distance of moments as each method knew it, against the base samples it had drawn.",
            ),
            Table("Students, from about the same number of drawn strings", students, "All start from r, except the last."),
            Picture(bars(above, series={"nats above the entropy": TILTED}, label="nats per symbol"), "Lower is better."),
            Picture(bars(shares, series={"motif in student": BASE}, label="share of strings"), "The data's share is 1."),
        ],
    )


def run_entropies(context: StudyContext) -> dict[str, Any]:
    """Sizes and entropies of the motif processes; exact, so the same at every scale and for every seed."""
    pure = {motif: motif_process(motif, 30) for motif in ENTROPIES_MOTIFS}
    rows = [
        {
            "motif": motif, "count": process.count, "log_z": process.log_z, "entropy_per_symbol": process.entropy_per_symbol,
            "mixture_entropy_per_symbol": replace(process, mixture=0.9).entropy_per_symbol,
        }
        for motif, process in pure.items()
    ]  # fmt: skip
    return {"rows": rows, "paper": ENTROPIES_PAPER}
