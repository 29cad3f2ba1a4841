"""Raw columns of all lanes of a store, mapped for reading.

Invariant: a chunk file is mapped only after its size was checked.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids
from mmreplay.storage import prefetch
from mmreplay.storage.chunk_files import LaneFiles, chunk_path, read_rows
from mmreplay.system import memory_maps

__all__ = ["RawColumn"]

_MAX_MAPS = 8192  # side by side; vm.max_map_count is 65,530 for the whole process
_MAX_CACHED = 2048  # maps of chunk files that cannot lie side by side


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
    pager: prefetch.Pager
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
        self._reservation: memory_maps.Reservation | None = None
        self._chunk_rows = np.array([s.chunk_rows for s in self._specs], np.int64)
        self._pager = prefetch.Pager()
        self._finished = [0] * len(lanes)  # chunk after the last one that the pager knows
        self._origin = [0] * len(lanes)  # first mapped chunk of each lane
        self._stop = [0] * len(lanes)  # chunk after the last mapped one
        self._room = [0] * len(lanes)  # chunks that fit into the lane's window
        self._slot = [0] * len(lanes)  # row of the flat array where the window starts
        self._side_by_side = all(s.chunk_bytes % memory_maps.GRANULARITY == 0 for s in self._specs)
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
            reservation = memory_maps.Reservation(sum(sizes))
        except OSError:  # more files than a process may map, or no such range of addresses
            self._side_by_side = False
            self._flat = None
            return
        self._reservation = reservation
        self._pager, self._finished = prefetch.Pager(), first
        delta = np.zeros(len(pairs), np.int64)
        # None until all is mapped: after an eviction in the middle the next refresh starts over.
        self._room = [0] * len(pairs)
        byte = 0
        for number, spec in enumerate(self._specs):
            self._slot[number] = byte // self._row_bytes
            self._origin[number] = self._stop[number] = first[number]
            self._put(number, first[number], stops[number])
            delta[number] = self._slot[number] - first[number] * spec.chunk_rows
            delta[number] -= number << LANE_SHIFT
            byte += sizes[number]
        self._room = rooms
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
        lanes, rows = wanted >> LANE_SHIFT, wanted & ROW_MASK
        chunks, places = np.divmod(rows, self._chunk_rows[lanes])
        keys = lanes << LANE_SHIFT | chunks
        for key in np.unique(keys).tolist():
            here = np.flatnonzero(keys == key)
            filled[here] = self._chunk(key >> LANE_SHIFT, key & ROW_MASK)[places[here]]
        return out

    def _chunk(self, number: int, chunk: int) -> Array:
        found = self._cache.get((number, chunk))
        if found is None:
            lane, spec = self._lanes[number], self._specs[number]
            path = chunk_path(lane.path, spec, chunk)
            try:
                data = memory_maps.map_file(path, spec.chunk_bytes)
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
        chunks = (ids[:, -1] & ROW_MASK) // self._chunk_rows[lanes]
        if flat.pager.before(set(zip(lanes.tolist(), chunks.tolist(), strict=True))):
            first, last = index.min(axis=1), index.max(axis=1)
            ranges = prefetch.ranges(first, last, self._row_bytes)
            memory_maps.advise_needed(flat.data, ranges)
