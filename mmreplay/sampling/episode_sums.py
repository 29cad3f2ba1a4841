"""Sums over episodes, so that a draw finds its episode by a binary search.

Invariant: the sums are those of the index as it is now, whatever has grown or gone since; what an
episode counts is worked out once after it has ended, and not again for each draw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mmreplay.episode_index import Index
from mmreplay.ids import LANE_SHIFT, Ids, distinct

_PARTS = 3  # of a lane: its oldest episode, those that are whole and over, its newest
_KEEP = 64
_ROOM = 64


@dataclass(slots=True, eq=False)
class _Ended:
    """The episodes of one lane that are over, in the order of their rows.

    Attributes:
        origin: number of the first one here, counted from the oldest that the index was loaded
            with.
        n: how many.
        sums: (n + 1,) and room to grow: what those before the i-th count together.
    """

    origin: int = 0
    n: int = 0
    sums: Ids = field(default_factory=lambda: np.zeros(_ROOM, np.int64))

    def follow(
        self, starts: Ids, skipped: int, forgotten: int, count: Callable[[Ids], Ids]
    ) -> tuple[int, int]:
        """Add the episodes that ended since, and forget those that cannot be sampled any more.

        Returns the places, of those here, of the first and of the one after the last episode that
        began above the lane's first row.
        """
        if self.origin + self.n < forgotten:  # what was not seen here is known no more
            self.origin, self.n = forgotten, 0
            self.sums[0] = 0
        gone = forgotten + skipped - self.origin
        if gone > max(self.n // 2, _KEEP):
            gone = min(gone, self.n)
            kept = self.n - gone
            self.sums[: kept + 1] = self.sums[gone : self.n + 1]
            self.origin += gone
            self.n = kept
        fresh = starts[self.origin + self.n - forgotten :]
        if len(fresh) > 1:
            stop = self.n + len(fresh)
            if stop > len(self.sums):
                self.sums = np.resize(self.sums, stop + stop // 2)
            counts = count(np.diff(fresh) - 1)  # the last row is no transition
            self.sums[self.n + 1 : stop] = self.sums[self.n] + counts.cumsum()
            self.n = stop - 1
        return min(forgotten + skipped - self.origin, self.n), self.n


class EpisodeSums:
    """See the module. `count` tells what episodes of int64 (n,) steps count: int64 (n,), 0 or more.

    `whole` leaves out episodes whose oldest steps cannot be sampled any more; otherwise such a one
    counts by the steps that it has left.
    """

    def __init__(self, count: Callable[[Ids], Ids], *, whole: bool = False) -> None:
        self._count, self._whole = count, whole
        self._index: Index | None = None
        self._version = -1
        self._ended: list[_Ended] = []
        self._bounds = np.zeros(1, np.int64)  # what the parts before each part count
        # Of each part but the middle one: row of the first step, and steps.
        self._rows = self._steps = np.zeros((0, _PARTS), np.int64)
        self._joined: tuple[Ids, Ids, Ids, Ids] | None = None
        self._places: list[int] = []  # of the first ended episode that counts, in each lane

    def follow(self, index: Index) -> int:
        """Add what is new in an index, forget what is gone; returns what all episodes count."""
        if index is self._index and index.version == self._version:
            if self._joined is None and len(self._ended) > 1:
                self._join()
            return int(self._bounds[-1])
        self._joined = None
        self._version = index.version
        if index is not self._index:
            self._index = index
            self._ended = [_Ended() for _ in range(index.n_lanes)]
        n = index.n_lanes
        self._rows = np.zeros((n, _PARTS), np.int64)
        self._steps = np.zeros((n, _PARTS), np.int64)
        totals = np.zeros((n, _PARTS), np.int64)
        self._places.clear()
        for lane, ended in enumerate(self._ended):
            _, first, head = index.window(lane)
            starts, skipped, forgotten = index.known_resets(lane)
            place, stop = ended.follow(starts, skipped, forgotten, self._count)
            self._places.append(place)
            totals[lane, 1] = ended.sums[stop] - ended.sums[place]
            has_newest = len(starts) > skipped
            end = starts[skipped] if has_newest else head
            if not self._whole or (skipped and starts[skipped - 1] == first):
                self._rows[lane, 0] = first
                self._steps[lane, 0] = max(int(end) - 1 - first, 0)
            if has_newest:
                self._rows[lane, 2] = starts[-1]
                self._steps[lane, 2] = head - 1 - starts[-1]
        for part in (0, 2):
            totals[:, part] = self._count(self._steps[:, part])
        self._bounds = np.zeros(_PARTS * n + 1, np.int64)
        np.cumsum(totals.ravel(), out=self._bounds[1:])
        return int(self._bounds[-1])

    def _join(self) -> None:
        """The ended episodes of all lanes side by side: worth it for an index that stands still."""
        counts, firsts, lengths = [], [], []
        for lane, (ended, place) in enumerate(zip(self._ended, self._places, strict=True)):
            starts, _, forgotten = self._index.known_resets(lane)  # type: ignore[union-attr]
            here = starts[ended.origin + place - forgotten :][: ended.n - place + 1]
            counts.append(np.diff(ended.sums[place : ended.n + 1]))
            firsts.append(here[: ended.n - place])
            lengths.append(np.diff(here) - 1)
        offsets = np.cumsum([0, *(counted.sum() for counted in counts)])
        bounds = np.append(0, np.concatenate(counts).cumsum())
        self._joined = bounds, np.concatenate(firsts), np.concatenate(lengths), offsets

    def at(self, ranks: Ids) -> tuple[Ids, Ids, Ids]:
        """The episodes that `ranks` (B,) fall into, each below what `follow` has just returned.

        (B,) each: the id of the oldest step that can be sampled, how many steps there are from it
        on, and the rank within what the episode counts.
        """
        parts = self._bounds.searchsorted(ranks, "right") - 1
        within = ranks - self._bounds[parts]
        lanes = parts // _PARTS
        rows, steps = self._rows.ravel()[parts], self._steps.ravel()[parts]
        over = (parts % _PARTS == 1).nonzero()[0]
        if self._joined is not None:
            bounds, firsts, lengths, offsets = self._joined
            sought = within[over] + offsets[lanes[over]]
            episodes = bounds.searchsorted(sought, "right") - 1
            within[over] = sought - bounds[episodes]
            rows[over], steps[over] = firsts[episodes], lengths[episodes]
            return rows + (lanes << LANE_SHIFT), steps, within
        for lane in distinct(lanes[over]).tolist():
            here = over[lanes[over] == lane]
            ended, place = self._ended[lane], self._places[lane]
            sums = ended.sums[: ended.n + 1]
            sought = within[here] + sums[place]
            episodes = sums.searchsorted(sought, "right") - 1
            within[here] = sought - sums[episodes]
            starts, _, forgotten = self._index.known_resets(lane)  # type: ignore[union-attr]
            episodes += ended.origin - forgotten
            rows[here] = starts[episodes]
            steps[here] = starts[episodes + 1] - starts[episodes] - 1
        return rows + (lanes << LANE_SHIFT), steps, within

    def longest(self) -> int:
        """Steps of the longest episode, of those that are counted."""
        longest = int(self._steps.max(initial=0))
        for lane in range(len(self._ended)):
            starts, skipped, _ = self._index.known_resets(lane)  # type: ignore[union-attr]
            longest = max(longest, int((np.diff(starts[skipped:]) - 1).max(initial=0)))
        return longest
