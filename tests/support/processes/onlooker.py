"""Readers that follow a store while others write it, and check all that they are shown.

Invariant: an onlooker opens its store once. Whatever happens to the writers, every batch holds what
its ids say, no row is offered that the capacity has taken, and the newest rows come by themselves.

What the rows hold follows from the plot of an actor's `Script`; how many there are at least, from
what the actors acknowledge.
"""

import contextlib
import json
import os
import random
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.datasets.load import load
from mmreplay.datasets.prioritized_buffer import PrioritizedReplayBuffer
from mmreplay.errors import EmptyBufferError, InvalidIdError
from tests.support.oracle.model import LANE_SHIFT
from tests.support.oracle.script import Turn
from tests.support.processes.actor import Chronicle
from tests.support.processes.forks import started

STACK = 3
"""Frames an observation, of the dataset that an onlooker gets."""
_BATCH = 16
# A store that was closed and opened again is noticed within a second, but not by a process that
# was not given the processor.
_LATE_S = 30.0
_LEAST = 20  # batches
_LOOKS = 30


class _Lane:
    """What the lane must offer at a given head."""

    def __init__(self, script):
        self._plot, self._capacity, self._n = script.plot, script.capacity, script.envs or 1
        self._starts = [None] * self._n
        self._rows = []  # the entries that are transitions

    def offered(self, head, begun):
        """The transitions of `head` rows, `begun` being the rows where sessions began."""
        for row in range(len(self._rows), head):
            starts = [None] * self._n if row in begun else self._starts
            turn = Turn.at(self._plot, row, starts)
            here = [env for env, start in enumerate(turn.starts) if start is not None]
            self._rows.append([row * self._n + env for env in here])
            self._starts = turn.goes_on
        first, left = head, self._capacity
        while first and (left is None or left >= len(self._rows[first - 1])):
            first -= 1
            left = None if left is None else left - len(self._rows[first])
        return [entry for entries in self._rows[first:head] for entry in entries]


