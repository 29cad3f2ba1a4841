"""The same call for many things at once, where the disk takes many as fast as one.

Invariant: every call has ended, or was never begun, when the caller goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

__all__ = ["run_in_threads"]

T = TypeVar("T")

_THREADS = 8


def run_in_threads(
    call: Callable[..., T], *arguments: Sequence[Any]
) -> tuple[list[T], list[Exception]]:
    """Call for each of these, in threads: most of it is waiting for the disk.

    Returns:
        what came back, in order, and what was raised.
    """
    todo = enumerate(zip(*arguments, strict=True))
    out: dict[int, T] = {}
    failures: list[Exception] = []
    ended: list[BaseException] = []
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number, each = next(todo, (-1, ()))
            if number < 0:
                return
            try:
                out[number] = call(*each)
            except Exception as error:  # noqa: BLE001 (the others go on)
                failures.append(error)
            except BaseException as error:  # noqa: BLE001 (raised below, where somebody sees it)
                ended.append(error)
                return

    threads: list[threading.Thread] = []
    for _ in range(min(_THREADS, len(arguments[0])) - 1):
        thread = threading.Thread(target=work, name="mmreplay-disk")
        try:
            thread.start()
        except RuntimeError:  # no more are to be had, or the interpreter is ending: with fewer then
            break
        threads.append(thread)
    try:
        work()
    finally:
        for thread in threads:
            thread.join()
    if ended:
        raise ended[0]
    return [out[number] for number in sorted(out)], failures
