"""`TickIndex`: the index of one vector lane, whose ids are cells.

Invariant: a cell is a transition if and only if its `episode` is 0 or more; where its episode began
stands in the starts, and where it ends in `ends`. No draw is ever in vain, nor does it cost more
where there are more environments or episodes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index.ended_episodes import EndedEpisodes, begins_of, late_step
from mmreplay.episode_index.episodes import LaneEpisodes
from mmreplay.episode_index.oldest import first_tick, floor_tick
from mmreplay.episode_index.steps import Span, Steps
from mmreplay.episode_index.tick_source import TickSource
from mmreplay.errors import CorruptStoreError
from mmreplay.ids import LANE_SHIFT, Ids

_SORT_FROM = 64
_NONE = np.empty(0, np.int64)
_NO_STEP = np.zeros(1, np.int64)
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
        self._starts = (0, 0)
        self._counts = _NONE  # of the ticks from first on
        self._before = 0  # transitions below first
        self._is_full = True  # whether each cell from first on is a transition
        self._ended: EndedEpisodes | None = None
        self._environments = np.arange(self._width)
        self._order = self._environments  # of the last episodes that first cuts through

    # ------------------------------------------------------------ keeping it up to date

    def load(self, base: int, head: int, capacity: int | None, starts: tuple[int, int]) -> None:
        """Set the ticks [base, head) and the starts [base, head) that there are."""
        self._capacity, self._ended = capacity, None
        self._take(base, head, starts, floor_tick(base))

    def extend(self, base: int, head: int, starts: tuple[int, int]) -> None:
        """Ticks and starts were appended; those below `base` may be gone."""
        self._take(base, head, starts, self._first)

    def _take(self, base: int, head: int, starts: tuple[int, int], floor: int) -> None:
        """Take bounds; ticks below `floor` are not sampled."""
        source = self._source
        first = first_tick(source.counts, floor, head, self._capacity)
        counts = source.counts(first, head) if first < head else _NONE
        before = int(source.counts(first - 1, first)[0]) if 0 < first < head else 0
        if counts.size and not 0 <= int(counts[-1]) - before <= (head - first) * self._width:
            raise self._wrong_counts()
        self._base, self._first, self._head, self._starts = base, first, head, starts
        self._counts, self._before = counts, before
        # As where no step leaves an environment out: there is nothing to search for.
        self._is_full = self.n_transitions == (head - first) * self._width
        self.version += 1

    # ------------------------------------------------------------ transitions

    @property
    def n_transitions(self) -> int:
        """See `Index`."""
        return int(self._counts[-1]) - self._before if self._counts.size else 0

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
        if self._is_full:
            return ranks + self._first * self._width
        # Neighbours in a sorted search share their cache lines; the order drawn is put back.
        if ranks.size > _SORT_FROM:
            order = ranks.argsort()
            out = np.empty_like(ranks)
            out[order] = self._at(ranks[order])
            return out
        return self._at(ranks)

    def _at(self, ranks: Ids) -> Ids:
        width = self._width
        sought = ranks + self._before
        places = self._counts.searchsorted(sought, "right")
        if not places.size:
            return _NONE
        if places.max() >= self._counts.size:
            raise self._wrong_counts()
        before = np.where(places > 0, self._counts[places - 1], self._before)
        within = sought - before
        present = self._counts[places] - before
        if within.min() < 0 or present.max() > width or (within >= present).any():
            raise self._wrong_counts()
        ticks = (places + self._first) * width
        cells = ticks + within
        partial = (present < width).nonzero()[0]
        if partial.size:
            self._replace_absent(cells, ticks, partial)
        return cells

    def _replace_absent(self, cells: Ids, ticks: Ids, some: Ids) -> None:
        """Put the cell that an absent one names in its place; see docs/format.md."""
        named = self._source.episodes(cells[some])
        absent = (named < 0).nonzero()[0]
        if not absent.size:
            return
        some, others = some[absent], -1 - named[absent]
        if others.min() < 0 or others.max() >= self._width:
            raise self._wrong_counts()
        others += ticks[some]
        if self._source.episodes(others).min() < 0:
            raise self._wrong_counts()
        cells[some] = others

    def _wrong_counts(self) -> CorruptStoreError:
        return CorruptStoreError(
            f"{self._where}: `count` and `episode` disagree on how many transitions a tick has; "
            f"run `mmreplay verify`"
        )

    def ids(self) -> Ids:
        """See `Index`."""
        start, width, n = self._first * self._width, self._width, self._head - self._first
        # Only ticks that are not full are read.
        partial = (np.diff(self._counts, prepend=self._before) != width).nonzero()[0]
        if not partial.size:
            return np.arange(start, start + n * width)
        there = np.ones((n, width), np.bool_)
        cells = (partial + self._first)[:, None] * width + np.arange(width)
        there[partial] = self._source.episodes(cells) >= 0
        out: Ids = np.flatnonzero(there) + start
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
        behind = ticks - self._begins(starts, ticks)
        left = self._left(ids, ticks, ahead) if ahead > 1 else None
        return Steps(ids, self._width, 1, starts + _STARTS_PART, behind, left)

    def _left(self, ids: Ids, ticks: Ids, ahead: int) -> Ids:
        """Steps to the end of the episode or the head, at most `ahead`."""
        room = self._head - ticks
        offsets = np.minimum(np.arange(ahead - 1), room[:, None] - 1)
        ended = self._source.ends(ids[:, None] + offsets * self._width) != 0
        left = np.where(ended.any(1), ended.argmax(1) + 1, ahead)
        return np.minimum(left, room)

    def span(self, ids: Ids) -> Span:
        """See `Index`; raises as `steps`."""
        width = self._width
        ticks = ids // width
        starts = self._source.episodes(ids)
        back = ticks - self._begins(starts, ticks)
        ended = self._follow()
        numbers = ended.numbers(starts)
        left = self._head - ticks
        over = (numbers >= 0).nonzero()[0]
        left[over] = ended.lasts(numbers[over]) - ticks[over] + 1
        if left.size and left.min() < 1:
            raise late_step(self._where)
        steps = Steps(ids, width, 1, starts + _STARTS_PART, back, left)
        return Span(steps, back, np.minimum(back, ticks - self._first), left)

    def _begins(self, starts: Ids, ticks: Ids | int) -> Ids:
        return begins_of(self._source, starts, ticks, self._starts[1], self._where)

    # ------------------------------------------------------------ episodes

    def _follow(self) -> EndedEpisodes:
        """The episodes that are over. Those with a step in the newest tick may still go on."""
        if self._ended is None:
            self._ended = EndedEpisodes(self._source, self._where)
        self._ended.follow(self._first, self._head - 1, self._starts)
        return self._ended

    def episodes(self, lane: int) -> LaneEpisodes:  # noqa: ARG002 (there is one)
        """See `Index`; the list is that of all which are over, the running ones, those cut."""
        ended, width, first = self._follow(), self._width, self._first
        start, stop = ended.first_from(first), ended.stop
        environments, _, begins = self._in_tick(self._head - 1)
        begins_here = np.maximum(begins, first)
        firsts = [_NO_STEP, begins_here * width + environments]
        steps = [_NO_STEP, self._head - begins_here]
        whole = [np.ones(1, np.bool_), begins >= first]
        cut = _NONE
        if first:
            environments, starts, begins = self._in_tick(first)
            earlier = (begins < first).nonzero()[0]
            numbers = ended.numbers(starts[earlier])
            over = (numbers >= 0).nonzero()[0]
            environments, numbers = environments[earlier[over]], numbers[over]
            if numbers.size and numbers.min() < start:
                raise late_step(self._where)
            firsts.append(first * width + environments)
            steps.append(ended.lasts(numbers) - first + 1)
            whole.append(np.zeros(numbers.size, np.bool_))
            cut = self._sorted(environments, numbers)
        return LaneEpisodes(
            width,
            ended.origin,
            start,
            stop,
            cut,
            np.concatenate(firsts),
            np.concatenate(steps),
            np.concatenate(whole),
            0,
        )

    def _in_tick(self, tick: int) -> tuple[Ids, Ids, Ids]:
        """Environments with a step in a tick, the starts of their episodes, and their ticks."""
        if not self._first <= tick < self._head:
            return _NONE, _NONE, _NONE
        starts = self._source.episodes(self._environments + tick * self._width)
        environments = self._environments
        if starts.min() < 0:
            environments = (starts >= 0).nonzero()[0]
            starts = starts[environments]
        return environments, starts, self._begins(starts, tick)

    def _sorted(self, environments: Ids, numbers: Ids) -> Ids:
        """Numbers, one of each environment, ascending.

        Most are those of the last time: in the order of then they are nearly sorted, which takes a
        tenth of the time for thousands of environments.
        """
        by_environment = np.full(self._width, -1)
        by_environment[environments] = numbers
        before = by_environment[self._order]
        order = before.argsort(kind="stable")
        self._order = self._order[order]
        return np.asarray(before[order[self._width - numbers.size :]], np.int64)

    def ended(self, lane: int, numbers: Ids) -> tuple[Ids, Ids]:  # noqa: ARG002 (there is one)
        """See `Index`."""
        return self._follow().episodes(numbers)
