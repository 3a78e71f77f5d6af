"""Blocks of `figures.py` on XLNet: exact spans, from `spans.json` of its recipe, and tasks, from `tasks.json`."""

from functools import partial
from pathlib import Path

from figures_cells import kept_tables, unfinished, with_interval

WAYS = ("naive Bayes", "no pretraining", "causal LM", "denoising", "permutation LM", "MiniLM")
TASKS = {  # and what chance has
    "order": "two sentences exchanged or not (50 %)",
    "next": "the next sentence among four (25 %)",
    "cloze": "a word left out among four (25 %)",
    "next by likelihood": "the next sentence, by likelihood without labels (25 %)",
    "cloze by likelihood": "a word left out, by likelihood without labels (25 %)",
}


def span_figures(folder: Path) -> dict[str, object]:
    """The effects of `spans.json`, rounded."""
    return kept_tables(folder / "spans.json", "effects")


def span_table(figures: dict[str, object]) -> str:
    """A line for each process and size of span."""
    head = [
        "strings of",
        "tokens of the span",
        "seeds",
        "entropy",
        "independence costs",
        "denoising",
        "permutation LM",
        "saved",
    ]
    head += ["verdict", "denoising, filled", "filled minus permutation LM"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in figures["effects"]:
        cells = [row["process"], row["span"], row["seeds"], f"{row['entropy'][0]:.3f}", f"{row['independence'][0]:.3f}"]
        values = {name: with_interval(row[name], row["seeds"]) for name in (*head[5:8], *head[9:])}
        cells += [values.get(name, f"*{row['verdict']}*") for name in head[5:]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n" + "\n".join(lines) + "\n" + unfinished(figures["missing"])


def task_figures(folder: Path) -> dict[str, object]:
    """Accuracies and effects of `tasks.json`, rounded."""
    return kept_tables(folder / "tasks.json", "levels", "effects", "spans")


def task_status(figures: dict[str, object]) -> str:
    if figures["missing"]:
        return f"\n**Not complete**: {figures['missing']} rows are not made.\n"
    return "\nComplete: every row of the recipe is made.\n"


def task_levels(figures: dict[str, object]) -> str:
    """A line for each text and task: the accuracy of every way to pretrain that other texts have too, and of the controls."""
    rows = [row for row in figures["levels"] if row["pretrained"] in WAYS]
    if not rows:
        return "\n*Not run.*\n"
    lines = [["text", "task (chance)", *WAYS]]
    for text, task in dict.fromkeys((row["text"], row["task"]) for row in rows):
        found = {row["pretrained"]: row for row in rows if (row["text"], row["task"]) == (text, task)}
        cells = [_level(found[way]) if way in found else "*not run*" for way in WAYS]
        if len(found) > len({"naive Bayes", "MiniLM"} & set(found)):
            lines.append([text, TASKS[task], *cells])
    return _table(lines)


def task_parts(figures: dict[str, object]) -> str:
    """A line for each part left out and each number of updates: the accuracy on every task."""
    rows = [row for row in figures["levels"] if row["pretrained"] not in WAYS]
    if not rows:
        return "\n*Not run.*\n"
    lines = [["pretrained (one seed)", *TASKS.values()]]
    for way in dict.fromkeys(row["pretrained"] for row in rows):
        found = {row["task"]: row for row in rows if row["pretrained"] == way}
        lines.append([way, *(_level(found[task]) if task in found else "*not run*" for task in TASKS)])
    return _table(lines)


def task_effects(figures: dict[str, object]) -> str:
    """A line for each text, task and comparison: points of accuracy gained, and the verdict."""
    if not figures["effects"]:
        return "\n*Not run with two seeds.*\n"
    lines = [["text", "task", "pretrained as", "against", "seeds", "points gained", "verdict"]]
    for row in figures["effects"]:
        gained = with_interval(row["gained"])
        bold = f"**{gained}**" if row["verdict"] != "open" else gained
        word = f"*{row['verdict']}*"
        lines.append([row["text"], row["task"], row["pretrained"], row["against"], str(row["seeds"]), bold, word])
    return _table(lines)


def task_summary(figures: dict[str, object], pretrained: str, against: str, by_likelihood: bool) -> str:
    """The effects of one comparison, on tasks that are fine-tuned or on those that are read by likelihood, in a cell."""
    rows = _compared(figures, pretrained, against, by_likelihood)
    parts = [f"{row['text']}, {row['task']} {with_interval(row['gained'])} ({row['verdict']})" for row in rows]
    return f" points of accuracy, {rows[0]['seeds']} seeds: {'; '.join(parts)} " if parts else " not run "


def task_verdict(figures: dict[str, object], pretrained: str, against: str, by_likelihood: bool) -> str:
    """One verdict over texts and tasks: reproduced where most are and none is refuted."""
    words = [row["verdict"] for row in _compared(figures, pretrained, against, by_likelihood)]
    reproduced, refuted = words.count("reproduced"), len([word for word in words if word.startswith("refuted")])
    if not words:
        return " *open*: not run "
    counts = f"{reproduced} of {len(words)} reproduced, {refuted} refuted"
    if 2 * reproduced > len(words) and not refuted:
        return f" *reproduced*: {counts} "
    return f" *refuted under these conditions*: {counts} " if refuted > reproduced else f" *open*: {counts} "


def _compared(figures: dict[str, object], pretrained: str, against: str, by_likelihood: bool) -> list[dict[str, object]]:
    rows = [row for row in figures["effects"] if (row["pretrained"], row["against"]) == (pretrained, against)]
    return [row for row in rows if row["task"].endswith(" by likelihood") == by_likelihood]


def task_spans(figures: dict[str, object]) -> str:
    """A line for each text and size of span: nats by the three ways to read a span, and what permutation saves."""
    if not figures["spans"]:
        return "\n*Not run.*\n"
    names = ("denoising", "filled", "permutation LM")
    lines = [["text", "tokens of the span", "seeds", "denoising", "denoising, filled", "permutation LM", "saved", "verdict"]]
    for row in figures["spans"]:
        cells = [with_interval(row[name]) for name in (*names, "gain")]
        lines.append([row["text"], str(row["tokens"]), str(row["seeds"]), *cells, f"*{row['verdict']}*"])
    return _table(lines)


def _level(row: dict[str, object]) -> str:
    return with_interval(row["accuracy"])


def _table(lines: list[list[str]]) -> str:
    head, *rows = lines
    return "\n" + "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)) + "\n"


TASK_BLOCKS = {
    "status": task_status,
    "levels": task_levels,
    "parts": task_parts,
    "effects": task_effects,
    "spans": task_spans,
    **{
        f"{name}_{what}{suffix}": partial(block, pretrained="permutation LM", against=against, by_likelihood=by_likelihood)
        for name, against in (("denoising", "denoising"), ("causal", "causal LM"), ("pretraining", "no pretraining"))
        for suffix, by_likelihood in (("", False), ("_by_likelihood", True))
        for what, block in (("gained", task_summary), ("verdict", task_verdict))
    },
}
