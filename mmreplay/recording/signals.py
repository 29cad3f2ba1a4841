"""Ctrl-C, SIGTERM and SIGHUP as a wish to stop, which a loop reads between two steps.

An exception raised in the middle of a step could leave some lanes of it written and some not.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

_HANGUPS = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()  # Windows has none


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Catch SIGINT, SIGTERM and, where it is not ignored, SIGHUP inside the block.

    The second signal is not caught any more: it ends a program that hangs in its environment. But
    SIGHUP is, as a terminal that is closed may send it twice, itself and by its shell; under nohup
    it is ignored, and stays so.

    Yields:
        A function that says whether a signal came; give it to `record` as `stop`. Outside of the
        main thread, where Python handles no signals, it stays False.
    """
    is_stopped = False

    def stopped() -> bool:
        return is_stopped

    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    hangup = {s: signal.getsignal(s) for s in _HANGUPS}
    hangup = {s: handler for s, handler in hangup.items() if handler is not signal.SIG_IGN}

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        # No Event: two signals at once, as a terminal sends them, would wait for its lock.
        nonlocal is_stopped
        is_stopped = True
        _restore(before)

    for number in (*before, *hangup):
        signal.signal(number, on_signal)
    try:
        yield stopped
    finally:
        _restore(before)
        _restore(hangup)


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        # None: a handler that was not set from Python, and cannot be set from Python.
        if handler is not None:
            signal.signal(number, handler)
