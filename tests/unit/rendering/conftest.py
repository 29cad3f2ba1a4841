"""Recorded games, made once and only read, and stores with frames of other kinds."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field


@pytest.fixture(scope="session")
def games(tmp_path_factory):
    """Two recordings of Breakout: ``one`` of one environment, ``two`` of two."""
    folder = tmp_path_factory.mktemp("games")
    mmreplay.record("ALE/Breakout-v5", folder / "one.zarr", 120, flush_s=0)
    mmreplay.record("ALE/Breakout-v5", folder / "two.zarr", 60, envs=2, flush_s=0)
    return folder


@pytest.fixture
def dicts(make):
    """A running episode of three steps: a colour picture, a float picture, and a vector."""
    frames = {
        "rgb": Field((8, 10, 3), "uint8"),
        "depth": Field((6, 9), "float32"),
        "speed": Field((2,), "float32"),
    }
    writer = make("dicts.zarr", frame=frames, action=Field((2,), "float32"))
    rng = np.random.default_rng(0)

    def frame():
        return {
            "rgb": rng.integers(0, 256, (8, 10, 3), np.uint8),
            "depth": rng.random((6, 9), np.float32) * 5 - 1,
            "speed": rng.random(2, np.float32),
        }

    shown = [frame()]
    writer.reset(shown[0])
    for t in range(3):
        shown.append(frame())
        writer.step([t, 0.5], -1.5 if t == 1 else 0, shown[-1])
    writer.shown = shown
    return writer
