"""Runs of consecutive experiences: where they may begin.

Invariant: a run goes past the end of an episode only if a terminal state ended it, which its
experience tells by non_terminal = 0; never past a time limit, an interruption or the newest one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
        self._length, self._total = length, index.n_transitions
        self._first, self._resets = index.window(0)[1], np.empty(0, np.int64)
        self._cuts = np.empty(0, np.int64)
        if length > 1:
            resets = index.resets(0)
            resets = self._resets = resets[resets > self._first]
            ranks = self.ranks(resets)
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

    def ranks(self, rows: Ids) -> Ids:
        """How many experiences come before each of these rows: int64 (B,); of runs of 2 or more."""
        # A row before a reset is the final one of its episode, and none.
        return np.asarray(rows - self._first - self._resets.searchsorted(rows, "right"), np.int64)

    def begin(self, rows: Ids) -> npt.NDArray[np.bool_]:
        """Whether a run begins with the experience of this row: (B,)."""
        ranks = self.ranks(rows)
        fits = ranks + self._length <= self._total
        return np.asarray(fits & ~np.isin(ranks, self.cut(ranks)), np.bool_)

    def cut(self, ranks: Ids) -> Ids:
        """Those of the ranks from which a run would go past a cut."""
        inside = self._cuts.searchsorted(ranks, "right")
        wrong = inside != self._cuts.searchsorted(ranks + (self._length - 1), "right")
        return np.asarray(ranks[wrong], np.int64)

    def ids(self, index: Index, ranks: Ids) -> Ids:
        """The ids of the experiences of these runs, one run after the other: (B * length,)."""
        return index.at((ranks[:, None] + np.arange(self._length)).ravel())
