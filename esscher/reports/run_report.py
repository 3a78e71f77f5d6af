"""The report that a verb leaves in its folder, and the comparison of several.

    answer.json   what was found, for programs: facts, tables, notes, settings, versions
    report.html   the same for people, with pictures; one file that fetches nothing

`read_run` reads the first back, so that `compare_runs` can put the numbers of several runs side by side.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esscher.estimate import Estimate
from esscher.reports.document import Lines, Picture, Section, Table, write_report
from esscher.reports.meanings import INTERVAL, meaning
from esscher.reports.plots import curves, intervals
from esscher.storage import write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ANSWER, REPORT = "answer.json", "report.html"
PACKAGES = ("esscher", "torch", "transformers", "numpy")
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Run:
    """What a verb found, and with which settings."""

    title: str
    facts: Mapping[str, Any]
    tables: Mapping[str, Rows]
    notes: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def numbers(self) -> dict[str, Estimate]:
        """Every estimate by a name that other runs of the verb share: the fact's, or the table's with the words of the row."""
        found = {name: value for name, value in self.facts.items() if isinstance(value, Estimate)}
        for table, rows in self.tables.items():
            for row in rows:
                words = " ".join(str(value) for value in row.values() if isinstance(value, str) and len(value) <= 40)
                found |= {f"{table}, {words}: {column}": value for column, value in row.items() if isinstance(value, Estimate)}
        return {name.replace("_", " "): value for name, value in found.items()}


def versions() -> dict[str, str]:
    """Of the packages that decide what a run finds."""
    return {name: metadata.version(name) for name in PACKAGES}


def write_run(folder: Path, run: Run, plain: Mapping[str, Any], *, own_page: bool = False) -> Path:
    """Leave both files in the folder, and return the report's path; `plain` is the run in terms of JSON.

    With `own_page` the report that is there stays, because it says more.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / ANSWER, dict(plain))
    if own_page:
        return folder / REPORT
    return write_report(folder / REPORT, run.title, INTERVAL, [_found(run), *_history(folder), *_warned(run), _how(run)])


def _found(run: Run) -> Section:
    facts = [
        {"what": name.replace("_", " "), "value": value, "how": _how_got(value), "meaning": meaning(name)}
        for name, value in run.facts.items()
    ]
    parts: list[Table | Picture | Lines] = [Table("In short", facts)] if facts else []
    parts += [Picture(picture, f"{unit}: the dot is the estimate, the bar its interval.") for unit, picture in _pictures(run)]
    parts += [Table(name.replace("_", " "), rows, meaning(name)) for name, rows in run.tables.items() if rows]
    return Section("What was found", "", parts)


def _how_got(value: Any) -> str:
    if not isinstance(value, Estimate):
        return ""
    return "exact" if value.draws == 0 else f"{100 * value.level:.4g} % interval, {value.draws:,} draws, {value.method}"


def _pictures(run: Run) -> list[tuple[str, "Figure"]]:
    """The estimates of the tables that share a unit, as intervals."""
    groups: dict[str, dict[str, Estimate]] = {}
    for name, value in run.numbers().items():
        if ": " in name and math.isfinite(value.low + value.high) and value.draws:
            column = name.rsplit(": ", 1)[1]
            unit = f"{column} ({value.unit})" if value.unit else column
            groups.setdefault(unit, {})[name.split(", ", 1)[1].rsplit(":", 1)[0]] = value
    some = [(unit, found) for unit, found in groups.items() if 2 <= len(found) <= 12]
    return [(unit, intervals({_safe(name): one for name, one in found.items()}, label=_safe(unit))) for unit, found in some]


def _safe(name: str) -> str:
    """Dollars would begin a formula."""
    return name.replace("$", r"\$")


