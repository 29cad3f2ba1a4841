"""The episodes of an index as they were when its lanes ended earlier.

Invariant: an episode counts those of its steps that stood before the ends of then; what was evicted
since is missing.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from mmreplay.episode_index.episodes import LaneEpisodes
from mmreplay.episode_index.index import Index
from mmreplay.episode_index.steps import Span
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Ids


class EarlierIndex:
    """That part of `Index` which samplers of windows ask for.

    `stops` are where the extents of its lanes ended; lanes that came since are empty.
    """

    def __init__(self, index: Index, stops: Ids) -> None:
        self._index = index
        self._stops = np.zeros(index.n_lanes, np.int64)
        self._stops[: stops.size] = stops
        self._strides = np.array(
            [index.episodes(lane).stride for lane in range(index.n_lanes)], np.int64
        )
        self.version, self.n_lanes = index.version, index.n_lanes
        self.window, self.extent = index.window, index.extent

    def episodes(self, lane: int) -> LaneEpisodes:
        """See `Index`."""
        now = self._index.episodes(lane)
        steps = now.steps.copy()
        some = steps.nonzero()[0]
        steps[some] = self._left(now.firsts(some), steps[some])
        return dataclasses.replace(now, steps=steps)

    def ended(self, lane: int, numbers: Ids) -> tuple[Ids, Ids]:
        """See `Index`, also of those that ran then."""
        firsts, steps = self._index.ended(lane, numbers)
        return firsts, self._left(firsts, steps)

    def span(self, ids: Ids) -> Span:
        """See `Index`."""
        now = self._index.span(ids)
        return dataclasses.replace(now, left=self._left(ids, now.left))

    def _left(self, ids: Ids, steps: Ids) -> Ids:
        """Of so many steps of episodes from `ids` on, (n,), how many there were."""
        lanes = ids >> LANE_SHIFT
        there = -(((ids & ROW_MASK) - self._stops[lanes]) // self._strides[lanes])
        out: Ids = np.clip(there, 0, steps)
        return out
