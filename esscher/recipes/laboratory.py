"""The motif processes of the paper on global autoregressive models: sizes and entropies, exactly."""

from pathlib import Path
from typing import Any

from esscher.exact.languages import motif_process

PAPER = [{"motif": "10001011111000", "entropy_per_symbol": 0.449, "mixture_entropy_per_symbol": 0.482}]
MOTIFS = ("10001011111000", "01011101101", "001001100111", "1011100111001", "10001010001", "100010100011")
LENGTH, MIXTURE = 30, 0.9


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """The same at every scale and for every seed: there is no chance in it."""
    rows = []
    for motif in MOTIFS:
        pure, mixed = motif_process(motif, LENGTH), motif_process(motif, LENGTH, mixture=MIXTURE)
        rows.append(
            {
                "motif": motif,
                "count": pure.count,
                "log_z": pure.log_z,
                "entropy_per_symbol": pure.entropy_per_symbol,
                "mixture_entropy_per_symbol": mixed.entropy_per_symbol,
            }
        )
    return {"rows": rows, "paper": PAPER}
