"""E-Forcing on every backbone of the paper's ablation, beside the same backbone with likelihood."""

from pathlib import Path
from typing import Any

from esscher.recipes.eforcing_report import eforcing_report, shown, with_curves
from esscher.recipes.eforcing_studies import backbone_studies
from esscher.recipes.stream_rows import over_seeds, run_studies, with_perplexity

PAPER = [
    {"text": "Penn Treebank", "models": "GRU, LSTM, ENAS, TrellisNet, DEQ, Transformer-XL", "result": "all gain by E-Forcing"}
]


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """All backbones of this scale, with every seed."""
    studies, left_out = backbone_studies(scale)
    rows = with_perplexity(with_curves(run_studies(studies, out, seeds), studies, out))
    over = with_perplexity(over_seeds(rows))
    eforcing_report(out, "E-Forcing on many backbones", studies, rows, PAPER)
    return {"rows": shown(rows), "over seeds": over, "paper": PAPER, "left out": [{"left out": one} for one in left_out]}
