"""Experiences one after another as the episodes of a store.

Invariant: an experience whose state is the s_next before goes on with that episode, unless that
step ended it; every other one begins an episode. So each state is stored once, and no stack or
run holds states of two episodes that were cut apart by a time limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mmreplay.arguments import check_seed
from mmreplay.compat.deferred_store import StoreDirectory
from mmreplay.compat.nnabla_rl.experiences import Experience, Layout, checked, content
from mmreplay.compat.nnabla_rl.info import InfoColumns
from mmreplay.compat.nnabla_rl.states import States
from mmreplay.datasets.replay_buffer import ReplayBuffer
from mmreplay.errors import ClosedError, EmptyBufferError, FormatError, SchemaError
from mmreplay.reading.store import open_store
from mmreplay.schema import Field

Open = Callable[..., ReplayBuffer]
"""Opens a buffer: ``open(path, seed=seed, **fields)``."""

TRAJECTORY_BEGINS = "trajectory_begins"
"""The column that is True at the first step of a trajectory, in stores of trajectories."""

_KEY = "nnabla_rl"


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
        cut = isinstance(info, Mapping) and bool(info.get("TimeLimit.truncated", False))
        begins = self._last is None or content(experience[0]) != self._last
        self.states.check(experience[0], experience[4], begins=begins)
        self._put(experience, begins, terminated=ended, truncated=cut)
        self._last = None if ended or cut else content(experience[4])

    def append_trajectory(self, given: Sequence[Any]) -> None:
        """Append experiences as one trajectory: an episode for each run of steps that follow.

        Raises as `append`; SchemaError also for no steps.
        """
        steps = [checked(one) for one in given]
        if not steps:
            raise SchemaError("trajectory: expected one experience or more, found none")
        begins = [True]
        begins += [content(step[0]) != content(steps[i][4]) for i, step in enumerate(steps[1:])]
        for step, is_first in zip(steps, begins, strict=True):
            self.states.check(step[0], step[4], begins=is_first)
        self._last = None
        lasts = [*begins[1:], True]
        for number, (step, is_first, is_last) in enumerate(zip(steps, begins, lasts, strict=True)):
            ended = not np.any(step[3])
            self._put(
                step,
                is_first,
                {TRAJECTORY_BEGINS: not number},
                terminated=ended and is_last,
                truncated=is_last,
                life_lost=ended and not is_last,
            )

    def _put(
        self,
        experience: Experience,
        begins: bool,
        marks: Mapping[str, bool] | None = None,
        **flags: bool,
    ) -> None:
        marks = marks or {}
        if not self.is_open:
            self._create(experience, marks)
        buffer = self.buffer
        frame = self.states.frame(experience[4])
        action, reward, extras = self.layout.values(experience, buffer.store.schema.extras)
        if begins:
            self._last = None  # what was refused leaves an episode going on, but for here
            buffer.reset(self.states.frame(experience[0]))
        buffer.step(action, reward, frame, **flags, **extras, **marks)

    def _create(self, experience: Experience, marks: Mapping[str, bool]) -> None:
        self.layout, fields = Layout.of(experience)
        fields["extras"] |= {name: Field((), "bool") for name in marks}
        frame = self.states.field(self.states.frame(experience[0]))
        fields["metadata"] = {_KEY: {"class": self._kind, **self.layout.to_json()}}
        if self._directory.is_temporary:
            fields["flush_s"] = 0  # no power cut matters to what is removed anyway
        self._buffer = self._open(self._directory.path, seed=self._seed, frame=frame, **fields)

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
