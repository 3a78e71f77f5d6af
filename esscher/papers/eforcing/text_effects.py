"""What objectives save of likelihood's bits on texts, over seeds, the verdicts, one for each text and model, and one for each
objective over all texts, and the figure of validation losses."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from esscher.core.estimate import Estimate
from esscher.objectives.config import EForcingConfig
from esscher.papers.eforcing.laboratory_tables import conclusion, verdict
from esscher.papers.study import Row, Rows, means_over_seeds
from esscher.reports.plots import BASE, INK, TILTED, TRUTH, blank_figure
from esscher.workflow.config.train import TrainRun

PLAIN, FORCED = "likelihood", "E-Forcing"
ONCE = f"{FORCED}, tokens counted once"
GROUP = ("text", "model")


def form_of(run: TrainRun) -> str | None:
    """The form of E-Forcing that a run has, as published or with tokens counted once; None: it has another objective."""
    if not isinstance(run.objective, EForcingConfig):
        return None
    return FORCED if run.objective.counts == "again" else ONCE


def strength_of(run: TrainRun) -> float | None:
    """The sum of E-Forcing's weights over infinitely many positions; None of another objective."""
    objective = run.objective
    if not isinstance(objective, EForcingConfig) or objective.decay == 1:
        return None
    return round(objective.weight / (1 - objective.decay), 6)


def effects(rows: Rows) -> list[Row]:
    """For each text and model what it saves over seeds, with the verdict; a single seed has no verdict.

    `saved` is bits per token of the test text with the weights of the lowest validation loss; `rise saved` is how many nats the
    validation loss rises less afterwards; `of likelihood` is in how many seeds the lowest loss came before E-Forcing began."""
    likelihood = {(row["text"], row["seed"]): row for row in rows if row["model"] == PLAIN}
    compared = []
    for row in rows:
        plain = likelihood.get((row["text"], row["seed"]))
        if row["model"] != PLAIN and plain is not None:
            columns = {"likelihood": plain["perplexity"], "likelihood rise": _exact(plain["late rise"])}
            rise = _exact(plain["late rise"] - row["late rise"])
            steps = {"likelihood at step": plain["at step"], "of steps": plain["steps"]}
            compared.append({**row, **columns, **steps, "rise saved": rise})
    table = []
    for means in means_over_seeds(compared, GROUP, ("likelihood", "likelihood rise", "perplexity", "saved", "rise saved")):
        of_model = [row for row in compared if all(row[name] == means[name] for name in GROUP)]
        foreign = sum(not row["own"] for row in of_model)
        steps = {name: [row[name] for row in of_model] for name in ("likelihood at step", "of steps", "at step")}
        chosen = {name: of_model[0][name] for name in ("parameters", "rate", "strength")}
        table.append({**means, **chosen, **steps, "of likelihood": foreign, "verdict": verdict(means["saved"])})
    return table


def averages(rows: Rows) -> list[Row]:
    """What each model saves on average over texts, over seeds: the replicates are the averages of the seeds."""
    groups: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row["saved"] is not None:
            groups.setdefault((row["model"], row["seed"]), []).append(row["saved"].value)
    most: dict[str, int] = {}
    for (model, _), values in groups.items():
        most[model] = max(most.get(model, 0), len(values))
    table = [
        {"model": model, "seed": seed, "saved": Estimate.exact(statistics.fmean(values), unit="bits per token")}
        for (model, seed), values in groups.items()
        if len(values) == most[model]
    ]
    return [{**row, "texts": most[row["model"]]} for row in means_over_seeds(table, ("model",), ("saved",))]


def _exact(nats: float) -> Estimate:
    return Estimate.exact(nats, unit="nats per token")


def verdicts(effect_rows: Rows) -> list[Row]:
    """How often each model gains, loses or neither, over texts, and what this says of it."""
    table = []
    for model in dict.fromkeys(row["model"] for row in effect_rows):
        words: Sequence[str] = [row["verdict"] for row in effect_rows if row["model"] == model]
        counts = {word: words.count(word) for word in ("gains", "open", "loses")}
        table.append({"model": model, "conditions": len(words), **counts, "verdict": conclusion(**counts)})
    return table


COLOURS = {PLAIN: BASE, FORCED: TILTED, ONCE: TRUTH}
Histories = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]


def loss_panels(histories: Histories, *, columns: int) -> Any:
    """A panel for each text with its validation losses by epoch: for each model the mean over seeds, and from the least to the
    largest seed as a band; losses far above the lowest are cut off."""
    rows = -(-len(histories) // columns)
    figure = blank_figure(0.6 + 2.7 * min(columns, len(histories)), 0.8 + 2.3 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel in axes[len(histories) :]:
        panel.set_axis_off()
    for panel, (title, models) in zip(axes, histories.items(), strict=False):
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("epoch", fontsize=8)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(colors=INK, labelsize=8)
        lowest = min(min(line) for lines in models.values() for line in lines)
        for model, lines in models.items():
            by_epoch = list(zip(*lines, strict=False))
            epochs, colour = range(1, len(by_epoch) + 1), COLOURS.get(model, INK)
            panel.plot(epochs, [statistics.fmean(losses) for losses in by_epoch], color=colour, linewidth=1.4, label=model)
            panel.fill_between(epochs, [*map(min, by_epoch)], [*map(max, by_epoch)], color=colour, alpha=0.15, linewidth=0)
        panel.set_ylim(lowest - 0.03, lowest + 0.5)
    for first in range(0, rows * columns, columns):
        axes[first].set_ylabel("validation, nats per token", fontsize=8)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure
