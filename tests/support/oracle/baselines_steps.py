"""Transitions for buffers of baselines, against which what is sampled is checked."""

import numpy as np

import mmreplay
from mmreplay.compat.baselines import (
    LazyFrames,
)


class Steps:
    """Episodes of transitions that say their number, ended in every way there is."""

    def __init__(self, kind, seed=0, shape=(3, 2, 1), k=3):
        self.rng = np.random.default_rng(seed)
        self.kind, self.shape, self.k = kind, shape, k
        self.frames = None
        self.added = []

    def observation(self):
        if self.kind == "plain":
            return self.frames[-1].copy()
        if self.kind == "core":
            return mmreplay.LazyFrames(self.frames)
        return LazyFrames(self.frames)

    def frame(self):
        return self.rng.integers(0, 256, self.shape).astype(np.uint8)

    def next(self):
        if self.frames is None:
            self.frames = [self.frame()] * self.k
        now = self.observation()
        self.frames = [*self.frames[1:], self.frame()]
        done = bool(self.rng.random() < 0.1)
        n = len(self.added)
        out = (now, n, float(self.rng.normal()), self.observation(), done)
        if done or self.rng.random() < 0.1:  # else cut off, and nobody says so
            self.frames = None
        self.added.append((np.array(now), n, out[2], np.array(out[3]), done))
        return out


def check_all(buffer, steps, size, *extra):
    first = max(0, len(steps.added) - size)
    assert len(buffer) == len(steps.added) - first
    sampled = buffer.sample(12 * len(buffer), *extra)
    seen = set()
    for one in zip(*sampled[:5], strict=True):
        n = int(one[1])
        seen.add(n)
        now, _, reward, following, done = steps.added[n]
        assert np.array_equal(one[0], now)
        assert one[2] == reward
        assert np.array_equal(one[3], following)
        assert one[4] == done
    assert min(seen) >= first
    assert len(seen) >= len(buffer) - 1
    return sampled
