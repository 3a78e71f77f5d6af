"""How sides are compared: in turns, each round one repeat; and how much memory a run adds at its peak."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

Run = Callable[[], None]


def in_turns(runs: dict[str, Run], repeats: int, clock: Callable[[], float] = time.perf_counter) -> dict[str, list[float]]:
    """Seconds of each run in each repeat, the runs taking turns; the first round warms up and is dropped."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            begun = clock()
            run()
            seconds[name].append(clock() - begun)
    return {name: some[1:] for name, some in seconds.items()}


def faster(seconds: dict[str, list[float]]) -> list[dict[str, object]]:
    """A row for each side: its milliseconds, and how many times as fast as the first one it is, within each repeat."""
    first = next(iter(seconds.values()))
    rows: list[dict[str, object]] = []
    for side, some in seconds.items():
        ratio = [one / other for one, other in zip(first, some, strict=True)]
        row: dict[str, object] = {"side": side, "milliseconds": round(1000 * statistics.median(some), 1)}
        rows.append(
            row
            | {"times as fast": round(statistics.median(ratio), 2), "low": round(min(ratio), 2), "high": round(max(ratio), 2)}
        )
    return rows


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def peak_elsewhere(script: str, threads: int, work: str, side: str) -> float:
    """The `peak` that a script tells of one side in a process of its own, by its option --gain."""
    command = [sys.executable, script, "--threads", str(threads), "--gain", work, side]
    return round(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout), 1)


def peak(run: Run) -> float:
    """Megabytes that a run needs at its peak over what this process has, which should not have computed yet (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # forget earlier peaks
    before = _resident("VmRSS")
    run()
    return (_resident("VmHWM") - before) / 1024


def _resident(what: str) -> int:
    """Kilobytes of this process in memory: now (VmRSS), or at the peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))
