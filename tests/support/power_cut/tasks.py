"""What a writer would do in threads, as tasks of one thread, each run from beginning to end.

Invariant: a task waits until it is asked for, by the history or by a writer that waits for it.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable
from typing import Any

from mmreplay.writing.flush import TimedFlush
from mmreplay.writing.seal import SealJob


class _Done:
    """Stands for `SealJob.done`: to wait for the sealing thread is to let it work."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self.is_set = False

    def set(self) -> None:
        self.is_set = True

    def wait(self) -> None:
        while not self.is_set:
            self._tasks.run_one()


class Tasks:
    """Stands for `Background`: what it would do in threads waits here until its time comes."""

    helpers, building, stored = (), False, None

    def __init__(
        self,
        busy: Callable[[str], contextlib.AbstractContextManager[None]],
        attached: Callable[[Any], None],
    ) -> None:
        self._busy, self._attached = busy, attached
        self._queue: collections.deque[Callable[[], None]] = collections.deque()

    def attach(self, flushes: TimedFlush) -> None:
        fail = flushes._fail()
        if fail is not None:
            self._attached(fail.__self__)  # type: ignore[attr-defined]

    def end(self) -> None:
        self.finish_tasks()

    def finish_tasks(self) -> None:
        while self._queue:
            self.run_one()

    def wake(self) -> None:
        pass  # flushes come when the seed says so

    flush_soon = wake

    def submit(self, task: Callable[[], None]) -> None:
        job = getattr(task, "__self__", None)
        if isinstance(job, SealJob):
            if isinstance(job.done, _Done):  # a writer that waits for it makes sure that it is here
                return
            job.done = _Done(self)  # type: ignore[assignment]
        self._queue.append(task)

    def __bool__(self) -> bool:
        return bool(self._queue)

    def run_one(self) -> None:
        task = self._queue.popleft()
        with self._busy("seal"):
            task()
