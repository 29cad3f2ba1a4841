"""Ctrl-C, SIGTERM and SIGHUP as a request to stop, which a loop checks between two steps.

An exception in the middle of a step could leave it written for some environments only.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Catch SIGINT, SIGTERM and SIGHUP inside the block.

    Only the first SIGINT or SIGTERM is caught: a second one ends a program that hangs in its
    environment. A SIGHUP that is ignored, as under nohup, stays ignored.

    Yields:
        A function that returns whether a signal came, for `record(stop=)`. Outside the main thread,
        where Python handles no signals, it always returns False.
    """
    is_stopped = False

    def stopped() -> bool:
        return is_stopped

    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    last = getattr(signal, "SIGHUP", signal.SIGTERM)  # Windows has none
    hangup = {s: h for s in (last,) if (h := signal.getsignal(s)) is not signal.SIG_IGN}

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        # Not an Event: two signals at once, as a terminal sends them, would wait for its lock.
        nonlocal is_stopped
        is_stopped = True
        _restore(before)  # not SIGHUP: a terminal that closes may send it twice

    for number in (*before, *hangup):
        signal.signal(number, on_signal)
    try:
        yield stopped
    finally:
        _restore({**before, **hangup})


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        # None: a handler that was not set from Python, and cannot be set again.
        if handler is not None:
            signal.signal(number, handler)
