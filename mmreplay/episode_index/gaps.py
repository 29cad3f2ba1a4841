"""`Gaps`: which environments were left out of which rows of a lane.

Invariant: a run is a stretch of rows that leave out the same environments, and neighbours differ.
What a draw costs depends on the number of runs, not on rows, environments or entries.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mmreplay.errors import CorruptStoreError
from mmreplay.format.layout import CONTEXT_ROWS
from mmreplay.ids import Array, Ids, distinct

_BLOCK_ENTRIES = 1 << 20
_ROOM = 64
_KEEP = 64


def floor_row(base: int) -> int:
    """The oldest row that may be sampled when rows below `base` are gone: its stack is whole."""
    return base + CONTEXT_ROWS if base else 0


Rows = Callable[[str, int, int], Array]
"""Gives rows [start, stop) of the column at a path, as (rows, n) or flat."""


class Gaps:
    """The rows [start, head) of a lane of `n` environments, with `count` transitions.

    A lane of one environment has no gaps: it is one run, and nothing is read. `where` is the lane,
    for messages of errors.
    """

    def __init__(self, n: int, start: int, where: object) -> None:
        self._n, self.where = n, where
        self.head, self.count = start, 0
        self._n_runs = 0
        self._forgotten = 0  # runs
        # Of each run: its first row, the transitions before it, the environments that are there,
        # and where the keys of those that are left out begin.
        self._rows, self._before, self._present, self._places = np.empty((4, _ROOM), np.int64)
        # Of the k-th environment left out of run i, counted with the forgotten ones:
        # i * (n + 1) + environment - k. So they ascend over all runs, and one search tells how
        # many are left out before the j-th environment that is there.
        self._keys = np.empty(_ROOM, np.int64)
        self._n_keys = 0
        self._out = np.ones(n, np.bool_)  # left out of the newest row
        if n == 1:
            self._rows[0], self._before[0], self._present[0], self._places[0] = start, 0, 1, 0
            self._n_runs, self._out[0] = 1, False

    @property
    def is_full(self) -> bool:
        """Whether every environment is in every row, as far as rows are still known."""
        return not self._n_keys

    def follow(self, head: int, rows: Rows) -> None:
        """Take the rows up to `head`, from the `ends` of each row before and the `resets`."""
        n = self._n
        if n == 1:
            self.count += head - self.head
            self.head = head
            return
        if self._n_runs == 0 and self.head < head:
            present = rows("step", self.head, self.head + 1).reshape(1, n) > 0
            self._append(np.array([self.head]), ~present)
            self._take(self.head + 1)
        while self.head < head:
            start, stop = self.head, min(self.head + max(_BLOCK_ENTRIES // n, 1), head)
            # An environment that is there stays, unless it ended and is not reset; one that is not
            # comes with a reset.
            ends, resets = rows("ends", start - 1, stop - 1), rows("resets", start, stop)
            changes = (ends != resets).reshape(-1)
            found = changes.nonzero()[0]
            if found.size:
                changes = changes.reshape(-1, n)
                changed = distinct(found // n)
                out = np.logical_xor.accumulate(changes[changed], axis=0)
                self._append(changed + start, out ^ self._out)
            self._take(stop)

    def _append(self, rows: Ids, out: Array) -> None:
        """Add runs that begin with these rows, (m,), with environments left out, (m, n)."""
        m, n = rows.size, self._n
        runs, absent = out.nonzero()
        present = n - np.bincount(runs, minlength=m)
        if not present.all():
            row = int(rows[(present == 0).argmax()])
            raise CorruptStoreError(
                f"{self.where}: row {row:,} has no transition of any environment, according to "
                f"`ends` and `resets`; run `mmreplay verify`"
            )
        first, stop = self._n_runs, self._n_runs + m
        self._make_room(stop, self._n_keys + runs.size)
        begins = np.cumsum(n - present) - (n - present)  # of the keys of each of these runs
        numbers = runs + (first + self._forgotten)
        keys = numbers * (n + 1) + absent - (np.arange(runs.size) - begins[runs])
        self._keys[self._n_keys : self._n_keys + runs.size] = keys
        self._rows[first:stop], self._present[first:stop] = rows, present
        self._places[first:stop] = begins + self._n_keys
        before = self._before[first:stop]
        before[0] = self.count + self._since(int(rows[0]))
        if m > 1:
            np.cumsum((rows[1:] - rows[:-1]) * present[:-1], out=before[1:])
            before[1:] += before[0]
        self.count, self.head = int(before[-1]), int(rows[-1])
        self._n_runs, self._n_keys = stop, self._n_keys + runs.size
        self._out = out[-1].copy()

    def _since(self, row: int) -> int:
        """Transitions of the newest run from `head` to `row`."""
        return (row - self.head) * int(self._present[self._n_runs - 1]) if self._n_runs else 0

    def _take(self, head: int) -> None:
        self.count, self.head = self.count + self._since(head), head

    def _make_room(self, runs: int, keys: int) -> None:
        if runs > self._rows.size:
            of_runs = self._rows, self._before, self._present, self._places
            self._rows, self._before, self._present, self._places = (
                np.resize(one, runs + runs // 2) for one in of_runs
            )
        if keys > self._keys.size:
            self._keys = np.resize(self._keys, keys + keys // 2)

    def forget(self, row: int) -> None:
        """Rows below this one will not be asked for any more."""
        if self._n_runs <= _KEEP:
            return
        gone = int(self._rows[: self._n_runs].searchsorted(row, "right")) - 1
        if gone <= max(self._n_runs // 2, _KEEP):
            return
        left, key = self._n_runs - gone, int(self._places[gone])
        for one in (self._rows, self._before, self._present, self._places):
            one[:left] = one[gone : self._n_runs].copy()
        self._places[:left] -= key
        self._keys = self._keys[key : self._n_keys].copy()
        self._n_runs, self._n_keys = left, self._n_keys - key
        self._forgotten += gone

    def before(self, row: int) -> int:
        """Transitions below a row of [start, head], as far as it is still known."""
        if not self._n_runs:
            return 0
        runs = self._n_runs
        run = int(self._rows[:runs].searchsorted(row, "right")) - 1 if runs > 1 else 0
        return int(self._before[run]) + (row - int(self._rows[run])) * int(self._present[run])

    def oldest(self, floor: int, capacity: int | None) -> int:
        """The oldest row, `floor` or above, with at most `capacity` transitions from there on."""
        if capacity is None or self.head <= floor:
            return min(floor, self.head)
        gone = self.count - capacity
        run = 0
        if self._n_runs > 1:
            run = max(int(self._before[: self._n_runs].searchsorted(gone)) - 1, 0)
        more = gone - int(self._before[run])
        return max(int(self._rows[run]) - (-more // int(self._present[run])), floor)

    def at(self, numbers: Ids) -> Ids:
        """The entries (row * n + environment) of transitions by number, counted from `start`."""
        n = self._n
        if not self._n_keys:
            shift = int(self._rows[0]) * n - int(self._before[0])
            return np.asarray(numbers + shift)
        runs = self._before[: self._n_runs].searchsorted(numbers, "right") - 1
        rows, which = np.divmod(numbers - self._before.take(runs), self._present.take(runs))
        sought = (runs + self._forgotten) * (n + 1) + which
        which += self._keys[: self._n_keys].searchsorted(sought, "right")
        which -= self._places.take(runs)
        rows += self._rows.take(runs)
        rows *= n
        rows += which
        return rows
