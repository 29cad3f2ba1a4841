"""The two threads of a writer: one seals and checksums, one flushes by the clock.

Invariant: nothing that waits for the disk runs in the thread that steps the environment, unless
the disk is so far behind that there is no room left to write to.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from mmreplay.system.limits import starting_threads

__all__ = ["Background"]


class Flushable(Protocol):
    """What the clock flushes."""

    def flush_in_background(self, *, timer: bool) -> None:
        """Flush if the timer says so, or if eviction needs it; keeps its own errors."""


class Background:
    """Threads shared by all lanes of one writer.

    Attributes:
        flush_s: seconds between flushes; 0 for none but those that are asked for.
    """

    def __init__(self, flush_s: float) -> None:
        """Start nothing yet."""
        self.flush_s = flush_s
        self._lanes: weakref.WeakSet[Any] = weakref.WeakSet()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="mmreplay-seal")
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._stop = self._due = False
        self._thread: threading.Thread | None = None

    def attach(self, lane: Flushable) -> None:
        """Flush this lane from now on."""
        with self._lock:
            self._lanes.add(lane)
            if self._thread is None and self.flush_s > 0:
                with starting_threads():
                    self._start()

    def _start(self) -> None:
        # The loop holds no reference to a lane while it waits, so a writer that was dropped
        # without close goes, and its lock with it; the thread is woken to see that, and ends.
        wake = self._wake
        thread = threading.Thread(
            target=_flush_loop,
            args=(weakref.ref(self, lambda _: wake.set()), wake),
            daemon=True,
            name="mmreplay-flush",
        )
        thread.start()
        self._thread = thread

    def detach(self, lane: Flushable) -> None:
        """Leave this lane alone, once its tasks have ended; the last to go ends the threads."""
        with self._lock:
            self._lanes.discard(lane)
            last = not self._lanes
        if last:
            self._stop = True
            self._wake.set()
            self._executor.shutdown(wait=True)
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join()
        else:
            self.finish_tasks()

    def finish_tasks(self) -> None:
        """Wait until the tasks that were submitted before have ended."""
        self.submit(lambda: None).result()

    def submit(self, task: Callable[[], None]) -> Future[None]:
        """Run a task in the sealing thread, after those before it."""
        once = _Once(task)
        try:
            return self._executor.submit(once)
        except RuntimeError:  # no thread to be had, or the interpreter is ending
            done: Future[None] = Future()
            once()
            done.set_result(None)
            return done

    def wake(self) -> None:
        """Let the flushing thread see whether eviction needs a flush."""
        with self._lock:
            if self._thread is None:
                # None to be had: the next call may find one.
                with contextlib.suppress(RuntimeError):
                    self._start()
        self._wake.set()

    def flush_soon(self) -> None:
        """Flush all lanes as if the time had come, unless nothing is flushed by the clock."""
        if self.flush_s > 0:
            self._due = True
            self._wake.set()

    def tick(self, *, timer: bool) -> bool:
        """One round of the flushing thread; False when it is over."""
        with self._lock:
            lanes = list(self._lanes)
            timer, self._due = timer or self._due, False
        for lane in lanes:
            if self._stop:
                break
            lane.flush_in_background(timer=timer)
        return not self._stop


class _Once:
    """A task that is done once: a pool that finds no thread for it keeps it for its next one."""

    __slots__ = ("_left",)

    def __init__(self, task: Callable[[], None]) -> None:
        self._left = [task]

    def __call__(self) -> None:
        try:
            task = self._left.pop()  # of two threads, one gets it
        except IndexError:
            return
        task()


def _flush_loop(owner: weakref.ref[Background], wake: threading.Event) -> None:
    while True:
        background = owner()
        if background is None:
            return
        interval = background.flush_s
        del background
        # An hour is as good as never to wait.
        woken = wake.wait(min(interval or 3600.0, 3600.0))
        wake.clear()
        background = owner()
        if background is None or not background.tick(timer=not woken):
            return
