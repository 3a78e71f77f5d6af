"""Runs benchmarks one after the other, each in a process of its own, and keeps what each found as results/NAME.json.

A benchmark is a module of the folder: its docstring says what is compared and how, `REPEATS` how often unless told, and
`tables(repeats)` measures. One that fails, or that lacks something on this machine, keeps its last result, with the reason.
The page is written after every one, so that an aborted run loses nothing.
"""

import ast
import importlib
import importlib.metadata
import json
import os
import platform
import time
import traceback
import warnings
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks._device import describe, device
from benchmarks._page import page, section
from benchmarks._timing import MissingPartError, in_new_process

PAGE, RESULTS = "RESULTS.md", "results"
VERSIONS = ("torch", "transformers", "numpy", "scipy")


def benchmark_docs(folder: Path) -> dict[str, str]:
    """The benchmarks of a folder by name, with their docstrings."""
    files = sorted(file for file in folder.glob("*.py") if not file.stem.startswith("_"))
    return {file.stem: ast.get_docstring(ast.parse(file.read_text(encoding="utf8"))) or "" for file in files}


def runs_models(folder: Path, name: str) -> bool:
    """Whether a benchmark runs on the device that is named; the others measure on the CPU only."""
    return "benchmarks._device import" in (folder / f"{name}.py").read_text(encoding="utf8")


def kept_in(folder: Path) -> Path:
    """Where results are kept: those of the CPU in `results`, those of another device in a folder of its own inside."""
    return folder / RESULTS if device().type == "cpu" else folder / RESULTS / device().type


def run(folder: Path, names: list[str], repeats: int | None, threads: int, command: str) -> bool:
    """Measure, keep and show each; whether none failed. A part that this machine lacks is no failure."""
    os.environ |= {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    about = this_run(command, threads)
    kept_in(folder).mkdir(exist_ok=True, parents=True)
    well = True
    for number, name in enumerate(names):
        print(f"\n[{number + 1}/{len(names)}] {name}", flush=True)
        file = kept_in(folder) / f"{name}.json"
        try:
            actual = in_new_process(measured, f"{folder.name}.{name}", repeats)
            record = {"run": about, **actual}
        except Exception as error:
            why = str(error) if isinstance(error, MissingPartError) else f"{type(error).__name__}: {error}"
            well = well and isinstance(error, MissingPartError)
            if not isinstance(error, MissingPartError):
                traceback.print_exception(error)
            before = json.loads(file.read_text(encoding="utf8")) if file.exists() else {}
            record = before | {"failed": {"run": about, "why": why}}
        _write(file, json.dumps(record, indent=1) + "\n")
        write_page(folder)
        print(section(name, "", record), flush=True)
    return well


def measured(module: str, repeats: int | None) -> dict[str, Any]:
    """What a benchmark finds in this process, and how long it took."""
    warnings.simplefilter("ignore")
    benchmark = importlib.import_module(module)
    repeats, begun = repeats or benchmark.REPEATS, time.perf_counter()
    tables = [asdict(table) for table in benchmark.tables(repeats)]
    return {"repeats": repeats, "seconds": time.perf_counter() - begun, "tables": tables}


def write_page(folder: Path) -> None:
    """The page of all results that are kept: RESULTS.md of those on the CPU, RESULTS-cuda.md of those on a GPU."""
    docs = benchmark_docs(folder)
    if device().type != "cpu":
        docs = {name: text for name, text in docs.items() if runs_models(folder, name)}
    kept = {name: kept_in(folder) / f"{name}.json" for name in docs}
    records = {name: json.loads(file.read_text(encoding="utf8")) if file.exists() else {} for name, file in kept.items()}
    file = folder / (PAGE if device().type == "cpu" else PAGE.replace(".md", f"-{device().type}.md"))
    _write(file, page(docs, records))


def this_run(command: str, threads: int) -> dict[str, Any]:
    """Where, when, with what and beside what the sections of a run are measured."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = {"Python": platform.python_version()} | {name: importlib.metadata.version(name) for name in VERSIONS}
    return {
        "command": command,
        "began": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "threads": threads,
        "load": round(os.getloadavg()[0], 2),
        "machine": f"{model}, {os.cpu_count()} cores, {memory:.0f} GB, {platform.system()}",
        "versions": versions,
        **describe(),
    }


def _write(file: Path, text: str) -> None:
    """All of the file or none of it."""
    part = file.with_name(file.name + ".part")
    part.write_text(text, encoding="utf8")
    part.replace(file)
