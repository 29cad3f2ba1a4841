"""Transitions with frame numbers instead of frames, which the page already has.

Invariant: transitions come from the gatherer and index of `Store.transitions`; only the columns of
frames are replaced, by one whose rows are their own ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mmreplay.batches.batch import Batch
from mmreplay.batches.settings import Settings
from mmreplay.batches.transitions import TransitionGatherer
from mmreplay.episode_index import Index, Steps
from mmreplay.ids import LANE_SHIFT, Array, Ids
from mmreplay.reading.store import Store
from mmreplay.schema import Schema

_ZEROS, _BEFORE = -1, -2


def stacks_of(
    store: Store, first: int, start: int, stop: int, settings: Settings
) -> dict[str, Array]:
    """The transitions [start, stop) of the episode that `find_episode` finds for id `first`.

    ``seen`` and ``following`` (B, k) int32 are the frames of the observations and next
    observations, numbered from the first retained one of the episode; -1 is a frame of zeros, -2
    one before the retained steps. ``reward``, ``discount``, ``non_terminal`` (B,) as in a `Batch`.
    Raises InvalidIdError if one of them is not a transition, SchemaError for too long a stack.
    """
    live = store.live
    reader = live.readers[first >> LANE_SHIFT]
    ids = first + np.arange(start, stop, dtype=np.int64) * reader.n
    gatherer = _Places(store.schema, live.gatherer(settings))
    batch = live.gather(live.valid_ids(ids), gatherer)
    places = [batch.observation, batch.next_observation]
    if isinstance(places[0], dict):  # all keys have the same frames
        places = [next(iter(one.values())) for one in places]  # type: ignore[union-attr]
    seen, following = (_frames(first, reader.n, gatherer.last, np.asarray(one)) for one in places)
    # The page has no numbers of 64 bits.
    return {
        "seen": seen.astype(np.int32),
        "following": following.astype(np.int32),
        "reward": batch.reward,
        "discount": batch.discount,
        "non_terminal": batch.non_terminal,
    }


def _frames(first: int, stride: int, last: int, places: Array) -> Ids:
    """The frame numbers of the rows of a `_PlaceColumn`."""
    is_final = (places - 1) >> LANE_SHIFT != first >> LANE_SHIFT
    frames = np.where(is_final, (last - first) // stride + 1, (places - 1 - first) // stride)
    return np.where(places == 0, _ZEROS, np.where(frames < 0, _BEFORE, frames))


class _PlaceColumn:
    """A column of frames whose rows are their own ids, plus 1: zeros are padding."""

    row_shape: tuple[int, ...] = ()
    dtype = np.dtype(np.int64)

    def take(self, ids: Ids, out: Array | None = None) -> Array:
        """As any column."""
        if out is None:
            return ids + 1
        np.add(ids, 1, out=out)
        return out


class _Places:
    """A gatherer of transitions of one episode with ids in place of frames.

    Attributes:
        last: id of the episode's last step, if a transition has its final observation.
    """

    def __init__(self, schema: Schema, gatherer: TransitionGatherer) -> None:
        self._paths, self._gatherer = schema.frame_paths.values(), gatherer
        self.last = 0

    def locate(self, index: Index, ids: Ids, /) -> Steps:
        """As `TransitionGatherer`."""
        return self._gatherer.locate(index, ids)

    def fetch(self, columns: Mapping[str, Any], places: Steps, out: Batch | None, /) -> Batch:
        """As `TransitionGatherer`."""
        replaced = dict.fromkeys(self._paths, _PlaceColumn())
        for one in places.over[:1].tolist():  # all of them have the same last step
            self.last = int(places.at(places.until[:, None] - 1)[one, 0])
        return self._gatherer.fetch({**columns, **replaced}, places, out)
