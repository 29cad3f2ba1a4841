"""`FrameStack`: observations of the newest k frames, as `LazyFrames`.

Invariant: an observation never changes after it was returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from mmreplay.errors import SchemaError
from mmreplay.lazy_frames import LazyFrames
from mmreplay.writing.env_fields import Action, Observation, cast, field_of


class FrameStack(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Stacks the newest frames of an environment, each frame held once.

    As `gymnasium.wrappers.FrameStackObservation`, with `LazyFrames`: ``np.asarray`` of an
    observation is (k, *frame), or with ``stack_axis=-1`` (*frame, k), for frames of (H, W, C)
    (H, W, k * C). A dict or tuple of observations becomes one of LazyFrames. A buffer accepts these
    observations and stores each frame once.

    Args:
        env: a single environment.
        stack: frames per observation.
        stack_axis: 0 puts the frames first, -1 last.
        padding: before an episode's first frame: ``reset`` repeats it, ``zero`` is 0.

    Raises:
        SchemaError: a vector environment, observations that are not arrays of a fixed shape and
            dtype, or a setting out of its range.

    Attributes:
        observation_space: of the joined arrays. With zero padding its bounds include 0.
        frame_space: of one frame: the observation space of `env`.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        stack: int = 4,
        *,
        stack_axis: int = 0,
        padding: str = "reset",
    ) -> None:
        if isinstance(env, VectorEnv):
            raise SchemaError(
                "FrameStack: expected a single environment, found a vector environment; store its "
                "single frames, which are stacked when they are sampled; a policy that needs "
                "stacks keeps the newest frames of each environment itself"
            )
        RecordConstructorArgs.__init__(self, stack=stack, stack_axis=stack_axis, padding=padding)
        super().__init__(env)
        LazyFrames.first(0, stack, stack_axis=stack_axis, padding=padding)  # checks the settings
        self.stack = int(stack)
        self.stack_axis = stack_axis
        self.padding = padding
        self.frame_space = env.observation_space
        self.observation_space = _map(self._stacked_space, self.frame_space)
        self._newest: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Reset the environment: its first frame, padded."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._newest = _map(self._first, self.frame_space, observation)
        return self._returned(), info

    def step(self, action: Action) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment: the newest frame in, the oldest one out.

        Raises:
            SchemaError: there was no `reset`, or the frame does not fit the space.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._newest is None:
            raise SchemaError("FrameStack: step() before reset(); call reset() first")
        self._newest = _map(
            lambda space, stack, frame: stack.followed_by(_framed(space, frame)),
            self.frame_space,
            self._newest,
            observation,
        )
        return self._returned(), reward, terminated, truncated, info

    def _returned(self) -> Observation:
        # A new dict: its receiver may change it.
        return _map(lambda _space, stack: stack, self.frame_space, self._newest)

    def _first(self, space: Space[Any], frame: Any) -> LazyFrames:
        return LazyFrames.first(
            _framed(space, frame), self.stack, stack_axis=self.stack_axis, padding=self.padding
        )

    def _stacked_space(self, space: Space[Any]) -> Space[Any]:
        field_of(space, "observation_space")  # refuses spaces that cannot be stored
        stacked: Any = batch_space(space, self.stack)
        if isinstance(stacked, spaces.MultiDiscrete):
            lowest, over = stacked.start, stacked.start + stacked.nvec
            if self.padding == "zero":
                lowest, over = np.minimum(lowest, 0), np.maximum(over, 1)
            return spaces.MultiDiscrete(over - lowest, dtype=stacked.dtype.type, start=lowest)
        low, high = (
            np.asarray(LazyFrames(list(bound), self.stack_axis))
            for bound in (stacked.low, stacked.high)
        )
        if self.padding == "zero":
            zero = low.dtype.type(0)
            low, high = np.minimum(low, zero), np.maximum(high, zero)
        return spaces.Box(low, high, dtype=stacked.dtype.type)


def _map(call: Callable[..., Any], space: Space[Any], *trees: Any) -> Any:
    """Call with the space of each array, and its value in each of the trees."""
    if isinstance(space, spaces.Dict):
        found: Any = {
            key: _map(call, part, *(tree[key] for tree in trees))
            for key, part in space.spaces.items()
        }
        return found if trees else spaces.Dict(found)
    if isinstance(space, spaces.Tuple):
        found = tuple(
            _map(call, part, *(tree[i] for tree in trees)) for i, part in enumerate(space.spaces)
        )
        return found if trees else spaces.Tuple(found)
    return call(space, *trees)


def _framed(space: Space[Any], frame: Any) -> Any:
    """The frame, of its space's shape and dtype."""
    dtype: Any = space.dtype
    out = cast(frame, dtype)
    if out.shape != space.shape or out.dtype != dtype:
        raise SchemaError(
            f"observation: expected {space.shape} {dtype}, as in the observation_space, found "
            f"{out.shape} {out.dtype}; fix the environment"
        )
    return out
