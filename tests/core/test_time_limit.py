"""Calls that take too long are given up, and their threads end."""

import threading
import time

import pytest

from esscher.core.time_limit import call_within


def test_values_and_errors_come_back():
    assert call_within(10, lambda: 7) == 7
    with pytest.raises(KeyError, match="lost"):
        call_within(10, lambda: {}["lost"])


def test_a_loop_without_end_is_given_up_and_its_thread_ends():
    def loop():
        threads.append(threading.current_thread())
        while True:
            pass

    threads = []
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match=r"longer than 0\.1 s"):
        call_within(0.1, loop)
    assert time.monotonic() - begun < 5
    threads[0].join(5)
    assert not threads[0].is_alive()
