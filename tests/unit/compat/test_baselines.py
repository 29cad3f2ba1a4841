"""baselines' buffers and frame stacks, against every transition in a list."""

import pickle
import random

import gymnasium
import numpy as np
import pytest

import mmreplay
from mmreplay.compat import baselines
from mmreplay.compat.baselines import (
    FrameStack,
    LazyFrames,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from mmreplay.errors import EmptyBufferError, InvalidIdError, SchemaError

pytestmark = pytest.mark.usefixtures("quick_disk", "seeded")


@pytest.fixture
def seeded():
    random.seed(1)  # what the buffer takes its seed from, as the original


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
        episodes = 0
        for _ in range(200):
            episodes += steps.frames is None
            buffer.add(*steps.next())
        assert buffer.core.writer.rows == 200 + episodes
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
        assert buffer.core.writer.rows == 6
        seen, actions, _, following, _ = buffer.sample(30)
        assert np.array_equal(seen[:, 0], actions)
        assert np.array_equal(following[:, 0], actions + 1)


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


def test_every_transition_is_sampled_equally_often_the_newest_too():
    with ReplayBuffer(20) as buffer:
        for i in range(65):
            buffer.add(np.array([i]), i, 0.0, np.array([i + 1]), i % 6 == 0)
        numbers, counts = np.unique(buffer.sample(8000)[1], return_counts=True)
    assert numbers.tolist() == list(range(45, 65))
    assert float(((counts - 400) ** 2 / 400).sum()) < 43.8  # 19 degrees of freedom, 1 in 1000


@pytest.mark.parametrize("kind", ["plain", "lazy"])
def test_a_store_at_a_path_is_continued(tmp_path, kind):
    path, steps = tmp_path / "store.zarr", Steps(kind, 3)
    for session, size in enumerate((12, 12, 9, 15)):
        with PrioritizedReplayBuffer(size, 0.5, path=path) as buffer:
            if session:
                check_all(buffer, steps, size, 0.4)
            for _ in range(20):
                buffer.add(*steps.next())
            _, actions, *_, places = check_all(buffer, steps, size, 0.4)
            assert [n % size for n in actions.tolist()] == places
        steps.frames = None


# ---------------------------------------------------------------- prioritized


def filled(size, n, alpha=1.0, path=None):
    buffer = PrioritizedReplayBuffer(size, alpha, path=path)
    for i in range(n):
        buffer.add(np.array([i]), i, 0.0, np.array([i + 1]), i % 6 == 4)
    return buffer


@pytest.mark.parametrize(("kind", "size"), [("plain", 1), ("plain", 30), ("lazy", 7)])
def test_prioritized_transitions_are_as_they_were_added(kind, size):
    steps = Steps(kind, size)
    with PrioritizedReplayBuffer(size, 0.6) as buffer:
        for i in range(max(5 * size, 60)):
            buffer.add(*steps.next())
            if i % 11 == 0 or i < 5:
                _, action, *_, weights, places = check_all(buffer, steps, size, 0.4)
                assert (weights.shape, weights.dtype) == (action.shape, np.float64)
                assert type(places) is list
                assert isinstance(places[0], int)
                assert places == [n % size for n in action.tolist()]
                assert (weights == 1).all()  # no priority was given yet


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.6, 0.4), (0.0, 0.7), (2.0, 0.5)])
def test_probabilities_and_weights_are_those_of_the_formulas(alpha, beta):
    size, n = 10, 37
    with filled(size, n, alpha) as buffer:
        priorities = np.linspace(0.5, 4, size)  # by position
        buffer.update_priorities(list(range(size)), priorities)
        _, actions, *_, weights, places = buffer.sample(20_000, beta)
    mass = priorities**alpha
    probability = mass / mass.sum()
    expected = (size * probability) ** -beta
    expected /= expected.max()
    assert np.allclose(weights, expected[places], rtol=1e-5)
    assert [number % size for number in actions.tolist()] == places
    counts = np.bincount(places, minlength=size)
    wanted = 20_000 * probability
    # One draw a stratum: closer to the expectation than free draws would be.
    assert float(((counts - wanted) ** 2 / wanted).sum()) < 27.9  # 9 degrees of freedom
    assert (np.abs(counts - wanted) <= 2).all()


def test_a_small_batch_is_weighted_by_the_largest_weight_of_the_buffer():
    with filled(10, 10) as buffer:
        buffer.update_priorities(range(10), [0.1, *[10.0] * 9])
        *_, weights, places = buffer.sample(2, 1.0)
        assert np.allclose(weights, [1.0 if place == 0 else 0.01 for place in places], rtol=1e-5)


