"""The oracle: every step of every environment in plain Python lists, and what they mean.

Invariant: nothing here is shared with the storage, the index or the gather of the package. Stacks
are found by walking back frame by frame, returns by a loop, valid ids by looking at every row. Slow
on purpose: it is what the fast code is compared with, byte for byte. docs/semantics.md has the
rules, docs/format.md the arrays.
"""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.batches.batch import Batch
from mmreplay.schema import FRAME, Field
from mmreplay.texts import Text

Array = npt.NDArray[Any]
Frame = dict[str, Array]

FLAGS = ("terminated", "truncated", "life_lost")
CONTEXT_ROWS = 64  # kept below the oldest row to sample, so that stacks of 65 are whole
LANE_SHIFT = 40
ROW_MASK = (1 << LANE_SHIFT) - 1


@dataclasses.dataclass(slots=True)
class Step:
    """What was done, and what it gave."""

    action: Array
    reward: Array
    non_terminal: int
    extras: dict[str, Array]


@dataclasses.dataclass(eq=False, slots=True)
class Played:
    """One episode of one environment: T steps in rows that follow each other, T + 1 frames."""

    env: int
    first: int  # row of its first step
    frames: list[Frame]  # before each step, and after the last one
    steps: list[Step]
    over: bool = False  # whether it ended; its last frame is a final observation then
    fields: dict[str, Array] = dataclasses.field(default_factory=dict)  # as they are stored

    @property
    def last(self):
        """Row of its last step."""
        return self.first + len(self.steps) - 1

    def entries(self, n):
        """Its steps, as entries of a lane of n environments."""
        return [row * n + self.env for row in range(self.first, self.last + 1)]

    @property
    def ending(self):
        """Whether it ended as terminated, and whether as truncated; neither while it runs."""
        terminal = not self.steps[-1].non_terminal
        return self.over and terminal, self.over and not terminal

    @property
    def total(self):
        return sum(float(step.reward) for step in self.steps)

    @property
    def magnitude(self):
        """Sum of the rewards' absolute values: what rounding errors are measured against."""
        return sum(abs(float(step.reward)) for step in self.steps)


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
    episode: dict[str, Any]


