"""Nine steps in memory, to be gathered by hand: three episodes, and what each step holds."""

import numpy as np

from mmreplay.batches.settings import Settings
from mmreplay.batches.transitions import TransitionGatherer
from mmreplay.episode_index import Index, Sources
from mmreplay.ids import LANE_SHIFT, ROW_MASK

# One of 3 steps that terminated, one of 4 that was truncated, with a life lost at its second step,
# and one of 2 that is still running. So there are twelve observations.
OBSERVATIONS = [10, 11, 12, 13, 20, 21, 22, 23, 24, 30, 31, 32]
BEFORE = np.array([0, 1, 2, 4, 5, 6, 7, 9, 10])  # which observation each step is made after
FINALS, PENDING = [3, 8], 11
STEP = [1, 2, 3, 1, 2, 3, 4, 1, 2]
ENDS = [0, 0, 1, 0, 0, 0, 1, 0, 0]
REWARDS = [1, 2, 3, 4, 5, 6, 7, 8, 9]
FLAGS = [1, 1, 0, 1, 0, 1, 1, 1, 1]
ACTIONS = [101, 102, 103, 104, 105, 106, 107, 108, 109]
IDS = list(range(9))


class Column:
    """Rows of one lane in memory; those of lane n are the same plus 100 n."""

    def __init__(self, rows, dtype):
        self.rows = np.asarray(rows, dtype)
        self.row_shape, self.dtype = self.rows.shape[1:], self.rows.dtype

    def take(self, ids, out=None):
        found = self._found(ids)
        if out is None:
            return found
        out[...] = found
        return out

    def _found(self, ids):
        return self._shifted(self.rows[ids & ROW_MASK], ids >> LANE_SHIFT)

    def _shifted(self, found, lanes):
        return found + (100 * lanes).astype(self.dtype).reshape(
            *lanes.shape, *(1,) * len(self.row_shape)
        )


class Frames(Column):
    """Of twelve observations, those before the steps, the newest one, and the final ones apart."""

    def __init__(self, observations, dtype, n_lanes=1):
        self.observations = np.asarray(observations, dtype)
        super().__init__(self.observations[[*BEFORE, PENDING]], dtype)
        self.n_lanes = n_lanes

    def _found(self, ids):
        parts, rows = ids >> LANE_SHIFT, ids & ROW_MASK
        is_final = parts >= self.n_lanes
        found = self.rows[np.where(is_final, 0, rows)]
        found[is_final] = self.observations[FINALS][rows[is_final]]
        return self._shifted(found, parts - self.n_lanes * is_final)


class Numbers(Column):
    """The same numbers in every lane."""

    def _found(self, ids):
        return self.rows[ids & ROW_MASK]

    def view(self, lane, start, stop):
        return self.rows[start:stop]


class Rows:
    """A store of columns in memory, and what a `TransitionGatherer` asks of its schema."""

    def __init__(self, frames, rewards="float32", extras=None):
        self.is_dict, self.reward_dtype = isinstance(frames, dict), np.dtype(rewards)
        given = frames if isinstance(frames, dict) else {"frame": frames}
        self.frame_paths = {name: f"frames/{name}" for name in given}
        self.extra_paths = {name: f"extras/{name}" for name in extras or {}}
        self.columns = {
            "rewards": Column(REWARDS, rewards),
            "non_terminals": Column(FLAGS, "uint8"),
            "actions": Column(ACTIONS, "int64"),
            **{f"frames/{name}": one for name, one in given.items()},
            **{f"extras/{name}": one for name, one in (extras or {}).items()},
        }


def index_of(n_lanes=1, *, steps=STEP, ends=ENDS, finals=((2, 0), (6, 3)), bases=0):
    """Of live lanes that hold the same; `finals` are pairs of last and first steps."""
    last, first = np.array(finals, np.int64).reshape(-1, 2).T
    resets = Numbers(np.array(steps) == 1, "uint8")
    columns = Numbers(steps, "int64"), Numbers(ends, "uint8"), resets
    index = Index(
        Sources(*columns, Numbers(last, "int64"), Numbers(first, "int64"), None), [1] * n_lanes
    )
    for _ in range(n_lanes):
        index.load("lane", (bases, len(steps)), (0, len(last)), None, live=True)
    return index


SCALARS = Frames(OBSERVATIONS, "uint8")


def gathered(ids, frames=SCALARS, rows=None, out=None, index=None, **settings):
    rows = rows or Rows(frames)
    return fetched(rows, TransitionGatherer(rows, Settings(**settings)), ids, out, index)


def fetched(rows, gatherer, ids, out=None, index=None):
    places = gatherer.locate(index or index_of(), np.array(ids, np.int64))
    return gatherer.fetch(rows.columns, places, out)
