"""`FrameStack`: observations of the newest k frames, as `LazyFrames`.

Invariant: an observation that was handed out never changes, whatever the environment, the wrapper
or the holder of another observation does afterwards.
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

from mmreplay.env_fields import Action, Observation, cast, field_of
from mmreplay.errors import SchemaError
from mmreplay.lazy_frames import LazyFrames


class FrameStack(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Stacks the newest frames of an environment, each frame held once.

    What `gymnasium.wrappers.FrameStackObservation` shows, as `LazyFrames`: ``np.asarray`` of an
    observation is (k, *frame), or with ``stack_axis=-1`` (*frame, k), for frames of (H, W, C)
    (H, W, k * C). A dict or tuple of observations becomes one of LazyFrames. A buffer takes the
    observations as they are and stores each frame once.

    Args:
        env: a single environment.
        stack: frames an observation.
        stack_axis: 0 puts the frames in front, -1 last.
        padding: in front of an episode's first frame: ``reset`` repeats it, ``zero`` is 0.

    Raises:
        SchemaError: a vector environment, observations that are no arrays of a fixed shape and
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
                "FrameStack: expected a single environment, found a vector environment; give its "
                "frames to a buffer as they are, which stacks them when it samples; a policy that "
                "needs stacks keeps the newest frames of each environment itself"
            )
        RecordConstructorArgs.__init__(self, stack=stack, stack_axis=stack_axis, padding=padding)
        super().__init__(env)
        LazyFrames.first(0, stack, stack_axis=stack_axis, padding=padding)  # checks the settings
        self.stack = int(stack)
        self.stack_axis = stack_axis
        self.padding = padding
        self.frame_space = env.observation_space
        _check(self.frame_space, "observation_space")
        self.observation_space = _map(self._stacked_space, self.frame_space)
        self._newest: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Reset the environment: its first frame, padded."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._newest = _map(self._first, self.frame_space, observation)
        return self._handed_out(), info

    def step(self, action: Action) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment: the newest frame in, the oldest one out.

        Raises:
            SchemaError: there was no `reset`, or the frame is not what the space says.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._newest is None:
            raise SchemaError("FrameStack: step() before reset(); call reset() first")
        self._newest = _map(_following, self.frame_space, self._newest, observation)
        return self._handed_out(), reward, terminated, truncated, info

    def _handed_out(self) -> Observation:
        # Dicts can be changed by who gets them, so these are not the ones that are gone on from.
        return _map(lambda _space, stack: stack, self.frame_space, self._newest)

    def _first(self, space: Space[Any], frame: Any) -> LazyFrames:
        return LazyFrames.first(
            _framed(space, frame), self.stack, stack_axis=self.stack_axis, padding=self.padding
        )

    def _stacked_space(self, space: Space[Any]) -> Space[Any]:
        stacked = batch_space(space, self.stack)
        if isinstance(stacked, spaces.MultiDiscrete):
            lowest, over = stacked.start, stacked.start + stacked.nvec
            if self.padding == "zero":
                lowest, over = np.minimum(lowest, 0), np.maximum(over, 1)
            return spaces.MultiDiscrete(over - lowest, dtype=stacked.dtype.type, start=lowest)
        if not isinstance(stacked, spaces.Box):
            raise TypeError(f"{space}: its stack is a {type(stacked).__name__}")
        low, high = (
            np.asarray(LazyFrames(list(bound), self.stack_axis))
            for bound in (stacked.low, stacked.high)
        )
        if self.padding == "zero":
            zero = low.dtype.type(0)
            low, high = np.minimum(low, zero), np.maximum(high, zero)
        return spaces.Box(low, high, dtype=stacked.dtype.type)


def _map(call: Callable[..., Any], space: Space[Any], *trees: Any) -> Any:
    """`call` with each array's space, and the array's place in each of the trees."""
    if isinstance(space, spaces.Dict):
        found: Any = {
            key: _map(call, part, *(_part(tree, key) for tree in trees))
            for key, part in space.spaces.items()
        }
        return found if trees else spaces.Dict(found)
    if isinstance(space, spaces.Tuple):
        found = tuple(
            _map(call, part, *(_part(tree, i) for tree in trees))
            for i, part in enumerate(space.spaces)
        )
        return found if trees else spaces.Tuple(found)
    return call(space, *trees)


def _part(tree: Any, key: Any) -> Any:
    try:
        return tree[key]
    except (KeyError, IndexError, TypeError) as error:
        raise SchemaError(
            f"observation: its space has a part {key!r}, the observation itself has none; the "
            f"environment does not keep to its observation_space"
        ) from error


def _check(space: Space[Any], where: str) -> None:
    """Raise SchemaError unless every part can be stored, and so stacked."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces
        for key, part in parts.items() if isinstance(parts, dict) else enumerate(parts):
            _check(part, f"{where}[{key!r}]")
    else:
        field_of(space, where)


def _framed(space: Space[Any], frame: Any) -> Any:
    """The frame, of its space's shape and dtype."""
    if space.dtype is None:
        raise TypeError(f"{space}: it has no dtype")
    out = cast(frame, space.dtype)
    if out.shape != space.shape or out.dtype != space.dtype:
        raise SchemaError(
            f"observation: expected shape {space.shape} and {space.dtype}, found {out.shape} and "
            f"{out.dtype}; the environment does not keep to its observation_space"
        )
    return out


def _following(space: Space[Any], stack: LazyFrames, frame: Any) -> LazyFrames:
    return stack.followed_by(_framed(space, frame))
