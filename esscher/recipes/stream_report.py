"""The report of recipes on long memory: for each text a table and a picture of what every model saves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from esscher.recipes.report_parts import if_any, published
from esscher.recipes.stream_rows import over_seeds
from esscher.reports.document import Picture, Section, Table, write_report
from esscher.reports.plots import intervals

MEANING = (
    "Bits of the test text, with 95 % intervals for text like it (blocks of neighbouring tokens are the replicates). What is "
    "saved is compared token by token with the same seed of the first model, so it is far better known than the bits."
)


def stream_report(path: Path, title: str, rows: Sequence[Mapping[str, Any]], paper: Sequence[Mapping[str, Any]]) -> Path:
    """Write the page, and return its path."""
    about = "Networks of one size that learn one long text in order, in as many updates, and are measured on the rest of it."
    return write_report(path, title, about, [*stream_sections(rows), published(paper)])


def stream_sections(rows: Sequence[Mapping[str, Any]]) -> list[Section]:
    """A section for each text."""
    sections = []
    for text in dict.fromkeys(row["text"] for row in rows):
        own = [row for row in rows if row["text"] == text]
        saved = {f"{row['model']}, {row['sees']}, seed {row['seed']}": row["saved"] for row in own if row["saved"] is not None}
        picture = [Picture(intervals(saved, label=f"saved, {own[0]['bits'].unit}", truth=0.0, truth_label="no difference"), "")]
        over = Table("Over seeds", over_seeds(own))
        sections.append(Section(text, MEANING, [*if_any(over), Table("Rows", own), *(picture if saved else [])]))
    return sections
