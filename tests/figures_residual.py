"""Tables of docs/papers/residual.md, from what `esscher reproduce residual` and `residual-analyses` printed (`figures.py`)."""

import json
import math
import statistics
from collections.abc import Collection
from functools import partial
from pathlib import Path

from figures_cells import STUDENT_95, bracketed, ends, plain


def residual_figures(folder: Path) -> dict[str, object]:
    """The rows of the texts with a pretrained energy; gains in per cent."""
    rows = []
    for row in json.loads((folder / "result.json").read_text())["rows"]:
        if row["text"] == "docstrings":
            continue
        gain = [round(100 * row["gain"][end], 2) for end in ("value", "low", "high")] if "gain" in row else None
        rows.append({
            "text": row["text"], "model": row["model"], "seed": row["seed"], "parameters": row["parameters"],
            "per token": ends(row["per token, this test set"], 4), "per word": round(row["per word"]["value"], 2), "gain": gain,
            "log Z": ends(row["log Z"], 2) if "log Z" in row else None,
        })  # fmt: skip
    return {"rows": rows}


RESIDUAL_PAPER = {  # Table 1: perplexities of CC-News and Toronto Books; the base 14.89 and 18.14
    "RALM": ("0.0 (14.89)", "-0.2 (18.17)"),
    "BALM": ("6.5 (13.92)", "-0.6 (18.24)"),
    "UniT": ("7.2 (13.81-13.82)", "3.7 (17.46-17.48)"),
    "BiT": ("12.6 (13.01-13.03, Base), 16.7 (12.38-12.42, Med)", "-"),
    "BiT*": ("13.1 (12.93-12.95, Base), 18.5 (12.10-12.16, Large)", "10.8 (16.17-16.18, Base), 16.2 (15.17-15.22, Large)"),
}  # fmt: skip


def residual_gains(figures: dict[str, object]) -> str:
    """A line for each model: what it takes off the base's perplexity, mean and interval over seeds, and the paper's figures."""
    rows = figures["rows"]
    texts = list(dict.fromkeys(row["text"] for row in rows))
    base = {row["text"]: row["per token"][0] for row in rows if row["model"] == "base"}
    heads = [f"{text}, per {unit}" for text in texts for unit in ("word", "token")]
    lines = [f"| model | {' | '.join(heads)} | theirs, CC-News | theirs, Toronto Books |", "|" + " --- |" * (3 + len(heads))]
    for model, theirs in RESIDUAL_PAPER.items():
        cells = []
        for text in texts:
            chosen = [row for row in rows if (row["text"], row["model"]) == (text, model)]
            cells.append(over_seeds([row["gain"][0] for row in chosen]))
            cells.append(over_seeds([100 * (1 - row["per token"][0] / base[text]) for row in chosen]))
        lines.append(f"| {plain(model)} | {' | '.join([*cells, *theirs])} |")
    return "\n" + "\n".join(lines) + "\n"


