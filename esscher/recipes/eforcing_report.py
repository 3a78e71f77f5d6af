"""The report of recipes on E-Forcing: rows, what each saves, and how the validation loss went from evaluation to evaluation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from esscher.recipes.report_parts import learning, published, validations
from esscher.recipes.rows import place_of
from esscher.recipes.stream_report import stream_sections
from esscher.recipes.stream_studies import StreamStudy
from esscher.reports.document import Section, write_report

LOSS, KEPT = "validation, nats per token", "Seed 0. The weights of the least loss are kept and tested."


def with_curves(rows: Sequence[Mapping[str, Any]], studies: Sequence[StreamStudy], out: Path) -> list[dict[str, Any]]:
    """Rows with the least validation loss, where it was, and how much it had risen by the end."""
    found = []
    for row in rows:
        study = next(one for one in studies if one.name == row["text"])
        seen = validations(place_of(out / study.name, row["model"], row["seed"]))
        step, least = min(seen, key=lambda one: one[1])
        found.append({**row, "least validation": round(least, 4), "at step": step, "late rise": round(seen[-1][1] - least, 4)})
    return found


def shown(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What of the rows is printed."""
    names = ("text", "model", "seed", "perplexity", "saved", "at step", "late rise")
    return [{name: row[name] for name in names} for row in rows]


def eforcing_report(
    out: Path,
    title: str,
    studies: Sequence[StreamStudy],
    rows: Sequence[Mapping[str, Any]],
    paper: Sequence[Mapping[str, Any]],
    more: Sequence[Section] = (),
) -> Path:
    """Write the page with further sections, and return its path."""
    sections = stream_sections(rows)
    for study in studies:
        pictures = learning(out / study.name, study.models, LOSS, KEPT)
        sections.append(Section(f"{study.name}: while learning", "A loss that rises is of a text learnt by heart.", pictures))
    about = "One network and text, and what it is trained to minimise; all are measured by the likelihood of other text."
    return write_report(out / "report.html", title, about, [*sections, *more, published(paper)])
