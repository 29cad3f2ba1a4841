"""Draws of ranks, the first ones most often.

Invariant: the sums for n ranks do not depend on how n grew.

Source: Schaul et al. 2016, "Prioritized Experience Replay", section 3.3, rank-based variant.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.sampling.rank_blocks import Ints, Reals


class RankDistribution:
    """P(rank) = rank^-alpha / sum over all ranks of rank^-alpha.

    The sum is one for all numbers of items: it is extended when there are more of them than ever,
    by doubling, and does not depend on when that was. Memory: 8 bytes a rank.

    Source: Schaul et al. 2016, section 3.3, with p_i = 1 / rank(i).
    """

    def __init__(self, alpha: float) -> None:
        """Raises SchemaError if `alpha` is negative, infinite or NaN; 0 makes draws uniform."""
        if not 0 <= alpha < np.inf:
            raise SchemaError(f"alpha is {alpha}; expected a finite number of at least 0")
        self.alpha = float(alpha)
        self._sums: Reals = np.ones(1)

    def draw(self, n_present: int, draws: npt.NDArray[np.float64]) -> Ints:
        """A rank for each draw in [0, 1): int64 (B,), from 1 to n_present.

        Larger draws give larger ranks, so that stratified draws give stratified ranks. Raises
        EmptyBufferError if there is no item.
        """
        if n_present < 1:
            raise EmptyBufferError("no position has a priority yet: there is no rank to draw")
        sums = self._up_to(n_present)
        # A product with the sum may round up to it, but belongs to the last rank.
        below: Ints = sums[:-1].searchsorted(draws * sums[-1], "right")
        return below + 1

    def probability(self, ranks: npt.NDArray[np.int64], n_present: int) -> Reals:
        """The probability of each of these ranks among n_present: float64 (B,)."""
        terms: Reals = np.asarray(ranks, np.float64) ** -self.alpha
        return np.asarray(terms / self._up_to(n_present)[-1])

    def _up_to(self, n: int) -> Reals:
        while len(self._sums) < n:
            done = len(self._sums)
            sums = np.empty(2 * done)
            sums[:done] = self._sums
            new = sums[done:]
            new[:] = np.arange(done + 1, 2 * done + 1, dtype=np.float64) ** -self.alpha
            new[0] += sums[done - 1]
            np.cumsum(new, out=new)
            self._sums = sums
        return self._sums[:n]
