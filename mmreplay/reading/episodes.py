"""The whole episodes of one lane, from its arrays: where they begin and end, and their returns.

Invariant: no more is read than the rewards and the flags, in pieces; holes in files are skipped.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index import EPISODE_DTYPE
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids, distinct
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.reading.lane_ticks import LaneTicks
from mmreplay.reading.vector_reader import VectorReader
from mmreplay.storage import chunk_files
from mmreplay.storage.raw_column import RawColumn
from mmreplay.storage.shard_column import ShardColumn

Flags = npt.NDArray[np.bool_]


def of_rows(
    reader: LaneReader,
    flags: RawColumn | ShardColumn,
    resets: Ids,
    window: tuple[int, int],
    *,
    returns: bool,
) -> tuple[npt.NDArray[np.void], int]:
    """Of the lane of one environment, in a window of rows (first, head): see `EPISODE_DTYPE`.

    `flags` are the non-terminal ones of the store, `resets` the lane's rows with a reset. Without
    `returns`, for which all rewards are read, these are 0. Also how many rewards of the window are
    NaN or infinite; 0 without `returns`.
    """
    first, head = window
    lane = reader.number
    starts = resets[resets >= first]
    stops = np.append(starts[1:], head)
    has_steps = stops - starts > 1
    starts, stops = starts[has_steps], stops[has_steps]
    out, n_odd = np.zeros(starts.size, EPISODE_DTYPE), 0
    if returns:
        out["return"], n_odd = _returns_of_rows(reader, starts, stops, window)
    if not starts.size:
        return out, n_odd
    lasts = stops - 2 + (lane << LANE_SHIFT)
    out["id"] = starts + (lane << LANE_SHIFT)
    out["length"] = stops - starts - 1
    out["terminated"] = flags.take(lasts) == 0
    out["truncated"] = ~out["terminated"]
    if reader.is_live and stops[-1] == head:
        out["truncated"][-1] = False
    return out, n_odd


def _returns_of_rows(
    reader: LaneReader, starts: Ids, stops: Ids, window: tuple[int, int]
) -> tuple[npt.NDArray[np.float64], int]:
    """The sums of the rewards of rows [start, stop - 1): the last row of each is final.

    Also how many are not finite in a window of rows, of whose newest nobody knows the reward yet.
    """
    out, n_odd = np.zeros(starts.size), 0
    spec, (window_first, head) = reader.specs["rewards"], window
    for row, values in chunk_files.filled_rows(reader, spec, window_first, head - 1):
        n_odd += values.size - int(np.count_nonzero(np.isfinite(values)))
        # The episodes that have rows in this piece.
        first = max(int(starts.searchsorted(row, "right")) - 1, 0)
        last = int(starts.searchsorted(row + len(values)))
        if last <= first:
            continue  # of an episode of which older rows were evicted
        begins = np.maximum(starts[first:last], row) - row
        ends = np.minimum(stops[first:last] - 1, row + len(values)) - row
        out[first:last] += _sums(values, begins, np.maximum(ends, begins))
    return out, n_odd


def _sums(values: Array, begins: Ids, ends: Ids) -> npt.NDArray[np.float64]:
    """Of values [begin, end), for (n,) of these, which ascend and do not overlap."""
    bounds = np.empty(2 * begins.size, np.int64)
    bounds[::2], bounds[1::2] = begins, ends
    with np.errstate(over="ignore", invalid="ignore"):  # of rewards that are not finite
        rewards = np.empty(values.size + 1)  # an end may be that of the values
        rewards[:-1], rewards[-1] = values, 0.0
        sums = np.add.reduceat(rewards, bounds)[::2]
    return np.where(ends > begins, sums, 0.0)


def of_ticks(
    reader: VectorReader,
    ticks: LaneTicks,
    flags: RawColumn | ShardColumn,
    window: tuple[int, int],
    *,
    returns: bool,
) -> tuple[npt.NDArray[np.void], int]:
    """Of a vector lane, in ticks [first, head) of `window`, in the order of starts."""
    first, head = window
    lane, width = reader.number << LANE_SHIFT, reader.width
    numbers = _begun(reader, ticks, first, head)
    begins, envs = ticks.start_ticks(numbers), ticks.start_envs(numbers)
    # By environment, then by time: so their steps follow one another, and their ends do.
    order = np.lexsort((begins, envs))
    begins, envs = begins[order], envs[order]
    stops, over = _stops(reader, begins, envs, first, head)
    over |= not reader.is_live
    ended = flags.take((stops - 1) * width + envs + lane) == 0
    out = np.zeros(numbers.size, EPISODE_DTYPE)
    out["id"] = begins * width + envs + lane
    out["length"] = stops - begins
    n_odd = 0
    if returns:
        out["return"], n_odd = _returns_of_ticks(reader, begins, stops, envs, window)
    out["terminated"] = over & ended
    out["truncated"] = over & ~ended
    back = np.empty_like(order)
    back[order] = np.arange(order.size)
    return out[back], n_odd


def _begun(reader: VectorReader, ticks: LaneTicks, first: int, head: int) -> Ids:
    """The numbers of the episodes whose first steps lie in ticks [first, head), ascending."""
    found = []
    base, stop = ticks.starts
    for number, begins in chunk_files.filled_rows(
        reader.starts, reader.starts.specs["tick"], base, stop
    ):
        # Tick 0 may stand in a hole of the file: its episodes are those of its own row.
        found.append(number + np.flatnonzero((begins >= max(first, 1)) & (begins < head)))
    if first == 0 < head:
        found.append(distinct(ticks.episodes(np.arange(reader.width))))
    numbers = np.sort(np.concatenate([np.empty(0, np.int64), *found]))
    numbers = numbers[numbers >= 0]
    envs = ticks.start_envs(numbers)
    cells = ticks.start_ticks(numbers) * reader.width + envs
    known = (envs >= 0) & (envs < reader.width) & (cells >= 0) & (cells < head * reader.width)
    numbers, cells = numbers[known], cells[known]
    # A start that another followed at once has no step.
    out: Ids = numbers[ticks.episodes(cells) == numbers]
    return out


def _stops(
    reader: VectorReader, begins: Ids, envs: Ids, first: int, head: int
) -> tuple[Ids, Flags]:
    """The tick after the last of each episode, and whether it ended there; both (n,)."""
    width = reader.width
    cells = np.concatenate(
        [
            np.empty(0, np.int64),
            *(
                np.flatnonzero(flags) + tick * width
                for tick, flags in chunk_files.filled_rows(
                    reader.ticks, reader.ticks.specs["ends"], first, head
                )
            ),
        ]
    )
    ends = np.sort((cells % width << LANE_SHIFT) + cells // width)
    ends = np.append(ends, np.iinfo(np.int64).max)
    found = ends[ends.searchsorted((envs << LANE_SHIFT) + begins)]
    over = found >> LANE_SHIFT == envs
    return np.where(over, (found & ROW_MASK) + 1, head), over


def _returns_of_ticks(
    reader: VectorReader, begins: Ids, stops: Ids, envs: Ids, window: tuple[int, int]
) -> tuple[npt.NDArray[np.float64], int]:
    """The sums of the rewards of ticks [begin, stop) of an environment each.

    Also how many are not finite in a window of ticks.
    """
    out, n_odd = np.zeros(begins.size), 0
    pieces = chunk_files.filled_rows(reader.ticks, reader.ticks.specs["rewards"], *window)
    for tick, values in pieces:
        n = len(values)
        n_odd += values.size - int(np.count_nonzero(np.isfinite(values)))
        here = np.flatnonzero((begins < tick + n) & (stops > tick))
        shift = envs[here] * n - tick
        out[here] += _sums(
            values.T.ravel(),
            np.maximum(begins[here], tick) + shift,
            np.minimum(stops[here], tick + n) + shift,
        )
    return out, n_odd
