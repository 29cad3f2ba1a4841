"""What every writer has: its lane, the flushes in the background, what ended it, and its close.

Invariant: a writer that was dropped without close is kept alive by nothing that runs for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from mmreplay.errors import (
    ClosedError,
    DiskFullError,
    FailedStoreError,
    MmreplayError,
    SchemaError,
)
from mmreplay.system.forks import after_fork_in_child
from mmreplay.system.held_directories import check_there
from mmreplay.system.limits import ReachedLimitError
from mmreplay.system.threads import Thread
from mmreplay.writing import close, flush
from mmreplay.writing.appender import Appender
from mmreplay.writing.background import Background
from mmreplay.writing.ends import Ends
from mmreplay.writing.lane_files import LockedLane

__all__ = ["Session", "refuse_copy"]


class Session:
    """A lane that one writer has open; released if this fails.

    `stop` is a method of the writer, called when the next step has to ask `guard` first.
    """

    def __init__(
        self,
        files: LockedLane,
        background: Background,
        stop: Callable[[], None],
    ) -> None:
        self._path = Path(str(files.path))
        self._background = background
        self._stop = weakref.WeakMethod(stop)
        self.failure: Exception | None = None
        self.advice: str | None = None  # a warning at the first masked reset
        self.closed = self._closing = False
        self.files = files
        try:
            self.rows, self._finals = (Appender(files, log, background) for log in files.logs)
            self.ends = Ends(files, self.rows, self._finals)
            if files.is_recovered:
                self.ends.end_running()
            files.begin()
        except BaseException:
            files.release()
            raise

    def begin(self) -> None:
        """Flush by the clock from now on."""
        self._timed_flush = flush.TimedFlush(self.files, self.fail)
        self._background.attach(self._timed_flush)
        # What runs in the background may keep the lane, and its lock, for a while longer.
        # Not by a method of the lane, which would keep a failed one, its maps and this session.
        weakref.finalize(self, _abandon, weakref.ref(self.files)).atexit = False
        _SESSIONS.add(self)
        if self.files.recovered:  # else one killed again and again would never be durable
            self._background.flush_soon()

    def guard(self) -> None:
        """Raise ClosedError or FailedStoreError if writing is over."""
        if self.closed:
            raise ClosedError(
                f"{self._path}: this writer is closed, or belongs to the parent of this process; "
                f"open the store again to write"
            )
        if self.failure is not None:
            # What it met first may have been a part that was missing already.
            check_there(self.files.path, self.failure)
            raise FailedStoreError(
                str(self.failure)
                if isinstance(self.failure, MmreplayError)
                else f"{self._path}: a flush in the background failed: {self.failure!r}; what is "
                f"committed is kept: open the store again"
            ) from self.failure
        if self._closing:
            raise ClosedError(
                f"{self._path}: close() found no room on the disk, or reached a limit; see to that "
                f"and call it again"
            )

    @property
    def is_over(self) -> bool:
        """Whether `guard` would raise."""
        return self.closed or self._closing or self.failure is not None

    def fail(self, error: Exception) -> None:
        """End writing."""
        self.failure = error
        self._stop_writer()

    def _stop_writer(self) -> None:
        stop = self._stop()
        if stop is not None:
            stop()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """A failed write or fsync ends writing; a limit that was reached does not."""
        try:
            yield
        except ReachedLimitError:
            raise
        except FailedStoreError as error:
            self.fail(error)
            raise

    def flush(self) -> None:
        """See `Writer.flush`."""
        self.guard()
        with self.failing():
            flush.flush(self.files)

    def close(self, end_episodes: Callable[[], None]) -> None:
        """See `Writer.close`; `end_episodes` ends the running episodes of the writer."""
        if self.closed:
            return
        try:
            if self.failure is None:
                appenders = self.rows, self._finals
                if self.rows.columns:
                    end_episodes()
                for appender in appenders:
                    appender.finish()
                self._background.finish_tasks()  # the checksums that are still being made
                for appender in appenders:
                    appender.columns.clear()
                close.close(self.files)
        except (DiskFullError, ReachedLimitError):
            self._closing = True
            self._stop_writer()
            raise
        except FailedStoreError as error:
            self.fail(error)
            self.release_unclosed()
            raise
        except BaseException:
            self.release_unclosed()
            raise
        self.release_unclosed()

    def release_unclosed(self) -> None:
        """Leave the lane as it is; the next opening recovers it, if it is not closed."""
        try:
            self.abandon()
            self._let_go()
        except BaseException:
            # An interrupt while it waited: others are let in later, but not before what runs ends.
            self.files.abandon()
            try:
                Thread(self._let_go, "mmreplay-release").start()
            except RuntimeError:  # no thread to be had
                self._let_go()
            raise

    def _let_go(self) -> None:
        self._background.end()
        self.files.release()

    def abandon(self) -> None:
        """In a forked child: this writer is the parent's."""
        self.closed = True
        self._stop_writer()


def _abandon(lane: weakref.ref[LockedLane]) -> None:
    kept = lane()
    if kept is not None:
        kept.abandon()


def refuse_copy(writer: Any) -> NoReturn:
    """`__getstate__` of every writer: two of a lane would write over each other."""
    raise SchemaError(
        f"{writer.path}: a {type(writer).__name__} can be neither pickled nor copied, as a lane "
        f"has one writer; another process reads and samples with "
        f"mmreplay.load({str(writer.path)!r}), and writes a lane of its own with "
        f"mmreplay.create(PATH, ..., lane=NAME)"
    )


_SESSIONS: weakref.WeakSet[Session] = weakref.WeakSet()
after_fork_in_child(_SESSIONS, Session.abandon)
