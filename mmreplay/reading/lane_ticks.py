"""What an index asks of a vector lane: its steps, and the episodes that they belong to.

Invariant: no number of an episode is looked up before it is known to be one of the starts.
"""

from __future__ import annotations

import numpy as np

from mmreplay.errors import CorruptStoreError
from mmreplay.ids import Array, Ids
from mmreplay.reading.vector_reader import VectorReader
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.raw_column import RawColumn, Remaps


class LaneTicks:
    """What an index needs to know of the steps and episodes of one vector lane.

    `columns` are the flags of ends and the numbers of episodes by cell, `starts` the (base, head)
    of the starts that are known.
    """

    def __init__(self, reader: VectorReader, remaps: Remaps) -> None:
        self.width, self.path = reader.width, reader.ticks.path
        self._reader = reader
        self._counts = RawColumn([reader.ticks], "count", remaps)
        self.columns = {
            path: RawColumn([reader.cells], path, remaps) for path in ("ends", "episode")
        }
        self._ends, self._episodes = self.columns.values()
        self._ticks = RawColumn([reader.starts], "tick", remaps)
        self._envs = RawColumn([reader.starts], "env", remaps)
        self.starts = (0, 0)
        self._base = 0  # as it was when they were looked at

    def refresh(self) -> None:
        """Map what came since; called before it is read."""
        self._base = self._reader.base
        self.starts = (self._reader.starts.base, self._reader.starts.head)
        for column in (self._counts, self._episodes, self._ends, self._ticks, self._envs):
            column.refresh()

    def counts(self, start: int, stop: int) -> Ids:
        """Transitions in ticks 0 to t, for t in [start, stop); a view where the files allow it."""
        return self._counts.view(0, start, stop)

    def episodes(self, cells: Ids) -> Ids:
        """The numbers of the episodes that cells belong to, of any shape; below 0: of none."""
        return self._episodes.take(cells)

    def numbers(self, tick: int) -> Ids:
        """The same of all cells of a tick: (width,); a view, as `counts`."""
        return self._episodes.view(0, tick * self.width, (tick + 1) * self.width)

    def ends(self, cells: Ids) -> Array:
        """Whether the episodes of cells end there, of any shape."""
        return self._ends.take(cells)

    def ended(self, start: int, stop: int) -> Array:
        """The same for all cells of ticks [start, stop): (n, width); a view, as `counts`."""
        flags = self._ends.view(0, start * self.width, stop * self.width)
        return flags.reshape(-1, self.width)

    def start_ticks(self, numbers: Ids) -> Ids:
        """The ticks of the first steps of episodes, of any shape.

        Raises CorruptStoreError for an episode that has no start, EvictedError if it went.
        """
        self._check(numbers)
        return self._ticks.take(numbers)

    def start_envs(self, numbers: Ids) -> Ids:
        """The environments of episodes, of any shape; raises as `start_ticks`."""
        self._check(numbers)
        return self._envs.take(numbers)

    def cells(self, ticks: Ids) -> Ids:
        """The cells of ticks (n,): (n, width)."""
        return ticks[:, None] * self.width + np.arange(self.width)

    def _check(self, numbers: Ids) -> None:
        base, head = self.starts
        # To count takes less time than to look for the least and the largest one.
        if not np.count_nonzero((numbers - base).view(np.uint64) >= head - base):
            return
        least, most = int(numbers.min()), int(numbers.max())
        reader = self._reader
        if reader.is_live:
            has_gone = not reader.poll() or (least < base and reader.base > self._base)
        else:  # a session that came after what was read of the ticks
            has_gone = reader.replaced()
        if has_gone:
            raise EvictedError(str(reader.path))
        wrong = most if most >= head else least
        raise CorruptStoreError(
            f"{self.path}: a step belongs to episode {wrong:,}; expected one "
            f"of the starts [{base:,}, {head:,}); run `mmreplay verify`"
        )
