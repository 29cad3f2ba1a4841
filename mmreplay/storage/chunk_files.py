"""Chunk files of uncompressed rows, and tails: their names, mapping them for writing, reading them.

A tail has uncompressed rows of a compressed array, until their shard is written.

Invariant: row r of a column lies in chunk file r // chunk_rows. Only `rows_of`,
`byte_ranges` and `file_places` know where in it: the rows follow one another, or the file has one
part for each environment, in which its entries follow one another (`ArraySpec.width`).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mmreplay.errors import CorruptStoreError
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Array, Ids
from mmreplay.system import checked_reads, durable_writes, memory_maps
from mmreplay.system.disk_errors import writing
from mmreplay.system.held_directories import AnyPath

_PIECE_BYTES = 1 << 20


class EvictedError(Exception):
    """Requested rows were evicted while they were being read; never leaves the package."""


class ChunkFiles(Protocol):
    """What reading a chunk file needs to know of its lane."""

    @property
    def path(self) -> AnyPath:
        """The lane's directory."""

    def missing(self, path: AnyPath, stop: int) -> Exception:
        """The error for a chunk file that is not there and holds rows below `stop`."""

    def check_in_place(self) -> None:
        """Raise EvictedError if the lane's path leads to another directory now."""


class LaneFiles(ChunkFiles, Protocol):
    """What a column needs to know of a lane besides: rows [base, head), which may still grow."""

    specs: dict[str, ArraySpec]
    tails: dict[str, Array]

    @property
    def base(self) -> int:
        """The oldest row kept."""

    @property
    def head(self) -> int:
        """Rows committed."""

    @property
    def is_live(self) -> bool:
        """Whether rows may still be appended."""

    def tail_start(self) -> int:
        """The first row that is in the tail now; rows below are in shards."""


def chunk_path(lane: AnyPath, spec: ArraySpec, chunk: int) -> AnyPath:
    """Where a chunk file stands."""
    return lane.joinpath(spec.path, spec.key(chunk))


def chunk_files(lane: AnyPath, spec: ArraySpec) -> list[int]:
    """The chunk files that are there, ascending; raises FileNotFoundError if the array is not."""
    chunks = map(spec.chunk_of, checked_reads.names(lane / spec.path, missing_ok=False))
    return sorted(chunk for chunk in chunks if chunk is not None)


def remove_below(lane: AnyPath, spec: ArraySpec, base: int) -> None:
    """Unlink the chunk files wholly below row `base`."""
    for chunk in chunk_files(lane, spec):
        if (chunk + 1) * spec.chunk_rows > base:
            break
        durable_writes.unlink(chunk_path(lane, spec, chunk))


def rows_of(spec: ArraySpec, data: Any) -> Array:
    """The rows, (n, *row_shape), whose bytes are `data`, as they stand in a chunk file; a view."""
    values: Array = np.frombuffer(data, spec.dtype)
    if spec.width == 1:
        return values.reshape(-1, *spec.row_shape)
    return values.reshape(spec.width, -1, *spec.row_shape[1:]).swapaxes(0, 1)


def byte_ranges(spec: ArraySpec, start: int, stop: int) -> list[tuple[int, int]]:
    """(offset, length) of the bytes of rows [start, stop) of a chunk file, ascending."""
    if spec.width == 1 or stop - start == spec.chunk_rows:
        return [(start * spec.row_bytes, (stop - start) * spec.row_bytes)]
    size = spec.row_bytes // spec.width
    return [
        ((part * spec.chunk_rows + start) * size, (stop - start) * size)
        for part in range(spec.width)
    ]


def file_places(entries: Ids, width: Ids | int, n_rows: Ids | int) -> Ids:
    """Where entries stand in their chunk files of `n_rows` rows; `width` as of `ArraySpec`."""
    rows = entries // width
    out: Ids = entries + (entries - rows * width) * (n_rows - 1) - rows % n_rows * (width - 1)
    return out


class Window:
    """One chunk file mapped for writing: from row `start` on, `rows` (chunk_rows, *row_shape).

    `items` is the fastest way to store one row: a memoryview for scalars (it refuses what the type
    cannot hold), otherwise `rows`.
    """

    __slots__ = ("chunk", "data", "items", "rows", "start")

    def __init__(self, spec: ArraySpec, chunk: int, data: npt.NDArray[np.uint8]) -> None:
        self.chunk = chunk
        self.start = chunk * spec.chunk_rows
        self.data = data
        self.rows: Array = rows_of(spec, data)
        self.items: Any = self.rows
        # memoryview knows no half floats, and would take any object as a bool.
        if not spec.row_shape and spec.dtype.char not in "e?":
            self.items = self.rows.data


def open_window(lane: AnyPath, spec: ArraySpec, chunk: int) -> Window:
    """Allocate a chunk file, if it is not there, and map it."""
    path = chunk_path(lane, spec, chunk)
    durable_writes.allocate(path, spec.chunk_bytes)
    with writing("mapping", path):
        data = memory_maps.map_file(path, spec.chunk_bytes, writable=True)
    return Window(spec, chunk, data)


