"""An environment that counts its steps, and what a recording of it says of itself."""

import gymnasium
import numpy as np
from gymnasium import spaces

import mmreplay


class Counter(gymnasium.Env):
    """Counts its steps; episodes of `length`; a life is lost each third step."""

    def __init__(self, length=7, lives=True):
        self.observation_space = spaces.Box(0, 1e6, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length, self.tells, self.n = length, lives, 0
        self.episode = -1
        self.fails_at = None
        self.closed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n = 0
        self.episode += 1
        return self.look(), self.info()

    def step(self, action):
        self.n += 1
        if self.fails_at is not None and (self.episode, self.n) == self.fails_at:
            raise RuntimeError("the simulator broke")
        return self.look(), 1.0, self.n >= self.length, False, self.info()

    def look(self):
        return np.array([self.episode, self.n], np.float32)

    def info(self):
        return {"lives": 3 - self.n // 3} if self.tells else {}

    def close(self):
        self.closed = True


def metadata(path):
    with mmreplay.open(path) as store:
        return store.info()["env"]