def test_the_newest_transition_is_sampled_and_comes_with_the_largest_priority():
    with filled(8, 21) as buffer:
        newest = 20 % 8
        buffer.update_priorities(range(8), [1e-9] * 8)
        buffer.update_priorities([newest], [5.0])
        assert set(buffer.sample(50, 0.4)[-1]) == {newest}
        buffer.add(np.array([99]), 21, 0.0, np.array([100]), False)
        assert set(buffer.sample(50, 0.4)[-1]) == {newest, newest + 1}


def test_a_late_update_reaches_the_sampled_transition_or_none():
    with filled(8, 8) as buffer:
        buffer.update_priorities(range(8), [1.0] * 8)
        *_, places = buffer.sample(64, 0.4)
        assert set(places) == set(range(8))
        for i in range(8, 11):  # take the places 0, 1 and 2
            buffer.add(np.array([i]), i, 0.0, np.array([i + 1]), False)
        buffer.update_priorities(places, [1e-9 if place < 3 else 2.0 for place in places])
        counts = np.bincount(buffer.sample(13_000, 0.4)[-1], minlength=8)
        assert np.allclose(counts, 1000 * np.array([1, 1, 1, 2, 2, 2, 2, 2]), atol=3)
        assert buffer.core.n_late_updates == sum(place < 3 for place in places)


def test_after_its_update_a_position_means_its_present_transition():
    with filled(8, 8) as buffer:
        *_, places = buffer.sample(64, 0.4)
        buffer.update_priorities(places, [1.0] * 64)
        for i in range(8, 11):  # take the places 0, 1 and 2, as an actor that knows their errors
            buffer.add(np.array([i]), i, 0.0, np.array([i + 1]), False)
        buffer.update_priorities([0, 1, 2], [3.0] * 3)
        assert buffer.core.n_late_updates == 0
        counts = np.bincount(buffer.sample(14_000, 0.4)[-1], minlength=8)
        assert np.allclose(counts, 1000 * np.array([3, 3, 3, 1, 1, 1, 1, 1]), atol=3)


def test_a_position_that_comes_twice_takes_the_last_priority():
    with filled(4, 4) as buffer:
        buffer.update_priorities([0, 1, 2, 3, 0], [9.0, 1.0, 1.0, 1.0, 1.0])
        counts = np.bincount(buffer.sample(4000, 0.4)[-1], minlength=4)
        assert np.allclose(counts, 1000, atol=2)


def test_wrong_positions_priorities_and_settings_are_refused():
    with filled(8, 5) as buffer:
        for wrong in ([5], [-1], [8]):
            with pytest.raises(InvalidIdError, match="no transition at"):
                buffer.update_priorities(wrong, [1.0])
        for bad in ([0.0], [-1.0], [np.nan], [np.inf], [1.0, 2.0]):
            with pytest.raises(SchemaError):
                buffer.update_priorities([0], bad)
        for beta in (0, -1, np.nan):
            with pytest.raises(SchemaError, match="beta"):
                buffer.sample(2, beta)
        buffer.update_priorities([], [])
    with pytest.raises(SchemaError, match="alpha"):
        PrioritizedReplayBuffer(8, -1)


# ---------------------------------------------------------------- frame stacks


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


def test_lazy_frames_keep_no_joined_array():
    lazy = LazyFrames([np.zeros((4, 4, 1), np.uint8)] * 4)
    one = np.asarray(lazy)
    assert np.asarray(lazy) is not one
    assert not np.shares_memory(one, np.asarray(lazy))
    assert not hasattr(lazy, "__dict__")


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
        assert buffer.core.writer.rows == 100 + episodes
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


def test_late_errors_of_two_batches_do_not_reach_newer_transitions():
    with PrioritizedReplayBuffer(2, 1.0) as buffer:
        for t in range(2):
            buffer.add([float(t)], 0, 0.0, [t + 1.0], False)
        first, second = buffer.sample(8, 0.5)[6], buffer.sample(8, 0.5)[6]
        second = pickle.loads(pickle.dumps(second))
        buffer.update_priorities(first, [1.0] * 8)
        for t in range(2, 4):
            buffer.add([float(t)], 0, 0.0, [t + 1.0], False)
        third = buffer.sample(8, 0.5)[6]
        buffer.update_priorities(second, [50.0] * 8)
        assert buffer.core.priorities(buffer.core.ids).tolist() == [1.0, 1.0]
        buffer.update_priorities(np.array(third), [2.0] * 8)
        assert buffer.core.priorities(buffer.core.ids).max() == 2.0
