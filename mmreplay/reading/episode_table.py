"""The whole episodes of one lane as a table: where they begin and end, and their returns.

Invariant: no more is read than the index, the flags of last steps and the rewards, these in pieces;
holes in files are skipped.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index import EPISODE_DTYPE, Index
from mmreplay.ids import ROW_MASK, Array, Ids
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.storage import chunk_files
from mmreplay.storage.raw_column import RawColumn
from mmreplay.storage.shard_column import ShardColumn


def episode_table(
    reader: LaneReader, index: Index, flags: RawColumn | ShardColumn, *, returns: bool
) -> tuple[npt.NDArray[np.void], int]:
    """The whole retained episodes of a lane, and how many of its rewards are NaN or infinite.

    See `EPISODE_DTYPE`; `flags` are the store's `non_terminals`. Without `returns`, for which all
    rewards are read, returns and that number are 0.
    """
    found = index.episodes(reader.number)
    numbers = np.delete(np.arange(found.start, found.stop), found.cut - found.start)
    over = index.ended(reader.number, numbers)
    others = (found.whole() & (found.steps > 0)).nonzero()[0]
    firsts = np.concatenate((over[0], found.firsts(others)))
    steps = np.concatenate((over[1], found.steps[others]))
    runs = np.zeros(firsts.size, np.bool_)
    runs[numbers.size :] = reader.is_live  # else they ended there
    order = firsts.argsort(kind="stable")
    firsts, steps, runs = firsts[order], steps[order], runs[order]
    out, n_odd = np.zeros(firsts.size, EPISODE_DTYPE), 0
    out["id"], out["length"] = firsts, steps
    if returns:
        out["return"], n_odd = _returns(reader, index, firsts & ROW_MASK, steps)
    is_terminal = flags.take(firsts + (steps - 1) * reader.n) == 0
    out["terminated"], out["truncated"] = is_terminal & ~runs, ~is_terminal & ~runs
    return out, n_odd


def _returns(
    reader: LaneReader, index: Index, firsts: Ids, steps: Ids
) -> tuple[npt.NDArray[np.float64], int]:
    """The returns of episodes by their first entries, and how many rewards are not finite."""
    n = reader.n
    _, start, stop = (bound // n for bound in index.window(reader.number))
    # By environment, then by time: so their steps follow one another in a piece of all of them.
    begins, envs = np.divmod(firsts, n)
    order = np.lexsort((begins, envs))
    begins, envs = begins[order], envs[order]
    ends = begins + steps[order]
    out, n_odd = np.zeros(firsts.size), 0
    pieces = chunk_files.filled_rows(reader.rows, reader.rows.specs["rewards"], start, stop)
    for row, values in pieces:
        size = len(values)
        n_odd += values.size - int(np.count_nonzero(np.isfinite(values)))
        here = np.flatnonzero((begins < row + size) & (ends > row))
        shift = envs[here] * size - row
        low = np.maximum(begins[here], row) + shift
        high = np.minimum(ends[here], row + size) + shift
        out[order[here]] += _sums(values.reshape(size, n).T.ravel(), low, high)
    return out, n_odd


def _sums(values: Array, begins: Ids, ends: Ids) -> npt.NDArray[np.float64]:
    """Of values [begin, end), one or more, for (m,) of these, which ascend and do not overlap."""
    bounds = np.empty(2 * begins.size, np.int64)
    bounds[::2], bounds[1::2] = begins, ends
    with np.errstate(over="ignore", invalid="ignore"):  # of rewards that are not finite
        rewards = np.empty(values.size + 1)  # an end may be that of the values
        rewards[:-1], rewards[-1] = values, 0.0
        return np.asarray(np.add.reduceat(rewards, bounds)[::2])
