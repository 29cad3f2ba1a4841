"""The episodes of a lane: those that are over, by number, and the few that are not whole yet.

Invariant: `ids` ascend by row; within a row they stand in the order in which the episodes ended.
So a search for a row finds its place, and one for an entry at least its row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids

_NEVER = np.iinfo(np.int64).max
_FEW = 64
_FEWER = 4  # times as many as wait are in order already
_NO_KEYS = np.full(1, _NEVER)
_NONE = np.empty(0, np.int64)

EPISODE_DTYPE = np.dtype(
    [
        ("id", "int64"),
        ("length", "int64"),
        ("return", "float64"),
        ("terminated", "bool"),
        ("truncated", "bool"),
    ]
)
"""One row an episode: id of its first step, steps, sum of rewards, how it ended."""


class LaneFinals:
    """The finals that are known of a lane of `n` environments; entries are row * n + environment.

    Attributes:
        base, stop: their rows in the log; `word` is the head of the log when they were taken.
        ids, firsts: the last and the first entries of the episodes.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.base = self.stop = self.word = 0
        self.ids: Array = _NONE
        self.firsts: Array = _NONE
        self._head = 0
        self._newest: npt.NDArray[np.bool_] | None = None
        # environment << LANE_SHIFT | row of each end, ascending, with one past all; those that
        # came last by themselves, so that few are moved for a new one.
        self._old = self._new = _NO_KEYS
        self._sorted = 0

    def take(self, base: int, word: int, ids: Array, firsts: Array, head: int) -> None:
        """Take rows [base, word) of the log; those of rows from `head` on are not known yet."""
        n_known = int(ids.searchsorted(head * self.n))
        self.base, self.word, self.stop = base, word, base + n_known
        self.ids, self.firsts = ids[:n_known], firsts[:n_known]
        self._head, self._newest = head, None

    def fits(self, base: int, ids: Array, firsts: Array) -> bool:
        """Whether rows from `base` on can be those of a lane, as far as `take` has not had them."""
        new = min(max(self.word - base - 1, 0), ids.size)
        ids, firsts = ids[new:], firsts[new:]
        rows = ids // self.n
        are_steps = (firsts >= 0) & (firsts <= ids) & ((ids - firsts) % self.n == 0)
        return bool(are_steps.all() and (rows[1:] >= rows[:-1]).all())

    def find(self, entries: Ids) -> Ids:
        """The rows of the log of the episodes that end with these entries, (B,), or -1."""
        ids = self.ids
        if not ids.size:
            return np.full(entries.shape, -1)
        out: Ids = ids.searchsorted(entries)
        others = (ids.take(out, mode="clip") != entries).nonzero()[0]
        out += self.base
        for place in others.tolist():
            entry = int(entries[place])
            row = entry - entry % self.n
            start, stop = ids.searchsorted((row, row + self.n)).tolist()
            here = (ids[start:stop] == entry).nonzero()[0]
            out[place] = start + self.base + here[0] if here.size else -1
        return out

    def newest(self) -> npt.NDArray[np.bool_]:
        """Which episodes ended with the newest row: (n,)."""
        if self._newest is None:
            first = (self._head - 1) * self.n
            ended = self.ids[int(self.ids.searchsorted(first)) :] - first
            newest = np.zeros(self.n, np.bool_)
            newest[ended % self.n] = True
            self._newest = newest
        return self._newest

    def from_row(self, row: int) -> int:
        """The first row of the log whose episode ended in this row of the lane, or later."""
        return self.base + int(self.ids.searchsorted(row * self.n))

    def until(self, entries: Ids) -> tuple[Ids | None, Ids | None]:
        """For one environment: the steps to each episode's end, and that episode's place in `ids`.

        The entry's own step counts. (None, None) if the episode of any entry is still running.
        """
        found = self.ids.searchsorted(entries)
        if not found.size or found[found.argmax()] == self.ids.size:
            return None, None
        out: Ids = self.ids.take(found)
        out -= entries
        out += 1
        return out, found

    def last_rows(self, entries: Ids) -> Ids:
        """The rows in which the episodes of these entries end, (B,); -1 of those that run."""
        n = self.n
        if n == 1:
            found = self.ids.searchsorted(entries)
            out = np.full(entries.shape, -1)
            over = (found < self.ids.size).nonzero()[0]
            out[over] = self.ids[found[over]]
            return out
        self._sort()
        rows, envs = np.divmod(entries, n)
        keys = (envs << LANE_SHIFT) + rows
        out = self._old[self._old.searchsorted(keys)]
        left = (out >> LANE_SHIFT != envs).nonzero()[0]
        out &= ROW_MASK
        if left.size:
            found = self._new[self._new.searchsorted(keys[left])]
            out[left] = np.where(found >> LANE_SHIFT == envs[left], found & ROW_MASK, -1)
        return out

    def _sort(self) -> None:
        """Take what ended since into what `last_rows` searches."""
        if self._sorted >= self.stop:
            return
        ends = self.ids[max(self._sorted - self.base, 0) :]
        keys = (ends % self.n << LANE_SHIFT) + ends // self.n
        old, new = self._old, np.sort(np.concatenate((self._new, keys)))
        if new.size > max(_FEW, old.size // _FEWER):
            old = old[old & ROW_MASK >= self.ids[0] // self.n]
            # Two ascending runs, which a stable sort merges.
            old, new = np.sort(np.concatenate((old[:-1], new)), kind="stable"), _NO_KEYS
        self._old, self._new, self._sorted = old, new, self.stop


@dataclass(frozen=True, slots=True, eq=False)
class LaneEpisodes:
    """The episodes of one lane with steps that can be sampled, as they are now.

    Finished ones have numbers, their rows in the log of finals. Those that run, or whose oldest
    steps cannot be sampled any more, are listed one by one.

    Attributes:
        stride: from the id of a step to that of the next one of its episode.
        known: the smallest number that is still known.
        start, stop: the numbers of finished episodes.
        cut: (n,) those among them, ascending, that are in the list, and count only there.
        firsts: (n,) indices in the list, whose first entry stands for all finished episodes, to
            ids of the oldest steps that can be sampled. Call it, and `before`, before the
            index changes.
        steps: (m,) number of steps from there on; 0 for entries without an episode.
        before: gives (m,) int64, how many steps of the episode come before these.
    """

    stride: int
    known: int
    start: int
    stop: int
    cut: Ids
    firsts: Callable[[Ids], Ids]
    steps: Ids
    before: Callable[[], Ids]

    def whole(self) -> npt.NDArray[np.bool_]:
        """Whether `steps` are all steps of the episode: (m,)."""
        return np.asarray(self.before() == 0)


def lane_episodes(
    finals: LaneFinals, window: tuple[int, int], newest: Ids, oldest: Ids, zero: int
) -> LaneEpisodes | None:
    """The episodes in rows [first, head) of a lane, whose first id is `zero`; None if one lacks.

    `newest` and `oldest` are the `step` of the entries of rows head - 1 and first. The list holds
    the dummy entry, one entry per environment, of 0 steps if none runs, then those that are cut.
    """
    first, head = window
    n = finals.n
    start = finals.from_row(first)
    gone = np.maximum(newest - (head - first), 0)  # steps of running episodes
    counts = newest - gone
    cut = _NONE
    if newest.size:
        over = finals.newest()
        counts[over] = gone[over] = 0
        wanted = int(np.count_nonzero(oldest > 1) - np.count_nonzero(gone))
        if wanted:
            cut = _cut(finals.firsts[start - finals.base :], first * n, wanted)
            if cut.size != wanted:
                return None
    lasts = finals.ids[cut + (start - finals.base)]
    evicted = first - finals.firsts[cut + (start - finals.base)] // n
    n_listed = 1 + newest.size
    steps = np.zeros(n_listed + cut.size, np.int64)
    steps[1:n_listed] = counts
    steps[n_listed:] = lasts // n - (first - 1)

    def firsts(places: Ids) -> Ids:
        runs = (places >= 1) & (places < n_listed)
        begins = np.where(runs, head - steps[places], first) * n
        some, cuts = runs.nonzero()[0], (places >= n_listed).nonzero()[0]
        begins[some] += places[some] - 1
        begins[cuts] += lasts[places[cuts] - n_listed] % n
        return begins + zero

    def before() -> Ids:
        out = np.zeros(steps.size, np.int64)
        out[1:n_listed] = gone
        out[n_listed:] = evicted
        return out

    return LaneEpisodes(n, finals.base, start, finals.stop, cut + start, firsts, steps, before)


def _cut(firsts: Ids, first: int, wanted: int) -> Ids:
    """The indices of the `wanted` episodes that began before an entry; near the front as a rule."""
    found, size, low = _NONE, max(2 * wanted, _FEW), 0
    while low < firsts.size and found.size < wanted:
        here = (firsts[low : low + size] < first).nonzero()[0] + low
        found = np.concatenate((found, here))
        low, size = low + size, 2 * size
    return found[:wanted]
