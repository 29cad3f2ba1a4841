"""Read uncompressed columns of all lanes of a store through memory maps.

Invariant: a chunk file is mapped only after its size was checked; an id's row stands at one index
of `SideBySide.rows`, whichever files are mapped later. `Pager` changes when pages come,
never what is read: page tables of files in the page cache are filled at once, and the rows of a
batch that are only on the disk are requested together before the first of them is read.
"""

from __future__ import annotations

import collections
import itertools
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mmreplay.format.layout import ArraySpec
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids, distinct
from mmreplay.storage.chunk_files import LaneFiles, chunk_path, file_places, read_rows
from mmreplay.system import memory_maps
from mmreplay.system.held_directories import AnyPath

_MAX_MAPS = 8192  # side by side; vm.max_map_count is 65,530 for the whole process
_FEW_BYTES = 1 << 18  # are read, where nothing is mapped: quicker, if it is once
_MAX_CACHED = 2048  # maps of chunk files that cannot lie side by side
_LARGE_BYTES = 1 << 20  # of a chunk file: smaller ones are not worth advice
_MOSTLY = 0.75  # of a file's pages; reading the rest at once costs little
_LOOK_AGAIN = 256  # batches

Chunk = tuple[int, int]


class SideBySide:
    """One array over the chunk files of a raw column, lane after lane, with room to grow.

    Of each lane, `first` is its first chunk in the range, `stop` the chunk after the last mapped
    one, which the user counts up, `shifts` what to add to an id for its index in `rows` (width 1).
    `rows`, (n, *row_shape), are zeros where nothing is mapped. OSError: no such range of addresses.
    """

    __slots__ = (
        "_begins", "_bytes", "_has_parts", "_offsets", "_origins", "_reservation", "_room",
        "_sizes", "_tables", "data", "first", "rows", "shifted", "shifts", "stop",
    )  # fmt: skip

    def __init__(
        self,
        specs: Sequence[ArraySpec],
        first: Sequence[int],
        room: Sequence[int],
        *,
        writable: bool = False,
    ) -> None:
        self._room = room
        self.first, self.stop = list(first), list(first)
        one = specs[0]
        sizes = [chunks * spec.chunk_rows for chunks, spec in zip(room, specs, strict=True)]
        self._reservation = memory_maps.Reservation(sum(sizes) * one.row_bytes, writable=writable)
        self.data: npt.NDArray[np.uint8] = self._reservation.array
        self.rows: Array = self.data.view(one.dtype).reshape(-1, *one.row_shape)
        begins = [0, *itertools.accumulate(sizes[:-1])]
        shifts = [
            begin - (number << LANE_SHIFT) - chunk * spec.chunk_rows
            for number, (begin, chunk, spec) in enumerate(zip(begins, first, specs, strict=True))
        ]
        self._begins, self.shifts = np.array(begins, np.int64), np.array(shifts, np.int64)
        # Of each lane, the bytes of a chunk file, and where that of chunk 0 would stand.
        self._bytes = [spec.chunk_bytes for spec in specs]
        self._origins = [
            begin * one.row_bytes - chunk * size
            for begin, chunk, size in zip(begins, first, self._bytes, strict=True)
        ]
        self._has_parts = any(spec.width > 1 for spec in specs)
        if self._has_parts:
            tables = [
                _offsets_of(*of) for of in zip(specs, shifts, itertools.count(), strict=False)
            ]
            self._sizes = np.array([table.size for table in tables])
            self._tables = np.cumsum(self._sizes) - self._sizes
            self._offsets = np.concatenate(tables)
        self.shifted = any(shifts) or self._has_parts

    def has_room(self, lane: int, stop: int) -> bool:
        """Whether a lane's chunks below `stop` fit."""
        return stop - self.first[lane] <= self._room[lane]

    def put(self, lane: int, chunk: int, path: AnyPath) -> None:
        """Map a chunk file into its place; raises CorruptStoreError if it has another size."""
        size = self._bytes[lane]
        self._reservation.put(self._origins[lane] + chunk * size, path, size)

    def chunk(self, lane: int, chunk: int) -> npt.NDArray[np.uint8]:
        """The bytes of a chunk."""
        size = self._bytes[lane]
        begin = self._origins[lane] + chunk * size
        return self.data[begin : begin + size]

    def index(self, ids: Ids) -> Ids:
        """The index in `rows` of each id."""
        lanes = ids >> LANE_SHIFT if len(self.shifts) > 1 else 0
        if not self._has_parts:
            out: Ids = ids + self.shifts[lanes]
            return out
        places = ids % self._sizes[lanes]
        places += self._tables[lanes]
        out = self._offsets.take(places)
        out += ids
        return out

    def ids(self, index: Ids) -> Ids:
        """The id that stands at each index of `rows`, of lanes whose rows follow one another."""
        if len(self.shifts) == 1:
            return index - self.shifts
        lanes = self._begins.searchsorted(index, "right") - 1
        out: Ids = index - self.shifts[lanes]
        return out


