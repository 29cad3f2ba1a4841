"""Which rows of a log are kept: of one environment, of many that step together, of their starts.

Invariant: nothing that a row which is kept needs is forgotten before it.
"""

from __future__ import annotations

import bisect

import numpy as np

from mmreplay import episode_index
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Ids
from mmreplay.storage import chunk_files
from mmreplay.writing import build_lane
from mmreplay.writing.log import Log

__all__ = ["LaneRows", "StartRows", "TickRows"]


class LaneRows:
    """Of a lane of one environment: as many transitions as its capacity, and an index at its close.

    Attributes:
        starts: rows from the log's base on with a reset; the writer appends to it.
    """

    def __init__(self, log: Log, capacity: int | None) -> None:
        self._log, self._capacity = log, capacity
        resets = chunk_files.nonzero_rows(log, log.specs["resets"], log.base, log.head)
        self.starts: list[int] = resets.tolist()

    def first_row(self, head: int) -> int:
        """The oldest transition to be sampled of those below `head`."""
        starts = np.array(self.starts, np.int64)
        starts = starts[: int(starts.searchsorted(head))]
        return episode_index.first_row(starts, self._log.first, head, self._capacity)

    def forget(self, base: int) -> None:
        """Forget the episodes that ended below `base`."""
        kept = 0
        while kept + 1 < len(self.starts) and self.starts[kept + 1] <= base:
            kept += 1
        del self.starts[:kept]

    def finish(self, head: int) -> list[tuple[ArraySpec, int]]:
        """Write the index of the rows with a reset."""
        log = self._log
        kept = [row for row in self.starts if log.base <= row < head]
        return [build_lane.write_index(log.path, np.array(kept, np.int64))]


class TickRows:
    """Of the ticks of a vector lane: the newest ones with at most `capacity` transitions."""

    def __init__(self, log: Log, capacity: int | None) -> None:
        self._log, self._capacity = log, capacity

    def first_row(self, head: int) -> int:
        """The oldest tick to be sampled of those below `head`."""
        return episode_index.first_tick(self._counts, self._log.first, head, self._capacity)

    def _counts(self, start: int, stop: int) -> Ids:
        return chunk_files.read_rows(self._log, self._log.specs["count"], start, stop)

    def forget(self, base: int) -> None:
        """Nothing of them is in memory."""

    def finish(self, head: int) -> list[tuple[ArraySpec, int]]:  # noqa: ARG002
        """Nothing stands beside them."""
        return []


class StartRows:
    """Of the starts of a vector lane: those of the episodes of which a tick is kept, durably.

    Episodes are numbered in the order in which they began, and an episode's ticks follow one
    another: the smallest number in the oldest tick that is kept is the smallest of all. Where that
    tick has no step, as a repair may leave it, it is that of the first one after it that has.
    """

    def __init__(self, log: Log, ticks: Log) -> None:
        self._log, self._ticks = log, ticks
        self._known = (0, 0)  # a base of the ticks, and the oldest start that they need

    def first_row(self, head: int) -> int:
        """The oldest start to be kept; the base of the ticks is what their last flush has left."""
        base, oldest = self._known
        if self._ticks.base > base:
            base = self._ticks.base
            named = self._oldest_named(base)
            if named is None:  # the next step may be of an episode that has begun long ago
                return min(self._log.first, head)
            oldest = named
            self._known = base, oldest
        return min(max(oldest, self._log.first), head)

    def _oldest_named(self, tick: int) -> int | None:
        """The smallest episode in the first tick with a step, from `tick` on; None without one."""
        episodes, head = self._read("episode", tick), self._ticks.head
        if episodes.max() < 0:
            n = int(self._read("count", tick)[0])
            tick = bisect.bisect_right(
                range(head), n, lo=tick, key=lambda one: int(self._read("count", one)[0])
            )
            if tick == head:
                return None
            episodes = self._read("episode", tick)
        return int(episodes[episodes >= 0].min())

    def _read(self, path: str, tick: int) -> Ids:
        return chunk_files.read_rows(self._ticks, self._ticks.specs[path], tick, tick + 1)

    def forget(self, base: int) -> None:
        """Nothing of them is in memory."""

    def finish(self, head: int) -> list[tuple[ArraySpec, int]]:  # noqa: ARG002
        """Nothing stands beside them."""
        return []
