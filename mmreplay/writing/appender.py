"""Where the next rows of a log go, many of them at once or one after the other.

Invariant: a row's place is free and mapped before anything of the row is written.
"""

from __future__ import annotations

import functools

import numpy as np

from mmreplay.batches.runs import StoredRows
from mmreplay.errors import DiskFullError
from mmreplay.format.layout import PRIORITIES, ArraySpec
from mmreplay.ids import Array
from mmreplay.storage.chunk_files import Window
from mmreplay.system import memory_maps
from mmreplay.writing import flush
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.log import Log
from mmreplay.writing.seal import Background, Sealer, sum_up

_POPULATED_BYTES = 1 << 20
_POPULATED_ROWS = 4


class Column:
    """The newest two chunk files of a raw array. `beyond`: rows it stores from the head on."""

    __slots__ = ("beyond", "new", "old", "spec")

    def __init__(self, spec: ArraySpec, window: Window, beyond: int) -> None:
        self.spec, self.beyond = spec, beyond
        self.new = self.old = window

    def window(self, row: int) -> Window:
        """The chunk file of a row."""
        return self.new if row >= self.new.start else self.old

    @property
    def stop(self) -> int:
        """The row after the last one that is mapped."""
        return self.new.start + self.spec.chunk_rows


class Appender:
    """The end of a log; from row `border` on `make_room` is needed."""

    def __init__(self, lane: LockedLane, log: Log, background: Background) -> None:
        self.log = log
        self._lane, self._background = lane, background
        self._sealer = Sealer(log, background)
        self._room = self.border = 0
        # A row of one environment is small: its pages get their memory as they are touched.
        self._populates = lane.environments is not None
        self.columns: dict[str, Column] = {}
        head = log.head
        for spec in log.raw_specs:
            if spec.path == PRIORITIES:  # those who sample by them make their files
                continue
            beyond = log.beyond(spec)
            window = log.open_window(spec, max(head - 1 + beyond, 0) // spec.chunk_rows)
            self.columns[spec.path] = Column(spec, window, beyond)
            if not spec.path.startswith("frames"):
                # Past the head lies what a power cut left of rows that were never committed. Mostly
                # there is nothing: pages that stay clean ask nothing of a full disk.
                rest = window.rows[max(head - window.start, 0) :]
                if rest.reshape(-1).view(np.uint8).any():
                    rest[...] = 0

    def make_room(self, n: int, count: int = 1) -> None:
        """Free the places of `count` rows from n on; DiskFullError: nothing was changed."""
        last = n + count - 1
        if last < self.border:
            return
        self.border = 0  # until all of it is done
        if last >= self._room:
            self._room = 0
            self._map(n, last)
            self._sealer.make_room(last + self.log.pending)
            self._room = min(self._mapped(n), self._sealer.half_stop - self.log.pending)
        self.border = min(self._room, self._populate(n)) if self._populates else self._room

    def _map(self, n: int, last: int) -> None:
        log = self.log
        finished: list[tuple[ArraySpec, Window]] = []
        for column in self.columns.values():
            if n + column.beyond > column.new.start and column.old is not column.new:
                if not column.spec.may_change:
                    finished.append((column.spec, column.old))
                column.old = column.new
            if last + column.beyond >= column.stop:
                spec, chunk = column.spec, (last + column.beyond) // column.spec.chunk_rows
                column.new = self._open_window(spec, chunk)
                self._background.submit(functools.partial(log.prepare_window, spec, chunk + 1))
        for spec, window in finished:
            self._background.submit(functools.partial(sum_up, log, spec, window))
        if self._lane.capacity is not None:
            self._background.wake()

    def _mapped(self, n: int) -> int:
        """The first row from n on that needs another chunk file, or no longer an older one."""
        border = min(column.stop - column.beyond for column in self.columns.values())
        if any(column.old is not column.new for column in self.columns.values()):
            border = min(border, n + 1)
        return border

    def _open_window(self, spec: ArraySpec, chunk: int) -> Window:
        """As `Log.open_window`; on a full disk with what an eviction makes room for."""
        try:
            return self.log.open_window(spec, chunk)
        except DiskFullError:
            if self._lane.capacity is None:
                raise
            flush.flush(self._lane)  # or what is being evicted by another thread just now
            return self.log.open_window(spec, chunk)

    def _populate(self, n: int) -> int:
        """Give pages of rows from n on their memory, in a call each; returns the row after them."""
        row_bytes = sum(column.spec.row_bytes for column in self.columns.values())
        n_rows = max(_POPULATED_BYTES // row_bytes, _POPULATED_ROWS)
        for column in self.columns.values():
            window = column.window(n + column.beyond)
            start = n + column.beyond - window.start
            if column.spec.width == 1:
                memory_maps.populate(window.rows[start : start + n_rows])
            elif start < n_rows:  # a row is all over its file
                memory_maps.populate(window.data)
        return n + n_rows

    def place(self, path: str, row: int) -> tuple[Array, int]:
        """Where a row of an array goes: an array, and the row of its first place."""
        tail = self.log.tails.get(path)
        if tail is not None:
            return tail, row - row % len(tail)
        window = self.columns[path].window(row)
        return window.rows, window.start

    def stored(self, path: str, row: int) -> Array:
        """What an array holds in one of the newest two rows; a view of it."""
        rows, start = self.place(path, row)
        out: Array = rows[row - start, ...]  # an array also of rows of one number
        return out

    def put(self, path: str, row: int, values: Array | StoredRows, start: int, stop: int) -> None:
        """Store `values[start:stop]` from `row` on, in places that `make_room` has freed."""
        while start < stop:
            rows, first = self.place(path, row)
            part = rows[row - first : row - first + stop - start]
            if isinstance(values, StoredRows):
                values.take(start, start + len(part), part)
            else:
                part[...] = values[start : start + len(part)]
            row, start = row + len(part), start + len(part)

    def finish(self) -> None:
        """Wait for the shard of older rows; no further row is appended."""
        self._room = self.border = 0
        self._sealer.wait()
