"""Views as HTML. The template escapes all text; braces, dollar and at-signs, which have a meaning in gradio, are entities."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from esscher.core.estimate import Estimate
from esscher.estimators.continuations import NextTokens
from esscher.estimators.populations import EnergyComparison
from esscher.explorer.views import MAX_POOL, MORE, CandidatesView, FeatureMean, ShownText, TokenChange
from esscher.reports.charts import Line, line_chart, whisker_chart
from esscher.reports.tables import format_estimate

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"
BINS = 30  # of a histogram
FULL_COLOUR_NATS = 2.0  # change at which the colour is deepest
MAX_MEANS = 3  # features whose means stand above the texts
MEANING = "Energies in nats: a tilted model that fits the data has the energies of the data; those of the base are higher."
MODELS = {
    "base": ("Base", "The model as it was trained, a(x).", "base"),
    "tilted": ("Tilted", f"The base times exp({MINUS}E), drawn by weight from the candidates.", "tilted"),
    "student": ("Student", "A plain model that was distilled from the tilted one.", "third"),
}
POPULATIONS = {"data": ("data", "truth"), "base": ("base", "base"), "joint": ("tilted model", "tilted")}


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader

    return Environment(loader=PackageLoader("esscher.explorer", "."), autoescape=True).get_template("parts.html")


def render(name: str, *values: Any) -> str:
    """The macro of `parts.html` of that name, filled."""
    html = str(getattr(_template().module, name)(*values))
    return html.replace("{", "&#123;").replace("}", "&#125;").replace("$", "&#36;").replace("@", "&#64;")


def verdict(view: CandidatesView, *, tilted: bool) -> str:
    """Whether the candidates suffice, in words, and log Z with its interval."""
    n = f"{view.candidates:,}"
    if not tilted:
        return render("verdict", "busy", "The base alone.", f"{n} texts were drawn; nothing is tilted.", None)
    log_z = view.pool["log_z"]
    numbers = None if log_z is None else {"words": format_estimate(log_z), "title": str(log_z)}
    if not view.complete:
        return render("verdict", "busy", "Drawing …", f"{n} candidates from the base so far.", numbers)
    worth = f"{n} candidates from the base are worth {view.pool['ess']:,.0f} independent draws of the tilted model"
    if view.pool["verdict"] == "good":
        until = {"good": " Drawing stopped there by itself.", "time": " Drawing stopped there to save time."}.get(
            view.stopped, ""
        )
        return render("verdict", "good", "These draws suffice.", f"{worth}.{until}", numbers)
    why = {"limit": f"Drawing stopped at the limit of {n} candidates. ", "time": f"Drawing stopped after {n} candidates. "}
    title = "Look again with more draws." if view.pool["verdict"] == "doubtful" else "Too few candidates to be sure."
    return render("verdict", "more", title, f"{why.get(view.stopped, '')}{_capital(view.pool['advice'])}", numbers)


def advised(view: CandidatesView, *, tilted: bool) -> str | None:
    """The words of the button that does what the verdict advises; None where there is nothing to do."""
    if not tilted or not view.complete or view.pool["verdict"] == "good":
        return None
    if not view.selection.candidates.independent:
        return "Draw independent candidates"
    return f"Draw {MORE}{TIMES} more candidates" if view.candidates < MAX_POOL else None


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def texts(
    columns: Mapping[str, Sequence[ShownText]], view: CandidatesView, means: Sequence[FeatureMean], *, tilted: bool
) -> str:
    """The texts of the models side by side, all energies on one scale; above them the means that the tilt changes."""
    weights = [-row.energy for rows in columns.values() for row in rows if math.isfinite(row.energy)]
    low, high = min([0.0, *weights]), max([0.0, *weights])
    scale = {"zero": _percent(0.0, low, high)} if tilted and high > low else None
    shown = []
    for name, rows in columns.items():
        title, about, colour = MODELS[name]
        cards = [{**vars(row), **_meter(-row.energy, low, high)} for row in rows]
        shown.append({"title": title, "about": about, "colour": colour, "rows": cards})
    ends = [end for mean in means for each in (mean.base, mean.tilted) for end in (each.low, each.high)]
    scale_of_means = (0.0, 1.0) if ends and min(ends) >= 0 and max(ends) <= 1 else ()
    charts = [means_chart(mean, scale_of_means) for mean in means[:MAX_MEANS]]
    above = render("means", _joined(charts)) if charts and tilted else ""
    return above + render("texts", shown, view.text, scale)


def _joined(charts: Sequence["Markup"]) -> "Markup":
    from markupsafe import Markup

    return Markup("").join(charts)


def means_chart(mean: FeatureMean, include: Sequence[float] = ()) -> "Markup":
    """The mean of one feature over base and tilted model, with intervals."""
    rows = {"base": mean.base, "tilted": mean.tilted}
    return whisker_chart(rows, label=f"{mean.name}, mean", colours={"base": "base", "tilted": "tilted"}, include=include)


def _percent(value: float, low: float, high: float) -> float:
    return 100 * (value - low) / (high - low) if high > low else 0.0


def _meter(weight: float, low: float, high: float) -> dict[str, Any]:
    """A bar from 0 to the weight, as percent of the scale."""
    if not math.isfinite(weight):
        return {"weight": weight, "finite": False, "left": 0.0, "width": 0.0}
    zero, end = _percent(0.0, low, high), _percent(weight, low, high)
    return {"weight": weight, "finite": True, "left": min(zero, end), "width": abs(end - zero)}


def next_token_table(names: Sequence[str], table: NextTokens, *, tilted: bool = True) -> str:
    """Probabilities of the next token under base and tilted model, all bars on one scale."""
    largest = max(max(row.base.value, _end(row.joint)) for row in table.rows)
    rows = []
    for name, row in zip(names, table.rows, strict=True):
        base, joint = row.base.value, row.joint
        words = f"{base:.2g} → {format_estimate(joint)}" if tilted else f"{base:.3g}"
        ends = {"low": 100 * max(0.0, joint.low) / largest, "high": 100 * _end(joint) / largest}
        ratio = f"{joint.value / base:.2g}" if tilted and base > 0 else ""
        widths = {"base_width": 100 * base / largest, "joint_width": 100 * joint.value / largest}
        rows.append({"name": name, "base": base, "words": words, "ratio": ratio, "title": str(joint), **ends, **widths})
    return render("tokens", rows, tilted, table.warnings)


def _end(estimate: Estimate) -> float:
    """The upper end of an interval of a probability."""
    return min(1.0, estimate.high)


def token_change_table(tokens: Sequence[TokenChange]) -> str:
    """The text coloured by what the tilt changes, and its tokens as a table."""
    return render("changes", [(token, _colour(token.change.value)) for token in tokens], sum(t.change.value for t in tokens))


def _colour(change: float) -> str:
    depth = min(1.0, abs(change) / FULL_COLOUR_NATS) if change == change else 0.0
    return f"color-mix(in srgb, var(--es-{'tilted' if change > 0 else 'truth'}) {55 * depth:.0f}%, transparent)"


def pool_energies(view: CandidatesView) -> str:
    """Histograms of the candidates' energies: unweighted (the base) and by share of the weight (the tilted model)."""
    rows = [row for row in view.rows if math.isfinite(row.energy)]
    energies = [row.energy for row in rows]
    low, high, bins = min(energies), max(energies), BINS
    if high - low < 1e-9:
        low, high, bins = low - 0.5, high + 0.5, 1  # one bin around a single value
    weights = {"base": [float(row.times) for row in rows], "joint": [row.share for row in rows]}
    counts = {name: np.histogram(energies, bins, (low, high), weights=series)[0] for name, series in weights.items()}
    shares = {name: (count / count.sum()).tolist() for name, count in counts.items()}
    edges = np.linspace(low, high, bins + 1).tolist()
    return render("picture", _histograms(edges, shares, "energy after this prompt, nats"), MEANING)


def data_energies(comparison: EnergyComparison) -> str:
    """Histograms of the energies of data, base and tilted model, and their means."""
    means = "; ".join(f"{POPULATIONS[name][0]} {format_estimate(value)}" for name, value in comparison.mean.items())
    picture = _histograms(comparison.histogram.edges, comparison.histogram.shares, "energy, nats")
    return render("picture", picture, f"{MEANING} Means: {means}.")


def _histograms(edges: Sequence[float], shares: Mapping[str, Sequence[float]], label: str) -> "Markup":
    """Steps between neighbouring edges, as densities; the first series is filled."""
    lines = []
    for number, (name, heights) in enumerate(shares.items()):
        words, colour = POPULATIONS[name]
        widths = [right - left for left, right in pairwise(edges)]
        density = [height / width for height, width in zip(heights, widths, strict=True)]
        x = [edges[0], *(edge for edge in edges[1:-1] for _ in range(2)), edges[-1]]
        y = [value for value in density for _ in range(2)]
        lines.append(Line(words, [edges[0], *x, edges[-1]], [0.0, *y, 0.0], colour, filled=number == 0))
    return line_chart(lines, x=label, y="density", from_zero=True)