class LaneModel:
    """One lane: `rows` has, by step of the lane, the episode of each environment that took part."""

    def __init__(self, schema, environments=None, capacity=None):
        self.schema, self.environments, self.capacity = schema, environments, capacity
        self.n = environments or 1
        self.rows = []
        self.episodes = []
        self.finals = []
        self.running = {}
        self.base = 0
        # Whoever says when an episode began can be held to it.
        self.fields, self.knows_started = {"started": Field((), "int64"), **schema.episode}, True
        self.opened = 0  # rows of sessions before this one

    # ------------------------------------------------------------ what a writer does

    def reset(self, frames, fields=None):
        """Begin episodes, by environment, with some of their fields; those that run end."""
        self.end(sorted(frames))
        for env, frame in frames.items():
            given = self._stored((fields or {}).get(env, {}))
            self.knows_started &= "started" in given
            self.running[env] = Played(env, len(self.rows), [self._frame(frame)], [], False, given)

    def say(self, given):
        """Fields of the episode of the newest step, by environment."""
        for env, values in given.items():
            self.newest(env).fields |= self._stored(values)

    def newest(self, env):
        """The episode of an environment's newest step of this session; None if it has none."""
        rows = self.rows[self.opened :]
        return next((row[env] for row in reversed(rows) if env in row), None)

    def _stored(self, given):
        return {name: stored(self.fields[name], value) for name, value in given.items()}

    def step(self, given):
        """A row: what every environment gave of which an episode runs."""
        if not given or set(given) != set(self.running):
            raise ValueError(f"episodes of {sorted(self.running)} run, steps of {sorted(given)}")
        schema, row = self.schema, {}
        for env in sorted(given):
            action, reward, frame, flags, extras = given[env]
            one = row[env] = self.running[env]
            if not one.steps:
                one.first = len(self.rows)
                self.episodes.append(one)
            down = flags.get("terminated", False) or flags.get("life_lost", False)
            one.steps.append(
                Step(
                    np.array(action, schema.action.dtype),
                    np.array(reward, schema.reward_dtype),
                    int(not down),
                    {
                        name: np.array(
                            extras[name] if name in extras else np.zeros(f.shape), f.dtype
                        )
                        for name, f in schema.extra_fields.items()
                    },
                )
            )
            one.frames.append(self._frame(frame))
        self.rows.append(row)
        ends = [e for e in row if any(given[e][3].get(name, False) for name in FLAGS[:2])]
        self.end(ends)

    def update(self, entry, name, value):
        """Another value of a derived column; whether its transition can be sampled."""
        one, number = self.find(entry)
        if one.first + number < self.first:
            return False
        step = one.steps[number]
        field = self.schema.derived[name]
        extras = {**step.extras, name: np.array(value, field.dtype)}
        one.steps[number] = dataclasses.replace(step, extras=extras)
        return True

    def end(self, envs):
        """What runs in these environments is over; of an episode without a step nothing is left."""
        for env in envs:
            one = self.running.pop(env, None)
            if one is not None and one.steps:
                one.over = True
                self.finals.append(one)

    def end_session(self):
        """The writer closed, or somebody recovered what a death left: all episodes are over."""
        self.end(range(self.n))
        self.opened = len(self.rows)

    def cut(self, head):
        """Rows from `head` on were lost; what went on there ends with the row before."""
        self.finals = [one for one in self.finals if one.last < head]
        kept = set(map(id, self.finals))
        for row in self.rows[head:]:
            for one in row.values():
                one.steps.pop()
                one.frames.pop()
                one.over = False
        del self.rows[head:]
        self.episodes = [one for one in self.episodes if one.steps]
        newest = self.rows[-1] if self.rows else {}
        self.running = {env: one for env, one in newest.items() if id(one) not in kept}
        self.end_session()

    def forget(self, base):
        """Rows below `base` are gone from the store for good."""
        self.base = max(self.base, base)

    def copy(self):
        """A model that can be cut without changing this one."""
        out = copy.copy(self)
        every = {id(one): one for one in [*self.episodes, *self.running.values()]}
        twins = {
            name: dataclasses.replace(
                one, frames=[*one.frames], steps=[*one.steps], fields=dict(one.fields)
            )
            for name, one in every.items()
        }
        out.rows = [{env: twins[id(one)] for env, one in row.items()} for row in self.rows]
        out.episodes = [twins[id(one)] for one in self.episodes]
        out.finals = [twins[id(one)] for one in self.finals]
        out.running = {env: twins[id(one)] for env, one in self.running.items()}
        return out

    def _frame(self, frame):
        given = frame if isinstance(frame, Mapping) else {FRAME: frame}
        return {name: np.array(given[name], one.dtype) for name, one in self.schema.frames.items()}

    # ------------------------------------------------------------ what may be sampled

    @property
    def first(self):
        """The oldest row: from it on there are no more transitions than the capacity."""
        floor = self.base + CONTEXT_ROWS if self.base else 0
        if self.capacity is None:
            return floor
        first, left = len(self.rows), self.capacity
        while first > floor and left >= len(self.rows[first - 1]):
            first -= 1
            left -= len(self.rows[first])
        return first

    @property
    def next_base(self):
        """The base of a flush that begins now."""
        return max(self.first - CONTEXT_ROWS, self.base)

    def transitions(self):
        """The entries that can be sampled, ascending."""
        first = self.first
        return [
            row * self.n + env
            for row, there in enumerate(self.rows[first:], first)
            for env in sorted(there)
        ]

    def find(self, entry):
        """The episode of an entry, also of one that was evicted, and its step's place in it."""
        row, env = divmod(entry, self.n)
        if row < 0:
            raise LookupError(entry)
        one = self.rows[row][env]
        return one, row - one.first

    def kept(self):
        """Every episode of which steps can be sampled, and their entries, by first transition."""
        low = self.first * self.n
        pairs = [(one, [i for i in one.entries(self.n) if i >= low]) for one in self.episodes]
        return [(one, entries) for one, entries in pairs if entries]

    def whole_episodes(self):
        """Episodes all of whose transitions can be sampled, by first transition."""
        first = self.first
        return [one for one in self.episodes if one.first >= first]

    # ------------------------------------------------------------ what is on disk

    def arrays(self):
        """Every array of the lane by path, whole: none of its rows is evicted."""
        schema, shape = self.schema, () if self.environments is None else (self.n,)
        size = len(self.rows)
        out = {
            path: np.zeros((size, *shape, *one.shape), one.dtype)
            for path, one in schema.columns().items()
        }
        out |= {p: np.zeros((size, *shape), np.uint8) for p in ("non_terminals", "resets", "ends")}
        out["step"] = np.zeros((size, *shape), np.int64)
        for row, there in enumerate(self.rows):
            for env, one in there.items():
                at = row if self.environments is None else (row, env)
                number = row - one.first
                for path, value in self._values(one, number).items():
                    out[path][at] = value
                out["resets"][at] = number == 0
                out["ends"][at] = one.over and row == one.last
                out["step"][at] = number + 1
        size = len(self.finals)
        for key, path in schema.frame_paths.items():
            field = schema.frames[key]
            out[f"finals/{path}"] = _array(
                [one.frames[-1][key] for one in self.finals], field.shape, field.dtype
            )
        ids = [one.last * self.n + one.env for one in self.finals]
        firsts = [one.first * self.n + one.env for one in self.finals]
        out["finals/id"], out["finals/first"] = np.array([ids, firsts], np.int64).reshape(2, size)
        for name, field in self.fields.items():
            values = [self.field(one, name) for one in self.episodes]
            out[f"episodes/{name}"] = _array(values, field.shape, field.dtype)
        return out

    def field(self, one, name):
        """A field of an episode, as it is stored."""
        field = self.fields[name]
        return one.fields.get(name, np.zeros(field.shape, field.dtype))

    def _values(self, one, number):
        step = one.steps[number]
        out = {path: one.frames[number][key] for key, path in self.schema.frame_paths.items()}
        out |= {"actions": step.action, "rewards": step.reward}
        out |= {path: step.extras[name] for name, path in self.schema.extra_paths.items()}
        return {**out, "non_terminals": step.non_terminal}

    def began_before(self, row):
        """Episodes that began below a row."""
        return sum(one.first < row for one in self.episodes)

    def ended_before(self, row):
        """Final observations of the episodes that ended below a row."""
        return sum(one.last < row for one in self.finals)


