"""The column of priorities: one float64 for each entry of a lane, changed in place.

Invariant: the value at a transition's position is the priority that it was last given, also after a
kill; it is 0 where none was given, and past the head. Losing the column loses no row.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np
import numpy.typing as npt

from mmreplay.errors import CorruptStoreError, FormatError
from mmreplay.format import layout, parse
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Ids
from mmreplay.storage import chunk_files
from mmreplay.storage.checksums import crc32c_of_file, stored_checksum
from mmreplay.storage.raw_column import SideBySide
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
    checked_reads.check_directories(lane, _SPEC.path)
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


def _find_or_create(lane: AnyPath, environments: int | None) -> ArraySpec:
    there = find_spec(lane, environments)
    if there is not None:
        return there
    wanted = layout.priority_spec(_chunk_length(environments), environments)
    # Renamed when it is complete: a kill in between leaves no column rather than half of one.
    staged = _staging_path(lane)
    durable_writes.remove_tree(staged)
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


def trim(lane: AnyPath, base: int, head: int, environments: int | None = None) -> None:
    """Durably forget the priorities of evicted rows, and of rows that a power cut took."""
    if _staging_path(lane).exists():
        durable_writes.remove_tree(_staging_path(lane))
    spec = find_spec(lane, environments)
    if spec is not None:
        evict(lane, base, environments)
        _clear(lane, spec, head)
        durable_writes.sync_directory(lane / spec.path)


def _clear(lane: AnyPath, spec: ArraySpec, stop: int) -> None:
    """Leave nothing of rows from `stop` on."""
    for chunk in chunk_files.chunk_files(lane, spec):
        start = chunk * spec.chunk_rows
        path = chunk_files.chunk_path(lane, spec, chunk)
        # Or its maker died before it had its blocks: nothing is in it yet.
        if (
            start >= stop
            or checked_reads.regular_size(path, 2 * spec.chunk_bytes) < spec.chunk_bytes
        ):
            durable_writes.unlink(path)
        elif stop < start + spec.chunk_rows:
            chunk_files.zero_rows(lane, spec, chunk, stop - start)


def evict(lane: AnyPath, base: int, environments: int | None = None) -> None:
    """Unlink the chunk files wholly below row `base`."""
    spec = find_spec(lane, environments)
    if spec is not None:
        chunk_files.remove_below(lane, spec, base)


def finish(
    lane: AnyPath, head: int, environments: int | None = None
) -> list[tuple[ArraySpec, int]]:
    """Leave a plain zarr array of `head` rows, and its checksums, durable; returns both, if any."""
    spec = find_spec(lane, environments)
    if spec is None:
        durable_writes.remove_tree(lane / _SUMS.path)  # of a column that was deleted
        return []
    _clear(lane, spec, head)
    durable_writes.write_file(lane / spec.path / "zarr.json", layout.array_json(spec, head))
    _sync(lane, spec)
    n_chunks = -(-head // spec.chunk_rows)
    _write_checksums(lane, spec, n_chunks)
    return [(spec, head), (_SUMS, n_chunks)]


def _write_checksums(lane: AnyPath, spec: ArraySpec, n_chunks: int) -> None:
    """Write the checksums of a column that does not change until the lane is opened again."""
    sums = np.zeros(-(-n_chunks // _SUMS.chunk_rows) * _SUMS.chunk_rows, _SUMS.dtype)
    for chunk in chunk_files.chunk_files(lane, spec):
        with contextlib.suppress(CorruptStoreError):  # another size: it has no checksum
            sums[chunk] = crc32c_of_file(
                chunk_files.chunk_path(lane, spec, chunk), spec.chunk_bytes
            )
    folder = lane / _SUMS.path
    checked_reads.check_directories(lane, _SUMS.path)
    durable_writes.make_directory(folder)
    durable_writes.write_file(folder / "zarr.json", layout.array_json(_SUMS, n_chunks))
    parts = sums.reshape(-1, _SUMS.chunk_rows)
    for number, part in enumerate(parts):
        durable_writes.write_file(chunk_files.chunk_path(lane, _SUMS, number), part.tobytes())
    for number in chunk_files.chunk_files(lane, _SUMS):
        if number >= len(parts):  # of more rows, over which a copy was restored
            durable_writes.unlink(chunk_files.chunk_path(lane, _SUMS, number))
    durable_writes.sync_directory(folder.parent)


def is_usable(lane: AnyPath, spec: ArraySpec, chunk: int, *, closed: bool) -> bool:
    """Whether a chunk file holds priorities, and those of the last close if the lane is closed."""
    path = chunk_files.chunk_path(lane, spec, chunk)
    with contextlib.suppress(CorruptStoreError):
        values = np.frombuffer(checked_reads.read_at(path, 0, spec.chunk_bytes, spec.chunk_bytes))
        if not ((values >= 0) & (values < np.inf)).all():
            return False
        expected = 0
        if closed:
            with contextlib.suppress(CorruptStoreError):
                expected = stored_checksum(lane, spec, chunk)
        return not expected or crc32c_of_file(path, spec.chunk_bytes) == expected
    return False


def _sync(lane: AnyPath, spec: ArraySpec) -> None:
    for chunk in chunk_files.chunk_files(lane, spec):
        # One that was evicted since it was listed is fine.
        durable_writes.sync_file(chunk_files.chunk_path(lane, spec, chunk), missing_ok=True)
    durable_writes.sync_directory(lane / spec.path)


class PriorityColumn:
    """The priorities of a lane, which this process has locked, as one array written in place.

    `values`, (n,) float64 by position; the last element never belongs to a transition.
    `generation` grows when positions change. `window` is (base, head) in entries.
    """

    def __init__(self, lane: AnyPath, window: Window, environments: int | None = None) -> None:
        self._lane = lane
        spec = _find_or_create(lane, environments)
        self._spec = spec if environments is None else spec.entries(environments)
        self.values: npt.NDArray[np.float64]
        self.generation = 0
        base, head = window
        n = environments or 1
        trim(lane, base // n, head // n, environments)
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

    def sync(self) -> None:
        """Make them durable."""
        with contextlib.suppress(FileNotFoundError):  # the column was removed: no row is lost
            _sync(self._lane, self._spec)
