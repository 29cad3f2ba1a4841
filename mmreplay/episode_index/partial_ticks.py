"""`PartialTicks`: the ticks of a vector lane in which some environment was left out.

Invariant: what stands here follows from the numbers of transitions alone; a tick is looked at once,
when it comes, and a draw searches among these ticks only.
"""

from __future__ import annotations

import numpy as np

from mmreplay.ids import Ids

_ROOM = 64
_KEEP = 64


class PartialTicks:
    """The partial ones of the ticks from `tick` on, before which the lane has `before` transitions.

    Attributes:
        head: the tick after the last one that was looked at.
        last: the transitions before that one.
    """

    def __init__(self, width: int, tick: int, before: int) -> None:
        self._width = width
        self.head, self.last = tick, before
        self._n = 0
        # Of each the transitions up to it, itself included; and of those that come after so many of
        # them, how many cells more than transitions there are before.
        self._ends = np.empty(_ROOM, np.int64)
        self._absent = np.empty(_ROOM + 1, np.int64)
        self._absent[0] = tick * width - before

    def __len__(self) -> int:
        return self._n

    def extend(self, counts: Ids) -> bool:
        """Look at the ticks from `head` on, with so many transitions up to each: (n,).

        False, and nothing is changed, where these are no such numbers.
        """
        n, width = counts.size, self._width
        if n == 1 and int(counts[0]) == self.last + width:
            self.head, self.last = self.head + 1, self.last + width
            return True
        if not n:
            return True
        if not (0 <= int(counts[0]) - self.last <= width and counts[0] <= counts[-1]):
            return False
        present = counts.copy()
        present[1:] -= counts[:-1]
        present[0] = int(counts[0]) - self.last
        if present.min() < 0 or present.max() > width:
            return False
        partial = (present < width).nonzero()[0]
        stop = self._n + partial.size
        if stop > self._ends.size:
            self._ends = np.resize(self._ends, stop + stop // 2)
            self._absent = np.resize(self._absent, stop + stop // 2 + 1)
        self._ends[self._n : stop] = counts[partial]
        self._absent[self._n + 1 : stop + 1] = (partial + (self.head + 1)) * width - counts[partial]
        self.head, self.last, self._n = self.head + n, int(counts[-1]), stop
        return True

    def forget(self, before: int) -> None:
        """Those are not asked for any more after which the lane has at most so many transitions."""
        gone = int(self._ends[: self._n].searchsorted(before))
        if gone > max(self._n // 2, _KEEP):
            self._ends = self._ends[gone:].copy()
            self._absent = self._absent[gone:].copy()
            self._n -= gone

    def cells(self, numbers: Ids) -> Ids:
        """The cells of transitions, counted from the lane's first one: those of full ticks.

        Of a partial tick with n transitions, its first n cells: see `docs/format.md`.
        """
        if not self._n:
            return np.asarray(numbers + self._absent[0])
        out: Ids = self._absent.take(self._ends[: self._n].searchsorted(numbers, "right"))
        out += numbers
        return out

    def ticks(self, first: int) -> Ids:
        """Which these are, of those from `first` on: (n,), ascending."""
        ticks = (self._ends[: self._n] + self._absent[1 : self._n + 1]) // self._width - 1
        out: Ids = ticks[ticks.searchsorted(first) :]
        return out
