"""The chunk files of a raw column of all lanes of a store, mapped as one array.

Invariant: an id's row stands at one index of `SideBySide.rows`, whichever files are mapped later.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mmreplay.format.layout import ArraySpec
from mmreplay.ids import LANE_SHIFT, Array, Ids
from mmreplay.storage.chunk_files import file_places
from mmreplay.system import memory_maps
from mmreplay.system.held_directories import AnyPath


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
