"""The oracle: every step ever made, in plain Python lists, and what they mean, worked out naively.

Invariant: nothing here is shared with the storage, the index or the gather of the package; stacks
are found by walking back row by row, returns by a loop, valid ids by looking at every row. Slow on
purpose: it is what the fast code is compared with, byte for byte. docs/semantics.md has the rules.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.batches.batch import Batch
from mmreplay.schema import FRAME, Schema

__all__ = [
    "LANE_SHIFT",
    "EpisodeRow",
    "LaneModel",
    "Model",
    "Row",
    "TrajectoryModel",
    "usual_stack",
]

Array = npt.NDArray[Any]
Frame = dict[str, Array]

CONTEXT_ROWS = 64  # kept below the oldest transition, so that stacks of 65 are whole
LANE_SHIFT = 40


@dataclasses.dataclass(slots=True)
class Row:
    """One frame, and what happened after it; a final row until a step says otherwise."""

    frame: Frame
    is_reset: bool
    action: Array
    reward: Array
    non_terminal: int
    extras: dict[str, Array]


@dataclasses.dataclass(frozen=True, slots=True)
class EpisodeRow:
    """One line of the table of episodes."""

    id: int
    length: int
    total: float
    terminated: bool
    truncated: bool
    magnitude: float
    """Sum of the rewards' absolute values: what rounding errors are measured against."""


@dataclasses.dataclass(frozen=True, slots=True)
class TrajectoryModel:
    """One whole episode: T + 1 frames, T of everything else."""

    observation: Frame
    action: Array
    reward: Array
    non_terminal: Array
    terminated: bool
    truncated: bool
    ids: Array
    extras: dict[str, Array]