class Model:
    """A store of one lane or many."""

    def __init__(self, schema, capacities=(None,), environments=None):
        self.schema = schema
        self.lanes = [LaneModel(schema, environments, capacity) for capacity in capacities]

    def copy(self):
        """A model that can be cut without changing this one."""
        out = Model(self.schema, [])
        out.lanes = [lane.copy() for lane in self.lanes]
        return out

    def end_session(self):
        """All writers closed, or somebody recovered what they left."""
        for lane in self.lanes:
            lane.end_session()

    def cut(self, heads):
        """Of each lane only so many rows are left."""
        for lane, head in zip(self.lanes, heads, strict=True):
            lane.cut(head)

    def heads(self):
        """The rows of each lane."""
        return [len(lane.rows) for lane in self.lanes]

    def ids(self):
        """Every valid transition id, ascending: int64."""
        every = [
            n << LANE_SHIFT | entry
            for n, lane in enumerate(self.lanes)
            for entry in lane.transitions()
        ]
        return np.array(every, np.int64)

    def __len__(self):
        return sum(len(row) for lane in self.lanes for row in lane.rows[lane.first :])

    def find(self, id_):
        return self.lanes[id_ >> LANE_SHIFT].find(id_ & ROW_MASK)

    def ids_of(self, lane, one):
        """The ids of an episode's steps."""
        return [lane << LANE_SHIFT | entry for entry in one.entries(self.lanes[lane].n)]

    # ------------------------------------------------------------ what a transition is

    def stack(self, one, newest, size, padding):
        """`size` frames of an episode, the newest last, padded in front of its first one."""
        out = []
        for number in range(newest - size + 1, newest + 1):
            if number >= 0 or padding == "reset":
                out.append(one.frames[max(number, 0)])
            else:
                out.append({name: np.zeros_like(f) for name, f in one.frames[0].items()})
        return out

    def n_step(self, one, number, n_step, gamma, clip=None):
        """(return, discount, non_terminal, m): the sum in float64, in order."""

        def reward(number):
            stored = one.steps[number].reward
            return float(stored if clip is None else np.clip(stored, *clip))

        total, m = reward(number), 1
        while m < n_step and one.steps[number + m - 1].non_terminal and number + m < len(one.steps):
            total += gamma**m * reward(number + m)
            m += 1
        non_terminal = bool(one.steps[number + m - 1].non_terminal)
        return total, gamma**m if non_terminal else 0.0, non_terminal, m

    def batch(
        self, ids, stack=..., n_step=1, gamma=0.99, padding="reset", stack_axis=0, clip_reward=None
    ):
        """What `Store.transitions` must return for these ids, also if they were evicted since."""
        wanted = np.asarray(ids, np.int64)
        places = [self.find(int(one)) for one in wanted.tolist()]
        return self.batch_of(places, wanted, stack, n_step, gamma, padding, stack_axis, clip_reward)

    def batch_of(
        self,
        places,
        ids,
        stack=...,
        n_step=1,
        gamma=0.99,
        padding="reset",
        stack_axis=0,
        clip_reward=None,
    ):
        """The same of steps of episodes, by their places in these."""
        size = usual_stack(self.schema) if stack is ... else stack
        returns = [self.n_step(*place, n_step, gamma, clip_reward) for place in places]
        observations = [
            {
                name: joined(
                    [frame[name] for frame in self.stack(one, newest, size or 1, padding)],
                    size,
                    stack_axis,
                )
                for name in self.schema.frames
            }
            for ahead in (False, True)
            for (one, number), (*_, m) in zip(places, returns, strict=True)
            for newest in (number + m * ahead,)
        ]
        lasts = [
            one.ending if number + m == len(one.steps) else (False, False)
            for (one, number), (*_, m) in zip(places, returns, strict=True)
        ]
        steps = [one.steps[number] for one, number in places]
        rewards, action, extras = (
            self.schema.reward_dtype,
            self.schema.action,
            self.schema.extra_fields,
        )
        count = len(places)
        return Batch(
            self._observation(observations[:count], size, stack_axis),
            self._observation(observations[count:], size, stack_axis),
            _array([step.action for step in steps], action.shape, action.dtype),
            np.array([total for total, *_ in returns], rewards),
            np.array([discount for _, discount, *_ in returns], rewards),
            np.array([flag for _, _, flag, _ in returns], np.bool_),
            ids,
            np.ones(count, np.float32),
            {
                name: _array([step.extras[name] for step in steps], one.shape, one.dtype)
                for name, one in extras.items()
            },
            np.array([terminated for terminated, _ in lasts], np.bool_),
            np.array([truncated for _, truncated in lasts], np.bool_),
        )

    def _observation(self, parts, stack, stack_axis):
        out = {}
        for name, one in self.schema.frames.items():
            blank = [np.zeros(one.shape, one.dtype)] * (stack or 1)
            shape = joined(blank, stack, stack_axis).shape
            out[name] = _array([part[name] for part in parts], shape, one.dtype)
        return out if self.schema.is_dict else out[FRAME]

    # ------------------------------------------------------------ episodes

    def episodes(self):
        """The whole episodes with their lanes, in the order of the table."""
        return [
            (number, one) for number, lane in enumerate(self.lanes) for one in lane.whole_episodes()
        ]

    def trajectory(self, number):
        """One whole episode, by its place in `episodes`."""
        lane, one = self.episodes()[number]
        return TrajectoryModel(
            {name: np.stack([frame[name] for frame in one.frames]) for name in self.schema.frames},
            np.stack([step.action for step in one.steps]),
            np.stack([step.reward for step in one.steps]),
            np.array([bool(step.non_terminal) for step in one.steps]),
            *one.ending,
            np.array(self.ids_of(lane, one), np.int64),
            {
                name: np.stack([step.extras[name] for step in one.steps])
                for name in self.schema.extra_fields
            },
            {
                name: read(self.lanes[lane].fields[name], self.lanes[lane].field(one, name))
                for name in self.lanes[lane].fields
            },
        )


def stored(field, value):
    """A value of a field of episodes as it is stored: of a text its UTF-8, then zeros."""
    if isinstance(field, Text):
        return np.frombuffer(value.encode().ljust(field.width, b"\0"), np.uint8)
    return np.array(value, field.dtype).reshape(field.shape)


def read(field, value):
    """The same as it is read."""
    return value.tobytes().rstrip(b"\0").decode() if isinstance(field, Text) else value


def usual_stack(schema):
    """Frames of an observation if nobody says how many: 4 of gray images, no stack of all else."""
    fields = schema.frames.values()
    return 4 if any(one.dtype == np.uint8 and len(one.shape) == 2 for one in fields) else None


def joined(frames, stack, stack_axis):
    """Frames of one stack as one array."""
    if stack is None:
        return frames[-1]
    if stack_axis == 0:
        return np.stack(frames, axis=0)
    if frames[0].ndim == 3:
        return np.concatenate(frames, axis=-1)
    return np.stack(frames, axis=-1)


def _array(parts, shape, dtype):
    """(B, *shape), also for B = 0."""
    out = np.zeros((len(parts), *shape), dtype)
    for number, part in enumerate(parts):
        out[number] = part
    return out
