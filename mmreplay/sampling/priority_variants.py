"""From priorities to probabilities: in proportion to them, or by their ranks.

Source: Schaul et al. (2016), "Prioritized Experience Replay": equation 1, and section 3.3; the sum
tree of appendix B.2.1, with 32 children per node instead of 2, so that a batch takes few numpy
calls.

Invariants: a position has mass if and only if it has a priority. A sum is computed from the values
below it whenever one of them changes, so sums do not drift.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from mmreplay.ids import Ids, distinct

Doubles = npt.NDArray[np.float64]

MIN_PRIORITY, MAX_PRIORITY = 1e-140, 1e140
"""Bounds of priorities, so that no sum of masses overflows and no probability becomes 0."""

_GIVEN_PER_SORT = 4  # priorities are sorted after updates of a quarter of the transitions
_BITS = 5
_FANOUT = 1 << _BITS
_TOP = 2048  # sums that are searched at once instead of through another level
_FEW = 512  # nodes that are faster to sum twice than to deduplicate
_PIECE = 1 << 20


class Proportional:
    """P(i) = p_i ** alpha / sum: shares of a sum of masses."""

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self._tree = SumTree(np.zeros(0))

    def _mass(self, priorities: Doubles) -> Doubles:
        if 0 < self._alpha <= 1:
            return priorities**self._alpha
        with np.errstate(over="ignore"):
            out = (priorities**self._alpha).clip(MIN_PRIORITY, MAX_PRIORITY)
        out[priorities == 0] = 0  # 0 ** 0 is 1
        return out

    def load(self, priorities: Doubles) -> None:
        """Take all priorities, (n,), 0 without a transition; the array is kept and may change."""
        self._tree = SumTree(priorities, self._mass)

    def set(self, positions: Ids, priorities: Doubles) -> None:
        """Take some, (B,); of a repeated position the last one."""
        self._tree.set(positions, self._mass(priorities))

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


class RankBased(Proportional):
    """P(i) = rank(i) ** -alpha / sum, by ranks as of the last sort; the largest has rank 1.

    All priorities are sorted after updates of a quarter of them. Until then a position keeps its
    rank, and the k-th new one has rank k, too: together they weigh as much as the first k ranks.
    """

    def load(self, priorities: Doubles) -> None:
        """See `Proportional`."""
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
        """See `Proportional`."""
        masses = self._tree.masses[positions]
        is_given = priorities > 0
        masses[~is_given] = 0
        came = np.flatnonzero(is_given & (masses == 0))
        masses[came] = self._masses(self._n_came + 1, came.size)
        self._tree.set(positions, masses)
        self._n_came += came.size
        self._n_given += int(np.count_nonzero(is_given))

    def settle(self) -> None:
        """See `Proportional`."""
        if self._n_given >= self._due:
            self._sort()
        super().settle()


class SumTree:
    """Masses of `size` positions, and their sums in groups of 32, of groups of 32, and so on.

    `masses`, (size,) float64, is for reading; `set` changes it.
    """

    def __init__(self, values: Doubles, mass: Callable[[Doubles], Doubles] | None = None) -> None:
        """A tree over a copy of `values`, (size,), 0 or more each; `mass` converts them."""
        leaves = np.zeros(_padded(len(values)))
        self.masses = leaves[: len(values)]
        for start in range(0, len(values), _PIECE):
            piece = values[start : start + _PIECE]
            if piece.any():  # pages that are not written take no memory
                self.masses[start : start + _PIECE] = piece if mass is None else mass(piece)
        self._levels = [leaves]
        while len(self._levels[-1]) > _TOP:
            below = self._levels[-1].reshape(-1, _FANOUT)
            sums = np.zeros(_padded(len(below)))
            sums[: len(below)] = below.sum(1)
            self._levels.append(sums)
        self._groups = [level.reshape(-1, _FANOUT) for level in self._levels[:-1]]
        # Positions whose sums are out of date: summed when they are next needed.
        self._stale: list[Ids] = []
        self._scratch = np.zeros((0, _FANOUT + 1)), np.zeros(0, np.int64)
        self._bounds = np.concatenate(([0.0], self._levels[-1].cumsum()))
        # The smallest mass of each group, level by level; computed on first use.
        self._leasts: list[Doubles] = []

    def set(self, positions: Ids, masses: Doubles) -> None:
        """Give positions, (n,), other masses; of a repeated position the last one counts."""
        self.masses[positions] = masses
        self._stale.append(positions)

    def settle(self) -> None:
        """Sum up the changes; again from the start if it was interrupted."""
        stale = self._stale
        if not stale:
            return
        nodes = positions = stale[0] if len(stale) == 1 else np.concatenate(stale)
        for groups, sums in zip(self._groups, self._levels[1:], strict=True):
            nodes = nodes >> _BITS
            if nodes.size > _FEW:
                nodes = distinct(nodes)
            sums[nodes] = np.add.reduce(groups.take(nodes, 0), 1)
        self._levels[-1].cumsum(out=self._bounds[1:])
        nodes, below = positions, self._levels[0]
        for leasts in self._leasts:
            nodes = nodes >> _BITS
            if nodes.size > _FEW:
                nodes = distinct(nodes)
            leasts[nodes] = _least_of(below.reshape(-1, _FANOUT).take(nodes, 0))
            below = leasts
        self._stale = []

    def least(self) -> float:
        """The smallest mass above 0; infinity if there is none."""
        self.settle()
        if not self._leasts:
            below, every = self._levels[0], []
            for sums in self._levels[1:] or [np.zeros(_padded(len(below) // _FANOUT))]:
                leasts = np.full(len(sums), np.inf)
                groups = below.reshape(-1, _FANOUT)
                leasts[: len(groups)] = _least_of(groups)
                every.append(leasts)
                below = leasts
            self._leasts = every
        return float(self._leasts[-1].min())

    @property
    def total(self) -> float:
        """The sum of all masses."""
        self.settle()
        return float(self._bounds[-1])

    def draw(self, draws: Doubles) -> tuple[Ids, Doubles]:
        """Positions (B,) int64 in proportion to their masses, and these (B,); `draws` in [0, 1)."""
        self.settle()
        left = draws * self._bounds[-1]
        # The last bounds are left out, here and below: rounding may lift a draw past them.
        nodes = self._bounds[1:-1].searchsorted(left, "right")
        left -= self._bounds.take(nodes)
        if len(self._scratch[0]) != len(draws):
            # Bounds of a node's children for each draw, from 0 to infinity, and starts of rows.
            bounds = np.zeros((len(draws), _FANOUT + 1))
            bounds[:, -1] = np.inf
            self._scratch = bounds, np.arange(0, bounds.size, _FANOUT + 1)
        bounds, rows = self._scratch
        within, after = bounds[:, 1:-1], bounds[:, 1:]
        for level in range(len(self._groups) - 1, -1, -1):
            np.add.accumulate(self._groups[level].take(nodes, 0)[:, :-1], 1, out=within)
            child = (after > left[:, None]).argmax(1)
            nodes <<= _BITS
            nodes += child
            if level:
                child += rows
                left -= bounds.take(child)
        masses = self.masses.take(nodes, mode="clip")
        if not masses.all():  # rounding lifted a draw past the last mass of a node: back to that
            for at in np.flatnonzero(masses == 0):
                with_mass = np.flatnonzero(self.masses[: nodes[at]])
                nodes[at] = with_mass[-1] if with_mass.size else np.flatnonzero(self.masses)[0]
                masses[at] = self.masses[nodes[at]]
        return nodes, masses


def _least_of(groups: Doubles) -> Doubles:
    """The smallest mass above 0 of each group, (n,)."""
    out: Doubles = np.where(groups > 0, groups, np.inf).min(1)
    return out


def _padded(size: int) -> int:
    return -(-max(size, 1) // _FANOUT) * _FANOUT
