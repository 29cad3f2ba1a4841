"""What a store of a history must hold, and how it comes to it.

Invariant: a step or a reset is in the model before the writer is asked for it, for it may be
committed when the crash comes; what the crash leaves of the newest ones is cut off the model then.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

import mmreplay
from mmreplay.format.layout import ArraySpec
from mmreplay.schema import FRAME
from mmreplay.storage import priority_column
from mmreplay.storage.priority_column import PriorityColumn
from mmreplay.writing.log import Log
from mmreplay.writing.vector_writer import VectorWriter
from mmreplay.writing.writer import Writer
from tests.support.oracle import checks
from tests.support.oracle.layout import Layout
from tests.support.oracle.model import FLAGS
from tests.support.power_cut.layouts import PRIORITIES

__all__ = ["Contents"]

_SETTINGS = {"stack": 3, "n_step": 2, "gamma": 0.5}


class Contents:
    """Of a lane; its length is the number of its rows.

    Args:
        layout: of the store; steps of those of `PRIORITIES` get priorities.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.model = layout.model()
        self.lane = self.model.lanes[0]
        self._n_calls = 0
        self._column: PriorityColumn | None = None
        # By entry, each that it may have: as it was when they were made durable, and since.
        self._priorities: dict[int, list[float]] = {}
        self._is_unsure = False  # whether power was lost since they were read

    def __len__(self) -> int:
        return len(self.lane.rows)

    def copy(self) -> Contents:
        """Contents that can be cut without changing these."""
        out = Contents(self.layout)  # stores with copies have no priorities
        out.model, out._n_calls = self.model.copy(), self._n_calls
        out.lane = out.model.lanes[0]
        return out

    def cut(self, head: int) -> None:
        """Rows from `head` on were lost, and all episodes are over."""
        self.lane.cut(head)

    def end_session(self) -> None:
        """The writer closed."""
        self.lane.end_session()

    # ------------------------------------------------------------ what a writer does

    def step(self, writer: Writer | VectorWriter, luck: random.Random, number: int) -> None:
        """A step or a reset; what is written to stores of other numbers differs.

        No two calls give the same, so that what a lost one has left shows in the next one's place.
        """
        if self._column is not None and luck.random() < 0.2:
            self._give_priority(writer, self._column, luck)
        self._n_calls += 1
        lane, layout = self.lane, self.layout
        values = self._n_calls * 7 + number * 37 + np.arange(lane.n) * 50
        frames = {
            name: np.stack([np.full(one.shape, v % 250 + 1, one.dtype) for v in values])
            for name, one in layout.schema.frames.items()
        }
        some = self._to_reset(luck)
        if some:
            lane.reset({e: self._frames(frames, e) for e in some})
            self._reset(writer, frames, some, luck)
            return
        running, action = sorted(lane.running), layout.action
        picked = {e: luck.choice((*FLAGS, *("",) * 20)) for e in running}
        flags = {n: np.array([picked.get(e) == n for e in range(lane.n)]) for n in FLAGS}
        actions = np.stack([np.full(action.shape, v, action.dtype) for v in values])
        extras = {name: values.astype(one.dtype) for name, one in layout.extras.items()}
        lane.step(
            {
                e: (
                    actions[e],
                    float(values[e]),
                    self._frames(frames, e),
                    {name: bool(one[e]) for name, one in flags.items()},
                    {name: one[e] for name, one in extras.items()},
                )
                for e in running
            }
        )
        if isinstance(writer, Writer):
            one = {name: bool(given[0]) for name, given in flags.items() if given[0]}
            one |= {name: float(given[0]) for name, given in extras.items()}
            writer.step(actions[0], float(values[0]), self._frames(frames, 0), **one)
            return
        all_run = len(running) == lane.n and luck.random() < 0.7
        mask = None if all_run else np.isin(np.arange(lane.n), running)
        rewards = values.astype(layout.reward_dtype)
        writer.step(actions, rewards, self._frames(frames), **flags, **extras, mask=mask)

    def _frames(self, frames: dict[str, Any], env: int | None = None) -> Any:
        """Those of one environment, or of all, as a call is given them."""
        chosen = {name: one if env is None else one[env] for name, one in frames.items()}
        return chosen if self.model.schema.is_dict else chosen[FRAME]

    def _reset(
        self, writer: Writer | VectorWriter, frames: Any, some: list[int], luck: random.Random
    ) -> None:
        if isinstance(writer, Writer):
            writer.reset(self._frames(frames, 0))
            return
        mask = np.isin(np.arange(self.lane.n), some)
        writer.reset(self._frames(frames), None if mask.all() and luck.random() < 0.5 else mask)

    def _to_reset(self, luck: random.Random) -> list[int]:
        """The environments that the next call resets; a step of the others comes if none."""
        everyone, running = range(self.lane.n), self.lane.running
        idle = [e for e in everyone if e not in running]
        pick = luck.random()
        if pick < 0.06 or not running:  # in mid-episode, too, or once more before any step
            return luck.sample(everyone, luck.randrange(1, self.lane.n + 1))
        if idle and pick < 0.6:
            return [e for e in idle if luck.random() < 0.8]
        return []

    def has_to_wait(self, writer: Writer | VectorWriter) -> bool:
        """Whether the next step or reset does, for a shard."""
        session = writer._session
        ends = [(session.rows, 2), (session._finals, self.lane.n)]
        return any(one.log.head + n > one._sealer.half_stop for one, n in ends)

    def arrays(self, log: Log, path: Path) -> dict[str, ArraySpec]:
        """By path, those of the log at a path that have chunk files of its rows."""
        own = priority_column.find_spec(path, self.lane.environments)
        return log.specs if own is None else {**log.specs, own.path: own}

    # ------------------------------------------------------------ priorities

    def open_priorities(self, writer: Writer | VectorWriter, *, exact: bool) -> None:
        """As a prioritized buffer does; compares those that are there.

        Args:
            writer: that has the lane open.
            exact: whether each has to be the last one, as nothing but the process was lost.

        Raises:
            AssertionError: one is another than it may be.
        """
        if self.layout not in PRIORITIES:
            return
        # Killed on the way to read them, the next writer is the first to see what the power left.
        self._is_unsure |= not exact
        exact = not self._is_unsure
        files, n = writer.files, self.lane.n
        start, stop = writer.base * n, writer.rows * n
        column = PriorityColumn(files.rows.path, (start, stop), files.environments)
        column.reach((start, stop + 1))  # so that there is something past the head
        past = column.values[column.positions(np.array([stop]))[0] :]
        if past.any():
            raise AssertionError(f"{writer.path}: priorities past the head: expected zeros")
        found = column.values[column.positions(np.arange(start, stop))].tolist()
        for entry, value in enumerate(found, start):
            known = self._priorities.get(entry, [0.0])
            if value not in (known[-1:] if exact else known):
                raise AssertionError(
                    f"{writer.path}: priority of {entry}: expected {known}, found {value}"
                )
        # What the power has left is all that there is; a kill leaves more in the page cache.
        self._priorities = {
            entry: self._priorities[entry] if exact else [value]
            for entry, value in enumerate(found, start)
            if entry in self._priorities
        }
        self._is_unsure = False
        self._column = column
        files.on_flush = self._save_priorities

    def _save_priorities(self) -> None:
        if self._column is not None:
            self._column.sync()
            self._priorities = {entry: known[-1:] for entry, known in self._priorities.items()}

    def _give_priority(
        self, writer: Writer | VectorWriter, column: PriorityColumn, luck: random.Random
    ) -> None:
        """To a transition of one of the rows that may be sampled."""
        ids, n = self.lane.transitions(), self.lane.n
        if not ids:
            return
        entry = luck.choice(ids)
        column.reach((writer.base * n, writer.rows * n))
        column.values[column.positions(np.array([entry]))] = value = luck.random() + 1
        self._priorities.setdefault(entry, [0.0]).append(value)

    # ------------------------------------------------------------ what must be

    def check(self, store: mmreplay.Store) -> None:
        """What a store that is open for writing, or closed, holds: all of it."""
        checks.check_store(store, self.model, settings=[_SETTINGS], most=40)

    def check_seen(self, store: mmreplay.Store) -> None:
        """What a reader finds in a store at any moment: the rows that there are by then.

        Whether the episodes in the newest row are over is just being said.
        """
        found = self.copy()
        found.cut(store.lanes[0].rows)
        checks.check_columns(store, found.model, but_newest_ends=True)
        checks.forget(store, found.model)
        checks.check_ids(store, found.model)
        ids = found.model.ids()[-20:]
        seen = store.transitions(ids, **_SETTINGS)
        expected = found.model.batch(ids, **_SETTINGS, padding=store.padding)
        checks.check_batch(seen, expected, "transitions", endings=False)
