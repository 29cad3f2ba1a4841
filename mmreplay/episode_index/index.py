"""`Index`: the transitions and episodes of all lanes of a store, for gatherers and samplers.

Invariant: entry (row, environment) is a transition if and only if its `step` is 1 or more. Ids,
and bounds of a lane, count entries: row * n + environment. Without gaps, draws are arithmetic.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index.finals import LaneEpisodes, LaneFinals, lane_episodes
from mmreplay.episode_index.gaps import Gaps, floor_row
from mmreplay.episode_index.steps import Pending, Span, Steps
from mmreplay.errors import CorruptStoreError
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids, distinct

Flags = npt.NDArray[np.bool_]

_NONE = np.empty(0, np.int64)
_NO_ROW: Pending = ()
_PIECE = 1 << 20
_FAR = 1 << 62


class Column(Protocol):
    """A raw column of numbers over all lanes."""

    def take(self, ids: Ids) -> Array:
        """Values by id, of any shape."""

    def view(self, lane: int, start: int, stop: int) -> Array:
        """Those of rows [start, stop) of one lane."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Columns of entries and of finals; `lost(lane, text)` is the error for a missing final."""

    step: Column
    ends: Column
    resets: Column
    final_ids: Column
    final_firsts: Column
    lost: Callable[[int, str], Exception]


