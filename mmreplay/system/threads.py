"""Threads that an interrupt cannot harm, and many calls at once.

Invariant: after an interrupt (Ctrl-C) no later call waits forever.

Python handles signals in the main thread whenever a function begins, a call returns or a loop
repeats, also inside `Event`, `Condition`, `Semaphore`, `Future` and `Thread.start`, which are
written in Python and stay locked if it raises there. So threads share locks and a `SimpleQueue`,
which are written in C. `with lock` handles no signal before it can release the lock (except in the
first releases of Python 3.14: python/cpython#148874); `lock.acquire()` and a `try` do.
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
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from mmreplay.system import forks, platform

Task = Callable[[], object]
_Queued: TypeAlias = "Iterator[Task] | weakref.ref[Workers]"

_THREADS = 8
_ALONE_S = 5e-3  # of calls, before threads help
_LOOK_S = 1.0


class Flag:
    """Something that happens once, and for which any number of threads may wait."""

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
        while not self.is_set:
            # With a timeout: a thread may be interrupted before it wakes the next one.
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=_LOOK_S)
                self._wake.put(None)  # for the next thread


class Thread:
    """A daemon thread that is started when needed, and ended before the process if possible.

    `stop` makes `run` return soon; it may be called again. `is_over`: it must not be started.
    """

    def __init__(self, run: Task, name: str, stop: Task | None = None) -> None:
        self._run, self._name, self._stop = run, name, stop
        self._begin_again()
        # Dropping one of these runs code of `WeakSet`, in which an interrupt gets lost.
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
                # No signal is handled between these two lines.
                self.is_started = True
                _thread.start_new_thread(self._start_named, ())
            except (RuntimeError, MemoryError):
                self.is_started = False
                raise

    def _start_named(self) -> None:
        """Run in a thread, as `Thread.start` waits for an Event."""
        try:
            self._named = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._named.start()
        except (RuntimeError, MemoryError):  # at a limit: this thread does it
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
        """Stop it and wait until it has ended; may be called again."""
        self.is_over = True
        if self._stop is not None:
            self._stop()
        self.wait()

    def wait(self) -> None:
        """Return once it has ended, if it was started; at once in the thread itself."""
        if self.is_started and self._ident != threading.get_ident():
            self._ended.wait()
            if self._named is not None:
                self._named.join()

    def after_fork_in_child(self) -> None:
        """In a forked child: it is the parent's."""
        self._begin_again()
        self.is_over = True


class Workers:
    """Up to `n` threads that do tasks in order, until it is dropped; `nice` as of `nice`."""

    def __init__(self, n: int, name: str, *, nice: int = 0) -> None:
        self._lock = threading.Lock()
        # Each in an iterator, from which one thread takes it.
        self._tasks: queue.SimpleQueue[_Queued] = queue.SimpleQueue()
        # When this is dropped, no code in Python runs in which an interrupt could get lost.
        last = weakref.ref(self, self._tasks.put)
        run = functools.partial(_do_tasks, self._tasks, last, nice)
        stop = functools.partial(self._tasks.put, last)
        self._threads = [Thread(run, f"{name}_{number}", stop) for number in range(n)]

    @property
    def is_over(self) -> bool:
        """Whether they have to end."""
        return self._threads[0].is_over

    def hand_over(self, task: Task) -> bool:
        """Let a thread do a task, which keeps its own errors; False if there is no thread."""
        if self.is_over:
            self.end()  # the first call may have been interrupted
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
        """Wait until all tasks are done and the threads have ended."""
        for thread in self._threads:
            thread.end()


def _do_tasks(tasks: queue.SimpleQueue[_Queued], last: weakref.ref[Workers], nice: int) -> None:
    if nice:
        platform.give_way(nice)
    while not isinstance(todo := tasks.get(), weakref.ref):
        with contextlib.suppress(BaseException):  # a task keeps its own errors
            for task in todo:
                task()
                del task  # and what it holds, before the next one comes
    tasks.put(last)  # for the other threads


def run_all(calls: Iterable[Task]) -> list[Exception]:
    """Do these calls, in threads if they take long: most of it is waiting for the disk.

    Every call has ended when the caller goes on, also after an interrupt. Returns the errors.
    """
    todo = collections.deque(calls)
    failures: list[Exception] = []
    ended: list[BaseException] = []
    threads: list[Thread] = []
    began = time.monotonic()

    def work(most_s: float) -> None:
        while todo and time.monotonic() - began < most_s:
            try:
                call = todo.popleft()
            except IndexError:  # another thread has taken it
                return
            try:
                call()
            except Exception as error:  # noqa: BLE001 (the others go on)
                failures.append(error)
            except BaseException as error:  # noqa: BLE001 (raised below)
                ended.append(error)
                return

    def start_others() -> None:
        if not threads:
            n = min(_THREADS, len(todo)) - 1  # beside this one
            threads.extend(Thread(work_on, "mmreplay-disk") for _ in range(n))
        _start(threads)

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
    return failures


def _start(threads: list[Thread]) -> None:
    with contextlib.suppress(RuntimeError, MemoryError):  # no more can be started
        for thread in threads:
            thread.start()


def _end_all() -> None:
    # Before the interpreter freezes them with the locks that they hold.
    for thread in list(_LIVING):
        thread.end()


_LIVING: weakref.WeakSet[Thread] = weakref.WeakSet()
forks.after_fork_in_child(_LIVING, Thread.after_fork_in_child)
atexit.register(_end_all)
