"""`FrameStack` of OpenAI's baselines, for Gymnasium environments, which are an extra."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from mmreplay.compat.baselines.buffers import LazyFrames
from mmreplay.errors import SchemaError
from mmreplay.lazy_frames import LazyFrames as Stack
from mmreplay.recording.frame_stack import FrameStack as CoreFrameStack


class FrameStack(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Stacks the newest k frames of an environment, each held once, along their last axis.

    SchemaError unless it is a single environment whose observations are arrays.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], k: int) -> None:
        super().__init__(CoreFrameStack(env, k))
        one: Any = env.observation_space
        if not isinstance(one, spaces.Box) or not one.shape:
            raise SchemaError(f"FrameStack: expected observations (..., c), found {one}")
        self.k = k
        low, high = (np.concatenate([bound] * k, axis=-1) for bound in (one.low, one.high))
        self.observation_space = spaces.Box(low, high, dtype=one.dtype.type)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[LazyFrames, dict[str, Any]]:
        """Reset the environment: its first frame k times."""
        stack, info = self.env.reset(seed=seed, options=options)
        return _lazy(stack), info

    def step(self, action: Any) -> tuple[LazyFrames, Any, bool, bool, dict[str, Any]]:
        """Step the environment: the newest frame in, the oldest one out."""
        stack, reward, terminated, truncated, info = self.env.step(action)
        return _lazy(stack), reward, terminated, truncated, info


def _lazy(stack: Stack) -> LazyFrames:
    return LazyFrames(stack.frame(i) for i in range(stack.count()))
