"""The report of the recipe on global autoregressive models: pictures like the paper's, and our table beside its."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from esscher.estimate import Estimate
from esscher.recipes.gam_rows import Ground
from esscher.reports.document import Picture, Section, Table, write_report
from esscher.reports.plots import BASE, INK, TILTED, bars, curves, sizes

Rows = Sequence[dict[str, Any]]
FULL = "to the end"


def summary(rows: Rows) -> list[dict[str, Any]]:
    """The ratios of the paper's table, averaged over motifs and features as there; bases trained to the end."""
    table = []
    for size in sorted({row["|D|"] for row in rows}):
        line: dict[str, Any] = {"|D|": size}
        for kind in ("pure", "mixture"):
            some = [row for row in rows if (row["|D|"], row["data"], row["base"], row["seed"]) == (size, kind, FULL, 0)]
            line |= {f"{kind}: {ratio}": _spread([row[ratio] for row in some]) for ratio in ("r / student", "student / H")}
        table.append(line)
    return table


def report(path: Path, rows: Rows, weights: Rows, students: Rows, ground: Ground, paper: Rows) -> None:
    """Write the page, and its first picture beside it as `gam.png`; `weights` and `students` are the two comparisons."""
    picture = _by_size(rows)
    picture.savefig(path.with_name("gam.png"), dpi=160)
    write_report(
        path,
        "Global autoregressive models",
        "Strings that hold a motif. A base r learns from few of them; features of the whole string are weighed so that the "
        "tilted model p shows them as often as the data; a student is distilled from p.",
        [_main(rows, paper), _weak(rows), _comparisons(weights, students, ground)],
    )


def _main(rows: Rows, paper: Rows) -> Section:
    full = [row for row in rows if row["base"] == FULL]
    return Section(
        "Bases trained to the end",
        "Adam at 1e-3, batches of 50, clipped gradients, stopped when 20 evaluations bring nothing. Such a base finds the "
        "motif by itself already from 500 strings, which the paper's did not, so little is left for the tilt.",
        [
            Table("Ours: averages over motifs and features", summary(rows), RATIOS),
            Table("The paper's (Table 3, rs)", paper, RATIOS),
            Picture(_by_size(rows), "Cross-entropy (lines, left) and motif frequency (dashed, right), pure data, ft 1001111."),
            Table("All rows", [_shown(row) for row in full], ROWS),
            Table("Weights", [_weights(row) for row in full], "A feature is 1 where the thing is absent."),
        ],
    )


def _weak(rows: Rows) -> Section:
    weak = [row for row in rows if row["base"] != FULL]
    return Section(
        "Bases stopped early",
        "The same bases after few updates, with a cross-entropy as the paper's had. Here the features bring what the base "
        "lacks.",
        [Table("All rows", [_shown(row) for row in weak], ROWS)] if weak else [],
    )


def _comparisons(weights: Rows, ways: Rows, ground: Ground) -> Section:
    distances = {one["row"]["regime"]: tuple(one["curve"]) for one in weights}
    drawn = [{"name": row["way"], "nats above the entropy": row["CE student"].value - ground.entropy} for row in ways]
    shares = [{"name": row["way"], "motif in student": row["motif in student"].value} for row in ways]
    return Section(
        "Regimes, and ways to distil",
        f"On the base of {ground.source.size:,} strings after {ground.source.trained}, ft 1001111.",
        [
            Table("Weights by rs, snis and Newton's method", [one["row"] for one in weights], "l1 is the distance of moments."),
            Picture(
                curves(distances, x="base samples", y="l1 distance of moments", log=True),
                "The l1 distance of moments as each regime knew it, against the base samples it had drawn.",
            ),
            Table(
                "Students by all ways, from about the same number of drawn strings", ways, "All start from r, except the last."
            ),
            Picture(bars(drawn, series={"nats above the entropy": TILTED}, label="nats per symbol"), "Lower is better."),
            Picture(bars(shares, series={"motif in student": BASE}, label="share of strings"), "The data's share is 1."),
        ],
    )


def _by_size(rows: Rows) -> Any:
    """Cross-entropies and motif frequencies against the number of strings, the entropy as a floor."""
    first = rows[0]
    some = [row for row in rows if (row["motif"], row["data"], row["ft"]) == (first["motif"], first["data"], first["ft"])]
    some = [row for row in some if row["base"] == FULL and row["seed"] == 0]
    brief = [row for row in rows if row["base"] != FULL]
    lines, dashed = {}, {}
    for name, colour, group, suffix in (
        ("r", BASE, some, ""),
        ("student", TILTED, some, ""),
        ("r", INK, brief, ", early"),
        ("student", "#7c3aed", brief, ", early"),
    ):
        group = sorted(group, key=lambda row: row["|D|"])
        across = [row["|D|"] for row in group]
        lines[name + suffix] = (colour, across, [row[f"CE {name}"] for row in group])
        dashed[name + suffix] = (colour, across, [row[f"motif in {name}"] for row in group])
    return sizes(lines, dashed, x="strings to learn from", y="nats per symbol", dashed_y="motif frequency", floor=first["H"])


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    left_out = ("weights", "notes", "effective", "l1", "drawn", "H", "base", "method", "kl to student", "r / student")
    kept = {key: value for key, value in row.items() if key not in left_out}
    return {key: replace(value, unit="") if isinstance(value, Estimate) else value for key, value in kept.items()}


def _weights(row: dict[str, Any]) -> dict[str, Any]:
    named = {key: row[key] for key in ("motif", "data", "ft", "|D|", "seed")}
    return {**named, **row["weights"], "l1": row["l1"], "effective": row["effective"]}


def _spread(numbers: list[float]) -> str:
    if not numbers:
        return "-"
    return f"{mean(numbers):.3f}" + (f" ± {stdev(numbers):.3f}" if len(numbers) > 1 else "")


RATIOS = (
    "Ratios of cross-entropies on the test strings, and to the entropy H of the process; mean ± standard deviation over rows."
)
ROWS = "Cross-entropies in nats per symbol on 5,000 fresh strings; motif frequencies of each model; intervals of 95 %."
