"""The chunk files that a writer has mapped: those of the newest row, and of the row before.

Invariant: a row's place is mapped before anything of the row is written.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from mmreplay.errors import DiskFullError
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Array
from mmreplay.storage.chunk_files import Window
from mmreplay.system import memory_maps
from mmreplay.writing import flush
from mmreplay.writing.background import Background
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.log import Log
from mmreplay.writing.seal import sum_up

__all__ = ["OpenChunks"]

_POPULATED_BYTES = 1 << 20
_POPULATED_ROWS = 4


class _Column:
    """A raw column being written: the chunk of the newest row, and the one of the row before."""

    __slots__ = ("new", "old", "spec")

    def __init__(self, spec: ArraySpec, window: Window) -> None:
        self.spec = spec
        self.new = self.old = window

    @property
    def stop(self) -> int:
        return self.new.start + self.spec.chunk_rows


class OpenChunks:
    """The places of the rows that a writer still changes.

    Attributes:
        columns: the raw ones, by path.
    """

    def __init__(self, lane: LockedLane, log: Log, background: Background) -> None:
        """Map the chunks of the newest row of one of the lane's logs."""
        self._lane, self._log, self._background = lane, log, background
        head = log.head
        newest = max(head - 1, 0)
        self.columns: dict[str, _Column] = {}
        for spec in log.raw_specs:
            window = log.open_window(spec, newest // spec.chunk_rows)
            self.columns[spec.path] = _Column(spec, window)
            if not spec.path.startswith("frames"):
                # Past the head lies what a power cut left of rows that were never committed; the
                # newest row must read as a final row the moment it is committed.
                # Mostly there is nothing: pages that stay clean ask nothing of a full disk.
                rest = window.rows[max(head - window.start, 0) :]
                if rest.reshape(-1).view(np.uint8).any():
                    rest[...] = 0

    def fit(self, n: int) -> bool:
        """Whether rows n - 1 and n have their places."""
        return all(
            column.new.start <= n - 1 and n < column.stop for column in self.columns.values()
        )

    def border(self, n: int) -> int:
        """The first row from n on that needs `make_room`."""
        border = min(column.stop for column in self.columns.values())
        for column in self.columns.values():
            if column.old is not column.new:  # row n - 1 is, or the next one will be, in the new
                border = min(border, n if n > column.new.start else n + 1)
        return border

    def make_room(self, n: int) -> None:
        """Map the chunks of row n."""
        log = self._log
        finished: list[tuple[ArraySpec, Window]] = []
        for column in self.columns.values():
            if n > column.new.start and column.old is not column.new:
                finished.append((column.spec, column.old))
                column.old = column.new
            if n >= column.stop:
                spec, chunk = column.spec, n // column.spec.chunk_rows
                column.new = self._open_window(spec, chunk)
                self._background.submit(functools.partial(log.prepare_window, spec, chunk + 1))
        for spec, window in finished:
            self._background.submit(functools.partial(sum_up, log, spec, window))
        if self._lane.capacity is not None:
            self._background.wake()

    def populate(self, n: int) -> int:
        """Give the pages of some rows from n on their memory; the row after these.

        In one call for many pages: a fault for each of them would be most of the time of a step.
        Those of a chunk file that was prepared have it already, and are passed over quickly.
        """
        row_bytes = sum(column.spec.row_bytes for column in self.columns.values())
        n_rows = max(_POPULATED_BYTES // row_bytes, _POPULATED_ROWS)
        for column in self.columns.values():
            start = n - column.new.start
            memory_maps.populate(column.new.rows[start : start + n_rows])
        return n + n_rows

    def _open_window(self, spec: ArraySpec, chunk: int) -> Window:
        """As `Log.open_window`; on a full disk with what an eviction makes room for."""
        try:
            return self._log.open_window(spec, chunk)
        except DiskFullError:
            if self._lane.capacity is None:
                raise
            flush.flush(self._lane)  # or what is being evicted by another thread just now
            return self._log.open_window(spec, chunk)

    def place(self, path: str, n: int) -> tuple[Array, int]:
        """Where row n of a column goes: an array, and the row of its first place."""
        tail = self._log.tails.get(path)
        if tail is not None:
            return tail, n - n % len(tail)
        window = self.columns[path].new
        return window.rows, window.start

    def put_frames(self, n: int, frames: Mapping[str, Array]) -> None:
        """Store the frames of row n."""
        for path, value in frames.items():
            rows, start = self.place(path, n)
            rows[n - start] = value

    def stored_row(self, path: str, row: int) -> Array:
        """What a column holds in one of the newest two rows; a view of it."""
        rows = self._log.tails.get(path)
        place = 0 if rows is None else row % len(rows)
        if rows is None:
            window = self._window(path, row)
            rows, place = window.rows, row - window.start
        out: Array = rows[place, ...]  # an array also of rows of one number
        return out

    def finish_row(self, row: int, flag: int) -> None:
        """Make the newest row a final row again, whatever an interrupted step left in it.

        Args:
            row: its number.
            flag: its non-terminal flag.
        """
        for path in self.columns:
            if not path.startswith(("frames", "resets")):
                window = self._window(path, row)
                window.rows[row - window.start] = flag if path == "non_terminals" else 0

    def _window(self, path: str, row: int) -> Window:
        column = self.columns[path]
        return column.new if row >= column.new.start else column.old
