"""baselines' lazy frames: they read as one array and share their frames."""

import pickle

import numpy as np
import pytest

from mmreplay.compat.baselines import (
    LazyFrames,
    ReplayBuffer,
)
from mmreplay.errors import SchemaError

pytestmark = pytest.mark.usefixtures("quick_disk", "seeded")


def test_lazy_frames_that_cannot_be_shared_are_refused():
    frames = [np.full((2, 2, 1), i, np.uint8) for i in range(6)]
    with ReplayBuffer(10) as buffer:
        with pytest.raises(SchemaError, match="middle of an episode"):
            buffer.add(LazyFrames(frames[:3]), 0, 0.0, LazyFrames(frames[1:4]), False)
        first = LazyFrames([frames[0]] * 3)
        with pytest.raises(SchemaError, match="obs_tp1"):
            buffer.add(first, 0, 0.0, LazyFrames(frames[:3]), False)
        with pytest.raises(SchemaError, match="obs_tp1"):
            buffer.add(first, 0, 0.0, np.asarray(first), False)
        with pytest.raises(SchemaError, match="expected 3 frames, found 2"):
            buffer.add(LazyFrames([frames[0]] * 2), 0, 0.0, LazyFrames(frames[:2]), False)
        assert len(buffer) == 0
        buffer.add(first, 0, 0.0, LazyFrames([frames[0], frames[0], frames[1]]), False)
        assert len(buffer) == 1


@pytest.mark.parametrize("shape", [(4, 3, 1), (4, 3, 2), (4, 3), (5,)])
def test_lazy_frames_read_as_their_joined_array(shape):
    frames = [np.arange(i, i + np.prod(shape), dtype=np.uint8).reshape(shape) for i in range(3)]
    lazy, joined = LazyFrames(frames), np.concatenate(frames, axis=-1)
    assert np.array_equal(np.asarray(lazy), joined)
    assert np.asarray(lazy).dtype == np.uint8
    assert np.asarray(lazy, np.float32).dtype == np.float32
    assert np.array_equal(np.array([lazy, lazy]), np.array([joined, joined]))
    assert len(lazy) == len(joined)
    assert np.array_equal(lazy[1:], joined[1:])
    assert lazy.count() == joined.shape[-1]
    for i in (0, -1):
        assert np.array_equal(lazy.frame(i), joined[..., i])
    with pytest.raises(ValueError, match="copy"):
        np.asarray(lazy, copy=False)
    assert np.array_equal(np.asarray(pickle.loads(pickle.dumps(lazy))), joined)
