"""The main job on embedded data, in a few minutes: train a base, tilt it, measure, sample, distil, report.

First half: strings that must contain a motif, features of the whole string, and a student (`quickstart_strings`). Second half:
English docstrings of Python's standard library, a deliberately small base, and an energy that is a network reading the whole
text (`quickstart_texts`). Each half leaves the folder of a base and of an energy, which the command line reads; a run that was
broken off goes on where it was.
"""

from pathlib import Path
from typing import Any

from esscher.recipes.quickstart_report import report
from esscher.recipes.quickstart_strings import StringScale, string_rows, tilted_strings
from esscher.recipes.quickstart_texts import TextScale, text_rows, tilted_texts

SCALES = {
    "smoke": (StringScale("1000101", 12, 500, 12, 48, 8_000, 1_000), TextScale(40, 32, 60, 64, 10, 400)),
    "small": (
        StringScale("10001011111000", 30, 500, 25, 200, 40_000, 10_000),
        TextScale(500, 64, 800, 160, 150, 4_000),
    ),
    "paper": (
        StringScale("10001011111000", 30, 5_000, 100, 200, 200_000, 20_000),
        TextScale(2_000, 64, 8_000, 384, 4_000, 40_000),
    ),
}


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """Both halves for each seed, and a report of the first."""
    rows, found = [], []
    of_strings, of_texts = SCALES[scale]
    for seed in range(seeds):
        folder = out if seeds == 1 else out / f"seed-{seed}"
        half, text = tilted_strings(of_strings, folder, seed), tilted_texts(of_texts, folder / "docstrings", seed)
        rows += [*string_rows(half, seed), *text_rows(text, seed)]
        found.append((half, text))
    report(out / "report.html", *found[0])
    return {"rows": rows, "paper": []}