def over_seeds(values: list[float]) -> str:
    """The mean with Student's 95 % interval over seeds."""
    if len(values) < 2:
        return f"{values[0]:.1f} (one seed)" if values else "*not run*"
    half = STUDENT_95[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return f"{mean:.1f} [{mean - half:.1f}, {mean + half:.1f}]"


def residual_rows(figures: dict[str, object]) -> str:
    """A line for each row."""
    head = [
        "text",
        "model",
        "seed",
        "parameters",
        "per token, these continuations",
        "per word",
        "gain per word, %",
        "mean log Z",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in figures["rows"]:
        text = [row["text"], plain(row["model"]), "" if row["model"] == "base" else row["seed"], f"{row['parameters']:,}"]
        token, gain, log_z = (bracketed(row[key], digits) for key, digits in (("per token", 4), ("gain", 2), ("log Z", 2)))
        lines.append("| " + " | ".join(map(str, [*text, token, f"{row['per word']:.2f}", gain, log_z])) + " |")
    return "\n" + "\n".join(lines) + "\n"


def analyses_figures(folder: Path) -> dict[str, object]:
    """The analyses that are made: rows with their estimates."""

    def shown(value: object) -> object:
        if isinstance(value, dict) and "value" in value:
            return ends(value, 4)
        return round(value, 4) if isinstance(value, float) else value

    parts = {}
    for name in ("bounds", "energies", "ngrams", "next", "steps", "discriminate"):
        if (file := folder / f"{name}.json").exists():
            kept = json.loads(file.read_text())
            rows = kept["rows"] if isinstance(kept, dict) else kept
            parts[name] = [{key: shown(value) for key, value in row.items()} for row in rows]
    return parts


ANALYSES = {
    "bounds": "The paper's bounds beside our intervals, as the draws grow",
    "steps": "Perplexity by step; the last one is exact for the joint given its prefix",
    "energies": "Energies of text, of draws of the base and of draws of the joint",
    "ngrams": "Ratio of unique n-grams",
    "next": "Next tokens",
    "discriminate": "A new classifier against text",
}


def analysis_cell(value: object, column: str) -> str:
    """An estimate with its interval, a share of blocks in per cent, a width with four digits, or plain text."""
    if isinstance(value, list):
        return bracketed(value, 4 if column in ("ours", "bounds") else 3)
    if value is None:
        return "-"
    if column.endswith("holds the reference"):
        return f"{100 * float(str(value)):.0f} %"
    return f"{value:.4f}" if isinstance(value, float) else plain(str(value))


def analyses(figures: dict[str, list[dict[str, object]]]) -> str:
    """Each analysis with its figure and its numbers; those that are not run are named."""
    lines = []
    for name, title in ANALYSES.items():
        if name not in figures:
            continue
        rows = figures[name]
        lines += [f"### {title}", f"![{title}](../images/residual_{name}.png)", ""]
        if name != "steps" or len(rows) <= 10:
            columns = list(rows[0])
            lines += ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
            for row in rows:
                lines.append("| " + " | ".join(analysis_cell(row[key], key) for key in columns) + " |")
            lines.append("")
    missing = [title for name, title in ANALYSES.items() if name not in figures]
    if missing:
        lines.append(f"*Not run yet*: {'; '.join(title[0].lower() + title[1:] for title in missing)}.")
    return "\n" + "\n".join(lines).rstrip() + "\n"


PLATEAU = {  # by model: sequences of an update, the most updates, and what the paper has for it
    "base, trained on": (32, 500, "-"),
    "RALM": (32, 500, "0.0"),
    "BALM": (32, 500, "6.5"),
    "UniT": (64, 1_500, "7.2"),
    "BiT": (64, 1_500, "12.6 to 16.7"),
    "BiT*": (32, 100, "13.1 to 18.5"),
}
CONVERGED = tuple(model for model in PLATEAU if model != "base, trained on")


def plateau_figures(folder: Path, models: Collection[str] = tuple(PLATEAU)) -> dict[str, object]:
    """The rows that are made, read where each is kept, the losses of energies while they learnt, and of a base that was trained
    on first."""
    rows: list[dict[str, object]] = []
    losses: list[dict[str, object]] = []
    for file in sorted(folder.glob("*/*/row.json")):
        row = json.loads(file.read_text())
        kept = {key: row[key] for key in ("text", "model", "seed", "parameters")}
        kept["per token"] = ends(row["per token, this test set"], 4)
        for name in ("gain", "gain per token"):
            if name in row:
                kept[name] = [round(100 * row[name][end], 2) for end in ("value", "low", "high")]
        if "log Z" in row:
            kept["log Z"] = ends(row["log Z"], 2)
        history = (
            [json.loads(line) for line in (file.parent / "history.jsonl").read_text().splitlines()] if "gain" in row else []
        )
        points = [(entry["step"], entry["validation"]) for entry in history if "validation" in entry]
        if points:
            kept |= {"best": row["steps"], "updates": points[-1][0]}
        if "log Z" in row:
            losses += [
                {"model": row["model"], "seed": row["seed"], "step": step, "loss": round(loss, 4)} for step, loss in points
            ]
        rows.append(kept)
    figures: dict[str, object] = {"missing": 1 + len(models) * 3 - len(rows), "rows": rows, "losses": losses}
    for history in folder.glob("*/base-training/history.jsonl"):
        entries = [json.loads(line) for line in history.read_text().splitlines()]
        figures["base"] = [[entry["step"], round(entry["validation"], 4)] for entry in entries if "validation" in entry]
    return figures


def converged_figures(folder: Path) -> dict[str, object]:
    """The same on a base that was trained on first, where no row trains the base on."""
    return plateau_figures(folder, CONVERGED)


def of_model(figures: dict[str, list[dict[str, object]]], model: str) -> list[dict[str, object]]:
    return sorted((row for row in figures["rows"] if row["model"] == model), key=lambda row: row["seed"])


def plateau_gains(figures: dict[str, list[dict[str, object]]], models: Collection[str] = tuple(PLATEAU)) -> str:
    """A line for each model: gains as means over seeds, and how long it learnt."""
    head = [
        "model", "parameters", "gain per word, %", "gain per token, %", "mean log Z", "updates (best), by seed",
        "sequences read", "theirs, CC-News",
    ]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for model in models:
        batch, most, theirs = PLATEAU[model]
        rows = of_model(figures, model)
        if not rows:
            lines.append(f"| {plain(model)} |  | *not run* |  |  |  |  | {theirs} |")
            continue
        gains = [over_seeds([row[name][0] for row in rows]) for name in ("gain", "gain per token")]
        log_z = over_seeds([row["log Z"][0] for row in rows]) if "log Z" in rows[0] else "-"
        updates = ", ".join(f"{row['updates']}{'' if row['updates'] < most else ' (the most)'} ({row['best']})" for row in rows)
        read = ", ".join(f"{row['updates'] * batch:,}" for row in rows)
        lines.append(
            f"| {plain(model)} | {rows[0]['parameters']:,} | {' | '.join(gains)} | {log_z} | {updates} | {read} | {theirs} |"
        )
    return "\n" + "\n".join(lines) + "\n"


def plateau_losses(figures: dict[str, list[dict[str, object]]]) -> str:
    """The loss on held-out text by updates, mean over the seeds that got so far."""
    models = [model for model in PLATEAU if any(row["model"] == model for row in figures["losses"])]
    if not models:
        return "\n*Not run.*\n"
    steps = sorted({row["step"] for row in figures["losses"]})
    lines = [f"| updates | {' | '.join(map(plain, models))} |", "|" + " --- |" * (1 + len(models))]
    for step in steps:
        cells = []
        for model in models:
            values = [row["loss"] for row in figures["losses"] if (row["model"], row["step"]) == (model, step)]
            cells.append(f"{statistics.fmean(values):.4f} ({len(values)})" if values else "")
        lines.append(f"| {step} | {' | '.join(cells)} |")
    return "\n" + "\n".join(lines) + "\n"


def plateau_status(figures: dict[str, object], picture: str = "residual_losses") -> str:
    """What is made, and the figure of losses once there is one."""
    missing, rows = figures["missing"], figures["rows"]
    if not rows:
        return "\n*Not run yet.*\n"
    said = f"**Not complete**: {missing} rows are not made." if missing else "Complete: three seeds of every row."
    figure = "Loss of telling text from draws of the base, on held-out text, by updates; a line for each seed"
    return f"\n{said}\n" + (f"\n![{figure}](../images/{picture}.png)\n" if figures["losses"] else "")


PLATEAU_CLAIMS = (  # a claim of the paper, the model that gains more, and that which it is compared with
    ("(not of the paper) BALM gains more than the base that is trained on as long", "BALM", "base, trained on"),
    ("BALM gains more than RALM", "BALM", "RALM"),
    ("UniT gains more than BALM", "UniT", "BALM"),
    ("BiT gains more than UniT", "BiT", "UniT"),
    ("BiT\\* gains more than BiT", "BiT*", "BiT"),
    ("BiT\\* gains more than BALM", "BiT*", "BALM"),
)
RALM_CLAIM = "RALM, a second model that sees no further, gains nothing (less than 1 %)"
CONVERGED_CLAIMS = (  # and what the paper has for it, on CC-News
    (RALM_CLAIM, "RALM", None, "0.0"),
    ("BALM, a larger base, gains", "BALM", None, "6.5"),
    ("BALM gains more than RALM", "BALM", "RALM", "6.5"),
    ("UniT, an energy of the base's size, gains", "UniT", None, "7.2"),
    ("UniT gains more than BALM", "UniT", "BALM", "0.7"),
    ("BiT, the same in both directions, gains", "BiT", None, "12.6 to 16.7"),
    ("BiT gains more than UniT", "BiT", "UniT", "5.4 to 9.5"),
    ("BiT\\*, a pretrained energy, gains", "BiT*", None, "13.1 to 18.5"),
    ("BiT\\* gains more than BiT", "BiT*", "BiT", "0.5 (Base)"),
    ("BiT\\* gains more than BALM", "BiT*", "BALM", "6.6 to 12.0"),
)


def plateau_claims(figures: dict[str, list[dict[str, object]]]) -> str:
    """A line for each claim: the difference of gains per word over pairs of seeds, with Student's interval."""
    lines = ["| claim of the paper | difference of gains per word, % | verdict |", "| --- | --- | --- |"]
    for claim, one, other in PLATEAU_CLAIMS:
        differences = gained(figures, one, other)
        lines.append(f"| {claim} | {over_seeds(differences)} | {verdict_of(differences)} |")
    return "\n" + "\n".join(lines) + "\n"


def converged_claims(figures: dict[str, list[dict[str, object]]]) -> str:
    """A line for each claim: the gain per word, or the difference of two, over seeds, and the paper's figure."""
    lines = ["| claim | ours, % of the perplexity per word | theirs, CC-News | verdict |", "| --- | --- | --- | --- |"]
    for claim, one, other, theirs in CONVERGED_CLAIMS:
        values = gained(figures, one, other)
        verdict = verdict_of([1 - value for value in values] if claim == RALM_CLAIM else values)
        if verdict == "*reproduced*" and other is None and not holds_for_other_text(figures, one, claim):
            verdict = "*open*: so with every seed on these continuations, not for sure on others"
        lines.append(f"| {claim} | {over_seeds(values)} | {theirs} | {verdict} |")
    return "\n" + "\n".join(lines) + "\n"


def holds_for_other_text(figures: dict[str, list[dict[str, object]]], model: str, claim: str) -> bool:
    """Whether the interval of every row for other continuations lies above 0, or below 1 % where that is the claim."""
    gains = [row["gain"] for row in of_model(figures, model)]
    return all(high < 1 if claim == RALM_CLAIM else low > 0 for _, low, high in gains)


def gained(figures: dict[str, list[dict[str, object]]], one: str, other: str | None) -> list[float]:
    """The gain per word of a model in each seed, less that of another one if there is one."""
    ours = [row["gain"][0] for row in of_model(figures, one)]
    if other is None:
        return ours
    return [mine - row["gain"][0] for mine, row in zip(ours, of_model(figures, other), strict=False)]


def converged_base(figures: dict[str, object]) -> str:
    """How the base was trained on, in a sentence."""
    losses = figures["base"]
    best, loss = min(losses, key=lambda entry: entry[1])
    return (
        f" its validation loss is {losses[0][1]:.4f} nats a token after 100 updates, {loss:.4f} at best, after {best:,}; it "
        f"was stopped after {losses[-1][0]:,} "
    )


def verdict_of(differences: list[float]) -> str:
    """What differences over seeds say of the claim that they are above 0."""
    if len(differences) < 3:
        return "*open*: fewer than three seeds"
    half = STUDENT_95[len(differences)] * statistics.stdev(differences) / math.sqrt(len(differences))
    mean = statistics.fmean(differences)
    return "*reproduced*" if mean > half else "*refuted under these conditions*" if mean < -half else "*open*"


def discriminator_verdict(figures: dict[str, list[dict[str, object]]]) -> str:
    """Whether a new classifier tells draws of the joint from text less often than draws of the base, by their intervals."""
    if "discriminate" not in figures:
        return " *open* "
    accuracies = {row["draws of"]: row["accuracy"] for row in figures["discriminate"]}
    return f" *{less(accuracies['joint'], accuracies['base'])}* "


def less(one: list[float], other: list[float]) -> str:
    """The verdict on the claim that one number is less than another, by whether their intervals overlap."""
    return "reproduced" if one[2] < other[1] else "refuted under these conditions" if one[1] > other[2] else "open"


def discriminator(figures: dict[str, list[dict[str, object]]]) -> str:
    """Accuracies of new classifiers in per cent."""
    if "discriminate" not in figures:
        return " not run "
    words = []
    for row in figures["discriminate"]:
        value, low, high = (f"{100 * number:.1f}" for number in row["accuracy"])
        words.append(f"draws of the {row['draws of']} {value} % [{low}, {high}]")
    overlap = "; the intervals overlap" if discriminator_verdict(figures) == " *open* " else ""
    return f" {', '.join(words)}{overlap}; one energy, one classifier each "


def last_step(figures: dict[str, list[dict[str, object]]]) -> str:
    """What the energy saves at the last step, where the perplexity is exact, in a cell of a table."""
    row = figures["steps"][-1]
    value, low, high = row["saved"]
    return f" saves {value:.3f} [{low:.3f}, {high:.3f}] nats at step {row['step']}, {row['sequences']} sequences "


def last_step_verdict(figures: dict[str, list[dict[str, object]]]) -> str:
    """Whether the energy is better at the last step."""
    return f" *{less([0.0, 0.0, 0.0], figures['steps'][-1]['saved'])}*, one energy "


def energy_distances(figures: dict[str, list[dict[str, object]]]) -> str:
    """How far the mean energies of draws are from that of text, in a cell of a table."""
    words = [
        f"draws of the {row['energies of']} {bracketed(row['distance to text'], 2)}"
        for row in figures["energies"]
        if row["distance to text"]
    ]
    return f" distance of the mean energy from that of text: {', '.join(words)} "


def energy_verdict(figures: dict[str, list[dict[str, object]]]) -> str:
    """Whether energies of draws of the joint are nearer to those of text."""
    distances = {row["energies of"]: row["distance to text"] for row in figures["energies"]}
    return f" *{less(distances['joint'], distances['base'])}*, one energy "


def unique_ngrams(figures: dict[str, list[dict[str, object]]]) -> str:
    """The share of unique bigrams in text and in draws, in a cell of a table."""
    row = next(row for row in figures["ngrams"] if row["n"] == 2)
    return f" bigrams: {', '.join(f'{name} {bracketed(row[name], 3)}' for name in ('data', 'base', 'joint'))} "


BLOCKS = {
    ("residual_analyses", "last_step"): last_step,
    ("residual_analyses", "last_step_verdict"): last_step_verdict,
    ("residual_analyses", "energy_distances"): energy_distances,
    ("residual_analyses", "energy_verdict"): energy_verdict,
    ("residual_analyses", "unique_ngrams"): unique_ngrams,
    ("residual_analyses", "discriminator_verdict"): discriminator_verdict,
    ("residual_analyses", "discriminator"): discriminator,
    ("residual", "gains"): residual_gains,
    ("residual", "rows"): residual_rows,
    ("residual_plateau", "status"): plateau_status,
    ("residual_plateau", "gains"): plateau_gains,
    ("residual_plateau", "losses"): plateau_losses,
    ("residual_plateau", "claims"): plateau_claims,
    ("residual_converged", "status"): partial(plateau_status, picture="residual_converged_losses"),
    ("residual_converged", "gains"): partial(plateau_gains, models=CONVERGED),
    ("residual_converged", "losses"): plateau_losses,
    ("residual_converged", "claims"): converged_claims,
    ("residual_converged", "base"): converged_base,
    ("residual_analyses", "parts"): analyses,
}
