"""What a capacity leaves of a lane: the oldest step to sample, and how many episodes are gone.

Invariant: writer and reader ask the same functions, so they agree on what may go.
"""

from __future__ import annotations

import numpy as np

from mmreplay.episode_index import Gaps, floor_row
from mmreplay.ids import Array
from mmreplay.storage import chunk_files
from mmreplay.writing.log import Log


class Retention:
    """Of the steps of a lane of `n` environments; for one thread at a time."""

    def __init__(self, rows: Log, n: int, capacity: int | None) -> None:
        self._rows, self._n, self._capacity = rows, n, capacity
        self.floor = floor_row(rows.base)
        self._gaps: Gaps | None = None

    def first_row(self, head: int) -> int:
        """The oldest step to be sampled of those below `head`."""
        floor = max(self._rows.first, self.floor)
        if self._capacity is None or head <= floor:
            return min(floor, head)
        gaps = self._gaps
        if gaps is None:
            gaps = self._gaps = Gaps(self._n, floor, self._rows.path)
        gaps.follow(head, self._read)
        gaps.forget(floor)
        return gaps.oldest(floor, self._capacity)

    def _read(self, path: str, start: int, stop: int) -> Array:
        rows = chunk_files.read_rows(self._rows, self._rows.specs[path], start, stop)
        return rows.reshape(stop - start, self._n)

    def episodes_in(self, start: int, stop: int) -> int:
        """How many episodes begin in these steps."""
        rows = self._rows
        pieces = chunk_files.filled_rows(rows, rows.specs["resets"], start, stop)
        return sum(int(np.count_nonzero(values)) for _, values in pieces)
