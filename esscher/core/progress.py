"""Progress of long work, without torch, on standard error: a live bar on a terminal, plain lines elsewhere, JSON lines for
programs, or nothing. `progress_as` chooses the form; code that has something to report calls `current_progress()`. Work in
named stages is one bar (`Stages`), which the progress within a stage moves."""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from esscher.core.console import console, write_line
from esscher.core.distributed import is_main_process
from esscher.core.estimate import Estimate

PROGRESS_INTERVAL = 10.0  # seconds between two reports

ProgressForm = Literal["auto", "quiet", "json-lines"]
_FORM: ContextVar[ProgressForm] = ContextVar("form of progress", default="auto")
_STAGES: ContextVar["Stages | None"] = ContextVar("stages", default=None)


class Throttle:
    """Limits the reports of a loop to one every `interval` seconds, and extrapolates the time that is left."""

    def __init__(self, interval: float | None = None):
        self.interval = PROGRESS_INTERVAL if interval is None else interval
        self.elapsed = 0.0  # seconds from the start to the last call of `due`
        self.reports = 0
        self._start = self._last = time.monotonic()

    def due(self, *, force: bool = False) -> bool:
        """Whether to report now; True starts the next interval."""
        now = time.monotonic()
        self.elapsed = now - self._start
        if now - self._last < self.interval and not force:
            return False
        self._last, self.reports = now, self.reports + 1
        return True

    def rate(self, done: float) -> float:
        """Units done per second."""
        return done / max(self.elapsed, 1e-9)

    def seconds_left(self, done: float, total: float) -> float:
        """Seconds until `total` units are done, at the rate so far."""
        return max(0.0, total - done) / max(done, 1e-9) * self.elapsed


class Progress:
    """A display that a run informs of its updates, evaluations and events; this one shows nothing."""

    def begin(self, step: int, steps: int) -> None: ...

    def update(self, step: int, loss: float, tokens: int) -> None: ...

    def evaluation_done(self, step: int, estimate: Estimate, best: bool) -> None: ...

    def say(self, text: str) -> None: ...

    def end(self) -> None: ...

    @contextmanager
    def counting(self, what: str, total: int) -> Iterator[Callable[[float], None]]:
        """Show how much of `total` is done within the block, which calls the function that it gets with what is done so far."""
        yield lambda done: None


@contextmanager
def progress_as(form: ProgressForm) -> Iterator[None]:
    """Show all progress within the block in this form."""
    token = _FORM.set(form)
    try:
        yield
    finally:
        _FORM.reset(token)


def is_quiet() -> bool:
    """Whether no progress is shown."""
    return _FORM.get() == "quiet" or not is_main_process()


def current_progress() -> Progress:
    """A display in the form of `progress_as`; "auto" is a bar on a terminal, else lines. Only the main process shows any."""
    if is_quiet():
        return Progress()
    if _FORM.get() == "json-lines":
        return JsonLinesProgress()
    stages = _STAGES.get()
    if stages is not None:
        return StageProgress(stages)
    terminal = console(error=True)
    return ProgressBar(terminal) if terminal.is_terminal else LineProgress()


class LineProgress(Progress):
    """A line for each evaluation, and lines at intervals and at the last step, with the last evaluation."""

    validation = ""

    def begin(self, step: int, steps: int) -> None:
        self.first, self.steps, self.tokens, self.throttle = step, steps, 0, Throttle()

    def update(self, step: int, loss: float, tokens: int) -> None:
        self.tokens += tokens
        if self.throttle.due(force=step == self.steps):
            left = self.throttle.seconds_left(step - self.first, self.steps - self.first)
            self.report(step, loss, self.throttle.rate(self.tokens), left)

    def report(self, step: int, loss: float, tokens_per_second: float, seconds_left: float) -> None:
        rate, left = f"{tokens_per_second:,.0f} tokens/s", f"{_format_duration(seconds_left)} left"
        self.say(f"step {step}/{self.steps}  loss {loss:.4f}  {rate}  {left}{self.validation}")

    def evaluation_done(self, step: int, estimate: Estimate, best: bool) -> None:
        self.validation = f"  validation {_format_estimate(estimate)}"
        self.say(f"step {step}/{self.steps}{self.validation}{'  best so far' if best else ''}")

    def say(self, text: str) -> None:
        write_line(text, error=True)

    @contextmanager
    def counting(self, what: str, total: int) -> Iterator[Callable[[float], None]]:
        throttle = Throttle()

        def show(done: float) -> None:
            if throttle.due(force=done >= total and throttle.reports > 0):
                self.report_count(what, min(int(done), total), total, throttle.seconds_left(done, total))

        yield show

    def report_count(self, what: str, done: int, total: int, seconds_left: float) -> None:
        self.say(f"{what} {done:,} of {total:,}  {_format_duration(seconds_left)} left")


