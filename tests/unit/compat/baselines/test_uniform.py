"""baselines' uniform buffer, against every transition in a list, and its LazyFrames."""

import pickle
import random

import numpy as np
import pytest

from mmreplay.compat.baselines import (
    LazyFrames,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from mmreplay.errors import EmptyBufferError, SchemaError
from tests.support.oracle.baselines_steps import Steps, check_all

pytestmark = pytest.mark.usefixtures("quick_disk", "seeded")


@pytest.mark.parametrize(
    ("kind", "size", "k", "shape"),
    [
        ("plain", 1, 1, (5,)),
        ("plain", 40, 3, (2, 2, 3)),
        ("lazy", 7, 4, (3, 2, 1)),
        ("lazy", 40, 3, (5,)),
        ("core", 7, 4, (2, 2, 3)),
        ("core", 1, 1, (3, 2, 1)),
    ],
)
def test_every_transition_is_as_it_was_added(kind, size, k, shape):
    steps = Steps(kind, [size, k], shape, k)
    with ReplayBuffer(size) as buffer:
        for i in range(max(5 * size, 60)):
            buffer.add(*steps.next())
            if i % 11 == 0 or i < 5:
                check_all(buffer, steps, size)
        now, action, reward, _, done = check_all(buffer, steps, size)
        assert now.dtype == np.uint8
        assert now.shape[1:] == steps.added[0][0].shape
        assert (action.dtype, reward.dtype, done.dtype) == (np.int64, np.float64, np.bool_)


@pytest.mark.parametrize("kind", ["plain", "lazy"])
def test_each_frame_is_stored_once(kind):
    steps = Steps(kind, 1)
    with ReplayBuffer(1000) as buffer:
        for _ in range(200):
            buffer.add(*steps.next())
        assert buffer.core.writer.rows == 200
        assert buffer.core.store.schema.frame.shape == (3, 2, 1)


def test_values_keep_the_types_they_were_added_with():
    observation = np.zeros(2, np.float32)
    for action, done, reward in (
        (3, 1.0, 0.5),
        (np.array([0.5, 1], np.float32), False, np.float32(2)),
        (np.int32(1), np.bool_(True), 1),
    ):
        with ReplayBuffer(5) as buffer:
            buffer.add(observation, action, reward, observation, done)
            _, actions, rewards, _, dones = buffer.sample(2)
            assert np.array_equal(actions, np.array([action] * 2))
            assert actions.dtype == np.asarray(action).dtype
            assert dones.dtype == np.asarray(done).dtype
            assert (dones == done).all()
            assert rewards.dtype == (np.float32 if isinstance(reward, np.float32) else np.float64)


def test_an_observation_array_may_be_written_to_afterwards():
    state = np.zeros(2)
    with ReplayBuffer(10) as buffer:
        for i in range(5):
            before = state.copy()
            state += 1
            buffer.add(before, i, 0.0, state, False)
        assert buffer.core.writer.rows == 5
        seen, actions, _, following, _ = buffer.sample(30)
        assert np.array_equal(seen[:, 0], actions)
        assert np.array_equal(following[:, 0], actions + 1)


def test_a_reset_is_seen_even_if_its_frame_is_the_last_one_again():
    a, b, c = (np.full((2, 2, 1), i, np.uint8) for i in range(3))
    pairs = [([a, a, a], [a, a, b]), ([a, a, b], [a, b, c]), ([c, c, c], [c, c, b])]
    with ReplayBuffer(10) as buffer:
        for n, (now, following) in enumerate(pairs):
            buffer.add(LazyFrames(now), n, 0.0, LazyFrames(following), False)
        seen, actions, *_ = buffer.sample(30)
        for one, n in zip(seen, actions.tolist(), strict=True):
            assert np.array_equal(one, LazyFrames(pairs[n][0]))


def test_an_empty_buffer_cannot_be_sampled():
    for buffer, arguments in ((ReplayBuffer(3), (1,)), (PrioritizedReplayBuffer(3, 1), (1, 0.4))):
        with pytest.raises(EmptyBufferError):
            buffer.sample(*arguments)


def test_pythons_global_seed_makes_the_batches_repeatable():
    found = []
    for _ in range(2):
        random.seed(5)
        with ReplayBuffer(50) as buffer:
            for i in range(40):
                buffer.add(np.array([i]), i, 0.0, np.array([i + 1]), False)
            found.append(buffer.sample(8)[1].tolist())
    assert found[0] == found[1]


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
