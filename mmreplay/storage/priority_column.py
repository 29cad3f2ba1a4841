"""The column of priorities: one float64 for each entry of a lane, changed in place.

Invariant: the value at a transition's position is the priority that it was last given, also after a
kill; it is 0 where none was given, and past the head. Losing the column loses no row. Of each lane,
one process changes it; the files are flushed, evicted and closed by the lane's writer, if it has
one, with those of other columns.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmreplay.errors import FailedStoreError, FormatError
from mmreplay.format import layout, parse
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import LANE_SHIFT, Ids
from mmreplay.storage import chunk_files
from mmreplay.storage.changing_column import ChangingColumn
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.lane_metadata import read_metadata
from mmreplay.storage.side_by_side import SideBySide
from mmreplay.system import checked_reads, durable_writes, memory_maps
from mmreplay.system.held_directories import AnyPath, HeldDirectory
from mmreplay.system.locks import DirectoryLock

_CHUNK_ROWS = 65_536
_MOST_BYTES = 8 << 20  # a chunk is in memory whole
_SPEC = layout.priority_spec(_CHUNK_ROWS)
_SUMS = layout.checksum_spec(_SPEC.path)
_PATIENCE_S = 60.0  # a close may be waited for

Windows = Callable[[int], tuple[int, int, int]]
"""Returns (base, first, head) of a lane, in entries."""


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
    paths = lane / _SPEC.path, lane / _SUMS.path, _staging_path(lane)
    if not any(path.exists() for path in paths):
        return None
    with making(lane):
        return _taken_over(lane, environments)


def _taken_over(lane: AnyPath, environments: int | None) -> ArraySpec | None:
    spec = find_spec(lane, environments)
    durable_writes.remove_tree(_staging_path(lane))
    if spec is None:
        durable_writes.remove_tree(lane / _SUMS.path)
    else:
        durable_writes.make_directory(lane / _SUMS.path)
    return spec


@contextlib.contextmanager
def making(lane: AnyPath) -> Iterator[None]:
    """Keep others from making the column of a lane, and from closing the lane meanwhile."""
    folder = lane / _SUMS.path.partition("/")[0]
    durable_writes.make_directory(folder)
    lock = DirectoryLock(folder, patience_s=_PATIENCE_S, who=lambda: "", what="column")
    try:
        yield
    finally:
        lock.release()


def find_or_make(lane: AnyPath, environments: int | None = None) -> ArraySpec:
    """As `take_over`; makes the column if there is none. DiskFullError."""
    with making(lane):
        return found_or_made(lane, environments)


def found_or_made(lane: AnyPath, environments: int | None) -> ArraySpec:
    """As `find_or_make`; the caller is in `making`."""
    if (there := _taken_over(lane, environments)) is not None:
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


class Lane(NamedTuple):
    """A lane whose priorities change here; another one at its path has another uuid."""

    path: AnyPath
    environments: int | None = None
    uuid: str = ""


class PriorityColumn:
    """The priorities of the lanes of a store, locked until `release`, as one array.

    `values`, (n,) float64 by position; the last element never belongs to a transition.
    `generation` grows when positions change; `uuids` are those of the lanes, by number.

    Args:
        lanes: returns the lanes as they are now, by number; `join` takes those that came.
        windows: see `Windows`.
        make: finds or makes the column of a lane, by its path and its environments.

    Raises:
        LockedError: another process changes priorities of such a lane.
        EvictedError: another store is at the path of a lane by now.
        DiskFullError, FormatError, CorruptStoreError: see `find_or_make`.
    """

    def __init__(
        self,
        lanes: Callable[[], Sequence[Lane]],
        windows: Windows,
        make: Callable[[AnyPath, int | None], ArraySpec] = find_or_make,
    ) -> None:
        self._lanes_now, self._make = lanes, make
        self._held: dict[str, tuple[AnyPath, ArraySpec, ChangingColumn]] = {}
        self._specs: list[ArraySpec] = []
        self.values: npt.NDArray[np.float64]
        self.generation, self.uuids = 0, tuple[str, ...]()
        try:
            self.join(windows)
        except BaseException:
            self.release()
            raise

    def join(self, windows: Windows) -> None:
        """Take the lanes as they are now: those that came, and others at the same paths."""
        lanes = self._lanes_now()
        uuids = tuple(lane.uuid for lane in lanes)
        if uuids == self.uuids:
            return
        for lane in lanes:
            if lane.uuid not in self._held:
                self._held[lane.uuid] = self._hold(lane)
        self._layout(uuids, windows)
        for uuid in self._held.keys() - {*uuids}:
            self._held.pop(uuid)[-1].release()

    def _hold(self, lane: Lane) -> tuple[AnyPath, ArraySpec, ChangingColumn]:
        # By its directory instead of its path, which another store may take.
        path = HeldDirectory(lane.path).root
        if lane.uuid and read_metadata(path)["uuid"] != lane.uuid:
            raise EvictedError(str(lane.path))
        spec = self._make(path, lane.environments)
        changing = ChangingColumn(path, spec)
        changing.begin()
        n = lane.environments
        return path, spec if n is None else spec.entries(n), changing

    def _layout(self, uuids: tuple[str, ...], windows: Windows) -> None:
        """Map the existing files into a range with room for as many rows again."""
        specs = [self._held[uuid][1] for uuid in uuids]
        bounds = [windows(lane) for lane in range(len(uuids))]
        first = [base // spec.chunk_rows for spec, (base, _, _) in zip(specs, bounds, strict=True)]
        stops = [
            max(-(-head // spec.chunk_rows), start)
            for spec, (_, _, head), start in zip(specs, bounds, first, strict=True)
        ]
        room = [2 * (stop - start) + 1 for start, stop in zip(first, stops, strict=True)]
        files = SideBySide(specs, first, room, writable=True)
        for lane, (uuid, stop) in enumerate(zip(uuids, stops, strict=True)):
            self._map(files, lane, self._held[uuid], stop)
        # Together: an interrupt leaves the old positions, or all of the new ones.
        self._files, self.values, self.generation, self.uuids, self._specs, self._room = (
            files, files.rows, self.generation + 1, uuids, specs, room,
        )  # fmt: skip
        self._count()

    def _count(self) -> None:
        """The ids below which the entries of each lane have a position, and from which on."""
        files, rows = self._files, np.array([spec.chunk_rows for spec in self._specs])
        zeros = np.arange(rows.size) << LANE_SHIFT
        self.lowest: Ids = zeros + np.array(files.first) * rows
        self._stops: Ids = zeros + np.array(files.stop) * rows

    def _map(
        self,
        files: SideBySide,
        lane: int,
        held: tuple[AnyPath, ArraySpec, ChangingColumn],
        stop: int,
    ) -> None:
        """Allocate and map the chunk files of a lane below `stop`."""
        folder, spec, _ = held
        chunks = range(files.stop[lane], stop)
        for chunk in chunks:  # what may find no room on the disk comes first
            path = chunk_files.chunk_path(folder, spec, chunk)
            try:
                durable_writes.allocate(path, spec.chunk_bytes)
            except FailedStoreError as error:  # the lane's writer may evict it at this moment
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
        for chunk in chunks:
            # Another thread may have evicted it just now; of rows that are gone nothing is kept.
            with contextlib.suppress(FileNotFoundError):
                files.put(lane, chunk, chunk_files.chunk_path(folder, spec, chunk))
            files.stop[lane] = chunk + 1

    def positions(self, ids: Ids) -> Ids:
        """The positions of ids, (B,) int64."""
        return self._files.index(ids)

    def ids(self, positions: Ids) -> Ids:
        """The ids that stand at positions, (B,) int64."""
        return self._files.ids(positions)

    def part(self, lane: int) -> tuple[int, int]:
        """The first position of a lane, and the one after its last."""
        start = int(self.lowest[lane] + self._files.shifts[lane])
        return start, start + self._room[lane] * self._specs[lane].chunk_rows

    def reach(self, stops: Ids, windows: Windows) -> None:
        """Make room below the ids `stops`, (lanes,); DiskFullError: nothing was changed."""
        if not (stops > self._stops).any():
            return
        files, grown = self._files, []
        for lane in (stops > self._stops).nonzero()[0].tolist():
            head = int(stops[lane]) - (lane << LANE_SHIFT)
            stop = -(-head // self._specs[lane].chunk_rows)
            is_last = lane == len(self.uuids) - 1
            if not files.has_room(lane, stop + is_last):
                self._layout(self.uuids, windows)
                return
            grown.append((lane, stop))
        for lane, stop in grown:
            self._map(files, lane, self._held[self.uuids[lane]], stop)
        self._count()

    def sync(self) -> None:
        """Make all values durable."""
        for *_, changing in self._held.values():
            changing.sync()

    def release(self) -> None:
        """Make all values durable and let others change them; a second call does nothing."""
        held, self._held = self._held, {}
        with contextlib.ExitStack() as ends:
            for *_, changing in held.values():
                ends.callback(changing.release)

    @property
    def is_released(self) -> bool:
        """Whether values may not be changed any more."""
        return not self._held
