"""What happened in a lane of several environments, in plain Python, and what an index reads of it.

`History` plays at random: environments are left out between their episodes, lives are lost, some
episodes are cut off by a reset in the middle. `Index` sees it through columns that refuse whatever
lies outside of the rows and finals that it may know.
"""

import random

import numpy as np

from mmreplay.episode_index import Index, Sources, floor_row
from mmreplay.ids import LANE_SHIFT, ROW_MASK


class History:
    """One lane. `rows` are dicts of environment -> (number of the step, ended, terminal flag)."""

    def __init__(self, n, seed, *, ends=0.2, idle=0.3, middle=0.02, capacity=None):
        self.n, self.capacity = n, capacity
        self._random = random.Random(seed)
        self._ends, self._idle, self._middle = ends, idle, middle
        self.rows, self.finals = [], []  # finals: (last entry, first entry)
        self._steps = [0] * n
        self._runs = [False] * n
        self.base = self.finals_base = 0
        self.is_closed = False
        self.late_finals = False  # those of the newest row are not committed yet

    @classmethod
    def of(cls, *lengths, capacity=None):
        """Of one environment: episodes of these lengths, the last of which still runs."""
        out = cls(1, 0, capacity=capacity)
        for length in lengths:
            if out.rows:
                out.reset_in_the_middle(0)
            out.extend(length, reset=True)
        return out

    def extend(self, n_steps, *, reset=False):
        """Steps of the one environment, which end no episode."""
        self._steps = [0] if reset else self._steps
        for _ in range(n_steps):
            self._steps[0] += 1
            self.rows.append({0: [self._steps[0], False, True]})

    def play(self, n_rows):
        for _ in range(n_rows):
            self.step()
        return self

    def step(self):
        there = []
        for env in range(self.n):
            if self._runs[env] and self.rows and self._random.random() < self._middle:
                self.reset_in_the_middle(env)
            if not self._runs[env] and (self.n == 1 or self._random.random() > self._idle):
                self._runs[env], self._steps[env] = True, 0
            if self._runs[env]:
                there.append(env)
        if not there:
            env = self._random.randrange(self.n)
            self._runs[env], self._steps[env] = True, 0
            there.append(env)
        row, ended = {}, []
        for env in there:
            self._steps[env] += 1
            over = self._random.random() < self._ends
            row[env] = [self._steps[env], over, self._random.random() > 0.5 * over + 0.1]
            if over:
                ended.append(env)
                self._runs[env] = False
        self.rows.append(row)
        for env in self._random.sample(ended, len(ended)):
            self._add_final(env)

    def reset_in_the_middle(self, env):
        row = self.rows[-1].get(env)
        if row and not row[1]:
            row[1] = True
            self._add_final(env)
            self._runs[env] = False

    def _add_final(self, env):
        last = (len(self.rows) - 1) * self.n + env
        self.finals.append((last, last - (self._steps[env] - 1) * self.n))

    def evict(self):
        """What a flush lets go."""
        first = self.first
        self.base = max(self.base, first - 64)
        low = self.base * self.n
        self.finals_base = sum(last < low for last, _ in self.finals)

    def close(self):
        self.is_closed = True
        for env in range(self.n):
            self.reset_in_the_middle(env)

    @property
    def head(self):
        return len(self.rows)

    @property
    def first(self):
        """The oldest row with which there are at most `capacity` transitions."""
        row, left = self.head, np.inf if self.capacity is None else self.capacity
        while row > floor_row(self.base) and len(self.rows[row - 1]) <= left:
            row -= 1
            left -= len(self.rows[row])
        return row

    def known_finals(self):
        stop = len(self.finals)
        while self.late_finals and stop and self.finals[stop - 1][0] // self.n == self.head - 1:
            stop -= 1
        return self.finals_base, stop

    def ids(self, lane=0):
        return [
            (lane << LANE_SHIFT) + row * self.n + env
            for row in range(self.first, self.head)
            for env in sorted(self.rows[row])
        ]


class Column:
    """A column of all lanes; `value(history, entry)` is what stands there."""

    def __init__(self, histories, value, window):
        self._histories, self._value, self._window = histories, value, window

    def take(self, ids):
        out = [self._at(one >> LANE_SHIFT, one & ROW_MASK) for one in ids.ravel().tolist()]
        return np.array(out, self.dtype).reshape(ids.shape)

    def view(self, lane, start, stop):
        return np.array([self._at(lane, entry) for entry in range(start, stop)], self.dtype)

    def _at(self, lane, entry):
        history = self._histories[lane]
        start, stop = self._window(history)
        assert start <= entry < stop, f"{entry} of [{start}, {stop})"
        return self._value(history, entry)

    dtype: type = np.int64


class Flags(Column):
    dtype = np.uint8


class LostError(Exception):
    """What an index raises where a final is missing."""


def sources(histories):
    def entries(history):
        return history.base * history.n, history.head * history.n

    def cell(history, entry):
        return history.rows[entry // history.n].get(entry % history.n)

    def step(history, entry):
        found = cell(history, entry)
        return found[0] if found else 0

    def ended(history, entry):
        found = cell(history, entry)
        is_newest = entry // history.n == history.head - 1
        if found and is_newest and not history.is_closed and history.head % 2:
            return not found[1]  # of the newest row it says nothing
        return bool(found and found[1])

    def reset(history, entry):
        return step(history, entry) == 1

    def finals(history):
        return history.finals_base, len(history.finals)

    return Sources(
        Column(histories, step, entries),
        Flags(histories, ended, entries),
        Flags(histories, reset, entries),
        Column(histories, lambda history, k: history.finals[k][0], finals),
        Column(histories, lambda history, k: history.finals[k][1], finals),
        lambda lane, message: LostError(f"{lane}: {message}"),
    )


def loaded(histories, *, live=True, closed=False):
    """An index of these lanes as they are now."""
    index = Index(sources(histories), [history.n for history in histories])
    for number, history in enumerate(histories):
        index.load(
            f"lane {number}",
            (history.base, history.head),
            history.known_finals(),
            history.capacity,
            live=live,
            closed=closed,
        )
    return index


def follow(index, histories):
    """Let an index take what came to its lanes."""
    for number, history in enumerate(histories):
        index.extend(number, history.base, history.head, history.known_finals())
