"""What a verb will cost, before it starts: updates, draws, tokens, minutes, disk and memory.

Each long verb describes its work as a `Cost` and calls `before_start` at the point where the work begins. Work of more than a
minute is then announced in one line; within `dry_run` (the flag --dry-run) the verb ends there, having written nothing:

    with dry_run() as planned:
        model.distil(out="runs/plain")
    print(planned.cost.minutes)

Times come from a few real steps on this machine (`esscher.workflow.calibration`), so they are estimates. In several processes
nothing is timed or announced.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from esscher.core.distributed import world_size
from esscher.core.progress import current_progress, is_quiet
from esscher.reports.report import Report

LONG = 60.0  # seconds of work that are announced
ROUGH = (
    "Minutes are an estimate from a few timed steps on this machine as it is now; they may be off by a factor of two. "
    "Nothing was written."
)


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step: the mean, the fastest and the slowest of those that were timed."""

    mean: float
    fastest: float
    slowest: float

    @classmethod
    def of(cls, times: list[float]) -> "StepTime":
        return cls(sum(times) / len(times), min(times), max(times))

    def scaled(self, factor: float) -> "StepTime":
        return StepTime(self.mean * factor, self.fastest * factor, self.slowest * factor)


@dataclass(frozen=True)
class Phase:
    """A part of the work: `count` steps, each of `size`, and the time of one."""

    name: str
    count: int
    unit: str
    """What is counted, such as updates or draws."""
    each: StepTime
    size: str = ""
    """How large one step is, such as 16 sequences, 2,048 tokens."""
    tokens: int = 0
    """Tokens that all steps read or draw; 0 where nothing is counted in tokens."""

    @property
    def seconds(self) -> float:
        return self.count * self.each.mean

    def __str__(self) -> str:
        unit = self.unit.removesuffix("s") if self.count == 1 else self.unit
        return f"{self.count:,} {unit}" + (f" of {self.size}" if self.size else "")


@dataclass(frozen=True)
class Cost:
    """The phases of a verb, and what its folder and its process will need."""

    verb: str
    phases: tuple[Phase, ...]
    out: str | None = None
    """Folder or file that the verb would write."""
    disk: int = 0
    """Bytes of that folder at most."""
    memory: int = 0
    """Bytes of memory at the peak."""
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    unknown: str = ""
    """Why the time is not known, where it is not."""

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)

    @property
    def minutes(self) -> float:
        return self.seconds / 60

    @property
    def minutes_range(self) -> tuple[float, float]:
        """Minutes if every step took as long as the fastest one that was timed, and as the slowest."""
        fastest, slowest = (
            sum(phase.count * getattr(phase.each, end) for phase in self.phases) for end in ("fastest", "slowest")
        )
        return fastest / 60, slowest / 60

    @property
    def sentence(self) -> str:
        """One line for a person who waits: the time, and the phases that take most of it."""
        if self.unknown:
            return self.unknown
        longest = sorted(self.phases, key=lambda phase: -phase.seconds)[:2]
        shown = [phase for phase in self.phases if phase in longest and phase.seconds > 0.1 * self.seconds]
        alike = len({str(phase) for phase in shown}) < len(shown)
        words = ", ".join(f"{phase} ({phase.name})" if alike else str(phase) for phase in shown)
        return f"About {duration(self.seconds)}: {words}; --dry-run shows the details."

    def report(self) -> Report:
        """The cost as a report: a row for each phase, and the sums."""
        rows = [
            {"what": phase.name, "steps": str(phase), "tokens": phase.tokens or None, "minutes": _rounded(phase.seconds / 60)}
            for phase in self.phases
        ]
        low, high = self.minutes_range
        facts: dict[str, Any] = {
            "would_take": f"about {duration(self.seconds)}", "minutes": _rounded(self.minutes),
            "minutes_by_fastest_step": _rounded(low), "minutes_by_slowest_step": _rounded(high),
            "tokens": sum(phase.tokens for phase in self.phases),
        }  # fmt: skip
        if self.unknown:
            facts = {"would_take": "not known"}
        facts |= {"would_write": self.out, "disk_mb": _rounded(self.disk / 1e6)} if self.out is not None else {}
        facts |= {"memory_gb": _rounded(self.memory / 1e9)} if self.memory else {}
        notes = [*self.notes, *([self.unknown, "Nothing was written."] if self.unknown else [ROUGH])]
        return Report(f"{self.verb}, dry run", {**facts, **self.facts}, {"cost": rows} if rows else {}, notes)


def _rounded(value: float) -> float:
    """Two significant digits, as many as an estimate has."""
    return float(f"{value:.2g}")


def duration(seconds: float) -> str:
    """A length of time as a person says it: 40 seconds, 8 minutes, 3 hours."""
    for limit, size, unit in (
        (90, 1, "second"),
        (90 * 60, 60, "minute"),
        (48 * 3600, 3600, "hour"),
        (float("inf"), 86400, "day"),
    ):
        if seconds < limit:
            count = max(1, round(seconds / size))
            return f"{count:,} {unit}{'' if count == 1 else 's'}"
    raise AssertionError("a duration is a number")


class DryRunEndError(Exception):
    """Ends a verb within `dry_run`, where its work would begin."""


class Planned:
    """What a dry run says: the cost of the verb, once it was called."""

    _cost: Cost | None = None

    @property
    def cost(self) -> Cost:
        if self._cost is None:
            raise ValueError("No verb that plans its work was called within this dry run, so there is no cost.")
        return self._cost


_PLANNED: ContextVar[Planned | None] = ContextVar("dry run", default=None)
_SILENT: ContextVar[bool] = ContextVar("costs are not announced", default=False)


@contextmanager
def dry_run() -> Iterator[Planned]:
    """Within the block a verb ends where its work would begin, and the cost is in what the block is given."""
    if world_size() > 1:
        raise ValueError(
            f"{world_size()} processes were started, and a dry run is for one. Nothing was done; start one process."
        )
    planned = Planned()
    token = _PLANNED.set(planned)
    try:
        yield planned
    except DryRunEndError:
        pass
    finally:
        _PLANNED.reset(token)


@contextmanager
def unannounced() -> Iterator[None]:
    """Within the block nothing is announced, because what is around it was."""
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)


def is_dry_run() -> bool:
    """Whether the verb that runs will end before its work."""
    return _PLANNED.get() is not None


def written(folder: Path | None) -> Path | None:
    """The folder to lock and write; None in a dry run, which writes nothing."""
    return None if is_dry_run() else folder


def before_start(plan: Callable[[], Cost]) -> None:
    """Announce work of more than a minute; within `dry_run`, end the verb here with its cost.

    `plan` is not called where nobody would see the result: quietly, in several processes, and in work that is announced."""
    planned = _PLANNED.get()
    if planned is not None:
        planned._cost = plan()
        raise DryRunEndError
    if _SILENT.get() or is_quiet() or world_size() > 1:
        return
    try:
        cost = plan()
    except Exception:  # the work itself raises it, too, and says what became of it; an estimate never stops a run
        return
    if cost.unknown or cost.seconds > LONG:
        current_progress().say(cost.sentence)
