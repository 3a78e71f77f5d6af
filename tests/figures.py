"""Figures in README and docs: rendered from what their command printed, so that none is typed by hand.

    python tests/figures.py record quickstart runs/quickstart     # after the command that docs/figures/quickstart.json names
    python tests/figures.py render                                # into the pages

A page has `<!-- figures: NAME.BLOCK -->` before a rendered block and `<!-- end of figures -->` after it. The fast tests fail
where a page is not what its figures render to; a slow test runs the quick start again and compares (`test_figures.py`).
"""

import json
import math
import re
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path

import figures_bad_gan
import figures_energy_gan_images
import figures_gam
import figures_images
import figures_laboratory
import figures_residual
import figures_risk
import figures_softmax_bottleneck
import figures_text
import figures_transformer_xl
import figures_translation
import figures_xlnet
from figures_cells import plain, rounded, unfinished, with_interval
from figures_gam import gam_figures, width_figures
from figures_residual import analyses_figures, converged_figures, plateau_figures, residual_figures

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
    "bad_gan": "esscher reproduce bad-gan --scale small --seeds 3 --out runs/bad-gan",
    "energy_gan_images": "esscher reproduce energy-gan-images --scale small --seeds 3 --out runs/energy-gan-images",
    "energy_gan_gradients": "esscher reproduce energy-gan-gradients --scale small --seeds 3 --out runs/energy-gan-gradients",
    "xlnet_spans": "esscher reproduce xlnet-spans --scale small --seeds 3 --out runs/xlnet-spans",
    "xlnet_tasks": "esscher reproduce xlnet --scale small --seeds 3 --out runs/xlnet",
    "eforcing_translation": "esscher reproduce eforcing-translation --scale small --seeds 3 --out runs/eforcing-translation",
    "gam": "esscher reproduce gam --scale small --seeds 3 --out runs/gam",
    "gam_weak": "esscher reproduce gam --scale weak --seeds 3 --out runs/gam-weak",
    "gam_widths": "esscher reproduce gam --scale small, with other networks (_base and _student of gam/rows.py)",
    "residual": "esscher reproduce residual --scale small --seeds 3 --out runs/residual",
    "residual_analyses": "esscher reproduce residual-analyses --scale small --out runs/residual-analyses",
    "softmax_bottleneck": "esscher reproduce softmax-bottleneck --scale small --seeds 3 --out runs/softmax-bottleneck",
    "transformer_xl": "esscher reproduce transformer-xl --scale small --seeds 3 --out runs/transformer-xl",
    "residual_plateau": "esscher reproduce residual --scale plateau --seeds 3 --out runs/plateau",
    "residual_converged": "esscher reproduce residual --scale converged --seeds 3 --out runs/residual_converged",
}
PICTURES = {
    "bad_gan": figures_bad_gan.PICTURES,
    "energy_gan": ("four-gaussians", "biased-pair", "two-spirals"),
    "energy_gan_images": ("energy_gan_ones",),
    "energy_gan_gradients": ("gradients-*",),
    "gam": ("gam*",),
    "residual_analyses": ("residual_*",),
    "residual_plateau": ("residual_losses",),
}  # else: NAME
RENAMED = {  # pictures of a scale whose recipe has them under the same name at another scale
    "residual_converged": {"residual": "residual_converged", "residual_losses": "residual_converged_losses"},
    "gam_weak": {"gam_weakness": "gam_weak"},
}


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
        "energy_gan": energy_gan_figures, "bad_gan": figures_bad_gan.few_label_figures,
        "energy_gan_images": figures_energy_gan_images.image_figures,
        "energy_gan_gradients": figures_energy_gan_images.gradient_figures,
        "xlnet_spans": figures_xlnet.span_figures, "xlnet_tasks": figures_xlnet.task_figures,
        "gam": gam_figures, "residual": residual_figures, "residual_analyses": analyses_figures,
        "residual_plateau": plateau_figures, "residual_converged": converged_figures, "gam_widths": width_figures,
        "gam_weak": gam_figures,
        "softmax_bottleneck": figures_softmax_bottleneck.bottleneck_figures,
        "transformer_xl": figures_transformer_xl.memory_figures,
    }  # fmt: skip
    figures = readers[name](folder)
    content = {"command": COMMANDS[name], "figures": figures}
    (FIGURES / f"{name}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf8")
    renamed = RENAMED.get(name, {})
    for pattern in renamed or PICTURES.get(name, (name,)):
        for picture in folder.glob(f"{pattern}.png"):
            target = f"{renamed.get(picture.stem, picture.stem)}.png"
            (ROOT / "docs" / "images" / target).write_bytes(picture.read_bytes())


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
    **figures_bad_gan.BLOCKS,
    **figures_gam.BLOCKS,
    **figures_residual.BLOCKS,
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
    **{("energy_gan_images", name): block for name, block in figures_energy_gan_images.IMAGE_BLOCKS.items()},
    **{("energy_gan_gradients", name): block for name, block in figures_energy_gan_images.GRADIENT_BLOCKS.items()},
    **{("xlnet_tasks", name): block for name, block in figures_xlnet.TASK_BLOCKS.items()},
    ("xlnet_spans", "table"): figures_xlnet.span_table,
    ("eforcing_laboratory", "own_kl"): lambda figures: laboratory_effects(figures, "after own prefixes"),
    ("quickstart", "hash"): hash_table,
    **{("softmax_bottleneck", name): block for name, block in figures_softmax_bottleneck.BLOCKS.items()},
    **{("transformer_xl", name): block for name, block in figures_transformer_xl.BLOCKS.items()},
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