def filled_rows(
    lane: ChunkFiles, spec: ArraySpec, start: int, stop: int
) -> Iterator[tuple[int, Array]]:
    """(first row, rows) of a raw column of width 1 in [start, stop), in pieces, without holes."""
    if stop <= start:
        return
    check_last(lane, spec, stop)
    row_bytes, chunk_bytes = spec.row_bytes, spec.chunk_bytes
    piece_bytes = max(_PIECE_BYTES // row_bytes, 1) * row_bytes
    folder = lane.path / spec.path  # once: there may be thousands of files in it
    for chunk in range(start // spec.chunk_rows, -(-stop // spec.chunk_rows)):
        path, begin = folder / spec.key(chunk), chunk * spec.chunk_rows
        try:
            for offset, data in checked_reads.read_filled(path, chunk_bytes, piece_bytes):
                row = begin + offset // row_bytes
                rows = np.frombuffer(data, spec.dtype).reshape(-1, *spec.row_shape)
                first, last = max(row, start), min(row + len(rows), stop)
                if first < last:
                    yield first, rows[first - row : last - row]
        except FileNotFoundError as error:
            raise lane.missing(path, min(begin + spec.chunk_rows, stop)) from error


def check_last(lane: ChunkFiles, spec: ArraySpec, stop: int) -> None:
    """Raise `lane.missing` if the chunk file of the row before `stop` is not there."""
    last = chunk_path(lane.path, spec, (stop - 1) // spec.chunk_rows)
    try:
        there = last.exists()
    except PermissionError as error:
        raise CorruptStoreError(f"{last}: may not be read: {error.strerror}") from error
    if not there:
        raise lane.missing(last, stop)


def zero_rows(lane: AnyPath, spec: ArraySpec, chunk: int, first: int) -> None:
    """Durably zero the rows of a chunk file from its row `first` on."""
    ranges = byte_ranges(spec, first, spec.chunk_rows)
    durable_writes.zero_ranges(chunk_path(lane, spec, chunk), ranges)


def read_rows(lane: ChunkFiles, spec: ArraySpec, start: int, stop: int) -> Array:
    """Rows [start, stop) of a raw column, read without mapping anything."""
    if (
        stop - start
    ) * spec.row_bytes > _PIECE_BYTES:  # rows that perhaps only damaged metadata has
        check_last(lane, spec, stop)
    out = np.empty((max(stop - start, 0), *spec.row_shape), spec.dtype)
    row = start
    while row < stop:
        chunk, first = divmod(row, spec.chunk_rows)
        n = min(stop - row, spec.chunk_rows - first)
        path = chunk_path(lane.path, spec, chunk)
        try:
            ranges = byte_ranges(spec, first, first + n)
            data = checked_reads.read_ranges(path, ranges, spec.chunk_bytes)
        except FileNotFoundError as error:
            raise lane.missing(path, row + n) from error
        lane.check_in_place()
        out[row - start : row - start + n] = rows_of(spec, data)
        row += n
    return out


def first_final(log: ChunkFiles, spec: ArraySpec, first_id: int, low: int, stop: int) -> int:
    """The first row of [low, stop) with this id or a larger one in the array of ids, `spec`."""

    def final_id(row: int) -> int:
        return int(read_rows(log, spec, row, row + 1)[0])

    if low < stop and final_id(stop - 1) < first_id:  # mostly so
        return stop
    return bisect.bisect_left(range(stop), first_id, lo=min(low, stop), key=final_id)


def tail_path(lane: AnyPath, spec: ArraySpec) -> AnyPath:
    """Where the raw rows of a compressed array stand until their shard is written."""
    return lane / ".live" / (spec.path.replace("/", "~") + ".tail")


def tail_rows(spec: ArraySpec, tail: Array, start: int, inner: int) -> Array:
    """Where the rows of an inner chunk stand in a tail, of the shard that begins at row `start`.

    (inner_rows, *row_shape); of many environments those of one, (inner_rows, *row_shape[1:]),
    which do not follow one another.
    """
    block, environment = divmod(inner, spec.width)
    row = (start + block * spec.inner_rows) % len(tail)
    rows = tail[row : row + spec.inner_rows]
    return rows if spec.width == 1 else rows[:, environment]


def tail_problem(specs: Mapping[str, ArraySpec], head: int, tail_start: int) -> str:
    """Why the tail cannot hold the rows from `tail_start` to `head`; empty if it can."""
    half = max((spec.chunk_rows for spec in specs.values() if not spec.is_raw), default=0)
    if half and (tail_start % half or not tail_start <= head <= tail_start + 2 * half):
        return (
            f"tail_start: expected a multiple of {half:,} at most {2 * half:,} rows before the "
            f"head, {head:,}, found {tail_start:,}"
        )
    return ""


def is_shared(lane: AnyPath, spec: ArraySpec) -> bool:
    """Whether a tail has several names, so that a copy of the lane has it, too."""
    path = tail_path(lane, spec)
    with writing("looking at its names", path):
        return path.lstat().st_nlink > 1


def map_tail(lane: AnyPath, spec: ArraySpec, *, writable: bool = False) -> Array:
    """The tail of a compressed array, mapped: (2 * chunk_rows, *row_shape)."""
    if writable:
        durable_writes.make_own(tail_path(lane, spec))
    data = memory_maps.map_file(tail_path(lane, spec), 2 * spec.chunk_bytes, writable=writable)
    rows: Array = data.view(spec.dtype).reshape(2 * spec.chunk_rows, *spec.row_shape)
    return rows
