"""From priorities to probabilities: in proportion to them, or by their ranks.

Source: Schaul et al. (2016), "Prioritized Experience Replay": equation 1, and section 3.3.

Invariant: a position has mass if and only if it has a priority.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from mmreplay.ids import Ids
from mmreplay.sampling.exact_ranks import RankedPriorities
from mmreplay.sampling.rank_distribution import RankDistribution
from mmreplay.sampling.sum_tree import SumTree

Doubles = npt.NDArray[np.float64]

MIN_PRIORITY, MAX_PRIORITY = 1e-140, 1e140
"""Bounds of priorities. 0 means that there is none; between these two no sum of masses overflows,
and no probability becomes 0."""


class Masses(Protocol):
    """Turns the priorities of positions into probabilities."""

    def load(self, priorities: Doubles) -> None:
        """Take all priorities, (n,); 0 where there is none."""

    def set(self, positions: Ids, priorities: Doubles) -> None:
        """Take some, (B,); the last one of a position that comes twice."""

    def settle(self) -> None:
        """Finish what earlier calls of `set` put off."""

    def draw(self, draws: Doubles) -> tuple[Ids, Doubles]:
        """Positions and their probabilities, (B,) each, for draws in [0, 1)."""

    def probabilities(self, positions: Ids) -> Doubles:
        """Of positions that can be drawn, (B,)."""

    def least(self) -> float:
        """The smallest probability of a position that can be drawn."""


class Proportional:
    """P(i) = p_i ** alpha / sum."""

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
        """See `Masses`."""
        self._tree = SumTree(priorities, self._mass)

    def set(self, positions: Ids, priorities: Doubles) -> None:
        """See `Masses`."""
        self._tree.set(positions, self._mass(priorities))

    def settle(self) -> None:
        """See `Masses`."""
        self._tree.settle()

    def draw(self, draws: Doubles) -> tuple[Ids, Doubles]:
        """See `Masses`."""
        positions, masses = self._tree.draw(draws)
        return positions, masses / self._tree.total

    def probabilities(self, positions: Ids) -> Doubles:
        """See `Masses`."""
        return self._tree.masses.take(positions) / self._tree.total

    def least(self) -> float:
        """See `Masses`."""
        return self._tree.least() / self._tree.total


class RankBased:
    """P(i) = rank(i) ** -alpha / sum, the largest priority having rank 1."""

    def __init__(self, alpha: float) -> None:
        self._distribution = RankDistribution(alpha)
        self._ranked = RankedPriorities.from_arrays(np.zeros(0))

    def load(self, priorities: Doubles) -> None:
        """See `Masses`."""
        self._ranked = RankedPriorities.from_arrays(priorities)

    def set(self, positions: Ids, priorities: Doubles) -> None:
        """See `Masses`."""
        self._ranked.set(positions, priorities)

    def settle(self) -> None:
        """See `Masses`: nothing is put off."""

    def draw(self, draws: Doubles) -> tuple[Ids, Doubles]:
        """See `Masses`."""
        ranks = self._distribution.draw(len(self._ranked), draws)
        return self._ranked.at(ranks), self._distribution.probability(ranks, len(self._ranked))

    def probabilities(self, positions: Ids) -> Doubles:
        """See `Masses`."""
        return self._distribution.probability(self._ranked.ranks(positions), len(self._ranked))

    def least(self) -> float:
        """See `Masses`."""
        n = len(self._ranked)
        return float(self._distribution.probability(np.array([n]), n)[0])
