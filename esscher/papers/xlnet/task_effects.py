"""What each way to pretrain is worth for tasks of few labels: differences of test accuracies, in per cent, within a seed, their
means over seeds with verdicts, and the figure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from esscher.core.estimate import Estimate
from esscher.core.storage import write_file
from esscher.papers.study import Row, Rows, StudyContext, means_over_seeds, verdict_of
from esscher.papers.xlnet.likelihood_choices import CHOICES
from esscher.papers.xlnet.order_tasks import TASKS
from esscher.papers.xlnet.span_scores import DENOISING, PERMUTED
from esscher.reports.plots import BASE, INK, TILTED, TRUTH, estimate_bars, save_figure

BY_LIKELIHOOD = " by likelihood"  # of a task whose options the pretrained network ranks without labels
MEASURES = (*TASKS, *(f"{task}{BY_LIKELIHOOD}" for task in CHOICES))
CAUSAL, NO_PRETRAINING, NAIVE, MINILM = "causal LM", "no pretraining", "naive Bayes", "MiniLM"
COMPARED = (
    *((way, NO_PRETRAINING) for way in (PERMUTED, DENOISING, CAUSAL)), (PERMUTED, DENOISING), (PERMUTED, CAUSAL),
)  # fmt: skip
COLOURS = {NAIVE: "#c9d1da", NO_PRETRAINING: BASE, CAUSAL: INK, DENOISING: TILTED, PERMUTED: TRUTH, MINILM: "#d9a441"}
PICTURE = "xlnet_tasks.png"


def effects(rows: Rows) -> list[Row]:
    """For each text and task the gain in accuracy of one way to pretrain over another, over seeds, and the verdict on the claim
    that there is one; comparisons of fewer than two seeds are left out."""
    table = []
    for text, task in product(dict.fromkeys(row["text"] for row in rows), MEASURES):
        accuracy = {(row["pretrained"], row["seed"]): _accuracy(row, task) for row in rows if row["text"] == text}
        for way, other in COMPARED:
            pairs = list(_pairs(accuracy, way, other))
            for means in means_over_seeds(pairs, ("pretrained", "against")):
                table.append({"text": text, "task": task, **means, "verdict": verdict_of(means["gained"])})
    return table


def _pairs(accuracy: Mapping[tuple[str, int], Estimate | None], way: str, other: str) -> Iterator[Row]:
    """The gain of one way over the other in each seed that has both."""
    for (name, seed), ours in accuracy.items():
        theirs = accuracy.get((other, seed))
        if name == way and ours is not None and theirs is not None:
            gained = Estimate.exact(ours.value - theirs.value, unit="points")
            yield {"pretrained": way, "against": other, "seed": seed, "gained": gained}


def levels(rows: Rows) -> list[Row]:
    """The accuracy of each way and control on each task: over seeds, or of one seed with the interval for other examples."""
    table = []
    for text, task in product(dict.fromkeys(row["text"] for row in rows), MEASURES):
        of_task = [{**row, "accuracy": _accuracy(row, task)} for row in rows if row["text"] == text]
        of_task = [row for row in of_task if row["accuracy"] is not None]
        means = {row["pretrained"]: row for row in means_over_seeds(of_task, ("pretrained",), ("accuracy",))}
        for name in dict.fromkeys(row["pretrained"] for row in of_task):
            single = next(row for row in of_task if row["pretrained"] == name)
            row = means.get(name, {"seeds": 1, "accuracy": single["accuracy"]})
            table.append({"text": text, "task": task, "pretrained": name, "seeds": row["seeds"], "accuracy": row["accuracy"]})
    return table


def _accuracy(row: Mapping[str, object], task: str) -> Estimate | None:
    """The accuracy in percent."""
    value = row.get(f"{task}, accuracy")
    return value.map(lambda share: 100 * share, unit="%") if isinstance(value, Estimate) else None


def keep(context: StudyContext, rows: Sequence[Row], spans: Sequence[Row], missing: int) -> None:
    """Write what there is to `tasks.json`, with spans of text over seeds, and the figure of the texts whose ways have all been
    made once."""
    by_level = levels(rows)
    over_spans = [{**row, "verdict": verdict_of(row["gain"])} for row in means_over_seeds(spans, ("text", "tokens"))]
    content = {"missing": missing, "rows": rows, "levels": by_level, "effects": effects(rows), "spans": over_spans}
    write_file(context.out / "tasks.json", json.dumps(content, indent=1, default=Estimate.to_dict).encode())
    values = {(row["text"], row["task"], row["pretrained"]): row["accuracy"] for row in by_level}
    groups = [
        (text, task)
        for text, task in dict.fromkeys((text, task) for text, task, _ in values)
        if all((text, task, way) in values for way in (NO_PRETRAINING, CAUSAL, DENOISING, PERMUTED))
    ]
    if groups:
        shown = [name for name in COLOURS if any((*group, name) in values for group in groups)]
        bars = {name: [values.get((*group, name)) for group in groups] for name in shown}
        names = [f"{text}, {task}" for text, task in groups]
        save_figure(estimate_bars(names, bars, label="test accuracy, %", colours=COLOURS), context.out / PICTURE)
