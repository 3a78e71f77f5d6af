"""Run all faults, or those of some families, and print the table: `python tests/faults/run.py [FAMILY ...] [--json FILE]`.

Two processes share the cases of a family; each case has a folder of its own. Every process is a fork of one that has loaded
torch and the library. Ends with 1 if a fault happened or a family has fewer cases than it must have.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from importlib import import_module
from multiprocessing import forkserver, util
from pathlib import Path

HERE = Path(__file__).resolve()
OTHERS = [folder for folder in sys.path if Path(folder).resolve() != HERE.parent]  # numbers.py would be Python's own
sys.path[:] = [str(HERE.parents[1]), str(HERE.parents[2]), *OTHERS]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from forks import forks

from faults.suite import Family, Outcome

FAMILIES = ("kills", "damage", "hostile", "servers", "numbers")


def family(name: str) -> Family:
    found: Family = import_module(f"faults.{name}").FAMILY
    return found


def run_case(name: str, number: int) -> tuple[str, Outcome, float]:
    """One case in a folder of its own, and its seconds; an exception of the case is a fault of the suite."""
    case, started = _cases(name)[number], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="esscher-faults-") as folder:
        try:
            outcome = case.run(Path(folder))
        except Exception:
            outcome = Outcome({"broken cases": 1}, traceback.format_exc())
    return case.name, outcome, time.monotonic() - started


_CASES: dict[str, list] = {}


def _cases(name: str) -> list:
    if name not in _CASES:
        _CASES[name] = list(family(name).cases())
    return _CASES[name]


def processor_seconds() -> float:
    """What this process and the one that all others are forks of have used, with those that have ended."""
    words = Path(f"/proc/{forkserver._forkserver._forkserver_pid}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")


def run_family(name: str, processes: int) -> dict:
    """All cases of a family: how many, what went wrong, and how long it took."""
    forkserver.ensure_running()
    chosen, started, used = family(name), time.monotonic(), processor_seconds()
    count, faults, details, slowest = len(_cases(name)), Counter(), [], []
    processes = 1 if chosen.serial else processes
    pool = ThreadPoolExecutor(processes) if chosen.forks else ProcessPoolExecutor(processes, mp_context=forks())
    with pool:
        for done, (case, outcome, seconds) in enumerate(pool.map(run_case, [name] * count, range(count)), 1):
            faults.update(outcome.faults)
            slowest = sorted([*slowest, (round(seconds, 1), case)])[-5:]
            if any(outcome.faults.values()):
                details.append({"case": case, **outcome.faults, "detail": outcome.detail})
                print(f"{name}: {case}: {dict(outcome.faults)}\n{outcome.detail}", file=sys.stderr)
            if done % 50 == 0 or done == count:
                print(f"{name}: {done} of {count} cases, {sum(faults.values())} faults", file=sys.stderr, flush=True)
    print(f"{name}: slowest {slowest}", file=sys.stderr, flush=True)
    named = {fault: faults[fault] for fault in (*chosen.faults, *(set(faults) - set(chosen.faults)))}
    return {
        "family": name, "what": chosen.what, "cases": count, "fewest": chosen.fewest, "faults": named, "details": details,
        "seconds": round(time.monotonic() - started), "processor seconds": round(processor_seconds() - used),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "families", nargs="*", metavar="FAMILY", choices=(*FAMILIES, [])
    )  # [] is what argparse compares where none is named
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    started = time.monotonic()
    forks()  # before its first process, so that this one loads the library
    util.get_temp_dir()  # of this process, outside of the folder
    with tempfile.TemporaryDirectory(prefix="esscher-faults-") as folder:  # also of what killed processes leave
        os.environ["TMPDIR"], tempfile.tempdir = folder, folder
        results = [run_family(name, asked.processes) for name in asked.families or FAMILIES]
    for row in results:
        faults = ", ".join(f"{count} {fault}" for fault, count in row["faults"].items())
        print(f"{row['what']}: {row['cases']} tried; {faults} ({row['seconds']} s)")
    used = sum(row["processor seconds"] for row in results)
    print(f"In all {time.monotonic() - started:.0f} s, and {used} s of the processors")
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
