"""Global autoregressive models (Parshakova, Andreoli, Dymetman, 2019): few strings, and features of the whole string.

For each process and size of the data: a base r, one sample of it, and for each set of features the weights, the
tilted model p and the distilled student.
"""

from pathlib import Path
from typing import Any

from esscher.recipes.gam_comparisons import regimes, ways
from esscher.recipes.gam_report import report, summary
from esscher.recipes.gam_rows import cells, stand
from esscher.recipes.gam_studies import SCALES

PAPER = [
    dict(
        zip(("|D|", "pure: r / student", "pure: student / H", "mixture: r / student", "mixture: student / H"), row, strict=True)
    )
    for row in (
        (500, "1.24 ± 0.07", "1.19 ± 0.07", "1.23 ± 0.03", "1.16 ± 0.03"),
        (1000, "1.24 ± 0.07", "1.16 ± 0.07", "1.21 ± 0.03", "1.14 ± 0.03"),
        (5000, "1.18 ± 0.08", "1.09 ± 0.05", "1.16 ± 0.05", "1.08 ± 0.04"),
        (10000, "1.08 ± 0.10", "1.04 ± 0.02", "1.02 ± 0.03", "1.04 ± 0.03"),
        (20000, "0.99 ± 0.01", "1.02 ± 0.01", "0.99 ± 0.00", "1.02 ± 0.00"),
    )
]
"""Table 3 of the paper, regime rs: cross-entropies on the test set, averaged over motifs and features."""

SHOWN = ("motif", "data", "ft", "|D|", "base", "seed", "CE r", "CE p", "CE student", "student / H", "motif in student")
"""What a table has room for; `cell.json` has all."""


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """All cells, the comparisons of regimes and of ways to distil, and a report."""
    chosen = SCALES[scale]
    rows = [row for source, fts in chosen.cells(seeds) for row in cells(source, fts, chosen, out)]
    weak = next(source for source, _ in chosen.cells(1) if source.updates is not None and source.size == chosen.sizes[0])
    ground = stand(weak, chosen, out)
    weights, students = regimes(ground), ways(ground)
    report(out / "report.html", rows, weights, students, ground, PAPER)
    return {
        "rows": [{name: row[name] for name in SHOWN} for row in rows],
        "summary": summary(rows),
        "paper": PAPER,
        "regimes": [one["row"] for one in weights],
        "ways": students,
    }
