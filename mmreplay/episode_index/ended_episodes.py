"""`EndedEpisodes`: the episodes of a vector lane that are over.

Invariant: each is here once, in the order of their last cells, which are looked for in the ticks
that came since; what stands here of an episode never changes.
"""

from __future__ import annotations

import numpy as np

from mmreplay.episode_index.tick_source import TickSource
from mmreplay.errors import CorruptStoreError
from mmreplay.ids import Ids

_BLOCK_CELLS = 1 << 20
_ROOM = 64
_KEEP = 64


class EndedEpisodes:
    """See the module. Numbers are counted on since this was made."""

    def __init__(self, source: TickSource, where: object) -> None:
        self._source, self._where = source, where
        self.origin = 0  # number of the first one here
        self._n = 0
        self._firsts = np.empty(_ROOM, np.int64)  # cells
        self._lasts = np.empty(_ROOM, np.int64)  # ticks
        self._steps = np.empty(_ROOM, np.int64)
        # By the number of the start, from `_low` on: the number here, -1 of one that is not over.
        self._low = 0
        self._numbers = np.empty(0, np.int64)
        self._scanned = 0

    def follow(self, first: int, head: int, starts: tuple[int, int]) -> None:
        """Take what ended in ticks below `head` since, and forget what ended below `first`.

        Raises CorruptStoreError for an end of no episode.
        """
        self._forget(first, starts[0])
        self._reach(starts[1])
        width = self._source.width
        self._scanned = max(self._scanned, first)
        while self._scanned < head:
            stop = min(self._scanned + max(_BLOCK_CELLS // width, 1), head)
            # Of flags `nonzero` takes a fifth of the time that it takes of numbers.
            ended = (self._source.ended(self._scanned, stop) != 0).ravel().nonzero()[0]
            if ended.size:
                self._append(ended + self._scanned * width)
            self._scanned = stop

    def _append(self, cells: Ids) -> None:
        width = self._source.width
        lasts, numbers = cells // width, self._source.episodes(cells)
        before = steps_before(self._source, numbers, lasts, self._where)
        stop = self._n + cells.size
        if stop > self._lasts.size:
            room = stop + stop // 2
            self._firsts = np.resize(self._firsts, room)
            self._lasts = np.resize(self._lasts, room)
            self._steps = np.resize(self._steps, room)
        self._firsts[self._n : stop] = cells - before * width
        self._lasts[self._n : stop] = lasts
        self._steps[self._n : stop] = before + 1
        places = numbers - self._low
        wrong = places.view(np.uint64) >= self._numbers.size  # below 0 as well
        if np.count_nonzero(wrong):
            raise no_episode(self._where, int(numbers[wrong][0]))
        self._numbers[places] = self.origin + np.arange(self._n, stop)
        self._n = stop

    def _forget(self, first: int, low: int) -> None:
        gone = int(self._lasts[: self._n].searchsorted(first))
        if gone > max(self._n // 2, _KEEP):
            for array in (self._firsts, self._lasts, self._steps):
                array[: self._n - gone] = array[gone : self._n].copy()
            self.origin += gone
            self._n -= gone
        gone = low - self._low
        if not self._numbers.size:
            self._low = low
        elif gone > max(self._numbers.size // 2, _KEEP):
            self._numbers = self._numbers[gone:].copy()
            self._low = low

    def _reach(self, head: int) -> None:
        """Room for the numbers of all starts."""
        size = head - self._low
        if size > self._numbers.size:
            known = self._numbers
            self._numbers = np.full(size + size // 2, -1, np.int64)
            self._numbers[: known.size] = known

    @property
    def stop(self) -> int:
        """The number of the next one."""
        return self.origin + self._n

    def first_from(self, tick: int) -> int:
        """The number of the first one that ended in this tick or later."""
        return self.origin + int(self._lasts[: self._n].searchsorted(tick))

    def first_cells(self, number: int) -> Ids:
        """The first cells of this one and those after it; of those that are still known."""
        return self._firsts[max(number - self.origin, 0) : self._n]

    def numbers(self, starts: Ids) -> Ids:
        """The numbers here of the episodes of these starts, -1 of those that are not over."""
        places = starts - self._low
        if places.size and places.min() < 0:
            raise no_episode(self._where, int(starts.min()))
        out: Ids = self._numbers[places]
        return out

    def lasts(self, numbers: Ids) -> Ids:
        """The last ticks of episodes, by their numbers here; of some that steps belong to.

        Raises CorruptStoreError for one that ended before all steps.
        """
        places = numbers - self.origin
        if places.size and places.min() < 0:
            raise late_step(self._where)
        return self._lasts[places]

    def episodes(self, numbers: Ids) -> tuple[Ids, Ids]:
        """The first cells and the steps of episodes, by their numbers here."""
        places = numbers - self.origin
        return self._firsts[places], self._steps[places]


def steps_before(source: TickSource, numbers: Ids, ticks: Ids | int, where: object) -> Ids:
    """How many steps episodes have before those in `ticks`.

    Raises CorruptStoreError for one that begins later than its step, and as `start_ticks`.
    """
    begins = source.start_ticks(numbers)
    out: Ids = ticks - begins
    late = (begins | out) < 0  # either of them
    if np.count_nonzero(late):  # takes less time than to look for the least one
        raise CorruptStoreError(
            f"{where}: start {int(numbers[late].flat[0]):,} says that its episode begins in tick "
            f"{int(begins[late].flat[0]):,}, but a step of it lies before that; run "
            f"`mmreplay verify`"
        )
    return out


def no_episode(where: object, number: int) -> CorruptStoreError:
    """The error for a step of an episode that there is not."""
    return CorruptStoreError(
        f"{where}: a step belongs to episode {number:,}, which is none of its starts; run "
        f"`mmreplay verify`"
    )


def late_step(where: object) -> CorruptStoreError:
    """The error for a step that lies after the end of its episode."""
    return CorruptStoreError(f"{where}: an episode goes on after its end; run `mmreplay verify`")
