"""Read uncompressed columns of all lanes of a store through memory maps.

Invariant: a chunk file is mapped only after its size was checked; an id's row stands at one index
of `SideBySide.rows`, whichever files are mapped later. `Pager` changes when pages come,
never what is read: page tables of files in the page cache are filled at once, and the rows of a
batch that are only on the disk are requested together before the first of them is read.
Values of columns that may change are stored through the same maps.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mmreplay.errors import CorruptStoreError
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids, distinct
from mmreplay.storage.checksums import stored_checksum
from mmreplay.storage.chunk_files import (
    EvictedError,
    LaneFiles,
    chunk_path,
    file_places,
    read_rows,
)
from mmreplay.storage.side_by_side import SideBySide
from mmreplay.system import durable_writes, memory_maps
from mmreplay.system.held_directories import AnyPath

_MAX_MAPS = 8192  # side by side; vm.max_map_count is 65,530 for the whole process
_FEW_BYTES = 1 << 18  # are read, where nothing is mapped: quicker, if it is once
_MAX_CACHED = 2048  # maps of chunk files that cannot lie side by side
_LARGE_BYTES = 1 << 20  # of a chunk file: smaller ones are not worth advice
_MOSTLY = 0.75  # of a file's pages; reading the rest at once costs little
_LOOK_AGAIN = 256  # batches

Chunk = tuple[int, int]


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
        self._next = [0] * len(lanes)  # heads below which `_extend` has nothing to do
        self._cache: collections.OrderedDict[Chunk, Array] = collections.OrderedDict()
        self._writable = False

    def put(self, ids: Ids, values: Array) -> None:
        """Store rows by id in a column that may change; of a repeated id the last one counts.

        The caller holds the column's lock. DiskFullError: nothing was stored.

        Args:
            ids: (n,), which `refresh` has seen.
            values: (n, *row_shape) of the column's dtype.
        """
        if not self._writable:
            self.make_writable()
        files = self._files or self._mapped()
        if files is not None:
            files.rows[files.index(ids)] = values
            return
        for rows, here, places in self._one_by_one(ids):
            rows[places] = values[here]

    def make_writable(self) -> None:
        """Map the files again, for `put`, with those that were missing."""
        with self._lock:
            self._writable = True
            self._cache.clear()
            try:
                if self._files is not None:
                    self._rebuild()
            except BaseException:
                self._writable = False
                raise

    @property
    def files(self) -> SideBySide | None:
        """The files as they are mapped now; None if one by one, or not yet."""
        return self._files

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
        for number, (lane, least) in enumerate(zip(self._lanes, self._next, strict=True)):
            if lane.head < least:  # as a rule, of many lanes
                continue
            spec = self._specs[number]
            if lane.head > files.stop[number] * spec.chunk_rows:
                stop = -(-lane.head // spec.chunk_rows)
                gone = lane.base // spec.chunk_rows - files.first[number]
                # A map keeps the blocks of a file that was evicted: unmap them by the quarter.
                if not files.has_room(number, stop) or 4 * gone > stop - files.first[number]:
                    self._rebuild()
                    return
                self._map(files, number, stop)
            self._tell_pager(files, number)
            self._next[number] = self._next_head(files, number)

    def _next_head(self, files: SideBySide, number: int) -> int:
        """The head from which on a lane has another file to be mapped, or complete."""
        rows = self._specs[number].chunk_rows
        return min(files.stop[number] * rows + 1, (self._finished[number] + 1) * rows)

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
            files = SideBySide(self._specs, first, room, writable=self._writable)
        except OSError:  # more files than a process may map, or no such range of addresses
            self._whole_pages = False
            self._files = None
            return
        for number, stop in enumerate(stops):
            self._map(files, number, stop)
        self._pager, self._finished = Pager(), first
        for number in range(len(pairs)):
            self._tell_pager(files, number)
        self._next = [self._next_head(files, number) for number in range(len(pairs))]
        if self._files is not None or first != self._first:
            self._remaps.count += 1  # before other rows can be found where evicted ones were
        self._files = files

    def _map(self, files: SideBySide, number: int, stop: int) -> None:
        lane, spec = self._lanes[number], self._specs[number]
        folder = lane.path / spec.path  # once: there may be thousands of files in it
        for chunk in range(files.stop[number], stop):
            path = folder / spec.key(chunk)
            try:
                self._prepare(lane, spec, path)
                files.put(number, chunk, path)
            except (FileNotFoundError, CorruptStoreError) as error:
                _check_zeros(lane, spec, chunk, path, error)
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
        filled = out.reshape(-1, *self.row_shape)
        for rows, here, places in self._one_by_one(ids.ravel()):
            filled[here] = rows[places]
        return out

    def _one_by_one(self, wanted: Ids) -> Iterator[tuple[Array, Ids, Ids]]:
        """Of each chunk file: its rows, which of the ids, (n,), lie in it, and where."""
        lanes, rows = wanted >> LANE_SHIFT, wanted & ROW_MASK
        widths, chunk_rows = np.array([(s.width, s.chunk_rows) for s in self._specs]).T[:, lanes]
        chunks, places = np.divmod(file_places(rows, widths, chunk_rows // widths), chunk_rows)
        keys = lanes << LANE_SHIFT | chunks
        for key in distinct(keys).tolist():
            here = np.flatnonzero(keys == key)
            yield self._chunk(key >> LANE_SHIFT, key & ROW_MASK), here, places[here]

    def _chunk(self, number: int, chunk: int) -> Array:
        rows = self._cache.get((number, chunk))
        if rows is None:
            lane, spec = self._lanes[number], self._specs[number]
            path = chunk_path(lane.path, spec, chunk)
            try:
                self._prepare(lane, spec, path)
                data = memory_maps.map_file(path, spec.chunk_bytes, writable=self._writable)
            except (FileNotFoundError, CorruptStoreError) as error:
                _check_zeros(lane, spec, chunk, path, error)
                data = np.zeros(spec.chunk_bytes, np.uint8)
            lane.check_in_place()
            rows = data.view(spec.dtype).reshape(spec.chunk_rows, *spec.row_shape)
            self._cache[number, chunk] = rows
            while len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
        return rows

    def _prepare(self, lane: LaneFiles, spec: ArraySpec, path: AnyPath) -> None:
        """Before a file is mapped for `put`: it gets all its blocks, and one name."""
        # The files of a live lane have both, and its writer may have mapped this one.
        if self._writable and not (lane.is_live and path.exists()):
            durable_writes.allocate(path, spec.chunk_bytes)

    def release(self) -> None:
        """As `memory_maps.release`, of all files that lie side by side."""
        if self._files is not None:
            memory_maps.release(self._files.data)

    def after_fork_in_child(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def view(self, number: int, start: int, stop: int) -> Array:
        """Rows [start, stop) of one lane, of a column of width 1, as they are mapped or a copy."""
        lane, spec, files = self._lanes[number], self._specs[number], self._files
        is_large = (stop - start) * spec.row_bytes > _FEW_BYTES
        if files is None and (lane.is_live or spec.may_change or is_large):
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


def _check_zeros(
    lane: LaneFiles, spec: ArraySpec, chunk: int, path: AnyPath, error: Exception
) -> None:
    """Raise the error for a chunk file that is missing or cut, unless it stands for zeros.

    So it is in a column that may change, where it has no checksum: a power cut may take it.
    """
    # No name for what is raised: with its traceback it would keep this frame, and maps with it.
    stop, is_missing = (chunk + 1) * spec.chunk_rows, isinstance(error, FileNotFoundError)
    is_evicted = is_missing and isinstance(lane.missing(path, stop), EvictedError)
    if spec.may_change and not is_evicted and not stored_checksum(lane.path, spec, chunk):
        return
    if is_missing:
        raise lane.missing(path, stop) from error
    raise error
