"""Signals that ask a command to stop: SIGINT (Ctrl-C), SIGTERM (Kubernetes, SLURM) and SIGUSR1 (SLURM's --signal).

Work that can be resumed runs within `stops_at_boundaries`: there a signal only makes `stop_requested` true, and the work saves
and raises `Interrupted` at its next boundary. Anywhere else a signal raises `Interrupted` at once. A second signal ends the
process at once.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from esscher.core.distributed import is_main_process, world_size

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
SAME_REQUEST = 1.0  # seconds: under torchrun a terminal's signal also comes from torchrun


class Interrupted(KeyboardInterrupt):
    """A signal stopped the work; `saved` says what became of it and how to go on, where the work knows."""

    def __init__(self, number: int, saved: str = ""):
        super().__init__(f"Stopped by {signal.Signals(number).name}. {saved}".rstrip())
        self.number, self.saved = number, saved

    @property
    def exit_code(self) -> int:
        """As shells have it: 130 for SIGINT and 143 for SIGTERM; SIGUSR1 counts as SIGTERM, which it announces."""
        return 128 + (signal.SIGINT if self.number == signal.SIGINT else signal.SIGTERM)


class _Requests:
    """The first signal so far, and how many blocks of `stops_at_boundaries` the process is in."""

    number: int | None = None
    at = 0.0
    blocks = 0


_REQUESTS = _Requests()


@contextmanager
def handled_signals() -> Iterator[None]:
    """Handle the signals within the block; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _handle) for number in SIGNALS}
    _REQUESTS.number = None
    try:
        yield
    finally:
        _REQUESTS.number = None
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stops_at_boundaries(active: bool = True) -> Iterator[None]:
    """Within the block a signal waits for `stop_requested`, if `active`; one that nobody asked for is raised at the end."""
    _REQUESTS.blocks += active
    try:
        yield
    finally:
        _REQUESTS.blocks -= active
    if (number := stop_requested()) is not None and _REQUESTS.blocks == 0:
        raise Interrupted(number)


def stop_requested() -> int | None:
    """The signal that asked to stop, if any."""
    return _REQUESTS.number


def _handle(number: int, frame: FrameType | None) -> None:
    if _REQUESTS.number is not None:  # under torchrun only: elsewhere the system ends the process
        if time.monotonic() - _REQUESTS.at > SAME_REQUEST:
            _end_at_once(number)
        return
    _REQUESTS.number, _REQUESTS.at = number, time.monotonic()
    if world_size() == 1:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
    if _REQUESTS.blocks == 0:
        raise Interrupted(number)
    if is_main_process():
        name = signal.Signals(number).name
        os.write(2, f"{name}: saving at the next step; a second signal ends at once.\n".encode())  # print may be at work


def _end_at_once(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