class JsonLinesProgress(LineProgress):
    """The reports of `LineProgress` as JSON objects with an `event`: begin, update, evaluated, counted, said or end."""

    def begin(self, step: int, steps: int) -> None:
        super().begin(step, steps)
        self._write("begin", step=step, steps=steps)

    def report(self, step: int, loss: float, tokens_per_second: float, seconds_left: float) -> None:
        speed = {"tokens_per_second": tokens_per_second, "seconds_left": seconds_left}
        self._write("update", step=step, steps=self.steps, loss=loss, **speed)

    def evaluation_done(self, step: int, estimate: Estimate, best: bool) -> None:
        validation = {name: _finite(value) for name, value in estimate.to_dict().items()}
        self._write("evaluated", step=step, steps=self.steps, validation=validation, best=best)

    def say(self, text: str) -> None:
        self._write("said", text=text)

    def report_count(self, what: str, done: int, total: int, seconds_left: float) -> None:
        self._write("counted", what=what, done=done, total=total, seconds_left=seconds_left)

    def end(self) -> None:
        self._write("end")

    def _write(self, event: str, **fields: Any) -> None:
        values = {name: _finite(value) for name, value in fields.items()}
        write_line(json.dumps({"event": event, **values}), error=True)


class ProgressBar(Progress):
    """A bar with rate, time left, loss and the last evaluation, which has its interval where the terminal has room for it."""

    def __init__(self, console: Console):
        self.wide = console.width >= 132
        self.bar = RichProgress(
            BarColumn(40 if self.wide else 10),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[loss]}"),
            TextColumn("{task.fields[validation]}"),
            console=console,
        )

    def begin(self, step: int, steps: int) -> None:
        self.task = self.bar.add_task("", total=steps, completed=step, rate="", loss="", validation="")
        self.tokens, self.start = 0, time.monotonic()
        self.bar.start()

    def update(self, step: int, loss: float, tokens: int) -> None:
        self.tokens += tokens
        rate = self.tokens / max(time.monotonic() - self.start, 1e-9)
        self.bar.update(self.task, completed=step, rate=f"{rate:,.0f} tokens/s", loss=f"loss {loss:.4f}")

    def evaluation_done(self, step: int, estimate: Estimate, best: bool) -> None:
        shown = f"{_format_estimate(estimate)}{' (best)' if best else ''}" if self.wide else f"{estimate.value:.4f}"
        self.bar.update(self.task, validation=f"validation {shown}")

    def say(self, text: str) -> None:
        self.bar.console.print(text, highlight=False, markup=False)

    def end(self) -> None:
        self.bar.stop()

    @contextmanager
    def counting(self, what: str, total: int) -> Iterator[Callable[[float], None]]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with RichProgress(*columns, console=self.bar.console) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=min(int(done), total))
            bar.update(task, completed=total)


class Stages:
    """Work in named stages: on a terminal one bar for all of them, else a line for each; what is said within a stage is left
    out. `shares` are the names in order, each with its expected share of the time.

        with Stages({"training a base": 1, "tilting it": 2}) as stages:
            with stages.stage("training a base"):
                ...
    """

    def __init__(self, shares: Mapping[str, float]):
        total, done = sum(shares.values()), 0.0
        self.spans: dict[str, tuple[float, float]] = {}
        for name, share in shares.items():
            self.spans[name] = (done / total, share / total)
            done += share
        self.name = ""
        self.bar: RichProgress | None = None

    def __enter__(self) -> "Stages":
        terminal = console(error=True)
        if _FORM.get() == "auto" and is_main_process() and terminal.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                TimeElapsedColumn(),
            )
            self.bar = RichProgress(*columns, console=terminal)
            self.task = self.bar.add_task("", total=1.0)
            self.bar.start()
        self.token = _STAGES.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _STAGES.reset(self.token)
        if self.bar is not None:
            self.bar.stop()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """The block is the stage of that name."""
        number, self.name = [*self.spans].index(name) + 1, name
        title = f"{number}/{len(self.spans)} {name}"
        self.advance(0.0)
        if self.bar is not None:
            self.bar.update(self.task, description=title)
        else:
            self.say(f"{title} ...")
        yield
        self.advance(1.0)

    def advance(self, share: float) -> None:
        """So much of the current stage is done."""
        if self.bar is not None:
            start, length = self.spans[self.name]
            self.bar.update(self.task, completed=start + share * length)

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False)
        elif _FORM.get() != "quiet" and is_main_process():
            (JsonLinesProgress() if _FORM.get() == "json-lines" else LineProgress()).say(text)


class StageProgress(Progress):
    """Progress of training within a stage, which moves the bar of all stages."""

    def __init__(self, stages: Stages):
        self.stages = stages

    def begin(self, step: int, steps: int) -> None:
        self.steps = steps

    def update(self, step: int, loss: float, tokens: int) -> None:
        self.stages.advance(step / max(1, self.steps))


def _finite(value: Any) -> Any:
    """The value, None in place of a number that JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _format_estimate(estimate: Estimate) -> str:
    return f"{estimate.value:.4f} [{estimate.low:.4f}, {estimate.high:.4f}]"


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
