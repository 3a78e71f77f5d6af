"""Self-contained HTML pages of a recipe, of one saved report (`report.html`), and of a comparison of several. A page of a run
starts with samples and curves and ends with its settings, folded. The template escapes all text; `MEANINGS` explains the
numbers of reports, each of which stands with its interval."""

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esscher.core.estimate import Estimate
from esscher.core.reading import read_json_lines
from esscher.core.storage import write_file
from esscher.reports.charts import COLOURS, Line, line_chart, theme, whisker_chart
from esscher.reports.plots import BASE, INK, TILTED, TRUTH
from esscher.reports.report import MODELS, PAGE, Report, compare_reports, flatten
from esscher.reports.tables import column_names, format_cell

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

HISTORY = "history.jsonl"
VARIABLES = {INK: "ink", BASE: "base", TILTED: "tilted", TRUTH: "truth", "#aab3bf": "line"}  # of `theme.css`, by colour

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
SHARED = "Estimates whose intervals do not overlap differ by more than chance."
CURVES = "The loss while training; the band around the validation loss is its interval, over held-out data. Lower is better."
MAX_CHARTS, MAX_SAMPLES = 12, 8
MODEL_COLOURS = {"base": "base", "tilted": "tilted", "student": "third"}


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
class Chart:
    """A chart of `esscher.reports.charts`, and one sentence on what it shows."""

    html: "Markup"
    meaning: str


@dataclass(frozen=True)
class Facts:
    """Names and values one below the other, each with its meaning."""

    facts: Mapping[str, Any]


@dataclass(frozen=True)
class TextLines:
    """Samples or other text, shown verbatim."""

    caption: str
    lines: Sequence[str]


Part = Table | Picture | Chart | Facts | TextLines


@dataclass(frozen=True)
class Section:
    """A heading, a paragraph, and its parts in order; a `folded` one shows its heading until it is opened."""

    title: str
    text: str
    parts: Sequence[Part] = ()
    folded: bool = False


def write_report(path: Path, title: str, summary: str, sections: Sequence[Section]) -> Path:
    """Write the page (complete or not at all) and return its path."""
    from jinja2 import Environment, PackageLoader

    template = Environment(loader=PackageLoader("esscher.reports", "."), autoescape=True).get_template("report.html")
    rendered = [
        {"title": s.title, "text": s.text, "folded": s.folded, "parts": [_render(part) for part in s.parts]} for s in sections
    ]
    html = template.render(title=title, summary=summary, sections=rendered, theme=theme())
    write_file(path, html.encode())
    return path


def _render(part: Part) -> dict[str, Any]:
    if isinstance(part, Table):
        names = column_names(part.rows)
        rows = [[format_cell(row.get(name)) for name in names] for row in part.rows]
        heads = [name.replace("_", " ") for name in names]
        return {"kind": "table", "caption": part.caption, "meaning": part.meaning, "heads": heads, "rows": rows}
    if isinstance(part, Picture):
        return {"kind": "picture", "svg": figure_svg(part.figure), "meaning": part.meaning}
    if isinstance(part, Chart):
        return {"kind": "chart", "html": part.html, "meaning": part.meaning}
    if isinstance(part, Facts):
        facts = [(name.replace("_", " "), format_cell(v), _method_of(v), meaning(name)) for name, v in part.facts.items()]
        return {"kind": "facts", "facts": facts}
    return {"kind": "lines", "caption": part.caption, "lines": list(part.lines)}


