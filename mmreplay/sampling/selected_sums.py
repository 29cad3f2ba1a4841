"""Sums over the runs of a selection, as `EpisodeSums` are over all episodes.

Invariant: the sums are those of the present index; the count of a run depends on the steps of its
episode that can be sampled, and on which of them are selected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from mmreplay.episode_index import Index
from mmreplay.ids import LANE_SHIFT, Ids
from mmreplay.sampling.episode_sums import EpisodeSums
from mmreplay.sampling.selection import Selection

Counted = tuple[Ids, Ids]
"""Of each episode the number of the first window or step that counts, and the count: (n,) each."""


class Sums(Protocol):
    """Parts of episodes by rank."""

    def follow(self, index: Index) -> int:
        """Follow an index; returns the count of all episodes."""

    def at(self, ranks: Ids) -> tuple[Ids, Ids, Ids, Ids]:
        """See `EpisodeSums.at`."""

    def longest(self) -> int:
        """Steps of the longest episode, or run, that counts."""


def sums_over(
    selection: Selection | None,
    count: Callable[[Ids], Ids],
    count_selected: Callable[[Ids, Ids, Ids], Counted],
    *,
    whole: bool = False,
) -> Sums:
    """The sums over all episodes, or over their selected parts."""
    if selection is None:
        return EpisodeSums(count, whole=whole)
    return SelectedSums(selection, count_selected, whole=whole)


class SelectedSums:
    """Sums over the runs of a selection.

    `count(steps, skipped, kept)` counts in episodes of `steps` (n,) steps: the first `skipped` (n,)
    are not selected, the next `kept` (n,) are. `whole` leaves out episodes that are not selected
    whole, or whose oldest steps were evicted.
    """

    def __init__(
        self,
        selection: Selection,
        count: Callable[[Ids, Ids, Ids], Counted],
        *,
        whole: bool = False,
    ) -> None:
        self._selection, self._count, self._whole = selection, count, whole
        self._index: Index | None = None
        self._version = -1
        self._bounds = np.zeros(1, np.int64)
        self._numbers = self._firsts = self._steps = self._strides = np.empty(0, np.int64)
        self._longest = 0

    def follow(self, index: Index) -> int:
        """Count all runs again if the index has changed; returns the count."""
        if index is self._index and index.version == self._version:
            return int(self._bounds[-1])
        self._index = None  # an interrupt leaves all to the next call
        now = self._selection.now(index)
        firsts = now.firsts()
        span = index.span(firsts)
        steps = span.oldest + span.left
        numbers, counts = self._count(steps, span.oldest, now.steps)
        if self._whole:
            counts = counts * ((span.oldest == span.back) & (now.steps == steps))
        environments = np.array(self._selection.environments, np.int64)
        self._strides = environments[firsts >> LANE_SHIFT]
        self._firsts = firsts - span.oldest * self._strides
        self._steps, self._numbers = steps, numbers
        self._bounds = np.append(0, counts.cumsum())
        self._longest = int(now.steps.max(initial=0))
        self._index, self._version = index, index.version
        return int(self._bounds[-1])

    def at(self, ranks: Ids) -> tuple[Ids, Ids, Ids, Ids]:
        """See `EpisodeSums.at`; the rank within an episode is counted over all of it."""
        runs = self._bounds.searchsorted(ranks, "right") - 1
        within = ranks - self._bounds[runs] + self._numbers[runs]
        return self._firsts[runs], self._steps[runs], within, self._strides[runs]

    def longest(self) -> int:
        """Steps of the longest run."""
        return self._longest
