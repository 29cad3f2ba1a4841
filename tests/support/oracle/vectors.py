"""Environments that step together: what happened to each, and what a vector lane must hold of it.

Invariant: nothing here is shared with the writer, the index or the gather of vector lanes. What a
transition holds is what `Model` says of the same experience in lanes of one environment each; the
arrays on disk follow from docs/format.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from mmreplay.reading.store import Store
from mmreplay.schema import FRAME, Schema
from tests.support.oracle import checks
from tests.support.oracle.model import LANE_SHIFT, LaneModel, Model

__all__ = ["FLAGS", "Episode", "VectorModel", "assert_closed_lane_matches"]

Array = npt.NDArray[Any]
Flags = dict[str, bool]
Columns = dict[str, Array]
FLAGS = ("terminated", "truncated", "life_lost")
CONTEXT_TICKS = 65  # kept below the oldest tick, so that stacks of 65 are whole


@dataclasses.dataclass(eq=False)
class Episode:
    """An episode of one environment.

    Attributes:
        number: its row in the log of starts.
        env: its environment.
        tick: that of its first step, if one came.
        row: of its reset, in its environment's own lane.
        length: steps.
        over: whether no step can follow.
    """

    number: int
    env: int
    tick: int
    row: int
    length: int = 0
    over: bool = False

    def cells(self, width: int) -> list[int]:
        """Those of its steps."""
        return [(self.tick + step) * width + self.env for step in range(self.length)]


class _Environment(LaneModel):
    """Of one environment; what a capacity forgets is forgotten in whole ticks."""

    oldest = 0

    def kept_transitions(self) -> list[int]:
        """Those from the oldest tick on."""
        return [row for row in range(self.oldest, len(self.rows)) if self.is_transition(row)]

    def ending(self, row: int, *, live: bool) -> tuple[bool, bool]:
        """Ticks tell of every end at once, so that it is known what runs."""
        if row + 2 == len(self.rows) and (self.running or live):
            return False, False
        return super().ending(row, live=False)


class VectorModel:
    """A store of one vector lane.

    Args:
        schema: what a step of one environment holds.
        width: environments.
        capacity: most transitions to offer, of all environments; None for all.

    Attributes:
        lanes: the same experience, in lanes of one environment each.
        episodes: all that ever began, in the order of the log of starts.
        running: those that go on, by environment.
        ticks: of each tick, the episode of each environment that stepped.
        base: the oldest tick that is still on disk, as far as is known: set by `forget`.
    """

    def __init__(self, schema: Schema, width: int, capacity: int | None = None) -> None:
        self.schema, self.width, self.capacity = schema, width, capacity
        self.lanes = Model(schema, [])
        self.lanes.lanes = [_Environment(schema) for _ in range(width)]
        self.episodes: list[Episode] = []
        self.running: dict[int, Episode] = {}
        self.ticks: list[dict[int, Episode]] = []
        self.base = 0
        self._row_ids: dict[int, int] = {}
        self._columns: dict[str, Columns] = {}

    # ------------------------------------------------------------ what a writer does

    def reset(self, frames: dict[int, Any]) -> None:
        """Begin episodes, by environment; those that run end."""
        self.end(frames)
        for env, frame in sorted(frames.items()):
            lane = self.lanes.lanes[env]
            one = Episode(len(self.episodes), env, len(self.ticks), len(lane.rows))
            self.episodes.append(one)
            self.running[env] = one
            lane.reset(frame)

    def step(self, steps: dict[int, tuple[Any, float, Any, Flags, dict[str, Any]]]) -> None:
        """A tick: action, reward, frame, flags and extras by environment."""
        self.ticks.append({env: self.running[env] for env in steps})
        for env, (action, reward, frame, flags, extras) in steps.items():
            lane = self.lanes.lanes[env]
            self.running[env].length += 1
            lane.step(action, reward, frame, **flags, **extras)
        self.end([env for env in steps if not self.lanes.lanes[env].running])

    def end(self, envs: Iterable[int]) -> None:
        """Episodes that run in these environments are over."""
        for env in envs:
            self.lanes.lanes[env].end_session()
            if env in self.running:
                self.running.pop(env).over = True
        self._columns.clear()

    def end_session(self) -> None:
        """The writer closed, or died: all episodes are over."""
        self.end(range(self.width))

    def cut(self, n_ticks: int, n_starts: int | None = None) -> None:
        """What came after so many ticks and starts was lost; all episodes are over.

        Without a number of starts, those are lost that came after the newest that a tick names.
        """
        self.end_session()
        if n_starts is None:
            numbers = [one.number for one in self.episodes if one.length and one.tick < n_ticks]
            n_starts = max(numbers, default=-1) + 1
        del self.ticks[n_ticks:], self.episodes[n_starts:]
        heads = [0] * self.width
        for one in self.episodes:
            one.length = max(min(one.length, n_ticks - one.tick), 0)
            heads[one.env] = one.row + one.length + 1
        for lane, head in zip(self.lanes.lanes, heads, strict=True):
            lane.cut(head)

    def row(self, tick: int, env: int) -> int:
        """The row that an environment's step of a tick has in its own lane."""
        one = self.ticks[tick][env]
        return one.row + tick - one.tick

    def forget(self, base: int) -> None:
        """Ticks below `base` are gone from the store for good."""
        self.base = max(self.base, base)

    def evict(self, share: float = 1.0) -> None:
        """Forget what a flush takes off the disk; with a smaller `share`, as long ago."""
        most = max(self.first - CONTEXT_TICKS, self.base)
        self.forget(self.base + round(share * (most - self.base)))

    def copy(self) -> VectorModel:
        """A model that can be cut without changing this one."""
        out = VectorModel(self.schema, self.width, self.capacity)
        out.lanes, out.base = self.lanes.copy(), self.base
        out.episodes = [dataclasses.replace(one) for one in self.episodes]
        out.running = {env: out.episodes[one.number] for env, one in self.running.items()}
        out.ticks = [
            {env: out.episodes[one.number] for env, one in tick.items()} for tick in self.ticks
        ]
        return out

    def left_out(self, cells: Collection[int]) -> VectorModel:
        """A model without the steps of these cells, as a repair leaves them out.

        These are all that an episode has from some step on; where some are left, it is cut off.
        """
        out = VectorModel(self.schema, self.width, self.capacity)
        for t, tick in enumerate([*self.ticks, {}]):
            for one in self.episodes:
                if one.tick == t:
                    out.reset({one.env: self._frame_of(one, 0)})
            if t == len(self.ticks):
                break
            steps = {}
            for env, one in tick.items():
                if t * self.width + env not in cells:
                    n = t - one.tick
                    row = self.lanes.lanes[env].rows[one.row + n]
                    is_last = one.over and n == one.length - 1
                    flags = {
                        "terminated": is_last and not row.non_terminal,
                        "truncated": is_last and bool(row.non_terminal),
                        "life_lost": not is_last and not row.non_terminal,
                    }
                    frame = self._frame_of(one, n + 1)
                    steps[env] = row.action, float(row.reward), frame, flags, row.extras
            out.step(steps)
            out.end(tick.keys() - steps.keys())
        out.end_session()
        return out

    def _frame_of(self, one: Episode, n: int) -> Any:
        frame = self.lanes.lanes[one.env].rows[one.row + n].frame
        return frame if self.schema.is_dict else frame[FRAME]

    # ------------------------------------------------------------ what may be sampled

    @property
    def first(self) -> int:
        """The oldest tick: from it on there are no more transitions than the capacity."""
        floor = self.base + CONTEXT_TICKS if self.base else 0
        if self.capacity is None:
            return floor
        first, left = len(self.ticks), self.capacity
        while first > floor and left >= len(self.ticks[first - 1]):
            first -= 1
            left -= len(self.ticks[first])
        return first

    def ids(self) -> Array:
        """Every valid transition id, ascending."""
        first = self.first
        self._row_ids = cells = {
            t * self.width + env: env << LANE_SHIFT | one.row + t - one.tick
            for t, tick in enumerate(self.ticks[first:], first)
            for env, one in tick.items()
        }
        oldest: dict[int, int] = {}
        for cell in sorted(cells):
            oldest.setdefault(cell % self.width, cells[cell] & ((1 << LANE_SHIFT) - 1))
        for env, lane in enumerate(self.lanes.lanes):
            assert isinstance(lane, _Environment)
            lane.oldest = oldest.get(env, len(lane.rows))
        return np.array(sorted(cells), np.int64)

    def rows(self, cells: Array) -> Array:
        """The ids that cells have in lanes of one environment each; -1 stays."""
        known = self._row_ids
        rows = [-1 if cell < 0 else known[cell] for cell in cells.ravel().tolist()]
        return np.array(rows, np.int64).reshape(cells.shape)

    def kept(self) -> list[tuple[Episode, list[int]]]:
        """Every episode of which steps can be sampled, and their cells."""
        low = self.first * self.width
        pairs = [
            (one, [cell for cell in one.cells(self.width) if cell >= low]) for one in self.episodes
        ]
        return [(one, cells) for one, cells in pairs if cells]

    # ------------------------------------------------------------ what is on disk

    def columns(self, log: str) -> Columns:
        """Every array of a log by path, (ticks, width, ...) or (starts, ...); none is evicted."""
        if log not in self._columns:
            self._columns[log] = self._ticks_rows() if log == "ticks" else self._starts_rows()
        return self._columns[log]

    def _ticks_rows(self) -> Columns:
        fields, frames = self.schema.arrays(), self.schema.frame_paths.values()
        shape = len(self.ticks), self.width
        out = {
            path: np.zeros((*shape, *one.shape), one.dtype)
            for path, one in fields.items()
            if path != "resets"
        }
        ends, episode = np.zeros(shape, np.uint8), np.full(shape, -1, np.int64)
        for t, tick in enumerate(self.ticks):
            for env, one in tick.items():
                lane, row = self.lanes.lanes[env], one.row + t - one.tick
                for path, column in out.items():
                    column[t, env] = lane.value(lane.rows[row + (path in frames)], path)
                ends[t, env] = one.over and t == one.tick + one.length - 1
                episode[t, env] = one.number
            # Left-out cells below the number of those that stepped name the ones beyond it.
            absent = [env for env in range(len(tick)) if env not in tick]
            beyond = [env for env in range(len(tick), self.width) if env in tick]
            for env, other in zip(absent, beyond, strict=True):
                episode[t, env] = -1 - other
        count = np.cumsum([len(tick) for tick in self.ticks], dtype=np.int64)
        return {**out, "ends": ends, "episode": episode, "count": count}

    def _starts_rows(self) -> Columns:
        lanes, fields = self.lanes.lanes, self.schema.columns()
        out = {
            path: np.zeros((len(self.episodes), *fields[path].shape), fields[path].dtype)
            for path in self.schema.frame_paths.values()
        }
        for path, column in out.items():
            for number, one in enumerate(self.episodes):
                lane = lanes[one.env]
                column[number] = lane.value(lane.rows[one.row], path)
        env = np.array([one.env for one in self.episodes], np.int64)
        return {**out, "env": env, "tick": np.array([one.tick for one in self.episodes], np.int64)}

    # ------------------------------------------------------------ comparisons

    def check(
        self,
        store: Store,
        settings: Sequence[dict[str, Any]] = ({},),
        most: int = 200,
        *,
        ended: bool = True,
    ) -> None:
        """Ids, transitions, episodes and trajectories of a store are those of the model.

        Args:
            store: what is checked.
            settings: of `transitions`; each is tried.
            most: transitions to compare for each of them, the oldest and newest.
            ended: whether somebody has ended the episodes that ran at a death.

        Raises:
            AssertionError: something differs.
        """
        ids = self.ids()
        checks.check_same(store.ids, ids, "ids")
        if ids.size > most:
            ids = np.concatenate((ids[: most // 2], ids[-(most // 2) :]))
        for one in settings:
            found = store.transitions(ids, **one)
            found = dataclasses.replace(found, id=self.rows(found.id))
            how = {"padding": store.padding} | one
            expected = self.lanes.batch(self.rows(ids), **how)
            if not ended:  # what was over before a death still is
                unknown = ~(found.terminated | found.truncated)
                running = self.lanes.batch(self.rows(ids), **how, live=True)
                for name in ("terminated", "truncated"):
                    getattr(expected, name)[unknown] = getattr(running, name)[unknown]
            checks.check_batch(found, expected, f"transitions({one})")
        self._check_episodes(store, ended=ended)

    def check_columns(self, store: Store, *, ended: bool = True) -> None:
        """The arrays of ticks that a reader shows, from the oldest tick kept on; see `check`."""
        view = store.lanes[0]
        shown: dict[str, Any] = {"frames": view.frames, "episode": view.episode, "ends": view.ends}
        shown |= {name: getattr(view, name) for name in ("actions", "rewards", "non_terminals")}
        for folder, columns in (("frames", shown["frames"]), ("extras", view.extras)):
            if isinstance(columns, dict):
                shown |= {f"{folder}/{name}": one for name, one in columns.items()}
        if self.schema.is_dict:
            del shown["frames"]
        expected = self.columns("ticks")
        assert shown.keys() == expected.keys() - {"count"}
        for path, column in shown.items():
            base, found = view.base, column[:]
            while view.base != base:  # a thread of the writer evicts
                base, found = view.base, column[:]
            wanted = expected[path].copy()
            wanted[:base] = 0
            if path == "ends" and not ended:  # whoever opens the store to write sets the newest
                found[-1:], wanted[-1:] = 0, 0
            checks.check_same(found, wanted, path)

    def _check_episodes(self, store: Store, *, ended: bool) -> None:
        cells = {row: cell for cell, row in self._row_ids.items()}
        known = self.lanes.episodes()
        begun = {one.env << LANE_SHIFT | one.row: one.number for one in self.episodes}
        order = sorted(range(len(known)), key=lambda n: begun[known[n].id])
        found = store.episodes
        firsts = np.array([cells[known[n].id] for n in order], np.int64)
        checks.check_same(found["id"], firsts, "episodes: id")
        for number, n in enumerate(order):
            one = known[n]
            lane, row = divmod(one.id, 1 << LANE_SHIFT)
            model = self.lanes.lanes[lane]
            about = found[number]
            is_newest = row + one.length + 1 == len(model.rows)
            over = not (is_newest and (model.running or not ended))
            # A life that was lost with the newest step ends no episode.
            ends = over and one.terminated, over and not one.terminated
            if is_newest and not ended and (about["terminated"] or about["truncated"]):
                ends = one.terminated, not one.terminated  # it was over before
            seen = bool(about["terminated"]), bool(about["truncated"])
            if (about["length"], *seen) != (one.length, *ends):
                raise AssertionError(f"episode {number}: expected {one}, found {about}")
            if not abs(about["return"] - one.total) <= 1e-12 * one.magnitude:
                raise AssertionError(f"episode {number}: expected {one}, found {about}")
        for number in {0, len(order) // 2, len(order) - 1} & set(range(len(order))):
            trajectory, expected = store.trajectory(number), self.lanes.trajectory(order[number])
            frames = expected.observation
            what = f"trajectory {number}"
            checks.check_same(
                trajectory.observation,
                frames if self.schema.is_dict else frames[FRAME],
                f"{what}: observation",
            )
            checks.check_same(self.rows(trajectory.ids), expected.ids, f"{what}: ids")
            for name in ("action", "reward", "non_terminal", "extras"):
                checks.check_same(
                    getattr(trajectory, name), getattr(expected, name), f"{what}: {name}"
                )


def assert_closed_lane_matches(
    model: Any, path: Path, first_tick: int = 0, first_start: int = 0
) -> None:
    """Every array of a closed vector lane, read by zarr, is the model's; evicted rows may be 0."""
    group = zarr.open_group(str(path), mode="r")
    for log, first in (("ticks", first_tick), ("starts", first_start)):
        for name, expected in model.columns(log).items():
            array = group[f"{log}/{name}"]
            assert isinstance(array, zarr.Array)
            assert array.shape[0] == len(expected), (log, name)
            checks.check_same(array[first:], expected[first:], f"{log}/{name}")
