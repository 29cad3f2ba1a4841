"""Environments that step together, each as a lane of its own in the oracle; and their writers.

Invariant: the model moves if and only if the writers' calls return. Of a vector lane it knows only
which step of which environment each cell is; what a transition holds is what `Model` says of the
same experience in lanes of one environment each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.reading.store import Store
from mmreplay.schema import FRAME, Schema
from tests.support.oracle import checks
from tests.support.oracle.model import LANE_SHIFT, LaneModel, Model
from tests.support.oracle.strategies import random_value

__all__ = ["FLAGS", "VectorModel", "VectorPair"]

Array = npt.NDArray[Any]
Flags = dict[str, bool]
FLAGS = ("terminated", "truncated", "life_lost")
CONTEXT_TICKS = 65  # kept below the oldest tick, so that stacks of 65 are whole


class _Environment(LaneModel):
    """Of one environment; what a capacity forgets is forgotten in whole ticks."""

    oldest = 0

    def kept_transitions(self) -> list[int]:
        """Those from the oldest tick on."""
        return [row for row in range(self.oldest, len(self.rows)) if self.is_transition(row)]


class VectorModel:
    """A store of one vector lane.

    Args:
        schema: what a step of one environment holds.
        width: environments.
        capacity: most transitions to offer, of all environments; None for all.

    Attributes:
        lanes: the same experience, in lanes of one environment each.
        ticks: of each tick, the row in its own lane of each environment's step.
    """

    def __init__(self, schema: Schema, width: int, capacity: int | None = None) -> None:
        self.schema, self.width, self.capacity = schema, width, capacity
        self.lanes = Model(schema, [])
        self.lanes.lanes = [_Environment(schema) for _ in range(width)]
        self.ticks: list[dict[int, int]] = []
        self._floor = 0
        self._row_ids: dict[int, int] = {}
        self._begun: dict[int, int] = {}  # which episode it was, by the id of its first row
        self._n_begun = 0

    def copy(self) -> VectorModel:
        """A model that can be cut without changing this one."""
        out = VectorModel(self.schema, self.width, self.capacity)
        out.lanes = self.lanes.copy()
        out.ticks = [*self.ticks]  # none of them changes
        out._floor, out._begun, out._n_begun = self._floor, dict(self._begun), self._n_begun
        return out

    # ------------------------------------------------------------ what a writer does

    @property
    def running(self) -> list[int]:
        """Environments of which an episode runs."""
        return [env for env, lane in enumerate(self.lanes.lanes) if lane.running]

    def reset(self, frames: dict[int, Any]) -> None:
        """Begin episodes, by environment."""
        for env, frame in sorted(frames.items()):
            lane = self.lanes.lanes[env]
            self._begun[env << LANE_SHIFT | len(lane.rows)] = self._n_begun
            self._n_begun += 1
            lane.reset(frame)

    def step(self, steps: dict[int, tuple[Any, float, Any, Flags, dict[str, Any]]]) -> None:
        """A tick: action, reward, frame, flags and extras by environment."""
        tick = {}
        for env, (action, reward, frame, flags, extras) in steps.items():
            lane = self.lanes.lanes[env]
            tick[env] = len(lane.rows) - 1
            lane.step(action, reward, frame, **flags, **extras)
        self.ticks.append(tick)

    def end_session(self) -> None:
        """The writer closed, or died: all episodes are over."""
        for lane in self.lanes.lanes:
            lane.end_session()

    def cut(self, head: int) -> None:
        """Ticks from `head` on were lost."""
        for env, lane in enumerate(self.lanes.lanes):
            rows = [tick[env] for tick in self.ticks[:head] if env in tick]
            lane.cut(rows[-1] + 2 if rows else 0)
        del self.ticks[head:]

    def forget(self, base: int) -> None:
        """Ticks below `base` are gone from the store for good."""
        if base:
            self._floor = max(self._floor, base + CONTEXT_TICKS)

    # ------------------------------------------------------------ what may be sampled

    @property
    def first(self) -> int:
        """The oldest tick: from it on there are no more transitions than the capacity."""
        if self.capacity is None:
            return self._floor
        first, left = len(self.ticks), self.capacity
        while first > self._floor and left >= len(self.ticks[first - 1]):
            first -= 1
            left -= len(self.ticks[first])
        return first

    def ids(self) -> Array:
        """Every valid transition id, ascending."""
        first = self.first
        cells = {
            t * self.width + env: env << LANE_SHIFT | row
            for t, tick in enumerate(self.ticks[first:], first)
            for env, row in tick.items()
        }
        self._row_ids = cells
        oldest = {}
        for cell in sorted(cells, reverse=True):
            oldest[cell % self.width] = cells[cell] & ((1 << LANE_SHIFT) - 1)
        for env, lane in enumerate(self.lanes.lanes):
            assert isinstance(lane, _Environment)
            lane.oldest = oldest.get(env, len(lane.rows))
        return np.array(sorted(cells), np.int64)

    def rows(self, cells: Array) -> Array:
        """The ids that cells have in lanes of one environment each; -1 stays."""
        known = self._row_ids
        rows = [-1 if cell < 0 else known[cell] for cell in cells.ravel().tolist()]
        return np.array(rows, np.int64).reshape(cells.shape)

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
            expected = self.lanes.batch(self.rows(ids), **{"padding": store.padding} | one)
            checks.check_batch(found, expected, f"transitions({one})")
        self._check_episodes(store, ended=ended)

    def _check_episodes(self, store: Store, *, ended: bool) -> None:
        cells = {row: cell for cell, row in self._row_ids.items()}
        known = self.lanes.episodes()
        order = sorted(range(len(known)), key=lambda n: self._begun[known[n].id])
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


class VectorPair:
    """Writers of the same experience, and the model of it.

    Args:
        writers: each of as many environments as the model has.
        model: of the stores as they are now.
        random: chooses what happens.
    """

    def __init__(
        self, writers: Sequence[Any], model: VectorModel, random: np.random.Generator
    ) -> None:
        self.writers, self.model, self.random = writers, model, random
        self.schema, self.width = model.schema, model.width

    def reset(self, envs: Sequence[int]) -> None:
        """Begin episodes in some environments."""
        frames = [self._frame() for _ in range(self.width)]
        mask = np.isin(np.arange(self.width), list(envs))
        given = None if mask.all() and self.random.random() < 0.5 else mask
        for writer in self.writers:
            writer.reset(self._together(frames), given)
        self.model.reset({env: frames[env] for env in envs})

    def step(self, end: float = 0.1) -> None:
        """A tick of all environments of which an episode runs."""
        here, everyone = self.model.running, range(self.width)
        frames = [self._frame() for _ in everyone]
        actions = [random_value(self.schema.action, self.random) for _ in everyone]
        rewards = [float(self.random.integers(-8, 8)) / 4 for _ in everyone]
        extras = [
            {name: random_value(one, self.random) for name, one in self.schema.extras.items()}
            for _ in everyone
        ]
        flags = [
            {name: bool(self.random.random() < end / 2) and env in here for name in FLAGS}
            for env in everyone
        ]
        mask = np.isin(np.arange(self.width), here)
        columns = {name: np.array([one[name] for one in flags]) for name in FLAGS}
        more = {name: np.stack([one[name] for one in extras]) for name in self.schema.extras}
        if not mask.all() or self.random.random() < 0.3:
            more["mask"] = mask
        for writer in self.writers:
            writer.step(
                np.stack(actions),
                np.array(rewards, self.schema.reward_dtype),
                self._together(frames),
                columns["terminated"],
                columns["truncated"],
                life_lost=columns["life_lost"],
                **more,
            )
        self.model.step(
            {
                env: (actions[env], rewards[env], frames[env], flags[env], extras[env])
                for env in here
            }
        )

    def play(self, n_ticks: int, end: float = 0.1) -> None:
        """Ticks as any autoreset gives them, and resets in mid-episode, or twice."""
        for _ in range(n_ticks):
            running = self.model.running
            idle = [env for env in range(self.width) if env not in running]
            some = [env for env in idle if self.random.random() < 0.7]
            if not running and not some:
                some = [int(self.random.integers(self.width))]
            if some:
                self.reset(some)
            if self.random.random() < 0.05:
                self.reset([int(self.random.integers(self.width))])
            self.step(end)

    def _frame(self) -> Any:
        values = {name: random_value(one, self.random) for name, one in self.schema.frames.items()}
        return values if self.schema.is_dict else values[FRAME]

    def _together(self, frames: list[Any]) -> Any:
        if self.schema.is_dict:
            return {name: np.stack([one[name] for one in frames]) for name in self.schema.frames}
        return np.stack(frames)
