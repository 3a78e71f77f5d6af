"""Blocks of `figures.py` on few labels, from `few_labels.json` of its recipe: effects, errors, densities, and pictures."""

import json
from pathlib import Path

from figures_cells import rounded, with_interval

PICTURES = ("few-labels-longer", "*-regions", "*-features")
TITLES = {
    "regions": "generated points, classes, and what is taken for real",
    "features": "the same in the space of two features",
}
EARLIER = """![Errors on held-out training images, draw 0](../images/few-labels.png)

*MNIST with 100 labels, draw 0: errors on held-out training images by updates, of the earlier runs of 20,000 updates. Those of
80,000 updates are not run.*"""
PLANE = ("four spins", "two circles")
WHAT = {"error": "", "above the threshold": "generated images above the 10 % quantile; "}


def few_label_figures(folder: Path) -> dict[str, object]:
    """The tables of `few_labels.json` with their estimates rounded, the validation errors of longer runs, and the pictures."""
    content = json.loads((folder / "few_labels.json").read_text())
    kept = {
        name: [
            {key: rounded(value) if isinstance(value, dict) else value for key, value in row.items()} for row in content[name]
        ]
        for name in ("levels", "effects")
    }
    pictures = sorted({file.stem for pattern in PICTURES for file in folder.glob(f"{pattern}.png")})
    return {
        "missing": content["missing"],
        "made": len(content["rows"]),
        **kept,
        "longer": content["longer"],
        "pictures": pictures,
    }


def status(figures: dict[str, object]) -> str:
    """How many rows are made."""
    if not figures["made"]:
        return "\n**Not run** in the present form of the recipe: every verdict of this table is *open*.\n"
    missing = f"; {figures['missing']} are not made" if figures["missing"] else ""
    return f"\n{figures['made']} rows are made{missing}. A claim of fewer than two draws is *open*.\n"


def longest(figures: dict[str, object]) -> str:
    """The picture of the validation errors of the longest runs, or that of the earlier ones."""
    histories = {model: history for models in figures["longer"].values() for model, history in models.items()}
    if not histories:
        return f"\n{EARLIER}\n"
    ends = [f"{model} {history[-1][1]:.2f} % after {history[-1][0]:,} updates" for model, history in histories.items()]
    about = "errors on held-out training images by updates, one draw of labels"
    return f"\n![{about}](../images/few-labels-longer.png)\n\n*{next(iter(figures['longer']))}: {about}. {'; '.join(ends)}.*\n"


def effects(figures: dict[str, object]) -> str:
    """A line for each claim that has rows: what one model has less than another, over draws of the labels; then the claims that
    have none."""
    lines = [["points", "model", "against", "draws", "%, from → to", "points saved", "thesis", "verdict"]]
    missing = []
    for row in figures["effects"]:
        against = [row["against points"]] if row["against points"] != row["points"] else []
        named = [row["points"], row["model"], ", ".join([row["against"], *against])]
        if not row["draws"]:
            missing.append(f"{named[0]}: {named[1]} against {named[2]} ({WHAT[row['quantity']]}thesis {row['thesis']})")
            continue
        levels = f"{WHAT[row['quantity']]}{row['more'][0]:.3g} → {row['less'][0]:.3g}"
        saved = with_interval(row["saved"], row["draws"]) + (" (one draw)" if row["draws"] == 1 else "")
        lines.append([*named, str(row["draws"]), levels, saved, row["thesis"], f"*{row['verdict']}*"])
    table = _table(lines) if len(lines) > 1 else ""
    return table + (f"\n*Not run*, so *open*: {'; '.join(missing)}.\n" if missing else "")


def errors(figures: dict[str, object]) -> str:
    """A line for each model on images: the error of each draw, and over draws, beside the published one; and how dense the
    generated images are."""
    rows = [row for row in figures["levels"] if "," in row["points"] and not row["points"].startswith(PLANE)]
    if not rows:
        return "\n*Not run.*\n"
    head = ["points", "model", "errors of draws, %", "mean or one draw, %", "published, %"]
    lines = [
        [*head, "largest log p of generated images", "10 % quantile of real ones", "generated above it, %", "largest, thesis"]
    ]
    for row in rows:
        dense = [""] * 3
        if "generated" in row:
            largest = ", ".join(f"{value:.0f}" for value in row["max log p"])
            quantile = ", ".join(f"{value:.0f}" for value in row["threshold"])
            dense = [f"{largest} (of {row['generated'][0]:,})", quantile, with_interval(row["above the threshold"])]
        theirs = [_number(row["published"]), *dense, _number(row["published max log p"])]
        lines.append([row["points"], row["model"], _each(row["errors"]), with_interval(row["error"]), *theirs])
    return _table(lines)


def plane(figures: dict[str, object]) -> str:
    """A line for each model in the plane: errors, and how much of the class boundary is taken for generated."""
    rows = [row for row in figures["levels"] if row["points"].startswith(PLANE)]
    if not rows:
        return "\n*Not run.*\n"
    lines = [["points", "model", "errors of draws, %", "mean or one draw, %", "class boundary taken for generated, %",
              "generated above the 10 % quantile, %"]]  # fmt: skip
    for row in rows:
        boundary, above = (with_interval(row.get(name)) for name in ("class boundary in generated", "above the threshold"))
        lines.append([row["points"], row["model"], _each(row["errors"]), with_interval(row["error"]), boundary, above])
    return _table(lines)


def regions(figures: dict[str, object]) -> str:
    """The pictures in the plane that are made."""
    names = [name for name in figures["pictures"] if name.rpartition("-")[2] in TITLES]
    if not names:
        return "\n*Not run.*\n"
    pictures = []
    for name in names:
        case, _, kind = name.rpartition("-")
        title = f"{case.replace('-', ' ').capitalize()}, draw 0: {TITLES[kind]}"
        pictures.append(f"![{title}](../images/{name}.png)\n\n*{title}.*\n")
    return "\n" + "\n".join(pictures)


def _each(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _table(lines: list[list[str]]) -> str:
    head, *rows = lines
    return "\n" + "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)) + "\n"


BLOCKS = {
    ("bad_gan", name): block
    for name, block in {
        "status": status, "longest": longest, "effects": effects, "errors": errors, "plane": plane, "regions": regions,
    }.items()
}  # fmt: skip
