"""A writer and the model of what it should have written, moved together.

Invariant: the model moves if and only if the writer's call returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.datasets.replay_buffer import ReplayBuffer
from mmreplay.writing.open_lanes import AnyWriter
from mmreplay.writing.writer import Writer
from tests.support.oracle.layout import Episode, random_value
from tests.support.oracle.model import Model
from tests.support.writers import LaneWriters

__all__ = ["Pair"]

Flags = dict[str, bool]
_PLAIN: Flags = {"terminated": False, "truncated": False, "life_lost": False}


class Pair:
    """See the module.

    Args:
        writer: of one lane, or of all lanes of the model.
        model: of the store as it is now.
        random: chooses the values, and in which of the allowed forms they are given.
    """

    def __init__(
        self,
        writer: AnyWriter | LaneWriters | ReplayBuffer,
        model: Model,
        random: np.random.Generator,
    ) -> None:
        self.writer = writer
        self.model = model
        self.random = random
        self.schema = model.schema
        self.one = isinstance(getattr(writer, "writer", writer), Writer)

    # ------------------------------------------------------------ single calls

    def reset(self, lanes: Sequence[int] = (0,)) -> None:
        """Begin episodes in some lanes."""
        frames = [self._frame() for _ in self.model.lanes]
        if self.one:
            self.writer.reset(self._form(frames[0]))
        elif len(lanes) == len(frames) and self.random.random() < 0.5:
            self.writer.reset(self._many(frames))
        else:
            self._reset_some(self._many(frames), self._mask(lanes))
        for lane in lanes:
            self.model.lanes[lane].reset(frames[lane])

    def _reset_some(self, frames: Any, mask: npt.NDArray[np.bool_]) -> None:
        writer = self.writer.writer if isinstance(self.writer, ReplayBuffer) else self.writer
        writer.reset(frames, mask)  # type: ignore[call-arg]

    def step(self, flags: dict[int, Flags] | None = None) -> None:
        """One step in the lanes that have flags."""
        flags = {0: _PLAIN} if flags is None else flags
        n_lanes = len(self.model.lanes)
        frames = [self._frame() for _ in range(n_lanes)]
        actions = [random_value(self.schema.action, self.random) for _ in range(n_lanes)]
        rewards = [self._reward() for _ in range(n_lanes)]
        extras: list[dict[str, Any]] = [
            {name: random_value(one, self.random) for name, one in self.schema.extras.items()}
            for _ in range(n_lanes)
        ]
        if self.one:
            given = {name: self._value(value) for name, value in extras[0].items()}
            action = self._value(actions[0])
            self.writer.step(action, rewards[0], self._form(frames[0]), **flags[0], **given)
        else:
            self._step_some(flags, frames, actions, rewards, extras)
        for lane, own in flags.items():
            model = self.model.lanes[lane]
            model.step(actions[lane], rewards[lane], frames[lane], **own, **extras[lane])

    def _step_some(
        self,
        flags: dict[int, Flags],
        frames: list[Any],
        actions: list[Any],
        rewards: list[float],
        extras: list[dict[str, Any]],
    ) -> None:
        n_lanes = len(frames)
        columns = {
            name: np.array([flags.get(lane, _PLAIN)[name] for lane in range(n_lanes)])
            for name in _PLAIN
        }
        more = {name: np.stack([one[name] for one in extras]) for name in self.schema.extras}
        writer = self.writer.writer if isinstance(self.writer, ReplayBuffer) else self.writer
        full = len(flags) == n_lanes and self.random.random() < 0.5
        writer.step(
            np.stack(actions),
            np.array(rewards),
            self._many(frames),
            columns["terminated"],
            columns["truncated"],
            life_lost=columns["life_lost"],
            **({} if full else {"mask": self._mask(list(flags))}),
            **more,
        )

    # ------------------------------------------------------------ longer stretches

    @property
    def running(self) -> list[int]:
        """Lanes that may step."""
        return [n for n, lane in enumerate(self.model.lanes) if lane.running]

    def episode(self, episode: Episode, lane: int = 0) -> None:
        """One whole episode in one lane."""
        self.reset([lane])
        for step in range(episode.length):
            self.step({lane: episode.flags(step)})

    def together(self, n_steps: int, end: float = 0.1) -> None:
        """Steps in all lanes at once, as a vector environment makes them.

        Args:
            n_steps: how many.
            end: probability that a lane's episode ends at a step.
        """
        names = ["terminated", "truncated", "life_lost"]
        for _ in range(n_steps):
            idle = [n for n, lane in enumerate(self.model.lanes) if not lane.running]
            if idle:
                self.reset(idle)
            flags = {n: dict(_PLAIN) for n in self.running}
            for own in flags.values():
                if self.random.random() < end:
                    own[names[self.random.integers(3)]] = True
                    own[names[self.random.integers(3)]] = True
            self.step(flags)

    # ------------------------------------------------------------ values, and their forms

    def _frame(self) -> Any:
        values = {name: random_value(one, self.random) for name, one in self.schema.frames.items()}
        return values if self.schema.is_dict else next(iter(values.values()))

    def _form(self, frame: Any) -> Any:
        """The same frame, in memory order of its own or not."""
        if isinstance(frame, dict):
            return {name: self._form(one) for name, one in reversed(frame.items())}
        pick = self.random.random()
        if pick < 0.1 and frame.ndim:
            return np.asfortranarray(frame)
        if pick < 0.2 and frame.ndim:
            return np.repeat(frame, 2, axis=-1)[..., ::2]
        return frame

    def _value(self, value: npt.NDArray[Any]) -> Any:
        pick = self.random.random()
        if pick < 0.3 and not value.shape:
            return value.item()
        if pick < 0.5 and not value.shape:
            return value[()]
        return value

    def _many(self, frames: list[Any]) -> Any:
        if self.schema.is_dict:
            return {name: np.stack([one[name] for one in frames]) for name in self.schema.frames}
        return np.stack(frames)

    def _mask(self, lanes: Sequence[int]) -> npt.NDArray[np.bool_]:
        return np.isin(np.arange(len(self.model.lanes)), list(lanes))

    def _reward(self) -> float:
        pick = self.random.random()
        if pick < 0.2:
            return -0.0
        if pick < 0.5:
            return float(self.random.integers(-8, 8))
        return float(self.random.normal())
