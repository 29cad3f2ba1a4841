"""A closed log that is written file by file, from rows that are there.

Invariant: nobody knows the log before it is whole; each chunk file is written once, by whichever
thread, and its checksum is that of the bytes that belong in it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
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
from mmreplay.writing import build_lane

__all__ = ["LogFile", "log_files", "write_checksums", "write_documents"]

_PIECE_BYTES = 4 << 20
_COPY_BYTES = 1 << 18  # stays in the cache between reading, the checksum and writing
_PAGE = bytes(4096)


@dataclasses.dataclass(frozen=True, slots=True)
class LogFile:
    """One chunk file of a log in `target` that is to be written from `rows`."""

    target: AnyPath
    rows: Rows
    spec: ArraySpec
    chunk: int

    @property
    def weight(self) -> int:
        """Bytes of its rows, uncompressed."""
        start = self.chunk * self.spec.chunk_rows
        n_rows = min(self.rows.head, start + self.spec.chunk_rows) - max(self.rows.base, start)
        return n_rows * self.spec.row_bytes

    def write(self, stop: threading.Event) -> int:
        """Write it, not yet durably; returns its checksum.

        Raises CorruptStoreError for damaged rows, EvictedError if the source was replaced, and
        CancelledError once `stop` is set, if a shard was still being made.
        """
        path = chunk_files.chunk_path(self.target, self.spec, self.chunk)
        source = self.rows.stored(self.spec)
        if source is not None:
            return _copy(source, self.spec, self.chunk, path)
        column = self.rows.open(self.spec.path)
        start = self.chunk * self.spec.chunk_rows
        end = min(start + self.spec.chunk_rows, self.rows.head)
        if not self.spec.is_raw:
            data = shard_file.assemble(self.spec, _inner_chunks(self, column, start, end, stop))
            durable_writes.write_new(path, data)
            return compression.crc32c(data) or 1
        pieces = _raw_pieces(self, column, max(start, self.rows.base), end)
        durable_writes.write_pieces(path, self.spec.chunk_bytes, pieces, overwritten=True)
        return crc32c_of_file(path, self.spec.chunk_bytes)


def log_files(target: AnyPath, rows: Rows, specs: Mapping[str, ArraySpec]) -> list[LogFile]:
    """Every chunk file of a log."""
    return [
        LogFile(target, rows, spec, chunk)
        for spec in specs.values()
        for chunk in range(rows.base // spec.chunk_rows, -(-rows.head // spec.chunk_rows))
    ]


def write_documents(
    target: AnyPath,
    own: Mapping[str, Any],
    specs: Mapping[str, ArraySpec],
    rows: Rows,
    *more: ArraySpec,
) -> None:
    """Every zarr.json of the log, with `own` attributes of its root."""
    arrays = [(spec, rows.head) for spec in specs.values()]
    arrays += [
        (layout.checksum_spec(spec.path), -(-rows.head // spec.chunk_rows))
        for spec in specs.values()
    ]
    build_lane.write_documents(target, own, [*arrays, *((spec, 0) for spec in more)])


def write_checksums(files: Sequence[LogFile], values: Sequence[int]) -> None:
    """Write the checksums of chunk files, all of the same log."""
    tables: dict[AnyPath, Array] = {}
    for file, value in zip(files, values, strict=True):
        sums = layout.checksum_spec(file.spec.path)
        number, entry = divmod(file.chunk, sums.chunk_rows)
        path = chunk_files.chunk_path(file.target, sums, number)
        table = tables.setdefault(path, np.zeros(sums.chunk_rows, sums.dtype))
        table[entry] = value
    for path, table in tables.items():
        durable_writes.write_pieces(path, table.nbytes, [(0, table.tobytes())], overwritten=True)


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
    file: LogFile, column: Column, start: int, stop: int
) -> Iterator[tuple[int, bytes]]:
    """(offset in the file, bytes) of rows [start, stop)."""
    spec, first = file.spec, file.chunk * file.spec.chunk_rows
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
    file: LogFile, column: Column, start: int, stop: int, stopped: threading.Event
) -> list[bytes]:
    """The inner chunks of rows [start, stop) of a shard, in their order."""
    spec, inner, base = file.spec, file.spec.inner_rows, file.rows.base
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
        if stopped.is_set():
            raise CancelledError
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
