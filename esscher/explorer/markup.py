"""Views as HTML. The template escapes all text; braces, dollar and at-signs, which have a meaning in gradio, are entities."""

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from esscher.estimators.continuations import NextTokens
from esscher.estimators.populations import EnergyComparison
from esscher.explorer.views import CandidatesView, TokenChange
from esscher.reports.document import figure_svg
from esscher.reports.plots import step_histograms

if TYPE_CHECKING:
    from jinja2 import Template

BINS = 30  # of a histogram
FULL_COLOUR_NATS = 2.0  # change at which the colour is deepest
UP, DOWN = "31, 95, 168", "194, 65, 12"
MEANING = "Energies in nats: a tilted model that fits the data has the energies of the data; those of the base are higher."


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader

    return Environment(loader=PackageLoader("esscher.explorer", "."), autoescape=True).get_template("parts.html")


def render(name: str, *values: Any) -> str:
    """The macro of `parts.html` of that name, filled."""
    html = str(getattr(_template().module, name)(*values))
    return html.replace("{", "&#123;").replace("}", "&#125;").replace("$", "&#36;").replace("@", "&#64;")


def verdict(view: CandidatesView, *, tilted: bool) -> str:
    """log Z with its interval, and whether the candidates suffice to estimate it."""
    log_z = view.pool["log_z"]
    shown = str(log_z) if log_z is not None else "unknown: the particles of one run are not independent"
    return render("verdict", view, tilted, shown)


def next_token_table(names: Sequence[str], table: NextTokens) -> str:
    """Probabilities of the next token under base and tilted model."""
    largest = max(max(row.base.value, row.joint.value) for row in table.rows)
    return render("tokens", [(name, row, largest) for name, row in zip(names, table.rows, strict=True)], table.warnings)


def token_change_table(tokens: Sequence[TokenChange]) -> str:
    """The text coloured by what the tilt changes, and its tokens as a table."""
    return render("changes", [(token, _colour(token.change.value)) for token in tokens], sum(t.change.value for t in tokens))


def _colour(change: float) -> str:
    depth = min(1.0, abs(change) / FULL_COLOUR_NATS) if change == change else 0.0
    return f"rgba({UP if change > 0 else DOWN}, {0.55 * depth:.2f})"


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
    return render("picture", figure_svg(step_histograms(edges, shares, label="energy after this prompt (nats)")), MEANING)


def data_energies(comparison: EnergyComparison) -> str:
    """Histograms of the energies of data, base and tilted model, and their means."""
    edges, shares = comparison.histogram.edges, comparison.histogram.shares
    means = "; ".join(f"{name} {value}" for name, value in comparison.mean.items())
    picture = figure_svg(step_histograms(edges, shares, label="energy (nats)"))
    return render("picture", picture, f"{MEANING} Means: {means}.")
