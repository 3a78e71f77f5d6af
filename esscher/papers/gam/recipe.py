"""Global autoregressive models (Parshakova, Andreoli, Dymetman, 2019): few strings, and features of the whole string. Exact
entropies of the processes are in `laboratory`."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

from esscher.core.estimate import Estimate
from esscher.exact.languages import motif_process
from esscher.papers.gam.rows import FULL, SCALES, GamContext, distillation_methods, make_rows, prepare_gam, regimes
from esscher.papers.study import Row, StudyContext, select, table_rows
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import BASE, INK, TILTED, bars, curves, estimates_by_size

PAPER = table_rows(
    ("|D|", "pure: r / student", "pure: student / H", "mixture: r / student", "mixture: student / H"),
    (500, "1.24 ± 0.07", "1.19 ± 0.07", "1.23 ± 0.03", "1.16 ± 0.03"),
    (1000, "1.24 ± 0.07", "1.16 ± 0.07", "1.21 ± 0.03", "1.14 ± 0.03"),
    (5000, "1.18 ± 0.08", "1.09 ± 0.05", "1.16 ± 0.05", "1.08 ± 0.04"),
    (10000, "1.08 ± 0.10", "1.04 ± 0.02", "1.02 ± 0.03", "1.04 ± 0.03"),
    (20000, "0.99 ± 0.01", "1.02 ± 0.01", "0.99 ± 0.00", "1.02 ± 0.00"),
)
"""Table 3 of the paper, regime rs: cross-entropies on the test set, averaged over motifs and features."""

COLUMNS = ("motif", "data", "ft", "|D|", "base", "seed", "CE r", "CE p", "CE student", "student / H", "motif in student")
RATIOS = (
    "Ratios of cross-entropies on the test strings, and to the entropy H of the process; mean ± standard deviation over rows."
)
ROWS = "Cross-entropies in nats per symbol on 5,000 fresh strings; motif frequencies of each model; intervals of 95 %."
ENTROPIES_PAPER = [{"motif": "10001011111000", "entropy_per_symbol": 0.449, "mixture_entropy_per_symbol": 0.482}]
ENTROPIES_MOTIFS = ("10001011111000", "01011101101", "001001100111", "1011100111001", "10001010001", "100010100011")


def run_gam(context: StudyContext) -> dict[str, Any]:
    """All rows, both comparisons, and a report with its first picture as `gam.png`."""
    scale, out = SCALES[context.scale], context.out
    rows = [row for run, feature_sets in scale.runs(context.seeds) for row in make_rows(run, feature_sets, scale, out)]
    weak = next(run for run, _ in scale.runs(1) if run.training.patience is None and run.data.size == scale.sizes[0])
    prepared = prepare_gam(weak, scale, out)
    weights, students = regimes(prepared), distillation_methods(prepared)
    _by_size(rows).savefig(out / "gam.png", dpi=160)
    about = (
        "Strings that hold a motif. A base r learns from few of them; features of the whole string are weighted so that the "
        "tilted model p shows them as often as the data; a student is distilled from p."
    )
    tables = {
        "rows": select(rows, COLUMNS), "summary": summary(rows), "paper": PAPER,
        "regimes": [regime["row"] for regime in weights], "students": students,
    }  # fmt: skip
    sections = [*_base_sections(rows), _comparisons_section(weights, students, prepared)]
    return context.publish("Global autoregressive models", about, sections, tables)


def summary(rows: Sequence[Row]) -> list[Row]:
    """The ratios of the paper's table, averaged over motifs and features as there; bases trained to the end."""
    table = []
    for size in sorted({row["|D|"] for row in rows}):
        line: Row = {"|D|": size}
        for kind in ("pure", "mixture"):
            chosen = [row for row in rows if (row["|D|"], row["data"], row["base"], row["seed"]) == (size, kind, FULL, 0)]
            line |= {f"{kind}: {ratio}": _mean_std([row[ratio] for row in chosen]) for ratio in ("r / student", "student / H")}
        table.append(line)
    return table


