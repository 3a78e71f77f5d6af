"""Residual energy-based models (Deng, Bakhtin, Ott, Szlam, Ranzato, 2020; Bakhtin et al., 2021) on text.

For each study a frozen base and rows that try to do better on the same text: RALM and BALM, which are plain language models
of equal capacity, and energies: UniT reads from left to right, BiT from both sides, BiT* is a pretrained encoder. All rows
are measured on the same held-out continuations.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from esscher.recipes.residual_rows import make_row, names, prepare_ground
from esscher.recipes.residual_studies import STUDIES
from esscher.reports.document import Picture, Section, Table, write_report
from esscher.reports.plots import intervals

PAPER = [
    dict(zip(("model", "CC-News ppl", "Toronto Books ppl"), row, strict=True))
    for row in (
        ("base LM 203M", "14.89", "18.14"),
        ("RALM, LM + 203M", "14.89", "18.17"),
        ("BALM 408M", "13.92", "18.24"),
        ("joint UniT, LM + 203M", "13.81-13.82", "17.46-17.48"),
        ("joint BiT-Base, LM + 125M", "13.01-13.03", "-"),
        ("joint BiT-Med, LM + 203M", "12.38-12.42", "-"),
        ("joint BiT-Base*, LM + 125M", "12.93-12.95", "16.17-16.18"),
        ("joint BiT-Large*, LM + 355M", "12.10-12.16", "15.17-15.22"),
    )
]
"""Table 1 of the paper: perplexity per token, 160 tokens of which 120 are given."""

SHOWN = ("text", "model", "seed", "per token, this test set", "per word", "gain", "log Z")  # the rest is in the report
MEANING = (
    "Perplexities with 95 % intervals for text like the test set; `saved` and `gain` are paired with the base on the same "
    "continuations, so they are far better known than either perplexity."
)


def run(*, scale: str, out: Path, seeds: int, data: str | None = None) -> dict[str, Any]:
    """All rows of the studies of this scale; `data` is a text file for the scale `pretrained`."""
    studies, left_out = STUDIES[scale](out, data)
    rows: list[dict[str, Any]] = []
    for study in studies:
        ground = prepare_ground(study, out / study.name)
        rows += [make_row(ground, name, seed) for name, seed in names(study, seeds)]
    _report(out / "report.html", rows)
    shown = [{key: row[key] for key in SHOWN if key in row} for row in rows]
    return {"rows": shown, "paper": PAPER, "left out": [{"left out": one} for one in left_out]}


def _report(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    texts = list(dict.fromkeys(row["text"] for row in rows))
    sections = [_section(text, [row for row in rows if row["text"] == text]) for text in texts]
    paper = Section("The paper's table", "News and books, 160 tokens of which 120 are given.", [Table("Perplexity", PAPER)])
    write_report(
        path,
        "Residual energy-based models",
        "A frozen language model, and rows that try to do better on the same held-out continuations: plain models of equal "
        "size (RALM, BALM), and energies over whole continuations (UniT, BiT, and BiT*, a pretrained encoder).",
        [*sections, paper],
    )


def _section(text: str, rows: Sequence[Mapping[str, Any]]) -> Section:
    shown = {f"{row['model']}, seed {row['seed']}": row["gain"] for row in rows if "gain" in row}
    picture = [
        Picture(intervals(shown, label="gain per word, share of the base's perplexity", truth=0.0, truth_label="base"), "")
    ]
    return Section(text, MEANING, [Table("Rows", rows), *(picture if shown else [])])
