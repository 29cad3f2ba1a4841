"""`RowIndex`: the index of lanes of one environment each.

Invariant: row i of a lane is a transition if and only if row i + 1 is committed and is no reset.
Everything here follows from the rows with a reset, `first` and `head`; nothing is searched by
trial and error.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index.episodes import LaneEpisodes
from mmreplay.episode_index.oldest import first_row, floor_row
from mmreplay.episode_index.steps import UNKNOWN, Span, Steps
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Ids

_ROOM = 16
_SORT_FROM = 64
_MOST_FOUND = 1 << 16
_PIECE = 1 << 20
_NO_CUT = np.empty(0, np.int64)


@dataclass(slots=True, eq=False)
class _Lane:
    base: int = 0
    first: int = 0
    head: int = 0
    capacity: int | None = None
    live: bool = False
    n_starts: int = 0
    room: int = 0  # places in the shared arrays
    place: int = 0  # where they begin
    skipped: int = 0  # starts at or below first
    forgotten: int = 0  # starts that are no longer here, of those there were once
    starts: Ids = field(default_factory=lambda: np.empty(0, np.int64))  # view of the shared array


class RowIndex:
    """Episode boundaries of all lanes, in arrays that one binary search answers for all of them.

    Each lane has a stretch of three shared arrays, with room to grow:

    - `starts`: ids of the rows with a reset, and after them the head; the rest of the room is
      filled with a value between this lane's largest and the next one's smallest, and so is that of
    - `ranks`: the same minus their position in the lane. The rows between two resets are
      transitions but for the last, so a transition's rank tells its row by searching here;
    - `begins`: the same as `starts`, but for the room, which is so far below all ids that a step
      seems to be unknown steps away from it.
    """

    def __init__(self, n_lanes: int) -> None:
        self._lanes = [_Lane() for _ in range(n_lanes)]
        self.version = 0
        self._counts = np.zeros(n_lanes, np.int64)
        self._bounds = np.zeros(n_lanes + 1, np.int64)  # transitions before each lane
        self._heads = np.zeros(n_lanes, np.int64)  # as ids
        self._query = np.zeros(n_lanes, np.int64)
        self._shift = np.zeros(n_lanes, np.int64)
        # Of live lanes the heads, and whether there are any.
        self._running, self._is_live = np.full(n_lanes, -1), False
        # Of ids that were asked for by rank: the version then, these, their ranks and places.
        self._found: tuple[int, Ids, Ids, Ids | None] = (-1, _NO_CUT, _NO_CUT, None)
        self._layout()

    # ------------------------------------------------------------ keeping it up to date

    def load(
        self,
        lane: int,
        base: int,
        head: int,
        starts: Ids,
        capacity: int | None,
        *,
        live: bool = False,
        more: bool = False,
    ) -> None:
        """Set one lane; `starts` are the rows in [base, head) with a reset, ascending.

        The newest episode of a `live` one may go on. With `more` the caller goes on with another
        lane: nothing is asked before that.
        """
        record = self._lanes[lane]
        record.live = live
        record.base, record.head, record.capacity = base, head, capacity
        record.first = first_row(starts, floor_row(base), head, capacity)
        record.n_starts = len(starts)
        record.starts = starts
        record.forgotten = 0
        record.skipped = int(starts.searchsorted(record.first, "right"))
        if not more:
            self._layout()

    def extend(self, lane: int, base: int, head: int, starts: Ids) -> None:
        """Rows were appended to a lane, with resets at `starts`; those below `base` may be gone."""
        record = self._lanes[lane]
        record.base = base
        if starts.size:
            if record.n_starts + starts.size >= record.room or record.skipped > max(
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
                self._begins[at : at + starts.size] = ids
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
        self._begins = np.full(place + 1, -UNKNOWN, np.int64)
        for number, record in enumerate(self._lanes):
            stop = record.place + record.room
            kept = record.starts[: record.n_starts]
            for shared in (self._starts, self._ranks):
                shared[record.place : stop] = ((number + 1) << LANE_SHIFT) - 1
            ids = kept + (number << LANE_SHIFT)
            self._starts[record.place : record.place + record.n_starts] = ids
            self._begins[record.place : record.place + record.n_starts] = ids
            self._ranks[record.place : record.place + record.n_starts] = ids - np.arange(
                record.n_starts
            )
            record.starts = np.empty(record.room, np.int64)
            record.starts[: record.n_starts] = kept
        for number in range(len(self._lanes)):
            self._recount(number)
        self._is_live = any(record.live for record in self._lanes)

    @staticmethod
    def _count(record: _Lane) -> int:
        return max(record.head - 1 - record.first, 0) - (record.n_starts - record.skipped)

    def _recount(self, lane: int) -> None:
        record = self._lanes[lane]
        self.version += 1
        self._counts[lane] = self._count(record)
        self._heads[lane] = (lane << LANE_SHIFT) + record.head
        self._starts[record.place + record.n_starts] = self._heads[lane]
        self._running[lane] = self._heads[lane] if record.live else -1
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
        """(base, first, head) of a lane, in rows."""
        record = self._lanes[lane]
        return record.base, record.first, record.head

    def extent(self, lane: int) -> tuple[int, int]:
        """See `Index`; the newest row is no transition yet."""
        record = self._lanes[lane]
        return record.first, max(record.head - 1, record.first)

    def resets(self, lane: int) -> Ids:
        """Rows of a lane with a reset, ascending; those below first may be missing."""
        record = self._lanes[lane]
        return record.starts[: record.n_starts].copy()

    @property
    def n_lanes(self) -> int:
        """Lanes, also those of no row."""
        return len(self._lanes)

    def present(self, lane: int, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """See `Index`: a row before a reset is the last of its episode, and no transition."""
        record = self._lanes[lane]
        starts = record.starts[: record.n_starts]
        low, high = starts.searchsorted((start + 1, stop + 1)).tolist()
        out = np.ones(stop - start, np.bool_)
        out[starts[low:high] - 1 - start] = False
        return out

    def ids(self) -> Ids:
        """Every valid transition id, ascending: int64 (n_transitions,)."""
        out = np.empty(self.n_transitions, np.int64)
        for start in range(0, out.size, _PIECE):  # in order, and without more of this length
            stop = min(start + _PIECE, out.size)
            out[start:stop] = self._at(np.arange(start, stop))[0]
        return out

    def at(self, ranks: Ids) -> Ids:
        """The ids of the transitions with these ranks, 0 <= rank < n_transitions, in any order."""
        # Neighbours in a sorted search share their cache lines; the order drawn is put back.
        if ranks.size > _SORT_FROM:
            order = ranks.argsort()
            out = np.empty_like(ranks)
            out[order] = self._at(ranks[order])[0]
            places = None
        else:
            out, places = self._at(ranks)
        if ranks.size <= _MOST_FOUND:  # as a rule `steps` asks for the same next
            self._found = self.version, out, ranks, places
        return out

    def _at(self, ranks: Ids) -> tuple[Ids, Ids]:
        """The ids, and where in `starts` the resets stand that come after them."""
        if len(self._lanes) == 1:
            position = self._ranks.searchsorted(ranks + self._query[0], "right")
            out = ranks + position
            out += self._shift[0]
            return out, position
        lane = self._bounds.searchsorted(ranks, "right") - 1
        local = ranks - self._bounds[lane]
        position = self._ranks.searchsorted(local + self._query[lane], "right")
        local += position
        local += self._shift[lane]
        return local, position

    def _places(self, ids: Ids) -> Ids:
        """Where in `starts` the resets stand that come after these ids."""
        version, found, ranks, places = self._found
        if found is ids and version == self.version:  # a search takes ten times as long
            if places is not None:
                return places
            if len(self._lanes) == 1:
                found = ids - ranks
                found -= self._shift[0]
                return found
        return self._starts.searchsorted(ids, "right")

    def steps(self, ids: Ids, ahead: int, *, back: bool) -> Steps:
        """See `Index`."""
        position = self._places(ids)
        behind = left = running = None
        if back:
            behind = ids - self._begins.take(position - 1)
        ends = self._starts.take(position)
        until = ends - ids
        if ahead == 1:  # an episode's last row, and that of the lane, are no steps
            until = until == 2  # noqa: PLR2004
        else:
            until -= 1
            left = np.minimum(until, ahead)
        if self._is_live:
            running = self._running[ids >> LANE_SHIFT] == ends
        return Steps(ids, 1, 0, None, behind, left, until, running)

    def _left(self, position: Ids | np.int64, ids: Ids) -> Ids:
        """Steps to the end of the episode: its last row, and that of the lane, are none."""
        out: Ids = self._starts[position] - 1 - ids
        return out

    def span(self, ids: Ids) -> Span:
        """See `Index`."""
        position = self._starts.searchsorted(ids, "right")
        back, left = ids - self._begins[position - 1], self._left(position, ids)
        firsts = np.array([record.first for record in self._lanes], np.int64)
        oldest = np.minimum(back, (ids & ROW_MASK) - firsts[ids >> LANE_SHIFT])
        return Span(Steps(ids, 1, 0, None, back, left), back, oldest, left)

    def episodes(self, lane: int) -> LaneEpisodes:
        """See `Index`; the list is the oldest episode, that of all which are over, the newest."""
        record = self._lanes[lane]
        starts, skipped = record.starts, record.skipped
        has_newest = record.n_starts > skipped
        newest = int(starts[record.n_starts - 1]) if has_newest else record.head - 1
        end = int(starts[skipped]) if has_newest else record.head
        is_whole = bool(skipped) and int(starts[skipped - 1]) == record.first
        stop = record.forgotten + max(record.n_starts - 1, 0)
        firsts = np.array([record.first, 0, newest]) + (lane << LANE_SHIFT)
        return LaneEpisodes(
            1,
            record.forgotten,
            min(record.forgotten + skipped, stop),
            stop,
            _NO_CUT,
            firsts.__getitem__,
            np.array([max(end - 1 - record.first, 0), 0, record.head - 1 - newest]),
            lambda: np.array([is_whole, True, True]),
            1,
        )

    def ended(self, lane: int, numbers: Ids) -> tuple[Ids, Ids]:
        """See `Index`."""
        record = self._lanes[lane]
        places = numbers - record.forgotten
        firsts = record.starts[places]
        return firsts + (lane << LANE_SHIFT), record.starts[places + 1] - firsts - 1

    def invalid(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which ids are no transition: (B,)."""
        lanes, rows = ids >> LANE_SHIFT, ids & ROW_MASK
        known = (ids >= 0) & (lanes < len(self._lanes))
        lane = np.where(known, lanes, 0)
        first = np.array([record.first for record in self._lanes])[lane]
        head = np.array([record.head for record in self._lanes])[lane]
        position = self._starts.searchsorted(ids, "right")
        ends = self._starts[np.minimum(position, len(self._starts) - 1)] == ids + 1
        out: npt.NDArray[np.bool_] = ~known | (rows < first) | (rows + 1 >= head) | ends
        return out
