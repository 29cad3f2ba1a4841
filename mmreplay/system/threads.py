"""Threads that an interrupt cannot harm, and the same call for many things at once.

Invariant: after an interrupt (Ctrl-C) no later call waits for ever.

Python handles signals in the main thread, whenever a function begins, a call returns or a loop goes
round: inside `Event`, `Condition`, `Semaphore`, `Future` and `Thread.start` too, which are written
in Python and stay locked if it raises there. So threads share locks and a `SimpleQueue`, which are
written in C. Between taking a lock and having to give it back, `with lock` handles no signal (in
Python 3.14 it did until that was mended: python/cpython#148874); `lock.acquire()` and a `try` do.
"""

from __future__ import annotations

import _thread
import atexit
import collections
import contextlib
import functools
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

from mmreplay.system import forks, platform

__all__ = ["Flag", "Thread", "Workers", "run_in_threads"]

T = TypeVar("T")
Task = Callable[[], object]
_Queued: TypeAlias = "Iterator[Task] | weakref.ref[Workers]"

_THREADS = 8
_ALONE_S = 5e-3  # of calls, before threads help
_LOOK_S = 1.0


class Flag:
    """Something that happens once, which any number of threads may wait for; see `is_set`."""

    __slots__ = ("_wake", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """It has happened."""
        self.is_set = True
        self._wake.put(None)

    def wait(self) -> None:
        """Return once it has happened."""
        while not self.is_set:  # set before the wake-up comes: one that was taken is not missed
            # Looked at again after a while: who was woken may be interrupted before the next line.
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=_LOOK_S)
                self._wake.put(None)  # for who else waits


class Thread:
    """A daemon thread that is started when needed, and ended before the process if possible.

    `stop` makes `run` return soon, if it does not by itself; it may be called again. `is_over`: it
    was told to end, or will never be started.
    """

    def __init__(self, run: Task, name: str, stop: Task | None = None) -> None:
        self._run, self._name, self._stop = run, name, stop
        self._begin_again()
        # Not those that come and go: who drops one runs code of `WeakSet`, in which an interrupt
        # gets lost.
        if stop is not None:
            _LIVING.add(self)

    def _begin_again(self) -> None:
        self.is_started = self.is_over = False
        self._todo = iter((self._run,))
        self._starting = threading.Lock()
        self._ended = Flag()
        self._ident: int | None = None
        self._named: threading.Thread | None = None

    def start(self) -> None:
        """Start it, unless it was started; RuntimeError: no thread can be started."""
        with self._starting:
            if self.is_started or self.is_over:
                return
            try:
                # No signal is handled between these two lines. Interrupted after them, it was
                # started, and it is known that it was.
                self.is_started = True
                _thread.start_new_thread(self._start_named, ())
            except (RuntimeError, MemoryError):
                self.is_started = False
                raise

    def _start_named(self) -> None:
        """In a thread, as `Thread.start` waits for an Event."""
        try:
            self._named = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._named.start()
        except (RuntimeError, MemoryError):  # at a limit: this one, then, which has no name
            self._named = None
            self._work()

    def _work(self) -> None:
        for run in self._todo:  # once, though a start may fail after it has started
            self._ident = threading.get_ident()
            try:
                run()
            finally:
                self._ended.set()

    def end(self) -> None:
        """Have it end, and wait until it has; a second call does the rest of the first."""
        self.is_over = True
        if self._stop is not None:
            self._stop()
        self.wait()

    def wait(self) -> None:
        """Return once it has ended, if it was started; at once in the thread itself."""
        if self.is_started and self._ident != threading.get_ident():
            self._ended.wait()
            if self._named is not None:
                self._named.join()  # it has nothing left to do but to go

    def after_fork_in_child(self) -> None:
        """In a forked child: it is the parent's."""
        self._begin_again()
        self.is_over = True


