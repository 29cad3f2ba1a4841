"""The order of a flush: rows, checksums and names are durable, then a checkpoint says so.

Invariant: a checkpoint speaks only of what is durable, also in the logs before its own; a chunk
file goes only after a checkpoint says that its rows are evicted.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable

from mmreplay.errors import CorruptStoreError, DiskFullError, FailedStoreError, FormatError
from mmreplay.format import layout
from mmreplay.storage import chunk_files, priority_column, tail_file
from mmreplay.storage.state_page import BASE
from mmreplay.system import durable_writes
from mmreplay.system.disk_errors import FailedSyncError
from mmreplay.system.held_directories import check_there
from mmreplay.system.limits import ReachedLimitError
from mmreplay.writing import build_lane
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.log import Log

__all__ = ["TimedFlush", "evict", "flush", "flush_rows", "in_turn"]


def flush(lane: LockedLane) -> None:
    """Make all committed rows durable, then evict what the capacity leaves no room for.

    Raises:
        DiskFullError: no room, for the random state at most: the rows are durable.
        FailedStoreError: an fsync failed, now or before: it is never tried again.
    """
    in_turn(lane, _flush_what_is_open)


class TimedFlush:
    """The flushes of a lane in the background; its writer is not kept alive by them.

    `fail`, a method of the writer, is called with what went wrong.
    """

    def __init__(self, lane: LockedLane, fail: Callable[[Exception], None]) -> None:
        self._lane, self._fail = lane, weakref.WeakMethod(fail)

    def flush_in_background(self, *, timer: bool) -> None:
        """Flush by the clock, or because a chunk file can be evicted after it."""
        lane = self._lane
        if lane.closed or lane.released or lane.failure is not None:
            return
        try:
            if timer:
                flush(lane)
            else:
                in_turn(lane, _flush_what_can_go)
        except (DiskFullError, ReachedLimitError):
            return  # the next flush, or the step that finds no room, says so
        except Exception as error:  # noqa: BLE001 (else the thread would end without a word)
            fail = self._fail()
            if fail is not None:
                fail(error)


def in_turn(lane: LockedLane, call: Callable[[LockedLane], None]) -> None:
    """One flush at a time, and none after one that failed: its fsyncs would say all is well."""
    with lane.flush_lock:
        if lane.failure is not None:
            check_there(lane.path, lane.failure)
            raise FailedStoreError(str(lane.failure)) from lane.failure
        try:
            call(lane)
        except ReachedLimitError:
            raise
        except FailedStoreError as error:
            lane.failure = error
            raise
        except FileNotFoundError as error:
            lane.failure = FailedStoreError(
                f"{lane.path}: {error.filename!r} is missing: somebody is removing this store, or "
                f"removed a part of it, while it was open; run `mmreplay verify` on what is left"
            )
            raise lane.failure from error
        except CorruptStoreError as error:
            lane.failure = FailedStoreError(str(error))
            raise lane.failure from error


def _flush_what_is_open(lane: LockedLane) -> None:
    if not (lane.closed or lane.released):  # while this one waited
        flush_rows(lane)


def _flush_what_can_go(lane: LockedLane) -> None:
    # In turn: what is looked at to tell may be evicted by another flush.
    if not (lane.closed or lane.released) and any(map(_can_evict, lane.logs)):
        flush_rows(lane)


def flush_rows(lane: LockedLane) -> None:
    """As `flush`, for who has the turn."""
    # Of the last log first: what its rows below that name in those before is committed by then.
    heads = [log.head for log in reversed(lane.logs)]
    for log, head in zip(lane.logs, reversed(heads), strict=True):
        if not log.closed:
            _flush_log(lane, log, head)


def _flush_log(lane: LockedLane, log: Log, head: int) -> None:
    """Make the rows of a log below `head` durable; those of the logs before it are by now."""
    first = log.kept.first_row(head)
    base = _base_of(log, first)
    # Each once, in an order that is the same for the same history. They are forgotten only once
    # they are durable: a flush that is interrupted leaves them to the next one.
    n_fresh = len(log.fresh)
    fresh = dict.fromkeys(log.fresh[number] for number in range(n_fresh))
    if head > log.flushed or fresh:
        try:
            _sync_rows(log, head)
        except FailedSyncError:
            for later in lane.logs[lane.logs.index(log) :]:  # whose rows name those of this one
                later.state.distrust()
            raise
    log.sums.sync()
    durable_writes.sync_all(directories=fresh)
    for _ in range(n_fresh):
        log.fresh.popleft()
    saved = log is not lane.log
    if not saved:
        # On a full disk later: the rows need no room, and what is evicted makes some.
        with contextlib.suppress(DiskFullError):
            _save_generator(lane)
            saved = True
    with log.checkpoint_lock:
        log.checkpoint.write(head=head, base=base)
    log.flushed, log.first = head, first
    if base > log.base:
        log.words[BASE] = log.base = base
        evict(log)
    if not saved:
        _save_generator(lane)


def _sync_rows(log: Log, head: int) -> None:
    files = [tail_file.tail_path(log.path, spec) for spec in log.tail_specs]
    # Row flushed - 1 was the newest one, and may have got its action, or its end, since.
    oldest = max(log.flushed - 1, log.base, 0)
    for spec in log.raw_specs:
        chunks = range(oldest // spec.chunk_rows, -(-head // spec.chunk_rows))
        files += (chunk_files.chunk_path(log.path, spec, chunk) for chunk in chunks)
    durable_writes.sync_all(files)


def _save_generator(lane: LockedLane) -> None:
    state = None if lane.on_flush is None else lane.on_flush()
    if state is not None:
        durable_writes.write_file(build_lane.generator_path(lane.log.path), state.encode())


def _can_evict(log: Log) -> bool:
    """Whether a flush now would free a chunk file."""
    base = _base_of(log, log.kept.first_row(log.head))
    return any(base // spec.chunk_rows > log.base // spec.chunk_rows for spec in log.specs.values())


def evict(log: Log) -> None:
    """Unlink the chunk files wholly below the base that a checkpoint has."""
    for spec in log.specs.values():
        for chunk in chunk_files.chunk_files(log.path, spec):
            if (chunk + 1) * spec.chunk_rows > log.base:
                break
            durable_writes.unlink(chunk_files.chunk_path(log.path, spec, chunk))
    with contextlib.suppress(FormatError, CorruptStoreError):  # damaged, they cost no row
        priority_column.evict(log.path, log.base, log.width)
    log.kept.forget(log.base)


def _base_of(log: Log, first: int) -> int:
    """The oldest row to keep when `first` is the oldest to be sampled."""
    return max(log.base, first - layout.context_rows(log.width))
