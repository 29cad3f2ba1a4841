"""The index of trajectory boundaries: which rows are transitions, and where their episodes lie.

Invariant: row i of a lane is a transition if and only if row i + 1 is committed and is no reset.
Everything here follows from the rows with a reset, `first` and `head`; nothing is searched by
trial and error.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mmreplay.format.layout import CONTEXT_ROWS
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Ids

EPISODE_DTYPE = np.dtype(
    [
        ("id", "int64"),
        ("length", "int64"),
        ("return", "float64"),
        ("terminated", "bool"),
        ("truncated", "bool"),
    ]
)
"""One row an episode: id of its first row, steps, sum of rewards, how it ended."""

_ROOM = 16


def floor_row(base: int) -> int:
    """The oldest row that may be sampled when rows below `base` are gone: its stack is whole."""
    return base + CONTEXT_ROWS if base else 0


def first_row(starts: Ids, floor: int, head: int, capacity: int | None) -> int:
    """The oldest row such that at most `capacity` transitions lie from it to `head`.

    `starts`: rows with a reset, ascending; no row below `floor` counts, and all from there on do if
    `capacity` is None.
    """
    if capacity is None or head <= floor:
        return min(floor, head)
    below = int(starts.searchsorted(floor, "right"))
    excess = max(head - 1 - floor, 0) - (len(starts) - below) - capacity
    if excess <= 0:
        return floor
    # The excess-th transition from `floor` is the last one to go.
    ranks = starts[below:] - np.arange(1, len(starts) - below + 1)
    rank = floor + excess - 1
    return rank + int(ranks.searchsorted(rank, "right")) + 1


@dataclass(slots=True, eq=False)
class _Lane:
    base: int = 0
    first: int = 0
    head: int = 0
    capacity: int | None = None
    n_starts: int = 0
    room: int = 0  # places in the shared arrays
    place: int = 0  # where they begin
    skipped: int = 0  # starts at or below first
    forgotten: int = 0  # starts that are no longer here, of those there were once
    starts: Ids = field(default_factory=lambda: np.empty(0, np.int64))  # view of the shared array


class Index:
    """Episode boundaries of all lanes, in arrays that one binary search answers for all of them.

    Each lane has a stretch of two shared arrays, with room to grow that is filled with a value
    between this lane's largest and the next one's smallest:

    - `starts`: ids of the rows with a reset;
    - `ranks`: the same minus their position in the lane. The rows between two resets are
      transitions but for the last, so a transition's rank tells its row by searching here.

    `version` is another number after every change.
    """

    def __init__(self, n_lanes: int) -> None:
        self._lanes = [_Lane() for _ in range(n_lanes)]
        self.version = 0
        self._counts = np.zeros(n_lanes, np.int64)
        self._bounds = np.zeros(n_lanes + 1, np.int64)  # transitions before each lane
        self._heads = np.zeros(n_lanes, np.int64)  # as ids
        self._query = np.zeros(n_lanes, np.int64)
        self._shift = np.zeros(n_lanes, np.int64)
        self._layout()

    # ------------------------------------------------------------ keeping it up to date

    def load(self, lane: int, base: int, head: int, starts: Ids, capacity: int | None) -> None:
        """Set one lane; `starts` are the rows in [base, head) with a reset, ascending."""
        record = self._lanes[lane]
        record.base, record.head, record.capacity = base, head, capacity
        record.first = first_row(starts, floor_row(base), head, capacity)
        record.n_starts = len(starts)
        record.starts = starts
        record.forgotten = 0
        record.skipped = int(starts.searchsorted(record.first, "right"))
        self._layout()

    def extend(self, lane: int, base: int, head: int, starts: Ids) -> None:
        """Rows were appended to a lane, with resets at `starts`; those below `base` may be gone."""
        record = self._lanes[lane]
        record.base = base
        if starts.size:
            if record.n_starts + starts.size > record.room or record.skipped > max(
                record.n_starts // 2, 64
            ):
                # The last skipped start stays: it is where the oldest episode began.
                keep = max(record.skipped - 1, 0)
                record.starts = np.concatenate((record.starts[keep : record.n_starts], starts))
                record.skipped -= keep
                record.forgotten += keep
                record.n_starts = len(record.starts)
                self._layout()
            else:
                at = record.place + record.n_starts
                ids = starts + (lane << LANE_SHIFT)
                position = np.arange(record.n_starts, record.n_starts + starts.size)
                # `starts` last: a search in another thread sees the sentinel until then.
                self._ranks[at : at + starts.size] = ids - position
                self._starts[at : at + starts.size] = ids
                record.starts[record.n_starts : record.n_starts + starts.size] = starts
                record.n_starts += starts.size
        if (
            record.first >= record.head
        ):  # the lane was empty: its first reset is the first row itself
            record.skipped = int(
                record.starts[: record.n_starts].searchsorted(record.first, "right")
            )
        record.head = head
        if record.capacity is not None:
            excess = self._count(record) - record.capacity
            if excess > 0:
                record.first = first_row(
                    record.starts[: record.n_starts], record.first, head, record.capacity
                )
                record.skipped = int(
                    record.starts[: record.n_starts].searchsorted(record.first, "right")
                )
        self._recount(lane)

    def _layout(self) -> None:
        """Lay out the shared arrays, each lane with room for half as many episodes again."""
        place = 1  # a sentinel stands before everything
        for record in self._lanes:
            record.room = record.n_starts + record.n_starts // 2 + _ROOM
            record.place = place
            place += record.room
        self._starts = np.empty(place + 1, np.int64)
        self._starts[0] = -1
        self._starts[-1] = np.iinfo(np.int64).max
        self._ranks = self._starts.copy()
        for number, record in enumerate(self._lanes):
            stop = record.place + record.room
            kept = record.starts[: record.n_starts]
            for shared in (self._starts, self._ranks):
                shared[record.place : stop] = ((number + 1) << LANE_SHIFT) - 1
            ids = kept + (number << LANE_SHIFT)
            self._starts[record.place : record.place + record.n_starts] = ids
            self._ranks[record.place : record.place + record.n_starts] = ids - np.arange(
                record.n_starts
            )
            record.starts = np.empty(record.room, np.int64)
            record.starts[: record.n_starts] = kept
        for number in range(len(self._lanes)):
            self._recount(number)

    @staticmethod
    def _count(record: _Lane) -> int:
        return max(record.head - 1 - record.first, 0) - (record.n_starts - record.skipped)

    def _recount(self, lane: int) -> None:
        record = self._lanes[lane]
        self.version += 1
        self._counts[lane] = self._count(record)
        self._heads[lane] = (lane << LANE_SHIFT) + record.head
        np.cumsum(self._counts, out=self._bounds[1:])
        self._query[lane] = (lane << LANE_SHIFT) + record.first + 1 - record.skipped
        self._shift[lane] = (lane << LANE_SHIFT) + record.first - record.skipped - record.place

    # ------------------------------------------------------------ asking it

    @property
    def n_transitions(self) -> int:
        """Transitions of all lanes that can be sampled."""
        return int(self._bounds[-1])

    def n_transitions_of(self, n_lanes: int) -> int:
        """Transitions of the first so many lanes that can be sampled."""
        return int(self._bounds[n_lanes])

    def window(self, lane: int) -> tuple[int, int, int]:
        """(base, first, head) of a lane."""
        record = self._lanes[lane]
        return record.base, record.first, record.head

    def resets(self, lane: int) -> Ids:
        """Rows of a lane with a reset, ascending; those below first may be missing."""
        record = self._lanes[lane]
        return record.starts[: record.n_starts].copy()

    @property
    def n_lanes(self) -> int:
        """Lanes, also those of no row."""
        return len(self._lanes)

    def known_resets(self, lane: int) -> tuple[Ids, int, int]:
        """What is known of the beginnings of a lane's episodes, without copying them.

        Returns rows with a reset, ascending, good until the lane grows; how many of them lie at or
        below first; how many there were before them since the lane was loaded.
        """
        record = self._lanes[lane]
        return record.starts[: record.n_starts], record.skipped, record.forgotten

    def span(self, ids: Ids) -> tuple[Ids, Ids, Ids]:
        """The episodes that these transitions belong to, as ids: (begin, first, stop), (B,) each.

        Returns the first row of the episode, -1 where it is not known any more; its oldest and the
        row after its newest transition that can be sampled.
        """
        position = self.locate(ids)
        lanes = ids >> LANE_SHIFT
        begin = self.begin(position)
        begin = np.where(begin >> LANE_SHIFT == lanes, begin, -1)
        firsts = np.array([record.first for record in self._lanes], np.int64)[lanes]
        first = np.maximum(begin, firsts + (lanes << LANE_SHIFT))
        return begin, first, self.end(position, ids) - 1

    def resets_between(self, lane: int, start: int, stop: int) -> Ids:
        """Rows in [start, stop) of a lane with a reset, ascending; none of them below first."""
        record = self._lanes[lane]
        starts = record.starts[: record.n_starts]
        low, high = starts.searchsorted((start, stop)).tolist()
        return starts[low:high].copy()

    def ids(self) -> Ids:
        """Every valid transition id, ascending: int64 (n_transitions,)."""
        return self.at(np.arange(self.n_transitions))

    def at(self, ranks: Ids) -> Ids:
        """The ids of the transitions with these ranks, 0 <= rank < n_transitions, in any order."""
        # Neighbours in a sorted search share their cache lines; the order drawn is put back.
        if ranks.size > _SORT_FROM:
            order = ranks.argsort()
            out = np.empty_like(ranks)
            out[order] = self._at(ranks[order])
            return out
        return self._at(ranks)

    def _at(self, ranks: Ids) -> Ids:
        if len(self._lanes) == 1:
            position = self._ranks.searchsorted(ranks + self._query[0], "right")
            position += ranks
            position += self._shift[0]
            return np.asarray(position, np.int64)
        lane = self._bounds.searchsorted(ranks, "right") - 1
        local = ranks - self._bounds[lane]
        position = self._ranks.searchsorted(local + self._query[lane], "right")
        return np.asarray(local + position + self._shift[lane])

    def locate(self, ids: Ids) -> Ids:
        """Positions for `begin` and `end`: int64 (B,)."""
        out: Ids = self._starts.searchsorted(ids, "right")
        return out

    def begin(self, position: Ids) -> Ids:
        """Ids of the first row of the episode; something smaller than any row where it is gone."""
        out: Ids = self._starts[position - 1]
        return out

    def end(self, position: Ids, ids: Ids) -> Ids:
        """Ids of the row after the last one of the episode: of the next reset, or of the head."""
        out: Ids = np.minimum(self._starts[position], self._heads[ids >> LANE_SHIFT])
        return out

    def invalid(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which ids are no transition: (B,)."""
        lanes, rows = ids >> LANE_SHIFT, ids & ROW_MASK
        known = (ids >= 0) & (lanes < len(self._lanes))
        lane = np.where(known, lanes, 0)
        first = np.array([record.first for record in self._lanes])[lane]
        head = np.array([record.head for record in self._lanes])[lane]
        ends = self._starts[np.minimum(self.locate(ids), len(self._starts) - 1)] == ids + 1
        out: npt.NDArray[np.bool_] = ~known | (rows < first) | (rows + 1 >= head) | ends
        return out


_SORT_FROM = 64
