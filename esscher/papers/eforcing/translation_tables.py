"""Tables of the translation recipe beside BLEU: the settings that were chosen, learning curves, other metrics, choosing among
own draws, and the verdicts on the paper's claims."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.reading import read_json_lines
from esscher.metrics.metric import get_metric
from esscher.papers.eforcing.choosing import SELECTION
from esscher.papers.study import (
    ROW_FILE,
    Row,
    Rows,
    StudyContext,
    cached_json,
    means_over_seeds,
    validation_history,
    verdict_of,
)
from esscher.reports.plots import curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = ("chrf", "ter", "rouge1", "rouge2", "rougeL", "meteor")
LOWER_IS_BETTER = ("ter",)
ONE_DRAW = "one draw"
Systems = Sequence[tuple[str, int]]  # names and seeds


def setting_rows(context: StudyContext, study: str, settings: Sequence[str]) -> list[Row]:
    """What was tried of each setting, with its lowest validation loss, and which was chosen."""
    rows = []
    for what in settings:
        file = context.run_dir(study, what, SELECTION) / ROW_FILE
        content: Row = cached_json(file, dict) if file.exists() else {"tried": [], "value": None}
        rows += [
            {"pairs": study, "setting": what, **tried, "chosen": tried["value"] == content["value"]}
            for tried in content["tried"]
        ]
    return rows


def curve_rows(context: StudyContext, study: str, names: Systems) -> list[Row]:
    """Where each system had its lowest validation loss, how far the loss fell in the last quarter of the evaluations before it
    came there, and how far it rose afterwards."""
    rows = []
    for system, seed in names:
        losses = [loss for _, loss in validation_history(context.run_dir(study, system, seed))]
        least = min(losses)
        numbers = {"validation": least, "fell": max(0.0, losses[3 * len(losses) // 4 - 1] - least), "rose": losses[-1] - least}
        about = {
            "pairs": study,
            "system": system,
            "seed": seed,
            "of": len(losses),
            "least at": losses.index(least) + 1,
        }
        rows.append({**about, **{name: Estimate.exact(value, unit="nats") for name, value in numbers.items()}})
    return rows


def loss_curves(context: StudyContext, study: str, names: Systems) -> "Figure":
    """The validation loss of each system by update (solid), and the negative log-likelihood of training batches (dashed), each
    the mean over seeds, as in figure 1 of the paper."""
    entries: dict[tuple[str, str], dict[int, list[float]]] = {}
    for column in ("validation", "nll"):
        for system, seed in names:
            points = entries.setdefault((system, column), {})
            for entry in read_json_lines(context.run_dir(study, system, seed) / "history.jsonl"):
                if column in entry:
                    points.setdefault(entry["step"], []).append(entry[column])
    lines = {
        system + (", training" if column == "nll" else ""): ([*points], [fmean(losses) for losses in points.values()])
        for (system, column), points in entries.items()
    }
    return curves(lines, x="updates", y="nats a token")


def metric_rows(
    study: str,
    names: Systems,
    baseline_of: Callable[[str], str],
    decoded: Callable[[str, int], list[str]],
    references: Sequence[str],
) -> list[Row]:
    """Metrics other than BLEU of every system and seed, and what is gained against its baseline, if it has another; no row
    for a metric that is not installed, such as METEOR without its dictionary."""
    rows: list[Row] = []
    for metric in METRICS:
        try:
            values = {
                name: get_metric(metric).score(decoded(*name), references, rng=SeededRng(0).stream(metric)) for name in names
            }
        except ImportError:
            continue
        for (system, seed), value in values.items():
            other = baseline_of(system)
            sign = -1 if metric in LOWER_IS_BETTER else 1
            gained = None if other == system else Estimate.exact(sign * (value.value - values[other, seed].value))
            rows.append({"pairs": study, "metric": metric, "system": system, "seed": seed, "value": value, "gained": gained})
    return rows


def own_energy_rows(rows: Rows) -> list[Row]:
    """What choosing among own draws by the own energy gains over one draw of the same system and seed, in BLEU."""
    drawn = {(row["pairs"], row["system"], row["seed"]): row["BLEU"].value for row in rows if row["decoded"] == ONE_DRAW}
    table = []
    for row in rows:
        about = {name: row[name] for name in ("pairs", "system", "seed", "decoded")}
        if "own energy" in row["decoded"]:
            gained = row["BLEU"].value - drawn[row["pairs"], row["system"], row["seed"]]
            table.append({**about, "BLEU": row["BLEU"], "gained": Estimate.exact(gained, unit="BLEU")})
    return table


def verdict_rows(tables: Mapping[str, tuple[Rows, str, float]]) -> list[Row]:
    """For each claim the rows over seeds that speak of it: `reproduced` if the interval of a column lies above what would be
    without effect, `refuted under these conditions` if below, `open` otherwise. The tables are given with both."""
    verdicts = []
    for claim, (rows, column, none) in tables.items():
        for row in rows:
            value = row.get(column)
            if isinstance(value, Estimate):
                about = {name: row[name] for name in ("pairs", "system", "decoded", "words", "seeds") if name in row}
                verdicts.append({"claim": claim, **about, "effect": value, "verdict": verdict_of(value, none)})
    return verdicts


def over_pairs(rows: Rows, by: Sequence[str], column: str, systems: Sequence[str]) -> list[Row]:
    """The mean of a column over several systems within a seed, then over seeds: one effect for all of them."""
    groups: dict[tuple[object, ...], list[float]] = {}
    for row in rows:
        if row["system"] in systems:
            groups.setdefault(tuple(row[name] for name in (*by, "seed")), []).append(row[column].value)
    within = [
        {
            **dict(zip((*by, "seed"), key, strict=True)),
            "system": "mean of both",
            column: Estimate.exact(sum(values) / len(values)),
        }
        for key, values in groups.items()
        if len(values) == len(systems)
    ]
    return means_over_seeds(within, (*by, "system"), (column,))
