"""Tables and the figure of the exact laboratory of E-Forcing, from its rows: what each objective saves of likelihood's
divergences, seed by seed, with intervals over seeds, in each condition and averaged over conditions, and the verdicts."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch

from esscher.core.estimate import Estimate
from esscher.papers.eforcing.prefix_tree import NETWORKS
from esscher.papers.eforcing.tree_training import LIKELIHOOD, METHODS, ONCE, PUBLISHED, SCHEDULED, SMOOTHING, Method
from esscher.papers.study import OPEN, REFUTED, REPRODUCED, Row, Rows, mean_estimate, table_rows, verdict_of
from esscher.reports.plots import BASE, INK, TILTED, TRUTH, ColouredSeries, estimate_panels

QUANTITIES = {"kl": "KL", "prefix_kl": "prefix KL", "own_kl": "after own prefixes"}


def _by_condition(rows: Rows) -> dict[tuple[str, str, int], dict[str, dict[int, Mapping[str, Any]]]]:
    """The rows by process, network and number of strings, then by method, then by seed."""
    groups: dict[tuple[str, str, int], dict[str, dict[int, Mapping[str, Any]]]] = {}
    for row in sorted(rows, key=lambda row: (row["process"] != "motif", row["network"], row["strings"])):
        methods = groups.setdefault((row["process"], row["network"], row["strings"]), {})
        methods.setdefault(row["method"], {})[row["seed"]] = row
    return groups


def saved_percent(
    likelihood: Mapping[int, Mapping[str, Any]], other: Mapping[int, Mapping[str, Any]], quantity: str
) -> Estimate | None:
    """How much of likelihood's divergence an objective saves, in per cent, over the seeds that both have."""
    shared = [seed for seed in likelihood if seed in other]
    if len(shared) < 2:
        return None
    values = [100 * (1 - other[seed][quantity] / likelihood[seed][quantity]) for seed in shared]
    return mean_estimate(torch.tensor(values, dtype=torch.float64), method=f"differences within {len(shared)} seeds", unit="%")


def effects(rows: Rows) -> list[Row]:
    """For each condition and objective the divergence of likelihood, what the objective saves of each, and the verdict."""
    table = []
    for (process, network, strings), methods in _by_condition(rows).items():
        likelihood = methods.get(str(LIKELIHOOD), {})
        for name, seeds in methods.items():
            saved = {label: saved_percent(likelihood, seeds, key) for key, label in QUANTITIES.items()}
            if name == str(LIKELIHOOD) or saved["KL"] is None:
                continue
            nats = [row["kl"] for seed, row in likelihood.items() if seed in seeds]
            first = {"process": process, "network": network, "strings": strings, "method": name, "seeds": len(nats)}
            table.append({**first, "likelihood": math.fsum(nats) / len(nats), **saved, "verdict": verdict(saved["KL"])})
    return table


def verdict(saved: Estimate) -> str:
    """Whether an effect is above, below or not told from 0."""
    return "gains" if saved.low > 0 else "loses" if saved.high < 0 else "open"


def count_verdicts(effect_rows: Rows) -> list[Row]:
    """How often each objective gains, loses or neither, over conditions, and what this says of it."""
    table = []
    for method in map(str, METHODS[1:]):
        words = [row["verdict"] for row in effect_rows if row["method"] == method]
        if words:
            counts = {word: words.count(word) for word in ("gains", "open", "loses")}
            table.append({"method": method, "conditions": len(words), **counts, "verdict": conclusion(**counts)})
    return table


def conclusion(*, gains: int, open: int, loses: int) -> str:
    """*Reproduced* if an objective gains in most conditions and loses in at most a tenth; *refuted under these conditions* if
    it loses more often than it gains; otherwise *open*. Without effect, a condition is a gain with probability 2.5 %."""
    total = gains + open + loses
    if 2 * gains > total and 10 * loses <= total:
        return REPRODUCED
    return REFUTED if loses > gains else OPEN


ALL, OWN_ENERGY = "all conditions", "own energy"


