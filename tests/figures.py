"""Figures in README and docs: rendered from what their command printed, so that none is typed by hand.

    python tests/figures.py record quickstart runs/quickstart     # after the command that docs/figures/quickstart.json names
    python tests/figures.py render                                # into the pages

A page has `<!-- figures: NAME.BLOCK -->` before a rendered block and `<!-- end of figures -->` after it. The fast tests fail
where a page is not what its figures render to; a slow test runs the quick start again and compares (`test_figures.py`).
"""

import json
import math
import re
import statistics
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path

import figures_images
import figures_laboratory
import figures_risk
import figures_text
import figures_translation

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(r"(<!-- figures: (\w+)\.(\w+) -->)(.*?)(<!-- end of figures -->)", re.S)
COMMANDS = {
    "quickstart": "esscher reproduce quickstart --scale small --out runs/quickstart",
    "intervals": "esscher reproduce intervals --scale small --out runs/intervals",
    "eforcing_laboratory": "esscher reproduce eforcing-laboratory --scale small --out runs/eforcing-laboratory",
    "eforcing_lm": "esscher reproduce eforcing-lm --scale small --seeds 3 --out runs/eforcing-lm",
    "eforcing_backbones": "esscher reproduce eforcing-backbones --scale small --seeds 3 --out runs/eforcing-backbones",
    "risk": "esscher reproduce risk --scale small --out runs/risk",
    "risk_stories": "esscher reproduce risk-stories --scale small --out runs/risk-stories",
    "risk_example": "esscher risk smollm2 --prompt 'The chef came out of the kitchen and' "
    "--event 'phrases:his gun,a gun,her gun' --max-length 20 --draws 4000 --out runs/risk-example",
    "eforcing_images": "esscher reproduce eforcing-images --scale small --seeds 5 --out runs/eforcing-images",
    "energy_gan": "esscher reproduce energy-gan --scale small --seeds 3 --out runs/energy-gan",
    "xlnet_spans": "esscher reproduce xlnet-spans --scale small --seeds 3 --out runs/xlnet-spans",
    "eforcing_translation": "esscher reproduce eforcing-translation --scale small --seeds 3 --out runs/eforcing-translation",
    "gam": "esscher reproduce gam --scale small --out runs/gam",
    "residual": "esscher reproduce residual --scale small --seeds 3 --out runs/residual",
    "residual_analyses": "esscher reproduce residual-analyses --scale small --out runs/residual-analyses",
}
PICTURES = {"energy_gan": ("four-gaussians", "biased-pair", "two-spirals"), "residual_analyses": ("residual_*",)}  # else: NAME


def record(name: str, folder: Path) -> None:
    """Keep the figures of a run, and its pictures."""
    FIGURES.mkdir(exist_ok=True)
    readers = {
        "eforcing_translation": figures_translation.translation_figures,
        "quickstart": quickstart_figures, "intervals": interval_figures, "eforcing_laboratory": laboratory_figures,
        "risk": figures_risk.risk_figures, "risk_stories": figures_risk.story_figures,
        "risk_example": figures_risk.example_figures,
        "eforcing_lm": figures_text.text_figures, "eforcing_backbones": figures_text.text_figures,
        "eforcing_images": image_figures,
        "energy_gan": energy_gan_figures, "xlnet_spans": span_figures,
        "gam": gam_figures, "residual": residual_figures, "residual_analyses": analyses_figures,
    }  # fmt: skip
    figures = readers[name](folder)
    content = {"command": COMMANDS[name], "figures": figures}
    (FIGURES / f"{name}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf8")
    for pattern in PICTURES.get(name, (name,)):
        for picture in folder.glob(f"{pattern}.png"):
            (ROOT / "docs" / "images" / picture.name).write_bytes(picture.read_bytes())


def quickstart_figures(folder: Path) -> dict[str, object]:
    """Exact nats per bit, shares with their intervals, and texts of the quick start."""
    result = json.loads((folder / "result.json").read_text())
    shares = {}
    for row in result["share of continuations"]:
        ((title, share),) = ((key, value) for key, value in row.items() if isinstance(value, dict))
        shares[row["model"].split()[0]] = [round(share[end], 4) for end in ("value", "low", "high")]
    return {
        "nats": {row["model"]: round(row["exact"], 4) for row in result["rows"]},  # over all strings that obey
        "what": title,
        "shares": shares,
        "texts": {name: [row["text"] for row in result["texts"] if row["model"] == name] for name in ("base", "tilted")},
    }


