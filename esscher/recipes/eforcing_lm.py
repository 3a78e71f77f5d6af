"""E-Forcing (Anonymous, 2023) beside likelihood, label smoothing and scheduled sampling, on one network and text.

What is asked: how well each predicts the rest of the text, in as many epochs and in as much time; and whether the validation
loss rises late, as it does when a model learns its text by heart. Beside it the gradient itself is held against the exact one.
"""

from pathlib import Path
from typing import Any

from esscher.recipes.eforcing_analyses import exposure_row, own_row, residual_row
from esscher.recipes.eforcing_laboratory import gradient_rows, gradient_section
from esscher.recipes.eforcing_report import eforcing_report, shown, with_curves
from esscher.recipes.eforcing_studies import FORCED, ONCE, PLAIN, language_studies
from esscher.recipes.rows import kept
from esscher.recipes.stream_rows import over_seeds, run_studies, with_perplexity
from esscher.reports.document import Section, Table

PAPER = [
    dict(zip(("text", "model", "perplexity", "with E-Forcing"), row, strict=True))
    for row in (
        ("WikiText-103", "Transformer", 30.56, 29.94),
        ("WikiText-103", "Transformer-XL", 24.20, 23.90),
        ("CC-News", "Transformer", "-", "0.51 lower"),
        ("Toronto Books", "Transformer", "-", "0.47 lower"),
    )
]

EXPOSURE = (
    "Ratio: how often the true token is likelier after the model's own outputs than after the baseline's. Bound: at most KL("
    "data prefixes || model prefixes), by the level as a critic; 0 or less says nothing."
)
ENERGIES = (
    "Perplexity of the next 20 tokens after 30, of the model and of the model tilted: by the level of its own logits, which "
    "E-Forcing teaches, or by a network that starts from its weights and learns to tell its draws from the data."
)


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """All objectives on this scale's texts, with every seed."""
    studies, left_out = language_studies(scale)
    rows = with_perplexity(with_curves(run_studies(studies, out, seeds), studies, out))
    over = with_perplexity(over_seeds(rows))
    batches, steps = (10, 10) if scale == "smoke" else (200, 300)
    gradients = kept(out / "gradients.json", lambda: {"rows": gradient_rows(batches, steps)})["rows"]
    compared = [study for study in studies if FORCED in study.models]
    places, few = (20, 20) if scale == "smoke" else (400, 200)
    exposure = [exposure_row(study, FORCED, out / study.name, places) for study in compared]
    energies = [own_row(study, model, out / study.name, few) for study in compared for model in (PLAIN, FORCED, ONCE)]
    energies += [residual_row(study, PLAIN, out / study.name, few, 4 if scale == "smoke" else 200) for study in compared]
    tables = [Table("Exposure bias", exposure, EXPOSURE), Table("Energies", energies, ENERGIES)]
    analyses = Section("Exposure and energies", "The first seed of each model, on text that it did not learn from.", tables)
    eforcing_report(out, "E-Forcing", studies, rows, PAPER, [analyses, gradient_section(gradients)])
    return {
        "gradients": gradients,
        "exposure": exposure,
        "energies": energies,
        "rows": shown(rows),
        "over seeds": over,
        "paper": PAPER,
        "left out": [{"left out": one} for one in left_out],
    }
