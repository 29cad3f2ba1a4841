"""What both writers share: ending episodes, background flushes, closing, and failures.

Invariant: an ended episode has its final observation in `finals`. Only until the call that ended it
or the next one returns, it may be missing: then it is the pending row, after the newest step.
After an error or a close, the next call of a writer asks first whether writing is over.
What runs in the background does not keep a writer alive that was dropped without close.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import numpy.typing as npt

from mmreplay.errors import ClosedError, DiskFullError, FailedStoreError, MmreplayError, SchemaError
from mmreplay.ids import Array, Ids
from mmreplay.schema import Schema
from mmreplay.storage import chunk_files
from mmreplay.storage.state_page import COMMITTED
from mmreplay.system import platform
from mmreplay.system.forks import after_fork_in_child
from mmreplay.system.held_directories import check_there
from mmreplay.system.limits import ReachedLimitError
from mmreplay.system.threads import Thread
from mmreplay.writing import close, flush
from mmreplay.writing.appender import Appender
from mmreplay.writing.episode_log import Episodes
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.seal import Background

Mask = npt.NDArray[np.bool_]


class Ends:
    """The log of final observations of a lane that is open for writing."""

    def __init__(self, lane: LockedLane, rows: Appender, finals: Appender) -> None:
        self._lane, self._rows, self.finals = lane, rows, finals
        self._n = lane.n
        self._words = lane.finals.state.words
        self._frames = {path: lane.finals.specs[path] for path in lane.schema.frame_paths.values()}
        self._head = lane.finals.head  # with those that are not committed yet

    def add(self, ids: Ids, firsts: Ids, frames: Mapping[str, Array]) -> None:
        """Write final observations, without committing them; DiskFullError: nothing was changed."""
        start = self._words[COMMITTED]
        self.finals.make_room(start, ids.size)
        for path, values in {**frames, "id": ids, "first": firsts}.items():
            self.finals.put(path, start, values, 0, ids.size)
        self._head = start + ids.size

    def commit(self) -> None:
        """Commit what was added."""
        if platform.barrier is not None:
            platform.barrier()
        self._words[COMMITTED] = self._head

    def ended(self, row: int) -> Mask:
        """(n,) the environments with a final observation of a step in this row, the newest one."""
        out, log = np.zeros(self._n, np.bool_), self._lane.finals
        stop = self._words[COMMITTED]
        ids = chunk_files.read_rows(log, log.specs["id"], max(stop - self._n, log.base), stop)
        rows, environments = np.divmod(ids, self._n)
        out[environments[rows == row]] = True
        return out

    def end_newest(self, which: Mask) -> None:
        """End episodes, (n,), with the newest step, as truncated: their final frame is pending.

        It is durable, where that step is, before this returns: the pending one may be overwritten.
        """
        head = self._lane.rows.head
        environments = which.nonzero()[0]
        ids = (head - 1) * self._n + environments
        frames = {
            path: self._rows.stored(path, head).reshape(self._n, *spec.row_shape)[environments]
            for path, spec in self._frames.items()
        }
        steps = self._rows.stored("step", head - 1).reshape(-1)[environments]
        self.add(ids, ids - (steps - 1) * self._n, frames)
        self.commit()
        if platform.barrier is not None:
            platform.barrier()
        if self._lane.promised == head:
            flush.flush_finals(self._lane)
        self._rows.stored("ends", head - 1).reshape(-1)[environments] = 1

    def settle(self) -> Mask | None:
        """Make the newest step and the final observations fit each other, after any interruption.

        Uncommitted final observations are dropped; episodes that an interrupted call ended get
        theirs. Returns (n,) which episodes ended with the newest step; None before any step.
        """
        head = self._lane.rows.head
        if not head:
            return None
        over = self.ended(head - 1)
        ends = self._rows.stored("ends", head - 1).reshape(-1)
        owed = (ends != 0) & ~over
        if owed.any():
            self.end_newest(owed)
            over |= owed
        # Not durable if an interrupt came in the middle of `end_newest`.
        is_durable = self._lane.finals.checkpoint.best.head == self._words[COMMITTED]
        if over.any() and self._lane.promised == head and not is_durable:
            flush.flush_finals(self._lane)
        ends[over] = 1
        self._lane.held = None
        return over

    def end_running(self) -> None:
        """After a crash: end all running episodes as truncated."""
        head = self._lane.rows.head
        if not head:
            return
        there = self._rows.stored("step", head - 1).reshape(-1) > 0
        missing = there & ~self.ended(head - 1)
        if missing.any():
            self.end_newest(missing)
        # Before a session begins, and before anything is written over what is pending.
        flush.flush_finals(self._lane)
        self._rows.stored("ends", head - 1).reshape(-1)[there] = 1


class LaneWriter:
    """A context manager: leaving it closes the lane.

    Attributes:
        path: the lane's directory.
        files: the lane's files, for the rest of the package.
    """

    # `_is_settled` is False where an interrupt may leave the end of an episode half done: then the
    # next call finds out from the files what was committed. The others are attributes of the class
    # until they change: Python finds those of an object faster if it has no more than 30.
    _closed = _closing = False
    _derived_at, _derived = -1, list[str]()  # the columns of the last call that had derived values
    _failure: Exception | None = None
    _advice: str | None = None  # a warning at the first masked reset

    def __init__(self, files: LockedLane, background: Background) -> None:
        """Begin to write to a locked lane, which is released if this fails."""
        self.path = Path(str(files.path))
        self.files, self._background = files, background
        self._border = 0
        self._is_settled = False
        try:
            self._rows, finals = (Appender(files, log, background) for log in files.logs)
            self._ends = Ends(files, self._rows, finals)
            if files.is_recovered:
                self._ends.end_running()
            files.open_episodes()
            self._episodes = Episodes(
                files.episodes, files.n, has_axis=files.environments is not None
            )
            files.begin()
            self._words = files.rows.state.words
            self._head = files.rows.head
            self._attach()
            self._timed_flush = flush.TimedFlush(files, self._fail)
            background.attach(self._timed_flush)
        except BaseException:
            files.release()
            raise
        # What runs in the background may keep the lane, and its lock, for a while longer.
        # Not by a method of the lane, which would keep a failed one, its maps and this writer.
        weakref.finalize(self, _abandon_lane, weakref.ref(files)).atexit = False
        _WRITERS.add(self)
        if files.has_unflushed:  # else one killed again and again would never be durable
            background.flush_soon()

    def _commit_last(self, t: int, ids: Ids, firsts: Ids, frames: dict[str, Array]) -> None:
        """Commit step t, with which episodes end, and then their final observations; as `Ends`."""
        with self._failing():
            self._ends.add(ids, firsts, frames)
        self._border, self._is_settled = 0, False
        self.files.held = t
        if platform.barrier is not None:
            platform.barrier()
        self._head = self._words[COMMITTED] = t + 1
        self._ends.commit()
        self.files.held = None

    def _put(self, row: int, values: Mapping[str, Any]) -> None:
        for path, value in values.items():
            self._rows.stored(path, row)[...] = value

    def _put_extras(self, t: int, values: dict[str, Any]) -> None:
        """Store the extra values of step t; 0 of derived ones that only a failed call had."""
        if self._derived_at == t:
            values = dict.fromkeys(self._derived, 0) | values
        self._derived_at, self._derived = t, [path for path in values if path[:8] == "derived/"]
        self._put(t, values)

    def _attach(self) -> None:
        raise NotImplementedError

    def _forget_ended(self, over: Mask) -> None:
        raise NotImplementedError

    def _end_all(self) -> None:
        raise NotImplementedError

    def _settle(self) -> None:
        """Go on from what is committed, if a call was interrupted."""
        if self._is_settled and self._head == self._words[COMMITTED]:
            return
        self._head = self._words[COMMITTED]
        with self._failing():
            over = self._ends.settle()
        self._forget_ended(np.zeros(self.files.n, np.bool_) if over is None else over)
        self._is_settled = True

    @property
    def schema(self) -> Schema:
        """What a step of one environment holds."""
        return self.files.schema

    @property
    def metadata(self) -> dict[str, Any]:
        """attributes.mmreplay as they stand on disk."""
        return self.files.metadata

    @property
    def rows(self) -> int:
        """Steps committed, each of all environments, by this writer and those before it."""
        return self._words[COMMITTED]

    @property
    def base(self) -> int:
        """The oldest step kept; evicted ones may still be kept as context of the oldest stacks."""
        return self.files.rows.base

    def episode(self, mask: npt.ArrayLike | None = None, **fields: Any) -> None:
        """Say something of the episode of the newest step, also after a reset that followed it.

        Args:
            mask: of many environments, (N,) bool: those whose episodes are meant; None for all.
            fields: declared fields (``episode=`` of `create`); of many environments one value for
                all of them, or (N, ...).

        Raises:
            SchemaError: no such field, a value or a mask that does not fit, or no step yet.
            DiskFullError: no room; nothing was changed.
            FailedStoreError, ClosedError: writing is over.
        """
        self._guard()
        which = self._environments(mask)
        values = self._episodes.checked(fields, which)
        self._settle()
        with self._failing():
            self._episodes.change(self._head, which, values)

    def _environments(self, mask: npt.ArrayLike | None) -> Ids:
        """The environments of a mask."""
        raise NotImplementedError

    def flush(self) -> None:
        """Make all steps durable: they survive a power cut from here on.

        Raises:
            FailedStoreError: an fsync failed; writing is over. What the last flush made durable is
                kept; later steps are lost when the lane is opened again.
            ClosedError: this writer is closed.
        """
        self._guard()
        self._settle()
        with self._failing():
            flush.flush(self.files, whole=True)

    def close(self) -> None:
        """Make the lane a plain zarr group and let go of it; a second call does nothing.

        A running episode ends as truncated.

        Raises:
            DiskFullError: no room for the last shard. Nothing is lost; make room and call again.
            FailedStoreError: a write or fsync failed. The next opening recovers: as after `flush`
                if it was an fsync of rows, and otherwise all that was committed.
        """
        if self._closed:
            return
        try:
            if self._failure is None:
                if self._rows.columns:
                    self._settle()
                    self._border = 0
                    self._end_all()
                appenders = self._rows, self._ends.finals
                for appender in appenders:
                    appender.finish()
                self._background.finish_tasks()  # the checksums that are still being made
                for appender in appenders:
                    appender.columns.clear()
                self.files.episodes.finish(self._episodes.begun(self._head))
                close.close(self.files)
        except (DiskFullError, ReachedLimitError):
            self._closing, self._border = True, 0
            raise
        except BaseException as error:
            if isinstance(error, FailedStoreError):
                self._fail(error)
            self._release_unclosed()
            raise
        self._release_unclosed()

    def _guard(self) -> None:
        """Raise ClosedError or FailedStoreError if writing is over."""
        if self._closed:
            raise ClosedError(
                f"{self.path}: this writer is closed, or belongs to the parent of this process; "
                f"open the store again to write"
            )
        if self._failure is not None:
            # What it met first may have been a part that was missing already.
            check_there(self.files.path, self._failure)
            raise FailedStoreError(
                str(self._failure)
                if isinstance(self._failure, MmreplayError)
                else f"{self.path}: a flush in the background failed: {self._failure!r}; what is "
                f"committed is kept: open the store again"
            ) from self._failure
        if self._closing:
            raise ClosedError(
                f"{self.path}: close() found no room on the disk, or reached a limit; make room, "
                f"or raise the limit, and call close() again"
            )

    @property
    def _is_over(self) -> bool:
        return self._closed or self._closing or self._failure is not None

    def _fail(self, error: Exception) -> None:
        self._failure, self._border = error, 0

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """A failed write or fsync ends writing; a limit that was reached does not."""
        try:
            yield
        except ReachedLimitError:
            raise
        except FailedStoreError as error:
            self._fail(error)
            raise

    def _release_unclosed(self) -> None:
        """Leave the lane as it is; the next opening recovers it, if it is not closed."""
        try:
            self._abandon()
            self._let_go()
        except BaseException:
            # An interrupt while it waited: others are let in later, but not before what runs ends.
            self.files.abandon()
            try:
                Thread(self._let_go, "mmreplay-release").start()
            except RuntimeError:  # no thread can be started
                self._let_go()
            raise

    def _let_go(self) -> None:
        self._background.end()
        self.files.release()

    def _abandon(self) -> None:
        """In a forked child: this writer is the parent's."""
        self._closed, self._border = True, 0

    def __getstate__(self) -> NoReturn:
        """Refuse to be copied: two writers of a lane would write over each other."""
        raise SchemaError(
            f"{self.path}: a {type(self).__name__} can be neither pickled nor copied, as a lane "
            f"has one writer; another process reads and samples with "
            f"mmreplay.load({str(self.path)!r}), and writes a lane of its own with "
            f"mmreplay.create(PATH, ..., lane=NAME)"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _abandon_lane(lane: weakref.ref[LockedLane]) -> None:
    kept = lane()
    if kept is not None:
        kept.abandon()


_WRITERS: weakref.WeakSet[LaneWriter] = weakref.WeakSet()
after_fork_in_child(_WRITERS, LaneWriter._abandon)
