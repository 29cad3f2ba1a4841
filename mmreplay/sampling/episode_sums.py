"""Sums over episodes, so that a draw finds its episode by a binary search.

Invariant: the sums are those of the index as it is now, whatever has grown or gone since; what an
episode counts is worked out once after it has ended, and not again for each draw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mmreplay.episode_index import Index, LaneEpisodes
from mmreplay.ids import Ids, distinct

_KEEP = 64
_ROOM = 64
_BLOCK, _LONG = 256, 1 << 16  # of bounds that are searched


@dataclass(slots=True, eq=False)
class _Ended:
    """The episodes of one lane that are over, by their numbers in the index.

    Attributes:
        origin: number of the first one here.
        n: how many.
        sums: (n + 1,) and room to grow: what those before the i-th count together.
        place: of the first one here that counts.
        below: (h,) of those that are cut, what those before each count together, themselves and
            other cut ones left out.
        skipped: (h + 1,) what so many of the cut ones would count.
    """

    origin: int = 0
    n: int = 0
    sums: Ids = field(default_factory=lambda: np.zeros(_ROOM, np.int64))
    place: int = 0
    below: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    skipped: Ids = field(default_factory=lambda: np.zeros(1, np.int64))

    def follow(
        self, episodes: LaneEpisodes, index: Index, lane: int, count: Callable[[Ids], Ids]
    ) -> int:
        """Add the episodes that ended since, and forget those that cannot be sampled any more.

        Returns what all count that can be.
        """
        if self.origin + self.n < episodes.known:  # what was not seen here is known no more
            self.origin, self.n = episodes.known, 0
            self.sums[0] = 0
        gone = episodes.start - self.origin
        if gone > max(self.n // 2, _KEEP):
            gone = min(gone, self.n)
            kept = self.n - gone
            self.sums[: kept + 1] = self.sums[gone : self.n + 1]
            self.origin += gone
            self.n = kept
        stop = episodes.stop - self.origin
        if stop > self.n:
            if stop >= len(self.sums):
                self.sums = np.resize(self.sums, stop + stop // 2 + 1)
            _, steps = index.ended(lane, np.arange(self.origin + self.n, episodes.stop))
            self.sums[self.n + 1 : stop + 1] = self.sums[self.n] + count(steps).cumsum()
            self.n = stop
        self.place = episodes.start - self.origin
        total = int(self.sums[self.n] - self.sums[self.place])
        if episodes.cut.size or self.below.size:
            cut = episodes.cut - self.origin
            counts = self.sums[cut + 1] - self.sums[cut]
            self.skipped = np.append(0, counts.cumsum())
            self.below = self.sums[cut] - self.skipped[:-1]
            total -= int(self.skipped[-1])
        return total

    def at(self, ranks: Ids) -> tuple[Ids, Ids]:
        """The numbers of the episodes that ranks fall into, and the ranks within these."""
        sought = ranks + self.sums[self.place]
        if self.below.size:
            sought += self.skipped[self.below.searchsorted(sought, "right")]
        places = _places(self.sums[: self.n + 1], sought)
        return places + self.origin, sought - self.sums[places]


class EpisodeSums:
    """See the module. `count` tells what episodes of int64 (n,) steps count: int64 (n,), 0 or more.

    Of 0 steps it is 0. `whole` leaves out episodes whose oldest steps cannot be sampled any more;
    otherwise such a one counts by the steps that it has left.
    """

    def __init__(self, count: Callable[[Ids], Ids], *, whole: bool = False) -> None:
        self._count, self._whole = count, whole
        self._index: Index | None = None
        self._version = -1
        self._ended: list[_Ended] = []
        # What the parts before each part count. A part is one of the episodes that are listed one
        # by one, or all that are over, of one lane.
        self._bounds = np.zeros(1, np.int64)
        self._steps = np.empty(0, np.int64)  # of each part
        self._found: list[LaneEpisodes] = []
        self._begins = self._places = np.empty(0, np.int64)  # of each lane: its parts, those over
        self._strides = np.empty(0, np.int64)
        self._joined: tuple[Ids, Ids, Ids, Ids] | None = None

    def follow(self, index: Index) -> int:
        """Add what is new in an index, forget what is gone; returns what all episodes count."""
        if index is self._index and index.version == self._version:
            if self._joined is None and len(self._ended) > 1:
                self._join()
            return int(self._bounds[-1])
        self._joined, self._version = None, -1
        if index is not self._index:
            self._index = index
            self._ended = [_Ended() for _ in range(index.n_lanes)]
        found = [index.episodes(lane) for lane in range(index.n_lanes)]
        totals = [
            ended.follow(episodes, index, lane, self._count)
            for lane, (ended, episodes) in enumerate(zip(self._ended, found, strict=True))
        ]
        self._strides = np.array([episodes.stride for episodes in found])
        # Of one lane they are as they are: with many environments a copy takes its time.
        steps = [episodes.steps for episodes in found]
        self._steps = steps[0] if len(steps) == 1 else np.concatenate(steps)
        if self._whole:
            self._steps = self._steps * np.concatenate([episodes.whole() for episodes in found])
        sizes = [episodes.steps.size for episodes in found]
        self._begins = np.cumsum([0, *sizes[:-1]])
        self._places = self._begins + np.array([episodes.place for episodes in found])
        counts = self._count(self._steps)
        counts[self._places] = totals
        self._bounds = np.empty(counts.size + 1, np.int64)
        self._bounds[0] = 0
        np.cumsum(counts, out=self._bounds[1:])
        self._found = found
        self._version = index.version
        return int(self._bounds[-1])

    def _join(self) -> None:
        """The ended episodes of all lanes side by side: worth it for an index that stands still."""
        index: Index = self._index  # type: ignore[assignment]
        counts: list[Ids] = []
        firsts: list[Ids] = []
        steps: list[Ids] = []
        for lane, ended in enumerate(self._ended):
            numbers = np.arange(ended.origin + ended.place, ended.origin + ended.n)
            here = np.diff(ended.sums[ended.place : ended.n + 1])
            cut = index.episodes(lane).cut - numbers[:1]
            here[cut] = 0
            counts.append(here)
            for parts, part in zip((firsts, steps), index.ended(lane, numbers), strict=True):
                parts.append(part)
        offsets = np.cumsum([0, *(counted.sum() for counted in counts)])
        bounds = np.append(0, np.concatenate(counts).cumsum())
        self._joined = bounds, np.concatenate(firsts), np.concatenate(steps), offsets

    def at(self, ranks: Ids) -> tuple[Ids, Ids, Ids, Ids]:
        """The episodes that `ranks` (B,) fall into, each below what `follow` has just returned.

        (B,) each: the id of the oldest step that can be sampled, how many steps there are from it
        on, the rank within what the episode counts, and how far its steps' ids lie apart.
        """
        index: Index = self._index  # type: ignore[assignment]
        parts = self._bounds.searchsorted(ranks, "right") - 1
        within = ranks - self._bounds[parts]
        steps = self._steps[parts]
        firsts = np.empty_like(steps)
        lanes = self._begins.searchsorted(parts, "right") - 1
        is_over = parts == self._places[lanes]
        one_by_one, over = (~is_over).nonzero()[0], is_over.nonzero()[0]
        for lane in distinct(lanes[one_by_one]).tolist():
            here = one_by_one[lanes[one_by_one] == lane]
            firsts[here] = self._found[lane].firsts(parts[here] - self._begins[lane])
        if self._joined is not None:
            bounds, every_first, every_steps, offsets = self._joined
            sought = within[over] + offsets[lanes[over]]
            episodes = _places(bounds, sought)
            within[over] = sought - bounds[episodes]
            firsts[over], steps[over] = every_first[episodes], every_steps[episodes]
        else:
            for lane in distinct(lanes[over]).tolist():
                here = over[lanes[over] == lane]
                numbers, within[here] = self._ended[lane].at(within[here])
                firsts[here], steps[here] = index.ended(lane, numbers)
        return firsts, steps, within, self._strides[lanes]

    def longest(self) -> int:
        """Steps of the longest episode, of those that are counted."""
        index: Index = self._index  # type: ignore[assignment]
        longest = int(self._steps.max(initial=0))
        for lane in range(len(self._ended)):
            episodes = index.episodes(lane)
            numbers = np.arange(episodes.start, episodes.stop)
            numbers = np.delete(numbers, episodes.cut - episodes.start)
            longest = max(longest, int(index.ended(lane, numbers)[1].max(initial=0)))
        return longest


def _places(bounds: Ids, sought: Ids) -> Ids:
    """Between which two of `bounds`, ascending, each lies: (B,); each is below the last one.

    The steps of a long binary search wait for memory, one after the other. So those of all searches
    are taken together, but for the first ones, among few bounds.
    """
    step = _BLOCK if bounds.size >= _LONG else 1
    out: Ids = bounds[::step].searchsorted(sought, "right") - 1
    out *= step
    while step > 1:
        step //= 2
        out += (bounds.take(out + step, mode="clip") <= sought) * step
    return out
