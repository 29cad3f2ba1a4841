"""Twelve rows in memory, to be gathered by hand: three episodes, and what each row holds."""

import numpy as np

from mmreplay.batches.settings import Settings
from mmreplay.batches.transitions import TransitionGatherer
from mmreplay.episode_index import RowIndex
from mmreplay.ids import LANE_SHIFT

# Three episodes in twelve rows: one of 3 steps that terminated, one of 4 that was truncated, with a
# life lost at its second step, and one of 2 that is still running.
STARTS = [0, 4, 9]
FRAMES = [10, 11, 12, 13, 20, 21, 22, 23, 24, 30, 31, 32]
REWARDS = [1, 2, 3, 0, 4, 5, 6, 7, 0, 8, 9, 0]
FLAGS = [1, 1, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1]
ACTIONS = [101, 102, 103, 0, 104, 105, 106, 107, 0, 108, 109, 0]
IDS = [0, 1, 2, 4, 5, 6, 7, 9, 10]
HEAD = 12


class Column:
    """Rows of one lane in memory; those of lane n are the same plus 100 n."""

    def __init__(self, rows, dtype):
        self.rows = np.asarray(rows, dtype)
        self.row_shape, self.dtype = self.rows.shape[1:], self.rows.dtype

    def take(self, ids, out=None):
        rows, lanes = ids & ((1 << LANE_SHIFT) - 1), ids >> LANE_SHIFT
        found = self.rows[rows]
        if lanes.any():
            shift = (100 * lanes).astype(self.dtype)
            found = found + shift.reshape(*ids.shape, *(1,) * len(self.row_shape))
        if out is None:
            return found
        out[...] = found
        return out


class Rows:
    """A store of columns in memory, and what a `TransitionGatherer` asks of its schema."""

    def __init__(self, frames, rewards="float32", extras=None):
        self.is_dict = isinstance(frames, dict)
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


def index_of(n_lanes=1):
    index = RowIndex(n_lanes)
    for lane in range(n_lanes):
        index.load(lane, 0, HEAD, np.array(STARTS), None)
    return index


SCALARS = Column(FRAMES, "uint8")


def gathered(ids, frames=SCALARS, rows=None, out=None, index=None, **settings):
    rows = rows or Rows(frames)
    return fetched(rows, TransitionGatherer(rows, Settings(**settings)), ids, out, index)


def fetched(rows, gatherer, ids, out=None, index=None):
    places = gatherer.locate(index or index_of(), np.array(ids, np.int64))
    return gatherer.fetch(rows.columns, places, out)
