"""Tables of the recipes on long texts, from the JSON file that they write after every row (`esscher/papers/stream_effects.py`):
levels, and effects with verdicts."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from figures_gam import table

from esscher.papers.stream_effects import AS_IN_TRAINING

Figures = Mapping[str, list[dict[str, object]]]
NOT_RUN = "*not run*"
MARKS = {"reproduced": "**{}**", "refuted under these conditions": "**{}**", "open": "{}"}


def kept(file: Path, *tables: str) -> dict[str, object]:
    """How many models are not trained yet, and these tables of a file with their estimates rounded to six digits."""
    content = json.loads(file.read_text())
    shown = {name: [{key: _shown(value) for key, value in row.items()} for row in content[name]] for name in tables}
    return {"missing": content["missing"], **shown}


def _shown(value: object) -> object:
    return [float(f"{value[end]:.6g}") for end in ("value", "low", "high")] if isinstance(value, dict) else value


def status(figures: Figures) -> str:
    """How much of the recipe is made."""
    made = f"{figures['missing']} models are not trained" if figures["missing"] else "every model of the recipe is trained"
    return f"\n{'**Not complete**' if figures['missing'] else 'Complete'}: {made}.\n"


def level_of(
    figures: Figures, study: str, model: str, evaluated: str = AS_IN_TRAINING, name: str = "levels"
) -> dict[str, object] | None:
    """The row of a model of a study in a mode of evaluation, if it is made."""
    key = (study, model, evaluated)
    return next((row for row in figures[name] if (row["text"], row["model"], row["evaluated"]) == key), None)


def perplexity(row: Mapping[str, object] | None) -> str:
    """Bits per token as a perplexity, with its interval, or how many seeds it has."""
    return NOT_RUN if row is None else level([2**bits for bits in row["bits"]], row["seeds"], 2)


def bits(row: Mapping[str, object] | None) -> str:
    return NOT_RUN if row is None else level(row["bits"], row["seeds"], 4)


def level(numbers: Sequence[float], seeds: int, digits: int) -> str:
    """A number with its interval over seeds; of one seed the number alone, which is said."""
    return f"{numbers[0]:,.{digits}f} (one seed)" if seeds == 1 else spread(numbers, digits)


def spread(numbers: Sequence[float], digits: int) -> str:
    """A number with its interval, if it has one."""
    value, low, high = (f"{number:,.{digits}f}" for number in numbers)
    return value if low == high == value else f"{value} [{low}, {high}]"


def effect_table(figures: Figures, claims: Sequence[tuple[str, str, str]], units: Mapping[str, tuple[str, int]]) -> str:
    """A line for each claim that has rows, which is its name, its column and what the thesis has for it: the effect over seeds
    and the verdict; then the claims that have none. `units` are what a column counts, and its digits."""
    found = {(row["claim"], row["column"]): row for row in figures["effects"]}
    lines, missing = [], []
    for claim, column, thesis in claims:
        (unit, digits), row = units[column], found.get((claim, column))
        if row is None:
            missing.append(f"{claim} ({unit})")
            continue
        effect = spread(row["effect"], digits)
        lines.append([claim, unit, row["seeds"], MARKS[row["verdict"]].format(effect), thesis, f"*{row['verdict']}*"])
    made = table(("claim", "more of", "seeds", "effect", "thesis", "verdict"), lines) if lines else ""
    return made + (f"\n*Not run*, so *open*: {'; '.join(missing)}.\n" if missing else "")
