"""Experiences one after another as the episodes of a store.

Invariant: an experience whose state is the s_next before goes on with that episode, unless that
step ended it; every other one begins an episode. So each state is stored once, and no stack or
run holds states of two episodes that were cut apart by a time limit. What is refused leaves
nothing behind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mmreplay.arguments import check_seed
from mmreplay.compat.deferred_store import StoreDirectory
from mmreplay.compat.nnabla_rl.experiences import Experience, Layout, checked, content
from mmreplay.compat.nnabla_rl.info import InfoColumns
from mmreplay.compat.nnabla_rl.states import Frames, States
from mmreplay.datasets.replay_buffer import ReplayBuffer
from mmreplay.errors import ClosedError, EmptyBufferError, FormatError, SchemaError
from mmreplay.ids import Array
from mmreplay.reading.store import open_store
from mmreplay.schema import FRAME, Field, Schema
from mmreplay.writing.row_values import RowValues

Open = Callable[..., ReplayBuffer]
"""Opens a buffer: ``open(path, seed=seed, **fields)``."""

TRAJECTORY_BEGINS = "trajectory_begins"
"""The column that is True at the first step of a trajectory, in stores of trajectories."""

EARLIER_SCREENS = "earlier_screens"
"""The column that tells, at the first step of an episode, how many rows before it show screens of
its first stack: each is an episode of no step. In stores of trajectories of stacks."""

_KEY = "nnabla_rl"


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    """An experience that was checked, as what the writer takes.

    Attributes:
        frames: before the step where it begins an episode: earlier screens, and the first one.
        arguments: of the writer's step, by position.
        named: the others.
    """

    frames: list[Frames]
    arguments: tuple[Any, ...]
    named: dict[str, Any]


class _Checker:
    """Makes steps of experiences, for the rows of one store; SchemaError for what does not fit."""

    def __init__(self, layout: Layout, schema: Schema, states: States) -> None:
        self._layout, self._schema, self._states = layout, schema, states
        self._values = RowValues(schema, _no_frame)

    def step(
        self,
        experience: Experience,
        earlier: list[Frames] | None,
        marks: Mapping[str, Any],
        **flags: bool,
    ) -> _Step:
        """One step; `earlier` are the frames before its own if it begins an episode, else None."""
        action, reward, extras = self._layout.values(experience, self._schema.extras)
        self._values.extras({**extras, **marks})
        frames: list[Frames] = []
        if earlier is not None:
            own = self._states.frame(experience[0])
            frames = [self._frame(frame) for frame in (*earlier, own)]
        after = self._frame(self._states.frame(experience[4]))
        arguments = (self._values.action(action), reward, after)
        return _Step(frames, arguments, {**flags, **extras, **marks})

    def _frame(self, frame: Frames) -> Frames:
        found = self._values.frames(frame)
        if not self._schema.is_dict:
            return found[self._schema.frame_paths[FRAME]]
        return {key: found[path] for key, path in self._schema.frame_paths.items()}


def _no_frame(path: str, row: int) -> Array:
    raise NotImplementedError(f"{path}: row {row} is never asked for: no frame is LazyFrames")


class Recorder:
    """The buffer that experiences are appended to; made when the first one comes.

    A store that exists is opened at once. `kind` is the name of the class whose store this is,
    `states` how states become frames. Raises FormatError if the store is another class's, or
    something else.
    """

    def __init__(self, directory: StoreDirectory, kind: str, states: States, opener: Open) -> None:
        self.states = states
        self._directory, self._kind, self._open = directory, kind, opener
        self._seed: int | None = None
        self._buffer: ReplayBuffer | None = None
        self._closed = False
        self.layout = Layout(is_array=False, info=InfoColumns(()))
        self._last: object = None  # the state that the next experience goes on from
        self._checker: _Checker | None = None  # made once there is a buffer
        if directory.exists():
            self.layout = self._stored_layout()
            self._buffer = self._open(directory.path, seed=None)

    @property
    def is_open(self) -> bool:
        """Whether there is a buffer yet; ClosedError if there was one."""
        if self._closed:
            raise ClosedError(f"{self._directory.path}: this buffer is closed")
        return self._buffer is not None

    @property
    def buffer(self) -> ReplayBuffer:
        """The buffer; EmptyBufferError if nothing was appended yet."""
        if not self.is_open or self._buffer is None:
            raise EmptyBufferError(f"{self._directory.path}: nothing was appended yet")
        return self._buffer

    def _stored_layout(self) -> Layout:
        # Looked at before it is opened for writing, which may evict rows.
        path = self._directory.path
        with open_store(path) as store:
            found = store.live.readers[0].metadata["env"].get(_KEY)
        if found is None:
            raise FormatError(f"{path}: was not made by mmreplay.compat.nnabla_rl")
        if (kind := found.get("class")) != self._kind:
            raise FormatError(
                f"{path}: expected a store of nnabla_rl.{self._kind}, found one of "
                f"nnabla_rl.{kind}; open it with that class, or give another path"
            )
        return Layout.from_json(found)

    def append(self, given: Any) -> None:
        """Append an experience; SchemaError if it is none, or not one like the first."""
        experience = checked(given)
        info = experience[5]
        ended = not np.any(experience[3])
        # As Gym's wrapper had it.
        cut = isinstance(info, Mapping) and _is_true(info.get("TimeLimit.truncated", False))
        begins = self._last is None or content(experience[0]) != self._last
        earlier = self.states.earlier(experience[0], experience[4])
        if begins and earlier:
            raise _not_a_beginning()
        before: list[Frames] | None = [] if begins else None
        self._store(
            [experience],
            lambda check: [check.step(experience, before, {}, terminated=ended, truncated=cut)],
        )
        self._last = None if ended or cut else content(experience[4])

    def append_trajectory(self, given: Sequence[Any]) -> None:
        """Append experiences as one trajectory: an episode for each run of steps that follow.

        Raises as `append`; SchemaError also for no steps.
        """
        steps = [checked(one) for one in given]
        if not steps:
            raise SchemaError("trajectory: expected one experience or more, found none")
        earlier = [self.states.earlier(step[0], step[4]) for step in steps]
        begins = [True]
        begins += [content(step[0]) != content(steps[i][4]) for i, step in enumerate(steps[1:])]
        lasts = [*begins[1:], True]
        ended = [not np.any(step[3]) for step in steps]
        marks = {TRAJECTORY_BEGINS: Field((), "bool")}
        if self.states.stack is not None:
            marks[EARLIER_SCREENS] = Field((), "uint8")
        if self.is_open and EARLIER_SCREENS not in self.buffer.store.schema.extras:
            marks.pop(EARLIER_SCREENS, None)

        def checked_steps(check: _Checker) -> list[_Step]:
            out = []
            for number, step in enumerate(steps):
                before = earlier[number] if begins[number] else []
                if before and EARLIER_SCREENS not in marks:  # a store of an earlier version
                    raise _not_a_beginning()
                given = {TRAJECTORY_BEGINS: not number, EARLIER_SCREENS: len(before)}
                out.append(
                    check.step(
                        step,
                        before if begins[number] else None,
                        {name: given[name] for name in marks},
                        terminated=ended[number] and lasts[number],
                        truncated=lasts[number],
                        life_lost=ended[number] and not lasts[number],
                    )
                )
            return out

        self._last = None
        self._store(steps, checked_steps, marks)

    def _store(
        self,
        experiences: Sequence[Experience],
        checked_steps: Callable[[_Checker], list[_Step]],
        marks: Mapping[str, Field] | None = None,
    ) -> None:
        """Check experiences as steps, and store them: all are checked before the first one is."""
        if self.is_open:
            if self._checker is None:
                self._checker = _Checker(self.layout, self.buffer.store.schema, self.states)
            steps = checked_steps(self._checker)
        else:
            layout, fields = Layout.of(experiences[0])
            fields["frame"] = self.states.field(self.states.frame(experiences[0][0]))
            fields["extras"] |= marks or {}
            steps = checked_steps(_Checker(layout, Schema.make(**fields), self.states))
            self._create(layout, fields)
        buffer = self.buffer
        for step in steps:
            if step.frames:
                self._last = None  # interrupted, it leaves an episode that nothing goes on from
            for frame in step.frames:
                buffer.reset(frame)
            buffer.step(*step.arguments, **step.named)

    def _create(self, layout: Layout, fields: dict[str, Any]) -> None:
        fields["metadata"] = {_KEY: {"class": self._kind, **layout.to_json()}}
        if self._directory.is_temporary:
            fields["flush_s"] = 0  # no power cut matters to what is removed anyway
        self._buffer = self._open(self._directory.path, seed=self._seed, **fields)
        self.layout = layout

    def open_again(self, **changes: Any) -> None:
        """Close the buffer and open it again, this once with other settings."""
        self.buffer.close()
        self._last = None
        self._buffer = self._open(self._directory.path, seed=self._seed, **changes)

    def seed(self, seed: int) -> None:
        """Draw as this seed has it."""
        check_seed(seed)
        self._seed = seed
        if self.is_open:
            self.buffer.generator = np.random.default_rng(seed)

    def close(self) -> None:
        """Close the buffer, and remove it if it is temporary; a second call does nothing."""
        self._closed = True
        try:
            if self._buffer is not None:
                self._buffer.close()
        finally:
            self._directory.close()


def _is_true(flag: Any) -> bool:
    """Whether a flag of an info is set; an array is if one of its entries is."""
    return bool(flag.any() if isinstance(flag, np.ndarray) else flag)


def _not_a_beginning() -> SchemaError:
    return SchemaError(
        "s: a state that does not go on from the s_next before begins an episode, whose first "
        "stack is one screen repeated; found a stack of different screens. Append the steps of an "
        "episode in order"
    )
