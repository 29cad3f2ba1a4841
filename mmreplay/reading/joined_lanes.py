"""The lanes of a store as one: columns over all of them, and their trajectory boundaries.

Invariant: `index` and the columns show the same heads, and change only in `follow`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index import Index, JoinedIndex, RowIndex, TickIndex
from mmreplay.errors import CorruptStoreError, SchemaError
from mmreplay.format.columns import lane_columns
from mmreplay.format.layout import STARTS, TICKS, ArraySpec
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids
from mmreplay.reading import episodes
from mmreplay.reading.frame_chunks import FrameChunks
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.reading.lane_ticks import LaneTicks
from mmreplay.reading.vector_reader import VectorReader
from mmreplay.storage.chunk_files import EvictedError, LaneFiles
from mmreplay.storage.lane_metadata import read_kind
from mmreplay.storage.raw_column import RawColumn, Remaps
from mmreplay.storage.shard_column import ShardColumn
from mmreplay.storage.tail_file import TailFiles
from mmreplay.system.held_directories import AnyPath

AnyReader = LaneReader | VectorReader
AnyColumn = RawColumn | ShardColumn
Flags = npt.NDArray[np.bool_]


def open_lane(path: AnyPath, number: int) -> AnyReader:
    """A lane of one environment, or of many; raises as their readers."""
    # Looked at first, as it costs less than to read the metadata twice.
    has_logs = any((path / log).exists() for log in (TICKS, STARTS))
    if has_logs and read_kind(path) == "vector":
        return VectorReader(path, number)
    return LaneReader(path, number)


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """What is in the lanes, all of one moment.

    Attributes:
        episodes: the whole retained ones, see `EPISODE_DTYPE`.
        n_odd_rewards: how many rewards that can be sampled are NaN or infinite.
        windows: (base, first, head) of each lane, in rows or ticks.
        n_transitions: of each lane, that can be sampled.
        n_starts: kept rows of the first observations of each lane; 0 of a lane of one environment.
    """

    episodes: npt.NDArray[np.void]
    n_odd_rewards: int
    windows: list[tuple[int, int, int]]
    n_transitions: list[int]
    n_starts: list[int]


class JoinedLanes:
    """The lanes of a store as they were opened; `heads` are those that `index` and `columns` know.

    A store replaces it whole when a lane was opened again, for threads that read meanwhile.

    `ticks` are the vector lanes, by number. In `columns` rows are steps: of a vector lane they are
    its cells. Columns of frames have a further part for the first observations of each vector lane,
    in their order: see `frame_places`. `frame_chunks` says how they are stored together. By `uuids`
    the lanes are told from those of other stores.
    """

    def __init__(self, paths: Sequence[AnyPath]) -> None:
        """Raise EvictedError if a lane changed at this moment, SchemaError if they do not fit."""
        self.readers = [open_lane(path, number) for number, path in enumerate(paths)]
        schema = self.readers[0].schema
        for reader in self.readers[1:]:
            if not reader.schema.same_data(schema):
                raise SchemaError(
                    f"{reader.path}: expected rows as in {paths[0]}, found "
                    f"{schema.differences(reader.schema)}; load them apart"
                )
        self.uuids: tuple[str, ...] = tuple(r.metadata["uuid"] for r in self.readers)
        self.remaps = Remaps()
        self._is_growing = False  # also after an interrupt in the middle: it is opened again then
        vectors = [reader for reader in self.readers if isinstance(reader, VectorReader)]
        self.ticks = {reader.number: LaneTicks(reader, self.remaps) for reader in vectors}
        files = [_files(reader) for reader in self.readers]
        frames = [*files, *(reader.starts for reader in vectors)]
        self._parts = {reader.number: n for n, reader in enumerate(vectors, len(files))}
        self.columns: dict[str, AnyColumn] = {}
        for path in lane_columns(schema):
            if path == "resets" and self.ticks:
                continue
            self.columns[path] = self._column(path, frames if _is_of_frames(path) else files)
        if 0 < len(vectors) < len(files):
            self.columns["resets"] = RawColumn(self._rows("resets"), "resets", self.remaps)
        self.frame_chunks = FrameChunks(self.readers, [*schema.frame_paths.values()])
        self.heads = [reader.head for reader in self.readers]
        self._bases = [reader.base for reader in self.readers]
        self.index = self._load_index()
        # Of closed lanes, once asked for.
        self._episodes: dict[int, tuple[npt.NDArray[np.void], int]] = {}

    def _column(self, path: str, lanes: Sequence[TailFiles]) -> AnyColumn:
        """One over all lanes, which must all be raw, or all compressed."""
        raw = [lane for lane in lanes if lane.specs[path].is_raw]
        compressed = [lane for lane in lanes if not lane.specs[path].is_raw]
        if raw and compressed:
            codec = compressed[0].specs[path].codec_name
            raise SchemaError(
                f"{raw[0].path / path} is raw, {compressed[0].path / path} is compressed "
                f"({codec}); load them apart, or record both with one codec"
            )
        return RawColumn(lanes, path, self.remaps) if raw else ShardColumn(lanes, path)

    def _rows(self, path: str) -> list[LaneFiles]:
        """The lanes of one environment in their places, of some lanes that are, and some not."""
        spec = next(r.specs[path] for r in self.readers if isinstance(r, LaneReader))
        return [
            reader if isinstance(reader, LaneReader) else _NoRows(reader, spec)
            for reader in self.readers
        ]

    def _refresh_columns(self) -> None:
        for column in self.columns.values():
            column.refresh()
        for ticks in self.ticks.values():
            ticks.refresh()

    def _load_index(self) -> Index:
        """The trajectory boundaries."""
        lanes = [reader for reader in self.readers if isinstance(reader, LaneReader)]
        self._row_index = RowIndex(len(lanes))
        self._row_lanes = {reader.number: place for place, reader in enumerate(lanes)}
        for place, reader in enumerate(lanes):
            capacity = reader.metadata["capacity"]
            starts, more = reader.starts(), place + 1 < len(lanes)
            self._row_index.load(
                place,
                reader.base,
                reader.head,
                starts,
                capacity,
                live=reader.is_live,
                more=more,
            )
        # Of rows the index is read from their files, of ticks from the columns.
        self._refresh_columns()
        self._tick_indices: dict[int, TickIndex] = {}
        for number, ticks in self.ticks.items():
            one, lane = TickIndex(ticks, ticks.path), self.readers[number]
            capacity = lane.metadata["capacity"]
            one.load(lane.base, lane.head, capacity, ticks.starts, live=lane.is_live)
            self._tick_indices[number] = one
        if not self.ticks:
            return self._row_index
        if len(self.readers) == 1:
            return self._tick_indices[0]
        parts: list[tuple[RowIndex | TickIndex, Sequence[int]]] = [
            (one, [number]) for number, one in self._tick_indices.items()
        ]
        return JoinedIndex([(self._row_index, list(self._row_lanes)), *parts] if lanes else parts)

    # ------------------------------------------------------------ following the writers

    def follow(self) -> bool:
        """Take the newest rows; False when a lane's session is over.

        Raises EvictedError if rows came and went unseen.
        """
        if self._is_growing:  # something was raised in the middle of it
            return False
        for number, reader in enumerate(self.readers):
            if not reader.poll():
                return False
            # A base moves without the head where a flush evicts: the columns may forget those rows
            # when another lane grows, so that the index must not have them, either.
            if (reader.head, reader.base) != (self.heads[number], self._bases[number]):
                self._grow(number, reader)
        return True

    def _grow(self, number: int, reader: AnyReader) -> None:
        old, head = self.heads[number], reader.head
        if old < reader.base:  # so far behind that rows came and went unseen
            raise EvictedError(str(reader.path))
        self._refresh_columns()
        if number in self.ticks:
            self._is_growing = True
            self._tick_indices[number].extend(reader.base, head, self.ticks[number].starts)
        else:
            starts = np.flatnonzero(self.columns["resets"].read(number, old, head)) + old
            self._is_growing = True
            self._row_index.extend(self._row_lanes[number], reader.base, head, starts)
        self.heads[number], self._bases[number] = head, reader.base
        self._is_growing = False

    def is_ahead(self) -> bool:
        """Whether every lane is followed, and no row of it came and went unseen."""
        if self._is_growing:
            return False
        pairs = zip(self.readers, self.heads, strict=True)
        return all(reader.poll() and head >= reader.base for reader, head in pairs)

    def same_session(self) -> bool:
        """Whether every lane is still in the session that was opened; takes no newer rows."""
        for reader in self.readers:  # noqa: SIM110 (all() takes longer, and it is asked each time)
            if not reader.in_session():
                return False
        return True

    def after_fork_in_child(self) -> None:
        """In a forked child: another thread of the parent may have held the locks."""
        for column in self.columns.values():
            column.after_fork_in_child()

    # ------------------------------------------------------------ rows of one lane

    def stride(self, lane: int) -> int:
        """From the id of a step to that of the next one of its environment."""
        return self.readers[lane].width

    def frame_places(self, first: int, n_frames: int) -> Ids:
        """Where columns of frames have those of the episode that begins with this id, (n_frames,).

        In a lane of one environment they are its rows. In one of many, the first frame is of the
        starts, a further part of these columns, and the others are those after each step. `first`
        may be the oldest step that can be sampled of an episode whose beginning was evicted.
        """
        lane, cell = first >> LANE_SHIFT, first & ROW_MASK
        ticks = self.ticks.get(lane)
        if ticks is None:
            return np.arange(first, first + n_frames)
        out = first + np.arange(-1, n_frames - 1) * ticks.width
        number = ticks.episodes(np.array([cell]))
        # Where the beginning was evicted, the tick before is kept for stacks.
        if ticks.start_ticks(number)[0] == cell // ticks.width:
            out[:1] = number + (self._parts[lane] << LANE_SHIFT)
        return out

    def read(self, lane: int, path: str, rows: Ids) -> Array:
        """Rows of one lane by number, all of them kept; of a vector lane ticks, (n, width, ...)."""
        ticks = self.ticks.get(lane)
        if ticks is None:
            return self.columns[path].take(rows + (lane << LANE_SHIFT))
        if path in ticks.columns:
            return ticks.columns[path].take(ticks.cells(rows))
        return self.columns[path].take(ticks.cells(rows) + (lane << LANE_SHIFT))

    def resets(self, lane: int) -> Ids:
        """Rows of a lane of one environment with a reset, ascending; some below first may miss."""
        return self._row_index.resets(self._row_lanes[lane])

    def newest(self, lane: int, path: str, resets: Ids) -> int:
        """The value of a scalar column in the newest row of a lane that is not closed.

        What is stored may be on its way in at this moment, or a crash has left some; as long as
        it is the newest, it is a final row. `resets` are the lane's as it had them at this head.
        """
        head = self.heads[lane]
        is_reset = bool(resets.size and resets[-1] == head - 1)
        if path == "resets":
            return int(is_reset)
        if path != "non_terminals":
            return 0
        if is_reset or head - 1 <= self.readers[lane].base:
            return 1
        before = np.array([(lane << LANE_SHIFT) + head - 2])
        return int(self.columns[path].take(before)[0])

    # ------------------------------------------------------------ episodes

    def episodes(self, lane: int, *, returns: bool = True) -> tuple[npt.NDArray[np.void], int]:
        """The whole retained episodes of one lane, read only: see `EPISODE_DTYPE`.

        And how many rewards that can be sampled are NaN or infinite. Without `returns`, for which
        all rewards are read, these and that may be 0.
        """
        known = self._episodes.get(lane)
        if known is not None:
            return known
        reader, flags = self.readers[lane], self.columns["non_terminals"]
        _, first, head = self.index.window(lane)
        window = first // reader.width, head // reader.width
        if isinstance(reader, LaneReader):
            resets = self.resets(lane)
            out = episodes.of_rows(reader, flags, resets, window, returns=returns)
        else:
            out = episodes.of_ticks(reader, self.ticks[lane], flags, window, returns=returns)
        if returns and reader.is_closed:
            self._episodes[lane] = out
        return out

    def contents(self, *, returns: bool = True) -> Contents:
        """What is there; `returns` as for `episodes`."""
        numbers = range(len(self.readers))
        tables, counts = zip(*(self.episodes(n, returns=returns) for n in numbers), strict=True)
        windows = []
        for number, reader in enumerate(self.readers):
            base, first, head = self.index.window(number)
            windows.append((base // reader.width, first // reader.width, head // reader.width))
        starts = [self.ticks[n].starts if n in self.ticks else (0, 0) for n in numbers]
        return Contents(
            np.concatenate(tables),
            sum(counts),
            windows,
            np.diff([self.index.n_transitions_of(n) for n in range(len(windows) + 1)]).tolist(),
            [head - base for base, head in starts],
        )

    def endings(self, firsts: Ids) -> tuple[Ids, Flags, Flags]:
        """How episodes of a step or more end: (steps, terminated, truncated), (B,) each."""
        lanes, lengths = firsts >> LANE_SHIFT, self.index.span(firsts).left
        lasts = firsts + (lengths - 1) * np.array([r.width for r in self.readers])[lanes]
        terminated = self.columns["non_terminals"].take(lasts) == 0
        heads = np.array(self.heads)[lanes] + (lanes << LANE_SHIFT)
        # Rows tell of a truncation by the next reset, ticks at once.
        runs = ~terminated & (lasts + 2 == heads)
        for lane, ticks in self.ticks.items():
            here = np.flatnonzero(lanes == lane)
            runs[here] = ticks.ends(lasts[here] & ROW_MASK) == 0
        runs &= np.array([reader.is_live for reader in self.readers])[lanes]
        return lengths, terminated & ~runs, ~terminated & ~runs


def _files(reader: AnyReader) -> TailFiles:
    """What columns read of a lane: its rows, or its cells."""
    return reader.cells if isinstance(reader, VectorReader) else reader


def _is_of_frames(path: str) -> bool:
    return path.partition("/")[0] == "frames"


class _NoRows:
    """In the place of a vector lane, in a column that it does not have."""

    base = head = 0
    is_live = False

    def __init__(self, reader: AnyReader, spec: ArraySpec) -> None:
        self.path = reader.path
        self.specs = {spec.path: spec}

    def missing(self, path: AnyPath, stop: int) -> Exception:
        """Of a file that nobody asks for."""
        return CorruptStoreError(f"{path}: no file of this lane holds rows up to {stop:,}")

    def check_in_place(self) -> None:
        """There is nothing that could have been exchanged."""