class Transitions(Protocol):
    """Some transitions, by rank and by id: all of a store, or those that were selected of it."""

    @property
    def n_transitions(self) -> int:
        """How many of them can be sampled."""

    def at(self, ranks: Ids) -> Ids:
        """The ids of the transitions with these ranks, 0 <= rank < n_transitions, in any order."""

    def ids(self) -> Ids:
        """Every id of them, ascending: int64 (n_transitions,)."""

    def invalid(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which ids are not transitions: (B,)."""


@dataclass(slots=True, eq=False)
class _Lane:
    """One lane; `base`, `first` and `head` are rows."""

    n: int
    capacity: int | None
    live: bool
    closed: bool
    finals: LaneFinals
    gaps: Gaps
    base: int = 0
    first: int = 0
    head: int = 0


def _in_the_middle(ids: Ids, stride: int | Ids, back: Ids | None, ahead: int) -> Steps:
    """Steps whose episodes neither end nor reach their newest step within `ahead` steps."""
    return Steps(ids, stride, back, ahead, ahead + 1, _NONE, _NONE, _NONE, _NO_ROW)


class Index:
    """See the module. A caller holds the lock of the store while it uses the index.

    `environments` are n of each lane; `version` is another number after every change.
    """

    def __init__(self, sources: Sources, environments: list[int]) -> None:
        self._sources = sources
        self._step, self._ends = sources.step, sources.ends
        self.version, self.n_lanes = 0, len(environments)
        self._lanes: list[_Lane] = []
        self._n = np.array(environments, np.int64)
        # The environments of every lane, if that is one number: strides need no look at the lanes.
        self._stride = environments[0] if len(set(environments)) == 1 else None
        lanes = np.arange(self.n_lanes)
        self._zeros = lanes << LANE_SHIFT  # ids of the lanes' row 0
        self._firsts, self._stops = self._zeros.copy(), self._zeros.copy()  # ids, of rows
        self._counts = np.zeros(self.n_lanes, np.int64)
        self._bounds = np.zeros(self.n_lanes + 1, np.int64)  # transitions before each lane
        self._shifts = self._zeros  # from a rank to its id, where nothing is left out
        self._total = self._shift = 0  # all transitions; the first lane's shift
        self._with_gaps: list[int] = []
        self._is_stale = False  # these five
        self._is_open = False  # any lane

    # ------------------------------------------------------------ keeping it up to date

    def load(
        self,
        where: object,
        window: tuple[int, int],
        finals: tuple[int, int],
        capacity: int | None,
        *,
        live: bool = False,
        closed: bool = False,
    ) -> None:
        """Add the next lane, with its rows and its finals [base, head); raises as `extend`.

        Episodes in the newest row of a lane that is not `closed` ended if there is a final of them;
        of a `live` one the others may go on.
        """
        number, (base, head) = len(self._lanes), window
        n = int(self._n[number])
        gaps = Gaps(n, min(floor_row(base), head), where)
        self._lanes.append(_Lane(n, capacity, live, closed, LaneFinals(n), gaps))
        self._is_open |= not closed
        self.extend(number, base, head, finals)

    def extend(self, lane: int, base: int, head: int, finals: tuple[int, int]) -> None:
        """Rows or finals were appended to a lane; those below their bases may be gone."""
        one, sources = self._lanes[lane], self._sources
        n, gaps = one.n, one.gaps
        if head > one.head:
            gaps.follow(head, lambda path, a, b: getattr(sources, path).view(lane, a * n, b * n))
        one.base, one.head = base, head
        one.first = gaps.oldest(max(one.first, floor_row(base)), one.capacity)
        gaps.forget(one.first)
        self._counts[lane] = gaps.count - gaps.before(one.first)
        self._firsts[lane] = self._zeros[lane] + one.first * n
        self._stops[lane] = self._zeros[lane] + head * n
        self._is_stale = True
        ids, firsts = sources.final_ids, sources.final_firsts
        rows = ids.view(lane, *finals), firsts.view(lane, *finals)
        if finals[1] != one.finals.word and not one.finals.fits(finals[0], *rows):
            raise CorruptStoreError(
                f"{gaps.where}: finals: expected the last and first steps of episodes, in the "
                f"order in which they ended; found others; run `mmreplay verify`"
            )
        one.finals.take(*finals, *rows, head)
        self.version += 1

    def close(self) -> None:
        """Let go of all maps; from now on only numbers of transitions may be asked for.

        A second call does nothing.
        """
        for name in ("_sources", "_step", "_ends"):
            self.__dict__.pop(name, None)
        for one in self._lanes:
            one.finals = LaneFinals(one.n)

    def _settle(self) -> None:
        """Prepare what draws need, once for all lanes that changed."""
        np.cumsum(self._counts, out=self._bounds[1:])
        self._shifts = self._firsts - self._bounds[:-1]
        self._total, self._shift = int(self._bounds[-1]), int(self._shifts[0])
        self._with_gaps = [n for n, lane in enumerate(self._lanes) if not lane.gaps.is_full]
        self._is_stale = False

    # ------------------------------------------------------------ transitions

    @property
    def n_transitions(self) -> int:
        """See `Transitions`."""
        if self._is_stale:
            self._settle()
        return self._total

    def n_transitions_of(self, lane: int) -> int:
        """Transitions of a lane that can be sampled."""
        return int(self._counts[lane])

    def window(self, lane: int) -> tuple[int, int, int]:
        """(base, first, head) of a lane: below base all is gone, below first not sampled."""
        one = self._lanes[lane]
        return one.base * one.n, one.first * one.n, one.head * one.n

    def extent(self, lane: int) -> tuple[int, int]:
        """(start, stop): all transitions of a lane that can be sampled lie in there."""
        return self.window(lane)[1:]

    def extents(self) -> tuple[Ids, Ids, Ids]:
        """Of each lane the ids of its oldest and past its newest row, and its environments."""
        return self._firsts, self._stops, self._n

    def present(self, ids: Ids) -> Flags:
        """Which ids, (n,) of entries that are not `outside`, are transitions."""
        if self._is_stale:
            self._settle()
        if not self._with_gaps:
            return np.ones(ids.size, np.bool_)
        return np.asarray(self._step.take(ids) != 0)

    def at(self, ranks: Ids) -> Ids:
        """See `Transitions`; raises CorruptStoreError where the columns contradict each other."""
        if self._is_stale:
            self._settle()
        if self.n_lanes == 1:
            if not self._with_gaps:
                return ranks + self._shift if self._shift else ranks
            return self._among_gaps(0, ranks)
        lanes = self._bounds.searchsorted(ranks, "right") - 1
        out: Ids = ranks + self._shifts.take(lanes)
        for lane in self._with_gaps:
            here = (lanes == lane).nonzero()[0]
            if here.size:
                out[here] = self._among_gaps(lane, ranks[here] - self._bounds[lane])
        return out

    def _among_gaps(self, lane: int, ranks: Ids) -> Ids:
        """The ids of transitions of one lane, by their ranks in it."""
        one = self._lanes[lane]
        out = one.gaps.at(ranks + one.gaps.before(one.first))
        out += self._zeros[lane]
        if np.count_nonzero(self._step.take(out)) != out.size:
            raise CorruptStoreError(
                f"{one.gaps.where}: `step` is 0 in an entry that is a transition by `ends` and "
                f"`resets`; run `mmreplay verify`"
            )
        return out

    def ids(self) -> Ids:
        """See `Transitions`."""
        out = np.empty(self.n_transitions, np.int64)
        for start in range(0, out.size, _PIECE):  # without more of this length
            stop = min(start + _PIECE, out.size)
            out[start:stop] = self.at(np.arange(start, stop))
        return out

    def outside(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which ids are of no row that can be sampled: (B,)."""
        lanes = ids >> LANE_SHIFT
        out: Flags = (lanes < 0) | (lanes >= self.n_lanes)
        lanes[out] = 0
        out |= (ids < self._firsts.take(lanes)) | (ids >= self._stops.take(lanes))
        return out

    def invalid(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """See `Transitions`."""
        out = self.outside(ids)
        inside = (~out).nonzero()[0]
        out[inside] = self._step.take(ids[inside]) <= 0
        return out

    def evicted(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which ids are of rows that were evicted: (B,)."""
        lanes = ids >> LANE_SHIFT
        known = (lanes >= 0) & (lanes < self.n_lanes)
        return known & (ids < self._firsts.take(lanes, mode="clip"))

    # ------------------------------------------------------------ neighbours in episodes

    def steps(self, ids: Ids, ahead: int, *, back: bool) -> Steps:
        """These transitions, with up to `ahead` of the steps that are left from each one on.

        `back`: whether frames before the steps' own are needed. Raises what `Sources.lost` gives.
        """
        stride = self._stride or self._n.take(ids >> LANE_SHIFT)
        before = None
        if back:
            before = self._step.take(ids)
            before -= 1
        if ahead > 1 and self.n_lanes == 1 and stride == 1:
            known = self._lanes[0].finals
            until, found = known.until(ids)
            if until is not None:
                over = (until <= ahead).nonzero()[0]
                if not over.size:  # as a rule
                    return _in_the_middle(ids, 1, before, ahead)
                finals = found.take(over) + (known.base + (1 << LANE_SHIFT))  # type: ignore[union-attr]
                left = np.minimum(until, ahead)
                return Steps(ids, stride, before, left, until, over, finals, _NONE, _NO_ROW)
        near = _NONE  # those that see the newest row
        if self._is_open or ahead > 1:
            stops = self._stops[0] if self.n_lanes == 1 else self._stops.take(ids >> LANE_SHIFT)
            near = (ids >= stops - ahead * stride).nonzero()[0]
        if ahead > 1:
            return self._many(ids, ahead, stride, before, near, stops)  # type: ignore[possibly-undefined]
        until = self._ends.take(ids)
        runs, pending = near, _NO_ROW
        if near.size:
            until[near], is_running, pending = self._newest(ids[near])
            runs = near[is_running]
        over = until.nonzero()[0]
        if near.size:
            until[near] = 1
        elif not over.size:  # as a rule
            return _in_the_middle(ids, stride, before, 1)
        finals = self._places(ids[over]) if over.size else _NONE
        return Steps(ids, stride, before, 1, until, over, finals, runs, pending)

    def _many(
        self, ids: Ids, ahead: int, stride: int | Ids, before: Ids | None, near: Ids, stops: Any
    ) -> Steps:
        """As `steps`, of more than one step each; `stops` (B,) is where their lanes stop."""
        offsets = np.arange(ahead)[:, None]
        runs = room = reach = _NONE
        pending = _NO_ROW
        entries: Ids = offsets * stride + ids  # (ahead, B): the other way round takes twice as long
        if near.size:  # what is past the lane has no part in this
            entries = np.minimum(entries, stops - 1)
        ends = self._ends.take(entries)
        if near.size and self._is_open:  # its newest row may not know its ends yet
            room = self._room(ids[near])
            earlier = ends[:, near] * (offsets < room - 1)
            reach = np.flatnonzero(~earlier.any(0))
            ends[:, near] = earlier
            places = room[reach] - 1, near[reach]
            ends[places], is_running, pending = self._newest(entries[places])
            runs = near[reach[is_running]]
        elif not near.size and not np.count_nonzero(ends):  # as a rule
            return _in_the_middle(ids, stride, before, ahead)
        until: Ids = np.full(ids.size, ahead + 1)
        found, which = ends.nonzero()
        until[which[::-1]] = found[::-1] + 1  # of several the first one is set last
        over = (until <= ahead).nonzero()[0]
        finals = self._places((ids + (until - 1) * stride)[over]) if over.size else _NONE
        left = np.minimum(until, ahead)
        if near.size and self._is_open:
            left[near[reach]] = until[near[reach]] = room[reach]
        elif near.size and until[near].max() > ahead:  # in a closed lane every episode has an end
            one = ids[near[until[near].argmax()]]
            raise self._lost(int(one) >> LANE_SHIFT, one)
        return Steps(ids, stride, before, left, until, over, finals, runs, pending)

    def _room(self, ids: Ids) -> Ids:
        """The rows of each one's lane from its own on: (B,)."""
        lanes = ids >> LANE_SHIFT
        out: Ids = -((ids - self._stops.take(lanes)) // self._n.take(lanes))
        return out

    def _newest(self, ids: Ids) -> tuple[Flags, Flags, Pending]:
        """Of entries of the newest rows: which ended with a final, which run on in a live lane."""
        over, runs = np.zeros((2, ids.size), np.bool_)
        pending = []
        for lane, here in self._by_lane(ids):
            one = self._lanes[lane]
            over[here] = one.finals.newest()[(ids[here] & ROW_MASK) % one.n]
            if over[here].all():
                continue
            if one.closed:
                raise self._lost(lane, ids[here][~over[here]][0])
            if one.live:
                runs[here] = ~over[here]
                pending.append((lane, one.finals.word))
        return over, runs, tuple(pending)

    def renewed(self, steps: Steps) -> Steps:
        """Steps read before the index followed its lanes: finals of those that have ended since."""
        runs, stride = steps.runs, np.broadcast_to(steps.stride, steps.ids.shape)
        until = np.broadcast_to(steps.until, stride.shape)[runs].astype(np.int64)
        lasts = steps.ids[runs] + (until - 1) * stride[runs]
        places, pending = np.empty_like(lasts), []
        for lane, here in self._by_lane(lasts):
            finals = self._lanes[lane].finals
            found = finals.find(lasts[here] & ROW_MASK)
            places[here] = np.where(found < 0, -1, found + ((self.n_lanes + lane) << LANE_SHIFT))
            if (found < 0).any():
                pending.append((lane, finals.word))
        ended = places >= 0
        return dataclasses.replace(
            steps,
            over=np.concatenate((steps.over, runs[ended])),
            finals=np.concatenate((steps.finals, places[ended])),
            pending=tuple(pending),
        )

    def _by_lane(self, ids: Ids) -> Iterator[tuple[int, Any]]:
        """The lanes of ids, (B,), and which of these are theirs."""
        if self.n_lanes == 1:
            yield 0, slice(None)
            return
        lanes = ids >> LANE_SHIFT
        for lane in distinct(lanes).tolist():
            yield lane, (lanes == lane).nonzero()[0]

    def _places(self, ids: Ids) -> Ids:
        """The places, in columns of frames, of the finals of episodes that end with these ids."""
        if self.n_lanes == 1:
            found = self._lanes[0].finals.find(ids)
            if found.size and found[found.argmin()] < 0:
                raise self._lost(0, ids[found.argmin()])
            found += 1 << LANE_SHIFT
            return found
        out = np.empty_like(ids)
        for lane, here in self._by_lane(ids):
            found = self._lanes[lane].finals.find(ids[here] & ROW_MASK)
            if (lost := (found < 0).nonzero()[0]).size:
                raise self._lost(lane, ids[here][lost[0]])
            out[here] = found + ((self.n_lanes + lane) << LANE_SHIFT)
        return out

    def _lost(self, lane: int, one: np.int64) -> Exception:
        row, environment = divmod(int(one) & ROW_MASK, int(self._n[lane]))
        return self._sources.lost(
            lane,
            f"the episode that ends in row {row:,}, environment {environment:,}, has no final "
            f"observation",
        )

    def span(self, ids: Ids, reach: int = _FAR) -> Span:
        """These transitions, with all of their episodes; raises as `steps`.

        Frames are wanted up to `reach` steps from each one on.
        """
        lanes = ids >> LANE_SHIFT
        n = self._n.take(lanes)
        back = self._step.take(ids)
        back -= 1
        oldest = np.minimum(back, (ids - self._firsts.take(lanes)) // n)
        left, near = np.empty_like(ids), np.zeros(ids.size, np.bool_)
        runs = np.zeros(ids.size, np.bool_)
        pending = []
        for lane, here in self._by_lane(ids):
            one, entries = self._lanes[lane], ids[here] & ROW_MASK
            lasts = one.finals.last_rows(entries)
            over = lasts >= 0
            left[here] = np.where(over, lasts, one.head - 1) - entries // one.n + 1
            is_near = left[here] <= reach
            near[here] = over & is_near
            if one.live and (goes_on := is_near & ~over).any():
                runs[here] = goes_on
                pending.append((lane, one.finals.word))
        ended = near.nonzero()[0]
        finals = self._places((ids + (left - 1) * n)[ended]) if ended.size else _NONE
        stride = self._stride or n
        runs_on = runs.nonzero()[0]
        steps = Steps(ids, stride, back, left, left, ended, finals, runs_on, tuple(pending))
        return Span(steps, back, oldest, left)

    # ------------------------------------------------------------ rows of an environment

    def across(self, ids: Ids, offsets: Ids) -> tuple[Ids, Ids]:
        """The ids so many rows from those of each id, (B, n), and the numbers of their steps.

        The numbers are 0 where there is no transition that can be sampled.
        """
        lanes = ids >> LANE_SHIFT
        out: Ids = ids[:, None] + offsets * self._n.take(lanes)[:, None]
        low, stop = self._firsts.take(lanes)[:, None], self._stops.take(lanes)[:, None]
        steps = self._step.take(np.clip(out, low, stop - 1))
        steps[(out < low) | (out >= stop)] = 0
        return out, steps

    # ------------------------------------------------------------ episodes

    def episodes(self, lane: int) -> LaneEpisodes:
        """The episodes of a lane of which steps can be sampled."""
        one, n = self._lanes[lane], int(self._n[lane])
        newest = oldest = _NONE
        if one.first < one.head:
            newest = self._step.view(lane, (one.head - 1) * n, one.head * n)
            oldest = self._step.view(lane, one.first * n, (one.first + 1) * n)
        window = one.first, one.head
        found = lane_episodes(one.finals, window, newest, oldest, lane << LANE_SHIFT)
        if found is None:
            raise self._sources.lost(lane, "an episode that was begun neither ends nor runs")
        return found

    def ended(self, lane: int, numbers: Ids) -> tuple[Ids, Ids]:
        """The id of the first step, and the steps, of episodes that are over: (n,) each."""
        finals = self._lanes[lane].finals
        firsts = finals.firsts[numbers - finals.base]
        steps = (finals.ids[numbers - finals.base] - firsts) // self._lanes[lane].n + 1
        return firsts + self._zeros[lane], steps
