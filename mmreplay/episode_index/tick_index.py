"""`TickIndex`: the index of one vector lane, whose ids are cells.

Invariant: a cell is a transition if and only if its `episode` is 0 or more; where its episode began
stands in the starts, and where it ends in `ends`. No draw is ever in vain, nor does it cost more
where there are more environments or episodes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index.ended_episodes import EndedEpisodes, late_step, steps_before
from mmreplay.episode_index.episodes import LaneEpisodes
from mmreplay.episode_index.oldest import first_tick, floor_tick
from mmreplay.episode_index.partial_ticks import PartialTicks
from mmreplay.episode_index.steps import Span, Steps
from mmreplay.episode_index.tick_episodes import CutEpisodes, TickEpisodes
from mmreplay.episode_index.tick_source import TickSource
from mmreplay.errors import CorruptStoreError
from mmreplay.ids import LANE_SHIFT, Ids

_NONE = np.empty(0, np.int64)
_NO_STEPS = np.zeros(1, np.int64)  # of no environment
_STARTS_PART = 1 << LANE_SHIFT  # a store of one vector lane has its starts in part 1


class TickIndex:
    """See the module; `where` is named in the messages of errors.

    `version` is another number after every change.
    """

    n_lanes = 1

    def __init__(self, source: TickSource, where: object) -> None:
        self._source, self._where, self._width = source, where, source.width
        self.version = 0
        self._base = self._first = self._head = 0  # ticks
        self._capacity: int | None = None
        self._live = False
        self._starts = (0, 0)
        self._n = self._before = 0  # transitions, and those below first
        self._partial: PartialTicks | None = None  # of the ticks from first on, or from before
        self._ended: EndedEpisodes | None = None
        self._followed = 0  # the version that those have followed to
        # Of the newest tick, and of the first; None while they are not known.
        self._newest: TickEpisodes | None = None
        self._cut: CutEpisodes | None = None

    # ------------------------------------------------------------ keeping it up to date

    def load(
        self,
        base: int,
        head: int,
        capacity: int | None,
        starts: tuple[int, int],
        *,
        live: bool = False,
    ) -> None:
        """Set the ticks [base, head) and the starts [base, head) that there are.

        Episodes with a step in the newest tick of a `live` lane may go on; in others they ended.
        """
        self._capacity, self._live, self._ended = capacity, live, None
        self._newest, self._cut, self._partial = None, None, None
        self._take(base, head, starts, floor_tick(base))

    def extend(self, base: int, head: int, starts: tuple[int, int]) -> None:
        """Ticks and starts were appended; those below `base` may be gone."""
        self._take(base, head, starts, self._first)

    def _take(self, base: int, head: int, starts: tuple[int, int], floor: int) -> None:
        """Take bounds; ticks below `floor` are not sampled."""
        source = self._source
        first = first_tick(source.counts, floor, head, self._capacity)
        before = int(source.counts(first - 1, first)[0]) if 0 < first < head else 0
        partial = self._partial if first < head else None
        if first < head:
            if partial is None or partial.head < first:
                partial = PartialTicks(self._width, first, before)
            if partial.head < head and not partial.extend(source.counts(partial.head, head)):
                raise self._wrong_counts()
            partial.forget(before)
        self._base, self._first, self._head, self._starts = base, first, head, starts
        self._partial, self._before = partial, before
        self._n = partial.last - before if partial is not None else 0
        self.version += 1

    # ------------------------------------------------------------ transitions

    @property
    def n_transitions(self) -> int:
        """See `Index`."""
        return self._n

    def n_transitions_of(self, n_lanes: int) -> int:
        """See `Index`."""
        return self.n_transitions if n_lanes else 0

    def window(self, lane: int) -> tuple[int, int, int]:  # noqa: ARG002 (there is one)
        """(base, first, head) of the lane, in cells."""
        width = self._width
        return self._base * width, self._first * width, self._head * width

    def extent(self, lane: int) -> tuple[int, int]:  # noqa: ARG002 (there is one)
        """See `Index`; cells of the newest tick are transitions, too."""
        return self._first * self._width, self._head * self._width

    def present(self, lane: int, start: int, stop: int) -> npt.NDArray[np.bool_]:  # noqa: ARG002
        """See `Index`."""
        return self._source.episodes(np.arange(start, stop)) >= 0

    def at(self, ranks: Ids) -> Ids:
        """See `Index`; raises CorruptStoreError where the columns contradict each other."""
        partial = self._partial
        if partial is None:  # of no tick
            return _NONE
        cells = partial.cells(ranks + self._before)
        if len(partial):
            self._replace_absent(cells)
        return cells

    def _replace_absent(self, cells: Ids) -> None:
        """Put the cell that an absent one names in its place; see docs/format.md."""
        named = self._source.episodes(cells)
        is_absent = named < 0
        if not np.count_nonzero(is_absent):
            return
        absent = is_absent.nonzero()[0]
        others = -1 - named[absent]
        if others.min() < 0 or others.max() >= self._width:
            raise self._wrong_counts()
        others += cells[absent] // self._width * self._width
        if self._source.episodes(others).min() < 0:
            raise self._wrong_counts()
        cells[absent] = others

    def _wrong_counts(self) -> CorruptStoreError:
        return CorruptStoreError(
            f"{self._where}: `count` and `episode` disagree on how many transitions a tick has; "
            f"run `mmreplay verify`"
        )

    def ids(self) -> Ids:
        """See `Index`."""
        start, width, n = self._first * self._width, self._width, self._head - self._first
        if self._partial is None or not len(self._partial):
            return np.arange(start, start + n * width)
        # Only ticks that are not full are read.
        ticks = self._partial.ticks(self._first)
        there = np.ones((n, width), np.bool_)
        cells = ticks[:, None] * width + np.arange(width)
        there[ticks - self._first] = self._source.episodes(cells) >= 0
        out: Ids = np.flatnonzero(there) + start
        if out.size != self._n:
            raise self._wrong_counts()
        return out

    def invalid(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """See `Index`."""
        out: npt.NDArray[np.bool_] = (ids < self._first * self._width) | (
            ids >= self._head * self._width
        )
        inside = (~out).nonzero()[0]
        out[inside] = self._source.episodes(ids[inside]) < 0
        return out

    # ------------------------------------------------------------ neighbours in episodes

    def steps(self, ids: Ids, ahead: int, *, back: bool) -> Steps:  # noqa: ARG002 (always known)
        """See `Index`; raises CorruptStoreError for a cell of no episode."""
        ticks = ids // self._width
        starts = self._source.episodes(ids)
        behind = steps_before(self._source, starts, ticks, self._where)
        left, until = self._left(ids, ticks, ahead)
        return Steps(ids, self._width, 1, starts + _STARTS_PART, behind, left, until)

    def _left(self, ids: Ids, ticks: Ids, ahead: int) -> tuple[Ids | None, Ids]:
        """Steps to the end of the episode or the head, at most `ahead`; and `until` of `Steps`."""
        if ahead == 1:
            until = self._source.ends(ids)  # 1 where a step is the last one, which is enough
            if not self._live:
                until |= ticks == self._head - 1
            return None, until
        room = self._head - ticks
        offsets = np.arange(ahead)
        is_near = np.count_nonzero(room <= ahead)
        if is_near:
            offsets = np.minimum(offsets, room[:, None] - 1)
        ended = np.ones((ids.size, ahead + 1), np.bool_)  # with a last column that is True
        cells = ids[:, None] + offsets * self._width
        np.not_equal(self._source.ends(cells), 0, out=ended[:, :-1])
        until = ended.argmax(1) + 1
        left = np.minimum(until, np.minimum(room, ahead) if is_near else ahead)
        if is_near and not self._live:
            until = np.minimum(until, room)
        return left, until

    def span(self, ids: Ids) -> Span:
        """See `Index`; raises as `steps`."""
        width = self._width
        ticks = ids // width
        starts = self._source.episodes(ids)
        back = steps_before(self._source, starts, ticks, self._where)
        ended = self._follow()
        numbers = ended.numbers(starts)
        left = self._head - ticks
        over = (numbers >= 0).nonzero()[0]
        left[over] = ended.lasts(numbers[over]) - ticks[over] + 1
        if left.size and left.min() < 1:
            raise late_step(self._where)
        steps = Steps(ids, width, 1, starts + _STARTS_PART, back, left)
        return Span(steps, back, np.minimum(back, ticks - self._first), left)

    # ------------------------------------------------------------ episodes

    def _follow(self) -> EndedEpisodes:
        """The episodes that are over. Those with a step in the newest tick may still go on."""
        if self._ended is None:
            self._ended = EndedEpisodes(self._source, self._where)
        elif self._followed == self.version:
            return self._ended
        self._ended.follow(self._first, self._head - 1, self._starts)
        self._followed = self.version
        return self._ended

    def episodes(self, lane: int) -> LaneEpisodes:  # noqa: ARG002 (there is one)
        """See `Index`; the list is that of all which are over, then one for each environment.

        These are the episodes that run, or one of no step; after them come those that are cut.
        """
        ended, width, first, head = self._follow(), self._width, self._first, self._head
        steps = _NO_STEPS
        begins = cut = oldest = lasts = _NONE
        if first < head:
            if first:
                found = self._cut or CutEpisodes(self._source, self._where)
                self._cut = None  # what is interrupted begins again
                found.move(first, ended)
                self._cut, cut, oldest, lasts = (
                    found,
                    found.numbers,
                    found.environments,
                    found.lasts,
                )
            newest = self._newest or TickEpisodes(self._source, self._where)
            self._newest = None
            newest.move(head - 1)
            begins, steps = newest.begins, np.empty(1 + width + oldest.size, np.int64)
            steps[0] = 0
            here = steps[1 : 1 + width]
            np.subtract(head, np.maximum(begins, first, out=here) if first else begins, out=here)
            np.maximum(here, 0, out=here)
            self._newest = newest
            if oldest.size:
                np.subtract(lasts[oldest], first - 1, out=steps[1 + width :])

        def whole() -> npt.NDArray[np.bool_]:
            out = np.ones(steps.size, np.bool_)
            np.greater_equal(begins, first, out=out[1 : 1 + begins.size])
            out[1 + width :] = False
            return out

        def firsts(places: Ids) -> Ids:
            out = np.full(places.size, first * width)
            is_newest = places <= width
            newest, older = is_newest.nonzero()[0], (~is_newest).nonzero()[0]
            environments = places[newest] - 1
            out[newest] = np.maximum(begins[environments], first) * width + environments
            out[older] += oldest[places[older] - (1 + width)]
            return out

        start, stop = ended.first_from(first), ended.stop
        return LaneEpisodes(width, ended.origin, start, stop, cut, firsts, steps, whole, 0)

    def ended(self, lane: int, numbers: Ids) -> tuple[Ids, Ids]:  # noqa: ARG002 (there is one)
        """See `Index`."""
        return self._follow().episodes(numbers)