def interval_figures(folder: Path) -> list[dict[str, object]]:
    """The rows of the study, without what is not shown."""
    rows = json.loads((folder / "intervals.json").read_text())["rows"]
    shown = ("law", "laws", "draws", "texts", "prompts", "quantity", "replications", "coverage", "good")
    return [{key: row[key] for key in (*shown, "coverage_given_good") if key in row} for row in rows]


def laboratory_figures(folder: Path) -> dict[str, object]:
    """The effects of the exact laboratory with their intervals, and how many rows are not made yet."""
    result = json.loads((folder / "laboratory.json").read_text())
    effects = [
        {key: [round(value[end], 3) for end in ("value", "low", "high")] if isinstance(value, dict) else value
         for key, value in row.items()}
        for row in result["effects"]
    ]  # fmt: skip
    averages = [
        {key: [round(value[end], 3) for end in ("value", "low", "high")] if isinstance(value, dict) else value
         for key, value in row.items()}
        for row in result["averages"]
    ]  # fmt: skip
    starts = figures_laboratory.starts_of(result["chosen"])
    kept = {"averages": averages, "starts": starts, "effects": effects}
    return {"missing": result["missing"], "verdicts": result["verdicts"], **kept}


def image_figures(folder: Path) -> dict[str, object]:
    """The effects of E-Forcing on images, the bits of likelihood, verdicts, and how many rows are not made yet."""
    result = json.loads((folder / "images.json").read_text())
    kept = {
        name: [
            {key: [round(value[end], 4) for end in ("value", "low", "high")] if isinstance(value, dict) else value
             for key, value in row.items()}
            for row in result[name]
        ]
        for name in ("effects", "over seeds")
    }  # fmt: skip
    return {"missing": result["missing"], "made": len(result["rows"]), "verdicts": result["verdicts"], **kept}


def image_status(figures: dict[str, object]) -> str:
    if figures["missing"]:
        rows = f"{figures['made']} rows are made and {figures['missing']} are not"
        return f"\n**Not complete**: {rows}; until they are, every verdict is *open*.\n"
    return f"\nComplete: {figures['made']} rows.\n"


def image_effects(figures: dict[str, object]) -> str:
    """A line for each network and objective: what it saves of likelihood's bits with the best and the last weights."""
    head = (
        "images", "network", "seeds", "likelihood, bits", "objective", "saved", "saved, last weights", "saved of the late rise",
        "weights of likelihood", "verdict",
    )  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in figures["effects"]:
        saved = [bits_in_words(row[name]) for name in ("saved", "last saved", "rise saved")]
        first = [row["images"], row["network"], row["seeds"], f"{row['likelihood'][0]:.4f}", row["model"]]
        verdict = "open (not complete)" if figures["missing"] else row["verdict"]
        lines.append("| " + " | ".join(map(str, [*first, *saved, f"{row['of likelihood']} of {row['seeds']}", verdict])) + " |")
    return "\n" + "\n".join(lines) + "\n"


def image_levels(figures: dict[str, object]) -> str:
    """A line for each network and objective: bits of test and training images, with the best and the last weights."""
    head = ("images", "network", "objective", "seeds", "test", "train", "last test", "last train", "late rise")
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in figures["over seeds"]:
        bits = [bits_in_words(row[name], bold=False) for name in head[4:]]
        lines.append("| " + " | ".join(map(str, [row["images"], row["network"], row["model"], row["seeds"], *bits])) + " |")
    return "\n" + "\n".join(lines) + "\n"


def bits_in_words(numbers: list[float], bold: bool = True) -> str:
    """A number with its interval, bold where that does not hold 0."""
    value, low, high = numbers
    text = f"{value:.4f} [{low:.4f}, {high:.4f}]"
    return f"**{text}**" if bold and (low > 0 or high < 0) else text


def image_summary(figures: dict[str, object], model: str) -> str:
    """What an objective saves, in a cell of a table: a part for each network and set of images."""
    parts = [
        f"{row['images'].split(',')[0]}, {row['network']} ({row['seeds']} seeds): {bits_in_words(row['saved'])}, "
        f"last weights {bits_in_words(row['last saved'])}"
        for row in figures["effects"]
        if row["model"] == model
    ]
    return " " + ("; ".join(parts) or "no network has two seeds yet") + " "


