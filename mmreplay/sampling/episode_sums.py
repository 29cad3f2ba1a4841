"""Sums over episodes, or the runs of a selection, in which a binary search finds a draw's episode.

Invariant: the sums are those of the present index; without a selection the count of an episode is
computed once, after it has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mmreplay.episode_index import Index, LaneEpisodes
from mmreplay.ids import LANE_SHIFT, Ids, distinct
from mmreplay.sampling.selection import Selection

Counted = tuple[Ids, Ids]
"""Of each episode the number of the first window or step that counts, and the count: (n,) each."""
CountSelected = Callable[[Ids, Ids, Ids], Counted]

_NONE = np.empty(0, np.int64)
_KEEP = 64
_ROOM = 64
_BLOCK, _LONG = 256, 1 << 16  # of bounds that are searched


@dataclass(slots=True, eq=False)  # not frozen: that takes longer
class _Ended:
    """The finished episodes of one lane."""

    origin: int = 0  # number in the index of the first one
    n: int = 0  # how many
    # (n + 1,) and room to grow: counts before each
    sums: Ids = field(default_factory=lambda: np.zeros(_ROOM, np.int64))
    start: int = 0  # first one that counts
    # of partly evicted ones: counts of others before each, (h,), and of the first ones, (h + 1,)
    cut: tuple[Ids, Ids] | None = None

    def followed(
        self, episodes: LaneEpisodes, index: Index, lane: int, count: Callable[[Ids], Ids]
    ) -> tuple[_Ended, int]:
        """With new finished episodes, without those that cannot be sampled; and the count.

        Both may share `sums`, of which this one has its first `n + 1` only.
        """
        origin, n, sums = self.origin, self.n, self.sums
        if origin + n < episodes.known:  # those in between are unknown
            origin, n, sums = episodes.known, 0, np.zeros(_ROOM, np.int64)
        gone = episodes.start - origin
        if gone > max(n // 2, _KEEP):
            gone = min(gone, n)
            origin, n, sums = origin + gone, n - gone, sums[gone : n + 1].copy()
        stop = episodes.stop - origin
        if stop > n:
            if stop >= len(sums):
                sums = np.resize(sums, stop + stop // 2 + 1)
            _, steps = index.ended(lane, np.arange(origin + n, episodes.stop))
            sums[n + 1 : stop + 1] = sums[n] + count(steps).cumsum()
            n = stop
        out = _Ended(origin, n, sums, episodes.start - origin)
        total = int(sums[n] - sums[out.start])
        if episodes.cut.size:
            cut = episodes.cut - origin
            counts = sums[cut + 1] - sums[cut]
            skipped = np.append(0, counts.cumsum())
            out.cut = sums[cut] - skipped[:-1], skipped
            total -= int(skipped[-1])
        return out, total

    def at(self, ranks: Ids) -> tuple[Ids, Ids]:
        """The numbers of the episodes of these ranks, and the ranks within them."""
        sought = ranks + self.sums[self.start]
        if self.cut is not None:
            below, skipped = self.cut
            sought += skipped[below.searchsorted(sought, "right")]
        found = _interval(self.sums[: self.n + 1], sought)
        return found + self.origin, sought - self.sums[found]


@dataclass(slots=True, eq=False)  # not frozen: that takes longer
class _Sums:
    """The sums of one moment: replaced whole, so that an interrupt leaves these or other ones.

    `bounds` are the counts before each part: a part is one listed episode, or all finished ones of
    a lane. `steps` are of each part; `begins` the first part of each lane, which is that of its
    finished ones. `joined` has those of all lanes.
    """

    index: Index
    version: int
    ended: list[_Ended]
    bounds: Ids
    steps: Ids
    found: list[LaneEpisodes]
    begins: Ids
    strides: Ids
    context: Ids | None = None  # of each part, steps before those that can be sampled
    joined: tuple[Ids, Ids, Ids, Ids] | None = None


class EpisodeSums:
    """See the module. `count` returns the counts, int64 (n,), of episodes of int64 (n,) steps.

    The count of 0 steps is 0. `whole` leaves out episodes whose oldest steps were evicted;
    otherwise their remaining steps count, and up to `reach` of those that were evicted.
    """

    def __init__(self, count: Callable[[Ids], Ids], *, whole: bool = False, reach: int = 0) -> None:
        self._count, self._whole, self._reach = count, whole, reach
        self._now: _Sums | None = None

    def follow(self, index: Index) -> int:
        """Follow an index; returns the count of all episodes."""
        now = self._now
        if now is None or index is not now.index or index.version != now.version:
            now = self._now = self._followed(index, now)
        elif now.joined is None and len(now.ended) > 1:
            now.joined = _joined(now)
        return int(now.bounds[-1])

    def _followed(self, index: Index, known: _Sums | None) -> _Sums:
        lanes = range(index.n_lanes)
        before = known.ended if known and known.index is index else [_Ended() for _ in lanes]
        found = [index.episodes(lane) for lane in lanes]
        pairs = [
            ended.followed(episodes, index, lane, self._count)
            for lane, ended, episodes in zip(lanes, before, found, strict=True)
        ]
        # Without a copy for a single lane: it may have many environments.
        steps = [episodes.steps for episodes in found]
        parts = steps[0] if len(steps) == 1 else np.concatenate(steps)
        context = None
        if self._whole:
            parts = parts * np.concatenate([episodes.whole() for episodes in found])
        elif self._reach:
            context = np.concatenate([episodes.before() for episodes in found])
            context = np.minimum(context, self._reach) * (parts > 0)
            parts = parts + context
        begins = np.cumsum([0, *(one.size for one in steps[:-1])])
        counts = self._count(parts)
        counts[begins] = [total for _, total in pairs]
        bounds = np.empty(counts.size + 1, np.int64)
        bounds[0] = 0
        np.cumsum(counts, out=bounds[1:])
        strides = np.array([episodes.stride for episodes in found])
        ended = [one for one, _ in pairs]
        return _Sums(index, index.version, ended, bounds, parts, found, begins, strides, context)

    def at(self, ranks: Ids) -> tuple[Ids, Ids, Ids, Ids]:
        """The episodes of `ranks` (B,), each below the count that `follow` returned.

        (B,) each: the id of the oldest step that counts, the number of steps from it on, the rank
        within the episode's count, and the distance between the ids of its steps.
        """
        now: _Sums = self._now  # type: ignore[assignment]
        parts = now.bounds.searchsorted(ranks, "right") - 1
        within = ranks - now.bounds[parts]
        steps = now.steps[parts]
        firsts = np.empty_like(steps)
        lanes = now.begins.searchsorted(parts, "right") - 1
        is_over = parts == now.begins[lanes]
        one_by_one, over = (~is_over).nonzero()[0], is_over.nonzero()[0]
        for lane in distinct(lanes[one_by_one]).tolist():
            here = one_by_one[lanes[one_by_one] == lane]
            firsts[here] = now.found[lane].firsts(parts[here] - now.begins[lane])
            if now.context is not None:
                firsts[here] -= now.context[parts[here]] * now.strides[lane]
        if now.joined is not None:
            bounds, every_first, every_steps, offsets = now.joined
            sought = within[over] + offsets[lanes[over]]
            episodes = _interval(bounds, sought)
            within[over] = sought - bounds[episodes]
            firsts[over], steps[over] = every_first[episodes], every_steps[episodes]
        else:
            for lane in distinct(lanes[over]).tolist():
                here = over[lanes[over] == lane]
                numbers, within[here] = now.ended[lane].at(within[here])
                firsts[here], steps[here] = now.index.ended(lane, numbers)
        return firsts, steps, within, now.strides[lanes]


def _joined(now: _Sums) -> tuple[Ids, Ids, Ids, Ids]:
    """The finished episodes of all lanes as one: worth it if the index does not change."""
    counts, episodes = [], []
    for lane, ended in enumerate(now.ended):
        numbers = np.arange(ended.origin + ended.start, ended.origin + ended.n)
        here = np.diff(ended.sums[ended.start : ended.n + 1])
        here[now.found[lane].cut - numbers[:1]] = 0
        counts.append(here)
        episodes.append(now.index.ended(lane, numbers))
    offsets = np.cumsum([0, *(counted.sum() for counted in counts)])
    bounds = np.append(0, np.concatenate(counts).cumsum())
    firsts, steps = (np.concatenate(parts) for parts in zip(*episodes, strict=True))
    return bounds, firsts, steps, offsets


class RowSums:
    """As `EpisodeSums`, over all rows of each environment, whatever episodes are in them."""

    def __init__(self, count: Callable[[Ids], Ids]) -> None:
        self._count = count
        self._now = (_NONE,) * 5

    def follow(self, index: Index) -> int:
        """Follow an index; returns the count of all environments."""
        firsts, stops, environments = index.extents()
        rows = (stops - firsts) // environments
        counts = self._count(rows)
        bounds = np.append(0, (counts * environments).cumsum())
        self._now = bounds, counts, firsts.copy(), rows, environments
        return int(bounds[-1])

    def at(self, ranks: Ids) -> tuple[Ids, Ids, Ids, Ids]:
        """See `EpisodeSums.at`."""
        bounds, counts, firsts, rows, environments = self._now
        lanes = bounds.searchsorted(ranks, "right") - 1
        beside, within = np.divmod(ranks - bounds[lanes], counts[lanes])
        return firsts[lanes] + beside, rows[lanes], within, environments[lanes]


class SelectedSums:
    """As `EpisodeSums`, over the runs of a selection.

    `count(steps, skipped, kept)` counts in episodes of `steps` (n,) steps: the first `skipped` (n,)
    are not selected, the next `kept` (n,) are. `whole` leaves out episodes that are not selected
    whole, too; `across` counts in all rows of an environment instead.
    """

    def __init__(
        self,
        selection: Selection,
        count: CountSelected,
        *,
        whole: bool = False,
        reach: int = 0,
        across: bool = False,
    ) -> None:
        self._selection, self._count, self._whole = selection, count, whole
        self._reach, self._across = reach, across
        self._index: Index | None = None
        self._version = -1
        self._bounds = self._numbers = self._firsts = self._steps = self._strides = _NONE

    def follow(self, index: Index) -> int:
        """Count all runs again if the index has changed; returns the count."""
        if index is self._index and index.version == self._version:
            return int(self._bounds[-1])
        self._index = None  # an interrupt leaves all to the next call
        now = self._selection.now(index)
        firsts, kept = now.stretches() if self._across else (now.firsts(), now.steps)
        oldest, stop, environments = (one[firsts >> LANE_SHIFT] for one in index.extents())
        if self._across:
            skipped = (firsts - oldest) // environments
            steps, whole = (stop - oldest) // environments, None
        else:
            span = index.span(firsts)
            skipped = np.minimum(span.back, span.oldest + self._reach)
            steps, whole = skipped + span.left, span.oldest == span.back
        numbers, counts = self._count(steps, skipped, kept)
        if self._whole:
            counts = counts * (whole & (kept == steps))
        self._strides = environments
        self._firsts = firsts - skipped * environments
        self._steps, self._numbers = steps, numbers
        self._bounds = np.append(0, counts.cumsum())
        self._index, self._version = index, index.version
        return int(self._bounds[-1])

    def at(self, ranks: Ids) -> tuple[Ids, Ids, Ids, Ids]:
        """See `EpisodeSums.at`; the rank within an episode is counted over all of it."""
        runs = self._bounds.searchsorted(ranks, "right") - 1
        within = ranks - self._bounds[runs] + self._numbers[runs]
        return self._firsts[runs], self._steps[runs], within, self._strides[runs]


def sums_over(
    selection: Selection | None,
    count: Callable[[Ids], Ids],
    count_selected: CountSelected,
    *,
    whole: bool = False,
    reach: int = 0,
    across: bool = False,
) -> EpisodeSums | SelectedSums | RowSums:
    """The sums over all episodes, or all rows of environments, or over their selected parts."""
    if selection is not None:
        return SelectedSums(selection, count_selected, whole=whole, reach=reach, across=across)
    return RowSums(count) if across else EpisodeSums(count, whole=whole, reach=reach)


def _interval(bounds: Ids, sought: Ids) -> Ids:
    """The intervals of ascending `bounds` that hold these numbers, (B,).

    Each step of a binary search in much memory waits for it, so all searches go step by step
    together after the first steps, which touch few bounds.
    """
    step = _BLOCK if bounds.size >= _LONG else 1
    out: Ids = bounds[::step].searchsorted(sought, "right") - 1
    out *= step
    while step > 1:
        step //= 2
        out += (bounds.take(out + step, mode="clip") <= sought) * step
    return out
