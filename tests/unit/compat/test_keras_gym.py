"""keras-gym's buffer, against every step in a list."""

import types

import gymnasium
import numpy as np
import pytest

from mmreplay.compat.keras_gym import ExperienceReplayBuffer
from mmreplay.errors import ClosedError, EmptyBufferError, SchemaError

pytestmark = pytest.mark.usefixtures("quick_disk")

DISCRETE = gymnasium.spaces.Discrete(5)
BOX = gymnasium.spaces.Box(-1, 1, (2,), np.float32)


def env_of(space, num_frames=None):
    env = types.SimpleNamespace(action_space=space)
    if num_frames is not None:
        env.num_frames = num_frames
    return env


class Naive:
    """Every step ever added: (frame, action, reward, done, episode)."""

    def __init__(self, capacity, k, n, gamma):
        self.capacity, self.k, self.n, self.gamma = capacity, k, n, gamma
        self.steps = []

    def goes_on(self, i):
        """Whether the next step is the one after this one, in the same episode."""
        steps = self.steps
        return not steps[i][3] and i + 1 < len(steps) and steps[i + 1][4] == steps[i][4]

    def valid(self):
        every = [i for i, one in enumerate(self.steps) if one[3] or self.goes_on(i)]
        return every[-self.capacity :]

    def stack(self, i):
        out = [self.steps[i][0]]
        while len(out) < self.k:
            if i > 0 and self.goes_on(i - 1):
                i -= 1
            out.insert(0, self.steps[i][0])
        return out[0] if self.k == 1 else np.stack(out, axis=-1)

    def expected(self, i):
        """(S, A, Rn, In, S_next, A_next); both next ones None where the episode ended."""
        total, m, j = 0.0, 0, i
        while True:
            total += self.gamma**m * self.steps[j][2]
            m += 1
            if self.steps[j][3]:
                return self.stack(i), self.steps[i][1], total, 0.0, None, None
            j += 1
            if m == self.n or not (self.steps[j][3] or self.goes_on(j)):
                break
        follows = self.stack(j), self.steps[j][1]
        return self.stack(i), self.steps[i][1], total, self.gamma**m, *follows


def encoded(space, action):
    return np.eye(int(space.n))[action] if space is not BOX else action


