"""Small stores whose steps tell which they are, of every kind of frames and lanes."""

import numpy as np

from mmreplay import Field

CODECS = {
    "raw": Field((3,), "uint8", "raw", chunk=8),
    "lz4": Field((3,), "uint8", "lz4", chunk=4, shard=8),
    "zstd": Field((3,), "uint8", "zstd", chunk=4, shard=16),
}
LANES = ("one environment", "vector", "named lanes")
ACTION = Field((), "int64", chunk=8)


def play(target, n_steps, width=None, *, reset=True, first=0, ends=True):
    """Steps whose values tell which they are; an episode ends after each seventh."""
    here = np.arange(width or 1)

    def frame(t):
        numbers = (first + t) * 8 + here
        rows = np.stack([numbers % 251, numbers // 251, numbers % 7], 1).astype("uint8")
        return rows if width else rows[0]

    def all_of(value):
        return np.full(width, value) if width else value

    if reset:
        target.reset(frame(0))
    for t in range(1, n_steps + 1):
        is_last = ends and t % 7 == 0
        target.step(
            all_of(t % 5),
            all_of(t / 4),
            frame(t),
            all_of(is_last and t % 2 == 0),
            all_of(is_last and t % 2 == 1),
        )
        if is_last and t < n_steps:
            target.reset(frame(t))


def state_of(data):
    return data.generator.bit_generator.state
