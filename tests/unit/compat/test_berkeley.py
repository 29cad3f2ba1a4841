"""The Berkeley homework's buffer, against every frame and effect in a list."""

import numpy as np
import pytest

from mmreplay.compat.berkeley import ReplayBuffer
from mmreplay.errors import EmptyBufferError, SchemaError

pytestmark = pytest.mark.usefixtures("quick_disk", "seeded")


@pytest.fixture
def seeded():
    np.random.seed(1)  # noqa: NPY002 (what the buffer takes its seed from, as the original)


class Naive:
    """Every frame ever stored, with what was done in it."""

    def __init__(self, size, k):
        self.size, self.k = size, k
        self.frames = []  # [frame, effect or None]

    def stack(self, i):
        """The frames up to i, back to the one after an end, zeros in front."""
        if self.frames[i][0].ndim == 1:
            return self.frames[i][0]
        out = [self.frames[i][0]]
        while len(out) < self.k and i > 0:
            effect = self.frames[i - 1][1]
            if effect is None or effect[2]:
                break
            i -= 1
            out.insert(0, self.frames[i][0])
        blank = np.zeros_like(out[0])
        return np.concatenate([blank] * (self.k - len(out)) + out, axis=2)

    def next_stack(self, i):
        """Of a terminal one the last frame comes again."""
        if not self.frames[i][1][2]:
            return self.stack(i + 1)
        now, frame = self.stack(i), self.frames[i][0]
        return frame if frame.ndim == 1 else np.concatenate([now, frame], 2)[..., frame.shape[2] :]

    def transitions(self):
        valid = [
            i
            for i, (_, effect) in enumerate(self.frames)
            if effect is not None and (effect[2] or i + 1 < len(self.frames))
        ]
        return valid[-self.size :]


def check_all(buffer, naive):
    """Every transition, once, by its action, which is its number."""
    valid = naive.transitions()
    assert len(buffer) == len(valid)
    assert buffer.can_sample(len(valid))
    assert not buffer.can_sample(len(valid) + 1)
    if not valid:
        return
    observation, action, reward, following, done = buffer.sample(len(valid))
    assert (action.dtype, reward.dtype, done.dtype) == (np.int32, np.float32, np.float32)
    assert sorted(action.tolist()) == valid
    for j, i in enumerate(action.tolist()):
        effect = naive.frames[i][1]
        assert np.array_equal(observation[j], naive.stack(i))
        assert np.array_equal(following[j], naive.next_stack(i))
        assert reward[j] == np.float32(effect[1])
        assert done[j] == float(effect[2])


@pytest.mark.parametrize(
    ("size", "k", "shape"),
    [(1, 1, (3, 2, 1)), (7, 4, (2, 2, 3)), (20, 3, (3, 2, 1)), (20, 1, (5,)), (7, 4, (5,))],
)
def test_every_transition_is_that_of_plain_lists(size, k, shape):
    rng = np.random.default_rng([size, k, len(shape)])
    naive = Naive(size, k)
    with ReplayBuffer(size, k) as buffer:
        for n in range(max(5 * size, 60)):
            frame = rng.integers(1, 256, shape).astype(np.uint8)
            idx = buffer.store_frame(frame)
            naive.frames.append([frame.copy(), None])
            frame[...] = 0  # the environment writes the next one into the same array
            assert idx == n % size
            recent = buffer.encode_recent_observation()
            assert recent.dtype == np.uint8
            assert np.array_equal(recent, naive.stack(n))
            if rng.random() < 0.05:
                continue  # interrupted: the effect is never stored
            effect = (n, float(rng.normal()), bool(rng.random() < 0.15))
            buffer.store_effect(idx, *effect)
            naive.frames[n][1] = effect
            assert np.array_equal(buffer.encode_recent_observation(), naive.stack(n))
            if n % 7 == 0 or n < 10:
                check_all(buffer, naive)
        check_all(buffer, naive)


