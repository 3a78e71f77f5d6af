"""Local-XLNet (thesis of Zihang Dai, 2020): the permutation LM on local attention beside the same on full attention."""

from pathlib import Path
from typing import Any

from esscher.recipes.report_parts import if_any
from esscher.recipes.rows import means_over_seeds
from esscher.recipes.xlnet import MEANING
from esscher.recipes.xlnet_rows import run_studies
from esscher.recipes.xlnet_studies import local_studies
from esscher.reports.document import Section, Table, write_report

PAPER = [
    {"task": "SQuAD 2.0, F1", "full attention": "87.8", "local attention": "86.9"},
    {"task": "SST-2", "full attention": "94.9", "local attention": "94.8"},
]


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """Both kinds of attention, with every seed."""
    studies, left_out = local_studies(scale, out)
    rows = run_studies(studies, out, seeds)
    over = means_over_seeds(rows, ["pretrained"])
    tables = [Table("Tasks", rows), *if_any(Table("Tasks, over seeds", over)), Table("Published", PAPER)]
    about = "One size, one text, one objective; a position sees everything, or its chunk and both neighbours."
    write_report(out / "report.html", "Local-XLNet", about, [Section("Results", MEANING, tables)])
    return {"rows": rows, "over seeds": over, "paper": PAPER, "left out": [{"left out": one} for one in left_out]}
