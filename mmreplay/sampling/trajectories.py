"""Whole episodes, drawn uniformly.

Invariant: all episodes with a step whose steps can all be sampled are equally likely.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index import Index
from mmreplay.errors import EmptyBufferError
from mmreplay.ids import Ids
from mmreplay.sampling.selected_sums import Counted, sums_over
from mmreplay.sampling.selection import Selection
from mmreplay.sampling.transitions import distinct_ranks


class TrajectorySampler:
    """Draws whole episodes; in a selection, those whose steps are all selected."""

    def __init__(self, selection: Selection | None = None) -> None:
        self._sums = sums_over(selection, _one_each, _one_each_selected, whole=True)

    def draw(self, index: Index, draws: npt.NDArray[np.float64]) -> Ids:
        """The ids of the first steps of an episode for each draw in [0, 1): int64 (B,).

        Raises EmptyBufferError if there is no whole episode.
        """
        return self._sums.at((draws * self._total(index)).astype(np.int64))[0]

    def draw_distinct(self, index: Index, size: int, seed: int) -> Ids:
        """The ids of the first steps of distinct episodes: int64 (size,).

        Raises EmptyBufferError if there is no whole episode, SchemaError if there are fewer than
        `size`.
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


def _one_each(steps: Ids) -> Ids:
    return np.asarray(steps > 0, np.int64)


def _one_each_selected(steps: Ids, skipped: Ids, kept: Ids) -> Counted:  # noqa: ARG001 (of whole ones)
    return np.zeros_like(steps), _one_each(steps)