def many(buffer, count):
    """`count` transitions or more, in batches as large as may be."""
    buffer.batch_size = len(buffer)
    found = [buffer.sample() for _ in range(-(-count // len(buffer)))]
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


def check_all(buffer, naive, space):
    """Every transition; its frame says which it is."""
    valid = naive.valid()
    assert len(buffer) == len(valid)
    assert bool(buffer) == bool(valid)
    seen = set()
    if not valid:
        return
    numbers = {naive.steps[i][0].tobytes(): i for i in valid}
    states, actions, returns, discounts, next_states, next_actions = many(buffer, 12 * len(valid))
    for array in (returns, discounts):
        assert (array.shape, array.dtype) == ((len(states),), np.float64)
    for j in range(len(states)):
        newest = states[j] if naive.k == 1 else states[j][..., -1]
        i = numbers[newest.tobytes()]
        if i in seen:
            continue
        seen.add(i)
        state, action, total, discount, next_state, next_action = naive.expected(i)
        assert np.array_equal(states[j], state)
        assert np.array_equal(actions[j], encoded(space, action))
        assert returns[j] == pytest.approx(total, rel=1e-15)
        assert discounts[j] == discount
        if next_state is None:
            assert not next_actions[j].any()
        else:
            assert np.array_equal(next_states[j], next_state)
            assert np.array_equal(next_actions[j], encoded(space, next_action))
    assert len(seen) >= len(valid) - 1  # each is missed once in 160,000 times


@pytest.mark.parametrize(
    ("capacity", "k", "n", "shape", "space"),
    [
        (1, 1, 1, (3,), DISCRETE),
        (25, 4, 1, (3, 2), BOX),
        (25, 3, 3, (3, 2, 3), DISCRETE),
        (10, 1, 5, (), BOX),
        (4, 4, 7, (2, 2), DISCRETE),
    ],
)
def test_every_transition_is_that_of_plain_lists(capacity, k, n, shape, space):
    rng = np.random.default_rng([capacity, k, n])
    naive = Naive(capacity, k, n, 0.9)
    env = env_of(space, k if k > 1 else None)
    episode = 7
    with ExperienceReplayBuffer(env, capacity, 1, n, 0.9, random_seed=1) as buffer:
        for i in range(max(6 * capacity, 60)):
            frame = np.full(shape, i + 1, np.uint16)
            action = int(rng.integers(5)) if space is DISCRETE else rng.random(2, np.float32)
            done = bool(rng.random() < 0.1)
            step = (action, float(rng.normal()), done, episode)
            state = np.stack([np.zeros_like(frame)] * (k - 1) + [frame], axis=-1)
            buffer.add(frame if k == 1 else state, *step)
            naive.steps.append((frame, *step))
            if done or rng.random() < 0.1:  # else cut off, as by a time limit
                episode = int(rng.integers(3)) + (episode < 3) * 3  # neither ascending nor unique
            if i % 9 == 0 or i < 8:
                check_all(buffer, naive, space)
        check_all(buffer, naive, space)


def test_settings_are_taken_from_a_value_function():
    q = types.SimpleNamespace(env=env_of(DISCRETE, 2), gamma=0.8, bootstrap_n=4)
    buffer = ExperienceReplayBuffer.from_value_function(q, capacity=100, batch_size=7)
    found = (buffer.env, buffer.capacity, buffer.batch_size, buffer.num_frames)
    assert found == (q.env, 100, 7, 2)
    assert (buffer.bootstrap_n, buffer.gamma, buffer.random_seed) == (4, 0.8, None)


def test_discrete_actions_may_start_elsewhere_and_must_be_in_range():
    space = gymnasium.spaces.Discrete(3, start=-1)
    with ExperienceReplayBuffer(env_of(space), 10, random_seed=0) as buffer:
        for i, action in enumerate((-1, 0, 1, -1)):
            buffer.add(np.array([i]), np.int64(action), 0.0, i == 3, 0)
        states, actions, *_, next_actions = many(buffer, 40)
        for state, action, follows in zip(states[:, 0], actions, next_actions, strict=True):
            assert action.tolist() == np.eye(3)[[0, 1, 2, 0][state]].tolist()
            nothing = [0.0] * 3  # after the last one
            assert follows.tolist() == [*np.eye(3)[[1, 2, 0]].tolist(), nothing][state]
        for wrong in (-2, 2, 0.5):
            with pytest.raises(SchemaError, match=r"a: expected|action"):
                buffer.add(np.array([9]), wrong, 0.0, False, 1)
        assert len(buffer) == 4


def test_a_state_needs_its_frames_on_the_last_axis():
    with ExperienceReplayBuffer(env_of(DISCRETE, 4), 10) as buffer:
        with pytest.raises(SchemaError, match=r"expected \(\.\.\., 4\), found \(4, 8, 8\)"):
            buffer.add(np.zeros((4, 8, 8), np.uint8), 0, 0.0, False, 0)
        assert not buffer


def test_fewer_than_a_batch_cannot_be_sampled():
    with ExperienceReplayBuffer(env_of(DISCRETE), 10, 3) as buffer:
        for i in range(4):
            with pytest.raises(EmptyBufferError, match="of 3 transitions"):
                buffer.sample()
            buffer.add(np.array([i]), 0, 0.0, False, 0)
        assert len(buffer.sample()[0]) == 3


@pytest.mark.parametrize("name", [None, "store.zarr"])
def test_clear_forgets_everything_and_goes_on(tmp_path, name):
    path = None if name is None else tmp_path / name
    with ExperienceReplayBuffer(env_of(DISCRETE), 10, 5, random_seed=0, path=path) as buffer:
        buffer.clear()
        draws = []
        for shape in ((2,), (3,)):  # even states of another shape
            for i in range(6):
                buffer.add(np.full(shape, i), 0, 0.0, False, 0)
            assert len(buffer) == 5
            draws.append(buffer.sample()[0][:, 0].tolist())
            buffer.clear()
            assert len(buffer) == 0
            assert not buffer
        assert draws[0] != draws[1]
        if path is not None:
            assert not path.exists()
    with pytest.raises(ClosedError):
        buffer.add(np.zeros(2, int), 0, 0.0, False, 0)


def test_the_seed_makes_the_batches_repeatable():
    found = []
    for seed in (4, 4, None):
        with ExperienceReplayBuffer(env_of(DISCRETE), 50, 20, random_seed=seed) as buffer:
            for i in range(25):
                buffer.add(np.array([i]), 0, 0.0, False, 0)
            found.append(buffer.sample()[0][:, 0].tolist())
    assert found[0] == found[1]
    assert found[1] != found[2]


def test_a_store_at_a_path_is_continued(tmp_path):
    path = tmp_path / "store.zarr"
    naive = Naive(12, 2, 2, 0.9)
    for session in range(3):
        with ExperienceReplayBuffer(env_of(DISCRETE, 2), 12, 1, 2, 0.9, path=path) as buffer:
            if session:
                check_all(buffer, naive, DISCRETE)
            for i in range(session * 7, session * 7 + 7):
                frame = np.full((2, 2), i + 1, np.uint16)
                buffer.add(np.stack([frame, frame], -1), i % 5, 1.0, i == 3, session)
                naive.steps.append((frame, i % 5, 1.0, i == 3, session))
            check_all(buffer, naive, DISCRETE)


def test_the_number_of_frames_is_found_below_wrappers():
    class Stacker(gymnasium.Wrapper):
        num_frames = 3

    inner = gymnasium.make("CartPole-v1")
    assert ExperienceReplayBuffer(inner, 5).num_frames == 1
    wrapped = gymnasium.wrappers.TransformReward(Stacker(inner), float)
    assert ExperienceReplayBuffer(wrapped, 5).num_frames == 3
