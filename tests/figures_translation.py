"""Blocks of `figures.py` on the translation of E-Forcing, from `result.json` of its recipe."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

FORCED = ", E-Forcing"
KEPT = (
    "settings", "over seeds", "by length over seeds", "metrics over seeds", "own energy over seeds", "exposure over seeds",
    "curves over seeds", "verdicts",
)  # fmt: skip
METRIC_NAMES = {
    "chrf": "chrF", "ter": "TER (less is better)", "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L",
    "meteor": "METEOR",
}  # fmt: skip
Figures = Mapping[str, Sequence[Mapping[str, object]]]


def translation_figures(folder: Path) -> dict[str, list[dict[str, object]]]:
    """The tables over seeds, with estimates as value, low and high; and the rows of single seeds, as values."""
    result = json.loads((folder / "result.json").read_text())
    kept = {name: [{key: _short(value) for key, value in row.items()} for row in result[name]] for name in KEPT}
    rows = [
        {**{key: row[key] for key in ("system", "seed", "decoded")}, "BLEU": round(row["BLEU"]["value"], 1)}
        for row in result["rows"]
    ]
    return {"rows": rows, **kept}


def _short(value: object) -> object:
    """An estimate as its value and interval with five digits."""
    if isinstance(value, dict) and {"value", "low", "high"} <= set(value):
        return [float(f"{value[end]:.5g}") for end in ("value", "low", "high")]
    return value


def settings(figures: Figures) -> str:
    """The settings that were tried, each with its validation loss; the chosen ones in bold."""
    lines = []
    for what in dict.fromkeys(row["setting"] for row in figures["settings"]):
        tried = [row for row in figures["settings"] if row["setting"] == what]
        cells = [f"{row['value']:g} ({row['validation']:.4f})" for row in tried]
        shown = [f"**{cell}**" if row["chosen"] else cell for row, cell in zip(tried, cells, strict=True)]
        lines.append([what, ", ".join(shown)])
    return _table(["setting, by label smoothing", "tried, with the lowest validation loss a token"], lines)


def systems(figures: Figures) -> str:
    """BLEU of every system, with each seed, and what is gained."""
    lines = []
    for row in figures["over seeds"]:
        if row["decoded"] in ("greedy", "beam of 5"):
            single = [
                f"{one['BLEU']:.1f}"
                for one in figures["rows"]
                if (one["system"], one["decoded"]) == (row["system"], row["decoded"])
            ]
            gained = "" if row["gained"] is None else _bold(row["gained"], 2)
            lines.append(
                [row["system"], row["decoded"], ", ".join(single), _plain(row["BLEU"], 1), gained, _plain(row["perplexity"], 3)]
            )
    lines.sort(key=lambda line: line[1] != "greedy")
    return _table(["system", "decoded", "BLEU of each seed", "mean", "gained", "perplexity"], lines)


def lengths(figures: Figures) -> str:
    """BLEU by words of the source, and what E-Forcing gains."""
    rows = [row for row in figures["by length over seeds"] if str(row["system"]).endswith(FORCED)]
    lines = [
        [row["system"], row["decoded"], _words(row["words"]), _plain(row["BLEU"], 1), _bold(row["gained"], 2)]
        for row in sorted(rows, key=lambda row: (row["decoded"] != "greedy", row["system"] != f"likelihood{FORCED}"))
    ]
    return _table(["system", "decoded", "words of the source", "BLEU", "gained by E-Forcing"], lines)


def metrics(figures: Figures) -> str:
    """Other metrics of every system by the beam, and what E-Forcing gains in each."""
    rows = figures["metrics over seeds"]
    names = list(dict.fromkeys(row["metric"] for row in rows))
    lines = []
    for system in dict.fromkeys(row["system"] for row in rows):
        found = {row["metric"]: row for row in rows if row["system"] == system}
        lines.append([system, *(_plain(found[name]["value"], 1) for name in names)])
        if system.endswith(FORCED):
            lines.append(["gained by E-Forcing", *(_bold(found[name]["gained"], 2) for name in names)])
    return _table(["system, beam of 5", *(METRIC_NAMES[name] for name in names)], lines)


def own_energy(figures: Figures) -> str:
    """What choosing among own draws gains over one draw."""
    rows = figures["own energy over seeds"]
    names = list(dict.fromkeys(row["decoded"] for row in rows))
    one = {row["system"]: row["BLEU"] for row in figures["over seeds"] if row["decoded"] == "one draw"}
    lines = []
    for system in dict.fromkeys(row["system"] for row in rows):
        found = {row["decoded"]: row["gained"] for row in rows if row["system"] == system}
        lines.append([system, _plain(one[system], 1), *(_bold(found[name], 2) for name in names)])
    return _table(["system", "one draw, BLEU", *(f"{name}, gained" for name in names)], lines)


def exposure(figures: Figures) -> str:
    """The share of true words that are likelier after own words than by the same without E-Forcing."""
    lines = [[row["system"], str(row["seeds"]), _bold(row["ratio"], 3, 0.5)] for row in figures["exposure over seeds"]]
    return _table(["system", "seeds", "share of true words"], lines)


def curves(figures: Figures) -> str:
    """The lowest validation loss, what it fell before and rose after."""
    columns = ("validation", "fell", "rose")
    lines = [[row["system"], *(_plain(row[name], 3) for name in columns)] for row in figures["curves over seeds"]]
    return _table(
        ["system", "lowest validation loss, nats a token", "fell in the last quarter", "rose after the lowest"], lines
    )


def headline(figures: Figures, claim: str, decoded: str | None = None) -> str:
    """The effects of a claim over seeds, in a cell of a table."""
    rows, share = _of(figures, claim, decoded), claim == "exposure"
    parts = [f"{_about(row)} {_bold(row['effect'], 3, 0.5) if share else _bold(row['effect'], 2)}" for row in rows]
    return f" {rows[0]['seeds']} seeds{'' if share else ', BLEU gained'}: {'; '.join(parts)} "


def headline_verdict(figures: Figures, claim: str, decoded: str | None = None) -> str:
    """The verdicts of a claim, in a cell of a table: one word if they agree."""
    words = {_about(row): row["verdict"] for row in _of(figures, claim, decoded)}
    if len(set(words.values())) == 1:
        return f" *{next(iter(words.values()))}* "
    return f" {'; '.join(f'{about} *{word}*' for about, word in words.items())} "


def _of(figures: Figures, claim: str, decoded: str | None) -> list[Mapping[str, object]]:
    return [row for row in figures["verdicts"] if row["claim"] == claim and decoded in (None, row.get("decoded"))]


def _about(row: Mapping[str, object]) -> str:
    system = str(row["system"]).removesuffix(FORCED)
    return f"{system}, {row['decoded']}" if row["claim"] == "long sources" else system


def _plain(estimate: Sequence[float], digits: int) -> str:
    value, low, high = estimate
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _bold(estimate: Sequence[float], digits: int, none: float = 0.0) -> str:
    """Bold where the interval does not hold what would be without effect."""
    text = _plain(estimate, digits)
    return f"**{text}**" if estimate[1] > none or estimate[2] < none else text


def _words(group: str) -> str:
    """A group of lengths in words: [6, 9) is 6 to 8."""
    low, high = group.strip("[)").split(", ")
    return f"{low} or more" if high == "inf" else f"{low} to {int(high) - 1}"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n" + "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]) + "\n"


BLOCKS = {
    "settings": settings, "systems": systems, "lengths": lengths, "metrics": metrics, "own_energy": own_energy,
    "exposure": exposure, "curves": curves,
    "greedy_gained": lambda figures: headline(figures, "BLEU", "greedy"),
    "greedy_verdict": lambda figures: headline_verdict(figures, "BLEU", "greedy"),
    "beam_gained": lambda figures: headline(figures, "BLEU", "beam of 5"),
    "beam_verdict": lambda figures: headline_verdict(figures, "BLEU", "beam of 5"),
    "long_gained": lambda figures: headline(figures, "long sources"),
    "long_verdict": lambda figures: headline_verdict(figures, "long sources"),
    "exposure_share": lambda figures: headline(figures, "exposure"),
    "exposure_verdict": lambda figures: headline_verdict(figures, "exposure"),
    "own_energy_gained": lambda figures: headline(figures, "choosing by the own energy", "one of 10 draws by the own energy"),
    "own_energy_verdict": lambda figures: headline_verdict(figures, "choosing by the own energy"),
}  # fmt: skip
