"""baselines' frame stacks around an environment."""

import gymnasium
import numpy as np
import pytest

from mmreplay.compat import baselines
from mmreplay.compat.baselines import (
    FrameStack,
    LazyFrames,
    ReplayBuffer,
)
from mmreplay.errors import SchemaError

pytestmark = pytest.mark.usefixtures("quick_disk", "seeded")


class Screen(gymnasium.Env):
    """Frames that count steps, in one array that is written to again and again."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, shape=(3, 2, 2)):
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.screen = np.zeros(shape, np.uint8)
        self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t += 10
        self.screen[...] = self.t % 256
        return self.screen, {}

    def step(self, action):
        self.t += 1
        self.screen[...] = self.t % 256
        return self.screen, 1.0, self.t % 7 == 0, self.t % 11 == 0, {}


def test_a_wrapped_environment_feeds_a_buffer():
    env = FrameStack(Screen(), 3)
    assert env.observation_space == gymnasium.spaces.Box(0, 255, (3, 2, 6), np.uint8)
    added = []
    with ReplayBuffer(25) as buffer:
        done, episodes = True, 0
        for n in range(100):
            if done:
                observation, _ = env.reset(seed=0)
                episodes += 1
                assert isinstance(observation, LazyFrames)
                assert len(set(np.asarray(observation).ravel())) == 1
            following, reward, terminated, truncated, _ = env.step(n % 2)
            buffer.add(observation, n, reward, following, float(terminated))
            added.append((observation, following))
            observation, done = following, terminated or truncated
        assert buffer.core.writer.rows == 100
        seen, actions, _, after, _ = buffer.sample(200)
        for j, n in enumerate(actions.tolist()):
            assert np.array_equal(seen[j], np.asarray(added[n][0]))
            assert np.array_equal(after[j], np.asarray(added[n][1]))
    shared = {id(lazy.stack.frame(i)) for pair in added for lazy in pair for i in range(3)}
    assert len(shared) == 100 + episodes


def test_only_arrays_are_stacked():
    with pytest.raises(SchemaError, match="FrameStack"):
        FrameStack(gymnasium.make("FrozenLake-v1"), 3)
    with pytest.raises(AttributeError, match="Nothing"):
        baselines.Nothing  # noqa: B018 (the look-up is what is tested)
