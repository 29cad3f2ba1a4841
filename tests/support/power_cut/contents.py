"""What a store of a history must hold, of one environment or of many, and how it comes to it.

Invariant: a step or a reset is in the model before the writer is asked for it, for it may be
committed when the crash comes; what the crash leaves of the newest ones is cut off the model then.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.support.oracle.vectors import CONTEXT_TICKS, FLAGS, VectorModel

import mmreplay
from mmreplay import VectorWriter
from mmreplay.format.columns import tick_columns
from mmreplay.format.layout import ArraySpec
from mmreplay.reading.column_views import LaneView
from mmreplay.schema import FRAME
from mmreplay.storage import priority_column
from mmreplay.storage.priority_column import PriorityColumn
from mmreplay.writing.log import Log
from mmreplay.writing.writer import Writer
from tests.support.oracle import checks
from tests.support.oracle.layout import Layout
from tests.support.oracle.model import LaneModel, Model
from tests.support.power_cut.layouts import AnyLayout, VectorLayout

__all__ = ["Contents", "LaneContents", "VectorContents", "contents_of"]

Array = npt.NDArray[Any]


class LaneContents:
    """Of a lane of one environment; its length is the number of its rows."""

    writer_type = Writer

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.model: Model = layout.model()

    @property
    def arguments(self) -> dict[str, Any]:
        """Keywords for `mmreplay.create`."""
        return self.layout.create_arguments()

    @property
    def _lane(self) -> LaneModel:
        return self.model.lanes[0]

    def __len__(self) -> int:
        return len(self._lane.rows)

    def copy(self) -> LaneContents:
        """Contents that can be cut without changing these."""
        out = LaneContents(self.layout)
        out.model = self.model.copy()
        return out

    def cut(self, head: int) -> None:
        """Rows from `head` on were lost."""
        self._lane.cut(head)

    def end_session(self) -> None:
        """The writer closed."""
        self._lane.end_session()

    def step(self, writer: Writer, luck: random.Random, number: int) -> None:
        """A step or a reset; what is written to stores of other numbers differs."""
        value = len(self) * 7 + 1 + number * 37
        frames: Any = {
            name: np.full(one.shape, value % 250 + 1, one.dtype)
            for name, one in self.layout.schema.frames.items()
        }
        frame = frames if self.model.schema.is_dict else frames[FRAME]
        if not writer.running or luck.random() < 0.05:
            self._lane.reset(frame)
            writer.reset(frame)
            return
        action = np.full(self.layout.action.shape, value, self.layout.action.dtype)
        flag = luck.choice((*FLAGS, *("",) * 20))
        more: dict[str, Any] = {name: float(value) for name in self.layout.extras}
        if flag:
            more[flag] = True
        self._lane.step(action, value, frame, **more)
        writer.step(action, value, frame, **more)

    def has_to_wait(self, writer: Writer) -> bool:
        """Whether the next step does, for a shard."""
        return writer._head >= writer._sealer.half_stop

    def logs(self, writer: Writer) -> dict[str, Log]:
        """By the path in the store that their arrays' paths begin with."""
        return {"": writer.files.log}

    def arrays(self, log: Log, path: Path) -> dict[str, ArraySpec]:
        """By path, those of the log at a path that have chunk files of its rows."""
        return log.specs

    def check(self, store: mmreplay.Store) -> None:
        """What a store that is open for writing, or closed, holds: all of it."""
        checks.check_columns(store, self.model)
        self._lane.forget(store.lanes[0].base)
        checks.check_ids(store, self.model)

    def check_seen(self, store: mmreplay.Store) -> None:
        """What a reader finds in a store at any moment: the rows that there are by then."""
        found = self.model.copy()
        found.lanes[0].cut(store.lanes[0].rows)
        checks.check_columns(store, found)


