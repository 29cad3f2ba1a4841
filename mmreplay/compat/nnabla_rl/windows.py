"""Runs of consecutive experiences: where they may begin.

Invariant: a run goes past the end of an episode only if a terminal state ended it, which its
experience tells by non_terminal = 0; never past a time limit, an interruption or the newest one.
"""

from __future__ import annotations

import numpy as np

from mmreplay.columns import Ids
from mmreplay.episodes import Index
from mmreplay.store import Store

__all__ = ["Windows"]


class Windows:
    """The runs of `length` experiences in a store of one lane, as it is now.

    Args:
        store: whose lock the caller holds.
        index: of the store.
        length: experiences a run.
        offset: experiences, from the oldest on, that do not count.

    Attributes:
        count: how many runs there are.
    """

    def __init__(self, store: Store, index: Index, length: int, offset: int = 0) -> None:
        """See the class."""
        self._length = length
        self._cuts = np.empty(0, np.int64)
        if length > 1:
            _, first, _ = index.window(0)
            resets = index.resets(0)
            resets = resets[resets > first]
            # Experiences before each reset: its episode's final row, and those before, are none.
            ranks = resets - first - np.arange(1, len(resets) + 1)
            # A final row has the flag of the step that led to it.
            self._cuts = ranks[store.columns["non_terminals"].take(resets - 1) != 0]
        inner = self._cuts[self._cuts > offset]
        bounds = np.concatenate(([offset], inner, [index.n_transitions]))
        self._begins = bounds[:-1]
        self._stops = np.maximum(np.diff(bounds) - length + 1, 0).cumsum()
        self.count = int(self._stops[-1])

    def at(self, numbers: Ids) -> Ids:
        """The ranks of the experiences that these runs begin with: int64 (B,).

        Args:
            numbers: (B,) 0 <= number < count.
        """
        run = self._stops.searchsorted(numbers, "right")
        before = np.concatenate(([0], self._stops))[run]
        return np.asarray(self._begins[run] + numbers - before, np.int64)

    def cut(self, ranks: Ids) -> Ids:
        """Those of the ranks from which a run would go past a cut."""
        inside = self._cuts.searchsorted(ranks, "right")
        wrong = inside != self._cuts.searchsorted(ranks + (self._length - 1), "right")
        return np.asarray(ranks[wrong], np.int64)

    def ids(self, index: Index, ranks: Ids) -> Ids:
        """The ids of the experiences of these runs, one run after the other: (B * length,)."""
        return index.at((ranks[:, None] + np.arange(self._length)).ravel())
