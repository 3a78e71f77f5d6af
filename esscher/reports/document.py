"""One self-contained HTML file: sections of text, tables, samples and figures (inline SVG); the template escapes all text."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esscher.core.storage import write_file
from esscher.reports.tables import column_names, format_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Table:
    """Rows under a caption; `meaning` explains the numbers in one sentence."""

    caption: str
    rows: Sequence[Mapping[str, Any]]
    meaning: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure, and one sentence on what it shows."""

    figure: "Figure"
    meaning: str


@dataclass(frozen=True)
class TextLines:
    """Samples or other text, shown verbatim."""

    caption: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Section:
    """A heading, a paragraph, and its parts in order."""

    title: str
    text: str
    parts: Sequence[Table | Picture | TextLines] = ()


def write_report(path: Path, title: str, summary: str, sections: Sequence[Section]) -> Path:
    """Write the page (complete or not at all) and return its path."""
    from jinja2 import Environment, PackageLoader

    template = Environment(loader=PackageLoader("esscher.reports", "."), autoescape=True).get_template("report.html")
    rendered = [{"title": s.title, "text": s.text, "parts": [_render(part) for part in s.parts]} for s in sections]
    html = template.render(title=title, summary=summary, sections=rendered)
    write_file(path, html.encode())
    return path


def _render(part: Table | Picture | TextLines) -> dict[str, Any]:
    if isinstance(part, Table):
        names = column_names(part.rows)
        rows = [[format_cell(row.get(name)) for name in names] for row in part.rows]
        heads = [name.replace("_", " ") for name in names]
        return {"kind": "table", "caption": part.caption, "meaning": part.meaning, "heads": heads, "rows": rows}
    if isinstance(part, Picture):
        return {"kind": "picture", "svg": figure_svg(part.figure), "meaning": part.meaning}
    return {"kind": "lines", "caption": part.caption, "lines": list(part.lines)}


def figure_svg(figure: "Figure") -> str:
    """The figure as an SVG element for inclusion in HTML."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
