"""`RecordExperience` in loops of every kind, beside single environments with the same seeds."""

import errno
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

import mmreplay
from mmreplay import Field, MmreplayError, RecordExperience, SchemaError
from tests.support.counter_env import Counter, metadata
from tests.support.disks import faults
from tests.support.writers import make_lanes

pytestmark = pytest.mark.usefixtures("quick_disk")

MODES = list(AutoresetMode)
STEPS = 60


class Walk(gymnasium.Env):
    """A random walk, cut off at 9 steps or over beyond 4; its seed decides where it starts."""

    observation_space = spaces.Dict(
        {"place": spaces.Box(-99, 99, (), np.float64), "time": spaces.Discrete(99)}
    )
    action_space = spaces.Box(-2, 2, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = self.np_random.normal(), 0
        return self.look(), {"lives": 3, "luck": self.place}

    def step(self, action):
        luck = self.np_random.normal()
        self.place += luck + float(action[0])
        self.time += 1
        info = {"lives": 3 - self.time // 4, "luck": luck}
        return self.look(), self.place, abs(self.place) > 4, self.time == 9, info

    def look(self):
        return {"place": np.float64(self.place), "time": self.time}


def played(env, mode, seed=3):
    """Step as a loop of that mode does; everything that the environment said."""
    rng = np.random.default_rng(0)
    said = [env.reset(seed=seed)]
    shape = env.action_space.shape
    for _ in range(STEPS):
        said.append(env.step(rng.uniform(-2, 2, shape).astype(np.float32)))
        over = np.logical_or(said[-1][2], said[-1][3])
        if mode in (None, AutoresetMode.DISABLED) and over.any():
            options = None if mode is None else {"reset_mask": over.copy()}
            said.append(env.reset(options=options))
    return said


def assert_same(one, other):
    """Equal in all that it holds, arrays by dtype and bytes."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, tuple | list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        np.testing.assert_array_equal(one, other, strict=True)


def by_environment(store, n):
    """For each environment its episodes: what they show, in order."""
    out = [[] for _ in range(n)]
    for number, episode in enumerate(store.episodes):
        shown = store.trajectory(number)
        out[int(episode["id"]) % n].append(
            (
                shown.observation, shown.action, shown.reward, shown.non_terminal,
                shown.terminated, shown.truncated, shown.extras,
            )
        )  # fmt: skip
    return out


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("copies", [True, False])
def test_a_vector_environment_is_recorded_as_its_environments_alone(mode, copies, tmp_path):
    """In every autoreset mode, final observations and extras included."""

    def make():
        return SyncVectorEnv([Walk] * 3, autoreset_mode=mode, copy=copies)

    extras = {"luck": Field((), "float64")}
    env = RecordExperience(make(), tmp_path / "vector.zarr", extras=extras, life_loss=True)
    said = played(env, mode)
    env.close()
    if copies:
        assert_same(said, played(make(), mode))

    stores = []
    for i in range(3):
        actions = np.random.default_rng(0)
        alone = Walk()
        with mmreplay.create(
            tmp_path / f"{i}.zarr", env=alone, extras=extras, reward_dtype="float32"
        ) as writer:
            observation, info = alone.reset(seed=3 + i)
            writer.reset(frame(observation))
            waits, lives = False, info["lives"]
            for _ in range(STEPS):
                action = actions.uniform(-2, 2, (3, 2)).astype(np.float32)[i]
                if waits:  # next-step mode: a call of `step` is its reset
                    waits = False
                    observation, info = alone.reset()
                    writer.reset(frame(observation))
                    lives = info["lives"]
                    continue
                observation, reward, terminated, truncated, info = alone.step(action)
                writer.step(
                    action, reward, frame(observation), terminated, truncated,
                    life_lost=info["lives"] < lives, luck=info["luck"],
                )  # fmt: skip
                lives = info["lives"]
                if terminated or truncated:
                    waits = mode is AutoresetMode.NEXT_STEP
                    if not waits:
                        observation, info = alone.reset()
                        writer.reset(frame(observation))
                        lives = info["lives"]
        with mmreplay.open(tmp_path / f"{i}.zarr") as store:
            stores.append(by_environment(store, 1)[0])
    with mmreplay.open(tmp_path / "vector.zarr") as store:
        assert min(len(episodes) for episodes in stores) > 3
        assert_same(by_environment(store, 3), stores)


def frame(observation):
    return {"place": observation["place"], "time": np.int64(observation["time"])}


def test_the_loop_of_one_environment_sees_what_it_would_see_without(tmp_path):
    env = RecordExperience(Walk(), tmp_path / "one.zarr", capacity=10_000)
    assert isinstance(env, RecordExperience)
    said = played(env, None)
    env.close()
    assert_same(said, played(Walk(), None))
    with mmreplay.open(tmp_path / "one.zarr") as store:
        assert len(store) == STEPS
        assert store.info()["capacity"] == 10_000
        rows = [one for one in said if len(one) == 5]
        assert store.trajectory(0).reward.tolist()[:3] == [np.float32(r[1]) for r in rows[:3]]
    found = metadata(tmp_path / "one.zarr")
    assert (found["id"], found["n_envs"], found["life_loss"]) == ("Walk", 1, False)


def test_buffers_and_writers_that_are_open_stay_open(tmp_path):
    envs = SyncVectorEnv([Counter] * 2)
    with mmreplay.ReplayBuffer(tmp_path / "b.zarr", stack=None, env=envs) as buffer:
        env = RecordExperience(envs, buffer)
        env.reset(seed=0)
        for _ in range(20):
            env.step(np.zeros(2, np.int64))
        env.close()
        assert len(buffer) == 20 * 2 - 2 * 2  # two resets of each took a step
        buffer.flush()
    with mmreplay.create(tmp_path / "w.zarr", env=Counter()) as writer:
        one = RecordExperience(Counter(), writer)
        one.reset()
        one.step(0)
        one.close()
        assert writer.running


@pytest.mark.parametrize("n", [None, 2])
def test_a_step_is_never_written_into_the_episode_of_another_environment(n, tmp_path):
    def counters():
        return Counter() if n is None else SyncVectorEnv([Counter] * n)

    action = 0 if n is None else np.zeros(n, np.int64)
    with mmreplay.ReplayBuffer(tmp_path / "b.zarr", stack=None, env=counters()) as buffer:
        one, other = (RecordExperience(counters(), buffer) for _ in range(2))
        one.reset(seed=0)
        one.step(action)
        other.reset(seed=0)
        other.step(action)
        steps = buffer.writer.n_steps
        message = r"RecordExperience was reset after this one; call reset\(\).* next"
        for _ in range(2):
            with pytest.raises(SchemaError, match=message):
                one.step(action)
        if n is not None:
            with pytest.raises(SchemaError, match=message):
                one.reset(options={"reset_mask": np.array([True, False])})
        assert buffer.writer.n_steps == steps
        other.step(action)
        one.reset(seed=0)  # an episode each, in turn
        one.step(action)
        with pytest.raises(SchemaError, match=message):
            RecordExperience(one, buffer).step(action)
        twice = RecordExperience(one, buffer)
        twice.reset(seed=0)
        with pytest.raises(SchemaError, match=message):
            twice.step(action)
        lengths = buffer.store.episodes["length"].tolist()
        assert lengths[: 3 * (n or 1)] == [1] * (n or 1) + [2] * (n or 1) + [1] * (n or 1)


def test_what_it_cannot_write_to_is_refused(tmp_path):
    with pytest.raises(SchemaError, match=r"expected a ReplayBuffer, a writer .* found 3"):
        RecordExperience(Counter(), 3)
    with mmreplay.create(tmp_path / "w.zarr", env=Counter()) as writer:
        with pytest.raises(
            SchemaError, match=r"a vector environment of 2, .* for a single environment"
        ):
            RecordExperience(SyncVectorEnv([Counter] * 2), writer)
        with pytest.raises(SchemaError, match="capacity: for a store at a path only"):
            RecordExperience(Counter(), writer, capacity=5)
    mmreplay.create(tmp_path / "v.zarr", env=SyncVectorEnv([Counter] * 3)).close()
    text = "a lane of 3 environments, but env is a single environment"
    with pytest.raises(SchemaError, match=text):
        mmreplay.ReplayBuffer(tmp_path / "v.zarr", stack=None, env=Counter())
    pool = SyncVectorEnv([Counter] * 2)
    pool.is_async = True  # as EnvPool's are that return some of their environments
    with pytest.raises(SchemaError, match="batch_size equal to num_envs"):
        RecordExperience(pool, tmp_path / "x.zarr")
    env = RecordExperience(Counter(lives=False), tmp_path / "y.zarr", life_loss=True)
    with pytest.raises(SchemaError, match="no 'lives'"):
        env.reset()
    env.close()


def test_a_step_that_finds_no_room_is_written_before_the_next(tmp_path):
    """The loop loses what `step` would have returned, the store nothing."""
    inner = SyncVectorEnv([lambda: Counter(10_000)] * 2, copy=False)
    env = RecordExperience(inner, tmp_path / "s.zarr", frame=Field((2,), "float32", chunk=16))
    env.reset()
    steps = full = 0
    with faults.faulty_disk() as disk:
        disk.fail(["posix_fallocate"], errno.ENOSPC, forever=True)
        while full < 3:
            try:
                env.step(np.zeros(2, np.int64))
                steps += 1
            except mmreplay.DiskFullError:
                full += 1
            assert steps < 1_000
    for _ in range(8):
        env.step(np.zeros(2, np.int64))
    env.close()
    with mmreplay.open(tmp_path / "s.zarr") as store:
        assert store.episodes["length"].tolist() == [steps + 1 + 8] * 2
        assert store.trajectory(1).observation[:, 1].tolist() == list(range(steps + 10))


@pytest.mark.parametrize("n", [None, 2])
def test_after_a_step_that_is_not_recorded_comes_a_reset(n, tmp_path):
    """A refused row, or Ctrl-C: no two rows follow each other that did not in the environment."""
    inner = Counter() if n is None else SyncVectorEnv([Counter] * n)
    env = RecordExperience(inner, tmp_path / "s.zarr")
    good, bad = (0, "left") if n is None else (np.zeros(n, np.int64), ["left"] * n)
    what = r"call reset\(\) next" if n is None else r"call reset\(\) without a mask next"
    env.reset()
    env.step(good)
    with pytest.raises(SchemaError, match="action"):
        written(env, bad)
    with pytest.raises(MmreplayError, match=what):
        env.step(good)
    env.reset()
    env.step(good)
    stepped = env.writer.step
    env.writer.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        env.step(good)
    env.writer.step = stepped
    with pytest.raises(MmreplayError, match=what):
        env.step(good)
    env.reset()
    env.step(good)
    env.close()
    with mmreplay.open(tmp_path / "s.zarr") as store:
        assert store.episodes["length"].tolist() == [1] * 3 * (n or 1)
        assert not store.episodes["terminated"].any()


def written(env, actions):
    """Step with actions that the environment takes and the store does not."""
    stepped = env.env.step
    env.env.step = lambda _: stepped(np.zeros(2, np.int64))
    try:
        env.step(actions)
    finally:
        env.env.step = stepped


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("mode", [None, *MODES])
def test_after_an_error_of_the_environment_comes_a_reset(mode, tmp_path):
    """Others of a vector may have stepped, or begun an episode, before it was raised."""
    inner = Fragile(20)
    made = inner if mode is None else SyncVectorEnv([Counter, lambda: inner], autoreset_mode=mode)
    env = RecordExperience(made, tmp_path / "s.zarr")
    actions = 0 if mode is None else np.zeros(2, np.int64)
    env.reset()
    inner.fails_at = (0, 2)
    env.step(actions)
    with pytest.raises(RuntimeError, match="simulator broke"):
        env.step(actions)
    inner.fails_at = None
    with pytest.raises(MmreplayError, match=r"call reset\(\)"):
        env.step(actions)
    inner.broken = True
    with pytest.raises(RuntimeError, match="no game"):
        env.reset()
    inner.broken = False
    with pytest.raises(MmreplayError, match=r"call reset\(\)"):
        env.step(actions)
    env.reset()
    env.step(actions)
    env.close()
    with mmreplay.open(tmp_path / "s.zarr") as store:
        assert store.episodes["length"].tolist() == [1, 1] * (1 if mode is None else 2)


class Fragile(Counter):
    """Cannot always be reset."""

    broken = False

    def reset(self, **options):
        if self.broken:
            raise RuntimeError("no game")
        return super().reset(**options)


class Telling(Counter):
    """What a step tells is an array; what a reset tells is nothing."""

    def info(self):
        return {"x": np.array([self.n, self.length], np.float32)} if self.n else {}


@pytest.mark.parametrize("lengths", [(3,), (3, 3), (3, 4)])
def test_arrays_that_a_same_step_environment_tells_are_of_the_step(lengths, tmp_path):
    makes = [partial(Telling, n) for n in lengths]
    inner = SyncVectorEnv(makes, autoreset_mode=AutoresetMode.SAME_STEP)
    extras = {"x": Field((2,), "float32")}
    env = RecordExperience(inner, tmp_path / "s.zarr", extras=extras)
    env.reset()
    for _ in range(9):
        env.step(np.zeros(len(lengths), np.int64))
    env.close()
    with mmreplay.open(tmp_path / "s.zarr") as store:
        for number in range(len(store.episodes)):
            one = store.trajectory(number)
            n = lengths[int(one.ids[0]) % len(lengths)]
            assert one.extras["x"].tolist() == [[t, n] for t in range(1, len(one.ids) + 1)]


def test_what_cannot_be_recorded_makes_no_store(tmp_path):
    class NoMode(VectorWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.metadata = {}

        @property
        def unwrapped(self):
            return self

    envs = SyncVectorEnv([Counter] * 2)
    with pytest.raises(SchemaError, match="autoreset_mode"):
        RecordExperience(NoMode(envs), tmp_path / "s.zarr")
    with pytest.raises(SchemaError, match="is for a vector environment of 3"):
        RecordExperience(envs, tmp_path / "s.zarr", lanes=3)
    assert not list(tmp_path.iterdir())
    mmreplay.create(tmp_path / "s.zarr", env=Counter()).close()
    for _ in range(2):
        with pytest.raises(SchemaError):
            RecordExperience(envs, tmp_path / "s.zarr", append=True)
    RecordExperience(Counter(), tmp_path / "s.zarr", append=True).close()
    make_lanes(
        tmp_path / "l.zarr", n_lanes=2, frame=Field((2,), "float32"), action=Field((), "int64")
    ).close()
    for _ in range(2):  # and not: is locked
        with pytest.raises(SchemaError, match="several lanes; name the one to write"):
            RecordExperience(Counter(), tmp_path / "l.zarr", append=True)


class Pool(VectorWrapper):
    """Returns the rows of the environments that it reset only, as EnvPool does."""

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask")
        mask = None if mask is None else mask.copy()
        observations, infos = self.env.reset(seed=seed, options=options)
        return (observations if mask is None else observations[mask]), infos


def test_resets_that_return_some_rows_only_are_understood(tmp_path):
    inner = Pool(SyncVectorEnv([Counter] * 3, autoreset_mode=AutoresetMode.DISABLED))
    env = RecordExperience(inner, tmp_path / "s.zarr")
    env.reset()
    env.step(np.zeros(3, np.int64))
    env.reset(options={"reset_mask": np.array([False, True, False])})
    env.step(np.zeros(3, np.int64))
    env.close()
    with mmreplay.open(tmp_path / "s.zarr") as store:
        shown = [store.trajectory(n).observation.tolist() for n in range(4)]
        assert sorted(shown) == [
            [[0, 0], [0, 1]],
            [[0, 0], [0, 1], [0, 2]],
            [[0, 0], [0, 1], [0, 2]],
            [[1, 0], [1, 1]],
        ]


class Broken(VectorEnv):
    """Three environments, of which the last gives a NaN with its third step."""

    num_envs, metadata = 3, {"autoreset_mode": AutoresetMode.NEXT_STEP}
    single_observation_space = spaces.Box(-1, 1, (2,), np.float32)
    single_action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-1, 1, (3, 2), np.float32)
    action_space = spaces.MultiDiscrete([2, 2, 2])

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros((3, 2), np.float32), {}

    def step(self, actions):
        self.time += 1
        rewards = np.array([0, 0, np.nan if self.time == 3 else 0])
        no = np.zeros(3, np.bool_)
        return np.zeros((3, 2), np.float32), rewards, no, no, {}


def test_a_recording_of_finite_values_only(tmp_path):
    path, actions = tmp_path / "store.zarr", np.zeros(3, np.int64)
    env = RecordExperience(Broken(), path, finite=True, flush_s=0)
    env.reset()
    for _ in range(2):
        env.step(actions)
    with pytest.raises(SchemaError, match=r"reward: expected finite numbers"):
        env.step(actions)
    with pytest.raises(MmreplayError, match="not recorded; call reset"):
        env.step(actions)
    env.reset()
    env.step(actions)
    env.close()
    with mmreplay.open(path) as store:
        assert store.episodes["length"].tolist() == [2, 2, 2, 1, 1, 1]
        assert np.isfinite(store.rewards[:]).all()


@pytest.mark.parametrize("name", ["frame", "reward", "action"])
def test_of_one_environment_too_a_value_that_is_not_finite_is_named(name, tmp_path):
    class Odd(Clipping):
        def step(self, action):
            seen = np.full(1, np.inf if name == "frame" else 0, np.float32)
            return seen, np.nan if name == "reward" else 0.0, False, False, {}

    env = RecordExperience(Odd(), tmp_path / "s.zarr", finite=True)
    env.reset()
    with pytest.raises(SchemaError, match=f"{name}: expected finite numbers"):
        env.step(np.full(2, np.nan if name == "action" else 0, np.float32))
    assert env.writer.n_steps == 0
    env.close()


class Clipping(gymnasium.Env):
    """Clips the actions that it is given, in the array of the loop."""

    observation_space, action_space = spaces.Box(-9, 9, (1,)), spaces.Box(-9, 9, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        np.clip(action, -1, 1, out=action)
        return action[:1].copy(), 0.0, False, False, {}


@pytest.mark.parametrize("n", [None, 2])
def test_actions_are_those_of_the_loop_whatever_the_environment_does_to_them(n, tmp_path):
    inner = Clipping() if n is None else SyncVectorEnv([Clipping] * n)
    env = RecordExperience(inner, tmp_path / "s.zarr")
    env.reset()
    env.step(np.full((2,) if n is None else (n, 2), 4, np.float32))
    env.close()
    with mmreplay.open(tmp_path / "s.zarr") as store:
        batch = store.transitions(store.ids, stack=None)
    assert (batch.action == 4).all()
    assert (batch.next_observation == 1).all()


# ---------------------------------------------------------------- extras that are missing


class Choice(gymnasium.Env):
    """Takes any action, and ends each third step."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        self.n = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.n += 1
        return np.zeros(1, np.float32), 0.0, self.n == 3, False, {}


@pytest.mark.parametrize("action", [2, -2, np.int64(2), np.uint8(9), 10**30])
def test_an_action_that_a_discrete_space_lacks_is_refused(tmp_path, action):
    with RecordExperience(Choice(), tmp_path / "x.zarr") as env:
        env.reset()
        for given in (-1, np.int64(0), 1):
            with pytest.raises(
                SchemaError, match=r"action: expected -1 to 1, as .* found .* stored"
            ):
                env.step(action)
            env.step(given)  # the environment was not stepped
    with mmreplay.open(tmp_path / "x.zarr") as store:
        assert store.actions[:].tolist() == [-1, 0, 1]
        assert store.trajectory(0).terminated


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_in_a_vector_only_actions_of_steps_count(tmp_path, mode):
    envs = SyncVectorEnv([Choice] * 2, autoreset_mode=mode)
    env = RecordExperience(envs, tmp_path / "x.zarr")
    env.reset()
    for _ in range(3):
        env.step(np.array([1, -1]))
    if mode is AutoresetMode.NEXT_STEP:
        env.step(np.array([99, 0]))  # ignored: both are reset
    elif mode is AutoresetMode.DISABLED:
        env.reset(options={"reset_mask": np.ones(2, bool)})
    with pytest.raises(SchemaError, match=r"action: expected -1 to 1, .* found -2"):
        env.step(np.array([1, -2]))
    with pytest.raises(MmreplayError, match=r"call reset"):
        env.step(np.array([1, 1]))
    env.reset()
    env.step(np.array([0, 0]))
    env.close()
    with mmreplay.open(tmp_path / "x.zarr") as store:
        assert store.actions[:].tolist() == [[1, -1]] * 3 + [[0, 0]]


class Sometimes(Walk):
    """Its info has a score in every third step, and never that of a reset."""

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.time % 3 == 0:
            info |= {"score": self.time, "pair": np.full(2, self.time / 2)}
        return observation, reward, terminated, truncated, info


FILLED = {"score": Field((), "float32", fill=np.nan), "pair": Field((2,), "float64", fill=-1)}


def check_filled(path):
    with mmreplay.open(path) as store:
        n = 0
        for number in range(len(store.episodes)):
            one = store.trajectory(number)
            for t, (score, pair) in enumerate(
                zip(one.extras["score"], one.extras["pair"], strict=True), 1
            ):
                n += 1
                assert np.array_equal(score, t if t % 3 == 0 else np.nan, equal_nan=True)
                assert pair.tolist() == [t / 2 if t % 3 == 0 else -1] * 2
        return n


def test_an_extra_that_an_info_lacks_is_its_fill(tmp_path):
    env = RecordExperience(Sometimes(), tmp_path / "s.zarr", extras=FILLED)
    played(env, None)
    env.close()
    assert check_filled(tmp_path / "s.zarr") == STEPS
    again = RecordExperience(Sometimes(), tmp_path / "s.zarr")  # the store knows its fill
    played(again, None)
    again.close()
    assert check_filled(tmp_path / "s.zarr") == 2 * STEPS


@pytest.mark.parametrize("mode", MODES)
def test_of_a_vector_environment_each_one_that_lacks_an_extra_has_the_fill(mode, tmp_path):
    def make():
        return SyncVectorEnv([Sometimes] * 3, autoreset_mode=mode)

    env = RecordExperience(make(), tmp_path / "v.zarr", extras=FILLED)
    played(env, mode)
    env.close()
    assert check_filled(tmp_path / "v.zarr") > STEPS


@pytest.mark.parametrize("mode", MODES)
def test_without_a_fill_an_extra_that_is_missing_is_refused_and_nothing_is_stored(mode, tmp_path):
    extras = {"score": Field((), "float32")}
    env = RecordExperience(Sometimes(), tmp_path / "s.zarr", extras=extras)
    env.reset(seed=0)
    with pytest.raises(SchemaError, match=r"\['score'\], found none.*fill=0"):
        env.step(np.zeros(2, np.float32))
    assert env.writer.rows == 0
    env.close()

    class Late(Sometimes):
        """Its second step is the third."""

        def reset(self, *, seed=None, options=None):
            out = super().reset(seed=seed)
            self.time = 1
            return out

    envs = SyncVectorEnv([Late, Sometimes], autoreset_mode=mode)
    env = RecordExperience(envs, tmp_path / "v.zarr", extras=extras)
    env.reset(seed=0)
    envs.envs[1].unwrapped.time = 2
    with pytest.raises(SchemaError, match=r"info of environment 0 has no 'score'.*fill=0"):
        env.step(np.zeros((2, 2), np.float32))
    assert env.writer.rows == 0
    env.close()


def test_a_path_takes_resume_and_append_and_an_open_buffer_neither(tmp_path, caplog):
    path = tmp_path / "s.zarr"
    with pytest.raises(mmreplay.StoreNotFoundError, match="no store here to resume"):
        RecordExperience(Walk(), path, resume=True)
    RecordExperience(Walk(), path, resume=False).close()
    for refused in ({"resume": False}, {"append": False}):
        with pytest.raises(mmreplay.StoreExistsError):
            RecordExperience(Walk(), path, **refused)
    assert not caplog.records
    RecordExperience(Walk(), path).close()
    assert [one.message.split(", last")[0] for one in caplog.records] == [
        f"{path}: resumed, with 0 transitions"
    ]
    with mmreplay.create(path, append=True) as writer:
        for given in ({"resume": True}, {"capacity": 3}):
            with pytest.raises(SchemaError, match="for a store at a path only"):
                RecordExperience(Walk(), writer, **given)
