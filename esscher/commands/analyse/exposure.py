"""esscher analyse exposure: how far the prefixes that a model makes lie from those of the data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from esscher.commands.flags import Column, Cutting, Json, Level, Quiet, Seed, UnitAsLearnt
from esscher.commands.output import Answer, show
from esscher.cut import Cut
from esscher.settings.exposure import ExposureSettings

if TYPE_CHECKING:
    from esscher.verbs.exposure import ExposureFound

app = App(
    name="exposure",
    help_epilogue="Example: esscher analyse exposure runs/eforcing --against runs/plain --data my.txt --plot exposure.png",
)
SHOWN = 12  # positions of the table for people


@app.default
def exposure(
    model: Annotated[Path, Parameter(help="Folder of a base.")],
    *,
    against: Annotated[Path | None, Parameter(help="Folder of a baseline with the same tokens, for the ratio.")] = None,
    data: Annotated[
        str | None,
        Parameter(help="A file, a folder, a pattern, or a Hugging Face name; by default what was held out in training."),
    ] = None,
    settings: Annotated[ExposureSettings, Parameter(name="*")] = ExposureSettings(),  # noqa: B008 (frozen)
    column: Column = "text",
    unit: UnitAsLearnt = None,
    separator: Annotated[str | None, Parameter(help="A string between the texts, in text files.")] = None,
    cut: Cutting = Cut(),  # noqa: B008 (frozen)
    plot: Annotated[Path | None, Parameter(help="Also draw the numbers by position into this file.")] = None,
    level: Level = 0.95,
    seed: Seed = 0,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """A lower bound on how far a model's own prefixes are from the data's, by position, with the level of its logits as critic.

    With --against also the share of positions where the true token is likelier after the model's own outputs than after the
    baseline's: above one half the model is better.
    """
    from esscher.training.progress import choose_progress
    from esscher.verbs.exposure import TextSource, find_exposure

    source = TextSource(data, column, unit, separator)
    say = choose_progress(quiet).say
    found = find_exposure(model, source, settings, against=against, cut=cut, level=level, seed=seed, say=say)
    facts: dict[str, Any] = {"model": model, "measured_on": found.measured_on, "bound": found.model.mean, "seed": seed}
    if found.baseline is not None and found.ratio is not None:
        facts |= {"against": against, "bound_of_baseline": found.baseline.mean, "decode": settings.decode}
        facts["ratio"] = found.ratio.ratio
    if plot is not None:
        facts["plot"] = _draw(found, plot)
    rows = _rows(found)
    shown = rows if json else [rows[place] for place in _spread(len(rows))]
    show(Answer("esscher analyse exposure", facts, {"by_position": shown}, _notes(found, len(shown), len(rows))), as_json=json)


def _rows(found: "ExposureFound") -> list[dict[str, Any]]:
    """A row for each position that anything is told of."""
    bounds = {one.position: one for one in found.model.at}
    others = {one.position: one.bound for one in (() if found.baseline is None else found.baseline.at)}
    ratios = {one.position: one.ratio for one in (() if found.ratio is None else found.ratio.at)}
    rows = []
    for place in sorted({*bounds, *others, *ratios}):
        own = bounds.get(place)
        row = {
            "position": place,
            "sequences": None if own is None else own.sequences,
            "draws": None if own is None else own.draws,
            "bound": None if own is None else own.bound,
        }
        rows.append(row if found.ratio is None else {**row, "of baseline": others.get(place), "ratio": ratios.get(place)})
    return rows


def _spread(count: int) -> list[int]:
    """At most `SHOWN` places, evenly spread, the first and the last among them."""
    if count <= SHOWN:
        return list(range(count))
    return [place * (count - 1) // (SHOWN - 1) for place in range(SHOWN)]


def _notes(found: "ExposureFound", shown: int, rows: int) -> list[str]:
    notes = [
        "bound: mean over data of the level of the logits, less the log of the mean of its exponential over the model's draws; "
        "it is at most KL(data prefixes || model prefixes). 0 or less says nothing, as of a level that was never taught "
        "(E-Forcing teaches it)."
    ]
    if found.ratio is not None:
        notes.append(
            "ratio: share of positions where the true token is likelier after the model's own outputs; 0.5 is no better."
        )
    return notes if shown == rows else [*notes, f"{shown} of {rows} positions are shown; --json has all."]


def _draw(found: "ExposureFound", file: Path) -> Path:
    from esscher.reports.plots import BASE, TILTED, bands, save_picture

    sides = {"model": (TILTED, found.model)}
    if found.baseline is not None:
        sides["baseline"] = (BASE, found.baseline)
    lines = {
        name: (colour, [one.position for one in side.at], [one.bound for one in side.at])
        for name, (colour, side) in sides.items()
    }
    return save_picture(bands(lines, x="position", y="bound on exposure bias (nats)"), file)
