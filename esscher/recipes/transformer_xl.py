"""Transformer-XL (Dai et al., 2019): what a memory is worth on one long text, everything else being alike.

Each text is learnt by a stack whose segments stand alone and by the same stack with a memory, in as many steps, and the rest of
the text is read as a stream; the latter is also told to see further than it ever did in training.
"""

from pathlib import Path
from typing import Any

from esscher.recipes.stream_report import stream_report
from esscher.recipes.stream_rows import over_seeds, run_studies
from esscher.recipes.stream_studies import memory_studies

PAPER = [
    dict(zip(("text", "model", "result"), row, strict=True))
    for row in (
        ("enwik8", "12 layers, 41M", "1.06 bits per byte"),
        ("enwik8", "18 layers, 88M", "1.03 bits per byte"),
        ("enwik8", "24 layers, 277M", "0.99 bits per byte"),
        ("text8", "24 layers, 277M", "1.08 bits per character"),
        ("WikiText-103", "16 layers, 151M", "24.0 perplexity"),
        ("WikiText-103", "18 layers, 257M", "18.3 perplexity"),
        ("One Billion Word", "base, 0.46B", "23.5 perplexity"),
        ("One Billion Word", "large, 0.8B", "21.8 perplexity"),
        ("Penn Treebank", "24M", "54.5 perplexity"),
    )
]


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """All models of this scale's texts, with every seed."""
    studies, left_out = memory_studies(scale)
    rows = run_studies(studies, out, seeds)
    title = "Transformer-XL: what a memory is worth"
    stream_report(out / "report.html", title, rows, PAPER)
    return {"rows": rows, "over seeds": over_seeds(rows), "paper": PAPER, "left out": [{"left out": one} for one in left_out]}