class LaneModel:
    """One lane as a list of rows.

    Args:
        schema: what a row holds.
        capacity: most transitions to offer; None for all.

    Attributes:
        rows: every row ever committed; those that a store has evicted stay here.
        running: whether an episode is running.
        base: the oldest row that the store still keeps, as far as is known: set by `forget`.
    """

    def __init__(self, schema: Schema, capacity: int | None = None) -> None:
        self.schema = schema
        self.capacity = capacity
        self.rows: list[Row] = []
        self.running = False
        self.base = 0

    # ------------------------------------------------------------ what a writer does

    def reset(self, frame: object) -> None:
        """Begin an episode; one that is running ends as truncated."""
        self.rows.append(
            Row(self._frame(frame), True, self._no_action(), self._reward(0), 1, self._no_extras())
        )
        self.running = True

    def step(
        self,
        action: object,
        reward: float,
        next_frame: object,
        terminated: bool = False,
        truncated: bool = False,
        life_lost: bool = False,
        **extras: object,
    ) -> None:
        """Append a step of the running episode."""
        if not self.running:
            raise ValueError("no episode is running")
        newest = self.rows[-1]
        newest.action = np.array(action, self.schema.action.dtype)
        newest.reward = self._reward(reward)
        newest.non_terminal = 0 if terminated or life_lost else 1
        newest.extras = {
            name: np.array(extras[name], one.dtype) for name, one in self.schema.extras.items()
        }
        self.rows.append(
            Row(
                self._frame(next_frame),
                False,
                self._no_action(),
                self._reward(0),
                newest.non_terminal,
                self._no_extras(),
            )
        )
        self.running = not (terminated or truncated)

    def end_session(self) -> None:
        """The writer closed, or died: an open episode ends at the head."""
        self.running = False

    def cut(self, head: int) -> None:
        """Rows from `head` on were lost; the newest row left is a final row."""
        del self.rows[head:]
        self.running = False
        if self.rows:
            newest = self.rows[-1]
            newest.action, newest.reward = self._no_action(), self._reward(0)
            newest.extras = self._no_extras()
            newest.non_terminal = 1 if newest.is_reset else self.rows[-2].non_terminal

    def forget(self, base: int) -> None:
        """Rows below `base` are gone from the store for good."""
        self.base = base

    def copy(self) -> LaneModel:
        """A model that can be cut without changing this one."""
        out = type(self)(self.schema, self.capacity)
        out.rows = [dataclasses.replace(row) for row in self.rows]
        out.running, out.base = self.running, self.base
        return out

    def _frame(self, frame: object) -> Frame:
        given = frame if isinstance(frame, Mapping) else {FRAME: frame}
        return {name: np.array(given[name], one.dtype) for name, one in self.schema.frames.items()}

    def _no_action(self) -> Array:
        return np.zeros(self.schema.action.shape, self.schema.action.dtype)

    def _no_extras(self) -> dict[str, Array]:
        return {name: np.zeros(e.shape, e.dtype) for name, e in self.schema.extras.items()}

    def _reward(self, value: float) -> Array:
        return np.array(value, self.schema.reward_dtype)

    # ------------------------------------------------------------ what may be sampled

    def is_transition(self, row: int) -> bool:
        """Whether the row after this one is there and is no reset: the whole rule."""
        return row >= 0 and row + 1 < len(self.rows) and not self.rows[row + 1].is_reset

    def kept_transitions(self) -> list[int]:
        """Every transition whose stacks of 65 frames are on disk, ascending."""
        oldest = self.base + CONTEXT_ROWS if self.base else 0
        return [row for row in range(oldest, len(self.rows)) if self.is_transition(row)]

    def transitions(self) -> list[int]:
        """The transitions that can be sampled, ascending: the newest `capacity` of them."""
        kept = self.kept_transitions()
        return kept if self.capacity is None else kept[-self.capacity :]

    def base_bounds(self) -> tuple[int, int]:
        """The least and the greatest base that a writer may choose when it flushes now.

        The greatest leaves the context of the oldest transition; the least keeps as much below
        the newest transition that has gone.
        """
        offered = self.transitions()
        kept = self.kept_transitions()
        gone = kept[: len(kept) - len(offered)]
        least = max(self.base, gone[-1] + 1 - CONTEXT_ROWS if gone else 0)
        oldest = offered[0] if offered else len(self.rows)
        return least, max(oldest - CONTEXT_ROWS, self.base)

    # ------------------------------------------------------------ what a transition is

    def stack(self, row: int, size: int, padding: str) -> list[Frame]:
        """`size` frames, the newest last, padded in front of the episode's first frame."""
        out = [self.rows[row].frame]
        while len(out) < size:
            if not self.rows[row].is_reset:
                row -= 1
                out.insert(0, self.rows[row].frame)
            elif padding == "reset":
                out.insert(0, self.rows[row].frame)
            else:
                blank = {name: np.zeros_like(one) for name, one in self.rows[row].frame.items()}
                out.insert(0, blank)
        return out

    def n_step(
        self, row: int, n_step: int, gamma: float, clip: tuple[float, float] | None = None
    ) -> tuple[Array, Array, bool, int]:
        """(return, discount, non_terminal, m): the sum in float64, in order, cast at the end."""
        dtype = self.schema.reward_dtype

        def reward(row: int) -> float:
            stored = self.rows[row].reward
            return float(stored if clip is None else np.clip(stored, *clip))

        total = reward(row)
        steps = 1
        while (
            steps < n_step
            and self.rows[row + steps - 1].non_terminal
            and self.is_transition(row + steps)
        ):
            total += gamma**steps * reward(row + steps)
            steps += 1
        non_terminal = bool(self.rows[row + steps - 1].non_terminal)
        discount = gamma**steps if non_terminal else 0.0
        return np.array(total, dtype), np.array(discount, dtype), non_terminal, steps

    def ending(self, row: int, *, live: bool) -> tuple[bool, bool]:
        """Whether the episode of a transition ended with it: terminated, or cut off.

        A writer that still has the lane may go on after the newest one.
        """
        if self.is_transition(row + 1):
            return False, False
        terminated = not self.rows[row].non_terminal
        return terminated, not terminated and not (live and row + 2 == len(self.rows))

    # ------------------------------------------------------------ episodes

    def spans(self) -> list[tuple[int, int]]:
        """[start, stop) of every episode, also those of no step."""
        starts = [number for number, row in enumerate(self.rows) if row.is_reset]
        return list(itertools.pairwise([*starts, len(self.rows)])) if starts else []

    def whole_episodes(self) -> list[tuple[int, int]]:
        """Episodes of a step or more, all of whose transitions can be sampled."""
        offered = set(self.transitions())
        return [
            (start, stop)
            for start, stop in self.spans()
            if stop - start > 1 and all(row in offered for row in range(start, stop - 1))
        ]

    # ------------------------------------------------------------ columns

    def column(self, path: str, base: int | None = None) -> Array:
        """A whole column, as the store's array of that path shows it; zeros below `base`.

        Args:
            path: of the array in the lane.
            base: of the reader, whose picture may be older than the store's.
        """
        fields = self.schema.arrays()
        out = np.zeros((len(self.rows), *fields[path].shape), fields[path].dtype)
        for number in range(self.base if base is None else base, len(self.rows)):
            out[number] = self.value(self.rows[number], path)
        return out

    def value(self, row: Row, path: str) -> Any:
        """Of a row, what stands in the array of that path."""
        folder, _, name = path.partition("/")
        if folder == "frames":
            return row.frame[name or FRAME]
        if folder == "extras":
            return row.extras[name]
        return {
            "actions": row.action,
            "rewards": row.reward,
            "non_terminals": row.non_terminal,
            "resets": row.is_reset,
        }[path]


