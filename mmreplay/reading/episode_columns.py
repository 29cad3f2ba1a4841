"""The fields of episodes as columns over all lanes, by the ids of steps.

Invariant: an episode's number is how many episodes began before it in its lane, from the lane's
beginning; those that began below `base`, and lanes without the field, read as 0 or "".
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmreplay.errors import CorruptStoreError, SchemaError
from mmreplay.format.episode_fields import EpisodeField
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.schema import Field
from mmreplay.storage import chunk_files
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.raw_column import RawColumn
from mmreplay.system.held_directories import AnyPath
from mmreplay.texts import Text, decoded, stored_bytes


class _Starts(NamedTuple):
    """Where the episodes of a lane begin, of those in rows [.., stop): replaced whole.

    `entries` are ascending, in a buffer with room; `shift` is the number of the first one.
    """

    stop: int
    buffer: Ids
    n: int
    shift: int

    @property
    def entries(self) -> Ids:
        return self.buffer[: self.n]


class LaneEpisodes:
    """The episodes of a lane by number, [base, head), as `RawColumn` reads their fields."""

    def __init__(self, reader: LaneReader, resets: RawColumn) -> None:
        self._reader, self._resets, self.n = reader, resets, reader.n
        self.path, self.specs, self.is_live = reader.path, reader.document.episodes, reader.is_live
        self.tails: dict[str, Array] = {}
        self._lock = threading.Lock()
        self._starts: _Starts | None = None
        self._columns: dict[str, RawColumn] = {}

    @property
    def head(self) -> int:
        """How many episodes have begun, as far as it is known."""
        return 0 if self._starts is None else self._starts.shift + self._starts.n

    @property
    def base(self) -> int:
        """How many of them began below the oldest row kept."""
        first, starts = self._reader.base * self.n, self._starts
        return 0 if starts is None else starts.shift + int(starts.entries.searchsorted(first))

    def tail_start(self) -> int:
        """See `chunk_files.LaneFiles`: nothing is compressed."""
        return self.head

    def check_in_place(self) -> None:
        """See `chunk_files.LaneFiles`."""
        self._reader.rows.check_in_place()

    def missing(self, path: AnyPath, stop: int) -> Exception:
        """The error for a chunk file that is not there."""
        if self._reader.replaced() or stop <= self.base:
            return EvictedError(str(path))
        return CorruptStoreError(
            f"{path}: this chunk file is missing; it holds a field of episodes up to {stop:,}; run "
            f"`mmreplay verify`, or `mmreplay repair`, after which they read as 0"
        )

    def _follow(self, stop: int) -> _Starts:
        """Know the episodes that begin below row `stop`."""
        starts, reader = self._starts, self._reader
        if starts is None:
            row, before = reader.begun_before()
            stop = max(row, stop)
            new = self._begins(reader.base, stop)
            shift = before - int(new.searchsorted(row * self.n))
            starts = self._starts = _Starts(stop, new, new.size, shift)
        elif stop > starts.stop:
            new, buffer, n, shift = self._begins(starts.stop, stop), *starts[1:]
            if n + new.size > buffer.size:
                gone = self.base - shift
                kept, n, shift = starts.entries[gone:], n - gone, shift + gone
                buffer = np.empty(2 * (n + new.size), np.int64)
                buffer[:n] = kept
            buffer[n : n + new.size] = new
            starts = self._starts = _Starts(stop, buffer, n + new.size, shift)
        return starts

    def _begins(self, start: int, stop: int) -> Ids:
        """The entries in rows [start, stop) with which episodes begin."""
        reader, n = self._reader, self.n
        if reader.is_live:
            values = self._resets.view(reader.number, start * n, stop * n)
            return np.flatnonzero(values) + start * n
        pieces = chunk_files.filled_rows(reader.rows, reader.rows.specs["resets"], start, stop)
        found = [np.flatnonzero(rows) + row * n for row, rows in pieces]
        return np.concatenate([np.empty(0, np.int64), *found])

    def take(self, path: str, firsts: Ids) -> Array:
        """A field of episodes by the entries of their first steps, (n, ...); 0 of evicted ones."""
        spec = self.specs[path]
        out = np.zeros((firsts.size, *spec.row_shape), spec.dtype)
        if not firsts.size:
            return out
        with self._lock:
            starts = self._follow(int(firsts.max()) // self.n + 1)
            column = self._columns.get(path)
            if column is None:
                column = self._columns[path] = RawColumn([self], path)
            column.refresh()
            known = (firsts >= self._reader.base * self.n).nonzero()[0]
            numbers = starts.entries.searchsorted(firsts[known]) + starts.shift
            out[known] = column.take(numbers)
        return out

    def numbers(self, firsts: Ids) -> tuple[Ids, int, int]:
        """The numbers of episodes by the entries of their first steps; `base`, and `head` now."""
        with self._lock:
            starts = self._follow(self._reader.head)
        return starts.entries.searchsorted(firsts) + starts.shift, self.base, self.head

    def longest(self, path: str) -> int:
        """Bytes of the longest text of a field, at least 1; of a lane that may change, all."""
        spec = self.specs[path]
        if self.is_live:
            return spec.row_bytes
        with self._lock:
            firsts = self._follow(self._reader.head).entries
        used = np.flatnonzero(self.take(path, firsts).any(0))
        return int(used[-1]) + 1 if used.size else 1

    def after_fork_in_child(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        for column in self._columns.values():
            column.after_fork_in_child()


class EpisodeColumn:
    """A field of the episodes of all lanes; a `batches.Column`."""

    def __init__(
        self, path: str, field: EpisodeField, lanes: Sequence[LaneEpisodes], steps: RawColumn
    ) -> None:
        self._path, self._field, self._steps = path, field, steps
        self._lanes = [(number, lane) for number, lane in enumerate(lanes) if path in lane.specs]
        self._strides = np.array([lane.n for lane in lanes])
        self.row_shape = () if isinstance(field, Text) else field.shape

    @functools.cached_property
    def dtype(self) -> np.dtype[Any]:
        """As declared; of texts as long as the longest."""
        if not isinstance(self._field, Text):
            return self._field.dtype
        return np.dtype(f"U{max(lane.longest(self._path) for _, lane in self._lanes)}")

    def take(self, ids: Ids, out: Array | None = None) -> Array:
        """The fields of the episodes of these steps, (*ids.shape, ...), in `out` if given."""
        rows = self._rows(ids.ravel())
        values = decoded(rows) if isinstance(self._field, Text) else rows
        if out is None:
            return values.reshape(*ids.shape, *self.row_shape)
        out[...] = values.reshape(out.shape)
        return out

    def stored(self, ids: Ids) -> Any:
        """Those of (n,) steps as a writer takes them: (n, ...), of texts n bytes."""
        rows = self._rows(ids)
        return stored_bytes(rows) if isinstance(self._field, Text) else rows

    def _rows(self, flat: Ids) -> Array:
        lanes, entries = flat >> LANE_SHIFT, flat & ROW_MASK
        firsts = entries - (self._steps.take(flat) - 1) * self._strides[lanes]
        field = self._field
        rows = np.zeros((flat.size, *field.shape), field.dtype)
        for number, lane in self._lanes:
            here = (lanes == number).nonzero()[0]
            found = lane.take(self._path, firsts[here])
            rows[(here, *map(slice, found.shape[1:]))] = found
        return rows

    def refresh(self) -> None:
        """Rows that came since are looked up when they are asked for."""

    def after_fork_in_child(self) -> None:
        """See `LaneEpisodes`."""
        for _, lane in self._lanes:
            lane.after_fork_in_child()


def joined_fields(
    lanes: Iterable[tuple[AnyPath, Mapping[str, EpisodeField]]],
) -> dict[str, EpisodeField]:
    """The fields that any lane has, as they are read of all; SchemaError if they do not fit."""
    out: dict[str, EpisodeField] = {}
    for path, fields in lanes:
        for name, one in fields.items():
            known = out.setdefault(name, one)
            if isinstance(known, Text) and isinstance(one, Text):
                out[name] = max(known, one, key=lambda text: text.width)
            elif isinstance(known, Field) and isinstance(one, Field) and known.shape == one.shape:
                out[name] = Field(one.shape, np.result_type(known.dtype, one.dtype))
            else:
                raise SchemaError(
                    f"{path}: the field {name!r} of episodes is {one}, in another store {known}; "
                    f"load them apart"
                )
    return out


def with_columns(table: npt.NDArray[np.void], columns: Mapping[str, Array]) -> npt.NDArray[np.void]:
    """A table with further columns."""
    more = [(name, one.dtype, one.shape[1:]) for name, one in columns.items()]
    out = np.empty(table.shape, [*table.dtype.descr, *more])
    for name in table.dtype.names or ():
        out[name] = table[name]
    for name, one in columns.items():
        out[name] = one
    return out


def joined_tables(tables: Sequence[npt.NDArray[np.void]]) -> npt.NDArray[np.void]:
    """Tables of episodes below each other, with the columns that any has, filled with 0 or ""."""
    out = np.empty((sum(map(len, tables)), 0))
    columns: dict[str, Array] = {}
    for name in dict.fromkeys(name for one in tables for name in one.dtype.names or ()):
        like = next(one[name] for one in tables if name in (one.dtype.names or ()))
        columns[name] = np.concatenate(
            [
                one[name]
                if name in (one.dtype.names or ())
                else np.zeros((len(one), *like.shape[1:]), like.dtype)
                for one in tables
            ]
        )
    return with_columns(np.empty(len(out), []), columns)
