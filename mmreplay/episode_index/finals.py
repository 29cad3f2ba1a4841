"""`LaneFinals`: the episodes of one lane that are over, as its log of final observations has them.

Invariant: `ids` ascend by row; within a row they stand in the order in which the episodes ended.
So a search for a row finds its place, and one for an entry at least its row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids

_NEVER = np.iinfo(np.int64).max
_FEW = 64
_FEWER = 4  # times as many as wait are in order already
_NO_KEYS = np.full(1, _NEVER)


class LaneFinals:
    """The finals that are known of a lane of `n` environments; entries are row * n + environment.

    Attributes:
        base, stop: their rows in the log; `word` is the head of the log when they were taken.
        ids, firsts: the last and the first entries of the episodes.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.base = self.stop = self.word = 0
        self.ids: Array = np.empty(0, np.int64)
        self.firsts: Array = self.ids
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
        return not (
            np.any(firsts < 0)
            or np.any(firsts > ids)
            or np.any((ids - firsts) % self.n)
            or np.any(np.diff(ids // self.n) < 0)
        )

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
        """Steps to the end of the episode of each entry, itself included; None if any runs."""
        if self.n > 1:
            lasts = self.last_rows(entries)
            return None if (lasts < 0).any() else lasts - entries // self.n + 1, None
        found = self.ids.searchsorted(entries)
        if not found.size or found[found.argmax()] == self.ids.size:
            return None, None
        out: Ids = self.ids.take(found)
        out -= entries
        out += 1
        found += self.base
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
        out = np.full(entries.shape, -1)
        left = np.arange(entries.size)
        for ends in (self._old, self._new):
            found = ends[ends.searchsorted(keys[left])]
            here = found >> LANE_SHIFT == envs[left]
            out[left[here]] = found[here] & ROW_MASK
            left = left[~here]
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
