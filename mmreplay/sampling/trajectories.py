"""Whole episodes, drawn uniformly.

Invariant: each episode of a step or more, all of whose steps can be sampled, is drawn with the
same probability, whatever its length.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index import Index
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.ids import Ids
from mmreplay.sampling.episode_sums import EpisodeSums
from mmreplay.sampling.selected_sums import Counted, SelectedSums, Sums
from mmreplay.sampling.selection import Selection
from mmreplay.sampling.without_replacement import distinct_ranks


class TrajectorySampler:
    """Draws whole episodes; of a selection those all of whose steps are selected."""

    def __init__(self, selection: Selection | None = None) -> None:
        self._sums: Sums
        if selection is None:
            self._sums = EpisodeSums(_one_each, whole=True)
        else:
            self._sums = SelectedSums(selection, _one_each_selected, whole=True)

    def draw(self, index: Index, draws: npt.NDArray[np.float64]) -> Ids:
        """The first rows of as many episodes as there are draws in [0, 1), as ids: int64 (B,).

        Raises EmptyBufferError if there is no whole episode.
        """
        return self._sums.at((draws * self._total(index)).astype(np.int64))[0]

    def draw_distinct(self, index: Index, size: int, seed: int) -> Ids:
        """The first rows of distinct episodes, as ids: int64 (size,).

        Raises EmptyBufferError if there is no whole episode, SchemaError if there are fewer than
        `size`.
        """
        total = self._total(index)
        if size > total:
            raise SchemaError(
                f"expected at most the {total:,} whole episodes there are, as each is drawn once; "
                f"found {size:,}; ask for fewer, or draw with replacement"
            )
        return self._sums.at(distinct_ranks(total, size, seed))[0]

    def _total(self, index: Index) -> int:
        total = self._sums.follow(index)
        if not total:
            raise EmptyBufferError(
                "there is no whole episode to sample; one that a capacity has cut into, or that "
                "has no step yet, is none"
            )
        return total


def _one_each(steps: Ids) -> Ids:
    return np.asarray(steps > 0, np.int64)


def _one_each_selected(steps: Ids, skipped: Ids, kept: Ids) -> Counted:  # noqa: ARG001 (of whole ones)
    return np.zeros_like(steps), _one_each(steps)
