"""Self-contained HTML pages of a recipe, of one saved report (`report.html`), and of a comparison of several. The template
escapes all text; `MEANINGS` explains the numbers of reports, each of which stands with its interval."""

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esscher.core.estimate import Estimate
from esscher.core.reading import read_json_lines
from esscher.core.storage import write_file
from esscher.reports.plots import curves, intervals
from esscher.reports.report import PAGE, Report, compare_reports, flatten
from esscher.reports.tables import column_names, format_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEANINGS = {
    "perplexity": "exp of the cross-entropy per unit, as a number of equally likely choices; lower is better.",
    "bits": "The mean cross-entropy on held-out data, in bits; lower is better.",
    "base": "The base model alone, not tilted.",
    "tilted": "The base tilted by the energy.",
    "saved by tilting": "Cross-entropy of the base minus that of the tilted model on the same data; above 0 the tilt helps.",
    "log z": "The logarithm of the constant that normalises the tilted model, estimated from draws.",
    "log z spread": "How much log Z differs between prompts; 0 if one constant serves all of them.",
    "reliability": "Whether the draws suffice to estimate log Z: good, doubtful or unreliable.",
    "effective draws": "Effective sample size: how many equally weighted draws would be as good as these.",
    "drawn from the base": "Sequences drawn from the base to fit and to measure: the cost in computation.",
    "kl to the base": "KL divergence of the tilted model from its base; 0 means that they are equal.",
    "l1 of moments": "Distance of the tilted model's feature means from the wanted ones, summed over features; 0 is perfect.",
    "loss on held out text": "The training loss on held-out text; lower is better.",
    "validation": "The training loss on held-out data; lower is better.",
    "steps": "Updates of the weights.",
    "best step": "The update with the lowest validation loss; its weights are kept.",
    "stopped": "Why training ended.",
    "drawn": "Sequences drawn for the student to learn from.",
    "worth": "Effective sample size of the sequences drawn for the student, by stage.",
    "seed": "The seed of all random numbers; the same seed gives the same results.",
    "regime": "How the weights of the features were fitted.",
    "method": "How the student was trained.",
    "features": "The mean of each feature in the data, the base and the tilted model, and its fitted weight.",
    "distance": "How far the student is from the tilted model; 0 means equal.",
    "measured": "Measured on test data that were used for neither training nor selection.",
    "measured on": "The data that the numbers were measured on.",
    "perplexities": "exp of nats per unit; end symbols count, prompts do not. Intervals are for data like these.",
    "steps table": "The perplexity at each position of the text.",
    "worst prompts": "The prompts whose log Z is estimated least precisely.",
    "rows": "Our numbers, with intervals in brackets where there are any.",
    "paper": "The numbers printed in the paper.",
}
INTERVAL = (
    "Numbers in brackets are confidence intervals: they cover the true value in 95 of 100 repetitions, unless another rate is "
    "stated. Numbers without an interval are counts, settings, or exact."
)
DOT_AND_BAR = "The dot is the estimate, the bar its interval."


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
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": "esscher"}):  # the same names of shapes each time
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def meaning(name: str) -> str:
    """The sentence that explains a name, or the longest known name it begins or ends with; empty if there is none."""
    words = re.sub(r"[_\-]+", " ", name).strip().lower()
    known = [key for key in MEANINGS if words == key or words.startswith(f"{key} ") or words.endswith(f" {key}")]
    return MEANINGS[max(known, key=len)] if known else ""


def write_page(folder: Path, report: Report) -> Path:
    """Write `report.html` into the folder, with the training curves if it has a `history.jsonl`; return its path."""
    sections = [_results_section(report), *_history_section(folder)]
    if report.notes:
        sections.append(Section("Notes and warnings", "", [TextLines("", list(report.notes))]))
    settings = [{"setting": name, "value": str(value)} for name, value in flatten(report.settings).items()]
    versions = [{"package": name, "version": version} for name, version in report.versions.items()]
    sections.append(Section("Settings and versions", "", [Table("Settings", settings), Table("Versions", versions)]))
    return write_report(folder / PAGE, report.title, INTERVAL, sections)


def write_comparison(path: Path, reports: Mapping[str, Report]) -> Path:
    """Write one page with the reports side by side; return its path."""
    rows, differ = compare_reports(reports)
    pictures = []
    for row in rows:
        estimates = {name: row[name] for name in reports if isinstance(row[name], Estimate) and math.isfinite(row[name].value)}
        if len(estimates) > 1 and all(math.isfinite(estimate.low + estimate.high) for estimate in estimates.values()):
            sentence = meaning(row["number"].rsplit(": ", 1)[-1]) or DOT_AND_BAR
            pictures.append(Picture(_interval_figure(estimates, row["number"]), sentence))
    sections = [
        Section("Shared numbers", "" if rows else "There are none.", [Table("Side by side", rows)] if rows else []),
        Section("Intervals", "Estimates whose intervals do not overlap differ by more than chance.", pictures[:12]),
        Section("Settings that differ", "" if differ else "There are none.", [Table("", differ)] if differ else []),
    ]
    return write_report(path, " and ".join(reports), INTERVAL, sections)


def _results_section(report: Report) -> Section:
    facts = [
        {"what": name.replace("_", " "), "value": value, "how": _method_of(value), "meaning": meaning(name)}
        for name, value in report.facts.items()
    ]
    parts: list[Table | Picture | TextLines] = [Table("Summary", facts)] if facts else []
    for unit, estimates in _estimates_by_unit(report).items():
        if 2 <= len(estimates) <= 12:
            parts.append(Picture(_interval_figure(estimates, unit), f"{unit}: {DOT_AND_BAR}"))
    parts += [Table(name.replace("_", " "), rows, meaning(name)) for name, rows in report.tables.items() if rows]
    return Section("Results", "", parts)


def _method_of(value: Any) -> str:
    if not isinstance(value, Estimate) or value.n == 0:
        return "exact" if isinstance(value, Estimate) else ""
    return f"{100 * value.confidence:.4g} % interval, {value.n:,} {value.counted}, {value.method}"


def _estimates_by_unit(report: Report) -> dict[str, dict[str, Estimate]]:
    """The finite estimates of the tables, grouped by column and unit."""
    groups: dict[str, dict[str, Estimate]] = {}
    for name, value in report.estimates().items():
        if ": " in name and math.isfinite(value.low + value.high) and value.n:
            column = name.rsplit(": ", 1)[1]
            unit = f"{column} ({value.unit})" if value.unit else column
            groups.setdefault(unit, {})[name.split(", ", 1)[1].rsplit(":", 1)[0]] = value
    return groups


def _interval_figure(estimates: Mapping[str, Estimate], label: str) -> "Figure":
    """The estimates as intervals; dollars are escaped, because matplotlib reads formulas between them."""
    rows = {name.replace("$", r"\$"): estimate for name, estimate in estimates.items()}
    return intervals(rows, label=label.replace("$", r"\$"))


def _history_section(folder: Path) -> list[Section]:
    file = folder / "history.jsonl"
    history = read_json_lines(file) if file.is_file() else []
    lines = {}
    for name in ("loss", "validation"):
        entries = [entry for entry in history if isinstance(entry.get(name), int | float)]
        if entries:
            lines[name] = [float(entry["step"]) for entry in entries], [float(entry[name]) for entry in entries]
    if not lines:
        return []
    figure = curves(lines, x="step", y="loss")
    return [Section("Training", "", [Picture(figure, "The loss while training, on training data and on held-out data.")])]
