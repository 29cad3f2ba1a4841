"""Environments that step together: what happened to each, as lists; what of it is on disk; and the
same experience in lanes of one environment each.

Invariant: nothing here is shared with the index or the gatherers, and what a capacity has taken is
poisoned, so that whoever reads it is found out.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index import RowIndex
from mmreplay.format.layout import CONTEXT_ROWS
from mmreplay.ids import LANE_SHIFT

__all__ = ["Episode", "PartsColumn", "Rows", "Step", "TicksModel", "TicksOnDisk", "play"]

Array = npt.NDArray[Any]
ROW_MASK = (1 << LANE_SHIFT) - 1
POISON = 1 << 50


@dataclasses.dataclass(eq=False)
class Step:
    """One step: its cell, and what it gave."""

    cell: int
    action: int
    reward: float
    flag: int
    frame: int


@dataclasses.dataclass(eq=False)
class Episode:
    """An episode of one environment, from `tick` on; `frame` is its first observation."""

    number: int
    env: int
    tick: int
    frame: int
    steps: list[Step] = dataclasses.field(default_factory=list)
    over: bool = False


class TicksModel:
    """What was done to so many environments; every frame is another number."""

    def __init__(self, width: int, capacity: int | None = None) -> None:
        self.width, self.capacity = width, capacity
        self.episodes: list[Episode] = []
        self.running: list[Episode | None] = [None] * width
        self.ticks: list[dict[int, tuple[Episode, Step]]] = []
        self.base = self.first = 0
        self._frames = 0

    def _frame(self) -> int:
        self._frames += 1
        return self._frames

    def reset(self, envs: list[int]) -> None:
        """Begin episodes in some environments; those that run end."""
        for env in envs:
            self._end(env)
            one = Episode(len(self.episodes), env, len(self.ticks), self._frame())
            self.episodes.append(one)
            self.running[env] = one

    def _end(self, env: int) -> None:
        running = self.running[env]
        if running is not None:
            running.over = True
            self.running[env] = None

    def step(self, ends: list[int], terminal: list[int]) -> None:
        """A step of all that run, which ends some episodes; `terminal`: flags that go down."""
        tick: dict[int, tuple[Episode, Step]] = {}
        for env, one in enumerate(self.running):
            if one is not None:
                frame = self._frame()
                cell = len(self.ticks) * self.width + env
                flag = int(env not in terminal)
                tick[env] = one, Step(cell, 7 * frame, frame / 4, flag, frame)
                one.steps.append(tick[env][1])
        if tick:
            self.ticks.append(tick)
            for env in ends:
                self._end(env)

    def settle(self) -> None:
        """Move `first` on: the oldest tick from which on there are no more than the capacity."""
        while self.capacity is not None and len(self.cells()) > self.capacity:
            self.first += 1

    def evict(self, share: float = 1.0) -> None:
        """What a flush takes off the disk; with a smaller `share`, as long ago."""
        self.settle()
        most = max(self.first - CONTEXT_ROWS - 1, self.base)
        self.base += round(share * (most - self.base))

    def cells(self) -> list[int]:
        """Every transition that can be sampled."""
        return [step.cell for tick in self.ticks[self.first :] for _, step in tick.values()]

    def kept(self) -> list[tuple[Episode, list[Step]]]:
        """Every episode of which steps can be sampled, and these."""
        low = self.first * self.width
        pairs = [(one, [step for step in one.steps if step.cell >= low]) for one in self.episodes]
        return [(one, steps) for one, steps in pairs if steps]


class TicksOnDisk:
    """The columns of a model as it is now: a `TickSource`, and `columns` for a gatherer.

    A frame of number n is full of n, in `shape`. `parts` come before this lane's, in the columns
    of frames.
    """

    def __init__(self, model: TicksModel, shape: tuple[int, ...] = ()) -> None:
        self.width = width = model.width
        n, base = len(model.ticks), model.base
        scalars = np.zeros((n, width), [(k, "i8") for k in ("action", "flag", "ends", "frame")])
        rewards = np.zeros((n, width), np.float32)
        episode = np.full((n, width), -1, np.int64)
        for t, tick in enumerate(model.ticks):
            for env, (one, step) in tick.items():
                is_last = one.over and one.steps[-1] is step
                scalars[t, env] = step.action, step.flag, is_last, step.frame
                rewards[t, env] = step.reward
                episode[t, env] = one.number
            # As docs/format.md pairs them.
            absent = [env for env in range(len(tick)) if env not in tick]
            others = [env for env in tick if env >= len(tick)]
            for env, other in zip(absent, sorted(others), strict=True):
                episode[t, env] = -1 - other
        count = np.cumsum([len(tick) for tick in model.ticks], dtype=np.int64)
        low = min(
            [one.number for tick in model.ticks[base:] for one, _ in tick.values()],
            default=len(model.episodes),
        )
        ticks = np.array([one.tick for one in model.episodes], np.int64)
        envs = np.array([one.env for one in model.episodes], np.int64)
        first = np.array([one.frame for one in model.episodes], np.int64)
        for array in (count, episode, rewards, *(scalars[name] for name in scalars.dtype.names)):
            array[:base] = POISON
        for array in (ticks, envs, first):
            array[:low] = POISON
        self.starts = low, len(model.episodes)
        self.count, self.episode = count, episode.ravel()
        self.flags = scalars["ends"].astype(np.uint8).ravel()
        self.tick, self.env = ticks, envs
        self.columns = {
            "frames": PartsColumn([scalars["frame"].ravel(), first], shape, "int64"),
            "actions": PartsColumn([scalars["action"].ravel()], (), "int64"),
            "rewards": PartsColumn([rewards.ravel()], (), "float32"),
            "non_terminals": PartsColumn([scalars["flag"].ravel()], (), "uint8"),
        }

    def counts(self, start: int, stop: int) -> Array:
        _check(np.array([start, stop - 1]), self.count)
        return self.count[start:stop]

    def episodes(self, cells: Array) -> Array:
        return _taken(self.episode, cells)

    def numbers(self, tick: int) -> Array:
        return self.episodes(np.arange(tick * self.width, (tick + 1) * self.width))

    def ends(self, cells: Array) -> Array:
        return _taken(self.flags, cells)

    def ended(self, start: int, stop: int) -> Array:
        _check(np.array([start, stop - 1]) * self.width, self.flags)
        return self.flags.reshape(-1, self.width)[start:stop]

    def start_ticks(self, numbers: Array) -> Array:
        return _taken(self.tick, numbers)

    def start_envs(self, numbers: Array) -> Array:
        return _taken(self.env, numbers)


def _check(places: Array, array: Array) -> None:
    if places.size and not (places.min() >= 0 and places.max() < len(array)):
        raise AssertionError(f"read outside of {len(array)} rows: {places}")


def _taken(array: Array, places: Array) -> Array:
    _check(places, array)
    return array[places]


class PartsColumn:
    """A column in memory: rows of part 0, of part 1, and so on, each a number that fills a row."""

    def __init__(self, parts: list[Array], shape: tuple[int, ...], dtype: str) -> None:
        self.parts, self.row_shape, self.dtype = parts, shape, np.dtype(dtype)

    def take(self, ids: Array, out: Array | None = None) -> Array:
        found = np.empty(ids.shape, self.dtype)
        for number in np.unique(ids >> LANE_SHIFT).tolist():
            here = ids >> LANE_SHIFT == number
            values = _taken(self.parts[number], ids[here] & ROW_MASK)
            assert not (values == POISON).any()
            found[here] = values
        spread = found.reshape(*ids.shape, *(1,) * len(self.row_shape))
        rows = np.broadcast_to(spread, (*ids.shape, *self.row_shape))
        if out is None:
            return rows.copy()
        out[...] = rows
        return out


class Rows:
    """The same experience in lanes of one environment each, in an index of rows.

    What can be sampled is the same, by the capacity of each lane. `id_of` tells the id of a cell.
    """

    def __init__(self, model: TicksModel, shape: tuple[int, ...] = ()) -> None:
        self.id_of: dict[int, int] = {}
        names = ("frames", "actions", "rewards", "non_terminals")
        rows: list[dict[str, list[float]]] = []
        self.index = RowIndex(model.width)
        low = model.first * model.width
        for env in range(model.width):
            lane: dict[str, list[float]] = {name: [] for name in names}
            starts, n_kept = [], 0

            def append(frame: int, lane: dict[str, list[float]] = lane) -> None:
                for name, value in zip(names, (frame, 0, 0.0, 1), strict=True):
                    lane[name].append(value)

            for one in model.episodes:
                if one.env == env:
                    starts.append(len(lane["frames"]))
                    append(one.frame)
                    for step in one.steps:
                        row = len(lane["frames"]) - 1
                        self.id_of[step.cell] = env << LANE_SHIFT | row
                        n_kept += step.cell >= low
                        lane["actions"][row] = step.action
                        lane["rewards"][row] = step.reward
                        lane["non_terminals"][row] = step.flag
                        append(step.frame)
            rows.append(lane)
            head = len(lane["frames"])
            # Of a lane of which nothing can be sampled any more only the newest row is left.
            known = np.array(starts, np.int64)
            if n_kept or not head:
                self.index.load(env, 0, head, known, n_kept or None)
            else:
                self.index.load(env, head - 1, head, known[known >= head - 1], None)
        self.columns = {
            name: PartsColumn([np.array(lane[name]) for lane in rows], (), dtype)
            for name, dtype in (
                ("actions", "int64"),
                ("rewards", "float32"),
                ("non_terminals", "uint8"),
            )
        }
        frames = [np.array(lane["frames"], np.int64) for lane in rows]
        self.columns["frames"] = PartsColumn(frames, shape, "int64")

    def ids(self, cells: Array) -> Array:
        """The ids of cells; -1 stays."""
        return np.array(
            [-1 if cell < 0 else self.id_of[cell] for cell in cells.ravel().tolist()], np.int64
        ).reshape(cells.shape)


def play(model: TicksModel, random: np.random.Generator, ticks: int, rate: float) -> None:
    """Steps with ends, lost lives, resets in mid-episode, twice, and of those left out."""
    for _ in range(ticks):
        idle = [env for env, one in enumerate(model.running) if one is None]
        # Those that ended are reset at once, or left out for a while; some are reset twice.
        some = [env for env in idle if random.random() < 0.7]
        if len(idle) == model.width and not some:
            some = [int(random.integers(model.width))]
        model.reset(some)
        if random.random() < 0.15:
            model.reset([env for env in range(model.width) if random.random() < 0.3])
        ends = [env for env in range(model.width) if random.random() < rate]
        terminal = [env for env in ends if random.random() < 0.5]
        if random.random() < 0.1:
            terminal.append(int(random.integers(model.width)))  # a life was lost
        model.step(ends, terminal)
        model.settle()
