"""The report of the recipe on residual energy-based models: a table and a picture for each text, the paper's beside them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from esscher.recipes.residual import PAPER
from esscher.reports.document import Picture, Section, Table, write_report
from esscher.reports.plots import intervals

Rows = Sequence[dict[str, Any]]
MEANING = (
    "Perplexities with 95 % intervals for text like the test set; `saved` and `gain` are paired with the base on the same "
    "continuations, so they are far better known than either perplexity."
)


def report(path: Path, rows: Rows) -> Path:
    """Write the page, and return its path."""
    texts = list(dict.fromkeys(row["text"] for row in rows))
    sections = [_section(text, [row for row in rows if row["text"] == text]) for text in texts]
    paper = Section("The paper's table", "News and books, 160 tokens of which 120 are given.", [Table("Perplexity", PAPER)])
    return write_report(
        path,
        "Residual energy-based models",
        "A frozen language model, and rows that try to do better on the same held-out continuations: plain models of equal "
        "size (RALM, BALM), and energies over whole continuations (UniT, BiT, and BiT*, a pretrained encoder).",
        [*sections, paper],
    )


def _section(text: str, rows: Rows) -> Section:
    shown = {f"{row['model']}, seed {row['seed']}": row["gain"] for row in rows if "gain" in row}
    picture = [
        Picture(intervals(shown, label="gain per word, share of the base's perplexity", truth=0.0, truth_label="base"), "")
    ]
    return Section(text, MEANING, [Table("Rows", rows), *(picture if shown else [])])
