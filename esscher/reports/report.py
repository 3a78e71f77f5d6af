"""The result of a command: printed, saved, read back, compared with others; without torch.

    answer.json   facts, tables, notes, settings and package versions, for programs
    report.html   the same for people, with figures (`esscher.reports.document`)

Results go to standard output; progress and notes on it go to standard error.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esscher.core.config import from_dict, load_object, to_dict
from esscher.core.console import console, write_line
from esscher.core.distributed import is_main_process
from esscher.core.estimate import Estimate
from esscher.core.manifest import check_manifest, files_of, write_manifest
from esscher.core.reading import describing, read_json_object

if TYPE_CHECKING:
    from rich.console import Console

ANSWER, PAGE = "answer.json", "report.html"
PACKAGES = ("esscher", "torch", "transformers", "numpy")
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Report:
    """Single facts, tables of rows and notes, with the settings and package versions that produced them. `json_tables` replaces
    `tables` in the JSON output, for values that programs want in another shape than people do. Facts stand in the order of
    interest; the facts and tables that `details` names are printed only with --verbose."""

    title: str
    facts: Mapping[str, Any]
    tables: Mapping[str, Rows]
    notes: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    json_tables: Mapping[str, Any] | None = None
    failed: bool = False  # whether the command ends with exit code 1
    details: Sequence[str] = ()
    tables_first: bool = False  # whether the tables are printed before the facts

    def estimates(self) -> dict[str, Estimate]:
        """All estimates by names that runs of one command share: the name of the fact, or `table, words of the row: column`."""
        by_name = {name: value for name, value in self.facts.items() if isinstance(value, Estimate)}
        for table, rows in self.tables.items():
            for row in rows:
                words = " ".join(str(value) for value in row.values() if isinstance(value, str) and len(value) <= 40)
                by_name |= {f"{table}, {words}: {key}": value for key, value in row.items() if isinstance(value, Estimate)}
        return {name.replace("_", " "): value for name, value in by_name.items()}

    def __str__(self) -> str:
        """What the command prints."""
        text = StringIO()
        _print(self, console(file=text), verbose=False)
        return text.getvalue().rstrip("\n")

    def save(
        self, folder: Path, settings: Mapping[str, Any], *, changed: Mapping[str, Any] | None = None, own_page: bool = False
    ) -> "Report":
        """Write `answer.json` and, unless the command has its `own_page`, `report.html`; return the report with the page's path
        as the fact `report`, or with a note if the folder cannot be written to. `changed` are the settings that the page shows:
        those that differ from their defaults. Only the main process writes."""
        if not is_main_process():
            return self
        from esscher.core.storage import write_json
        from esscher.reports.document import write_page

        saved = replace(self, settings=to_json(settings), versions=package_versions())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / ANSWER, {name: to_json(getattr(saved, name)) for name in SAVED})
            if not own_page:
                write_page(folder, saved, None if changed is None else to_json(changed))
            is_model = (folder / "config.json").is_file()  # whose files were recorded when it was saved
            write_manifest(folder, [ANSWER, PAGE] if is_model else files_of(folder))
        except OSError as error:
            return replace(self, notes=[*self.notes, f"No report was saved in {folder}: {error}. The numbers are complete."])
        return replace(saved, facts={**self.facts, "report": folder / PAGE})


SAVED = [entry.name for entry in fields(Report) if entry.name not in ("json_tables", "failed", "details", "tables_first")]
FOOTER = ("device", "seed", "processes")  # facts that are printed last, in one dim line


def print_report(report: Report, *, as_json: bool, verbose: bool = False) -> None:
    """Print the report in the main process: as tables, or as one JSON object on one line. `verbose` adds the details, and how
    each number was estimated; JSON always has both."""
    if not is_main_process():
        return
    if as_json:
        tables = report.tables if report.json_tables is None else report.json_tables
        notes = {"notes": list(report.notes)} if report.notes else {}
        write_line(json.dumps(to_json({**report.facts, **tables, **notes})))
    else:
        _print(report, console(), verbose=verbose)


def _print(report: Report, terminal: "Console", *, verbose: bool) -> None:
    from rich.text import Text

    from esscher.reports.tables import format_cell, heading, rich_facts, rich_notes, rich_table

    hidden = () if verbose else report.details
    facts = {name: value for name, value in report.facts.items() if name not in (*hidden, *FOOTER)}
    parts: list[Any] = [
        rich_table(name, rows, terminal, verbose=verbose) for name, rows in report.tables.items() if rows and name not in hidden
    ]
    title = "" if report.tables_first else report.title
    if (title and (parts or report.notes)) or any(value is not None for value in facts.values()):
        parts.insert(len(parts) if report.tables_first else 0, rich_facts(title, facts, terminal, verbose=verbose))
    if report.notes:
        parts.append(rich_notes(report.notes, terminal))
    footer = {name: report.facts[name] for name in FOOTER if report.facts.get(name) is not None}
    if footer:
        parts.append(Text(", ".join(f"{heading(name)} {format_cell(value)}" for name, value in footer.items()), style="dim"))
    for number, part in enumerate(parts):
        terminal.print(*([""] if number else []), part, sep="\n", soft_wrap=True, highlight=False)


def read_report(folder: Path) -> Report:
    """The report that a command saved in the folder."""
    file = folder / ANSWER
    if not file.is_file():
        raise FileNotFoundError(
            f"There is no {ANSWER} in {folder}, so no command finished there. Nothing was compared; name folders that train, "
            f"tilt, distil, measure or reproduce wrote."
        )
    values = read_json_object(file, then="Nothing was compared; restore the file.")
    check_manifest(folder, [ANSWER])
    if set(values) != set(SAVED):
        raise ValueError(f"{file} has keys {sorted(values)}; a report has {sorted(SAVED)}. Nothing was compared.")
    with describing(file, "a report", then="Nothing was compared; restore the file."):
        return from_dict(Report, {name: _restore_estimates(value) for name, value in values.items()})


MODELS = ("base", "tilted", "student")
OWN_MODEL = {"esscher train": "base", "esscher tilt": "tilted", "esscher distil": "student"}  # the model that a verb makes
SETTINGS = {  # by title, the settings class whose defaults need not be shown
    "esscher train": "esscher.workflow.config.train:TrainRun",
    "esscher tilt": "esscher.workflow.config.tilt:TiltRun",
    "esscher distil": "esscher.workflow.config.distil:DistilRun",
    "esscher finetune": "esscher.workflow.config.finetune:FinetuneRun",
    "esscher measure": "esscher.workflow.config.measure:MeasureConfig",
    "esscher risk": "esscher.workflow.config.risk:RiskConfig",
}
NOT_COMPARED = ("out", "seed", "resume")


def compare_reports(reports: Mapping[str, Report]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row for each number that two or more reports share in meaning and unit, and a row for each setting that differs between
    the runs and, in one of them, from its default. Perplexities of the model that each run made stand in one row."""
    numbers = {name: comparable_numbers(report) for name, report in reports.items()}
    counts = Counter(number for by_name in numbers.values() for number in by_name)
    shared = [number for number, count in counts.items() if count > 1]
    rows = [{"number": number, **{name: by_name.get(number) for name, by_name in numbers.items()}} for number in shared]
    settings = {name: flatten(report.settings) for name, report in reports.items()}
    changed = {key for report in reports.values() for key in changed_settings(report)}
    keys = dict.fromkeys(key for values in settings.values() for key in values if key in changed and key not in NOT_COMPARED)
    differ = [key for key in keys if len({json.dumps(values.get(key), default=str) for values in settings.values()}) > 1]
    return rows, [{"setting": key, **{name: str(values.get(key, "")) for name, values in settings.items()}} for key in differ]