class Onlooker:
    def __init__(self, script, data, seed):
        self._script, self._plot, self._data = script, script.plot, data
        self._luck = random.Random(seed)
        self._chronicle = Chronicle.follow(script)
        self._width, self._lanes = script.envs or 1, [_Lane(script)]
        self._late_since = None
        self._late_looks = 0
        self._seen: tuple[Any, ...] = ()
        self.counts = dict.fromkeys(
            ("batches", "rows", "evictions", "seals", "sessions", "gone", "late_ms"), 0
        )
        self._kinds = [
            self._uniform,
            self._distinct,
            self._n_step,
            self._sequences,
            self._portions,
            self._trajectories,
            self._epoch,
            self._look_up,
            self._rows,
        ]
        if isinstance(data, PrioritizedReplayBuffer):
            self._kinds.append(self._priorities)

    def begin(self, heads):
        """A session began here, of a writer that is no actor and writes no log."""
        self._chronicle.begin(heads)

    def look(self):
        """Read something, in one way or another."""
        self._look_at_the_index()
        try:
            self.counts["rows"] += self._luck.choice(self._kinds)()
            self.counts["batches"] += 1
        except EmptyBufferError:
            pass  # nothing of the kind yet
        except InvalidIdError:
            self.counts["gone"] += 1  # between one call and the next
        self._note()

    def run(self, over):
        """Look until it is over."""
        while not over():
            self.look()

    # ------------------------------------------------------------ what is offered, and how soon

    def _look_at_the_index(self):
        least = self._chronicle.committed

        def look(index):
            heads = [index.window(number)[2] for number in range(len(self._lanes))]
            return [head // self._width for head in heads], index.ids()

        heads, ids = self._data.store.live.look(look)
        self._check_late(heads, least)
        begun = self._chronicle.begun()
        expected = [
            row + (number << LANE_SHIFT)
            for number, lane in enumerate(self._lanes)
            for row in lane.offered(heads[number], begun[number])
        ]
        if ids.tolist() != expected:
            wrong = sorted(set(ids.tolist()) ^ set(expected))
            raise AssertionError(
                f"heads {heads}: {len(ids)} transitions are offered, expected {len(expected)}; "
                f"they differ in {wrong[:20]}"
            )

    def _check_late(self, heads, least):
        now = time.monotonic()
        if all(head >= rows for head, rows in zip(heads, least, strict=True)):
            self._late_since, self._late_looks = None, 0
            return
        self._late_since = self._late_since or now
        self._late_looks += 1
        late = now - self._late_since
        self.counts["late_ms"] = max(self.counts["late_ms"], int(late * 1000))
        if late > _LATE_S and self._late_looks > _LOOKS:
            raise AssertionError(f"after {late:.1f} s: {heads} rows, {least} were acknowledged")

    def _first(self):
        """Ids below which nothing may be offered from now on."""
        return self._data.store.live.look(
            lambda index: [index.window(n)[1] + (n << LANE_SHIFT) for n in range(len(self._lanes))]
        )

    def _check_window(self, ids, first):
        old = ids < np.array(first)[ids >> LANE_SHIFT]
        if old.any():
            raise AssertionError(f"{ids[old].tolist()} had been evicted: {first} was the oldest")

    def _note(self):
        """Count what has happened to the store since the last look."""
        readers = self._data.store.live.readers
        tails = [one.rows.tail_start() for one in readers]
        state = (readers, [one.base for one in readers], tails)
        if self._seen:
            known, bases, tails_before = self._seen
            self.counts["sessions"] += known is not readers
            self.counts["evictions"] += sum(map(_grown, bases, state[1]))
            self.counts["seals"] += sum(map(_grown, tails_before, tails))
        self._seen = state

    # ------------------------------------------------------------ ways to read

    def _uniform(self):
        first = self._first()
        batch = self._data.sample(_BATCH)
        self._plot.check_batch(batch, STACK)
        self._check_window(batch.id, first)
        return len(batch)

    def _distinct(self):
        if isinstance(self._data, PrioritizedReplayBuffer) or len(self._data) < _BATCH:
            return 0
        batch = self._data.sample(_BATCH, replace=False)
        self._plot.check_batch(batch, STACK)
        if len(set(batch.id.tolist())) != _BATCH:
            raise AssertionError(f"the same transition twice: {batch.id.tolist()}")
        return len(batch)

    def _n_step(self):
        n_step, gamma = 3, 0.5
        ids = self._data.sample(_BATCH).id
        heads = [self._data.store.live.rows(number) for number in range(len(self._lanes))]
        batch = self._data.transitions(ids, n_step=n_step, gamma=gamma)
        steps = self._plot.check_batch(batch, STACK, n_step=n_step, gamma=gamma)
        (begun,), plot = self._chronicle.begun(), self._plot
        for player, row, m in zip(
            *(one.tolist() for one in (*plot.places(ids), steps)), strict=True
        ):
            after = row + m
            ended, _, lost = plot.flags(player, after - 1)
            over = ended or lost or after >= heads[0]
            if m < n_step and not (over or after in begun or plot.begins(player, after)):
                raise AssertionError(f"the return of row {row} of {player} ends after {m} steps")
        return len(batch)

    def _sequences(self):
        boundary = self._luck.choice(["drop", "pad", "shift"])
        batch = self._data.sample_sequences(4, 5, 2, boundary)
        self._plot.check_sequences(batch, STACK)
        return int(batch.mask.sum())

    def _portions(self):
        batch = self._data.sample_portions(4, 3)
        self._plot.check_sequences(batch, STACK)
        return int(batch.mask.sum())

    def _trajectories(self):
        rows = 0
        for one in self._data.sample_trajectories(2):
            with contextlib.suppress(InvalidIdError):
                self._plot.check_trajectory(one)
                rows += len(one)
        return rows

    def _epoch(self):
        rows = 0
        seen = set()
        for number, batch in enumerate(self._data.batches(_BATCH)):
            self._plot.check_batch(batch, STACK)
            rows += len(batch)
            seen |= set(batch.id.tolist())
            if number > 10:
                break
        if len(seen) != rows:
            raise AssertionError("an epoch gave a transition twice")
        return rows

    def _look_up(self):
        ids = self._data.ids
        some = np.array(self._luck.choices(ids.tolist(), k=_BATCH)) if ids.size else ids
        newest = np.concatenate((some, ids[-2:]))
        self._plot.check_batch(self._data.transitions(newest), STACK)
        return len(newest)

    def _rows(self):
        """The newest rows of a lane, as columns."""
        number = self._luck.randrange(len(self._lanes))
        store = self._data.store
        rows = np.arange(store.live.rows(number))[-_BATCH:]
        for name, path in self._script.schema.frame_paths.items():
            found = store.live.read_rows(number, path, rows)
            # A closed lane that is opened again is noticed within a second. Until then these may
            # have been evicted, and what is below base reads as zeros.
            kept = rows >= store.index.window(number)[0] // self._width
            self._check_frames(name, rows[kept], found[kept])
        return len(rows)

    def _check_frames(self, name, rows, frames):
        """The frames of some rows are those before them; zeros where an environment was left out."""
        apart = frames.reshape(len(rows), self._width, *self._script.fields[name].shape)
        here = apart.reshape(*apart.shape[:2], -1).any(2)
        envs = np.nonzero(here)[1]
        places = self._plot.frames[name].read(apart[here])
        wanted = np.broadcast_to(rows[:, None], here.shape)[here]
        # Environment 0 is in each row; its very first frame may be all zeros.
        if not (
            (here[:, 0] | (rows == 0)).all()
            and (places[:, 0] == envs).all()
            and (places[:, 1] == wanted).all()
        ):
            raise AssertionError(f"rows {rows.tolist()} show {places.tolist()}")

    def _priorities(self):
        data = self._data
        if not isinstance(data, PrioritizedReplayBuffer):
            return 0
        batch = data.sample(_BATCH)
        self._plot.check_batch(batch, STACK)
        if not ((batch.weight > 0) & (batch.weight <= 1)).all():
            raise AssertionError(f"weights {batch.weight.tolist()}")
        data.update_priorities(batch.id, [self._luck.random() * 3 for _ in batch.id])
        return len(batch)


def _grown(old, new):
    return new > old


def look_on(script, over, seed, result, data):
    """Be an onlooker, in a process of one's own, and leave in the file `result` what was seen."""
    wrong = None
    counts = {}
    try:
        with contextlib.ExitStack() as stack:
            mine = data or stack.enter_context(load(script.path, stack=STACK, seed=seed))
            onlooker = Onlooker(script, mine, seed)
            counts = onlooker.counts
            onlooker.run(lambda: counts["batches"] >= _LEAST and os.path.exists(over))
    except BaseException:
        wrong = traceback.format_exc()
    Path(result).write_text(json.dumps({**counts, "wrong": wrong}), encoding="utf-8")


class Onlookers:
    """Processes that look on, each started in its own way; a context manager, which ends them."""

    def __init__(self, folder, script):
        self._folder, self._script, self._over = folder, script, folder / "over"
        self._running = []

    def start(self, method, data=None):
        number = len(self._running)
        result = self._folder / f"onlooker-{number}"
        arguments = (self._script, str(self._over), number, str(result), data)
        self._running.append((started(look_on, *arguments, method=method), result))

    @property
    def alive(self):
        """Whether one is still looking."""
        return any(process.is_alive() for process, _ in self._running)

    def end(self):
        """Let each look on until it has seen some batches, and no longer."""
        self._over.touch()

    def join(self):
        """The counts of each, once all have ended."""
        out = []
        for process, result in self._running:
            process.join()
            if process.exitcode != 0:
                raise AssertionError(f"an onlooker ended with status {process.exitcode}")
            out.append(json.loads(result.read_text(encoding="utf-8")))
        if wrong := [text for one in out if (text := one.pop("wrong"))]:
            raise AssertionError("\n".join(wrong))
        return out

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process, _result in self._running:
            process.kill()
            process.join()
