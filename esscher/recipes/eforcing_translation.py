"""E-Forcing (Anonymous, 2023) on translation, beside likelihood, label smoothing and scheduled sampling; heads of an LSTM.

What is asked: BLEU of test sentences, decoded greedily and by a beam, and how long translations are; whether the true word is
likelier after a system's own words than with plain likelihood; and what energies are worth: the model's own, features beside
the source, a network.
"""

from pathlib import Path
from typing import Any

from esscher.recipes.eforcing_studies import SMOOTH
from esscher.recipes.report_parts import if_any, learning, published
from esscher.recipes.rows import means_over_seeds, place_of
from esscher.recipes.translation_energies import energy_rows
from esscher.recipes.translation_rows import exposure_rows, judged_by, length_rows, metric_rows, read_decoded, run_studies
from esscher.recipes.translation_studies import TranslationStudy, translation_studies
from esscher.reports.document import Lines, Picture, Section, Table, write_report

PAPER = [{"pairs": "IWSLT14, six directions", "result": "E-Forcing gains about 0.6 to 1 BLEU, greedily and by a beam of 5"}]
SHOWN = 12


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """All systems of this scale, with every seed."""
    studies, left_out = translation_studies(scale, out)
    rows = run_studies(studies, out, seeds)
    sequences = 20 if scale == "smoke" else 400
    exposure = [{"pairs": study.name, **row} for study in studies for row in exposure_rows(study, out / study.name, sequences)]
    energies = energy_rows(studies[0], SMOOTH, out, steps=4 if scale == "smoke" else 300) if studies else []
    over = means_over_seeds(rows, ("pairs", "system", "decoded"), ("BLEU", "gained"))
    sections = [_section(study, out / study.name) for study in studies]
    about = "One network and set of pairs, and what it is trained to minimise; all are judged by test sentences they never saw."
    tables = [Table("Systems", rows), *if_any(Table("Over seeds", over)), Table("Exposure", exposure, RATIO)]
    tables.append(Table("Energies", energies, "Candidates of the base, chosen with and without an energy."))
    write_report(out / "report.html", "Translation", about, [Section("Results", MEANING, tables), *sections, published(PAPER)])
    return {
        "rows": rows,
        "over seeds": over,
        "exposure": exposure,
        "energies": energies,
        "paper": PAPER,
        "left out": [{"left out": one} for one in left_out],
    }


MEANING = (
    "BLEU by sacrebleu, with the interval for other test sentences; what is gained is against label smoothing alone, or among "
    "heads against the softmax, sentence by sentence, with the p-value of approximate randomisation. Length is the number of "
    "words, of those of the references."
)
RATIO = (
    "How often the true word is likelier after the system's own words than after those of the one it is compared with; bound: "
    "how far the system's own prefixes are from the data's, in nats, as its levels tell (0 or less tells nothing)."
)


def _section(study: TranslationStudy, folder: Path) -> Section:
    """By length, by other metrics, while learning, and some translations."""
    test, way = judged_by(study), next(iter(study.ways))
    losses = learning(folder, study.systems, "validation, nats per token")
    said = {system: read_decoded(place_of(folder, system, 0), way) for system in study.systems}
    examples = [
        f"{name}: {text}"
        for number in range(0, len(test), max(1, len(test) // SHOWN))
        for name, text in [
            ("source", test.sources[number]),
            ("reference", test.targets[number]),
            *((system, texts[number]) for system, texts in said.items()),
            ("", ""),
        ]
    ]
    by_length = Table(f"BLEU by words of the source, {way}", length_rows(study, way, folder))
    others = Table(f"Other metrics, {way}", metric_rows(study, way, folder))
    parts: list[Table | Picture | Lines] = [by_length, others, *losses, Lines(f"Translations, {way}", examples)]
    return Section(study.name, "", parts)