def comparable_numbers(report: Report) -> dict[str, Estimate]:
    """The estimates of a report by names that reports of other commands share: `perplexity per token` is that of the model that
    the run made or measured, `perplexity per token of the base` that of the base in it."""
    own = OWN_MODEL.get(report.title, "tilted" if report.facts.get("energy") else "base")
    numbers = {name.replace("_", " "): value for name, value in report.facts.items() if isinstance(value, Estimate)}
    for table, rows in report.tables.items():
        for row in rows:
            words = [value for value in row.values() if isinstance(value, str) and len(value) <= 40]
            if row.get("method") not in (None, "interval"):
                continue
            for column, value in row.items():
                if not isinstance(value, Estimate):
                    continue
                kind, per, unit = value.unit.rpartition("per ")
                if not per:
                    numbers[f"{table}, {' '.join(words)}: {column}".replace("_", " ")] = value
                    continue
                if kind in ("", "nats "):
                    name = f"perplexity per {unit}"
                    value = value if not kind else value.map(lambda nats: math.exp(min(nats, 700.0)), unit=f"per {unit}")
                else:
                    name = value.unit
                model = next((word for word in (*words, column) if word in MODELS), own)
                numbers |= {name: value} if model == own else {}
                numbers[f"{name} of the {model}"] = value
    return numbers


