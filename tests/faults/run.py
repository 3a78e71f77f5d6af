"""Run all faults, or those of some families, and print the table: `python tests/faults/run.py [FAMILY ...] [--json FILE]`.

Two processes share the cases of a family; each case has a folder of its own. Ends with 1 if a fault happened or a family has
fewer cases than it must have.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

HERE = Path(__file__).resolve()
OTHERS = [folder for folder in sys.path if Path(folder).resolve() != HERE.parent]  # numbers.py would be Python's own
sys.path[:] = [str(HERE.parents[1]), str(HERE.parents[2]), *OTHERS]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from faults.suite import Family, Outcome

FAMILIES = ("kills", "damage", "hostile", "servers", "numbers")


def family(name: str) -> Family:
    found: Family = import_module(f"faults.{name}").FAMILY
    return found


def run_case(name: str, number: int) -> tuple[str, Outcome]:
    """One case in a folder of its own; an exception of the case is a fault of the suite."""
    case = _cases(name)[number]
    with tempfile.TemporaryDirectory(prefix="esscher-faults-") as folder:
        try:
            return case.name, case.run(Path(folder))
        except Exception:
            return case.name, Outcome({"broken cases": 1}, traceback.format_exc())


_CASES: dict[str, list] = {}


def _cases(name: str) -> list:
    if name not in _CASES:
        _CASES[name] = list(family(name).cases())
    return _CASES[name]


def run_family(name: str, processes: int) -> dict:
    """All cases of a family: how many, what went wrong, and how long it took."""
    chosen, started = family(name), time.monotonic()
    count, faults, details = len(_cases(name)), Counter(), []
    with ProcessPoolExecutor(1 if chosen.serial else processes, mp_context=get_context("spawn")) as pool:
        for done, (case, outcome) in enumerate(pool.map(run_case, [name] * count, range(count)), 1):
            faults.update(outcome.faults)
            if any(outcome.faults.values()):
                details.append({"case": case, **outcome.faults, "detail": outcome.detail})
                print(f"{name}: {case}: {dict(outcome.faults)}\n{outcome.detail}", file=sys.stderr)
            if done % 50 == 0 or done == count:
                print(f"{name}: {done} of {count} cases, {sum(faults.values())} faults", file=sys.stderr, flush=True)
    named = {fault: faults[fault] for fault in (*chosen.faults, *(set(faults) - set(chosen.faults)))}
    return {
        "family": name, "what": chosen.what, "cases": count, "fewest": chosen.fewest, "faults": named, "details": details,
        "seconds": round(time.monotonic() - started),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "families", nargs="*", metavar="FAMILY", choices=(*FAMILIES, [])
    )  # [] is what argparse compares where none is named
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    results = [run_family(name, asked.processes) for name in asked.families or FAMILIES]
    for row in results:
        faults = ", ".join(f"{count} {fault}" for fault, count in row["faults"].items())
        print(f"{row['what']}: {row['cases']} tried; {faults} ({row['seconds']} s)")
    if asked.json is not None:
        content = {"command": "make faults", "figures": results}
        asked.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf8")
    good = all(not any(row["faults"].values()) and row["cases"] >= row["fewest"] for row in results)
    cases = sum(row["cases"] for row in results)
    failed = sum(len(row["details"]) for row in results)
    print(f"{cases - failed} passed, {failed} failed")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