def _mean_std(numbers: list[float]) -> str:
    spread = f" ± {stdev(numbers):.3f}" if len(numbers) > 1 else ""
    return f"{mean(numbers):.3f}{spread}" if numbers else "-"


def _base_sections(rows: Sequence[Row]) -> list[Section]:
    """The rows of bases that were trained to the end, and of those that were stopped early."""
    full = [row for row in rows if row["base"] == FULL]
    columns = ("motif", "data", "ft", "|D|", "seed", "l1", "ess")
    weights = [{**shown, **row["weights"]} for row, shown in zip(full, select(full, columns), strict=True)]
    return [
        Section(
            "Bases trained to the end",
            "Adam at 1e-3, batches of 50, clipped gradients, a patience of 20 evaluations. Such a base finds the motif by "
            "itself already from 500 strings, which the paper's did not, so little is left for the tilt.",
            [
                Table("Ours: averages over motifs and features", summary(rows), RATIOS),
                Picture(
                    _by_size(rows), "Cross-entropy (lines, left) and motif frequency (dashed, right), pure data, ft 1001111."
                ),
                Table("All rows", _report_columns(full), ROWS),
                Table("Weights", weights, "A feature is 1 where the thing is absent."),
            ],
        ),
        Section(
            "Bases stopped early",
            "The same bases after few updates, with a cross-entropy like that of the paper's bases. Here the features bring "
            "what the base lacks.",
            [Table("All rows", _report_columns([row for row in rows if row["base"] != FULL]), ROWS)],
        ),
    ]


def _report_columns(rows: Sequence[Row]) -> list[Row]:
    """Some columns of the rows, without units."""
    return [
        {key: replace(value, unit="") if isinstance(value, Estimate) else value for key, value in row.items()}
        for row in select(rows, (*COLUMNS, "motif in r", "motif in p"))
    ]


def _comparisons_section(weights: Sequence[Row], students: Sequence[Row], prepared: GamContext) -> Section:
    rows = [regime["row"] for regime in weights]
    distances = {regime["row"]["regime"]: tuple(regime["curve"]) for regime in weights}
    above = [{"name": row["method"], "nats above the entropy": row["CE student"].value - prepared.entropy} for row in students]
    shares = [{"name": row["method"], "motif in student": row["motif in student"].value} for row in students]
    return Section(
        "Methods to fit weights and to distil",
        f"On the base of {prepared.run.data.size:,} strings after {prepared.run.training.steps} updates, ft 1001111.",
        [
            Table("Weights by rs, snis and Newton's method", rows, "l1 is the distance of moments."),
            Picture(
                curves(distances, x="base samples", y="l1 distance of moments", log=True),
                "The l1 distance of moments as each method knew it, against the base samples it had drawn.",
            ),
            Table("Students, from about the same number of drawn strings", students, "All start from r, except the last."),
            Picture(bars(above, series={"nats above the entropy": TILTED}, label="nats per symbol"), "Lower is better."),
            Picture(bars(shares, series={"motif in student": BASE}, label="share of strings"), "The data's share is 1."),
        ],
    )


def _by_size(rows: Sequence[Row]) -> Any:
    """A figure of cross-entropies and motif frequencies against the number of strings, with the entropy as a floor."""
    first = rows[0]
    same = [row for row in rows if all(row[key] == first[key] for key in ("motif", "data", "ft"))]
    full = [row for row in same if row["base"] == FULL and row["seed"] == 0]
    early = [row for row in rows if row["base"] != FULL]
    lines, dashed = {}, {}
    for group, suffix, colours in ((full, "", (BASE, TILTED)), (early, ", early", (INK, "#7c3aed"))):
        group = sorted(group, key=lambda row: row["|D|"])
        sizes = [row["|D|"] for row in group]
        for name, colour in zip(("r", "student"), colours, strict=True):
            lines[name + suffix] = (colour, sizes, [row[f"CE {name}"] for row in group])
            dashed[name + suffix] = (colour, sizes, [row[f"motif in {name}"] for row in group])
    return estimates_by_size(
        lines, dashed, x="strings to learn from", y="nats per symbol", dashed_y="motif frequency", floor=first["H"]
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