def figure_svg(figure: "Figure") -> str:
    """The figure as an SVG element for inclusion in HTML; its colours are variables of `theme.css`, which has dark ones."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if text.get_color() == "black":
            text.set_color(INK)
    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": "esscher"}):  # the same names of shapes each time
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None}, transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    for colour, name in VARIABLES.items():
        svg = svg.replace(f": {colour}", f": var(--es-{name}, {colour})")
    return svg


def meaning(name: str) -> str:
    """The sentence that explains a name, or the longest known name it begins or ends with; empty if there is none."""
    words = re.sub(r"[_\-]+", " ", name).strip().lower()
    known = [key for key in MEANINGS if words == key or words.startswith(f"{key} ") or words.endswith(f" {key}")]
    return MEANINGS[max(known, key=len)] if known else ""


def write_page(folder: Path, report: Report, changed: Mapping[str, Any] | None = None) -> Path:
    """Write `report.html` into the folder and return its path. Samples and curves come from its `history.jsonl`, if it has one;
    `changed` are the settings that differ from their defaults, and without it all are shown."""
    history = read_history(folder)
    sections = [*_samples_section(report, history), *_history_section(history), _results_section(report)]
    if report.notes:
        sections.append(Section("Notes and warnings", "", [TextLines("", list(report.notes))]))
    settings = flatten(report.settings) if changed is None else flatten(changed)
    rows = [{"setting": name, "value": str(value)} for name, value in settings.items()]
    versions = [{"package": name, "version": version} for name, version in report.versions.items()]
    if changed is None:
        title, about = "Settings and versions", ""
    else:
        title = "Settings that differ from the defaults, and versions"
        about = f"{len(rows)} of {len(flatten(report.settings))} settings; all of them are in answer.json."
    sections.append(Section(title, about, [Table("Settings", rows), Table("Versions", versions)], folded=True))
    return write_report(folder / PAGE, f"{report.title}: {folder.name or folder}", INTERVAL, sections)


def write_comparison(path: Path, reports: Mapping[str, Report]) -> Path:
    """Write one page with the reports side by side; return its path."""
    rows, differ = compare_reports(reports)
    curves = validation_chart({name: read_history(Path(name)) for name in reports})
    sections = [
        Section("Shared numbers", SHARED if rows else "There are none.", comparison_charts(rows)),
        *([Section("Validation", "", [Chart(curves, CURVES)])] if curves else []),
        Section("The same as a table", "", [Table("", rows)] if rows else [], folded=True),
        Section(
            "Settings that differ", "" if differ else "There are none.", [Table("", differ)] if differ else [], folded=True
        ),
    ]
    return write_report(path, " and ".join(reports), INTERVAL, [part for part in sections if part.parts or part.text])


def comparison_charts(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """A chart for each row of `compare_reports` that has two finite estimates or more, on one scale."""
    charts = []
    for row in rows:
        colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(key for key in row if key != "number")}
        estimates = {
            name: value for name, value in row.items() if isinstance(value, Estimate) and math.isfinite(value.low + value.high)
        }
        if len(estimates) > 1:
            name = str(row["number"]).removesuffix(": value").removeprefix("measured, ")
            unit = next((each.unit for each in estimates.values() if each.unit and each.unit not in name), "")
            label = f"{name} ({unit})" if unit else name
            sentence = meaning(name.rsplit(": ", 1)[-1]) or meaning(name.split(": ")[0])
            charts.append(Chart(whisker_chart(estimates, label=label, colours=colours), sentence))
    return charts[:MAX_CHARTS]


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The entries of a run's history, complete or so far; none where it has no history."""
    file = folder / HISTORY
    return [entry for entry in read_json_lines(file) if isinstance(entry.get("step"), int)] if file.is_file() else []


def history_line(
    history: Sequence[Mapping[str, Any]], key: str, label: str, colour: str, *, marks: bool = False
) -> Line | None:
    """One number of the history as a line over steps, with its interval if it has one; None if it was never written."""
    rows = [entry for entry in history if _is_number(entry.get(key))]
    if not rows:
        return None
    low, high = f"{key}_low", f"{key}_high"
    has_ends = all(_is_number(entry.get(low)) and _is_number(entry.get(high)) for entry in rows)
    x, y = [float(entry["step"]) for entry in rows], [float(entry[key]) for entry in rows]
    lows, highs = ([float(entry[end]) for entry in rows] if has_ends else () for end in (low, high))
    return Line(label, x, y, colour, lows, highs, marks=marks)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def loss_chart(history: Sequence[Mapping[str, Any]]) -> "Markup | None":
    """Training and validation loss over steps; None where there is neither."""
    lines = [
        history_line(history, "loss", "training", "base"),
        history_line(history, "validation", "validation", "tilted", marks=True),
    ]
    drawn = [line for line in lines if line is not None]
    return line_chart(drawn, x="step", y="loss") if drawn else None