class VectorContents:
    """Of a lane of many environments that step together; its length is the number of its ticks."""

    writer_type = VectorWriter

    def __init__(self, layout: VectorLayout) -> None:
        self._whole, self.layout, self._width = layout, layout.layout, layout.width
        self.model = VectorModel(self.layout.schema, self._width, self.layout.capacity)
        self._n_calls = 0
        self._column: PriorityColumn | None = None
        # By cell, each that it may have: as it was when they were made durable, and since.
        self._priorities: dict[int, list[float]] = {}
        self._is_unsure = False  # whether power was lost since they were read

    @property
    def arguments(self) -> dict[str, Any]:
        """Keywords for `mmreplay.create`."""
        return {**self.layout.create_arguments(), "lanes": self._width}

    def __len__(self) -> int:
        return len(self.model.ticks)

    def copy(self) -> VectorContents:
        """Contents that can be cut without changing these."""
        out = VectorContents(self._whole)  # stores with copies have no priorities
        out.model, out._n_calls = self.model.copy(), self._n_calls
        return out

    def cut(self, head: int) -> None:
        """Ticks from `head` on were lost, and all episodes are over."""
        self.model.cut(head)

    def end_session(self) -> None:
        """The writer closed."""
        self.model.end_session()

    def step(self, writer: VectorWriter, luck: random.Random, number: int) -> None:
        """A step or a reset; what is written to stores of other numbers differs.

        No two calls give the same, so that what a lost one has left shows in the next one's place.
        """
        if self._column is not None and luck.random() < 0.2:
            self._give_priority(writer, self._column, luck)
        self._n_calls += 1
        value = self._n_calls * 7 + number * 37
        values = value + np.arange(self._width) * 50
        given: Any = {
            name: np.stack([np.full(one.shape, v % 250 + 1, one.dtype) for v in values])
            for name, one in self.layout.schema.frames.items()
        }
        is_dict = self.layout.schema.is_dict
        frames = given if is_dict else given[FRAME]
        single = [
            {name: one[e] for name, one in given.items()} if is_dict else frames[e]
            for e in range(self._width)
        ]
        some = self._to_reset(luck)
        if some:
            mask = np.isin(np.arange(self._width), some)
            self.model.reset({e: single[e] for e in some})
            writer.reset(frames, None if mask.all() and luck.random() < 0.5 else mask)
            return
        running = sorted(self.model.running)
        action = self.layout.action
        actions = np.stack([np.full(action.shape, v, action.dtype) for v in values])
        rewards = values.astype(self.layout.reward_dtype)
        picked = [
            luck.choice((*FLAGS, *("",) * 20)) if e in running else "" for e in range(self._width)
        ]
        flags = {name: np.array([one == name for one in picked]) for name in FLAGS}
        extras = {name: values.astype(one.dtype) for name, one in self.layout.extras.items()}
        self.model.step(
            {
                e: (
                    actions[e],
                    rewards[e],
                    single[e],
                    {name: bool(one[e]) for name, one in flags.items()},
                    {name: one[e] for name, one in extras.items()},
                )
                for e in running
            }
        )
        all_run = len(running) == self._width
        mask = None if all_run and luck.random() < 0.7 else np.isin(np.arange(self._width), running)
        writer.step(actions, rewards, frames, **flags, **extras, mask=mask)

    def _to_reset(self, luck: random.Random) -> list[int]:
        """The environments that the next call resets; a step of the others comes if none."""
        everyone, running = range(self._width), self.model.running
        idle = [e for e in everyone if e not in running]
        pick = luck.random()
        if pick < 0.06 or not running:  # in mid-episode, too, or once more before any step
            return luck.sample(everyone, luck.randrange(1, self._width + 1))
        if idle and pick < 0.6:
            return [e for e in idle if luck.random() < 0.8]
        return []

    def has_to_wait(self, writer: VectorWriter) -> bool:
        """Whether the next step or reset does, for a shard."""
        ends = [(writer._ticks, 1), (writer._starts, self._width)]
        return any(one.log.head + n > one._sealer.half_stop for one, n in ends)

    def logs(self, writer: VectorWriter) -> dict[str, Log]:
        """By the path in the store that their arrays' paths begin with."""
        starts, ticks = writer.files.logs
        return {"starts/": starts, "ticks/": ticks}

    def arrays(self, log: Log, path: Path) -> dict[str, ArraySpec]:
        """By path, those of the log at a path that have chunk files of its rows."""
        own = priority_column.find_spec(path, log.width)
        return log.specs if own is None else {**log.specs, own.path: own}

    def open_priorities(self, writer: VectorWriter, *, exact: bool) -> None:
        """As a prioritized buffer does; compares those that are there.

        Args:
            writer: that has the lane open.
            exact: whether each has to be the last one, as nothing but the process was lost.

        Raises:
            AssertionError: one is another than it may be.
        """
        if not self._whole.has_priorities:
            return
        # Killed on the way to read them, the next writer is the first to see what the power left.
        self._is_unsure |= not exact
        exact = not self._is_unsure
        files, start, stop = writer.files, writer.base * self._width, writer.rows * self._width
        column = PriorityColumn(files.log.path, (start, stop), files.log.width)
        column.reach((start, stop + 1))  # so that there is something past the head
        past = column.values[column.positions(np.array([stop]))[0] :]
        if past.any():
            raise AssertionError(f"{writer.path}: priorities past the head: expected zeros")
        found = column.values[column.positions(np.arange(start, stop))].tolist()
        for cell, value in enumerate(found, start):
            known = self._priorities.get(cell, [0.0])
            if value not in (known[-1:] if exact else known):
                raise AssertionError(
                    f"{writer.path}: priority of cell {cell}: expected {known}, found {value}"
                )
        # What the power has left is all that there is; a kill leaves more in the page cache.
        self._priorities = {
            cell: self._priorities[cell] if exact else [value]
            for cell, value in enumerate(found, start)
            if cell in self._priorities
        }
        self._is_unsure = False
        self._column = column
        files.on_flush = self._save_priorities

    def _save_priorities(self) -> None:
        if self._column is not None:
            self._column.sync()
            self._priorities = {cell: known[-1:] for cell, known in self._priorities.items()}

    def _give_priority(
        self, writer: VectorWriter, column: PriorityColumn, luck: random.Random
    ) -> None:
        """To a transition of one of the ticks that may be sampled."""
        first = self.model.first
        if first == len(self.model.ticks):
            return
        tick = luck.randrange(first, len(self.model.ticks))
        cell = tick * self._width + luck.choice(sorted(self.model.ticks[tick]))
        column.reach((writer.base * self._width, writer.rows * self._width))
        column.values[column.positions(np.array([cell]))] = value = luck.random() + 1
        self._priorities.setdefault(cell, [0.0]).append(value)

    def check(self, store: mmreplay.Store) -> None:
        """What a store that is open for writing, or closed, holds: all of it."""
        self._check(store, self.model, ended=True)

    def check_seen(self, store: mmreplay.Store) -> None:
        """What a reader finds in a store at any moment: the ticks that there are by then."""
        found = self.model.copy()
        found.cut(store.lanes[0].rows)
        self._check(store, found, ended=False)

    def _check(self, store: mmreplay.Store, model: VectorModel, *, ended: bool) -> None:
        view = store.lanes[0]
        base, greatest = view.base, max(model.first - CONTEXT_TICKS, 0)
        if base > greatest:
            raise AssertionError(f"base: expected at most {greatest}, found {base}")
        model.forget(base)
        expected = _expected_columns(model, base)
        for path, column in _columns(view).items():
            found, wanted = column[base:], expected[path]
            if path == "ends" and (not ended or store.live.readers[0].is_closed):
                # Which of the episodes in the newest tick are over it says once it is opened again.
                found, wanted = found[:-1], wanted[:-1]
            checks.check_same(found, wanted, f"{view.path}: {path} from tick {base}")
        # Of few steps: those of all are in the columns, but for what starts and stacks are.
        model.check(store, [{"stack": 3, "n_step": 2, "gamma": 0.5}], most=40, ended=ended)


