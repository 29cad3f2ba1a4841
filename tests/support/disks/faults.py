"""Fault points: a disk that fills up or fails at any call, and a process that dies at any call.

Invariant: nothing of this does anything until it is asked for; everything goes through the one
place where the package changes the disk, `mmreplay.files`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

from mmreplay.datasets.replay_buffer import ReplayBuffer
from mmreplay.system import durable_writes, platform
from mmreplay.writing.create import AnyWriter
from mmreplay.writing.seal import Background
from mmreplay.writing.vector_writer import VectorWriter
from mmreplay.writing.writer import Writer
from tests.support.writers import LaneWriters

ALLOCATING = frozenset({"posix_fallocate", "write", "open"})
"""Calls that need room on the disk (open: only where it makes a file)."""
SYNCING = frozenset({"fsync", "fdatasync"})
_LIBRARY = frozenset({"fallocate", "renameat2"})
"""Calls to the C library: holes are punched with the one, directories exchanged with the other."""
CALLS = ALLOCATING | SYNCING | _LIBRARY | {"replace", "rename", "link", "unlink", "mkdir", "rmdir"}
"""Every call that changes something on the disk."""
REOPENING = "reopen"
"""An open of what is there, which changes nothing: counted only where it is to fail."""


class Disk:
    """Stands in for the module `os` within `mmreplay.files`, and fails when told to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: Collection[str] = ()
        self._left = 0
        self._action: Callable[[], None] | None = None
        self._forever = False
        self._breaks = True
        self.hits = 0
        self.counts: dict[str, int] = {}
        self.log: list[tuple[str, object]] = []

    def __getattr__(self, name: str) -> Any:
        """What `os` has; calls that change the disk are counted first."""
        found = getattr(os, name)
        if name not in CALLS:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            what = REOPENING if name == "open" and not args[1] & os.O_CREAT else name
            if (what in CALLS or what in self._names) and self._due(what, args):
                self._fail(what, args)
            return found(*args, **kwargs)

        return call

    def library(self, real: Any) -> Any:
        """What stands in for the C library; its calls fail by what they return."""

        def call(name: str) -> Any:
            found = getattr(real, name)

            def faulty(*args: Any) -> Any:
                if self._due(name, args):
                    try:
                        self._fail(name, args)
                    except OSError as error:
                        ctypes.set_errno(error.errno or 0)
                        return -1
                return found(*args)

            return faulty if name in _LIBRARY else found

        return _Attributes(call)

    def _due(self, name: str, args: tuple[Any, ...]) -> bool:
        with self._lock:
            self.counts[name] = self.counts.get(name, 0) + 1
            self.log.append((name, args[0] if args else None))
            if self._action is None or name not in self._names:
                return False
            self._left -= 1
            due = self._left == 0 or (self._left < 0 and self._forever)
            self.hits += due
            return due

    def _fail(self, name: str, args: tuple[Any, ...]) -> None:
        if self._action is None:
            return
        # As a real disk does: what fits is there before the rest fails.
        if self._breaks and name == "write" and len(args[1]) > 1:
            os.write(args[0], memoryview(args[1])[: len(args[1]) // 2])
        if (
            self._breaks
            and name == "posix_fallocate"
            and os.fstat(args[0]).st_size < args[1] + args[2]
        ):
            os.ftruncate(args[0], max(os.fstat(args[0]).st_size, (args[1] + args[2]) // 2))
        self._action()

    def fail(
        self, names: Collection[str], error: int, *, at: int = 1, forever: bool = False
    ) -> None:
        """Raise OSError(error) at the `at`-th of these calls from now, and at all after it."""

        def action() -> None:
            raise OSError(error, os.strerror(error))

        self._arm(names, action, at, forever=forever)

    def die(
        self, names: Collection[str], *, at: int, first: Callable[[], None] | None = None
    ) -> None:
        """End this process by SIGKILL just before the `at`-th of these calls, after `first`."""

        def action() -> None:
            if first is not None:
                first()
            os.kill(os.getpid(), signal.SIGKILL)

        self._arm(names, action, at, forever=False)

    def before(
        self, names: Collection[str], action: Callable[[], None], *, at: int, forever: bool = False
    ) -> None:
        """Do something just before the `at`-th of these calls, in its thread; the call goes on."""
        self._arm(names, action, at, forever=forever, breaks=False)

    def _arm(
        self,
        names: Collection[str],
        action: Callable[[], None],
        at: int,
        *,
        forever: bool,
        breaks: bool = True,
    ) -> None:
        with self._lock:
            self._names, self._action, self._left, self._forever = names, action, at, forever
            self._breaks, self.hits = breaks, 0

    def heal(self) -> None:
        """There is room again, and the disk is sound."""
        with self._lock:
            self._action = None


class _Attributes:
    """An object whose attributes a function gives."""

    def __init__(self, give: Callable[[str], Any]) -> None:
        self._give = give

    def __getattr__(self, name: str) -> Any:
        return self._give(name)


@contextlib.contextmanager
def faulty_disk() -> Iterator[Disk]:
    """Put a `Disk` between the package and the operating system."""
    disk = Disk()
    real, library = durable_writes.os, platform.LIBC
    durable_writes.os = disk  # type: ignore[assignment]
    platform.LIBC = None if library is None else disk.library(library)
    try:
        yield disk
    finally:
        durable_writes.os, platform.LIBC = real, library


def lanes_of(writer: AnyWriter | LaneWriters | ReplayBuffer) -> tuple[Writer, ...]:
    """The writers of single environments that a writer or a buffer consists of."""
    lanes = tuple(one for one in writers_of(writer) if isinstance(one, Writer))
    if not lanes:
        raise TypeError(f"{writer!r} writes no lane of one environment")
    return lanes


def writers_of(writer: AnyWriter | LaneWriters | ReplayBuffer) -> tuple[Writer | VectorWriter, ...]:
    """The writers of single lanes, of one environment or many, of a writer or a buffer."""
    if isinstance(writer, ReplayBuffer):
        writer = writer.writer
    return writer.writers if isinstance(writer, LaneWriters) else (writer,)


def kill(writer: AnyWriter | LaneWriters | ReplayBuffer) -> None:
    """Leave the directory as the death of the writer's process would at this moment.

    What the background threads are doing is finished, what they have not begun never happens, the
    lock is free, and nothing else is written.
    """
    lanes = writers_of(writer)
    for lane in lanes:
        background = lane._background
        background._stop = True
        forget_tasks(background)
        background._sealing.end()
        background._flushing.end()
        lane._abandon()
        lane.files.release()
    if isinstance(writer, ReplayBuffer):
        for column in writer.updates._held.values():
            column._lock.release()
        for *_, column in writer._column._held.values() if hasattr(writer, "_column") else ():
            column._lock.release()
        writer.store.close()


def forget_tasks(background: Background) -> None:
    """What the sealing thread has not begun never happens."""
    tasks = background._sealing._tasks
    with contextlib.suppress(queue.Empty):
        while True:
            tasks.get_nowait()