def _offsets_of(spec: ArraySpec, shift: int, lane: int) -> Ids:
    """What to add to an id of a lane for its index: (n,), by the id modulo n."""
    if spec.width == 1:
        return np.array([shift])
    entries = np.arange(spec.chunk_rows)
    places = file_places(entries, spec.width, spec.chunk_rows // spec.width)
    out = np.empty_like(entries)
    out[((lane << LANE_SHIFT) + entries) % entries.size] = places - entries + shift
    return out


class Pager:
    """What is known of the chunk files of one column; `active` until all of them are in memory."""

    def __init__(self) -> None:
        self._unknown: dict[Chunk, npt.NDArray[np.uint8]] = {}
        self._absent: dict[Chunk, npt.NDArray[np.uint8]] = {}
        self._batches = 0
        self.active = False

    def add(self, chunk: Chunk, data: npt.NDArray[np.uint8]) -> None:
        """A large chunk file was mapped whose rows are all written."""
        self._unknown[chunk] = data
        self.active = True

    def before(self, touched: set[Chunk]) -> bool:
        """Fill page tables of files touched for the first time; True if some are not in memory."""
        for chunk in touched & self._unknown.keys():
            data = self._unknown.pop(chunk, None)
            if data is None:  # another thread was first
                continue
            if memory_maps.resident(data) >= _MOSTLY:
                memory_maps.populate_read(data)
            else:
                # Rows that are sampled have no neighbours worth reading ahead.
                memory_maps.advise_random(data)
                self._absent[chunk] = data
        self._batches += 1
        if self._absent and self._batches % _LOOK_AGAIN == 0:
            self._unknown |= self._absent
            self._absent.clear()
        self.active = bool(self._unknown or self._absent)
        return not touched.isdisjoint(self._absent)


class Remaps:
    """Counts remaps: a reader without a lock reads again if `count` has changed meanwhile."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class RawColumn:
    """A raw column of all lanes of a store: their files side by side in one range of addresses."""

    def __init__(self, lanes: Sequence[LaneFiles], path: str, remaps: Remaps | None = None) -> None:
        self._remaps = remaps or Remaps()
        self._lanes = lanes
        self._path = path
        self._specs = [lane.specs[path] for lane in lanes]
        spec = self._specs[0]
        self.row_shape, self.dtype = spec.row_shape, spec.dtype
        self._row_bytes = spec.row_bytes
        self._whole_pages = all(s.chunk_bytes % memory_maps.GRANULARITY == 0 for s in self._specs)
        # Replaced whole, for threads that read meanwhile; None: not read yet, or mapped one by one.
        self._files: SideBySide | None = None
        self._lock = threading.Lock()  # two threads may be the first, or one while rows come
        self._first = self._first_chunks()  # as those who read know them, while nothing is mapped
        self._pager = Pager()
        self._finished = [0] * len(lanes)  # chunk after the last one that the pager knows
        self._cache: collections.OrderedDict[Chunk, Array] = collections.OrderedDict()

    def refresh(self) -> None:
        """Take the chunk files that came since; called before rows past the old head are read."""
        with self._lock:
            if self._files is not None:
                self._extend(self._files)
            elif (first := self._first_chunks()) != self._first:
                self._first = first
                if self._whole_pages:  # else nothing that was found is moved by a remap
                    self._remaps.count += 1
                for number, chunk in list(self._cache):
                    if chunk < first[number]:  # the blocks of evicted files are free only then
                        self._cache.pop((number, chunk), None)

    def _first_chunks(self) -> list[int]:
        return [lane.base // s.chunk_rows for lane, s in zip(self._lanes, self._specs, strict=True)]

    def _mapped(self) -> SideBySide | None:
        """The files, mapped by now; None if they are mapped one by one."""
        with self._lock:
            if self._files is None and self._whole_pages:
                self._rebuild()
            return self._files

    def _extend(self, files: SideBySide) -> None:
        for number, (lane, spec) in enumerate(zip(self._lanes, self._specs, strict=True)):
            if lane.head > files.stop[number] * spec.chunk_rows:
                stop = -(-lane.head // spec.chunk_rows)
                gone = lane.base // spec.chunk_rows - files.first[number]
                # A map keeps the blocks of a file that was evicted: unmap them by the quarter.
                if not files.has_room(number, stop) or 4 * gone > stop - files.first[number]:
                    self._rebuild()
                    return
                self._map(files, number, stop)
            self._tell_pager(files, number)

    def _rebuild(self) -> None:
        """A new range with room to grow; arrays over the old one keep it mapped."""
        pairs = list(zip(self._lanes, self._specs, strict=True))
        first = self._first_chunks()
        stops = [-(-lane.head // spec.chunk_rows) for lane, spec in pairs]
        room = [
            2 * max(stop - start, 1) if lane.is_live else max(stop - start, 1)
            for lane, start, stop in zip(self._lanes, first, stops, strict=True)
        ]
        try:
            if sum(room) > _MAX_MAPS:
                raise OSError
            files = SideBySide(self._specs, first, room)
        except OSError:  # more files than a process may map, or no such range of addresses
            self._whole_pages = False
            self._files = None
            return
        for number, stop in enumerate(stops):
            self._map(files, number, stop)
        self._pager, self._finished = Pager(), first
        for number in range(len(pairs)):
            self._tell_pager(files, number)
        if self._files is not None or first != self._first:
            self._remaps.count += 1  # before other rows can be found where evicted ones were
        self._files = files

    def _map(self, files: SideBySide, number: int, stop: int) -> None:
        lane, spec = self._lanes[number], self._specs[number]
        folder = lane.path / spec.path  # once: there may be thousands of files in it
        for chunk in range(files.stop[number], stop):
            path = folder / spec.key(chunk)
            try:
                files.put(number, chunk, path)
            except FileNotFoundError as error:
                raise lane.missing(path, (chunk + 1) * spec.chunk_rows) from error
        if stop > files.stop[number]:
            lane.check_in_place()
            files.stop[number] = stop

    def _tell_pager(self, files: SideBySide, number: int) -> None:
        """Tell the pager about chunk files whose last row has been written."""
        spec = self._specs[number]
        complete = self._lanes[number].head // spec.chunk_rows
        if spec.chunk_bytes >= _LARGE_BYTES:
            for chunk in range(self._finished[number], complete):
                self._pager.add((number, chunk), files.chunk(number, chunk))
        self._finished[number] = max(complete, self._finished[number])

    def take(self, ids: Ids, out: Array | None = None) -> Array:
        """Rows by id, which `refresh` has seen; `out` is C-contiguous, (*ids.shape, *row_shape)."""
        files = self._files or self._mapped()
        if files is None:
            return self._take_one_by_one(ids, out)
        index = files.index(ids) if files.shifted else ids
        if self._pager.active and ids.ndim > 1:
            self._request(files, ids, index)
        if out is None:
            return files.rows.take(index, 0)
        # The ids are checked before: without mode="clip" numpy would buffer the whole output.
        return files.rows.take(index, 0, out, "clip")

    def request(self, ids: Ids) -> None:
        """Ask for all rows, (n,) or windows (n, k), that are only on the disk, at once."""
        files = self._files
        if files is not None and self._pager.active:
            self._request(files, ids, files.index(ids))

    def _request(self, files: SideBySide, ids: Ids, index: Ids) -> None:
        if ids.size and self._pager.before(self._chunks_of(ids if ids.ndim == 1 else ids[:, -1])):
            index = np.sort(index.ravel())
            index = index[(index >= 0) & (index < len(files.rows))]  # some may be gone by now
            first = index[np.diff(index, prepend=-2) > 1]
            last = index[np.diff(index, append=len(files.rows) + 1) > 1]
            starts = first * self._row_bytes
            lengths = (last + 1) * self._row_bytes - starts
            pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
            memory_maps.advise_needed(files.data, list(pairs))

    def _take_one_by_one(self, ids: Ids, out: Array | None) -> Array:
        if out is None:
            out = np.empty((*ids.shape, *self.row_shape), self.dtype)
        wanted = ids.ravel()
        filled = out.reshape(-1, *self.row_shape)
        lanes, rows = wanted >> LANE_SHIFT, wanted & ROW_MASK
        widths, chunk_rows = np.array([(s.width, s.chunk_rows) for s in self._specs]).T[:, lanes]
        chunks, places = np.divmod(file_places(rows, widths, chunk_rows // widths), chunk_rows)
        keys = lanes << LANE_SHIFT | chunks
        for key in distinct(keys).tolist():
            here = np.flatnonzero(keys == key)
            filled[here] = self._chunk(key >> LANE_SHIFT, key & ROW_MASK)[places[here]]
        return out

    def _chunk(self, number: int, chunk: int) -> Array:
        rows = self._cache.get((number, chunk))
        if rows is None:
            lane, spec = self._lanes[number], self._specs[number]
            path = chunk_path(lane.path, spec, chunk)
            try:
                data = memory_maps.map_file(path, spec.chunk_bytes)
            except FileNotFoundError as error:
                raise lane.missing(path, (chunk + 1) * spec.chunk_rows) from error
            lane.check_in_place()
            rows = data.view(spec.dtype).reshape(spec.chunk_rows, *spec.row_shape)
            self._cache[number, chunk] = rows
            while len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
        return rows

    def after_fork_in_child(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def view(self, number: int, start: int, stop: int) -> Array:
        """Rows [start, stop) of one lane, of a column of width 1, as they are mapped or a copy."""
        lane, spec, files = self._lanes[number], self._specs[number], self._files
        if lane.is_live or (stop - start) * spec.row_bytes > _FEW_BYTES:
            files = self._mapped()
        if files is None or start < files.first[number] * spec.chunk_rows:
            return read_rows(lane, spec, start, stop)
        shift = int(files.shifts[number]) + (number << LANE_SHIFT)
        return files.rows[shift + start : shift + stop]

    def _chunks_of(self, ids: Ids) -> set[Chunk]:
        """The chunk files of ids, (n,): lane and number."""
        lanes = ids >> LANE_SHIFT
        chunk_rows = np.array([spec.chunk_rows for spec in self._specs])
        keys = distinct((ids & ROW_MASK) // chunk_rows[lanes] | lanes << LANE_SHIFT).tolist()
        return {(key >> LANE_SHIFT, key & ROW_MASK) for key in keys}
