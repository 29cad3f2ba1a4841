"""The column of priorities: written in place beside the rows that it speaks of.

Invariant: the value at a transition's position is the priority that it was last given, also after a
kill; it is 0 where none was given. Losing the column loses no row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mmreplay import columns, files, format
from mmreplay.columns import Ids
from mmreplay.errors import FormatError, MmreplayError
from mmreplay.format import LANE_SHIFT, ArraySpec

__all__ = ["PriorityColumn"]

_ROW_MASK = (1 << LANE_SHIFT) - 1
_CHUNK_ROWS = 65_536
_CHUNK_ROWS_OF_MANY = 16_384


class PriorityColumn:
    """The priorities of all lanes of a store, as one array that is written in place.

    The chunk files of all lanes lie side by side in one range of addresses. What is stored into
    `values` is in the page cache, which outlives the process.

    Args:
        lanes: directories of lanes that this process has locked for writing.
        windows: (base, head) of each lane; what stands past a head is forgotten.

    Raises:
        DiskFullError: no room for them; nothing was changed.
        FormatError, CorruptStoreError: what is there is no such column.

    Attributes:
        values: (n,) float64 by position.
        generation: grows when positions have changed.
    """

    def __init__(self, lanes: Sequence[Path], windows: Sequence[tuple[int, int]]) -> None:
        """Map what is there; make it where there is nothing."""
        self._lanes = list(lanes)
        self._specs = [_spec_of(lane, many=len(lanes) > 1) for lane in lanes]
        self.generation = 0
        for lane, spec, (base, head) in zip(self._lanes, self._specs, windows, strict=True):
            _forget(lane, spec, base, head)
        self._layout(windows)
        for number, (_, head) in enumerate(windows):
            position = self.position(number, head)
            self.values[max(position - 1, self._slot[number]) : self._end(number)] = 0

    def _layout(self, windows: Sequence[tuple[int, int]]) -> None:
        """A range with room for as many rows again, with the files that there are in it."""
        rooms: list[int] = []
        origins: list[int] = []
        for spec, (base, head) in zip(self._specs, windows, strict=True):
            origin = base // spec.chunk_rows
            origins.append(origin)
            rooms.append(2 * (-(-max(head, 1) // spec.chunk_rows) - origin) + 1)
        sizes = [room * spec.chunk_rows for room, spec in zip(rooms, self._specs, strict=True)]
        self._room, self._origin = rooms, origins
        self._slot = [0, *np.cumsum(sizes)[:-1].tolist()]
        self._stop = list(origins)
        self._delta = np.array(
            [
                slot - origin * spec.chunk_rows - (number << LANE_SHIFT)
                for number, (slot, origin, spec) in enumerate(
                    zip(self._slot, origins, self._specs, strict=True)
                )
            ],
            np.int64,
        )
        self._reservation = files.Reservation(8 * sum(sizes), writable=True)
        self.values: npt.NDArray[np.float64] = self._reservation.array.view(np.float64)
        self.generation += 1
        for number, (_, head) in enumerate(windows):
            self._map(number, head)

    def _map(self, number: int, head: int) -> None:
        """Have the chunk files of all rows below `head` in their places."""
        lane, spec = self._lanes[number], self._specs[number]
        for chunk in range(self._stop[number], -(-head // spec.chunk_rows)):
            path = columns.chunk_path(lane, spec, chunk)
            files.allocate(path, spec.chunk_bytes)
            row = self._slot[number] + (chunk - self._origin[number]) * spec.chunk_rows
            self._reservation.put(8 * row, path, spec.chunk_bytes)
            self._stop[number] = chunk + 1

    def _end(self, number: int) -> int:
        """The position after the last mapped one of a lane."""
        chunks = self._stop[number] - self._origin[number]
        return self._slot[number] + chunks * self._specs[number].chunk_rows

    # ------------------------------------------------------------ positions

    @property
    def n_lanes(self) -> int:
        """Lanes."""
        return len(self._lanes)

    def lowest(self, lane: int) -> int:
        """The lowest row of a lane that has a position."""
        row: int = int(self._origin[lane]) * self._specs[lane].chunk_rows
        return row

    def position(self, lane: int, row: int) -> int:
        """The position of a row."""
        return int(self._delta[lane]) + (lane << LANE_SHIFT) + row

    def positions(self, ids: Ids) -> Ids:
        """The positions of ids, (B,) int64; ids of lanes that there are."""
        if len(self._delta) == 1:
            sole: Ids = ids + self._delta[0]
            return sole
        out: Ids = ids + self._delta[ids >> LANE_SHIFT]
        return out

    def ids(self, positions: Ids) -> Ids:
        """The ids that stand at positions, (B,) int64."""
        if len(self._delta) == 1:
            sole: Ids = positions - self._delta[0]
            return sole
        lane = np.searchsorted(self._slot, positions, "right") - 1
        out: Ids = positions - self._delta[lane]
        return out

    # ------------------------------------------------------------ growing and shrinking

    def reach(self, windows: Sequence[tuple[int, int]]) -> None:
        """Make room for all rows below the heads, and let go of files wholly below the bases.

        Args:
            windows: (base, head) of each lane.

        Raises:
            DiskFullError: no room; nothing was changed.
        """
        for number, (base, head) in enumerate(windows):
            spec = self._specs[number]
            if head <= self._stop[number] * spec.chunk_rows:
                continue
            if -(-head // spec.chunk_rows) - self._origin[number] > self._room[number]:
                for lane, one, (low, _) in zip(self._lanes, self._specs, windows, strict=True):
                    _drop(lane, one, low)
                self._layout(windows)
                return
            self._map(number, head)
            _drop(self._lanes[number], spec, base)

    def sync(self) -> None:
        """Make them durable.

        Raises:
            FailedStoreError: an fsync failed.
        """
        for lane, spec in zip(self._lanes, self._specs, strict=True):
            for chunk in columns.chunk_files(lane, spec):
                files.sync_file(columns.chunk_path(lane, spec, chunk))
            files.sync_directory(lane / spec.path)

    def close(self, heads: Sequence[int]) -> None:
        """Leave a plain zarr array of as many rows as the lanes have, durable."""
        for number, head in enumerate(heads):
            lane, spec = self._lanes[number], self._specs[number]
            for chunk in columns.chunk_files(lane, spec):
                start = chunk * spec.chunk_rows
                path = columns.chunk_path(lane, spec, chunk)
                if start >= head:
                    files.unlink(path)
                elif head < start + spec.chunk_rows:
                    files.zero_from(path, 8 * (head - start))
            files.write_file(lane / spec.path / "zarr.json", format.array_json(spec, head))
        self.sync()


def _spec_of(lane: Path, *, many: bool) -> ArraySpec:
    """The column that a lane has; made if it has none."""
    wanted = format.priority_spec(_CHUNK_ROWS_OF_MANY if many else _CHUNK_ROWS)
    folder = lane / wanted.path
    where = folder / "zarr.json"
    try:
        files.check_directories(lane, wanted.path)
        data = files.read_bytes(where, format.MAX_METADATA_BYTES)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            files.make_directory(folder)
        files.write_file(where, format.array_json(wanted, 0))
        files.sync_directory(lane)
        return wanted
    spec, _ = format.parse_array(data, wanted.path, str(where))
    fits = (spec.row_shape, spec.dtype, spec.is_raw) == (wanted.row_shape, wanted.dtype, True)
    if not fits or spec.chunk_bytes % files.GRANULARITY:
        raise FormatError(
            f"{where}: expected one float64 a row in raw chunks of a multiple of "
            f"{files.GRANULARITY:,} bytes; delete the folder to start with new priorities"
        )
    return spec


def _forget(lane: Path, spec: ArraySpec, base: int, head: int) -> None:
    """Remove the files of rows that are gone, and of rows that never came to be."""
    _drop(lane, spec, base)
    for chunk in columns.chunk_files(lane, spec):
        if chunk * spec.chunk_rows >= head:
            files.unlink(columns.chunk_path(lane, spec, chunk))


def _drop(lane: Path, spec: ArraySpec, base: int) -> None:
    with contextlib.suppress(MmreplayError, OSError):  # at the next opening, then
        for chunk in columns.chunk_files(lane, spec):
            if (chunk + 1) * spec.chunk_rows > base:
                break
            files.unlink(columns.chunk_path(lane, spec, chunk))
