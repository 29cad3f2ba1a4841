"""`Selection`: some of a store's transitions, and those of them that can still be sampled.

Invariant: a selection never grows; each of its transitions has one rank until it is evicted. Its
memory depends on the number of selected runs, not of steps.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index import Index
from mmreplay.errors import SchemaError
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Ids


class Keys:
    """Ids ordered by lane, environment and time: of one environment they are the ids."""

    def __init__(self, environments: Sequence[int]) -> None:
        self.environments = np.array(environments, np.int64)
        self._rows = (1 << LANE_SHIFT) // self.environments  # keys of an environment
        self._are_ids = bool((self.environments == 1).all())

    def of(self, ids: Ids) -> Ids:
        """The keys of ids, (n,)."""
        if self._are_ids:
            return ids
        lanes = ids >> LANE_SHIFT
        rows, envs = np.divmod(ids & ROW_MASK, self.environments[lanes])
        out: Ids = (lanes << LANE_SHIFT) + envs * self._rows[lanes] + rows
        return out

    def ids(self, keys: Ids) -> Ids:
        """The ids of keys, (n,)."""
        if self._are_ids:
            return keys
        lanes = keys >> LANE_SHIFT
        envs, rows = np.divmod(keys & ROW_MASK, self._rows[lanes])
        out: Ids = (lanes << LANE_SHIFT) + rows * self.environments[lanes] + envs
        return out

    def rows(self, keys: Ids) -> Ids:
        """The rows of keys in their lanes, (n,)."""
        out: Ids = (keys & ROW_MASK) % self._rows[keys >> LANE_SHIFT]
        return out


class Selection:
    """Runs of consecutive steps of episodes, which do not overlap; see `Transitions`.

    `keys` (n,) are of each run's first step, ascending, `steps` (n,) the number of its steps, and
    `bounds` (n + 1,) the steps before each. `environments` and `uuids` are of each lane, the latter
    to detect another store at its path.
    """

    def __init__(
        self, keys: Ids, steps: Ids, environments: Sequence[int], uuids: Sequence[str]
    ) -> None:
        self.keys, self.steps = keys, steps
        self.environments, self.uuids = tuple(environments), tuple(uuids)
        self.bounds = np.append(0, steps.cumsum())
        self._of_lanes, self._lanes = Keys(environments), range(len(environments))
        # What is left of it, with the index and its oldest rows: replaced together.
        self._now: tuple[Index, Ids, Selection] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Without the index."""
        return type(self), (self.keys, self.steps, self.environments, self.uuids)

    @property
    def digest(self) -> int:
        """A number that identifies this selection."""
        return zlib.crc32(self.steps.tobytes(), zlib.crc32(self.keys.tobytes()))

    @property
    def n_transitions(self) -> int:
        """How many there are."""
        return int(self.bounds[-1])

    def at(self, ranks: Ids) -> Ids:
        """The ids of the transitions with these ranks, 0 <= rank < n_transitions."""
        runs = self.bounds.searchsorted(ranks, "right") - 1
        return self._of_lanes.ids(self.keys[runs] + (ranks - self.bounds[runs]))

    def ids(self) -> Ids:
        """All of them, ascending: int64 (n_transitions,)."""
        keys = np.repeat(self.keys - self.bounds[:-1], self.steps)
        keys += np.arange(keys.size)
        return np.sort(self._of_lanes.ids(keys))

    def firsts(self) -> Ids:
        """The ids of the oldest steps of the runs."""
        return self._of_lanes.ids(self.keys)

    def stretches(self) -> tuple[Ids, Ids]:
        """Rows of one environment with a selected step each: the first id, and rows, of each."""
        begins = np.diff(self.keys, prepend=-1) != np.append(0, self.steps[:-1])
        first = begins.nonzero()[0]
        return self._of_lanes.ids(self.keys[first]), np.add.reduceat(self.steps, first)

    def invalid(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which ids are not among them: bool (B,)."""
        return np.asarray(self.runs_of(ids) < 0)

    def runs_of(self, ids: Ids, steps: Ids | int = 1) -> Ids:
        """The runs that hold the `steps` steps from each of `ids` (n,) on; -1 for none."""
        # Nothing is selected of lanes that were added since.
        known = (ids >= 0) & (ids >> LANE_SHIFT < len(self.environments))
        wanted = self._of_lanes.of(np.where(known, ids, 0))
        runs = self.keys.searchsorted(wanted, "right") - 1
        ends = np.append(self.keys + self.steps, 0)[runs]  # 0 of -1: before the first run
        return np.where(known & (runs >= 0) & (wanted + steps <= ends), runs, -1)

    def taken(self, chosen: npt.NDArray[np.bool_]) -> Selection:
        """Some of the runs."""
        return Selection(self.keys[chosen], self.steps[chosen], self.environments, self.uuids)

    def now(self, index: Index) -> Selection:
        """What can be sampled now; SchemaError if its newest rows were lost."""
        known = self._now
        oldest = np.array([index.window(lane)[1] for lane in self._lanes], np.int64)
        if known is None or index is not known[0]:
            lasts = self._of_lanes.ids(self.keys + self.steps - 1)
            stops = np.array([index.extent(lane)[1] for lane in self._lanes], np.int64)
            beyond = lasts & ROW_MASK >= stops[lasts >> LANE_SHIFT]
            if beyond.any():
                raise SchemaError(
                    f"expected the selected transitions, but {int(lasts[beyond][0])} does not "
                    f"exist any more: the newest rows were lost; select again"
                )
            known = None
        if known is None or not np.array_equal(oldest, known[1]):
            rows = oldest // self._of_lanes.environments
            gone = rows[self.keys >> LANE_SHIFT] - self._of_lanes.rows(self.keys)
            gone = np.clip(gone, 0, self.steps)
            left = (gone < self.steps).nonzero()[0]
            keys, steps = self.keys[left] + gone[left], self.steps[left] - gone[left]
            now = Selection(keys, steps, self.environments, self.uuids)
            known = self._now = index, oldest, now
        return known[2]
