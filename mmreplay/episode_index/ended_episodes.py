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
        self._lasts = np.empty(_ROOM, np.int64)
        # By the number of the start, from `_low` on: the number here, -1 of one that is not over.
        self._low = 0
        self._numbers = np.empty(0, np.int64)
        self._head = 0
        self._scanned = 0

    def follow(self, first: int, head: int, starts: tuple[int, int]) -> None:
        """Take what ended in ticks below `head` since, and forget what ended below `first`.

        Raises CorruptStoreError for an end of no episode.
        """
        self._forget(first * self._source.width, starts[0])
        self._reach(starts[1])
        self._head = starts[1]
        width = self._source.width
        self._scanned = max(self._scanned, first)
        while self._scanned < head:
            stop = min(self._scanned + max(_BLOCK_CELLS // width, 1), head)
            ended = np.flatnonzero(self._source.ended(self._scanned, stop))
            if ended.size:
                self._append(ended + self._scanned * width)
            self._scanned = stop

    def _append(self, cells: Ids) -> None:
        numbers, ticks = episodes_of(self._source, cells, self._head, self._where)
        width = self._source.width
        stop = self._n + cells.size
        if stop > self._lasts.size:
            room = stop + stop // 2
            self._firsts = np.resize(self._firsts, room)
            self._lasts = np.resize(self._lasts, room)
        self._firsts[self._n : stop] = ticks * width + cells % width
        self._lasts[self._n : stop] = cells
        places = numbers - self._low
        if places.min() < 0:
            raise no_episode(self._where, int(numbers.min()))
        self._numbers[places] = self.origin + np.arange(self._n, stop)
        self._n = stop

    def _forget(self, first_cell: int, low: int) -> None:
        gone = int(self._lasts[: self._n].searchsorted(first_cell))
        if gone > max(self._n // 2, _KEEP):
            for array in (self._firsts, self._lasts):
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

    def first_from(self, cell: int) -> int:
        """The number of the first one that ended in this cell or later."""
        return self.origin + int(self._lasts[: self._n].searchsorted(cell))

    def numbers(self, starts: Ids) -> Ids:
        """The numbers here of the episodes of these starts, -1 of those that are not over."""
        places = starts - self._low
        if places.size and places.min() < 0:
            raise no_episode(self._where, int(starts.min()))
        out: Ids = self._numbers[places]
        return out

    def lasts(self, numbers: Ids) -> Ids:
        """The last cells of episodes, by their numbers here; of some that steps belong to.

        Raises CorruptStoreError for one that ended before all steps.
        """
        places = numbers - self.origin
        if places.size and places.min() < 0:
            raise late_step(self._where)
        return self._lasts[places]

    def episodes(self, numbers: Ids) -> tuple[Ids, Ids]:
        """The first cells and the steps of episodes, by their numbers here."""
        places = numbers - self.origin
        firsts = self._firsts[places]
        return firsts, (self._lasts[places] - firsts) // self._source.width + 1


def episodes_of(source: TickSource, cells: Ids, head: int, where: object) -> tuple[Ids, Ids]:
    """The numbers of the starts of the episodes of transitions, and the ticks of their first steps.

    `head` is the number of starts. Raises CorruptStoreError for a cell that names none of these, or
    one that begins later; whoever reads starts knows which are gone.
    """
    numbers = source.episodes(cells)
    if not numbers.size:
        return numbers, numbers
    if numbers.min() < 0 or numbers.max() >= head:
        wrong = int(numbers[(numbers < 0) | (numbers >= head)].flat[0])
        raise no_episode(where, wrong)
    ticks = source.start_ticks(numbers)
    late = (ticks < 0) | (ticks > cells // source.width)
    if late.any():
        wrong = int(numbers[late].flat[0])
        raise CorruptStoreError(
            f"{where}: start {wrong:,} says that its episode begins in tick "
            f"{int(ticks[late].flat[0]):,}, but a step of it lies before that; run "
            f"`mmreplay verify`"
        )
    return numbers, ticks


def no_episode(where: object, number: int) -> CorruptStoreError:
    """The error for a step of an episode that there is not."""
    return CorruptStoreError(
        f"{where}: a step belongs to episode {number:,}, which is none of its starts; run "
        f"`mmreplay verify`"
    )


def late_step(where: object) -> CorruptStoreError:
    """The error for a step that lies after the end of its episode."""
    return CorruptStoreError(f"{where}: an episode goes on after its end; run `mmreplay verify`")
