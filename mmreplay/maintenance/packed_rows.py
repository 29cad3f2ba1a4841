"""Rows of closed lanes as a packed log has them: all under their numbers, or those of episodes.

Invariant: the lanes are only read, and their raw chunk files are believed only after `check_file`
has compared them with their checksums. What is open for one file is forgotten after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from mmreplay.format import compression
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Array, Ids, distinct
from mmreplay.maintenance.copy_lane import damaged_file, is_intact
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.reading.log_reader import LogReader
from mmreplay.reading.vector_reader import Cells, VectorReader
from mmreplay.storage import chunk_files
from mmreplay.storage.raw_column import RawColumn
from mmreplay.storage.shard_column import ShardColumn
from mmreplay.storage.shard_file import Shard

__all__ = ["ChosenRows", "ChosenSteps", "Column", "Place", "Rows", "StoredRows", "check_file"]


Place = tuple[Shard, int]
"""An inner chunk by its number in a shard; of ticks the first one, of environment 0."""


class Column(Protocol):
    """One array of the rows to be written."""

    def take(self, start: int, stop: int) -> Array:
        """Rows [start, stop), (n, *row_shape)."""

    def places(self, spec: ArraySpec, start: int, stop: int) -> list[Place | None]:
        """Where the inner chunks of `spec` with rows [start, stop) stand, each of the same rows.

        None: nowhere; its rows are to be taken.
        """

    @property
    def codec(self) -> dict[str, Any] | None:
        """Of what stands there."""


class Rows(Protocol):
    """The rows of a log to be written, those in [base, head)."""

    base: int
    head: int

    def stored(self, spec: ArraySpec) -> LogReader | None:
        """The log whose chunk files of this array are those that are wanted, byte for byte."""

    def open(self, path: str) -> Column:
        """An array, for one chunk file."""


def check_file(reader: LogReader, spec: ArraySpec, chunk: int) -> None:
    """Raise CorruptStoreError unless a raw chunk file of a closed log matches its checksum."""
    path = chunk_files.chunk_path(reader.path, spec, chunk)
    try:
        intact = is_intact(reader, spec, chunk, strict=True)
    except FileNotFoundError as error:
        raise reader.missing(path, (chunk + 1) * spec.chunk_rows) from error
    if not intact:
        raise damaged_file(reader, path)


class StoredRows:
    """All rows of a closed log, under the numbers that they have there."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self.base, self.head = reader.base, reader.head

    def stored(self, spec: ArraySpec) -> LogReader | None:
        """See `Rows`."""
        return self._reader if self._reader.specs[spec.path] == spec else None

    def open(self, path: str) -> Column:
        """See `Rows`."""
        return _Picked(self._reader, path, np.arange)


class ChosenRows:
    """Some episodes of a lane of one environment, one after the other, from row 0 on.

    `starts` and `lengths`, (n,) each, are the first rows of the episodes, ascending, and their
    rows, the final one included.
    """

    base = 0

    def __init__(self, reader: LaneReader, starts: Ids, lengths: Ids) -> None:
        self._reader = reader
        self._shifts = starts - (np.cumsum(lengths) - lengths)
        self._begins = np.cumsum(lengths) - lengths
        self.head = int(lengths.sum())

    def stored(self, spec: ArraySpec) -> LogReader | None:
        """None: a chunk file may have rows of others."""

    def open(self, path: str) -> Column:
        """See `Rows`."""
        return _Picked(self._reader, path, self._rows)

    def _rows(self, start: int, stop: int) -> Ids:
        rows = np.arange(start, stop)
        out: Ids = rows + self._shifts[self._begins.searchsorted(rows, "right") - 1]
        return out


