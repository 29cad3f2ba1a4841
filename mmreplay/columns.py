"""Raw columns: chunk files that hold their rows as they are, mapped for writing and for reading.

Invariant: row r of a column lies in chunk file r // chunk_rows at byte r % chunk_rows * row_bytes,
and a chunk file is mapped only after its size was checked.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mmreplay import files, maps, paging, reading
from mmreplay.format import LANE_SHIFT, ArraySpec

__all__ = [
    "Array",
    "EvictedError",
    "Ids",
    "LaneFiles",
    "RawColumn",
    "Window",
    "chunk_files",
    "chunk_path",
    "filled_rows",
    "nonzero_rows",
    "open_window",
    "read_rows",
]

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]

_ROW_MASK = (1 << LANE_SHIFT) - 1
_PIECE_BYTES = 1 << 20
_MAX_MAPS = 8192  # side by side; vm.max_map_count is 65,530 for the whole process
_MAX_CACHED = 2048  # maps of chunk files that cannot lie side by side


class EvictedError(Exception):
    """Rows that were asked for went while they were being read; never leaves the package."""


class LaneFiles(Protocol):
    """What a column needs to know of a lane."""

    @property
    def path(self) -> Path:
        """Its directory."""

    @property
    def specs(self) -> dict[str, ArraySpec]:
        """Every array of rows by path."""

    @property
    def base(self) -> int:
        """The oldest row kept."""

    @property
    def head(self) -> int:
        """Rows committed."""

    @property
    def is_live(self) -> bool:
        """Whether rows may still be appended."""

    def missing(self, path: Path, stop: int) -> Exception:
        """The error for a chunk file that is not there and holds rows below `stop`."""

    def check_in_place(self) -> None:
        """Called after a file was opened by its name, before its rows are believed.

        Raises:
            EvictedError: the directory is another one by now, and so may be the file.
        """


def chunk_path(lane: Path, spec: ArraySpec, chunk: int) -> Path:
    """Where a chunk file stands."""
    return lane.joinpath(spec.path, spec.key(chunk))


def chunk_files(lane: Path, spec: ArraySpec) -> list[int]:
    """The chunk files that are there, ascending.

    Raises:
        FileNotFoundError: the array is not.
        CorruptStoreError: it may not be read.
    """
    found = map(spec.chunk_of, reading.names(lane / spec.path, missing_ok=False))
    return sorted(chunk for chunk in found if chunk is not None)


class Window:
    """One chunk file mapped for writing.

    Attributes:
        chunk: its number.
        start: its first row.
        rows: (chunk_rows, *row_shape).
        items: the fastest thing to store one row into: a memoryview for scalars (it refuses what
            the type cannot hold), otherwise `rows`.
    """

    __slots__ = ("chunk", "items", "rows", "start")

    def __init__(self, spec: ArraySpec, chunk: int, data: npt.NDArray[np.uint8]) -> None:
        """Wrap the mapped bytes."""
        self.chunk = chunk
        self.start = chunk * spec.chunk_rows
        self.rows: Array = data.view(spec.dtype).reshape(spec.chunk_rows, *spec.row_shape)
        self.items: Any = self.rows
        # memoryview knows no half floats, and would take any object as a bool.
        if not spec.row_shape and spec.dtype.char not in "e?":
            self.items = self.rows.data


def open_window(lane: Path, spec: ArraySpec, chunk: int) -> Window:
    """Allocate a chunk file, if it is not there, and map it.

    Raises:
        DiskFullError: no room; nothing was changed.
    """
    path = chunk_path(lane, spec, chunk)
    files.allocate(path, spec.chunk_bytes)
    return Window(spec, chunk, maps.map_file(path, spec.chunk_bytes, writable=True))


def filled_rows(
    lane: LaneFiles, spec: ArraySpec, start: int, stop: int
) -> Iterator[tuple[int, Array]]:
    """(first row, rows) of a raw column in [start, stop), piece by piece, mapping nothing.

    What lies in holes of the files is left out; it is zeros. Metadata may speak of any number of
    rows: neither memory nor time is taken for those that nobody wrote.
    """
    if stop <= start:
        return
    _expect_last(lane, spec, stop)
    piece_rows = max(_PIECE_BYTES // spec.row_bytes, 1)
    for chunk in range(start // spec.chunk_rows, -(-stop // spec.chunk_rows)):
        path, begin = chunk_path(lane.path, spec, chunk), chunk * spec.chunk_rows
        try:
            for offset, data in reading.read_filled(
                path, spec.chunk_bytes, piece_rows * spec.row_bytes
            ):
                row = begin + offset // spec.row_bytes
                rows = np.frombuffer(data, spec.dtype).reshape(-1, *spec.row_shape)
                first, last = max(row, start), min(row + len(rows), stop)
                if first < last:
                    yield first, rows[first - row : last - row]
        except FileNotFoundError as error:
            raise lane.missing(path, min(begin + spec.chunk_rows, stop)) from error


def nonzero_rows(lane: LaneFiles, spec: ArraySpec, start: int, stop: int) -> Ids:
    """The rows in [start, stop) of a raw column of scalars that are not 0, ascending."""
    found = [np.empty(0, np.int64)]
    for row, values in filled_rows(lane, spec, start, stop):
        found.append(np.flatnonzero(values) + row)
    return np.concatenate(found)


def _expect_last(lane: LaneFiles, spec: ArraySpec, stop: int) -> None:
    last = chunk_path(lane.path, spec, (stop - 1) // spec.chunk_rows)
    if not last.exists():
        raise lane.missing(last, stop)


def read_rows(lane: LaneFiles, spec: ArraySpec, start: int, stop: int) -> Array:
    """Rows [start, stop) of a raw column, read without mapping anything."""
    if stop > start:  # before there is memory for rows that only damaged metadata speaks of
        _expect_last(lane, spec, stop)
    out = np.empty((max(stop - start, 0), *spec.row_shape), spec.dtype)
    row = start
    while row < stop:
        chunk, first = divmod(row, spec.chunk_rows)
        n = min(stop - row, spec.chunk_rows - first)
        path = chunk_path(lane.path, spec, chunk)
        offset = first * spec.row_bytes
        try:
            data = reading.read_at(path, offset, n * spec.row_bytes, spec.chunk_bytes)
        except FileNotFoundError as error:
            raise lane.missing(path, row + n) from error
        lane.check_in_place()
        out[row - start : row - start + n] = np.frombuffer(data, spec.dtype).reshape(
            n, *spec.row_shape
        )
        row += n
    return out


class _Flat(NamedTuple):
    """The files of all lanes side by side; replaced whole, for threads that read meanwhile.

    Attributes:
        data: the range of addresses.
        pager: what is in memory of it.
        rows: every mapped row, (n, *row_shape).
        delta: per lane, what to add to an id for its place in `rows`.
        shifted: whether any of it is not 0.
    """

    data: npt.NDArray[np.uint8]
    pager: paging.Pager
    rows: Array
    delta: Ids
    shifted: bool


class RawColumn:
    """A raw column of all lanes of a store, as one array where the files allow it.

    The chunk files of all lanes lie side by side in one range of addresses, so that a batch over
    any number of lanes is a single `take`. Files whose size is no multiple of a page are mapped
    one by one, and a batch loops over them.
    """

    def __init__(self, lanes: Sequence[LaneFiles], path: str) -> None:
        """Map nothing yet."""
        self._lanes = lanes
        self._path = path
        self._specs = [lane.specs[path] for lane in lanes]
        spec = self._specs[0]
        self.row_shape, self.dtype = spec.row_shape, spec.dtype
        self._row_bytes = spec.row_bytes
        self._flat: _Flat | None = None
        self._reservation: maps.Reservation | None = None
        self._chunk_rows = np.array([s.chunk_rows for s in self._specs], np.int64)
        self._pager = paging.Pager()
        self._finished = [0] * len(lanes)  # chunk after the last one that the pager knows
        self._origin = [0] * len(lanes)  # first mapped chunk of each lane
        self._stop = [0] * len(lanes)  # chunk after the last mapped one
        self._room = [0] * len(lanes)  # chunks that fit into the lane's window
        self._slot = [0] * len(lanes)  # row of the flat array where the window starts
        self._side_by_side = all(s.chunk_bytes % maps.GRANULARITY == 0 for s in self._specs)
        self._bases = [0] * len(lanes)  # as of the last look for evicted maps
        self._cache: collections.OrderedDict[tuple[int, int], Array] = collections.OrderedDict()

    def refresh(self) -> None:
        """Map the chunk files that came since; called before rows past the old head are read."""
        if not self._side_by_side:
            self._let_go()
            return
        for number, (lane, spec) in enumerate(zip(self._lanes, self._specs, strict=True)):
            if lane.head > self._stop[number] * spec.chunk_rows or self._flat is None:
                stop = -(-lane.head // spec.chunk_rows)
                gone = lane.base // spec.chunk_rows - self._origin[number]
                mapped = stop - self._origin[number]
                # A map keeps the blocks of a file that was evicted: let go of them by the quarter.
                if self._flat is None or mapped > self._room[number] or 4 * gone > mapped:
                    self._rebuild()
                    return
                self._put(number, self._stop[number], stop)
            self._tell_pager(number)

    def _let_go(self) -> None:
        """Unmap chunk files that were evicted: their blocks are free only then."""
        bases = [lane.base for lane in self._lanes]
        if bases == self._bases:
            return
        self._bases = bases
        for number, chunk in list(self._cache):
            if (chunk + 1) * self._specs[number].chunk_rows <= bases[number]:
                self._cache.pop((number, chunk), None)

    def _rebuild(self) -> None:
        """A new range with room to grow; arrays over the old one keep it mapped."""
        pairs = list(zip(self._lanes, self._specs, strict=True))
        first = [lane.base // spec.chunk_rows for lane, spec in pairs]
        stops = [-(-lane.head // spec.chunk_rows) for lane, spec in pairs]
        rooms = [
            2 * max(stop - start, 1) if lane.is_live else max(stop - start, 1)
            for lane, start, stop in zip(self._lanes, first, stops, strict=True)
        ]
        sizes = [room * s.chunk_bytes for room, s in zip(rooms, self._specs, strict=True)]
        try:
            if sum(rooms) > _MAX_MAPS:
                raise OSError
            reservation = maps.Reservation(sum(sizes))
        except OSError:  # more files than a process may map, or no such range of addresses
            self._side_by_side = False
            self._flat = None
            return
        self._reservation = reservation
        self._pager, self._finished = paging.Pager(), first
        delta = np.zeros(len(pairs), np.int64)
        byte = 0
        for number, spec in enumerate(self._specs):
            self._slot[number] = byte // self._row_bytes
            self._origin[number], self._room[number] = first[number], rooms[number]
            self._stop[number] = first[number]
            self._put(number, first[number], stops[number])
            delta[number] = self._slot[number] - first[number] * spec.chunk_rows
            delta[number] -= number << LANE_SHIFT
            byte += sizes[number]
        rows = reservation.array.view(self.dtype).reshape(-1, *self.row_shape)
        self._flat = _Flat(reservation.array, self._pager, rows, delta, bool(delta.any()))
        for number in range(len(pairs)):
            self._tell_pager(number)

    def _tell_pager(self, number: int) -> None:
        """Chunk files whose last row has been written since."""
        spec = self._specs[number]
        complete = self._lanes[number].head // spec.chunk_rows
        for chunk in range(self._finished[number], complete):
            byte = self._slot[number] * self._row_bytes
            byte += (chunk - self._origin[number]) * spec.chunk_bytes
            data = self._reservation.array[byte : byte + spec.chunk_bytes]  # type: ignore[union-attr]
            self._pager.add((number, chunk), data)
        self._finished[number] = max(complete, self._finished[number])

    def _put(self, number: int, start: int, stop: int) -> None:
        lane, spec = self._lanes[number], self._specs[number]
        for chunk in range(start, stop):
            byte = self._slot[number] * self._row_bytes
            byte += (chunk - self._origin[number]) * spec.chunk_bytes
            path = chunk_path(lane.path, spec, chunk)
            try:
                self._reservation.put(byte, path, spec.chunk_bytes)  # type: ignore[union-attr]
            except FileNotFoundError as error:
                raise lane.missing(path, (chunk + 1) * spec.chunk_rows) from error
        if stop > start:
            lane.check_in_place()
        self._stop[number] = max(stop, start)

    def take(self, ids: Ids, out: Array | None = None) -> Array:
        """Rows by id.

        Args:
            ids: any shape, each lane << 40 | row of a row that `refresh` has seen.
            out: C-contiguous, (*ids.shape, *row_shape), filled and returned if given.
        """
        flat = self._flat
        if flat is None:
            return self._take_one_by_one(ids, out)
        index = ids
        if flat.shifted:
            index = ids + (flat.delta[ids >> LANE_SHIFT] if len(flat.delta) > 1 else flat.delta)
        if flat.pager.active and ids.ndim > 1:
            self._page_in(flat, ids, index)
        if out is None:
            return flat.rows.take(index, axis=0)
        # The ids are checked before: without mode="clip" numpy would buffer the whole output.
        return flat.rows.take(index, axis=0, out=out, mode="clip")

    def _take_one_by_one(self, ids: Ids, out: Array | None) -> Array:
        if out is None:
            out = np.empty((*ids.shape, *self.row_shape), self.dtype)
        wanted = ids.ravel()
        filled = out.reshape(-1, *self.row_shape)
        lanes, rows = wanted >> LANE_SHIFT, wanted & _ROW_MASK
        chunks, places = np.divmod(rows, self._chunk_rows[lanes])
        keys = lanes << LANE_SHIFT | chunks
        for key in np.unique(keys).tolist():
            here = np.flatnonzero(keys == key)
            filled[here] = self._chunk(key >> LANE_SHIFT, key & _ROW_MASK)[places[here]]
        return out

    def _chunk(self, number: int, chunk: int) -> Array:
        found = self._cache.get((number, chunk))
        if found is None:
            lane, spec = self._lanes[number], self._specs[number]
            path = chunk_path(lane.path, spec, chunk)
            try:
                data = maps.map_file(path, spec.chunk_bytes)
            except FileNotFoundError as error:
                raise lane.missing(path, (chunk + 1) * spec.chunk_rows) from error
            lane.check_in_place()
            found = data.view(spec.dtype).reshape(spec.chunk_rows, *spec.row_shape)
            self._cache[number, chunk] = found
            while len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
        return found

    def leave_parent(self) -> None:
        """In a forked child: there is no lock here."""

    def read(self, number: int, start: int, stop: int) -> Array:
        """A copy of rows [start, stop) of one lane."""
        lane, spec = self._lanes[number], self._specs[number]
        if self._flat is None or start < self._origin[number] * spec.chunk_rows:
            return read_rows(lane, spec, start, stop)
        place = self._slot[number] - self._origin[number] * spec.chunk_rows
        return self._flat.rows[place + start : place + stop].copy()

    def _page_in(self, flat: _Flat, ids: Ids, index: Ids) -> None:
        """Let the pager know which chunk files a batch of windows is about to read."""
        lanes = ids[:, -1] >> LANE_SHIFT
        chunks = (ids[:, -1] & _ROW_MASK) // self._chunk_rows[lanes]
        if flat.pager.before(set(zip(lanes.tolist(), chunks.tolist(), strict=True))):
            first, last = index.min(axis=1), index.max(axis=1)
            ranges = paging.ranges(first, last, self._row_bytes)
            maps.advise_needed(flat.data, ranges)