def image_rise(figures: dict[str, object]) -> str:
    """What E-Forcing as published saves of the late rise of the validation loss, in a cell of a table."""
    parts = [
        f"{row['images'].split(',')[0]}, {row['network']}: {bits_in_words(row['rise saved'])} bits saved of it"
        for row in figures["effects"]
        if row["model"] == "E-Forcing"
    ]
    return " " + ("; ".join(parts) or "no network has two seeds yet") + " "


def laboratory_status(figures: dict[str, object]) -> str:
    seeds = sorted({row["seeds"] for row in figures["effects"]})
    conditions = len({(row["process"], row["network"], row["strings"]) for row in figures["effects"]})
    made = f"{conditions} conditions of a process, a network and a number of strings, {' or '.join(map(str, seeds))} seeds each"
    picture = "![What each objective saves of the KL of likelihood, by number of strings](../images/eforcing_laboratory.png)"
    dashed = (
        "Dashed lines have draws of the model as negatives, dotted ones the published estimator; bars are cut at the edges."
    )
    if figures["missing"]:
        missing = f"{figures['missing']} rows are not made yet, and until then every verdict is *open*"
        return f"\n{picture}\n\n*The exact laboratory. **Not complete**: {made}; {missing}. {dashed}*\n"
    return f"\n{picture}\n\n*The exact laboratory. Complete: {made}. {dashed}*\n"


def laboratory_verdicts(figures: dict[str, object]) -> str:
    """A line for each objective: in how many conditions it gains, loses, or neither."""
    lines = ["| objective | conditions | gains | not told from 0 | loses | verdict |", "| --- | --- | --- | --- | --- | --- |"]
    for row in figures["verdicts"]:
        verdict = "open (not complete)" if figures["missing"] else row["verdict"]
        counts = " | ".join(str(row[word]) for word in ("conditions", "gains", "open", "loses"))
        lines.append(f"| {row['method']} | {counts} | {verdict} |")
    return "\n" + "\n".join(lines) + "\n"


def laboratory_effects(figures: dict[str, object], quantity: str) -> str:
    """A line for each condition: what each objective saves of likelihood's divergence, in per cent."""
    methods = list(dict.fromkeys(row["method"] for row in figures["effects"]))
    groups: dict[tuple[object, ...], dict[str, dict[str, object]]] = defaultdict(dict)
    for row in figures["effects"]:
        groups[row["process"], row["network"], row["strings"]][row["method"]] = row
    head = ["strings of", "network", "strings", "seeds", "likelihood, nats", *methods]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for (process, network, strings), by_method in groups.items():
        first = next(iter(by_method.values()))
        cells = [process, network, f"{strings:,}", first["seeds"], f"{first['likelihood']:.3f}"]
        for method in methods:
            value, low, high = by_method[method][quantity] if method in by_method else (0, 0, 0)
            text = f"{value:.1f} [{low:.1f}, {high:.1f}]" if method in by_method else ""
            cells.append(f"**{text}**" if text and (low > 0 or high < 0) else text)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n" + "\n".join(lines) + "\n"


def energy_gan_figures(folder: Path) -> dict[str, object]:
    """The ratios of the claims, and the divergences of every game over seeds or of its one seed, beside Table B.2."""
    from esscher.papers.energy_gan.tables import DIVERGENCES, EXACT, PAPER

    plane = json.loads((folder / "plane.json").read_text())
    claims = [{**row, "ratio": rounded(row["ratio"])} for row in plane["claims"]]
    over = {(row["process"], row["model"]): row for row in plane["over seeds"]}
    games = []
    for published in PAPER:
        name = published["process"], published["model"]
        rows = [row for row in plane["rows"] if (row["process"], row["model"]) == name]
        if rows:
            ours = {column: rounded(over.get(name, rows[0])[column]) for column in (*DIVERGENCES, EXACT)}
            games.append({"process": name[0], "model": name[1], "seeds": len(rows), "ours": ours, "thesis": published})
    return {"missing": plane["missing"], "claims": claims, "games": games}


def span_figures(folder: Path) -> dict[str, object]:
    """The effects of `spans.json`, rounded."""
    content = json.loads((folder / "spans.json").read_text())
    effects = [
        {key: rounded(value) if isinstance(value, dict) else value for key, value in row.items()} for row in content["effects"]
    ]
    return {"missing": content["missing"], "effects": effects}


def rounded(estimate: dict[str, float] | None) -> list[float] | None:
    """Value, low and high with four digits."""
    return None if estimate is None else [float(f"{estimate[end]:.4g}") for end in ("value", "low", "high")]


