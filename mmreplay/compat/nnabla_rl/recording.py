"""Experiences one after another as the episodes of a store.

Invariant: an experience whose state is the s_next before goes on with that episode, unless that
step ended it; every other one begins an episode. So each state is stored once, and no stack or
window holds states of two episodes that were cut apart by a time limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mmreplay.arguments import check_seed
from mmreplay.buffers import ReplayBuffer
from mmreplay.compat.nnabla_rl.experiences import Experience, Layout, checked, content
from mmreplay.compat.nnabla_rl.info import InfoColumns
from mmreplay.compat.nnabla_rl.states import States
from mmreplay.compat.temporary import Place
from mmreplay.errors import ClosedError, EmptyBufferError, FormatError, SchemaError

__all__ = ["Open", "Recorder"]

Open = Callable[..., ReplayBuffer]
"""Opens a buffer: ``open(path, seed=seed, **fields)``."""

_KEY = "nnabla_rl"


class Recorder:
    """The buffer that experiences are appended to; made when the first one comes.

    Args:
        place: of the store; opened at once if it exists, FormatError if it holds something else.
        states: how states become frames.
        opener: opens the buffer.
    """

    def __init__(self, place: Place, states: States, opener: Open) -> None:
        """See the class."""
        self.states = states
        self._place, self._open = place, opener
        self._seed: int | None = None
        self._buffer: ReplayBuffer | None = None
        self._closed = False
        self.layout = Layout(is_array=False, info=InfoColumns(()))
        self._last: object = None  # the state that the next experience goes on from
        if place.exists():
            self._reopen()

    @property
    def is_open(self) -> bool:
        """Whether there is a buffer yet; ClosedError if there was one."""
        if self._closed:
            raise ClosedError(f"{self._place.path}: this buffer is closed")
        return self._buffer is not None

    @property
    def buffer(self) -> ReplayBuffer:
        """The buffer; EmptyBufferError if nothing was appended yet."""
        if not self.is_open or self._buffer is None:
            raise EmptyBufferError(f"{self._place.path}: nothing was appended yet")
        return self._buffer

    def _reopen(self) -> None:
        self._buffer = self._open(self._place.path, seed=self._seed)
        found = self._buffer.writer.metadata.get("env", {}).get(_KEY)
        if found is None:
            self._buffer.close()
            raise FormatError(f"{self._place.path}: was not made by mmreplay.compat.nnabla_rl")
        self.layout = Layout.from_json(found)

    def append(self, given: Any) -> None:
        """Append an experience; SchemaError if it is none, or not one like the first."""
        experience = checked(given)
        ended = not np.any(experience[3])
        cut = bool(experience[5].get("TimeLimit.truncated", False))  # as Gym's wrapper had it
        begins = self._last is None or content(experience[0]) != self._last
        self.states.check(experience[0], experience[4], begins=begins)
        self._put(experience, begins, terminated=ended, truncated=cut)
        self._last = None if ended or cut else content(experience[4])

    def append_episode(self, given: Sequence[Any]) -> None:
        """Append experiences as one episode.

        Raises:
            As `append`; SchemaError also for steps that do not follow one another.
        """
        steps = [checked(one) for one in given]
        if not steps:
            raise SchemaError("trajectory: expected one experience or more, found none")
        for number, step in enumerate(steps):
            if number and content(step[0]) != content(steps[number - 1][4]):
                raise SchemaError(
                    f"trajectory: expected the s of step {number} to be the s_next of the step "
                    f"before, found another state; append what follows as a trajectory of its own"
                )
            self.states.check(step[0], step[4], begins=not number)
        self._last = None
        for number, step in enumerate(steps):
            ended, is_last = not np.any(step[3]), number == len(steps) - 1
            self._put(
                step,
                not number,
                terminated=ended and is_last,
                truncated=is_last,
                life_lost=ended and not is_last,
            )

    def _put(self, experience: Experience, begins: bool, **flags: bool) -> None:
        if not self.is_open:
            self._create(experience)
        buffer = self.buffer
        frame = self.states.frame(experience[4])
        action, reward, extras = self.layout.values(experience, buffer.store.schema.extras)
        if begins:
            self._last = None  # what was refused leaves an episode going on, but for here
            buffer.reset(self.states.frame(experience[0]))
        buffer.step(action, reward, frame, **flags, **extras)

    def _create(self, experience: Experience) -> None:
        self.layout, fields = Layout.of(experience)
        frame = self.states.field(self.states.frame(experience[0]))
        fields["metadata"] = {_KEY: self.layout.to_json()}
        if self._place.is_temporary:
            fields["flush_s"] = 0  # no power cut matters to what is removed anyway
        self._buffer = self._open(self._place.path, seed=self._seed, frame=frame, **fields)

    def open_again(self, **changes: Any) -> None:
        """Close the buffer and open it anew, this once with other settings."""
        self.buffer.close()
        self._last = None
        self._buffer = self._open(self._place.path, seed=self._seed, **changes)

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
            self._place.close()
