"""Where the time of a batch goes: the real columns, timed while they are read.

Invariant: what is read is what the columns give; only how long it takes is another matter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from time import perf_counter

from mmreplay.episode_index import Index
from mmreplay.ids import Array, Ids
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.reading.located import LateRebuilder, Places, Read
from mmreplay.storage.raw_column import RawColumn
from mmreplay.storage.shard_column import AnyShard, ShardColumn
from mmreplay.storage.shard_file import Bytes

__all__ = ["TimedColumn", "gather_timed", "timed"]


def timed(columns: Mapping[str, RawColumn | ShardColumn]) -> dict[str, TimedColumn]:
    """Columns as a gatherer takes them, each with a clock."""
    return {path: TimedColumn(column) for path, column in columns.items()}


def gather_timed(
    live: LiveLanes,
    draw: Callable[[Index], Ids],
    gatherer: LateRebuilder[Places, Read],
    out: Read | None = None,
) -> tuple[Read, dict[str, float]]:
    """As `LiveLanes.gather`, with the seconds that each part of it took."""
    while True:
        started = perf_counter()
        located = live.locate(draw, gatherer)
        found = perf_counter()
        columns = timed(located.columns)
        begun = perf_counter()
        batch = dataclasses.replace(located, columns=columns).fetch(out)
        stopped, each = perf_counter(), columns.values()
        if batch is not None:  # else rows went away meanwhile
            return batch, {
                "index": found - started,
                "io": sum(column.io_s for column in each),
                "decode": sum(column.decode_s for column in each),
                "copy": sum(column.copy_s for column in each),
                "other": stopped - begun - sum(column.spent_s for column in each),
            }


class TimedColumn:
    """A column of a store, and what reading it took since this was made.

    What comes from the disk, or only into the page tables, comes when a byte of each page is read
    first: that is timed apart, less what the same takes a second time.

    Attributes:
        io_s: seconds in which pages came.
        decode_s: in which chunks were checked and decoded.
        copy_s: in which rows were looked up and copied.
        spent_s: of all of that, and of the looking.
    """

    def __init__(self, column: RawColumn | ShardColumn) -> None:
        self._column = column
        self.row_shape, self.dtype = column.row_shape, column.dtype
        self.io_s = self.decode_s = self.copy_s = self.spent_s = 0.0
        self._within_s = 0.0

    def take(self, ids: Ids, out: Array | None = None) -> Array:
        """Rows by id, as the column gives them."""
        column, started = self._column, perf_counter()
        if isinstance(column, RawColumn):
            column.fetch_pages(ids)
            between = perf_counter()
            column.fetch_pages(ids)
            begun = perf_counter()
            self.io_s += max(2 * between - started - begun, 0.0)
            found = column.take(ids, out)
            stopped = perf_counter()
            self.copy_s += stopped - begun
        else:
            self._within_s = 0.0
            column.decoder = self._decode
            try:
                found = column.take(ids, out)
            finally:
                column.decoder = None
            stopped = perf_counter()
            self.copy_s += stopped - started - self._within_s
        self.spent_s += stopped - started
        return found

    def _decode(self, shard: AnyShard, chunk: int, out: Bytes) -> None:
        started = perf_counter()
        shard.fetch_pages(chunk)
        between = perf_counter()
        shard.fetch_pages(chunk)
        begun = perf_counter()
        shard.decode(chunk, out)
        stopped = perf_counter()
        self.io_s += max(2 * between - started - begun, 0.0)
        self.decode_s += stopped - begun
        self._within_s += stopped - started