def averages(rows: Rows) -> list[Row]:
    """What each objective saves on average over all conditions, those of each process, and those of each number of strings:
    in a seed the geometric mean of its divergences over likelihood's. `own energy` is what the model's own energy saves of
    its KL, on strings of one length."""
    table, groups = [], _by_condition(rows)
    names = dict.fromkeys(process for process, _, _ in groups)
    names |= dict.fromkeys(f"{size:,} strings" for size in sorted({size for _, _, size in groups}))
    for over in (ALL, *names):
        inside = [methods for (process, _, size), methods in groups.items() if over in (ALL, process, f"{size:,} strings")]
        for name in map(str, METHODS):
            pairs = [(methods[str(LIKELIHOOD)], methods[name]) for methods in inside if {str(LIKELIHOOD), name} <= set(methods)]
            seeds = sorted(set.intersection(*(one.keys() & other.keys() for one, other in pairs))) if pairs else []
            if len(seeds) < 2:
                continue
            saved = {
                label: _mean_saved([[(other[seed][key], one[seed][key]) for one, other in pairs] for seed in seeds])
                for key, label in QUANTITIES.items()
            }
            saved[OWN_ENERGY] = _mean_saved(
                [[(other[seed]["tilted_kl"], other[seed]["kl"]) for _, other in pairs] for seed in seeds]
            )
            about = {"over": over, "method": name, "conditions": len(pairs), "seeds": len(seeds)}
            table.append({**about, **saved, "verdict": verdict_of(saved["KL"])})
    return table


def _mean_saved(ratios: Sequence[Sequence[tuple[float, float]]]) -> Estimate:
    """Per cent saved: for each seed the geometric mean of the ratios, then the mean over seeds."""
    logs = torch.tensor([[math.log(other / one) for other, one in seed] for seed in ratios], dtype=torch.float64)
    return mean_estimate(100 * (1 - logs.mean(1).exp()), method=f"averages of {len(ratios)} seeds", unit="%")


def chosen(rows: Rows) -> list[Row]:
    """The settings of each condition and objective."""
    columns = ("process", "network", "strings", "method", "learning rate", "strength", "begin")
    unique = {tuple(row[name] for name in columns): None for row in rows if row["method"] != str(LIKELIHOOD)}
    return table_rows(columns, *unique)


STYLES = {
    str(SMOOTHING): INK,
    str(SCHEDULED): "#7c3aed",
    str(PUBLISHED): TILTED,
    str(ONCE): TRUTH,
    str(Method("E-Forcing", "again", "drawn")): f"{TILTED} --",
    str(Method("E-Forcing", "once", "drawn")): f"{TRUTH} --",
    str(Method("E-Forcing", "again", "drawn, published estimator")): f"{TILTED} :",
}
SHOWN = (-45.0, 40.0)  # of the axes of per cent; intervals are cut there  # fmt: skip


def panels(rows: Rows) -> Any:
    """A column for each process and network: KL of likelihood, and what each objective saves of KL and of prefix KL."""
    groups, grid = _by_condition(rows), {}
    for process, network in product(dict.fromkeys(process for process, _, _ in groups), NETWORKS):
        sizes = {size: methods for (*where, size), methods in groups.items() if where == [process, network]}
        column: dict[str, dict[str, ColouredSeries]] = {"KL, nats": {}, "KL saved, %": {}, "prefix KL saved, %": {}}
        for name, colour in {str(LIKELIHOOD): BASE, **STYLES}.items():
            for label, quantity in (("KL, nats", "kl"), ("KL saved, %", "kl"), ("prefix KL saved, %", "prefix_kl")):
                points = {}
                for size, methods in sizes.items():
                    likelihood, seeds = methods.get(str(LIKELIHOOD), {}), methods.get(name, {})
                    saved = saved_percent(likelihood, seeds, quantity)
                    if saved is not None:
                        nats = torch.tensor([row["kl"] for row in seeds.values()], dtype=torch.float64)
                        points[size] = mean_estimate(nats, method="seeds") if label == "KL, nats" else saved
                if points and not (label != "KL, nats" and name == str(LIKELIHOOD)):
                    column[label][name] = (colour, list(points), list(points.values()))
        grid[f"{process}, {network}"] = column
    figure = estimate_panels(grid, x="strings to learn from")
    for panel in figure.axes[len(grid) :]:
        panel.set_ylim(*SHOWN)
    return figure
