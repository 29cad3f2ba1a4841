"""A closed log that is written file by file, from rows that are there.

Invariant: nobody knows the log before it is whole; each chunk file is written once, by whichever
thread or process, and its checksum is that of the bytes that belong in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mmreplay.errors import CorruptStoreError
from mmreplay.format import compression, layout
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Array
from mmreplay.maintenance.copy_lane import damaged_file
from mmreplay.maintenance.packed_rows import Column, Rows
from mmreplay.reading.log_reader import LogReader
from mmreplay.storage import chunk_files, shard_file
from mmreplay.storage.checksums import crc32c_of_file, stored_checksum
from mmreplay.system import checked_reads, durable_writes
from mmreplay.system.held_directories import AnyPath
from mmreplay.system.worker_processes import Pause
from mmreplay.writing import build_lane

__all__ = ["PackedLog", "write_documents"]

_PIECE_BYTES = 4 << 20
_COPY_BYTES = 1 << 18  # stays in the cache between reading, the checksum and writing
_PAGE = bytes(4096)


class PackedLog:
    """A log in `target` with the arrays of `specs`, whose documents are there already."""

    def __init__(self, target: AnyPath, rows: Rows, specs: Mapping[str, ArraySpec]) -> None:
        self._target, self._rows, self._specs = target, rows, specs
        self._sums: dict[tuple[str, int], int] = {}

    @property
    def weight(self) -> int:
        """Bytes of its rows, uncompressed."""
        n_rows = self._rows.head - self._rows.base
        return n_rows * sum(spec.row_bytes for spec in self._specs.values())

    def weight_of(self, spec: ArraySpec, chunk: int) -> int:
        """Bytes of the rows of one chunk file."""
        start = chunk * spec.chunk_rows
        stop = min(self._rows.head, start + spec.chunk_rows)
        return (stop - max(self._rows.base, start)) * spec.row_bytes

    def made(self) -> tuple[int, int]:
        """How many chunk files are not copied as they stand, and the bytes of their rows."""
        base, head = self._rows.base, self._rows.head
        new = [spec for spec in self._specs.values() if self._rows.stored(spec) is None]
        n_files = sum(-(-head // spec.chunk_rows) - base // spec.chunk_rows for spec in new)
        return n_files, (head - base) * sum(spec.row_bytes for spec in new)

    def files(self) -> Iterator[tuple[ArraySpec, int]]:
        """Every chunk file."""
        base, head = self._rows.base, self._rows.head
        for spec in self._specs.values():
            for chunk in range(base // spec.chunk_rows, -(-head // spec.chunk_rows)):
                yield spec, chunk

    def write(self, spec: ArraySpec, chunk: int, pause: Pause) -> int:
        """Write a chunk file, not yet durably; any thread or process may. Returns its checksum.

        `pause` is called between the inner chunks of a shard. Raises CorruptStoreError for damaged
        rows, EvictedError if the source was replaced.
        """
        path = chunk_files.chunk_path(self._target, spec, chunk)
        source = self._rows.stored(spec)
        if source is not None:
            return _copy(source, spec, chunk, path)
        column, start = self._rows.open(spec.path), chunk * spec.chunk_rows
        end = min(start + spec.chunk_rows, self._rows.head)
        if spec.is_raw:
            pieces = _raw_pieces(spec, column, start, max(start, self._rows.base), end)
            durable_writes.write_pieces(path, spec.chunk_bytes, pieces, overwritten=True)
            return crc32c_of_file(path, spec.chunk_bytes)
        chunks = _inner_chunks(spec, column, range(start, end), self._rows.base, pause)
        data = shard_file.assemble(spec, chunks)
        durable_writes.write_new(path, data)
        return compression.crc32c(data) or 1

    def note(self, path: str, chunk: int, checksum: int) -> None:
        """A chunk file of the array at `path` was written."""
        self._sums[path, chunk] = checksum

    def write_checksums(self) -> None:
        """Write the checksums of the chunk files, all of which are there."""
        tables: dict[AnyPath, Array] = {}
        for (name, chunk), value in self._sums.items():
            sums = layout.checksum_spec(name)
            number, entry = divmod(chunk, sums.chunk_rows)
            path = chunk_files.chunk_path(self._target, sums, number)
            table = tables.setdefault(path, np.zeros(sums.chunk_rows, sums.dtype))
            table[entry] = value
        for path, table in tables.items():
            pieces = [(0, table.tobytes())]
            durable_writes.write_pieces(path, table.nbytes, pieces, overwritten=True)


def write_documents(
    target: AnyPath,
    own: Mapping[str, Any],
    specs: Mapping[str, ArraySpec],
    rows: Rows,
    *more: tuple[ArraySpec, int],
) -> list[tuple[ArraySpec, int]]:
    """Every zarr.json of the log, with `own` attributes of its root.

    Returns the arrays, and how many rows each has; `more` are some that have another number.
    """
    arrays = [(spec, rows.head) for spec in specs.values()]
    arrays += [
        (layout.checksum_spec(spec.path), -(-rows.head // spec.chunk_rows))
        for spec in specs.values()
    ]
    arrays += more
    build_lane.write_documents(target, own, arrays)
    return arrays


def _copy(source: LogReader, spec: ArraySpec, chunk: int, target: AnyPath) -> int:
    """Copy a chunk file that must match its checksum, which is returned."""
    path = chunk_files.chunk_path(source.path, spec, chunk)
    value = end = 0

    def pieces(size: int) -> Iterator[tuple[int, bytes]]:
        nonlocal value, end
        for offset, data in _read(source, spec, chunk, path, size):
            value = compression.crc32c(data, compression.crc32c_of_zeros(offset - end, value))
            end = offset + len(data)
            # What ends in a hole does so in the copy.
            yield offset, data.rstrip(b"\0") if spec.is_raw and data.endswith(_PAGE) else data

    try:
        size = spec.chunk_bytes if spec.is_raw else shard_file.file_size(path, spec)
    except FileNotFoundError as error:
        raise source.missing(path, (chunk + 1) * spec.chunk_rows) from error
    durable_writes.write_pieces(target, size, pieces(size), overwritten=spec.is_raw)
    value = compression.crc32c_of_zeros(size - end, value) or 1
    if value != stored_checksum(source.path, spec, chunk):
        raise damaged_file(source, path)
    return value


def _read(
    source: LogReader, spec: ArraySpec, chunk: int, path: AnyPath, size: int
) -> Iterator[tuple[int, bytes]]:
    """The bytes of a chunk file without its holes; an error is one of reading, not of writing."""
    try:
        yield from checked_reads.read_filled(path, size, _COPY_BYTES)
    except FileNotFoundError as error:
        raise source.missing(path, (chunk + 1) * spec.chunk_rows) from error
    except OSError as error:
        raise CorruptStoreError(f"{path}: cannot be read: {error.strerror}") from error


def _raw_pieces(
    spec: ArraySpec, column: Column, first: int, start: int, stop: int
) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of rows [start, stop) in a file that begins with row `first`."""
    step = max(_PIECE_BYTES // max(spec.row_bytes, 1), 1)
    for row in range(start, stop, step):
        last = min(row + step, stop)
        values = column.take(row, last)
        if spec.width > 1:
            values = values.swapaxes(0, 1)
        data, done = np.ascontiguousarray(values).tobytes(), 0
        for offset, length in chunk_files.byte_ranges(spec, row - first, last - first):
            yield offset, data[done : done + length]
            done += length


def _inner_chunks(
    spec: ArraySpec, column: Column, shard_rows: range, base: int, pause: Pause
) -> list[bytes]:
    """The inner chunks of the rows of a shard, in their order; rows below `base` are zeros."""
    start, stop, inner = shard_rows.start, shard_rows.stop, spec.inner_rows
    codec = compression.make_codec(spec.codec or {})
    # One for each environment, and used again: they stay in the processor's cache.
    parts = np.empty((spec.width, spec.inner_bytes), np.uint8)
    frame_shape = spec.row_shape[spec.width > 1 :]
    cells = parts.view(spec.dtype).reshape(spec.width, inner, *frame_shape)
    n_rows = max(_PIECE_BYTES // spec.row_bytes, inner)
    each = list(parts)
    taken, known = np.empty((0, *spec.row_shape), spec.dtype), start
    same = column.codec == spec.codec
    out: list[bytes] = []
    for row, place in zip(range(start, stop, inner), column.places(spec, start, stop), strict=True):
        pause()
        if place is not None and row >= base:
            shard, first = place
            if same:
                out += [shard.encoded(first + env) for env in range(spec.width)]
                continue
            for number, part in enumerate(each, first):
                shard.decode(number, part)
        else:
            low, last = max(row, base), min(row + inner, stop)
            if last > max(known + len(taken), low):
                taken, known = column.take(low, min(low + n_rows, stop)), low
            rows = taken[low - known : max(last - known, 0)]
            cells[:] = 0
            cells[:, low - row : low - row + len(rows)] = (
                rows[None] if spec.width == 1 else rows.swapaxes(0, 1)
            )
        out += [compression.encode(codec, part) for part in each]
    return out
