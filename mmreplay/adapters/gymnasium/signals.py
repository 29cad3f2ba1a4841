"""Ctrl-C and SIGTERM as a wish to stop, which a loop reads between two steps.

An exception raised in the middle of a step could leave some lanes of it written and some not.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["stop_on_signals"]


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Catch SIGINT and SIGTERM inside the block.

    The second signal is not caught any more: it ends a program that hangs in its environment.

    Yields:
        A function that says whether a signal came; give it to `record` as `stop`. Outside of the
        main thread, where Python handles no signals, it stays False.
    """
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped.is_set
        return
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stopped.set()
        restore()

    def restore() -> None:
        for number, handler in before.items():
            # None: a handler that was not set from Python, and cannot be set from Python.
            if handler is not None:
                signal.signal(number, handler)

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield stopped.is_set
    finally:
        restore()
