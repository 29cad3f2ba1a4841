"""Reads experiences by index or at random: single ones, or runs of several.

Invariant: a run never joins experiences that do not follow one another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.batches.batch import Batch
from mmreplay.compat.nnabla_rl.experiences import Experience, experiences_of
from mmreplay.compat.nnabla_rl.recorder import TRAJECTORY_BEGINS, Recorder
from mmreplay.episode_index import Index, LaneEpisodes
from mmreplay.errors import SchemaError
from mmreplay.ids import Ids
from mmreplay.reading.store import Store
from mmreplay.schema import as_array

Draw = Callable[[Index], Ids]


class Runs:
    """The runs of `length` experiences that follow one another, without the `offset` oldest.

    A run crosses the end of an episode only if a terminal state ended it (non_terminal = 0), or if
    its trajectory continues. The caller holds the lock of the index.
    """

    def __init__(self, store: Store, index: Index, length: int, offset: int = 0) -> None:
        self._length, self._total = length, index.n_transitions
        self._first, self._cuts = index.window(0)[1], np.empty(0, np.int64)
        if length > 1:
            firsts, steps, _ = episodes_of(index)
            begins = (firsts + steps)[firsts + steps < index.window(0)[2]]  # of the next episodes
            cut = store.live.columns["non_terminals"].take(begins - 1) != 0
            if TRAJECTORY_BEGINS in store.schema.extras:
                cut &= store.live.columns[f"extras/{TRAJECTORY_BEGINS}"].take(begins)
            self._cuts = self.ranks(begins)[cut]
        inner = self._cuts[self._cuts > offset]
        bounds = np.concatenate(([offset], inner, [index.n_transitions]))
        self._begins = bounds[:-1]
        self._stops = np.maximum(np.diff(bounds) - length + 1, 0).cumsum()
        self.count = int(self._stops[-1])

    def at(self, numbers: Ids) -> Ids:
        """The ranks at which these runs, 0 <= number < count, begin: (B,)."""
        run = self._stops.searchsorted(numbers, "right")
        before = np.concatenate(([0], self._stops))[run]
        return np.asarray(self._begins[run] + numbers - before, np.int64)

    def ranks(self, rows: Ids) -> Ids:
        """How many experiences precede each of these rows: int64 (B,)."""
        return rows - self._first

    def begin(self, rows: Ids) -> npt.NDArray[np.bool_]:
        """Whether a run begins at these rows: bool (B,)."""
        ranks = self.ranks(rows)
        fits = ranks + self._length <= self._total
        return np.asarray(fits & ~np.isin(ranks, self.cut(ranks)), np.bool_)

    def cut(self, ranks: Ids) -> Ids:
        """The ranks from which a run would cross a cut."""
        inside = self._cuts.searchsorted(ranks, "right")
        wrong = inside != self._cuts.searchsorted(ranks + (self._length - 1), "right")
        return np.asarray(ranks[wrong], np.int64)

    def ids(self, index: Index, ranks: Ids) -> Ids:
        """The ids of these runs, one after the other: (B * length,)."""
        return index.at((ranks[:, None] + np.arange(self._length)).ravel())


def episodes_of(index: Index) -> tuple[Ids, Ids, LaneEpisodes]:
    """The first rows (here also ids) and steps of the ended episodes, (E,) each; all episodes."""
    found = index.episodes(0)
    return *index.ended(0, np.arange(found.start, found.stop)), found


class Reader:
    """Reads experiences of a recorder's buffer; the `offset` oldest of an index do not count."""

    def __init__(self, recorder: Recorder, offset: Callable[[Index], int]) -> None:
        self._recorder, self._offset = recorder, offset

    def __len__(self) -> int:
        if not self._recorder.is_open:
            return 0
        look = self._recorder.core.store.live.look
        return look(lambda index: index.n_transitions - self._offset(index))

    def runs(self, index: Index, num_steps: int) -> Runs:
        """The runs of `num_steps` experiences."""
        return Runs(self._recorder.core.store, index, num_steps, self._offset(index))

    def random(self, num_samples: int, num_steps: int, *, replace: bool) -> Draw:
        """A uniform draw of runs; SchemaError, also when it is drawn, if there are too few."""
        checked_count("num_samples", num_samples)
        checked_count("num_steps", num_steps)
        if not len(self):
            raise SchemaError(f"num_samples: found {num_samples}, but the buffer is empty")
        seed = int(self._recorder.core.generator.integers(1 << 62))

        def draw(index: Index) -> Ids:
            runs = self.runs(index, num_steps)
            if runs.count < (1 if replace else num_samples):
                raise SchemaError(
                    f"num_samples: expected at most {runs.count:,}, the number of runs of "
                    f"num_steps={num_steps}; found {num_samples:,}"
                )
            rng = np.random.default_rng(seed)  # the same if it is drawn again
            numbers = rng.choice(runs.count, num_samples, replace=replace)
            return runs.ids(index, runs.at(numbers))

        return draw

    def indexed(self, indices: npt.ArrayLike, num_steps: int) -> Draw:
        """The runs that begin at these indices; IndexError and SchemaError when they are read."""
        checked_count("num_steps", num_steps)
        if not len(self):
            checked_indices(indices, 0)

        def draw(index: Index) -> Ids:
            offset = self._offset(index)
            numbers = checked_indices(indices, index.n_transitions - offset, num_steps)
            runs = self.runs(index, num_steps)
            if (cut := runs.cut(numbers + offset)).size:
                raise SchemaError(
                    f"index {cut[0] - offset}, num_steps {num_steps}: expected steps that follow "
                    f"one another, found the end of an episode that did not end in a terminal state"
                )
            return runs.ids(index, numbers + offset)

        return draw

    def beginning(self, ids: Ids, num_steps: int) -> Draw:
        """The runs that begin at these ids."""

        def draw(index: Index) -> Ids:
            runs = self.runs(index, num_steps)
            return runs.ids(index, runs.ranks(ids))

        return draw

    def read(self, draw: Draw) -> list[Experience]:
        """The drawn experiences, as copies."""
        core = self._recorder.core
        gatherer = core.store.live.gatherer(core.settings)
        return self.experiences(core.store.live.gather(draw, gatherer))

    def at(self, ids: Ids) -> list[Experience]:
        """The experiences with these ids; InvalidIdError if one was evicted."""
        return self.experiences(self._recorder.core.transitions(ids))

    def experiences(self, batch: Batch) -> list[Experience]:
        """The experiences of a batch."""
        states = self._recorder.states.states
        return experiences_of(batch, states(batch.observation), states(batch.next_observation))


def checked_count(name: str, value: Any) -> None:
    """Raise SchemaError unless it is 1 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise SchemaError(f"{name}: expected 1 or more, found {value!r}")


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
