"""n-step returns, their discounts and flags."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mmreplay.batches.batch import Column
from mmreplay.batches.settings import Settings
from mmreplay.ids import Array, Ids


class Returns:
    """Returns over n steps, their discounts and flags; sums in float64, first step first."""

    def __init__(self, settings: Settings) -> None:
        self._n = n_step = settings.n_step
        self._clip = settings.clip_reward
        self._ahead = np.arange(n_step)
        self._powers = np.array([settings.gamma**j for j in range(n_step + 1)])

    def rewards(self, columns: Mapping[str, Column], ids: Ids, out: Array | None = None) -> Array:
        """The rewards of single steps, clipped if asked for, into `out` if given."""
        rewards = columns["rewards"].take(ids, out)
        if self._clip is not None:
            with np.errstate(over="ignore"):  # a bound beyond the dtype's own is none
                rewards.clip(*self._clip, out=rewards)
        return rewards

    def fill(
        self,
        columns: Mapping[str, Column],
        ids: Ids,
        left: Ids,
        stride: int | Ids,
        reward: Array,
        discount: Array,
        non_terminal: Array,
    ) -> Ids:
        """Fill `reward`, `discount` and `non_terminal`, (B,) each.

        `left` (B,) are the most steps that each return may have, by the end of its episode, and
        `stride`, a number or (B,), is from one step's id to the next one's. Returns m, (B,).
        """
        n = self._n
        window = np.minimum(self._ahead, (left - 1)[:, None])
        if isinstance(stride, np.ndarray):
            window *= stride[:, None]
        elif stride > 1:
            window *= stride
        window += ids[:, None]
        flags = columns["non_terminals"].take(window)
        non_terminal.fill(True)
        if np.count_nonzero(flags) < flags.size:
            # The first step with a False flag ends the return: it is set last.
            ended, step = (flags == 0).nonzero()
            left = left.copy()
            left[ended[::-1]] = step[::-1] + 1
            non_terminal[ended] = False
        last = np.arange(-1, ids.size * n - 1, n)
        last += left
        with np.errstate(over="ignore", invalid="ignore"):  # of rewards that are not finite
            terms = self.rewards(columns, window) * self._powers[:n]
            reward[:] = np.add.accumulate(terms, axis=1).take(last)
        np.multiply(self._powers.take(left), non_terminal, out=discount)
        return left
