"""The order of a close: everything is durable before the lane says that it is closed.

Invariant: killed at any point, a close leaves a lane that is open, and recovers, or one that is
closed, and whole.
"""

from __future__ import annotations

import contextlib

import numpy as np

from mmreplay.errors import CorruptStoreError, FormatError
from mmreplay.format import layout
from mmreplay.format.layout import ArraySpec
from mmreplay.storage import chunk_files, priority_column, shard_file
from mmreplay.storage.checksums import crc32c_of_file
from mmreplay.system import durable_writes
from mmreplay.writing import build_lane, flush
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.seal import seal_job

__all__ = ["close"]


def close(lane: LockedLane) -> None:
    """Make the lane a plain zarr group. The newest row is final, and no job is running.

    Raises:
        DiskFullError, FailedStoreError: it could not be finished; the lane is as before a
            recovery then, and nothing that was committed is lost.
    """
    flush.in_turn(lane, _close)


def _close(lane: LockedLane) -> None:
    if not lane.closed:  # otherwise only what was private is still there
        # A step that failed since the last flush has touched the newest row.
        lane.flushed = min(lane.flushed, lane.head - 1)
        flush.flush_rows(lane)
        _finish(lane)
    durable_writes.remove_tree(lane.path / ".live")
    durable_writes.sync_directory(lane.path)


def _finish(lane: LockedLane) -> None:
    """Everything that a closed lane has, and last of all the word that it is closed."""
    head = lane.head
    if lane.half:
        start = lane.tail_start
        if head - start >= lane.half:
            _seal_here(lane, start, start + lane.half)
            start += lane.half
        if head > start:
            _seal_here(lane, start, head)
    flush.evict(lane)
    _zero_unused(lane, head)
    _finish_checksums(lane, head)
    _write_index(lane, head)
    for spec in lane.specs.values():
        _write_shape(lane, spec, head)
        _write_shape(lane, layout.checksum_spec(spec.path), -(-head // spec.chunk_rows))
    with contextlib.suppress(FormatError, CorruptStoreError):
        priority_column.finish(lane.path, head)
    generator = build_lane.read_generator(lane.path)
    more = {} if generator is None else {"generator": generator}
    lane.metadata = build_lane.write_metadata(
        lane.path, lane.metadata, rows=head, first=lane.first, closed=True, **more
    )
    lane.closed = True
    lane.state.end()


def _seal_here(lane: LockedLane, start: int, stop: int) -> None:
    job = seal_job(lane, start, stop)
    job.run()
    if job.error is not None:
        raise job.error


def _zero_unused(lane: LockedLane, head: int) -> None:
    """Give back the blocks past the last row; whatever an interrupted step left there goes."""
    for spec in lane.raw_specs:
        for chunk in chunk_files.chunk_files(lane.path, spec):
            start = chunk * spec.chunk_rows
            path = chunk_files.chunk_path(lane.path, spec, chunk)
            if start >= head:
                durable_writes.unlink(path)
            elif head < start + spec.chunk_rows:
                durable_writes.zero_from(path, (head - start) * spec.row_bytes)


def _finish_checksums(lane: LockedLane, head: int) -> None:
    for spec in lane.specs.values():
        for chunk in chunk_files.chunk_files(lane.path, spec):
            is_short = spec.is_raw and head < (chunk + 1) * spec.chunk_rows
            # That of a shard may have gone with the power, after the shard was durable.
            if is_short or not lane.sums.has(spec, chunk):
                path = chunk_files.chunk_path(lane.path, spec, chunk)
                size = spec.chunk_bytes if spec.is_raw else shard_file.file_size(path, spec)
                # Read, not mapped: on tmpfs a map needs room even for what lies in a hole.
                lane.sums.set(spec, chunk, crc32c_of_file(path, size))
    lane.sums.sync()
    for spec in lane.specs.values():
        # A power cut may have taken all the rows that such a file was made for.
        sums = layout.checksum_spec(spec.path)
        for file in chunk_files.chunk_files(lane.path, sums):
            if file * sums.chunk_rows * spec.chunk_rows >= head:
                durable_writes.unlink(chunk_files.chunk_path(lane.path, sums, file))
        durable_writes.sync_directory(lane.path / sums.path)


def _write_index(lane: LockedLane, head: int) -> None:
    starts = np.array([row for row in lane.starts if lane.base <= row < head], "<i8")
    spec = layout.index_spec(len(starts))
    for chunk in chunk_files.chunk_files(lane.path, spec):
        durable_writes.unlink(chunk_files.chunk_path(lane.path, spec, chunk))
    for chunk in range(-(-len(starts) // spec.chunk_rows)):
        part = starts[chunk * spec.chunk_rows : (chunk + 1) * spec.chunk_rows]
        data = part.tobytes().ljust(spec.chunk_bytes, b"\0")
        durable_writes.write_file(chunk_files.chunk_path(lane.path, spec, chunk), data)
    _write_shape(lane, spec, len(starts))


def _write_shape(lane: LockedLane, spec: ArraySpec, rows: int) -> None:
    durable_writes.write_file(lane.path / spec.path / "zarr.json", layout.array_json(spec, rows))