def with_interval(numbers: list[float] | None, seeds: int = 2) -> str:
    """A number with three digits and its interval over seeds; of one seed the number alone."""
    if numbers is None:
        return ""
    value, low, high = (f"{number:.3g}" for number in numbers)
    return value if seeds < 2 or low == high == value else f"{value} [{low}, {high}]"


def unfinished(missing: object) -> str:
    return (
        f"\n{missing} rows are not made yet; what has one seed has no interval, and its verdict is *open*.\n" if missing else ""
    )


def energy_gan_claims(figures: dict[str, object]) -> str:
    """A line for each claim and process: the ratio of two divergences, that of the thesis, and the verdict."""
    lines = ["| claim | process | ratio of | ours, over seeds | thesis | verdict |", "| --- | --- | --- | --- | --- | --- |"]
    for row in figures["claims"]:
        ratio = with_interval(row["ratio"]) or "one seed"
        cells = [row["claim"], row["process"], plain(row["quantity"]), ratio, f"{row['thesis']:.3g}", f"*{row['verdict']}*"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n" + "\n".join(lines) + "\n" + unfinished(figures["missing"])


def energy_gan_table(figures: dict[str, object]) -> str:
    """Table B.2: a line of ours and one of the thesis for each game."""
    columns = [column for column in figures["games"][0]["thesis"] if column.startswith("KL")]
    exact = next(column for column in figures["games"][0]["ours"] if column not in columns)
    head = [
        "process",
        "game",
        "of",
        *(plain(column[3:-1]).replace("\\|\\|", " ‖ ") for column in columns),
        "disc ‖ data, exact",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for game in figures["games"]:
        ours = [with_interval(game["ours"][column], game["seeds"]) for column in (*columns, exact)]
        counted = f"{game['seeds']} seeds" if game["seeds"] > 1 else "one seed"
        lines.append("| " + " | ".join([game["process"], game["model"], counted, *ours]) + " |")
        lines.append("| " + " | ".join(["", "", "thesis", *(f"{game['thesis'][column]:.3g}" for column in columns), ""]) + " |")
    return "\n" + "\n".join(lines) + "\n"


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


GAM_ROW = (
    "motif", "data", "ft", "|D|", "patience of 20", "seed", "updates", "stopped", "H", "r / student", "student / H",
    "motif: student / r", "l1", "candidates", "looks ahead", "acceptance of r", "gap", "student updates", "seconds",
)  # fmt: skip
GAM_ESTIMATES = ("CE r", "CE p", "CE student", "motif in r", "motif in p", "motif in student")
GAM_PAPER = {  # Table 3, regime rs: r / student and student / H with their standard deviations, and the range of motif ratios
    ("pure", 500): ((1.24, 0.07), (1.19, 0.07), (32, 392)),
    ("pure", 1000): ((1.24, 0.07), (1.16, 0.07), (23.87, 653.33)),
    ("pure", 5000): ((1.18, 0.08), (1.09, 0.05), (3.59, 206.67)),
    ("pure", 10000): ((1.08, 0.10), (1.04, 0.02), (0.89, 196)),
    ("pure", 20000): ((0.99, 0.01), (1.02, 0.01), (0.81, 1.76)),
    ("mixture", 500): ((1.23, 0.03), (1.16, 0.03), (59.26, 433.33)),
    ("mixture", 1000): ((1.21, 0.03), (1.14, 0.03), (26.29, 233.33)),
    ("mixture", 5000): ((1.16, 0.05), (1.08, 0.04), (7.32, 130)),
    ("mixture", 10000): ((1.02, 0.03), (1.04, 0.03), (1.0, 4.97)),
    ("mixture", 20000): ((0.99, 0.0), (1.02, 0.0), (0.85, 1.04)),
}
GAM_ROUNDING = 0.02  # a ratio of the paper is taken for no surer than this


def gam_figures(folder: Path) -> dict[str, object]:
    """The rows that are made, what is not, and the ways to fit weights if they have been compared."""
    result = json.loads((folder / "gam.json").read_text())
    rows = []
    for row in result["rows"]:
        kept = {key: round(row[key], 4) if isinstance(row[key], float) else row[key] for key in GAM_ROW}
        kept["seconds"] = {name: round(value) for name, value in row["seconds"].items()}
        rows.append(kept | {key: [round(row[key][end], 4) for end in ("value", "low", "high")] for key in GAM_ESTIMATES})
        rows[-1]["weights"] = {name: round(weight["value"], 2) for name, weight in row["weights"].items()}
    missing = [{key: row[key] for key in ("motif", "kind", "size", "reading", "ft", "seed")} for row in result["not made"]]
    return {"rows": rows, "not made": missing, "bases": gam_bases(folder)}


def gam_bases(folder: Path) -> list[dict[str, object]]:
    """The bases that are trained, also those whose row is not made yet: when they stopped, and their cross-entropy."""
    bases = []
    for file in sorted(folder.glob("*/base/answer.json")):
        answer = json.loads(file.read_text())
        data, training = (answer["settings"][name] for name in ("data", "training"))
        if training["patience"] is None:  # that on which methods are compared
            continue
        perplexity, entropy = (row["value"] for row in answer["tables"]["measured"])
        epochs = f"epochs of batches of {training['batch_size']}"
        bases.append({
            "motif": data["source"].removeprefix("motif:"), "data": "pure" if data["mixture"] == 1 else "mixture",
            "strings": data["size"], "seed": training["seed"], "length": data["length"],
            "patience of 20": "updates" if training["evaluate_every"] == 1 and training["batch_size"] == 50 else epochs,
            "updates": answer["facts"]["steps"], "best": answer["facts"]["best_step"], "H": round(entropy["value"], 4),
            "r": [round(math.log(perplexity[end]), 4) for end in ("value", "low", "high")],
        })  # fmt: skip
    return sorted(bases, key=lambda base: (base["motif"], base["data"], base["strings"], base["patience of 20"], base["seed"]))


def gam_bases_table(figures: dict[str, object]) -> str:
    """A line for each base that is trained, beside coin tosses of the right length."""
    head = [
        "motif", "data", "strings", "patience of 20", "seed", "updates", "best", "r, nats per symbol", "coin tosses", "r / H",
        "coin tosses / H",
    ]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for base in figures["bases"]:
        tosses = math.log(2) * base["length"] / (base["length"] + 1)
        cells = [
            base["motif"],
            base["data"],
            f"{base['strings']:,}",
            base["patience of 20"],
            base["seed"],
            f"{base['updates']:,}",
        ]
        cells += [f"{base['best']:,}", bracketed(base["r"], 4), f"{tosses:.4f}"]
        cells += [f"{base['r'][0] / base['H']:.2f}", f"{tosses / base['H']:.2f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n" + "\n".join(lines) + "\n"


def gam_status(figures: dict[str, object]) -> str:
    rows, missing = figures["rows"], figures["not made"]
    words = f"{len(rows)} of {len(rows) + len(missing)} rows are made, one seed each"
    seeds = {row["seed"] for row in rows}
    if len(seeds) > 1:
        words = words.replace("one seed each", f"seeds {min(seeds)} to {max(seeds)}")
    start = f"**Not complete**: {words}; the others are marked *not run*." if missing else f"Complete: {words}."
    return f"\n{start}\n\n![By the reading of the patience: cross-entropy over H, motif frequency, l1](../images/gam.png)\n"


def gam_readings(figures: dict[str, object]) -> list[str]:
    """The readings of the patience in the order in which they are made."""
    made = [row["patience of 20"] for row in figures["rows"]]
    return list(dict.fromkeys([*made, *(row["reading"] for row in figures["not made"])]))


def gam_cell(figures: dict[str, object], kind: str, size: int, reading: str) -> list[dict[str, object]]:
    """The made rows of a kind of data, a size and a reading; seeds after the first are left out, as in the paper."""
    keys = ("data", "|D|", "patience of 20", "seed")
    return [row for row in figures["rows"] if tuple(row[key] for key in keys) == (kind, size, reading, 0)]


def gam_ratios(rows: list[dict[str, object]]) -> str:
    """r / student and student / H, means over motifs and feature sets, and the range of the ratio of motif frequencies."""
    if not rows:
        return "*not run*"
    ratios = []
    for key in ("r / student", "student / H"):
        values = [row[key] for row in rows]
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        ratios.append(f"{statistics.fmean(values):.2f}{spread}")
    motif = [row["motif: student / r"] for row in rows]
    ends = f"{min(motif):.3g}" if len(motif) == 1 else f"[{min(motif):.3g}, {max(motif):.3g}]"
    return f"{ratios[0]}; {ratios[1]}; {ends}" + (f" ({len(rows)} rows)" if len(rows) > 1 else "")


def gam_effects(figures: dict[str, object]) -> str:
    """A line for each kind of data and number of strings: the paper, then each reading of the patience."""
    readings = gam_readings(figures)
    lines = [f"| data | strings | paper | {' | '.join(readings)} |", "|" + " --- |" * (3 + len(readings))]
    for (kind, size), (first, second, motif) in GAM_PAPER.items():
        theirs = f"{first[0]:.2f} ± {first[1]:.2f}; {second[0]:.2f} ± {second[1]:.2f}; [{motif[0]:g}, {motif[1]:g}]"
        ours = " | ".join(gam_ratios(gam_cell(figures, kind, size, reading)) for reading in readings)
        lines.append(f"| {kind} | {size:,} | {theirs} | {ours} |")
    return "\n" + "\n".join(lines) + "\n"


def gam_verdicts(figures: dict[str, object]) -> str:
    """A line for each reading and kind: *refuted* if r / student of some size, over two rows or more, is more than two of the
    paper's standard deviations from the paper's, *reproduced* if all sizes are made and none is, else *open*."""
    lines = ["| patience of 20 | data | verdict | reason |", "| --- | --- | --- | --- |"]
    for reading in gam_readings(figures):
        for kind in ("pure", "mixture"):
            outside, alone, made = [], [], 0
            sizes = [(size, paper[0]) for (of, size), paper in GAM_PAPER.items() if of == kind]
            for size, (ratio, spread) in sizes:
                if rows := gam_cell(figures, kind, size, reading):
                    made += 1
                    ours = statistics.fmean(row["r / student"] for row in rows)
                    if abs(ours - ratio) > 2 * max(spread, GAM_ROUNDING):
                        apart = f"{size:,} strings: {ours:.2f}, the paper {ratio:.2f} ± {spread:.2f}"
                        (outside if len(rows) > 1 else alone).append(apart)
            said = f"{made} of {len(sizes)} sizes are made"
            if outside:
                verdict, reason = "*refuted under these conditions*", "; ".join(outside)
            elif alone:
                verdict, reason = "*open*", f"{said}; one row each: {'; '.join(alone)}"
            elif made == len(sizes):
                verdict, reason = "*reproduced*", "r / student of every size is within two of the paper's ±"
            else:
                verdict, reason = "*open*", said + (", within two of the paper's ±" if made else "")
            lines.append(f"| {reading} | {kind} | {verdict} | {reason} |")
    return "\n" + "\n".join(lines) + "\n"


def gam_rows(figures: dict[str, object]) -> str:
    """A line for each row that is made."""
    head = [
        "motif", "data", "ft", "strings", "patience of 20", "updates of r", "r", "p", "student", "r / student", "student / H",
        "motif in r, p, student", "l1", "candidates for 20,000", "core seconds, base and student",
    ]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in figures["rows"]:
        nats = [
            f"{value:.4f} [{low:.4f}, {high:.4f}]" for value, low, high in (row[f"CE {name}"] for name in ("r", "p", "student"))
        ]
        shares = ", ".join(f"{row[f'motif in {name}'][0]:.3f}" for name in ("r", "p", "student"))
        stopped = f"{row['updates']:,}" + ("" if row["stopped"] == "patience" else " (the most)")
        drawn = f"{row['candidates']:,}" + (
            f" ahead ({20_000 / row['acceptance of r']:,.0f} of r)" if row["looks ahead"] else ""
        )
        cells = [row["motif"], row["data"], row["ft"], f"{row['|D|']:,}", row["patience of 20"], stopped, *nats]
        cells += [f"{row['r / student']:.3f}", f"{row['student / H']:.3f}", shares, f"{row['l1']:.3f}", drawn]
        cells.append(", ".join(str(value) for value in row["seconds"].values()))
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n" + "\n".join(lines) + "\n"


def ends(estimate: dict[str, float], digits: int) -> list[float]:
    """Value and interval of an estimate."""
    return [round(estimate[end], digits) for end in ("value", "low", "high")]


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
STUDENT_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # by number of seeds


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


def bracketed(numbers: list[float] | None, digits: int) -> str:
    """A value with its interval, if it has one that is not exact."""
    if not numbers:
        return "-"
    value, *interval = (f"{number:.{digits}f}" for number in numbers)
    return value if not interval or set(interval) == {value} else f"{value} [{', '.join(interval)}]"


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
                cells = (bracketed(row[key], 3) if isinstance(row[key], list) else plain(str(row[key])) for key in columns)
                lines.append("| " + " | ".join(cells) + " |")
            lines.append("")
    missing = [title for name, title in ANALYSES.items() if name not in figures]
    if missing:
        lines.append(f"*Not run yet*: {'; '.join(title[0].lower() + title[1:] for title in missing)}.")
    return "\n" + "\n".join(lines).rstrip() + "\n"


def hash_table(figures: dict[str, object]) -> str:
    """Exact nats per bit of the strings whose hash begins with zeros, by model."""
    nats = figures["nats"]
    names = {"base": "base r", "larger base": "larger base", "tilted": "tilted model p, one weight", "student": "student of p"}
    lines = ["| model | nats per bit |", "| --- | --- |"]
    lines += [f"| {words} | {nats[name]:.4f} |" for name, words in names.items()]
    lines.append(f"| entropy of the process | {nats['entropy of the rule']:.4f} |")
    lines.append(f"| coin tosses | {math.log(2):.4f} |")
    return "\n" + "\n".join(lines) + "\n"


def caption(figures: dict[str, dict[str, float]]) -> str:
    nats = figures["nats"]
    return (
        f"\n*The quick start. Left: strings of 20 bits whose hash begins with four zero bits. A base trained on them has "
        f"{nats['base']:.4f} nats per bit, a larger one {nats['larger base']:.4f}, a student {nats['student']:.4f}: coin "
        f"tosses. Tilted by that one rule it has {nats['tilted']:.4f}; the entropy is {nats['entropy of the rule']:.4f} "
        f"(exact; the picture has estimates). Right: SmolLM2, tilted to a share of 0.5, on fresh draws.*\n"
    )


def share_in_words(numbers: list[float]) -> str:
    value, low, high = (f"{number:.2f}" for number in numbers)
    return f"{value} [{low}, {high}]"


def before_and_after(figures: dict[str, dict[str, list[str]]]) -> str:
    """Texts of base and tilted model side by side, under their shares."""
    shares = figures["shares"]
    heads = f"SmolLM2: {share_in_words(shares['base'])} {figures['what']}", f"tilted: {share_in_words(shares['tilted'])}"
    lines = [f"| {heads[0]} | {heads[1]} |", "| --- | --- |"]
    texts = figures["texts"]
    lines += [
        f"| … {plain(one.lstrip('… '))} | … {plain(other.lstrip('… '))} |"
        for one, other in zip(texts["base"], texts["tilted"], strict=False)
    ]
    return "\n" + "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """A text in a cell of a table."""
    return re.sub(r"([|*_<>`$\[\]\\])", r"\\\1", text)


def weights_table(rows: list[dict[str, object]], laws: str) -> str:
    """A line for each law: coverage and share of good verdicts by number of draws; then, over all cells, the coverage given a
    good verdict, and the largest share of samples in a cell that are good and not covered."""
    by_law: dict[str, dict[tuple[object, object], dict[str, object]]] = defaultdict(dict)
    for row in rows:
        if "draws" in row and row["laws"] == laws:
            by_law[str(row["law"])][row["draws"], row["quantity"]] = row
    draws = sorted({count for law in by_law.values() for count, _ in law})
    head = [f"{quantity}, {count:,}" for quantity in ("log Z", "KL") for count in draws] + [
        "moments",
        "good",
        "given good",
        "good, missed",
    ]
    lines = ["| law | " + " | ".join(head) + " |", "| --- |" + " --- |" * len(head)]
    for name, law in by_law.items():
        cells = [percent(law[count, quantity]["coverage"]) for quantity in ("log Z", "kl") for count in draws]
        moments = [float(row["coverage"]) for (_, quantity), row in law.items() if quantity in ("large", "coin")]
        cells.append(f"{100 * min(moments):.0f}-{100 * max(moments):.0f}")
        cells.append(" ".join(percent(law[count, "log Z"]["good"]) for count in draws))
        given = [row for row in law.values() if row["coverage_given_good"] is not None]
        weight = sum(row["good"] * row["replications"] for row in given)
        hits = sum(row["coverage_given_good"] * row["good"] * row["replications"] for row in given)
        cells.append(f"{100 * hits / weight:.1f}" if weight else "-")
        cells.append(f"{100 * max((row['good'] * (1 - row['coverage_given_good']) for row in given), default=0):.1f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n" + "\n".join(lines) + "\n"


def texts_table(rows: list[dict[str, object]], laws: str) -> str:
    """A line for each law: the least and the largest coverage over quantities, by number of texts."""
    by_law: dict[str, dict[object, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if "texts" in row and row["laws"] == laws:
            by_law[str(row["law"])][row["texts"]].append(100 * float(row["coverage"]))
    counts = sorted({count for law in by_law.values() for count in law})
    lines = ["| law | " + " | ".join(f"{count} texts" for count in counts) + " |", "| --- |" + " --- |" * len(counts)]
    for name, law in by_law.items():
        lines.append(f"| {name} | " + " | ".join(f"{min(law[n]):.1f}-{max(law[n]):.1f}" for n in counts) + " |")
    return "\n" + "\n".join(lines) + "\n"


def faults_table(rows: list[dict[str, object]]) -> str:
    """A line for each family of faults: what was tried, and what happened."""
    lines = ["| what was tried | cases | what happened | seconds | processor seconds |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        happened = ", ".join(f"{count} {fault}" for fault, count in row["faults"].items())
        lines.append(f"| {row['what']} | {row['cases']:,} | {happened} | {row['seconds']} | {row['processor seconds']} |")
    return "\n" + "\n".join(lines) + "\n"


def percent(share: object) -> str:
    return f"{100 * float(share):.0f}"


BLOCKS = {
    ("quickstart", "caption"): caption,
    ("quickstart", "before_and_after"): before_and_after,
    ("faults", "table"): faults_table,
    ("intervals", "weights"): partial(weights_table, laws="registered"),
    ("intervals", "held_back_weights"): partial(weights_table, laws="held back"),
    ("intervals", "second_weights"): partial(weights_table, laws="held back again"),
    ("intervals", "texts"): partial(texts_table, laws="registered"),
    ("intervals", "held_back_texts"): partial(texts_table, laws="held back"),
    ("intervals", "second_texts"): partial(texts_table, laws="held back again"),
    ("risk", "automaton"): partial(figures_risk.risk_coverage, knows="an automaton of the event"),
    ("risk", "score"): partial(figures_risk.risk_coverage, knows="a score alone"),
    ("risk_example", "answer"): figures_risk.example,
    ("risk_stories", "truth"): figures_risk.story_truth,
    ("risk_stories", "errors"): figures_risk.story_errors,
    **{("eforcing_lm", name): block for name, block in figures_text.TEXT_BLOCKS.items()},
    **{("eforcing_backbones", name): block for name, block in figures_text.BACKBONE_BLOCKS.items()},
    ("eforcing_laboratory", "status"): laboratory_status,
    ("eforcing_laboratory", "verdicts"): laboratory_verdicts,
    **{("eforcing_laboratory", name): block for name, block in figures_laboratory.BLOCKS.items()},
    **{("eforcing_translation", name): block for name, block in figures_translation.BLOCKS.items()},
    ("eforcing_images", "status"): image_status,
    ("eforcing_images", "effects"): image_effects,
    ("eforcing_images", "levels"): image_levels,
    ("eforcing_images", "published_saved"): partial(image_summary, model="E-Forcing"),
    **{("eforcing_images", name): block for name, block in figures_images.BLOCKS.items()},
    ("eforcing_images", "rise_saved"): image_rise,
    ("eforcing_images", "once_saved"): partial(image_summary, model="E-Forcing, tokens counted once"),
    ("eforcing_laboratory", "kl"): lambda figures: laboratory_effects(figures, "KL"),
    ("eforcing_laboratory", "prefix_kl"): lambda figures: laboratory_effects(figures, "prefix KL"),
    ("energy_gan", "claims"): energy_gan_claims,
    ("energy_gan", "table"): energy_gan_table,
    ("xlnet_spans", "table"): span_table,
    ("eforcing_laboratory", "own_kl"): lambda figures: laboratory_effects(figures, "after own prefixes"),
    ("quickstart", "hash"): hash_table,
    ("residual", "gains"): residual_gains,
    ("residual", "rows"): residual_rows,
    ("residual_analyses", "parts"): analyses,
    ("gam", "status"): gam_status,
    ("gam", "effects"): gam_effects,
    ("gam", "verdicts"): gam_verdicts,
    ("gam", "rows"): gam_rows,
    ("gam", "bases"): gam_bases_table,
}


def rendered(page: str) -> str:
    """The text of a page with its figures."""

    def fill(match: re.Match[str]) -> str:
        name, block = match[2], match[3]
        figures = json.loads((FIGURES / f"{name}.json").read_text(encoding="utf8"))["figures"]
        return f"{match[1]}{BLOCKS[name, block](figures)}{match[5]}"

    return BLOCK.sub(fill, page)


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(sys.argv[2], Path(sys.argv[3]))
    for path in PAGES:
        before = path.read_text(encoding="utf8")
        after = rendered(before)
        if after != before:
            path.write_text(after, encoding="utf8")
            print(path.relative_to(ROOT))