def test_low_dimensional_observations_keep_their_dtype():
    with ReplayBuffer(10, 4) as buffer:
        for n in range(4):
            buffer.store_effect(buffer.store_frame(np.full(3, n + 0.25)), n, 0.0, False)
        observation, action, _, following, _ = buffer.sample(3)
        assert observation.dtype == np.float64
        assert np.array_equal(observation, np.repeat(action[:, None] + 0.25, 3, 1))
        assert np.array_equal(following, observation + 1)
        recent = buffer.encode_recent_observation()
        recent[:] = 9  # the caller's own
        assert buffer.encode_recent_observation().tolist() == [3.25] * 3


def test_floats_in_0_to_1_become_bytes_and_others_are_refused():
    with ReplayBuffer(10, 1) as buffer:
        buffer.store_frame(np.full((2, 2, 1), 0.1, np.float32))
        assert (buffer.encode_recent_observation() == 26).all()
        with pytest.raises(SchemaError, match=r"\[0, 1\]"):
            buffer.store_frame(np.full((2, 2, 1), 200.0))


def test_an_effect_belongs_to_the_newest_frame():
    with ReplayBuffer(10, 1) as buffer:
        with pytest.raises(EmptyBufferError, match="no frame yet"):
            buffer.encode_recent_observation()
        first = buffer.store_frame(np.zeros((2, 2, 1), np.uint8))
        buffer.store_effect(first, 1, 0.0, False)
        buffer.store_effect(first, 2, 5.0, False)  # until the next frame it may be corrected
        second = buffer.store_frame(np.ones((2, 2, 1), np.uint8))
        with pytest.raises(SchemaError, match="returned last, 1, found 0"):
            buffer.store_effect(first, 3, 0.0, False)
        with pytest.raises(SchemaError, match="action"):
            buffer.store_effect(second, 1 << 40, 0.0, False)
        buffer.store_effect(second, 4, 1.0, True)
        with pytest.raises(SchemaError, match="only once after done"):
            buffer.store_effect(second, 4, 1.0, True)
        assert sorted(buffer.sample(2)[1].tolist()) == [2, 4]


def test_more_than_there_is_cannot_be_sampled():
    with ReplayBuffer(10, 1) as buffer:
        assert buffer.can_sample(0)
        assert not buffer.can_sample(1)
        with pytest.raises(EmptyBufferError):
            buffer.sample(1)
        for n in range(4):
            buffer.store_effect(buffer.store_frame(np.zeros((2, 2, 1), np.uint8)), n, 0.0, False)
        assert len(buffer.sample(3)[1]) == 3
        with pytest.raises(SchemaError, match="each is drawn once"):
            buffer.sample(4)


def test_numpys_global_seed_makes_the_batches_repeatable():
    found = []
    for _ in range(2):
        np.random.seed(3)  # noqa: NPY002 (as users of the original do)
        with ReplayBuffer(50, 1) as buffer:
            for n in range(40):
                buffer.store_effect(
                    buffer.store_frame(np.zeros((1, 1, 1), np.uint8)), n, 0.0, False
                )
            found.append(buffer.sample(8)[1].tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize("shape", [(2, 2, 1), (3,)])
def test_a_store_at_a_path_is_continued(tmp_path, shape):
    path = tmp_path / "store.zarr"
    naive = Naive(12, 3)

    def play(buffer, start, stop):
        for n in range(start, stop):
            frame = np.full(shape, n + 1, np.uint8)
            effect = (n, float(n), n % 5 == 4)
            buffer.store_effect(buffer.store_frame(frame), *effect)
            naive.frames.append([frame, effect])
        check_all(buffer, naive)

    with ReplayBuffer(12, 3, path=path) as buffer:
        play(buffer, 0, 8)
    naive.frames[-1][1] = None  # no frame came after it, and none ever will
    with ReplayBuffer(12, 3, path=path) as buffer:
        check_all(buffer, naive)
        with pytest.raises(EmptyBufferError, match="no frame yet"):
            buffer.encode_recent_observation()
        play(buffer, 8, 40)