class Model:
    """A store of one lane or many.

    Args:
        schema: what a row holds.
        capacities: of each lane.
    """

    def __init__(self, schema: Schema, capacities: Sequence[int | None] = (None,)) -> None:
        self.schema = schema
        self.lanes = [LaneModel(schema, capacity) for capacity in capacities]

    @staticmethod
    def split(capacity: int | None, lanes: int) -> list[int | None]:
        """Shares of a capacity that differ by one at most and sum up to it, larger ones first."""
        if capacity is None:
            return [None] * lanes
        shares: list[int | None] = []
        for left in range(lanes, 0, -1):
            share = -(-(capacity - sum(s or 0 for s in shares)) // left)
            shares.append(share)
        return shares

    def copy(self) -> Model:
        """A model that can be cut without changing this one."""
        out = Model(self.schema, [])
        out.lanes = [lane.copy() for lane in self.lanes]
        return out

    def ids(self) -> Array:
        """Every valid transition id, ascending: int64."""
        return np.array(
            [
                n << LANE_SHIFT | row
                for n, lane in enumerate(self.lanes)
                for row in lane.transitions()
            ],
            np.int64,
        )

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return sum(len(lane.transitions()) for lane in self.lanes)

    def batch(
        self,
        ids: npt.ArrayLike,
        stack: int | EllipsisType | None = ...,
        n_step: int = 1,
        gamma: float = 0.99,
        padding: str = "reset",
        stack_axis: int = 0,
        clip_reward: tuple[float, float] | None = None,
        *,
        live: bool | Sequence[bool] = False,
    ) -> Batch:
        """What `Store.transitions` must return for these ids; of `live` lanes, see `ending`.

        `live` is of all lanes, or of each.
        """
        stack = usual_stack(self.schema) if stack is ... else stack
        wanted = [divmod(int(one), 1 << LANE_SHIFT) for one in np.asarray(ids).tolist()]
        returns = [self.lanes[lane].n_step(row, n_step, gamma, clip_reward) for lane, row in wanted]
        observation: dict[str, list[Array]] = {name: [] for name in self.schema.frames}
        next_observation: dict[str, list[Array]] = {name: [] for name in self.schema.frames}
        for (number, row), (*_, steps) in zip(wanted, returns, strict=True):
            lane = self.lanes[number]
            for out, newest in ((observation, row), (next_observation, row + steps)):
                frames = lane.stack(newest, stack or 1, padding)
                for name, parts in out.items():
                    parts.append(_joined([one[name] for one in frames], stack, stack_axis))
        lasts = [row + steps - 1 for (_, row), (*_, steps) in zip(wanted, returns, strict=True)]
        is_live = [live] * len(self.lanes) if isinstance(live, bool) else live
        ends = [
            self.lanes[lane].ending(last, live=is_live[lane])
            for (lane, _), last in zip(wanted, lasts, strict=True)
        ]
        rows = [self.lanes[lane].rows[row] for lane, row in wanted]
        rewards, action = self.schema.reward_dtype, self.schema.action
        return Batch(
            self._observation(observation, stack, stack_axis),
            self._observation(next_observation, stack, stack_axis),
            _array([row.action for row in rows], action.shape, action.dtype),
            np.array([one for one, *_ in returns], rewards),
            np.array([one for _, one, *_ in returns], rewards),
            np.array([flag for _, _, flag, _ in returns], np.bool_),
            np.array([lane << LANE_SHIFT | row for lane, row in wanted], np.int64),
            np.ones(len(wanted), np.float32),
            {
                name: _array([row.extras[name] for row in rows], one.shape, one.dtype)
                for name, one in self.schema.extras.items()
            },
            np.array([terminated for terminated, _ in ends], np.bool_),
            np.array([truncated for _, truncated in ends], np.bool_),
        )

    def _observation(
        self, parts: dict[str, list[Array]], stack: int | None, stack_axis: int
    ) -> Array | dict[str, Array]:
        out = {}
        for name, one in self.schema.frames.items():
            blank = [np.zeros(one.shape, one.dtype)] * (stack or 1)
            shape = _joined(blank, stack, stack_axis).shape
            out[name] = _array(parts[name], shape, one.dtype)
        return out if self.schema.is_dict else out[FRAME]

    def episodes(self, live: bool = False) -> list[EpisodeRow]:
        """The table of whole episodes, in the order of lanes and rows.

        Args:
            live: whether the newest episode of each lane may go on: it is not truncated yet.
        """
        out = []
        for number, lane in enumerate(self.lanes):
            for start, stop in lane.whole_episodes():
                terminated = not lane.rows[stop - 2].non_terminal
                rewards = [float(row.reward) for row in lane.rows[start : stop - 1]]
                out.append(
                    EpisodeRow(
                        number << LANE_SHIFT | start,
                        stop - start - 1,
                        sum(rewards),
                        terminated,
                        not terminated and not (live and stop == len(lane.rows)),
                        sum(map(abs, rewards)),
                    )
                )
        return out

    def trajectory(self, number: int, live: bool = False) -> TrajectoryModel:
        """One whole episode, by its place in `episodes`."""
        about = self.episodes(live)[number]
        lane_number, start = divmod(about.id, 1 << LANE_SHIFT)
        rows = self.lanes[lane_number].rows[start : start + about.length + 1]
        steps = rows[:-1]
        return TrajectoryModel(
            {name: np.stack([row.frame[name] for row in rows]) for name in self.schema.frames},
            np.stack([row.action for row in steps]),
            np.stack([row.reward for row in steps]),
            np.array([bool(row.non_terminal) for row in steps]),
            about.terminated,
            about.truncated,
            np.arange(about.id, about.id + about.length, dtype=np.int64),
            {name: np.stack([row.extras[name] for row in steps]) for name in self.schema.extras},
        )


def usual_stack(schema: Schema) -> int | None:
    """Frames of an observation if nobody says how many: 4 of gray images, no stack of all else."""
    fields = schema.frames.values()
    return 4 if any(one.dtype == np.uint8 and len(one.shape) == 2 for one in fields) else None


def _joined(frames: list[Array], stack: int | None, stack_axis: int) -> Array:
    """Frames of one stack as one array."""
    if stack is None:
        return frames[-1]
    if stack_axis == 0:
        return np.stack(frames, axis=0)
    if frames[0].ndim == 3:
        return np.concatenate(frames, axis=-1)
    return np.stack(frames, axis=-1)


def _array(parts: list[Array], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """(B, *shape), also for B = 0."""
    out = np.zeros((len(parts), *shape), dtype)
    for number, part in enumerate(parts):
        out[number] = part
    return out
