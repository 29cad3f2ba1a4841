"""The column of priorities: one float64 for each entry of a lane, changed in place.

Invariant: the value at a transition's position is the priority that it was last given, also after a
kill; it is 0 where none was given, and past the head. Losing the column loses no row.
Its files are flushed, evicted and closed by the lane's writer, with those of other columns.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np
import numpy.typing as npt

from mmreplay.errors import FormatError
from mmreplay.format import layout, parse
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Ids
from mmreplay.storage import chunk_files
from mmreplay.storage.side_by_side import SideBySide
from mmreplay.system import checked_reads, durable_writes, memory_maps
from mmreplay.system.held_directories import AnyPath

_CHUNK_ROWS = 65_536
_MOST_BYTES = 8 << 20  # a chunk is in memory whole
_SPEC = layout.priority_spec(_CHUNK_ROWS)
_SUMS = layout.checksum_spec(_SPEC.path)

Window = tuple[int, int]


def find_spec(lane: AnyPath, environments: int | None = None) -> ArraySpec | None:
    """The column of a lane, None if it has none; raises FormatError, CorruptStoreError."""
    folder = lane / _SPEC.path
    checked_reads.check_directories(lane, _SPEC.path, _SUMS.path)
    if not folder.exists():
        return None
    where = folder / "zarr.json"
    advice = f"delete {folder} to start with new priorities"
    try:
        data = checked_reads.read_bytes(where, layout.MAX_METADATA_BYTES)
    except FileNotFoundError as error:
        raise FormatError(f"{where}: missing; {advice}") from error
    spec, _ = parse.parse_array(data, _SPEC.path, str(where))
    row_shape = layout.priority_spec(1, environments).row_shape
    fits = (spec.row_shape, spec.dtype, spec.is_raw) == (row_shape, _SPEC.dtype, True)
    most = max(_MOST_BYTES, _chunk_length(environments) * spec.row_bytes)
    if not fits or spec.chunk_bytes % memory_maps.GRANULARITY or spec.chunk_bytes > most:
        raise FormatError(
            f"{where}: expected {environments or 1:,} float64 per row in raw chunks of a multiple "
            f"of {memory_maps.GRANULARITY:,} bytes, of at most {most:,}; {advice}"
        )
    return spec


def take_over(lane: AnyPath, environments: int | None) -> ArraySpec | None:
    """As `find_spec`, for the lane's writer: what a kill or a removed column has left goes."""
    spec = find_spec(lane, environments)
    durable_writes.remove_tree(_staging_path(lane))
    if spec is None:
        durable_writes.remove_tree(lane / _SUMS.path)
    else:
        durable_writes.make_directory(lane / _SUMS.path)
    return spec


def find_or_make(lane: AnyPath, environments: int | None = None) -> ArraySpec:
    """As `take_over`; makes the column if there is none. DiskFullError."""
    if (there := take_over(lane, environments)) is not None:
        return there
    wanted = layout.priority_spec(_chunk_length(environments), environments)
    # Renamed when it is complete: a kill in between leaves no column rather than half of one.
    staged = _staging_path(lane)
    durable_writes.make_directory(lane / _SUMS.path)
    durable_writes.make_directory(staged)
    durable_writes.write_file(staged / "zarr.json", layout.array_json(wanted, 0))
    durable_writes.replace_directory(staged, lane / wanted.path)
    return wanted


def _chunk_length(environments: int | None) -> int:
    """The rows of a chunk file: about 65,536 priorities, in whole pages."""
    n = environments or 1
    page = memory_maps.GRANULARITY // math.gcd(memory_maps.GRANULARITY, n * _SPEC.row_bytes)
    return max(_CHUNK_ROWS // n // page, 1) * page


def _staging_path(lane: AnyPath) -> AnyPath:
    return lane / f"{_SPEC.path}.tmp"


class PriorityColumn:
    """The priorities of a lane, which this process has locked, as one array written in place.

    `values`, (n,) float64 by position; the last element never belongs to a transition.
    `generation` grows when positions change. `window` is (base, head) in entries.
    """

    def __init__(self, lane: AnyPath, window: Window, environments: int | None = None) -> None:
        self._lane = lane
        spec = find_or_make(lane, environments)
        self._spec = spec if environments is None else spec.entries(environments)
        self.values: npt.NDArray[np.float64]
        self.generation = 0
        self._layout(window)

    def _layout(self, window: Window) -> None:
        """Map the existing files into a range with room for as many rows again."""
        base, head = window
        start = base // self._spec.chunk_rows
        stop = max(-(-head // self._spec.chunk_rows), start)
        files = SideBySide([self._spec], [start], [2 * (stop - start) + 1], writable=True)
        self._map(files, stop)
        # Together: an interrupt leaves the old positions, or all of the new ones.
        self._files, self.values, self.generation = files, files.rows, self.generation + 1

    def _map(self, files: SideBySide, stop: int) -> None:
        """Allocate and map the chunk files below `stop`."""
        chunks = range(files.stop[0], stop)
        for chunk in chunks:  # what may find no room on the disk comes first
            path = chunk_files.chunk_path(self._lane, self._spec, chunk)
            durable_writes.allocate(path, self._spec.chunk_bytes)
        for chunk in chunks:
            # Another thread may have evicted it just now; of rows that are gone nothing is kept.
            with contextlib.suppress(FileNotFoundError):
                files.put(0, chunk, chunk_files.chunk_path(self._lane, self._spec, chunk))
            files.stop[0] = chunk + 1

    @property
    def lowest(self) -> int:
        """The lowest entry that has a position."""
        return self._files.first[0] * self._spec.chunk_rows

    def positions(self, ids: Ids) -> Ids:
        """The positions of ids, (B,) int64."""
        return self._files.index(ids)

    def ids(self, positions: Ids) -> Ids:
        """The ids that stand at positions, (B,) int64."""
        return self._files.ids(positions)

    def reach(self, window: Window) -> None:
        """Make room for all rows below the head; DiskFullError: nothing was changed."""
        stop = -(-window[1] // self._spec.chunk_rows)
        if stop <= self._files.stop[0]:
            return
        if not self._files.has_room(0, stop):
            self._layout(window)
            return
        self._map(self._files, stop)
