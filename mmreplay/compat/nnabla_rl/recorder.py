"""Stores a sequence of experiences as episodes.

Invariant: an experience whose state is the previous s_next continues that episode, unless that step
ended it; any other one begins an episode. So each state is stored once. A refused experience or
trajectory leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mmreplay.arguments import check_seed, whole_number
from mmreplay.compat.deferred_store import DeferredStore, StorePath
from mmreplay.compat.nnabla_rl.experiences import (
    TIME_LIMIT,
    AtariStates,
    Experience,
    Frames,
    States,
    checked,
    content,
    fields_for,
    row_values,
)
from mmreplay.datasets.replay_buffer import ReplayBuffer
from mmreplay.errors import FormatError
from mmreplay.schema import FRAME, Field, Schema
from mmreplay.writing.row_values import RowValues

TRAJECTORY_BEGINS = "trajectory_begins"
"""In stores of trajectories, the column that is True at the first step of each."""

_KEY = "nnabla_rl"

_Row = tuple[Experience, bool, dict[str, bool]]
"""An experience, whether it begins an episode, and the flags of its step."""


class Recorder(DeferredStore):
    """A store that experiences are appended to; FormatError for a store of another class."""

    _stacked_frames: int | None = None  # screens of an Atari state

    def __init__(self, path: StorePath, capacity: int | None) -> None:
        super().__init__(path, capacity)
        self._states = States()
        if self._stacked_frames is not None:
            self._states = AtariStates(whole_number("stacked_frames", self._stacked_frames))
        self._seed: int | None = None
        self._last: object = None  # the state that the next experience may continue
        # The name of this class, or of the class of this package that it derives from.
        room = __name__.rpartition(".")[0]
        mro = type(self).__mro__
        self._kind = next(c.__name__ for c in mro if c.__module__.startswith(room))
        if (stored := self._stored()) is not None:
            if (found := stored[1].get(_KEY)) != self._kind:
                raise FormatError(
                    f"{path}: expected a store of nnabla_rl.{self._kind}, found one of "
                    f"{f'nnabla_rl.{found}' if found else 'another library'}; open it with its own "
                    f"class, or give another path"
                )
            self._begin()

    def _begin(self, kind: type[ReplayBuffer] = ReplayBuffer, **settings: Any) -> None:
        self._open(kind, stack=self._states.stack, seed=self._seed, **settings)
        self._use(self.core.store.schema)

    def _append(self, given: Any) -> None:
        experience = checked(given)
        state, info, following = experience[0], experience[5], experience[4]
        ended, cut = not np.any(experience[3]), bool(np.any(info.get(TIME_LIMIT, False)))
        begins = self._last is None or content(state) != self._last
        self._store([(experience, begins, {"terminated": ended, "truncated": cut})])
        self._last = None if ended or cut else content(following)

    def _append_trajectory(self, steps: Sequence[Experience]) -> None:
        """Append a trajectory, with an episode for each run of consecutive steps."""
        begins = [True]
        begins += [content(step[0]) != content(steps[i][4]) for i, step in enumerate(steps[1:])]
        rows: list[_Row] = []
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

    def _store(self, rows: list[_Row]) -> None:
        """Check all rows, then store each as a step."""
        fields: dict[str, Any] = {}
        if self._core is None:
            (first, _, flags), *_ = rows
            fields = fields_for(first)
            fields["frame"] = self._states.field(self._states.frame(first[0]))
            if TRAJECTORY_BEGINS in flags:
                fields["extras"][TRAJECTORY_BEGINS] = Field((), "bool")
            self._use(Schema.make(**fields))
        steps = [self._checked(*row) for row in rows]
        if fields:
            self._begin(metadata={_KEY: self._kind}, **fields)
        for before, arguments, named in steps:
            if before is not None:
                self._last = None  # if interrupted, nothing continues this episode
                self.core.reset(before)
            self.core.step(*arguments, **named)

    def _use(self, schema: Schema) -> None:
        self._schema = schema
        # No frame is `LazyFrames`, so no stored frame is looked up.
        self._row_values = RowValues(schema, lambda path, row: np.empty(0))  # noqa: ARG005

    def _checked(self, one: Experience, begins: bool, flags: dict[str, bool]) -> tuple[Any, ...]:
        """The frame that begins an episode, or None; the arguments of `step`, and its keywords."""
        schema, values = self._schema, self._row_values
        self._states.check(one[0], one[4], begins=begins)
        action, reward, extras = row_values(one, schema.extras)
        marks = {key: flag for key, flag in flags.items() if key in schema.extras}
        values.extras({**extras, **marks})
        before, after = self._frame(one[0]) if begins else None, self._frame(one[4])
        return before, (values.action(action), reward, after), {**extras, **flags}

    def _frame(self, state: Any) -> Frames:
        found = self._row_values.frames(self._states.frame(state), 0, begins=True)
        schema = self._schema
        if not schema.is_dict:
            return found[schema.frame_paths[FRAME]]
        return {key: found[path] for key, path in schema.frame_paths.items()}

    def seed(self, seed: int) -> None:
        """Make the draws from here on repeatable."""
        check_seed(seed)
        self._seed = seed
        if self._core is not None:
            self._core.generator = np.random.default_rng(seed)
