"""Stacks that a buffer rebuilds are those that the environment handed out, byte for byte.

The oracle is the list of all observations: `np.asarray` of the LazyFrames that FrameStack gave.
"""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

import mmreplay
from mmreplay import FrameStack


class Walk(gymnasium.Env):
    """Short episodes of images, drawn into one array, which end by themselves."""

    observation_space: Any = spaces.Box(0, 255, (6, 5, 3), np.uint8)
    action_space = spaces.Discrete(3)

    def __init__(self):
        self.screen = np.zeros((6, 5, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.look(), {}

    def step(self, action):
        ends = bool(self.np_random.random() < 0.1)
        return self.look(), 1.0, ends, False, {}

    def look(self):
        self.screen[:] = self.np_random.integers(1, 256, (6, 5, 3), dtype=np.uint8)
        return self.screen


class Pair(Walk):
    """A dict observation."""

    observation_space: Any = spaces.Dict(
        {"image": Walk.observation_space, "mean": spaces.Box(0, 255, (), np.float32)}
    )

    def look(self):
        image = super().look()
        return {"image": image, "mean": np.float32(image.mean())}


def arrays(observation):
    if isinstance(observation, dict):
        return {key: np.asarray(one) for key, one in observation.items()}
    return {"": np.asarray(observation)}


MAKERS = {
    "Walk": lambda: TimeLimit(Walk(), 12),
    "Pair": lambda: TimeLimit(Pair(), 12),
    "CartPole-v1": lambda: gymnasium.make("CartPole-v1", max_episode_steps=15),
}


@pytest.mark.parametrize("stack_axis", [0, -1])
@pytest.mark.parametrize(("padding", "codec"), [("reset", "raw"), ("zero", "lz4")])
@pytest.mark.parametrize("name", MAKERS)
def test_a_buffer_rebuilds_the_stacks_that_were_given(name, padding, stack_axis, codec, tmp_path):
    k = 4
    env = FrameStack(MAKERS[name](), k, stack_axis=stack_axis, padding=padding)
    env.action_space.seed(0)
    with mmreplay.ReplayBuffer(
        tmp_path / "s", stack=k, stack_axis=stack_axis, env=env, codec=codec
    ) as buffer:
        seen, following = {}, {}  # by row: the observation, and the one after it
        observation, _ = env.reset(seed=5)
        buffer.reset(observation)
        for row in range(300):
            seen[row] = observation
            action = env.action_space.sample()
            observation, reward, terminated, truncated, _ = env.step(action)
            buffer.step(action, reward, observation, terminated, truncated)
            following[row] = observation
            if terminated or truncated:
                observation, _ = env.reset()
                buffer.reset(observation)
        assert buffer.ids.tolist() == sorted(seen)
        batches = [buffer.sample(64) for _ in range(5)]
        batches.append(buffer.transitions(buffer.ids, stack=k, stack_axis=stack_axis))
    for batch in batches:
        for i, one in enumerate(batch.id.tolist()):
            for found, given in (
                (batch.observation, seen[one]),
                (batch.next_observation, following[one]),
            ):
                for key, expected in arrays(given).items():
                    array = found[key][i] if key else found[i]
                    assert array.shape == expected.shape
                    assert array.dtype == expected.dtype
                    assert array.tobytes() == expected.tobytes()
