"""Whole episodes, drawn uniformly, or by their length with a window in them.

Invariant: only episodes whose steps can all be sampled are drawn; in a selection, only those whose
steps are all selected.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index import Index
from mmreplay.errors import EmptyBufferError
from mmreplay.ids import Ids
from mmreplay.sampling.selected_sums import Counted, Sums, sums_over
from mmreplay.sampling.selection import Selection
from mmreplay.sampling.uniform import distinct_ranks
from mmreplay.sampling.windows import Windows, too_short


class TrajectorySampler:
    """Draws whole episodes with a step or more, all equally likely.

    Raises EmptyBufferError if there is no such episode.
    """

    def __init__(self, selection: Selection | None = None) -> None:
        self._sums = _whole_episodes(selection, lambda steps: np.asarray(steps > 0, np.int64))

    def draw(self, index: Index, draws: npt.NDArray[np.float64]) -> Ids:
        """The ids of the first steps of an episode for each draw in [0, 1): int64 (B,)."""
        return self._sums.at((draws * self._total(index)).astype(np.int64))[0]

    def draw_distinct(self, index: Index, size: int, seed: int) -> Ids:
        """The ids of the first steps of distinct episodes: int64 (size,).

        Raises SchemaError if there are fewer than `size`.
        """
        ranks = distinct_ranks(self._total(index), size, seed, "whole episodes")
        return self._sums.at(ranks)[0]

    def _total(self, index: Index) -> int:
        total = self._sums.follow(index)
        if not total:
            raise EmptyBufferError(
                "there is no whole episode to sample: each is without steps, or its oldest steps "
                "were evicted"
            )
        return total


class PortionSampler:
    """Draws a whole episode by its length, and a window in it."""

    def __init__(self, windows: Windows, selection: Selection | None = None) -> None:
        self.windows = windows
        self._sums = _whole_episodes(
            selection, lambda steps: np.where(steps >= windows.length, steps, 0)
        )

    def draw(self, index: Index, draws: npt.NDArray[np.float64]) -> Ids:
        """The first steps of windows, from (2, B) draws of episodes and windows: int64 (B,).

        Raises EmptyBufferError if no whole episode is long enough.
        """
        total = self._sums.follow(index)
        if not total:
            raise EmptyBufferError(too_short(self._sums.longest(), self.windows, "whole "))
        firsts, steps, _, strides = self._sums.at((draws[0] * total).astype(np.int64))
        room = steps - self.windows.length + 1
        out: Ids = firsts + (draws[1] * room).astype(np.int64) * strides
        return out


def _whole_episodes(selection: Selection | None, weight: Callable[[Ids], Ids]) -> Sums:
    """Sums over whole episodes of (n,) steps, whose weights are (n,)."""

    def weigh(steps: Ids, skipped: Ids, kept: Ids) -> Counted:  # noqa: ARG001 (of whole ones)
        return np.zeros_like(steps), weight(steps)

    return sums_over(selection, weight, weigh, whole=True)