def _columns(view: LaneView) -> dict[str, Any]:
    """The columns of a vector lane by path; of `episode` only where there is a step."""
    frames = view.frames
    out: dict[str, Any] = (
        {f"frames/{name}": one for name, one in frames.items()}
        if isinstance(frames, dict)
        else {"frames": frames}
    )
    out |= {name: getattr(view, name) for name in ("actions", "rewards", "non_terminals", "ends")}
    out |= {f"extras/{name}": one for name, one in view.extras.items()}
    return {**out, "episode": view.episode[:] >= 0}


def _expected_columns(model: VectorModel, base: int) -> dict[str, Array]:
    """The same of ticks from `base` on; zeros where an environment was left out."""
    n, width = len(model.ticks) - base, model.width
    columns = tick_columns(model.schema, width).items()
    out = {path: np.zeros((n, *one.row_shape), one.dtype) for path, one in columns}
    out["episode"] = out["episode"].astype(bool)
    frames = {path: key for key, path in model.schema.frame_paths.items()}
    for t, tick in enumerate(model.ticks[base:]):
        for e in tick:
            lane, number = model.lanes.lanes[e], model.row(base + t, e)
            row, following = lane.rows[number : number + 2]
            is_last = number + 2 == len(lane.rows)
            for path, key in frames.items():
                out[path][t, e] = following.frame[key]
            out["actions"][t, e], out["rewards"][t, e] = row.action, row.reward
            out["non_terminals"][t, e] = row.non_terminal
            for name, value in row.extras.items():
                out[f"extras/{name}"][t, e] = value
            out["ends"][t, e] = not lane.running if is_last else lane.rows[number + 2].is_reset
            out["episode"][t, e] = True
    return out


Contents = LaneContents | VectorContents


def contents_of(layout: AnyLayout) -> Contents:
    """Those of an empty store."""
    return VectorContents(layout) if isinstance(layout, VectorLayout) else LaneContents(layout)
