"""From priorities to probabilities: in proportion to them, or by their ranks.

Source: Schaul et al. (2016), "Prioritized Experience Replay": equation 1, and section 3.3.

Invariant: a position has mass if and only if it has a priority.
"""

from __future__ import annotations

import abc

import numpy as np
import numpy.typing as npt

from mmreplay.ids import Ids
from mmreplay.sampling.sum_tree import SumTree

Doubles = npt.NDArray[np.float64]

MIN_PRIORITY, MAX_PRIORITY = 1e-140, 1e140
"""Bounds of priorities, so that no sum of masses overflows and no probability becomes 0."""

_GIVEN_PER_SORT = 4  # priorities are sorted after updates of a quarter of the transitions


class Masses(abc.ABC):
    """Turns the priorities of positions into probabilities: their shares of a sum of masses."""

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self._tree = SumTree(np.zeros(0))

    @abc.abstractmethod
    def load(self, priorities: Doubles) -> None:
        """Take all priorities, (n,), 0 without a transition; the array is kept and may change."""

    @abc.abstractmethod
    def set(self, positions: Ids, priorities: Doubles) -> None:
        """Take some, (B,); of a repeated position the last one."""

    def settle(self) -> None:
        """Finish earlier calls of `set`."""
        self._tree.settle()

    def draw(self, draws: Doubles) -> tuple[Ids, Doubles]:
        """Positions and their probabilities, (B,) each, for draws in [0, 1)."""
        self.settle()
        positions, masses = self._tree.draw(draws)
        return positions, masses / self._tree.total

    def probabilities(self, positions: Ids) -> Doubles:
        """Of positions that can be drawn, (B,)."""
        self.settle()
        return self._tree.masses.take(positions) / self._tree.total

    def least(self) -> float:
        """The smallest probability of a position that can be drawn."""
        self.settle()
        return self._tree.least() / self._tree.total


class Proportional(Masses):
    """P(i) = p_i ** alpha / sum."""

    def _mass(self, priorities: Doubles) -> Doubles:
        if 0 < self._alpha <= 1:
            return priorities**self._alpha
        with np.errstate(over="ignore"):
            out = (priorities**self._alpha).clip(MIN_PRIORITY, MAX_PRIORITY)
        out[priorities == 0] = 0  # 0 ** 0 is 1
        return out

    def load(self, priorities: Doubles) -> None:
        """See `Masses`."""
        self._tree = SumTree(priorities, self._mass)

    def set(self, positions: Ids, priorities: Doubles) -> None:
        """See `Masses`."""
        self._tree.set(positions, self._mass(priorities))


class RankBased(Masses):
    """P(i) = rank(i) ** -alpha / sum, by ranks as of the last sort; the largest has rank 1.

    All priorities are sorted after updates of a quarter of them. Until then a position keeps its
    rank, and the k-th new one has rank k, too: together they weigh as much as the first k ranks.
    """

    def load(self, priorities: Doubles) -> None:
        """See `Masses`."""
        self._priorities = priorities
        self._sort()

    def _sort(self) -> None:
        present = np.flatnonzero(self._priorities)
        order = present[np.argsort(-self._priorities[present], kind="stable")]
        masses = np.zeros(self._priorities.size)
        masses[order] = self._masses(1, order.size)
        due = max(order.size // _GIVEN_PER_SORT, 1)
        self._tree, self._n_came, self._n_given, self._due = SumTree(masses), 0, 0, due

    def _masses(self, first: int, count: int) -> Doubles:
        """Of `count` ranks from `first` on."""
        ranks = np.arange(first, first + count, dtype=np.float64)
        return np.maximum(ranks**-self._alpha, MIN_PRIORITY)

    def set(self, positions: Ids, priorities: Doubles) -> None:
        """See `Masses`."""
        masses = self._tree.masses[positions]
        is_given = priorities > 0
        masses[~is_given] = 0
        came = np.flatnonzero(is_given & (masses == 0))
        masses[came] = self._masses(self._n_came + 1, came.size)
        self._tree.set(positions, masses)
        self._n_came += came.size
        self._n_given += int(np.count_nonzero(is_given))

    def settle(self) -> None:
        """See `Masses`."""
        if self._n_given >= self._due:
            self._sort()
        super().settle()