class _Picked:
    """An array of which some rows are wanted, by number: those that `rows` gives for a range."""

    def __init__(self, reader: LogReader, path: str, rows: Callable[[int, int], Ids]) -> None:
        self._reader, self._rows = reader, rows
        self._spec = spec = reader.specs[path]
        # What has parts of its own for each environment of a tick is read as cells.
        self._width = spec.width
        files = reader if spec.width == 1 else Cells(reader, spec.width)
        self._column = _column(files, path)
        self.codec = spec.codec

    def take(self, start: int, stop: int) -> Array:
        rows = self._rows(start, stop)
        if self._width > 1:
            rows = (rows[:, None] * self._width + np.arange(self._width)).ravel()
        return self._column.take(rows).reshape(-1, *self._spec.row_shape)

    def places(self, spec: ArraySpec, start: int, stop: int) -> list[Place | None]:
        own, inner = self._spec, spec.inner_rows
        starts = np.arange(start, stop, inner)
        if own.is_raw or (own.width, own.inner_rows) != (spec.width, inner):
            return [None] * len(starts)
        rows, stops = self._rows(start, stop), np.minimum(starts + inner, stop)
        firsts, lasts = rows[starts - start], rows[stops - start - 1]
        there = (firsts % inner == 0) & (lasts - firsts == stops - starts - 1)
        there &= firsts >= self._reader.base
        # Whole, or as far as the log goes: past that a chunk has zeros.
        there &= (stops - starts == inner) | (lasts + 1 == self._reader.head)
        chunks, blocks = np.divmod(firsts // inner, own.chunk_rows // inner)
        shards = {chunk: self._shard(chunk) for chunk in distinct(chunks[there]).tolist()}
        return [
            (shards[chunk], block * own.width) if known else None
            for chunk, block, known in zip(
                chunks.tolist(), blocks.tolist(), there.tolist(), strict=True
            )
        ]

    def _shard(self, chunk: int) -> Shard:
        spec = self._spec
        path = chunk_files.chunk_path(self._reader.path, spec, chunk)
        try:
            return Shard(path, spec, compression.make_codec(spec.codec or {}))
        except FileNotFoundError as error:
            raise self._reader.missing(path, (chunk + 1) * spec.chunk_rows) from error


def _column(files: LogReader | Cells, path: str) -> _RawRows | ShardColumn:
    if files.specs[path].is_raw:
        return _RawRows(files, path)
    return ShardColumn([files], path)


class _RawRows:
    """A raw column that maps no chunk files but those between the rows that are asked for.

    Each thread has columns of its own, and a process not as many maps as there may be files.
    """

    is_live = False

    def __init__(self, files: LogReader | Cells, path: str) -> None:
        self._name = path
        self.path, self.specs = files.path, files.specs
        self.missing, self.check_in_place = files.missing, files.check_in_place
        spec = self.specs[path]
        self.row_shape, self.dtype = spec.row_shape, spec.dtype
        self.base = self.head = 0

    def take(self, rows: Ids) -> Array:
        if not rows.size:
            return np.empty((0, *self.row_shape), self.dtype)
        self.base, self.head = int(rows.min()), int(rows.max()) + 1
        column = RawColumn([self], self._name)
        column.refresh()
        return column.take(rows)


class ChosenSteps:
    """Some episodes of a vector lane as rows of a lane of one environment, one after the other.

    `numbers`, `cells` and `lengths`, (n,) each, are the rows of the episodes in the log of starts,
    their first steps, and how many steps they have.
    """

    base = 0

    def __init__(self, reader: VectorReader, numbers: Ids, cells: Ids, lengths: Ids) -> None:
        self._reader = reader
        self._numbers, self._cells, self._lengths = numbers, cells, lengths
        self._begins = np.cumsum(lengths + 1) - (lengths + 1)
        self.head = int((lengths + 1).sum())

    def stored(self, spec: ArraySpec) -> LogReader | None:
        """None: ticks are no rows."""

    def open(self, path: str) -> Column:
        """See `Rows`."""
        if path in self._reader.schema.frame_paths.values():
            return _Frames(self._reader, path, self._places)
        return _Values(self._reader, path, self._places)

    def _places(self, start: int, stop: int) -> tuple[Ids, Ids, Ids, Ids]:
        """Of rows: the start of their episode, its first step, its steps, and how many before."""
        rows = np.arange(start, stop)
        episodes = self._begins.searchsorted(rows, "right") - 1
        steps = rows - self._begins[episodes]
        return self._numbers[episodes], self._cells[episodes], self._lengths[episodes], steps


_Places = Callable[[int, int], tuple[Ids, Ids, Ids, Ids]]


class _Frames:
    """The first observation of an episode is that of its start, the others are those of ticks."""

    codec = None

    def __init__(self, reader: VectorReader, path: str, places: _Places) -> None:
        self._places, self._width = places, reader.width
        self._starts, self._cells = _column(reader.starts, path), _column(reader.cells, path)

    def take(self, start: int, stop: int) -> Array:
        numbers, cells, _, steps = self._places(start, stop)
        out = np.empty((stop - start, *self._cells.row_shape), self._cells.dtype)
        first = steps == 0
        out[first] = self._starts.take(numbers[first])
        out[~first] = self._cells.take((cells + (steps - 1) * self._width)[~first])
        return out

    def places(self, spec: ArraySpec, start: int, stop: int) -> list[Place | None]:
        """None of any: where an episode begins in a chunk is another place here."""
        return [None] * -(-(stop - start) // spec.inner_rows)


class _Values:
    """What a step gave, and what its final row has: zeros, and the flag of the row before."""

    codec = None

    def __init__(self, reader: VectorReader, path: str, places: _Places) -> None:
        self._path, self._places, self._width = path, places, reader.width
        self._cells = None if path == "resets" else _column(reader.cells, path)

    def take(self, start: int, stop: int) -> Array:
        _, cells, lengths, steps = self._places(start, stop)
        if self._cells is None:
            resets: Array = (steps == 0).astype(np.uint8)
            return resets
        final = steps == lengths
        if self._path == "non_terminals":
            flags: Array = self._cells.take(cells + (steps - final) * self._width)
            return flags
        out = np.zeros((stop - start, *self._cells.row_shape), self._cells.dtype)
        out[~final] = self._cells.take((cells + steps * self._width)[~final])
        return out

    def places(self, spec: ArraySpec, start: int, stop: int) -> list[Place | None]:
        """None of any: these are raw."""
        return [None] * -(-(stop - start) // spec.inner_rows)
