"""Views as HTML for the page: every text of a model or a person is escaped, by the template and once more for the page's own.

gradio fills HTML into a template of its own, in which braces, dollars and at-signs mean something; here they are entities.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from esscher.estimators.energy_histograms import EnergyComparison
from esscher.estimators.next_token import NextTokens
from esscher.explorer.views import TokenChange, View
from esscher.reports.document import svg
from esscher.reports.plots import step_histograms

if TYPE_CHECKING:
    from jinja2 import Template

FULL = 2.0  # nats at which a colour is deepest
UP, DOWN = "31, 95, 168", "194, 65, 12"
MEANING = "Energies in nats: a tilted model that is like the data has the data's energies; the base's lie higher."


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader

    return Environment(loader=PackageLoader("esscher.explorer", "."), autoescape=True).get_template("parts.html")


def part(name: str, *values: Any) -> str:
    """The part of the template of that name, filled."""
    html = str(getattr(_template().module, name)(*values))
    return html.replace("{", "&#123;").replace("}", "&#125;").replace("$", "&#36;").replace("@", "&#64;")


def verdict(view: View, *, tilted: bool) -> str:
    """log Z with its interval, and whether to believe it."""
    found = view.pool["log_z"]
    told = f"{found}" if found is not None else "not known of one cloud of particles, whose draws depend on each other"
    return part("verdict", view, tilted, told)


def tokens(names: Sequence[str], found: NextTokens) -> str:
    """The table of base against joint."""
    most = max(max(row.base.value, row.joint.value) for row in found.rows)
    return part("tokens", [(name, row, most) for name, row in zip(names, found.rows, strict=True)], found.warnings)


def changes(found: Sequence[TokenChange]) -> str:
    """The text in colours, and its tokens as a table."""
    rows = [
        {
            "text": one.text,
            "colour": _colour(one.change.value),
            "title": f"{one.text!r}: {one.change.value:+.3g} nats",
            "base": one.base.value,
            "change": one.change.value,
            "low": one.change.low,
            "high": one.change.high,
            "foreseen": one.foreseen,
        }
        for one in found
    ]
    return part("changes", rows, sum(one.change.value for one in found))


def _colour(change: float) -> str:
    depth = min(1.0, abs(change) / FULL) if change == change else 0.0
    return f"rgba({UP if change > 0 else DOWN}, {0.55 * depth:.2f})"


def pool_energies(view: View) -> str:
    """Energies of the candidates, each by itself (the base) and by its share (the joint)."""
    known = [one for one in view.rows if abs(one.energy) < float("inf")]
    edges, shares = _binned([one.energy for one in known], {
        "base": [float(one.times) for one in known], "joint": [one.share for one in known],
    })  # fmt: skip
    return part("picture", svg(step_histograms(edges, shares, label="energy after this prompt (nats)")), MEANING)


def data_energies(found: EnergyComparison) -> str:
    """Histograms of data, base and joint, and their means."""
    picture = svg(step_histograms(found.histogram.edges, found.histogram.shares, label="energy (nats)"))
    means = "; ".join(f"{name} {value}" for name, value in found.mean.items())
    return part("picture", picture, f"{MEANING} Means: {means}.")


def _binned(
    values: Sequence[float], weights: Mapping[str, Sequence[float]], bins: int = 30
) -> tuple[list[float], dict[str, list[float]]]:
    """Shares of each series in bins of equal width; a single value has one bin around it."""
    low, high = min(values), max(values)
    if high - low < 1e-9:
        low, high, bins = low - 0.5, high + 0.5, 1
    width = (high - low) / bins
    shares = {name: [0.0] * bins for name in weights}
    for place, value in enumerate(values):
        for name, of in weights.items():
            shares[name][min(bins - 1, int((value - low) / width))] += of[place]
    total = {name: sum(found) for name, found in shares.items()}
    edges = [low + width * edge for edge in range(bins + 1)]
    return edges, {name: [share / total[name] for share in found] for name, found in shares.items()}
