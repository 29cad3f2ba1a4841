"""The episodes that one tick of a vector lane is part of, as that tick moves on.

Invariant: looked up is only what is another episode than it was in the tick before: what a move
costs besides is a few passes over the environments.
"""

from __future__ import annotations

import numpy as np

from mmreplay.episode_index.ended_episodes import EndedEpisodes, late_step, steps_before
from mmreplay.episode_index.tick_source import TickSource
from mmreplay.ids import Ids

__all__ = ["NEVER", "CutEpisodes", "TickEpisodes"]

NEVER = 1 << 40
"""The tick in which the episode of an environment begins that was left out: one past all."""

_UNKNOWN = -(1 << 62)


class TickEpisodes:
    """See the module; `where` is named in the messages of errors.

    Attributes:
        begins: (width,) of each environment's episode the tick of its first step, or `NEVER`.
    """

    def __init__(self, source: TickSource, where: object) -> None:
        self._source, self._where = source, where
        self.numbers = np.full(source.width, _UNKNOWN)
        self.begins = np.full(source.width, NEVER)
        self._tick = _UNKNOWN

    def move(self, tick: int) -> Ids:
        """Go to a tick, of [0, head of the ticks); the environments of another episode than before.

        Raises as `steps_before`; it is where it was then.
        """
        found = self._source.numbers(tick)
        changed: Ids = (found != self.numbers).nonzero()[0]
        if changed.size:
            numbers = found[changed]
            there = (numbers >= 0).nonzero()[0]
            begins = np.full(changed.size, NEVER)
            if tick - self._tick == 1:  # what was not in the tick before begins in this one
                begins[there] = tick
            else:
                begins[there] = tick - steps_before(self._source, numbers[there], tick, self._where)
            self.begins[changed] = begins
            self.numbers[changed] = numbers  # last: interrupted before, it is looked up again
        self._tick = tick
        return changed


class CutEpisodes:
    """The episodes that are over and have a step in the first tick that counts, and one before it.

    Attributes:
        lasts: (width,) of each environment the last tick of such an episode, or -1.
        environments: (n,) those that have one, ascending.
        numbers: (n,) these episodes, as `EndedEpisodes` counts them, ascending.
    """

    def __init__(self, source: TickSource, where: object) -> None:
        self._where = where
        self._first = TickEpisodes(source, where)
        self.lasts = np.full(source.width, -1)
        self.environments = self.numbers = np.empty(0, np.int64)
        # Whether the episode of each environment is known to be cut, or not to be over: few of
        # those that began before change from one tick to the next.
        self._known = np.zeros(source.width, np.bool_)
        self._seen = 0

    def move(self, first: int, ended: EndedEpisodes) -> None:
        """Go to the first tick that counts; `ended` has followed to there.

        Raises as `TickEpisodes`, and CorruptStoreError where steps lie behind the end of their
        episode. What was interrupted here is to be thrown away.
        """
        start, known = ended.first_from(first), self._known
        changed = self._first.move(first)
        self.lasts[changed] = -1
        known[changed] = False
        known[ended.first_cells(self._seen) % known.size] = False
        self._seen = ended.stop
        np.logical_or(known, self.lasts >= 0, out=known)
        numbers = self.numbers[self.numbers.searchsorted(start) :]
        sought = ((self._first.begins < first) > known).nonzero()[0]
        found = ended.numbers(self._first.numbers[sought])
        known[sought] = True
        over = (found >= 0).nonzero()[0]
        if over.size:
            found = found[over]
            self.lasts[sought[over]] = ended.lasts(found)
            # Two ascending runs as a rule, which a stable sort merges.
            numbers = np.sort(np.concatenate((numbers, np.sort(found))), kind="stable")
        self.numbers = numbers
        self.environments = (self.lasts >= 0).nonzero()[0]
        n_cut = self.environments.size
        if n_cut != numbers.size or (n_cut and numbers[0] < start):
            raise late_step(self._where)
