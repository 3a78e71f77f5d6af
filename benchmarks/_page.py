"""The page of results: a head that says which run measured what, and a section a benchmark."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

BUSY = 0.5

HEAD = """# Results of the benchmarks
Written by `make bench` (`python -m benchmarks`): change a benchmark, not this page. `python -m benchmarks NAME ...` measures
the sections named again and keeps the others.

Sides take turns in one process, after a round that warms up. Ratios are taken within a repeat. A figure with brackets is the
median, the least and the greatest over the repeats; one without is a median. Seconds are the clock's (with `--threads 1` the
processor's). Absolute figures do not travel between machines."""


def page(texts: Mapping[str, str], records: Mapping[str, Mapping[str, Any]]) -> str:
    """All of it, from the benchmarks' docstrings and what is kept of each."""
    measured = {name: record for name, record in records.items() if "tables" in record}
    runs: list[Mapping[str, Any]] = []
    for record in measured.values():
        if record["run"] not in runs:
            runs.append(record["run"])
    runs.sort(key=lambda run: run["began"])
    parts = [HEAD]
    if len(runs) > 1:
        parts.append(f"**The sections come from {len(runs)} runs**, told apart below.")
    parts.append(markdown([_run_row(number, run) for number, run in enumerate(runs, 1)]))
    parts += [_warning(number, run["load"]) for number, run in enumerate(runs, 1) if run["load"] > BUSY]
    rows = [
        {"section": f"[{name}](#{name})", "minutes": minutes(record["seconds"]), "repeats": record["repeats"],
         "run": runs.index(record["run"]) + 1}
        for name, record in measured.items()
    ]  # fmt: skip
    total = {"section": "all", "minutes": minutes(sum(record["seconds"] for record in measured.values()))}
    parts.append(markdown([*rows, total]))
    parts += [section(name, text, records[name]) for name, text in texts.items()]
    return "\n\n".join(part for part in parts if part) + "\n"


def _run_row(number: int, run: Mapping[str, Any]) -> dict[str, Any]:
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    output = {"run": number, "command": f"`{run['command']}`", "began": run["began"], "threads": run["threads"]}
    where = {"device": run.get("device", "cpu"), "dtype": run.get("dtype", "float32")}
    return output | where | {"load at the start": run["load"], "machine": run["machine"], "versions": versions}


def _warning(number: int, load: float) -> str:
    return f"**Other work was running when run {number} began (load {load}, above {BUSY}): its times are not to be relied on.**"


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"


def section(name: str, text: str, record: Mapping[str, Any]) -> str:
    """One benchmark: what is compared, the command, its tables; or why there are none, or none newer."""
    parts = [f"## {name}", text]
    if "tables" in record:
        parts.append(f"`{command(name, record)}`, {record['run']['began']}, {minutes(record['seconds'])} minutes.")
    if "failed" in record:
        failed = record["failed"]
        kept = "the tables are those of the run before" if "tables" in record else "there is no earlier result"
        parts.append(f"**Not measured by the run of {failed['run']['began']}; {kept}.** {_one_line(failed['why'])}")
    elif "tables" not in record:
        parts.append("**Not measured yet.**")
    for table in record.get("tables", ()):
        parts += [f"*{table['title']}*", markdown(table["rows"])]
    return "\n\n".join(part for part in parts if part)


def command(name: str, record: Mapping[str, Any]) -> str:
    device = record["run"].get("device", "cpu").partition(",")[0]
    where = "" if device == "cpu" else f" --device {device}"
    return f"python -m benchmarks {name} --repeats {record['repeats']} --threads {record['run']['threads']}{where}"


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table, nothing if there are none; numbers to the right."""
    if not rows:
        return ""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    numeric = [all(not isinstance(row.get(key), str) for row in rows) for key in columns]
    lines = [columns, ["---:" if right else "---" for right in numeric]]
    lines += [[format_cell(row.get(key)) for key in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_cell(value: Any) -> str:
    """A value as people read it: three digits that count, a spread with its ends."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        middle, low, high = (_number(value[key], value["median"]) for key in ("median", "low", "high"))
        return f"{middle} [{low}, {high}]"
    return _number(value, value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value


def _number(value: float, scale: float) -> str:
    """A number with as many digits as one of this scale deserves."""
    size = abs(scale)
    if not math.isfinite(size):
        return str(value)
    if value == 0:
        return "0"
    if size < 0.01:
        return f"{value:.1e}"
    return f"{value:,.{0 if size >= 100 else 1 if size >= 20 else 2 if size >= 1 else 3}f}"


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
