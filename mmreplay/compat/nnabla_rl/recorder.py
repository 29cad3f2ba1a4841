"""Experiences one after another as the episodes of a store.

Invariant: an experience whose state is the s_next before goes on with that episode, unless that
step ended it; every other one begins an episode. So each state is stored once, and no stack or
run holds states of two episodes that were cut apart by a time limit. What is refused leaves
nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mmreplay.arguments import check_seed
from mmreplay.compat.deferred_store import DeferredStore, StorePath
from mmreplay.compat.nnabla_rl.experiences import (
    Experience,
    checked,
    content,
    fields_for,
    row_values,
)
from mmreplay.compat.nnabla_rl.states import Frames, States
from mmreplay.datasets.replay_buffer import ReplayBuffer
from mmreplay.errors import ClosedError, FormatError, SchemaError
from mmreplay.ids import Array
from mmreplay.schema import FRAME, Field, Schema
from mmreplay.writing.row_values import RowValues

Open = Callable[..., ReplayBuffer]
"""Opens a buffer: ``open(path, capacity, seed=seed, **fields)``."""

TRAJECTORY_BEGINS = "trajectory_begins"
"""The column that is True at the first step of a trajectory, in stores of trajectories."""

_KEY = "nnabla_rl"

_Step = tuple[Frames | None, tuple[Any, ...], dict[str, Any]]
"""The frame before a step that begins an episode; the arguments of `step`, and the named ones."""


class Recorder(DeferredStore):
    """The buffer that experiences are appended to; made when the first one comes.

    A store that exists is opened at once. `kind` is the name of the class whose store this is,
    `states` how states become frames. Raises FormatError if the store is another class's, or
    something else.
    """

    def __init__(
        self, path: StorePath, capacity: int | None, kind: str, states: States, opener: Open
    ) -> None:
        super().__init__(path, capacity)
        self.states, self._kind, self._opener = states, kind, opener
        self._seed: int | None = None
        self._last: object = None  # the state that the next experience goes on from
        self._schema: Schema | None = None  # of the store, once something was appended
        if (stored := self._stored()) is not None:
            self._check_kind(stored[1].get(_KEY))
            self._open(opener, seed=None)

    def _check_kind(self, found: Any) -> None:
        if found is None:
            raise FormatError(f"{self._path}: was not made by mmreplay.compat.nnabla_rl")
        if found != self._kind:
            raise FormatError(
                f"{self._path}: expected a store of nnabla_rl.{self._kind}, found one of "
                f"nnabla_rl.{found}; open it with that class, or give another path"
            )

    @property
    def is_open(self) -> bool:
        """Whether there is a buffer yet; ClosedError if there was one."""
        if self._closed:
            raise ClosedError(f"{self!r}: this buffer is closed")
        return self._core is not None

    def append(self, given: Any) -> None:
        """Append an experience; SchemaError if it is none, or not one like the first."""
        experience = checked(given)
        state, info, following = experience[0], experience[5], experience[4]
        ended = not np.any(experience[3])
        # As Gym's wrapper had it.
        cut = isinstance(info, Mapping) and bool(np.any(info.get("TimeLimit.truncated", False)))
        begins = self._last is None or content(state) != self._last
        self._store([experience], [begins], [{"terminated": ended, "truncated": cut}])
        self._last = None if ended or cut else content(following)

    def append_trajectory(self, given: Sequence[Any]) -> None:
        """Append experiences as one trajectory: an episode for each run of steps that follow.

        Raises as `append`; SchemaError also for no steps.
        """
        steps = [checked(one) for one in given]
        if not steps:
            raise SchemaError("trajectory: expected one experience or more, found none")
        begins = [True]
        begins += [content(step[0]) != content(steps[i][4]) for i, step in enumerate(steps[1:])]
        flags = []
        for number, (step, last) in enumerate(zip(steps, [*begins[1:], True], strict=True)):
            ended = not np.any(step[3])
            flags.append(
                {
                    "terminated": ended and last,
                    "truncated": last,
                    "life_lost": ended and not last,
                    TRAJECTORY_BEGINS: not number,
                }
            )
        self._store(steps, begins, flags)

    def _store(
        self, experiences: list[Experience], begins: list[bool], flags: list[dict[str, bool]]
    ) -> None:
        """Check all experiences, then store each as a step; some begin episodes."""
        if self.is_open:
            if self._schema is None:
                self._schema = self.core.store.schema
                self._values = RowValues(self._schema, _no_frame)
            self._write(self._checked(self._schema, self._values, experiences, begins, flags))
            return
        first = experiences[0]
        fields = fields_for(first)
        fields["frame"] = self.states.field(self.states.frame(first[0]))
        if TRAJECTORY_BEGINS in flags[0]:
            fields["extras"][TRAJECTORY_BEGINS] = Field((), "bool")
        schema = Schema.make(**fields)
        values = RowValues(schema, _no_frame)
        steps = self._checked(schema, values, experiences, begins, flags)
        self._open(self._opener, seed=self._seed, metadata={_KEY: self._kind}, **fields)
        self._write(steps)

    def _checked(
        self,
        schema: Schema,
        values: RowValues,
        experiences: list[Experience],
        begins: list[bool],
        flags: list[dict[str, bool]],
    ) -> list[_Step]:
        steps = list[_Step]()
        for one, is_first, named in zip(experiences, begins, flags, strict=True):
            self.states.check(one[0], one[4], begins=is_first)
            action, reward, extras = row_values(one, schema.extras)
            marks = {key: flag for key, flag in named.items() if key in schema.extras}
            values.extras({**extras, **marks})
            before = self._frame(values, schema, one[0]) if is_first else None
            after = self._frame(values, schema, one[4])
            steps.append((before, (values.action(action), reward, after), {**extras, **named}))
        return steps

    def _frame(self, values: RowValues, schema: Schema, state: Any) -> Frames:
        found = values.frames(self.states.frame(state))
        if not schema.is_dict:
            return found[schema.frame_paths[FRAME]]
        return {key: found[path] for key, path in schema.frame_paths.items()}

    def _write(self, steps: list[_Step]) -> None:
        for before, arguments, named in steps:
            if before is not None:
                self._last = None  # interrupted, it leaves an episode that nothing goes on from
                self.core.reset(before)
            self.core.step(*arguments, **named)

    def open_again(self, capacity: int) -> None:
        """Close the buffer and open it twice: this once with another capacity, to free disk."""
        usual, self._last = self._capacity, None
        for self._capacity in (capacity, usual):
            self.core.close()
            self._open(self._opener, seed=self._seed)

    def seed(self, seed: int) -> None:
        """Draw as this seed has it."""
        check_seed(seed)
        self._seed = seed
        if self.is_open:
            self.core.generator = np.random.default_rng(seed)


def _no_frame(path: str, row: int) -> Array:
    raise NotImplementedError(f"{path}: row {row} is never asked for: no frame is LazyFrames")