def validation_chart(histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> "Markup | None":
    """The validation losses of several runs over steps; None where there is none."""
    lines = [
        history_line(entries, "validation", name, COLOURS[number % len(COLOURS)], marks=True)
        for number, (name, entries) in enumerate(histories.items())
    ]
    drawn = [line for line in lines if line is not None]
    return line_chart(drawn, x="step", y="validation loss") if drawn else None


def _results_section(report: Report) -> Section:
    charts = model_charts(report)[:MAX_CHARTS]
    for unit, estimates in _estimates_by_unit(report).items():
        if 2 <= len(estimates) <= 12:
            charts.append(whisker_chart(estimates, label=unit))
    parts: list[Part] = [Chart(chart, "" if number else DOT_AND_BAR) for number, chart in enumerate(charts)]
    tables = {name: rows for name, rows in report.tables.items() if rows and name != "samples"}
    parts += [Table(name.replace("_", " "), rows, meaning(name)) for name, rows in tables.items()]
    if report.facts:
        parts.append(Facts(report.facts))
    return Section("Results", "", parts)


def model_charts(report: Report) -> "list[Markup]":
    """A chart for each row of a table that has two models or more beside each other, on one scale."""
    charts = []
    for rows in report.tables.values():
        for row in rows:
            if estimates := _of_models(row):
                name = " ".join(str(value) for value in row.values() if isinstance(value, str))
                unit = next((each.unit for each in estimates.values() if each.unit and each.unit not in name), "")
                label = name if not unit else unit if name in unit else f"{name} ({unit})"
                charts.append(whisker_chart(estimates, label=label, colours=MODEL_COLOURS))
    return charts


def _of_models(row: Mapping[str, Any]) -> dict[str, Estimate]:
    """The finite estimates of a row by model, if it has those of several."""
    found = {name: row[name] for name in MODELS if isinstance(row.get(name), Estimate)}
    finite = {name: value for name, value in found.items() if math.isfinite(value.low + value.high) and value.n}
    return finite if len(finite) > 1 else {}


def _method_of(value: Any) -> str:
    if not isinstance(value, Estimate) or value.n == 0:
        return "exact" if isinstance(value, Estimate) else ""
    return f"{100 * value.confidence:.4g} % interval, {value.n:,} {value.counted}, {value.method}"


def _estimates_by_unit(report: Report) -> dict[str, dict[str, Estimate]]:
    """The finite estimates of the tables, but for those of `model_charts`, grouped by column and unit."""
    groups: dict[str, dict[str, Estimate]] = {}
    tables = {name: [row for row in rows if not _of_models(row)] for name, rows in report.tables.items()}
    for name, value in replace(report, tables=tables).estimates().items():
        if ": " in name and math.isfinite(value.low + value.high) and value.n:
            column = name.rsplit(": ", 1)[1]
            unit = f"{column} ({value.unit})" if value.unit else column
            groups.setdefault(unit, {})[name.split(", ", 1)[1].rsplit(":", 1)[0]] = value
    return groups


def _samples_section(report: Report, history: Sequence[Mapping[str, Any]]) -> list[Section]:
    """Texts of the model: those of the report, or of the last evaluation in the history."""
    rows = report.tables.get("samples") or ()
    texts = [str(row["text"]) for row in rows if "text" in row][:MAX_SAMPLES]
    if texts:
        return [Section("Samples", "", [TextLines("", texts)])]
    step, texts = last_samples(history)
    return [Section("Samples", "", [TextLines(f"Texts of the model after step {step:,}:", texts)])] if texts else []


def last_samples(history: Sequence[Mapping[str, Any]]) -> tuple[int, list[str]]:
    """The step of the last samples in a history, and the texts; no texts where there are none."""
    for entry in reversed(history):
        if isinstance(entry.get("samples"), list):
            return int(entry["step"]), [str(text) for text in entry["samples"]]
    return 0, []


def _history_section(history: Sequence[Mapping[str, Any]]) -> list[Section]:
    chart = loss_chart(history)
    return [] if chart is None else [Section("Training", "", [Chart(chart, CURVES)])]
