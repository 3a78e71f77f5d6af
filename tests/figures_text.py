"""Blocks of `figures.py` on E-Forcing of texts and backbones: what it saves of likelihood's bits, over seeds."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

FORCED, ONCE = "E-Forcing", "E-Forcing, tokens counted once"
FORMS = {FORCED: "as published", ONCE: "counted once"}
LAYERS = "two tied layers"
INTERVALS = ("likelihood", "likelihood rise", "perplexity", "saved", "rise saved")
Figures = Mapping[str, object]


def text_figures(folder: Path) -> dict[str, object]:
    """The effects over seeds, the verdicts, the perplexity of every row, and how many rows are not made."""
    result = json.loads((folder / "effects.json").read_text())
    effects = [
        row | {name: [round(row[name][end], 4) for end in ("value", "low", "high")] for name in INTERVALS}
        for row in result["effects"]
    ]
    rows = [
        {"text": row["text"], "model": row["model"], "seed": row["seed"], "perplexity": round(row["perplexity"]["value"], 2)}
        for row in result["rows"]
    ]
    averages = [
        {**row, "saved": [round(row["saved"][end], 4) for end in ("value", "low", "high")]} for row in result["averages"]
    ]
    tables = {"averages": averages, "effects": effects, "rows": rows}
    return {"missing": result["missing"], "verdicts": result["verdicts"], **tables}


def status(figures: Figures) -> str:
    """Whether all rows are made; what is shown has all its seeds."""
    seeds = sorted({row["seeds"] for row in figures["effects"]})
    made = f"{len(figures['rows'])} rows, {' or '.join(map(str, seeds)) or 'one'} seeds each"
    if figures["missing"]:
        missing = f"{figures['missing']} rows are not made or belong to tables that are not complete"
        return f"\n**Not complete**: {made}; {missing}, and until then the verdict on each form is *open*.\n"
    return f"\nComplete: {made}.\n"


def effects(figures: Figures, first: tuple[str, ...]) -> str:
    """A line for each text or network and objective, without the study of starts, and a last one for each objective with the
    mean over texts or networks. `first` heads the columns of its name."""
    head = [
        *first, "objective", "seeds", "likelihood", "with it", "bits saved", "late rise of likelihood", "saved of it",
        "lowest loss", "weights of likelihood", "verdict",
    ]  # fmt: skip
    lines = []
    for row in figures["effects"]:
        if " after " in row["model"] or row["model"] == LAYERS:
            continue
        text, _, rest = row["text"].partition(", ")
        name = [text, rest or "nothing"] if len(first) == 2 else [rest]
        levels = [f"{row[name][0]:.2f}" for name in ("likelihood", "perplexity")]
        rises = [f"{row['likelihood rise'][0]:.3f}", in_words(row["rise saved"], 3)]
        seeds = row["seeds"]
        last = [_when(row), f"{row['of likelihood']} of {seeds}", row["verdict"]]
        lines.append([*name, row["model"], seeds, *levels, in_words(row["saved"]), *rises, *last])
    for row in figures["averages"]:
        if row["model"] in FORMS:
            name = [f"mean of {row['texts']}", *[""] * (len(first) - 1), row["model"], row["seeds"]]
            lines.append([*name, "", "", in_words(row["saved"]), *[""] * 5])
    return _table(head, lines)


def _when(row: Mapping[str, object]) -> str:
    """When likelihood has its lowest validation loss, as a share of its updates, in every seed."""
    shares = [100 * step / last for step, last in zip(row["likelihood at step"], row["of steps"], strict=True)]
    return f"{min(shares):.0f} to {max(shares):.0f} %"


def settings(figures: Figures) -> str:
    """A line for each network: its size and the learning rate that was chosen."""
    chosen = {row["text"].partition(", ")[2]: row for row in figures["effects"]}
    return _table(
        ["network", "parameters", "learning rate"],
        [[name, f"{row['parameters']:,}", f"{row['rate']:g}"] for name, row in chosen.items()],
    )


def strengths(figures: Figures) -> str:
    """The strengths that were chosen, in a sentence."""
    chosen = {row["model"]: row["strength"] for row in figures["effects"] if row["model"] in FORMS}
    return "".join(f" {strength:g} {FORMS[form]}{',' if form == FORCED else ''}" for form, strength in chosen.items()) + " "


def starts(figures: Figures, epochs: int = 3) -> str:
    """A line for each number of epochs of likelihood before E-Forcing, with the start of the other rows among them."""
    by_start: dict[int, dict[str, Mapping[str, object]]] = {}
    for row in figures["effects"]:
        form, _, after = row["model"].partition(" after ")
        if form in FORMS and (after or row["text"] == "a novel"):
            by_start.setdefault(int(after.split()[0]) if after else epochs, {})[form] = row
    columns = [f"{what}, {form}" for form in FORMS.values() for what in ("bits saved", "saved of the late rise")]
    lines = []
    for start, forms in sorted(by_start.items()):
        cells = [cell for form in FORMS for cell in _effect(forms.get(form))]
        lines.append([start, *cells])
    if len(lines) == 1:
        lines.append(["1 and 8", *["*not run*"] * 4])
    return _table(["epochs before", *columns], lines)


def _effect(row: Mapping[str, object] | None) -> list[str]:
    return ["*not run*"] * 2 if row is None else [in_words(row["saved"]), in_words(row["rise saved"], 3)]


def summary(figures: Figures, model: str) -> str:
    """In how many conditions an objective gains and loses, and what it saves in those with nothing against overfitting."""
    rows = [row for row in figures["effects"] if row["model"] == model]
    if not rows:
        return " no text has two seeds yet "
    plain = [row for row in rows if ", " not in row["text"]]
    mean = f"; {_mean(figures, model)}" if len(rows) > 1 else ""
    parts = "; ".join(f"{row['text']} {in_words(row['saved'])} bits ({percent(row)})" for row in plain)
    return f" {parts}{mean}; {rows[0]['seeds']} seeds "


def backbone_summary(figures: Figures) -> str:
    """In how many networks each form gains and loses."""
    parts = []
    for form, words in FORMS.items():
        rows = [row for row in figures["effects"] if row["model"] == form]
        gaining = ", ".join(row["text"].partition(", ")[2] for row in rows if row["verdict"] == "gains")
        if rows:
            parts.append(
                f"{words}, {_mean(figures, form)}{f' (gains: {gaining})' if gaining else ''}; {rows[0]['seeds']} seeds"
            )
    return f" a novel, {'; '.join(parts)} "


def _mean(figures: Figures, model: str) -> str:
    """The mean over all conditions, and in how many of them an objective gains and loses."""
    words = [row["verdict"] for row in figures["effects"] if row["model"] == model]
    means = [in_words(row["saved"]) for row in figures["averages"] if row["model"] == model]
    mean = f"{means[0]} in the mean of {len(words)} conditions, of which" if means else f"of {len(words)} conditions"
    return f"{mean} it gains in {words.count('gains')} and loses in {words.count('loses')}"


def percent(row: Mapping[str, object]) -> str:
    """What bits saved are of the perplexity."""
    return f"{100 * (1 - 2 ** -row['saved'][0]):.1f} %"


def rise(figures: Figures) -> str:
    """What each form saves of the late rise of the validation loss, with nothing against overfitting, in a cell of a table."""
    parts = [
        f"{row['text']}, {FORMS[row['model']]}: {in_words(row['rise saved'], 3)} of {row['likelihood rise'][0]:.3f} nats"
        for row in figures["effects"]
        if row["model"] in FORMS and ", " not in row["text"]
    ]
    return " " + ("; ".join(parts) or "no text has two seeds yet") + " "


def rise_verdict(figures: Figures) -> str:
    """In how many conditions each form saves of the late rise, and, when all rows are made, what this says of it."""
    parts = []
    for form, words in FORMS.items():
        rows = [row for row in figures["effects"] if row["model"] == form]
        saved = [row["rise saved"] for row in rows]
        gains, loses = sum(low > 0 for _, low, _ in saved), sum(high < 0 for _, _, high in saved)
        left = [100 * (1 - row["rise saved"][0] / row["likelihood rise"][0]) for row in rows if row["likelihood rise"][0] > 0]
        remain = f"; {min(left):.0f} to {max(left):.0f} % of it remain" if left else ""
        counts = f"{words} gains in {gains} and loses in {loses} of {len(saved)} conditions{remain}"
        reproduced = 2 * gains > len(saved) and 10 * loses <= len(saved)
        word = "reproduced" if reproduced else "refuted under these conditions" if loses > gains else "open"
        parts.append(counts if figures["missing"] else f"*{word}*: {counts}")
    return f" smaller: {'*open*: not complete; ' if figures['missing'] else ''}{'; '.join(parts)} "


def verdict(figures: Figures, model: str) -> str:
    """The verdict of an objective over all conditions, with its reason, in a cell of a table."""
    rows = [row for row in figures["verdicts"] if row["model"] == model]
    if not rows:
        return " *open*: not complete "
    counts = f"gains in {rows[0]['gains']} and loses in {rows[0]['loses']} of {rows[0]['conditions']} conditions"
    if figures["missing"]:
        return f" *open*: not complete; {counts} that are made "
    return f" *{rows[0]['verdict']}*: {counts} "


def backbone_verdict(figures: Figures) -> str:
    """The verdicts of both forms, in a cell of a table."""
    if figures["missing"] or not figures["verdicts"]:
        return " *open*: not complete "
    words = {row["model"]: row["verdict"] for row in figures["verdicts"]}
    return " " + "; ".join(f"{name} *{words[form]}*" for form, name in FORMS.items()) + " "


def in_words(numbers: list[float], digits: int = 4) -> str:
    """A number with its interval, bold where that does not hold 0."""
    value, low, high = numbers
    text = f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def _table(head: list[str], lines: list[list[object]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n" + "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows) + "\n"


TEXT_BLOCKS = {
    "status": status,
    "effects": partial(effects, first=("text", "against overfitting")),
    "starts": starts,
    "strengths": strengths,
    "published_saved": partial(summary, model=FORCED),
    "published_verdict": partial(verdict, model=FORCED),
    "once_saved": partial(summary, model=ONCE),
    "once_verdict": partial(verdict, model=ONCE),
    "rise_saved": rise,
    "rise_verdict": rise_verdict,
}
BACKBONE_BLOCKS = {
    "status": status,
    "effects": partial(effects, first=("network",)),
    "settings": settings,
    "saved": backbone_summary,
    "verdict": backbone_verdict,
}
