"""Calls of Python code that can be given up: each runs in a thread, in which an exception is raised when its time is over.

The exception arrives as soon as the thread runs Python again; code that never does (a loop in C) keeps its thread, and the
process ends without it.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class InterruptedCallError(Exception):
    """Raised in a call whose result is no longer wanted."""


class InterruptibleCall(threading.Thread, Generic[T]):
    """A call in a daemon thread. `done` is called there at the end; twice, if `interrupt` comes at that very moment."""

    def __init__(self, function: Callable[[], T], done: Callable[[], None]):
        super().__init__(name="interruptible call", daemon=True)
        self.function, self.done = function, done
        self._value: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._value = self.function()
        except BaseException as error:
            self._error = error
        while True:
            try:
                return self.done()
            except InterruptedCallError:  # when all was done
                pass

    def result(self) -> T:
        """The value of the call, or its exception; after `done`."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def interrupt(self) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident or 0), ctypes.py_object(InterruptedCallError))


def call_within(seconds: float, function: Callable[[], T]) -> T:
    """The value of a call, or its exception; `TimeoutError` if it takes longer, and the call is interrupted."""
    done = threading.Event()
    call = InterruptibleCall(function, done.set)
    call.start()
    if not done.wait(max(0.0, seconds)):
        call.interrupt()
        raise TimeoutError(f"A call took longer than {seconds:g} s and was given up.")
    return call.result()
