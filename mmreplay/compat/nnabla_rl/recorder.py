"""Stores a sequence of experiences as episodes.

Invariant: an experience whose state is the previous s_next continues that episode, unless that step
ended it; any other one begins an episode. So each state is stored once. A refused experience or
trajectory leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from mmreplay.arguments import check_seed
from mmreplay.compat.deferred_store import DeferredStore, StorePath
from mmreplay.compat.nnabla_rl.experiences import (
    TIME_LIMIT,
    Experience,
    Frames,
    States,
    checked,
    content,
    fields_for,
    row_values,
)
from mmreplay.datasets.replay_buffer import ReplayBuffer
from mmreplay.errors import ClosedError, FormatError, SchemaError
from mmreplay.ids import Array
from mmreplay.schema import FRAME, Field, Schema
from mmreplay.writing.row_values import RowValues

Open = Callable[..., ReplayBuffer]
"""Opens a buffer: ``open(path, capacity, seed=seed, **fields)``."""

TRAJECTORY_BEGINS = "trajectory_begins"
"""In stores of trajectories, the column that is True at the first step of each."""

_KEY = "nnabla_rl"

Row = tuple[Experience, bool, dict[str, bool]]
"""An experience, whether it begins an episode, and the flags of its step."""

_Step = tuple[Frames | None, tuple[Any, ...], dict[str, Any]]
"""The frame that begins an episode, or None; the arguments of `step`, and its keywords."""


class Recorder(DeferredStore):
    """The buffer that experiences are appended to; raises FormatError for another class's store."""

    def __init__(
        self, path: StorePath, capacity: int | None, kind: str, states: States, opener: Open
    ) -> None:
        super().__init__(path, capacity)
        self.states, self._kind, self._opener = states, kind, opener
        self._seed: int | None = None
        self._last: object = None  # the state that the next experience may continue
        self._values: RowValues | None = None
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
        """Append an experience; SchemaError if it does not fit."""
        experience = checked(given)
        state, info, following = experience[0], experience[5], experience[4]
        ended, cut = not np.any(experience[3]), bool(np.any(info.get(TIME_LIMIT, False)))
        begins = self._last is None or content(state) != self._last
        self._store([(experience, begins, {"terminated": ended, "truncated": cut})])
        self._last = None if ended or cut else content(following)

    def append_trajectory(self, given: Sequence[Any]) -> None:
        """Append one trajectory, with an episode for each run of consecutive steps."""
        steps = [checked(one) for one in given]
        if not steps:
            raise SchemaError("trajectory: expected one experience or more, found none")
        begins = [True]
        begins += [content(step[0]) != content(steps[i][4]) for i, step in enumerate(steps[1:])]
        rows: list[Row] = []
        for number, (step, last) in enumerate(zip(steps, [*begins[1:], True], strict=True)):
            ended = not np.any(step[3])
            flags = {
                "terminated": ended and last,
                "truncated": last,
                "life_lost": ended and not last,
                TRAJECTORY_BEGINS: not number,
            }
            rows.append((step, begins[number], flags))
        self._store(rows)

    def _store(self, rows: list[Row]) -> None:
        """Check all rows, then store each as a step."""
        fields: dict[str, Any] = {}
        if not self.is_open:
            (first, _, flags), *_ = rows
            fields = fields_for(first)
            fields["frame"] = self.states.field(self.states.frame(first[0]))
            if TRAJECTORY_BEGINS in flags:
                fields["extras"][TRAJECTORY_BEGINS] = Field((), "bool")
            self._use(Schema.make(**fields))
        elif self._values is None:
            self._use(self.core.store.schema)
        steps = [self._checked(*row) for row in rows]
        if fields:
            self._open(self._opener, seed=self._seed, metadata={_KEY: self._kind}, **fields)
        for before, arguments, named in steps:
            if before is not None:
                self._last = None  # if interrupted, nothing continues this episode
                self.core.reset(before)
            self.core.step(*arguments, **named)

    def _use(self, schema: Schema) -> None:
        self._schema, self._values = schema, RowValues(schema, _no_frame)

    def _checked(self, one: Experience, begins: bool, flags: dict[str, bool]) -> _Step:
        schema, values = self._schema, cast("RowValues", self._values)
        self.states.check(one[0], one[4], begins=begins)
        action, reward, extras = row_values(one, schema.extras)
        marks = {key: flag for key, flag in flags.items() if key in schema.extras}
        values.extras({**extras, **marks})
        before = self._frame(values, one[0]) if begins else None
        after = self._frame(values, one[4])
        return before, (values.action(action), reward, after), {**extras, **flags}

    def _frame(self, values: RowValues, state: Any) -> Frames:
        found, schema = values.frames(self.states.frame(state), 0, begins=True), self._schema
        if not schema.is_dict:
            return found[schema.frame_paths[FRAME]]
        return {key: found[path] for key, path in schema.frame_paths.items()}

    def open_again(self, capacity: int) -> None:
        """Open the buffer with another capacity, to free disk space, and then as before."""
        usual, self._last = self._capacity, None
        for self._capacity in (capacity, usual):
            self.core.close()
            self._open(self._opener, seed=self._seed)

    def seed(self, seed: int) -> None:
        """Make draws repeatable."""
        check_seed(seed)
        self._seed = seed
        if self.is_open:
            self.core.generator = np.random.default_rng(seed)


def _no_frame(path: str, row: int) -> Array:
    raise NotImplementedError(f"{path}: row {row}: frames are not LazyFrames")