def _history(folder: Path) -> list[Section]:
    file = folder / "history.jsonl"
    if not file.is_file():
        return []
    entries = [json.loads(line) for line in file.read_text().splitlines() if line]
    lines = {
        name: ([float(one["step"]) for one in some], [float(one[name]) for one in some])
        for name in ("loss", "validation")
        if (some := [one for one in entries if isinstance(one.get(name), int | float)])
    }
    if not lines:
        return []
    picture = Picture(
        curves(lines, x="step", y="loss"), "The loss while training: on what is learnt from, and on held-out data."
    )
    return [Section("How training went", "", [picture])]


def _warned(run: Run) -> list[Section]:
    return [Section("Notes and warnings", "", [Lines("", list(run.notes))])] if run.notes else []


def _how(run: Run) -> Section:
    rows = [{"setting": name, "value": str(value)} for name, value in _flat(run.settings).items()]
    kept = [{"package": name, "version": version} for name, version in run.versions.items()]
    return Section("How it was made", "", [Table("Settings", rows), Table("Versions", kept)])


def _flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return found


def read_run(folder: Path) -> Run:
    """The answer that a verb left in the folder."""
    file = folder / ANSWER
    if not file.is_file():
        raise FileNotFoundError(
            f"There is no {ANSWER} in {folder}, so no verb ended there. Nothing was compared; name folders that train, tilt, "
            f"distil, measure or reproduce wrote."
        )
    told = json.loads(file.read_text(encoding="utf8"))
    known = {one.name for one in fields(Run)}
    if set(told) != known:
        raise ValueError(f"{file} has keys {sorted(told)}; a run has {sorted(known)}. Nothing was compared.")
    return Run(**{name: _restored(value) for name, value in told.items()})


def _restored(value: Any) -> Any:
    """Estimates where there were some; an infinite number was written as null."""
    if isinstance(value, dict):
        if set(value) == {one.name for one in fields(Estimate)}:
            low, high = (edge if value[key] is None else value[key] for key, edge in (("low", -math.inf), ("high", math.inf)))
            return Estimate(
                **{**value, "value": math.nan if value["value"] is None else value["value"], "low": low, "high": high}
            )
        return {name: _restored(item) for name, item in value.items()}
    return [_restored(item) for item in value] if isinstance(value, list) else value


def compare_runs(runs: Mapping[str, Run]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row for each number that two runs or more have, and one for each setting in which they differ."""
    numbers = {name: run.numbers() for name, run in runs.items()}
    every = list(dict.fromkeys(number for found in numbers.values() for number in found))
    shared = [number for number in every if sum(number in found for found in numbers.values()) > 1]
    rows = [{"number": number, **{name: found.get(number) for name, found in numbers.items()}} for number in shared]
    settings = {name: _flat(run.settings) for name, run in runs.items()}
    keys = list(dict.fromkeys(key for told in settings.values() for key in told))
    differ = [key for key in keys if len({json.dumps(told.get(key), default=str) for told in settings.values()}) > 1]
    return rows, [{"setting": key, **{name: str(told.get(key, "")) for name, told in settings.items()}} for key in differ]


def write_comparison(path: Path, runs: Mapping[str, Run]) -> Path:
    """One page with the runs side by side."""
    rows, differ = compare_runs(runs)
    pictures = []
    for row in rows:
        found = {_safe(name): row[name] for name in runs if isinstance(row[name], Estimate) and math.isfinite(row[name].value)}
        if len(found) > 1 and all(math.isfinite(one.low + one.high) for one in found.values()):
            sentence = meaning(row["number"].rsplit(": ", 1)[-1]) or "The dot is the estimate, the bar its interval."
            pictures.append(Picture(intervals(found, label=_safe(row["number"])), sentence))
    sections = [
        Section(
            "The numbers that they share", "" if rows else "They share none.", [Table("Side by side", rows)] if rows else []
        ),
        Section("As intervals", "Intervals that do not meet differ by more than chance.", pictures[:12]),
        Section("Settings in which they differ", "" if differ else "None.", [Table("", differ)] if differ else []),
    ]
    return write_report(path, " and ".join(runs), INTERVAL, sections)
