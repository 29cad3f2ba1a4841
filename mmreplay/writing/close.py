"""The order of a close: everything is durable before a lane says that it is closed.

Invariant: killed at any point, a close leaves the lane open, and it recovers, or closed, and whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

from mmreplay.errors import CorruptStoreError, LockedError
from mmreplay.format import layout
from mmreplay.format.layout import ArraySpec
from mmreplay.storage import chunk_files, priority_column
from mmreplay.storage.changing_column import lock_column
from mmreplay.system import durable_writes
from mmreplay.writing import build_lane, flush
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.log import Arrays, Log
from mmreplay.writing.seal import SealJob


def close(lane: LockedLane) -> None:
    """Make the lane a plain zarr group. Every episode has ended, and no job is running."""
    flush.in_turn(lane, _close)


def _close(lane: LockedLane) -> None:
    rows, finals = lane.logs
    if not lane.closed:  # otherwise only what was private is still there
        for log in lane.logs:
            # A step that failed since the last flush has touched the newest row.
            log.flushed = min(log.flushed, log.head - 1)
        flush.flush_rows(lane, whole=True)
        with priority_column.making(lane.path), contextlib.ExitStack() as held:
            lane.take_priorities()
            _write_closed(lane, rows, finals, _hold(rows, held))
    for log in lane.logs:
        _remove_pending(log)
        durable_writes.remove_tree(log.live)
        durable_writes.sync_directory(log.path)


def _hold(log: Log, held: contextlib.ExitStack) -> set[str]:
    """Lock the columns that may change, until the lane is closed; those that others change."""
    changing = set()
    for spec in log.raw_specs:
        if spec.may_change:
            try:
                held.callback(lock_column(log.path, spec.path, patience_s=0).release)
            except LockedError:
                changing.add(spec.path)
    return changing


def _write_closed(lane: LockedLane, rows: Log, finals: Log, changing: Collection[str]) -> None:
    """Finish both logs, and then let zarr.json say that the lane is closed."""
    of_rows = _finish(rows, rows.head, changing)
    of_finals = _finish(finals, finals.head)
    of_rows += _finish(lane.episodes, lane.episodes.head)
    arrays = {spec.path: (spec, n) for spec, n in of_rows}
    arrays |= {f"{layout.FINALS}/{spec.path}": (spec, n) for spec, n in of_finals}
    generator = lane.generator()
    more: dict[str, Any] = {} if generator is None else {"generator": generator}
    lane.metadata = build_lane.write_metadata(
        lane.path,
        lane.metadata,
        layout.documents_of(arrays),
        rows=rows.head,
        first=rows.first,
        finals=finals.head,
        first_final=finals.base,
        episodes_before=rows.before,
        closed=True,
        **more,
    )
    for log in lane.logs:
        log.closed = True
        log.state.end()


def _seal(log: Log, start: int, stop: int) -> None:
    job = SealJob(log, start, stop)
    job.run()
    if job.error is not None:
        raise job.error


def _finish(log: Arrays, head: int, changing: Collection[str] = ()) -> list[tuple[ArraySpec, int]]:
    """Everything that a closed log has; returns its arrays, and how many rows each has."""
    if isinstance(log, Log):
        start = log.tail_start
        while log.half and start < head:
            stop = min(start + log.half, head)
            _seal(log, start, stop)
            start = stop
    flush.evict(log)
    _zero_unused(log, head)
    _finish_checksums(log, head, changing)
    return _write_shapes(log, head)


def _zero_unused(log: Arrays, head: int) -> None:
    """Give back the blocks past the last row; whatever an interrupted step left there goes."""
    for spec in log.raw_specs:
        for chunk in chunk_files.chunk_files(log.path, spec):
            start = chunk * spec.chunk_rows
            if start >= head + log.beyond(spec):
                durable_writes.unlink(chunk_files.chunk_path(log.path, spec, chunk))
            elif head < start + spec.chunk_rows:
                chunk_files.zero_rows(log.path, spec, chunk, head - start)


def _remove_pending(log: Log) -> None:
    """Remove chunk files that hold only the pending row: readers map them until the close."""
    for spec in log.raw_specs:
        chunk, rest = divmod(log.head, spec.chunk_rows)
        if log.beyond(spec) and not rest:
            durable_writes.unlink(chunk_files.chunk_path(log.path, spec, chunk))
            durable_writes.sync_directory(log.path / spec.path)


def _finish_checksums(log: Arrays, head: int, changing: Collection[str]) -> None:
    for spec in log.specs.values():
        if spec.path in changing:
            continue  # whoever changes the values stores their checksums in the end
        try:
            log.sums.complete(spec, head)
        except CorruptStoreError:
            if not spec.may_change:
                raise
    log.sums.sync()
    for spec in log.specs.values():
        # A power cut may have taken all the rows that such a file was made for.
        sums = layout.checksum_spec(spec.path)
        for file in chunk_files.chunk_files(log.path, sums):
            if file * sums.chunk_rows * spec.chunk_rows >= head:
                durable_writes.unlink(chunk_files.chunk_path(log.path, sums, file))
    durable_writes.sync_all(
        directories=[log.path / layout.checksum_spec(name).path for name in log.specs]
    )


def _write_shapes(log: Arrays, head: int) -> list[tuple[ArraySpec, int]]:
    """Write how many rows those arrays have, and those of checksums; returns all of these."""
    shapes: list[tuple[ArraySpec, int]] = []
    for spec in log.specs.values():
        n_chunks = -(-head // spec.chunk_rows)
        shapes += [(spec, head), (layout.checksum_spec(spec.path), n_chunks)]
    durable_writes.write_files(
        {log.path / spec.path / "zarr.json": layout.array_json(spec, rows) for spec, rows in shapes}
    )
    return shapes