class Workers:
    """Up to `n` threads that do tasks in order, until it is dropped; `nice` as of `nice`."""

    def __init__(self, n: int, name: str, *, nice: int = 0) -> None:
        self._lock = threading.Lock()
        # Each in an iterator: only the thread that takes it out of there runs it.
        self._tasks: queue.SimpleQueue[_Queued] = queue.SimpleQueue()
        # The last task comes from the queue itself when this is dropped: no code in Python runs
        # then, in which an interrupt could get lost.
        last = weakref.ref(self, self._tasks.put)
        run = functools.partial(_do_tasks, self._tasks, last, nice)
        stop = functools.partial(self._tasks.put, last)
        self._threads = [Thread(run, f"{name}_{number}", stop) for number in range(n)]

    @property
    def is_over(self) -> bool:
        """Whether they were told to end."""
        return self._threads[0].is_over

    def hand_over(self, task: Task) -> bool:
        """Have a thread do a task, which keeps its own errors, after those before it.

        False if there is no thread for it; those that were told to end have ended then.
        """
        if self.is_over:
            self.end()  # again: it may have been interrupted
            return False
        with self._lock:
            for thread in self._threads:
                if not thread.is_started:
                    try:
                        thread.start()
                    except (RuntimeError, MemoryError):
                        if thread is self._threads[0]:
                            return False
                    break
            todo = iter((task,))
            self._tasks.put(todo)
        if self.is_over:  # since then, and perhaps before the task came
            self.end()
            for left in todo:
                left()
        return True

    def end(self) -> None:
        """Wait until all that was handed over is done, and the threads have ended."""
        for thread in self._threads:
            thread.end()


def _do_tasks(tasks: queue.SimpleQueue[_Queued], last: weakref.ref[Workers], nice: int) -> None:
    if nice:
        platform.give_way(nice)
    while not isinstance(todo := tasks.get(), weakref.ref):
        with contextlib.suppress(BaseException):  # a task tells its errors to who waits for it
            for task in todo:
                task()
                del task  # and what it holds, before the next one comes
    tasks.put(last)  # for the other threads


def run_in_threads(
    call: Callable[..., T], *arguments: Sequence[Any]
) -> tuple[list[T], list[Exception]]:
    """Call for each of these, in threads if it takes long: most of it is waiting for the disk.

    Every call has ended when the caller goes on, also after an interrupt. Returns the results, in
    order, and the errors.
    """
    todo = collections.deque(enumerate(zip(*arguments, strict=True)))
    out: dict[int, T] = {}
    failures: list[Exception] = []
    ended: list[BaseException] = []
    threads: list[Thread] = []
    began = time.monotonic()

    def work(most_s: float) -> None:
        while todo and time.monotonic() - began < most_s:
            try:
                number, each = todo.popleft()
            except IndexError:  # another thread has taken it
                return
            try:
                out[number] = call(*each)
            except Exception as error:  # noqa: BLE001 (the others go on)
                failures.append(error)
            except BaseException as error:  # noqa: BLE001 (raised below)
                ended.append(error)
                return

    def start_others() -> None:
        if not threads:
            n = min(_THREADS, len(todo)) - 1  # beside this one
            threads.extend(Thread(work_on, "mmreplay-disk") for _ in range(n))
        _start_all(threads)

    def wait() -> None:
        for thread in threads:
            thread.wait()

    work_on = functools.partial(work, math.inf)
    while True:
        try:
            for step in (functools.partial(work, _ALONE_S), start_others, work_on, wait):
                step()
            break
        except BaseException as error:  # noqa: BLE001 (an interrupt, raised below)
            ended.append(error)
    if ended:
        raise ended[0]
    return [out[number] for number in sorted(out)], failures


def _start_all(threads: list[Thread]) -> None:
    for thread in threads:
        try:
            thread.start()
        except (RuntimeError, MemoryError):  # no more are to be had, or the interpreter is ending
            return


def _end_all() -> None:
    # Before the interpreter freezes them in whatever they do, with the locks that they hold.
    for thread in list(_LIVING):
        thread.end()


_LIVING: weakref.WeakSet[Thread] = weakref.WeakSet()
forks.after_fork_in_child(_LIVING, Thread.after_fork_in_child)
atexit.register(_end_all)
