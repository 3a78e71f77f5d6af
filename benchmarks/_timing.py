"""Timing of alternating runs, ratios within each repeat, and peak memory of a run in a process of its own: of the process, or
on a GPU of the tensors that torch has allocated there."""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks._device import device, synchronize

Run = Callable[[], Any]
Row = dict[str, Any]
Seconds = dict[str, list[float]]


@dataclass(frozen=True)
class Table:
    """Rows as the page shows them; a value is text, a number, or a `spread`."""

    title: str
    rows: list[Row]


class MissingPartError(Exception):
    """Something that a benchmark needs is not on this machine; the text says what, and how to get it."""


def time_runs(runs: Mapping[str, Run], repeats: int) -> Seconds:
    """Seconds of each run in each repeat, runs alternating; the first round is a warm-up and dropped."""
    seconds: Seconds = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            seconds[name].append(timed(run)[1])
    return {name: some[1:] for name, some in seconds.items()}


def timed(run: Run) -> tuple[Any, float]:
    """What a run gives, and its seconds: the processor's with one thread on the CPU (other work then matters less), else the
    clock's, from an idle device to an idle device."""
    one_thread = device().type == "cpu" and os.environ.get("OMP_NUM_THREADS") == "1"
    clock = time.process_time if one_thread else time.perf_counter
    synchronize()
    began = clock()
    result = run()
    synchronize()
    return result, clock() - began


def versus(seconds: Seconds, ours: str, peer: str, amount: Mapping[str, float] | None = None, unit: str = "ms") -> Row:
    """Columns that say how fast we are beside a peer: milliseconds, or what each does in a second if amounts are given."""

    def speed(side: str) -> float:
        middle = statistics.median(seconds[side])
        return 1000 * middle if amount is None else amount[side] / middle

    work = amount or dict.fromkeys(seconds, 1.0)
    ratio = [work[ours] / item / (work[peer] / other) for item, other in zip(seconds[ours], seconds[peer], strict=True)]
    return {
        "ours": ours,
        "peer": peer,
        f"{unit}, ours": speed(ours),
        f"{unit}, peer": speed(peer),
        "times as fast": spread(ratio),
    }


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def in_new_process(function: Callable[..., Any], *given: Any) -> Any:
    """What a function gives in a new process; if that process fails or dies, this raises."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as processes:
        return processes.submit(function, *given).result()


def peak_memory(make: Callable[..., Run], *given: Any) -> float:
    """Megabytes that a made run needs at its peak over what was there before, in a process of its own: those of the process
    (Linux), or of a CUDA device."""
    return in_new_process(_peak, make, given)


def _peak(make: Callable[..., Run], given: tuple[Any, ...]) -> float:
    run = make(*given)
    if device().type == "cuda":
        synchronize()
        torch.cuda.reset_peak_memory_stats(device())
        held = torch.cuda.memory_allocated(device())
        run()
        synchronize()
        return (torch.cuda.max_memory_allocated(device()) - held) / 2**20
    Path("/proc/self/clear_refs").write_text("5")  # forget earlier peaks
    before = _resident("VmRSS")
    run()
    return (_resident("VmHWM") - before) / 1024


def _resident(what: str) -> int:
    """Kilobytes of this process in memory: now (VmRSS), or at the peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))
