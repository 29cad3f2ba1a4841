"""The threads of a writer: one seals and checksums, one flushes by the clock.

Invariant: nothing that waits for the disk runs in the thread that steps the environment, unless
the disk is so far behind that there is no room left to write to. And nothing waits in that thread
that an interrupt could keep waiting (see `mmreplay.system.threads`).
"""

from __future__ import annotations

import contextlib
import functools
import queue
import weakref
from collections.abc import Callable

from mmreplay.system.limits import starting_threads
from mmreplay.system.threads import Flag, Thread, Workers
from mmreplay.writing.flush import TimedFlush

_NICE = 10
"""Of the sealing thread. Environments that step in threads of their own wait for the slowest of
these at each step: one that has to share its core holds up all of them. So frames are compressed
while cores are idle, mostly between the steps, and a writer that needs the room helps."""


class Background:
    """The threads of one writer.

    `flush_s` is the interval of flushes, 0 for none. While `building` a lane that has no name yet,
    frames are compressed as configured even if the writer waits for it, and the caller syncs the
    lane. `helpers` compress beside the sealing thread.
    """

    def __init__(self, flush_s: float, n_threads: int = 1, *, building: bool = False) -> None:
        self.flush_s, self.building = flush_s, building
        self._lane: Callable[[], TimedFlush | None] = lambda: None
        self._stop = self._due = False
        self._sealing = Workers(1, "mmreplay-seal", nice=0 if building else _NICE)
        self.helpers = [Workers(1, "mmreplay-help") for _ in range(n_threads - 1)]
        wake: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._wake = wake
        # The loop holds no reference to a lane while it waits, so a writer that was dropped
        # without close goes, and its lock with it; the thread is woken to see that, and ends.
        owner = weakref.ref(self, wake.put)
        run, stop = functools.partial(_flush_loop, owner, wake), functools.partial(wake.put, False)
        self._flushing = Thread(run, "mmreplay-flush", stop)

    def attach(self, lane: TimedFlush) -> None:
        """Flush this lane from now on."""
        self._lane = weakref.ref(lane)
        if self.flush_s > 0:
            with starting_threads():
                self._flushing.start()

    def end(self) -> None:
        """Flush no more, and end the threads once the tasks have ended."""
        self._stop = True
        for workers in (*self.helpers, self._sealing):
            workers.end()
        self._flushing.end()

    def finish_tasks(self) -> None:
        """Wait until the tasks that were submitted before have ended."""
        ended = Flag()
        self.submit(ended.set)
        ended.wait()

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task, which keeps its own errors, in the sealing thread, or at once without one."""
        if not self._sealing.hand_over(task):
            task()

    def wake(self) -> None:
        """Let the flushing thread see whether eviction needs a flush."""
        # If no thread can be started, the next call tries again.
        with contextlib.suppress(RuntimeError, MemoryError):
            self._flushing.start()
        if self._wake.empty():
            self._wake.put(True)

    def flush_soon(self) -> None:
        """Flush as if the time had come, unless nothing is flushed by the clock."""
        if self.flush_s > 0:
            self._due = True
            self._wake.put(True)

    def tick(self, *, timer: bool) -> bool:
        """One round of the flushing thread; False when it is over."""
        timer, self._due = timer or self._due, False
        lane = self._lane()
        if lane is not None and not self._stop:
            lane.flush_in_background(timer=timer)
        return not self._stop


def _flush_loop(owner: weakref.ref[Background], wake: queue.SimpleQueue[object]) -> None:
    """Flush at each True that comes; what else comes ends it."""
    while True:
        background = owner()
        if background is None:
            return
        interval = background.flush_s
        del background
        is_woken = goes_on = True
        try:
            # An hour is as good as never to wait.
            goes_on = wake.get(timeout=min(interval or 3600.0, 3600.0)) is True
            while not wake.empty():
                goes_on &= wake.get() is True
        except queue.Empty:
            is_woken = False
        background = owner()
        if not goes_on or background is None or not background.tick(timer=not is_woken):
            return
