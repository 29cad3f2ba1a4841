"""The rows of a lane in a new directory: what snapshots and repairs are made of.

Invariant: no file of the source is changed, now or later: a chunk file gets a second name only if
no writer of the source will ever store into it again, all else is copied. Row ids stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mmreplay import columns, files, format, recovery, shards
from mmreplay.background import Background
from mmreplay.columns import Array, EvictedError
from mmreplay.errors import MmreplayError
from mmreplay.format import ArraySpec
from mmreplay.lane import Writer
from mmreplay.reader import LaneReader
from mmreplay.state import CheckpointFile

__all__ = ["KEPT", "read_rows", "transplant"]

_STEP_BYTES = 32 << 20
KEPT = ("capacity", "padding", "env", "versions", "name")
"""Attributes of a lane that a copy of it has, too."""


def transplant(reader: LaneReader, target: Path, stop: int) -> None:
    """Make a closed lane of the rows below `stop` of a lane.

    Args:
        reader: the source; closed, live or left by a crash.
        target: a directory that does not exist yet; removed again if this fails.
        stop: rows from here on stay behind.

    Raises:
        EvictedError: rows went meanwhile, or another session began; try again.
        CorruptStoreError: a row below `stop` cannot be read.
        DiskFullError: no room.
    """
    base = min(reader.base, stop)
    try:
        own = {name: reader.metadata[name] for name in KEPT if name in reader.metadata}
        recovery.build_lane(target, reader.schema, reader.specs, own, base=base, head=stop)
        for spec in reader.specs.values():
            _copy_column(reader, spec, target, base, stop)
        if reader.replaced() or reader.base > base:
            raise EvictedError(str(reader.path))
        files.sync_tree(target)
        # The ordinary way of a lane that was not closed: make the newest row final, seal, sum up,
        # write the index.
        Writer(target, background=Background(0)).close()
    except BaseException:
        files.remove_tree(target)
        raise


def _copy_column(reader: LaneReader, spec: ArraySpec, target: Path, base: int, stop: int) -> None:
    whole = _settled(reader, spec, stop) // spec.chunk_rows
    for chunk in range(base // spec.chunk_rows, whole):
        _share(reader, spec, chunk, target)
    _share_sums(reader, spec, whole, target)
    start = max(whole * spec.chunk_rows, base)
    if spec.is_raw:
        for chunk in range(start // spec.chunk_rows, -(-stop // spec.chunk_rows)):
            window = columns.open_window(target, spec, chunk)
            first, last = max(window.start, start), min(window.start + spec.chunk_rows, stop)
            for row, rows in read_rows(reader, spec, first, last):
                window.rows[row - window.start : row - window.start + len(rows)] = rows
        return
    tail = shards.map_tail(target, spec, writable=True)
    for row, rows in read_rows(reader, spec, start, stop):
        place = row % len(tail)
        tail[place : place + len(rows)] = rows


def _settled(reader: LaneReader, spec: ArraySpec, stop: int) -> int:
    """Rows below this one lie in files that the source's writers will not change any more.

    After a power cut a writer goes back to the newest checkpoint, and writes the rows after it
    anew, in place.
    """
    if not spec.is_raw:
        return recovery.shard_start(reader.specs, stop)
    if reader.is_closed:
        return min(stop, max(reader.head - 1, 0))
    best = CheckpointFile(reader.path / ".live" / "checkpoint", reader.metadata["uuid"]).best
    return min(stop, max(best.head - 1, 0))


def _share(reader: LaneReader, spec: ArraySpec, chunk: int, target: Path) -> None:
    source = columns.chunk_path(reader.path, spec, chunk)
    try:
        size = spec.chunk_bytes if spec.is_raw else None
        files.share_file(source, columns.chunk_path(target, spec, chunk), size)
    except FileNotFoundError as error:
        raise reader.missing(source, (chunk + 1) * spec.chunk_rows) from error


def _share_sums(reader: LaneReader, spec: ArraySpec, stop: int, target: Path) -> None:
    """Copy the checksums of the chunk files below `stop`; one that is missing is made anew."""
    sums = format.checksum_spec(spec.path)
    for file in range(-(-stop // sums.chunk_rows)):
        path = columns.chunk_path(reader.path, sums, file)
        try:
            data = files.read_at(path, 0, sums.chunk_bytes, sums.chunk_bytes)
        except (FileNotFoundError, MmreplayError):
            continue
        values = np.frombuffer(data, sums.dtype).copy()
        values[max(stop - file * sums.chunk_rows, 0) :] = 0
        files.write_file(columns.chunk_path(target, sums, file), values.tobytes())


def read_rows(
    reader: LaneReader, spec: ArraySpec, start: int, stop: int
) -> Iterator[tuple[int, Array]]:
    """Rows [start, stop) of a column, as (first row, rows) in steps that fit into memory.

    Raises:
        EvictedError, CorruptStoreError: a row is gone, or damaged.
    """
    step = max(_STEP_BYTES // max(spec.row_bytes, 1), 1)
    shard = None if spec.is_raw else shards.ShardColumn([reader], spec.path)
    for row in range(start, stop, step):
        last = min(row + step, stop)
        if shard is None:
            yield row, columns.read_rows(reader, spec, row, last)
        else:
            yield row, shard.take(np.arange(row, last))  # as the only lane it is number 0
