"""What a person sees while a model trains: a live line on a terminal, plain lines elsewhere, nothing when quiet.

Everything goes to standard error, so that standard output stays free for results. `progress_as` chooses another form for all
that runs within it: JSON objects, one a line, for programs that watch, or nothing.
"""

import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from esscher.estimate import Estimate
from esscher.launch import first_process

PAUSE = 10.0  # seconds between two plain lines


@runtime_checkable
class Progress(Protocol):
    """Told of every update, evaluation and event of a run."""

    def begin(self, step: int, steps: int) -> None: ...

    def update(self, step: int, loss: float, tokens: int) -> None: ...

    def evaluated(self, step: int, found: Estimate, best: bool) -> None: ...

    def say(self, text: str) -> None: ...

    def end(self) -> None: ...


Form = Literal["suitable", "quiet", "json-lines"]
_FORM: ContextVar[Form] = ContextVar("form of progress", default="suitable")


@contextmanager
def progress_as(form: Form) -> Iterator[None]:
    """Within it, progress is shown in this form."""
    before = _FORM.set(form)
    try:
        yield
    finally:
        _FORM.reset(before)


def choose_progress(quiet: bool) -> Progress:
    """The display that was asked for, or the one that suits standard error; of several processes only the first speaks."""
    if quiet or _FORM.get() == "quiet" or not first_process():
        return Silent()
    if _FORM.get() == "json-lines":
        return JsonLines()
    console = Console(stderr=True)
    return Live(console) if console.is_terminal else Lines()


class Silent:
    """Shows nothing."""

    def begin(self, step: int, steps: int) -> None: ...

    def update(self, step: int, loss: float, tokens: int) -> None: ...

    def evaluated(self, step: int, found: Estimate, best: bool) -> None: ...

    def say(self, text: str) -> None: ...

    def end(self) -> None: ...


class _Speed:
    """How fast a run goes; it speaks at the last step, and now and then before."""

    def __init__(self, step: int, steps: int):
        self.first, self.steps, self.tokens = step, steps, 0
        self.started = self.spoken = time.monotonic()

    def due(self, step: int, tokens: int) -> tuple[float, float] | None:
        """Tokens a second and seconds left, where it is time to speak."""
        self.tokens += tokens
        now = time.monotonic()
        if now - self.spoken < PAUSE and step != self.steps:
            return None
        self.spoken = now
        passed = max(now - self.started, 1e-9)
        return self.tokens / passed, passed / (step - self.first) * (self.steps - step)


class Lines:
    """A line at each evaluation, and one now and then between, with the last evaluation."""

    found = ""

    def begin(self, step: int, steps: int) -> None:
        self.steps, self.speed = steps, _Speed(step, steps)

    def update(self, step: int, loss: float, tokens: int) -> None:
        told = self.speed.due(step, tokens)
        if told is not None:
            rate, left = told
            self.say(f"step {step}/{self.steps}  loss {loss:.4f}  {rate:,.0f} tokens/s  {_clock(left)} left{self.found}")

    def evaluated(self, step: int, found: Estimate, best: bool) -> None:
        self.found = f"  validation {_short(found)}"
        self.say(f"step {step}/{self.steps}  validation {_short(found)}{'  best so far' if best else ''}")

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def end(self) -> None: ...


class JsonLines:
    """The same as `Lines`, each line a JSON object with an `event`: begin, update, evaluated, said or end."""

    def begin(self, step: int, steps: int) -> None:
        self.steps, self.speed = steps, _Speed(step, steps)
        self._tell("begin", step=step, steps=steps)

    def update(self, step: int, loss: float, tokens: int) -> None:
        told = self.speed.due(step, tokens)
        if told is not None:
            rate, left = told
            loss_ = loss if math.isfinite(loss) else None
            self._tell("update", step=step, steps=self.steps, loss=loss_, tokens_per_second=rate, seconds_left=left)

    def evaluated(self, step: int, found: Estimate, best: bool) -> None:
        finite = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in found.to_dict().items()}
        self._tell("evaluated", step=step, steps=self.steps, validation=finite, best=best)

    def say(self, text: str) -> None:
        self._tell("said", text=text)

    def end(self) -> None:
        self._tell("end")

    def _tell(self, event: str, **told: Any) -> None:
        print(json.dumps({"event": event, **told}, ensure_ascii=False), file=sys.stderr, flush=True)


class Live:
    """A bar with rate, time left, loss and the last evaluation."""

    def __init__(self, console: Console):
        self.bars = Bars(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}  {task.fields[found]}"),
            console=console,
        )

    def begin(self, step: int, steps: int) -> None:
        self.task = self.bars.add_task("", total=steps, completed=step, rate="", loss="", found="")
        self.tokens, self.started = 0, time.monotonic()
        self.bars.start()

    def update(self, step: int, loss: float, tokens: int) -> None:
        self.tokens += tokens
        rate = self.tokens / max(time.monotonic() - self.started, 1e-9)
        self.bars.update(self.task, completed=step, rate=f"{rate:,.0f} tokens/s", loss=f"loss {loss:.4f}")

    def evaluated(self, step: int, found: Estimate, best: bool) -> None:
        self.bars.update(self.task, found=f"validation {_short(found)}{' (best)' if best else ''}")

    def say(self, text: str) -> None:
        self.bars.console.print(text, highlight=False, markup=False)

    def end(self) -> None:
        self.bars.stop()


def _short(found: Estimate) -> str:
    return f"{found.value:.4f} [{found.low:.4f}, {found.high:.4f}]"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
