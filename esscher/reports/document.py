"""One self-contained HTML file: sections of text, tables, samples and pictures.

Everything that comes from data or a model is escaped by the template; pictures are inline SVG.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esscher.reports.tables import cell, columns
from esscher.storage import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Table:
    """Rows under a caption; `meaning` says in one sentence what the numbers are."""

    caption: str
    rows: Sequence[Mapping[str, Any]]
    meaning: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure, and one sentence that says what to see in it."""

    figure: "Figure"
    meaning: str


@dataclass(frozen=True)
class Lines:
    """Samples or other text, shown as it is."""

    caption: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Section:
    """A heading, a paragraph, and its parts in order."""

    title: str
    text: str
    parts: Sequence[Table | Picture | Lines] = ()


def write_report(path: Path, title: str, summary: str, sections: Sequence[Section]) -> Path:
    """Write the report, whole or not at all, and return its path."""
    from jinja2 import Environment, PackageLoader

    template = Environment(loader=PackageLoader("esscher.reports", "."), autoescape=True).get_template("report.html")
    rendered = [{"title": s.title, "text": s.text, "parts": [_render(part) for part in s.parts]} for s in sections]
    html = template.render(title=title, summary=summary, sections=rendered)
    write_file(path, html.encode())
    return path


def _render(part: Table | Picture | Lines) -> dict[str, Any]:
    if isinstance(part, Table):
        names = columns(part.rows)
        rows = [[cell(row.get(name)) for name in names] for row in part.rows]
        heads = [name.replace("_", " ") for name in names]
        return {"kind": "table", "caption": part.caption, "meaning": part.meaning, "heads": heads, "rows": rows}
    if isinstance(part, Picture):
        return {"kind": "picture", "svg": svg(part.figure), "meaning": part.meaning}
    return {"kind": "lines", "caption": part.caption, "lines": list(part.lines)}


def svg(figure: "Figure") -> str:
    """The figure as an SVG element that may stand inside HTML."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
