"""The order of a flush: final observations, then steps; of each, its files, then a checkpoint.

Invariant: a checkpoint counts only rows whose files, checksums and names are durable, that of the
steps also their final observations; a chunk file is deleted after the checkpoint that evicts it.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable

from mmreplay.errors import CorruptStoreError, DiskFullError, FailedStoreError
from mmreplay.format import layout
from mmreplay.format.layout import PRIORITIES
from mmreplay.storage import chunk_files
from mmreplay.storage.changing_column import sync_values
from mmreplay.storage.state_page import BASE, EPISODES_BEFORE
from mmreplay.system import durable_writes
from mmreplay.system.held_directories import AnyPath, check_there
from mmreplay.system.limits import ReachedLimitError
from mmreplay.writing import build_lane
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.log import Arrays, Log, syncing_rows


def flush(lane: LockedLane, *, whole: bool = False, only_to_evict: bool = False) -> None:
    """Make all committed steps durable, then evict what exceeds the capacity, in whole files.

    `whole`: with the derived columns, of which any row may have changed; `only_to_evict`: do
    nothing unless a chunk file can go.
    """

    def call(lane: LockedLane) -> None:
        # The lane may have been closed, or another flush have evicted, while this one waited.
        if not (lane.closed or lane.released) and (not only_to_evict or _can_evict(lane)):
            flush_rows(lane, whole=whole)

    in_turn(lane, call)


def flush_finals(lane: LockedLane) -> None:
    """Make the final observations of all committed steps durable; raises as `flush`."""
    in_turn(lane, lambda lane: _flush_finals(lane, lane.finished()))


class TimedFlush:
    """The flushes of a lane in the background; `fail`, a method of its writer, takes errors."""

    def __init__(self, lane: LockedLane, fail: Callable[[Exception], None]) -> None:
        self._lane, self._fail = lane, weakref.WeakMethod(fail)

    def flush_in_background(self, *, timer: bool) -> None:
        """Flush by the clock, or because a chunk file can be evicted after it."""
        lane = self._lane
        if lane.closed or lane.released or lane.failure is not None:
            return
        try:
            flush(lane, only_to_evict=not timer)
        except (DiskFullError, ReachedLimitError):
            return  # the next flush, or the step that finds no room, says so
        except Exception as error:  # noqa: BLE001 (else the thread would end without a word)
            fail = self._fail()
            if fail is not None:
                fail(error)


def in_turn(lane: LockedLane, call: Callable[[LockedLane], None]) -> None:
    """One flush at a time, and none after a failed one: its fsyncs would seem to succeed."""
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
                f"{lane.path}: {error.filename!r} is missing: this store is being removed, or "
                f"a part of it was, while it was open; run `mmreplay verify` on what is left"
            )
            raise lane.failure from error
        except CorruptStoreError as error:
            lane.failure = FailedStoreError(str(error))
            raise lane.failure from error


def flush_rows(lane: LockedLane, *, whole: bool) -> None:
    """As `flush`, by the thread that has the turn."""
    lane.take_priorities()
    head = lane.promised = lane.finished()
    # In this order: a reset that ends an episode with the newest step after `promised` is set makes
    # the final observation durable itself; one that was added before is part of this flush.
    _flush_finals(lane, head)
    _flush_steps(lane, head, whole=whole)


def _flush_finals(lane: LockedLane, head: int) -> None:
    """Make final observations of steps below `head` durable, and evict those of evicted steps."""
    log, best = lane.finals, lane.finals.checkpoint.best
    find = functools.partial(chunk_files.first_final, log, log.specs["id"])
    stop = max(find(head * lane.n, best.head, log.head), best.head)
    gone = lane.rows.checkpoint.best.base * lane.n
    base = find(gone, log.base, stop) if gone else log.base
    if stop > log.flushed or log.fresh:
        with syncing_rows(lane.finals, lane.rows):
            _sync_rows(log, stop)
    if (stop, base) != (best.head, best.base):
        with log.checkpoint_lock:
            log.checkpoint.write(head=stop, base=base)
    log.flushed = stop
    if base > log.base:
        log.state.words[BASE] = log.base = log.first = base
        evict(log)


def _flush_steps(lane: LockedLane, head: int, *, whole: bool) -> None:
    """Make the steps below `head` durable, with the pending row of their frames, and evict some."""
    log = lane.rows
    first = lane.first_row(head)
    base = _base_of(lane, first)
    best = log.checkpoint.best  # `log` may be behind it, after an interrupt
    before = best.before + lane.episodes_in(best.base, max(base, best.base))
    if head > log.flushed or log.fresh:
        with syncing_rows(log):
            _sync_rows(log, head)
    for spec in log.raw_specs:
        if spec.path == PRIORITIES or (whole and spec.may_change):
            sync_values(log.path, spec)
    with syncing_rows(log):
        lane.episodes.sync()
    # If the disk is full, retry below: syncing rows needs no room, and eviction makes some.
    saved = False
    with contextlib.suppress(DiskFullError):
        _save_generator(lane)
        saved = True
    with log.checkpoint_lock:
        log.checkpoint.write(head=head, base=base, before=before)
    log.flushed, log.first = head, first
    if base > log.base:
        log.state.words[EPISODES_BEFORE], log.state.words[BASE] = before, base
        log.base, log.before = base, before
        evict(log)
        lane.episodes.base = before
        evict(lane.episodes)
    if not saved:
        _save_generator(lane)


def _sync_rows(log: Log, head: int) -> None:
    """Make rows, checksums and names durable; an interrupted flush leaves names to the next one."""
    n_fresh = len(log.fresh)
    fresh: dict[AnyPath, None] = dict.fromkeys(log.fresh[number] for number in range(n_fresh))
    files = [chunk_files.tail_path(log.path, spec) for spec in log.tail_specs]
    # Row flushed - 1 was the newest one, and its episode may have been ended since.
    oldest = max(log.flushed - 1, log.base, 0)
    for spec in log.raw_specs:
        if spec.may_change:
            continue
        stop = head + log.beyond(spec)
        chunks = range(oldest // spec.chunk_rows, -(-stop // spec.chunk_rows))
        files += (chunk_files.chunk_path(log.path, spec, chunk) for chunk in chunks)
    durable_writes.sync_all(files)
    log.sums.sync()
    durable_writes.sync_all(directories=fresh)
    for _ in range(n_fresh):
        log.fresh.popleft()


def _save_generator(lane: LockedLane) -> None:
    state = None if lane.on_flush is None else lane.on_flush()
    if state is not None:
        durable_writes.write_file(build_lane.generator_path(lane.path), state.encode())


def _can_evict(lane: LockedLane) -> bool:
    log = lane.rows
    base = _base_of(lane, lane.first_row(lane.finished()))
    return any(base // spec.chunk_rows > log.base // spec.chunk_rows for spec in log.specs.values())


def evict(log: Arrays) -> None:
    """Unlink the chunk files wholly below the base that a checkpoint has."""
    for spec in log.specs.values():
        chunk_files.remove_below(log.path, spec, log.base)


def _base_of(lane: LockedLane, first: int) -> int:
    """The oldest step to keep when `first` is the oldest to be sampled."""
    return max(lane.rows.base, first - layout.CONTEXT_ROWS)
