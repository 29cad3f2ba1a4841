"""Runs: experiences that follow one another.

Invariant: a run never joins experiences that do not follow one another.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmreplay.compat.nnabla_rl.recorder import TRAJECTORY_BEGINS
from mmreplay.episode_index import Index, LaneEpisodes
from mmreplay.errors import SchemaError
from mmreplay.ids import Ids
from mmreplay.reading.store import Store
from mmreplay.schema import as_array


class Runs:
    """The runs of `length` experiences that follow one another, without the `offset` oldest.

    A run crosses the end of an episode only if a terminal state ended it (non_terminal = 0), or if
    its trajectory continues. The caller holds the lock of the index. A rank counts the experiences
    before an experience.
    """

    def __init__(self, store: Store, index: Index, length: int, offset: int = 0) -> None:
        self._index, self._length = index, length
        self._first, self._cuts = index.window(0)[1], np.empty(0, np.int64)
        if length > 1:
            firsts, steps, _ = episodes_of(index)
            begins = (firsts + steps)[firsts + steps < index.window(0)[2]]  # of the next episodes
            cut = store.live.columns["non_terminals"].take(begins - 1) != 0
            if TRAJECTORY_BEGINS in store.schema.extras:
                cut &= store.live.columns[f"extras/{TRAJECTORY_BEGINS}"].take(begins)
            self._cuts = (begins - self._first)[cut]
        inner = self._cuts[self._cuts > offset]
        bounds = np.concatenate(([offset], inner, [index.n_transitions]))
        self._begins = bounds[:-1]
        self._stops = np.maximum(np.diff(bounds) - length + 1, 0).cumsum()
        self.count = int(self._stops[-1])

    def numbered(self, numbers: Ids) -> Ids:
        """The ids of these runs, 0 <= number < count, one after the other: (B * length,)."""
        run = self._stops.searchsorted(numbers, "right")
        return self.ids(self._begins[run] + numbers - np.concatenate(([0], self._stops))[run])

    def begin(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Whether a run begins at each of these: bool (B,)."""
        ranks = ids - self._first
        fits = ranks + self._length <= self._index.n_transitions
        return fits & ~self.crosses(ranks)

    def crosses(self, ranks: Ids) -> npt.NDArray[np.bool_]:
        """Whether a run from each of these would cross a cut: bool (B,)."""
        inside = self._cuts.searchsorted(ranks, "right")
        last = self._cuts.searchsorted(ranks + (self._length - 1), "right")
        return np.asarray(inside != last, np.bool_)

    def ids(self, ranks: Ids) -> Ids:
        """The ids of these runs, one after the other: (B * length,)."""
        return self._index.at((ranks[:, None] + np.arange(self._length)).ravel())

    def ids_from(self, ids: Ids) -> Ids:
        """The ids of the runs that begin at these."""
        return self.ids(ids - self._first)


def episodes_of(index: Index) -> tuple[Ids, Ids, LaneEpisodes]:
    """The first rows (here also ids) and steps of the ended episodes, (E,) each; all episodes."""
    found = index.episodes(0)
    return *index.ended(0, np.arange(found.start, found.stop)), found


def checked_indices(indices: npt.ArrayLike, count: int, num_steps: int = 1) -> Ids:
    """Indices of runs among `count` experiences; a negative one counts from the newest."""
    wanted = as_array(indices, "indices")
    if wanted.ndim != 1 or not wanted.size or wanted.dtype.kind not in "iu":
        raise SchemaError(f"indices: expected integers, one or more; found {indices!r:.100}")
    numbers = np.where(wanted < 0, wanted + count, wanted).astype(np.int64)
    wrong = (numbers < 0) | (numbers + num_steps > count)
    if wrong.any():
        raise IndexError(
            f"index {wanted[wrong][0]}, num_steps {num_steps}: there are {count:,} experiences"
        )
    return numbers