def changed_settings(report: Report) -> dict[str, Any]:
    """The settings of a run that differ from their defaults, or have none, by dotted names."""
    settings = flatten(report.settings)
    path = SETTINGS.get(report.title)
    if path is None:
        return settings
    cls = load_object(path)
    given: dict[str, Any] = {}
    for entry in fields(cls):
        value = report.settings.get(entry.name)
        if entry.default is MISSING and entry.default_factory is MISSING:
            given[entry.name] = value
        elif isinstance(value, Mapping) and "kind" in value:
            given[entry.name] = {"kind": value["kind"]}
    try:
        usual = flatten(to_json(to_dict(from_dict(cls, given))))
    except (TypeError, ValueError):  # written by another version
        return settings
    required = flatten({name: value for name, value in given.items() if not isinstance(value, Mapping)})
    return {key: value for key, value in settings.items() if key in required or key not in usual or usual[key] != value}


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one dictionary with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def package_versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Installed versions by package; `not installed` for a package that is missing."""
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def write_lines(file: Path, rows: Sequence[Any]) -> None:
    """Write one JSON object a line; the file appears complete or not at all."""
    from esscher.core.storage import write_file

    write_file(file, "".join(f"{json.dumps(to_json(row), ensure_ascii=False)}\n" for row in rows).encode())


def to_json(value: Any) -> Any:
    """The value as JSON types; an infinite or undefined number becomes null."""
    if isinstance(value, Estimate):
        return to_json(value.to_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return to_json(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _restore_estimates(value: Any) -> Any:
    """Invert `to_json` for estimates: null is nan as a value, infinite as a bound."""
    if isinstance(value, list):
        return [_restore_estimates(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) != {entry.name for entry in fields(Estimate)}:
        return {name: _restore_estimates(item) for name, item in value.items()}
    missing = {"value": math.nan, "low": -math.inf, "high": math.inf}
    values: dict[str, Any] = {name: missing.get(name) if item is None else item for name, item in value.items()}
    return Estimate(**values)


@dataclass(frozen=True)
class ReportConfig:
    """What each run is, the numbers with the same meaning and unit side by side with their intervals, and the settings in which
    the runs differ from each other and from the defaults."""

    runs: tuple[str, ...]
    """Folders that train, tilt, distil, finetune, measure or reproduce wrote."""
    out: str = field(default="comparison.html", kw_only=True)
    """File of the page."""

    def __post_init__(self) -> None:
        if len(set(self.runs)) < 2:
            raise ValueError(f"A comparison needs two runs or more, not {len(set(self.runs))}. Nothing was compared.")


def report_runs(settings: ReportConfig) -> Report:
    """Compare the saved reports of runs, and write the page."""
    from esscher.reports.document import write_comparison

    reports = {folder: read_report(Path(folder)) for folder in settings.runs}
    rows, differ = compare_reports(reports)
    page = write_comparison(Path(settings.out), reports)
    runs = [
        {"run": name, "made_by": report.title, "data": _data_of(report), "numbers": ", ".join(comparable_numbers(report))}
        for name, report in reports.items()
    ]
    notes = [
        f"The runs share no number: {', '.join(reports)} measure different things. `esscher measure` both on the same data."
    ]
    if any("perplexity" in row["number"] for row in rows):
        notes = ["A perplexity is of the model that the run made or measured, on the run's own test data; compare equal data."]
    tables = {"runs": runs, "numbers": rows, "settings that differ": differ}
    if rows:
        tables["runs"] = [{key: row[key] for key in row if key != "numbers"} for row in runs]
    return Report(
        "esscher report", {"page": page}, tables, [] if rows and "perplexity" not in str(rows[0]["number"]) else notes,
        json_tables={"runs": runs, "numbers": rows, "settings": differ}, tables_first=True,
    )  # fmt: skip


def _data_of(report: Report) -> str:
    """The data of a run in a word: its source, or that they are those of its base."""
    data = report.settings.get("data")
    source = data.get("source") if isinstance(data, Mapping) else data
    return str(source) if source else "those of its base"
