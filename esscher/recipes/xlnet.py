"""XLNet (Yang et al., 2019): what learning in orders by chance is worth for tasks, beside other ways to pretrain one network.

Each way learns the same text in as many updates: the permutation LM, denoising, from left to right, the permutation LM without
one of its parts; or nothing. Then each learns every task alike. Last, a residual energy begins as a pretrained network, or as
one that learnt nothing.
"""

from pathlib import Path
from typing import Any

from esscher.recipes.report_parts import if_any, published
from esscher.recipes.rows import means_over_seeds
from esscher.recipes.xlnet_rows import run_energies, run_studies
from esscher.recipes.xlnet_studies import xlnet_studies
from esscher.reports.document import Section, Table, write_report

PAPER = [
    dict(zip(("model", "RACE", "SQuAD 2.0 F1", "MNLI", "SST-2"), row, strict=True))
    for row in (
        ("BERT", "64.3", "76.3", "84.3", "92.8"),
        ("denoising, Transformer-XL", "65.0", "79.6", "84.9", "92.6"),
        ("XLNet, K = 6", "66.7", "81.0", "85.6", "93.4"),
        ("without memory", "65.6", "80.2", "-", "-"),
        ("without spans", "66.0", "80.6", "-", "-"),
        ("without bidirectional data", "66.3", "80.7", "-", "-"),
    )
]
MEANING = (
    "Measured on test data that were neither pretrained nor learnt from, with 95 % intervals for data like them: passages that "
    "stand together, or questions on one passage, are one replicate."
)
ENERGIES = "Nats per token of the base and of the tilted model, and what the energy saves, on the same continuations."


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """All ways of this scale, with every seed, and the energies."""
    studies, left_out = xlnet_studies(scale, out)
    rows, energies = run_studies(studies, out, seeds), run_energies(studies, out, seeds)
    over, energies_over = means_over_seeds(rows, ["pretrained"]), means_over_seeds(energies, ["energy starts from"])
    tables = [Table("Tasks", rows), *if_any(Table("Tasks, over seeds", over))]
    more = [Table("Energies", energies, ENERGIES), *if_any(Table("Energies, over seeds", energies_over))]
    about = "One network, pretrained on one text in several ways, then fine-tuned alike."
    sections = [Section("Tasks", MEANING, tables), Section("As an energy", "", more), published(PAPER)]
    write_report(out / "report.html", "XLNet: any order", about, sections)
    return {
        "rows": rows,
        "over seeds": over,
        "energies": energies,
        "energies over seeds": energies_over,
        "paper": PAPER,
        "left out": [{"left out": one} for one in left_out],
    }
