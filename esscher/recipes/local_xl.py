"""Local-XL and convolutions (thesis of Zihang Dai, 2020, chapter 5; Wu et al., 2019) beside Transformer-XL on one long text."""

from pathlib import Path
from typing import Any

from esscher.recipes.stream_report import stream_report
from esscher.recipes.stream_rows import over_seeds, run_studies
from esscher.recipes.stream_studies import local_studies

PAPER = [
    {"task": "fine-tuning with chunks of 64", "result": "about 2 times faster"},
    {"task": "classification", "result": "unchanged"},
    {"task": "SQuAD", "result": "1 point lower"},
]


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """All stacks of this scale, with every seed."""
    studies, left_out = local_studies(scale)
    rows = run_studies(studies, out, seeds)
    stream_report(out / "report.html", "What a layer mixes positions by", rows, PAPER)
    return {"rows": rows, "over seeds": over_seeds(rows), "paper": PAPER, "left out": [{"left out": one} for one in left_out]}
