"""The order of a flush: rows, checksums and names are durable, then a checkpoint says so.

Invariant: a checkpoint speaks only of what is durable; a chunk file goes only after a checkpoint
says that its rows are evicted.
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
from mmreplay.system.limits import ReachedLimitError
from mmreplay.writing import build_lane
from mmreplay.writing.lane_files import LockedLane

__all__ = ["TimedFlush", "can_evict", "evict", "flush", "flush_rows", "in_turn"]


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
            if timer or can_evict(lane):
                flush(lane)
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


def _flush_what_is_open(lane: LockedLane) -> None:
    if not (lane.closed or lane.released):  # while this one waited
        flush_rows(lane)


def flush_rows(lane: LockedLane) -> None:
    """As `flush`, for who has the turn."""
    head = lane.head
    first = lane.first_row(head)
    base = _base_of(first, lane.base)
    # Each once, in an order that is the same for the same history. They are forgotten only once
    # they are durable: a flush that is interrupted leaves them to the next one.
    n_fresh = len(lane.fresh)
    fresh = dict.fromkeys(lane.fresh[number] for number in range(n_fresh))
    if head > lane.flushed or fresh:
        try:
            _sync_rows(lane, head)
        except FailedSyncError:
            lane.state.distrust()
            raise
    lane.sums.sync()
    for directory in fresh:
        durable_writes.sync_directory(directory)
    for _ in range(n_fresh):
        lane.fresh.popleft()
    try:
        _save_generator(lane)
        saved = True
    except DiskFullError:
        saved = False  # the rows need no room, and what is evicted makes some
    with lane.checkpoint_lock:
        lane.checkpoint.write(head=head, base=base)
    lane.flushed, lane.first = head, first
    if base > lane.base:
        lane.words[BASE] = lane.base = base
        evict(lane)
    if not saved:
        _save_generator(lane)


def _sync_rows(lane: LockedLane, head: int) -> None:
    for spec in lane.tail_specs:
        durable_writes.sync_file(tail_file.tail_path(lane.path, spec))
    # Row flushed - 1 was the newest one, and has got its action since.
    oldest = max(lane.flushed - 1, lane.base, 0)
    for spec in lane.raw_specs:
        for chunk in range(oldest // spec.chunk_rows, -(-head // spec.chunk_rows)):
            durable_writes.sync_file(chunk_files.chunk_path(lane.path, spec, chunk))


def _save_generator(lane: LockedLane) -> None:
    state = None if lane.on_flush is None else lane.on_flush()
    if state is not None:
        durable_writes.write_file(build_lane.generator_path(lane.path), state.encode())


def can_evict(lane: LockedLane) -> bool:
    """Whether a flush now would free a chunk file."""
    base = _base_of(lane.first_row(lane.head), lane.base)
    return any(
        base // spec.chunk_rows > lane.base // spec.chunk_rows for spec in lane.specs.values()
    )


def evict(lane: LockedLane) -> None:
    """Unlink the chunk files wholly below the base that a checkpoint has."""
    for spec in lane.specs.values():
        for chunk in chunk_files.chunk_files(lane.path, spec):
            if (chunk + 1) * spec.chunk_rows > lane.base:
                break
            durable_writes.unlink(chunk_files.chunk_path(lane.path, spec, chunk))
    with contextlib.suppress(FormatError, CorruptStoreError):  # damaged, they cost no row
        priority_column.evict(lane.path, lane.base)
    kept = 0
    while kept + 1 < len(lane.starts) and lane.starts[kept + 1] <= lane.base:
        kept += 1
    del lane.starts[:kept]


def _base_of(first: int, base: int) -> int:
    """The oldest row to keep when `first` is the oldest to be sampled, and `base` was kept."""
    return max(base, first - layout.CONTEXT_ROWS)
