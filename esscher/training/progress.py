"""What a person sees while a model trains: a live line on a terminal, plain lines elsewhere, nothing when quiet.

Everything goes to standard error, so that standard output stays free for results.
"""

import sys
import time
from typing import Protocol, runtime_checkable

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


def choose_progress(quiet: bool) -> Progress:
    """The display that suits standard error; of several processes only the first speaks."""
    if quiet or not first_process():
        return Silent()
    console = Console(stderr=True)
    return Live(console) if console.is_terminal else Lines()


class Silent:
    """Shows nothing."""

    def begin(self, step: int, steps: int) -> None: ...

    def update(self, step: int, loss: float, tokens: int) -> None: ...

    def evaluated(self, step: int, found: Estimate, best: bool) -> None: ...

    def say(self, text: str) -> None: ...

    def end(self) -> None: ...


class Lines:
    """A line at each evaluation, and one now and then between."""

    def begin(self, step: int, steps: int) -> None:
        self.first, self.steps, self.tokens = step, steps, 0
        self.started = self.spoken = time.monotonic()

    def update(self, step: int, loss: float, tokens: int) -> None:
        self.tokens += tokens
        now = time.monotonic()
        if now - self.spoken < PAUSE and step != self.steps:
            return
        self.spoken = now
        passed = max(now - self.started, 1e-9)
        left = passed / (step - self.first) * (self.steps - step)
        self.say(f"step {step}/{self.steps}  loss {loss:.4f}  {self.tokens / passed:,.0f} tokens/s  {_clock(left)} left")

    def evaluated(self, step: int, found: Estimate, best: bool) -> None:
        self.say(f"step {step}/{self.steps}  validation {_short(found)}{'  best so far' if best else ''}")

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def end(self) -> None: ...


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
