"""Every transition is the one that stable-baselines3's own buffers give, for the same steps."""

import multiprocessing
import os
import pickle
import re
import signal

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import QRDQN
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

import mmreplay
from mmreplay.adapters.stable_baselines3 import DiskHerReplayBuffer, DiskReplayBuffer


class Beside(DiskReplayBuffer):
    """Is told what stable-baselines3's own buffer is told."""

    def __init__(self, *arguments, own=None, own_settings=None, **given):
        super().__init__(*arguments, **given)
        self.own = own(*arguments, **{"n_envs": self.n_envs, **(own_settings or {})})

    def add(self, *arguments):
        super().add(*arguments)
        self.own.add(*arguments)


class Images(gymnasium.Env):
    """Random images of (36, 36, channels); episodes of 3 to 9 steps, half of them cut off."""

    def __init__(self, seed=0, channels=1, action_space=None):
        self.observation_space = spaces.Box(0, 255, (36, 36, channels), np.uint8)
        self.action_space = action_space or spaces.Discrete(3)
        self._random = np.random.default_rng(seed)

    def _frame(self):
        return self._random.integers(0, 256, self.observation_space.shape, np.uint8)

    def reset(self, *, seed=None, options=None):
        self._left = self._random.integers(3, 10)
        return self._frame(), {}

    def step(self, action):
        self._left -= 1
        over, cut = self._left == 0, self._random.random() < 0.5
        return (
            self._frame(),
            float(self._random.normal()),
            bool(over and not cut),
            bool(over and cut),
            {},
        )


class Vectors(Images):
    """The same of three numbers and two continuous actions between -2 and 5."""

    def __init__(self, seed=0):
        super().__init__(seed, action_space=spaces.Box(-2, 5, (2,), np.float32))
        self.observation_space = spaces.Box(-9, 9, (3,), np.float32)

    def _frame(self):
        return self._random.normal(3, 2, 3).astype("float32")


class Goals(Vectors):
    """The same as a dict of observations with goals."""

    def __init__(self, seed=0):
        super().__init__(seed)
        place = spaces.Box(-9, 9, (2,), np.float32)
        self.observation_space = spaces.Dict(
            {"observation": self.observation_space, "achieved_goal": place, "desired_goal": place}
        )

    def _frame(self):
        values = self._random.normal(0, 1, 7).astype("float32")
        return {"observation": values[:3], "achieved_goal": values[3:5], "desired_goal": values[5:]}

    def compute_reward(self, achieved_goal, desired_goal, infos):
        assert infos == [{}] * len(achieved_goal)
        return -np.linalg.norm(achieved_goal - desired_goal, axis=1)


def environments(kind, n, **given):
    return DummyVecEnv([lambda seed=seed: kind(seed, **given) for seed in range(n)])


def assert_same(buffer, env=None, own=None):
    """Each transition of each environment; the same random numbers draw the same ones."""
    own = own or buffer.own
    assert (buffer.size(), buffer.pos, buffer.full) == (own.size(), own.pos, own.full)
    every = np.tile(np.arange(own.size()), 12)
    for take in (lambda one: one._get_samples(every, env), lambda one: one.sample(50, env)):
        np.random.seed(3)
        found = take(buffer)._asdict()
        np.random.seed(3)
        expected = take(own)._asdict()
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            if tensor is None:
                assert found[name] is None
                continue
            parts = tensor if isinstance(tensor, dict) else {"": tensor}
            for key, part in parts.items():
                one = found[name][key] if key else found[name]
                assert (one.dtype, one.shape) == (part.dtype, part.shape), name
                assert np.array_equal(one.numpy(), part.numpy()), (name, key)


def n_step(n):
    if n == 1:
        return {"own": ReplayBuffer}
    settings = {"n_steps": n, "gamma": 0.9}
    return {"own": NStepReplayBuffer, "own_settings": settings, **settings}


def model_of(kind, env, path, *, size=100, policy="MlpPolicy", **given):
    """A model that never trains, as its batches would show nothing."""
    kwargs = {"path": path, **given}
    return kind(
        policy, env, buffer_size=size, learning_starts=10**9, replay_buffer_class=Beside,
        replay_buffer_kwargs=kwargs, seed=0, device="cpu", train_freq=1,
    )  # fmt: skip


# ---------------------------------------------------------------- equal to its own


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("algorithm", [DQN, QRDQN])
def test_frames_of_two_environments_are_stored_once_and_stacked_as_they_came(
    tmp_path, algorithm, n
):
    env = VecFrameStack(environments(Images, 2), 4)
    model = model_of(algorithm, env, tmp_path / "s.zarr", policy="CnnPolicy", **n_step(n))
    model.learn(60)
    assert_same(model.replay_buffer)
    model.learn(120)  # begins with a reset, in the middle of two episodes, and goes round
    buffer = model.replay_buffer
    if n == 1:  # over more steps, its own buffer goes on into the next episode
        assert_same(buffer)
    assert buffer.buffer.store.frames.shape[1:] == (2, 36, 36)
    assert buffer.buffer.writer.rows == 90
    assert len(buffer.buffer) == 100


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("algorithm", [SAC, TD3])
def test_vectors_scaled_actions_and_normalized_observations_are_the_same(
    tmp_path, algorithm, normalized, n
):
    env = environments(Vectors, 4)
    if normalized:
        env = VecNormalize(env, clip_reward=1.0)
    model = model_of(algorithm, env, tmp_path / "s.zarr", size=120, **n_step(n))
    model.learn(200)
    assert_same(model.replay_buffer, env if normalized else None)
    assert np.abs(model.replay_buffer.buffer.store.actions[:]).max() <= 1


@pytest.mark.parametrize("handle", [True, False])
def test_time_limits_are_handled_as_asked_for(tmp_path, handle):
    given = {"handle_timeout_termination": handle}
    model = model_of(
        TD3,
        environments(Vectors, 2),
        tmp_path / "s.zarr",
        own=ReplayBuffer,
        own_settings=given,
        **given,
    )
    model.learn(80)
    assert_same(model.replay_buffer)
    episodes = model.replay_buffer.buffer.store.episodes
    assert episodes["truncated"].any() == handle


def test_dict_observations_are_the_same(tmp_path):
    path = tmp_path / "s.zarr"
    model = model_of(
        SAC, environments(Goals, 2), path, policy="MultiInputPolicy", own=DictReplayBuffer
    )
    model.learn(160)
    assert_same(model.replay_buffer)


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_goals_are_those_that_the_episode_reached_and_rewards_those_of_the_environment(
    tmp_path, strategy
):
    env = environments(Goals, 2)
    kwargs = {"path": tmp_path / "s.zarr", "n_sampled_goal": 1, "goal_selection_strategy": strategy}
    model = SAC(
        "MultiInputPolicy", env, buffer_size=400, learning_starts=300, seed=0, device="cpu",
        replay_buffer_class=DiskHerReplayBuffer, replay_buffer_kwargs=kwargs,
    )  # fmt: skip
    model.learn(310)
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    model.replay_buffer.close()
    model.load_replay_buffer(tmp_path / "buffer.pkl")
    batch = model.replay_buffer.sample(2000)
    seen = {key: tensor.numpy() for key, tensor in batch.observations.items()}
    after = {key: tensor.numpy() for key, tensor in batch.next_observations.items()}
    store = model.replay_buffer.buffer.store
    episodes = [store.trajectory(number).observation for number in range(len(store.episodes))]
    where = {
        one.tobytes(): (number, step)
        for number, episode in enumerate(episodes)
        for step, one in enumerate(episode["observation"])
    }
    goals = {
        one.tobytes(): (number, step)
        for number, episode in enumerate(episodes)
        for step, one in enumerate(episode["achieved_goal"])
    }
    changed = np.array([goal.tobytes() in goals for goal in seen["desired_goal"]])
    assert 800 < changed.sum() < 1200
    assert np.array_equal(seen["desired_goal"][changed], after["desired_goal"][changed])
    for one, goal in zip(seen["observation"][changed], seen["desired_goal"][changed], strict=True):
        (number, step), (source, reached) = where[one.tobytes()], goals[goal.tobytes()]
        assert number == source
        last = len(episodes[number]["observation"]) - 1
        assert (
            reached
            in {"future": range(step + 1, last + 1), "final": [last], "episode": range(last + 1)}[
                strategy
            ]
        )
    expected = Goals().compute_reward(after["achieved_goal"], seen["desired_goal"], [{}] * 2000)
    assert np.array_equal(batch.rewards.numpy()[changed, 0], expected[changed].astype("float32"))
    arguments = 9, env.observation_space, env.action_space, env
    wrong = {"goal_selection_strategy": "past", "copy_info_dict": True, "n_steps": 3}
    for name, value in wrong.items():
        with pytest.raises(mmreplay.SchemaError, match=f"{name}: expected"):
            DiskHerReplayBuffer(*arguments, **{**kwargs, name: value})


def test_stacks_that_repeat_the_first_frame_are_the_same(tmp_path):
    def one(seed):
        env = gymnasium.wrappers.FrameStackObservation(Images(seed), 4)
        return gymnasium.wrappers.ReshapeObservation(env, (4, 36, 36))

    env = DummyVecEnv([lambda: one(0), lambda: one(1)])
    model = model_of(DQN, env, tmp_path / "s.zarr", policy="CnnPolicy", own=ReplayBuffer)
    model.learn(80)
    assert_same(model.replay_buffer)
    assert model.replay_buffer.buffer.store.padding == "reset"


def test_training_with_the_same_seed_is_the_same_training(tmp_path):
    weights = []
    for given in (
        {},
        {"replay_buffer_class": DiskReplayBuffer, "replay_buffer_kwargs": {"path": tmp_path / "s"}},
    ):
        env = environments(Vectors, 2)
        model = TD3("MlpPolicy", env, seed=1, learning_starts=20, buffer_size=50, **given)
        model.learn(60)
        weights.append(model.policy.state_dict())
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name


# ---------------------------------------------------------------- what breaks off


def filled(path, n_steps, *, seed=0, first=0, own=None, buffer=None, n=1, size=60):
    """A buffer, and its own beside it, told `n_steps` of two environments with stacks of 2."""
    space, actions = spaces.Box(0, 255, (2, 6, 6), np.uint8), spaces.Discrete(3)
    if own is None:
        given = {"n_envs": 2, "device": "cpu"}
        own = ReplayBuffer(size, space, actions, **given)
        if n > 1:
            own = NStepReplayBuffer(size, space, actions, n_steps=n, **given)
    if buffer is None:
        given = {"n_envs": 2, "device": "cpu", "n_steps": n}
        buffer = DiskReplayBuffer(size, space, actions, path=path, **given)
    random = np.random.default_rng(seed)
    stacks = np.zeros((2, 2, 6, 6), np.uint8)
    stacks[:, 1] = random.integers(1, 256, (2, 6, 6))
    for step in range(first + n_steps):
        after = np.stack([stacks[:, 1], random.integers(1, 256, (2, 6, 6), np.uint8)], 1)
        done = random.random(2) < 0.1
        infos = [{"TimeLimit.truncated": bool(cut)} for cut in done & (random.random(2) < 0.5)]
        arguments = stacks, after, random.integers(0, 3, 2), random.normal(size=2), done, infos
        if step >= first:
            buffer.add(*arguments)
        own.add(*arguments)
        stacks = after.copy()
        stacks[done, 0] = 0
        stacks[done, 1] = random.integers(1, 256, (done.sum(), 6, 6))
    return buffer, own


def filled_and_killed(path, n):
    filled(path, 45, n=n)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("n", [1, 3])
def test_training_that_was_killed_goes_on_with_its_buffer(tmp_path, n):
    path = tmp_path / "s.zarr"
    child = multiprocessing.get_context("fork").Process(target=filled_and_killed, args=(path, n))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    space, actions = spaces.Box(0, 255, (2, 6, 6), np.uint8), spaces.Discrete(3)
    buffer = DiskReplayBuffer(60, space, actions, n_envs=2, path=path, n_steps=n, device="cpu")
    assert buffer.size() == 30
    _, own = filled(path, 45, buffer=Ignored(), n=n)
    own.timeouts[own.pos - 1, own.dones[own.pos - 1] == 0] = 1  # the kill ended these episodes
    own.dones[own.pos - 1] = 1
    assert_same(buffer, own=own)
    filled(path, 20, seed=1, buffer=buffer, own=own, n=n)
    assert_same(buffer, own=own)


class Ignored:
    def add(self, *_):
        pass


def test_saved_buffer_is_a_small_file_that_points_at_the_store(tmp_path):
    env = environments(Vectors, 2)
    model = model_of(SAC, env, tmp_path / "s.zarr", size=10_000, own=ReplayBuffer)
    model.learn(2_000)
    own = model.replay_buffer.own
    model.replay_buffer.own = None
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    assert (tmp_path / "buffer.pkl").stat().st_size < 5_000
    model.replay_buffer.close()
    model.load_replay_buffer(tmp_path / "buffer.pkl")
    assert_same(model.replay_buffer, own=own)
    model.replay_buffer.own = own
    model.learn(300)
    assert_same(model.replay_buffer)


def test_resume_needs_a_store_or_a_free_path_and_a_buffer_that_was_open_goes_on(tmp_path, caplog):
    path = tmp_path / "s.zarr"
    space, actions = spaces.Box(-9, 9, (3,), np.float32), spaces.Discrete(3)

    def stepped(resume="auto", buffer=None):
        buffer = buffer or DiskReplayBuffer(60, space, actions, path=path, resume=resume)
        seen = np.full((1, 3), buffer.pos, np.float32)
        buffer.add(seen, seen + 1, np.zeros(1, int), np.zeros(1), np.ones(1, bool), [{}])
        buffer.close()
        return buffer

    with pytest.raises(mmreplay.StoreNotFoundError, match="no store here to resume"):
        stepped(resume=True)
    buffer = stepped(resume=False)
    copy = pickle.loads(pickle.dumps(stepped(buffer=buffer)))
    assert stepped(buffer=copy).size() == 3
    with pytest.raises(mmreplay.StoreExistsError, match="already exists"):
        stepped(resume=False)
    assert not caplog.records
    assert stepped().size() == 4
    assert "s.zarr: resumed, with 3 transitions, last written" in caplog.text
    assert stepped(resume=True).size() == 5
    assert len(caplog.records) == 1


def test_loaded_model_finds_its_buffer_and_opens_it_with_the_first_step(tmp_path):
    env = VecFrameStack(environments(Images, 2), 4)
    kwargs = {"path": tmp_path / "s.zarr"}
    model = DQN(
        "CnnPolicy", env, buffer_size=200, learning_starts=50, replay_buffer_class=DiskReplayBuffer,
        replay_buffer_kwargs=kwargs, device="cpu",
    )  # fmt: skip
    model.learn(60)
    model.save(tmp_path / "model.zip")
    copy = DQN.load(tmp_path / "model.zip", env=env)  # beside the one that holds the store
    assert copy.replay_buffer.size() == model.replay_buffer.size() == 32
    with pytest.raises(mmreplay.LockedError):
        copy.learn(4)
    model.replay_buffer.close()
    copy.learn(20)
    assert copy.replay_buffer.size() == 44
    assert model.replay_buffer.size() == 32


def test_loaded_model_with_another_number_of_environments_needs_another_path(tmp_path):
    model = trained(tmp_path / "s.zarr")
    model.save(tmp_path / "model.zip")
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    model.replay_buffer.close()
    four = environments(Vectors, 4)
    copy = SAC.load(tmp_path / "model.zip", env=four)  # to evaluate it, for example
    with pytest.raises(mmreplay.SchemaError, match="a lane of 2 environments, expected 4"):
        copy.learn(4)
    copy.load_replay_buffer(tmp_path / "buffer.pkl")
    with pytest.raises(mmreplay.SchemaError, match="go on with 2 environments, or choose another"):
        copy.learn(4)
    kwargs = {"path": tmp_path / "other.zarr"}
    copy = SAC.load(tmp_path / "model.zip", env=four, replay_buffer_kwargs=kwargs)
    copy.learn(8)
    assert copy.replay_buffer.size() == 2
    assert mmreplay.load(tmp_path / "s.zarr").store.lanes[0].rows == 30


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("handle", [True, False])
def test_time_limit_without_done_ends_an_episode_as_in_its_own(tmp_path, handle, n):
    own = NStepReplayBuffer if n > 1 else ReplayBuffer
    more = {"n_steps": n} if n > 1 else {}
    given = {"n_envs": 2, "device": "cpu", "handle_timeout_termination": handle, **more}
    both = [
        DiskReplayBuffer(60, NUMBERS, spaces.Discrete(3), path=tmp_path / "s.zarr", **given),
        own(60, NUMBERS, spaces.Discrete(3), **given),
    ]
    random = np.random.default_rng(0)
    for step in range(9):
        seen, after = (np.full((2, 3), number, "float32") for number in (step, step + 1))
        infos = [{"TimeLimit.truncated": step == 4}, {}]
        arguments = random.integers(0, 3, 2), random.normal(size=2), np.zeros(2, bool), infos
        for buffer in both:
            buffer.add(seen, after, *arguments)
    assert_same(both[0], own=both[1])


def test_episode_that_is_seen_from_its_middle_is_refused_with_advice(tmp_path):
    with pytest.raises(mmreplay.SchemaError, match=r"to begin with a stack of 2 .*set_env\(env\)"):
        filled(tmp_path / "s.zarr", 1, first=5)


def test_observation_that_is_no_stack_is_refused_with_advice(tmp_path):
    buffer, _ = filled(tmp_path / "s.zarr", 1)
    last = np.frombuffer(buffer._last[0], np.uint8).reshape(2, 2, 6, 6)
    assert not any(buffer._ended)
    with pytest.raises(mmreplay.SchemaError, match="expected a stack of 2 frames"):
        buffer.add(last, last + 1, *np.zeros((3, 2)), [{}, {}])


IMAGES = spaces.Box(0, 255, (3, 4, 5), np.uint8)
NUMBERS = spaces.Box(-9, 9, (3,))
SHAPES = {
    "channels last": (IMAGES, (4, 5, 3)),
    "channels in the middle": (IMAGES, (4, 3, 5)),
    "width before height": (IMAGES, (3, 5, 4)),
    "flat": (IMAGES, (60,)),
    "grey, channels last": (spaces.Box(0, 255, (1, 4, 5), np.uint8), (4, 5, 1)),
    "a column": (spaces.Box(-9, 9, (3, 1)), (1, 3)),
    "a bit vector, flat": (spaces.MultiBinary((2, 3)), (6,)),
}


def added(path, space, frames, n, own=None):
    """A buffer, or its own, to which frames were added as the observations of a step."""
    action = spaces.Box(-1, 1, (1,))
    buffer = (
        DiskReplayBuffer(40, space, action, "cpu", n, path=path)
        if own is None
        else own(40, space, action, "cpu", n)
    )
    none = np.zeros(n, bool)
    buffer.add(frames, frames, np.zeros((n, 1), "float32"), none, none, [{}] * n)
    return buffer


def as_part(frames, space, name):
    """The same in a dict of observations."""
    if name is None:
        return space, frames
    return spaces.Dict({name: space, "other": NUMBERS}), {
        name: frames,
        "other": np.zeros((len(frames), 3), "float32"),
    }


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("name", [None, "camera"])
@pytest.mark.parametrize("kind", SHAPES)
def test_observations_of_another_shape_than_the_space_s_are_refused_as_by_its_own(
    tmp_path, kind, name, n
):
    space, shape = SHAPES[kind]
    wanted = re.escape(str((n, *space.shape)))
    space, frames = as_part(np.zeros((n, *shape), space.dtype), space, name)
    with pytest.raises(ValueError, match="broadcast"):
        added(None, space, frames, n, ReplayBuffer if name is None else DictReplayBuffer)
    text = rf"{name or 'frame'}: expected observations of shape {wanted}, .* order of .* wrappers"
    with pytest.raises(mmreplay.SchemaError, match=text):
        added(tmp_path / "s.zarr", space, frames, n)
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (IMAGES, (3, 4, 5)),
        (spaces.Discrete(5), ()),
        (spaces.MultiDiscrete([3, 4]), (2,)),
        (spaces.MultiBinary((2, 3)), (2, 3)),
        (spaces.Box(-9, 9, (2,), np.float64), (2,)),
    ],
)
def test_observations_of_the_space_s_shape_are_those_of_its_own(tmp_path, space, shape, n):
    frames = np.random.default_rng(0).integers(0, 3, (n, *shape)).astype(space.dtype)
    forms = [frames, frames[None]] if shape else [frames]  # numpy drops axes of 1 at the front
    forms += [frames[0]] * (n == 1)
    for number, form in enumerate(forms):
        buffer = added(tmp_path / f"{number}.zarr", space, form, n)
        assert_same(buffer, own=added(None, space, form, n, ReplayBuffer))


def test_one_observation_is_not_that_of_all_environments(tmp_path):
    frames = np.zeros((1, 3), "float32")
    with pytest.raises(mmreplay.SchemaError, match=r"\(4, 3\), .* go on with 4 environments, or"):
        added(tmp_path / "s.zarr", NUMBERS, frames, 4)


def test_empty_buffer_and_one_for_other_environments_say_so(tmp_path):
    space, actions = spaces.Box(0, 255, (2, 6, 6), np.uint8), spaces.Discrete(3)
    with pytest.raises(mmreplay.SchemaError, match="optimize_memory_usage: expected False"):
        DiskReplayBuffer(60, space, actions, optimize_memory_usage=True, path=tmp_path / "s.zarr")
    buffer = DiskReplayBuffer(60, space, actions, path=tmp_path / "empty.zarr")
    with pytest.raises(mmreplay.EmptyBufferError, match="no transition yet"):
        buffer._get_samples(np.zeros(1, np.int64))
    filled(tmp_path / "s.zarr", 5)[0].close()
    with pytest.raises(mmreplay.SchemaError):
        DiskReplayBuffer(60, spaces.Box(0, 1, (7,)), actions, path=tmp_path / "s.zarr")
    with pytest.raises(mmreplay.SchemaError, match="not emptied"):
        buffer.reset()


# ---------------------------------------------------------------- where the store is


def trained(path):
    model = SAC(
        "MlpPolicy", environments(Vectors, 2), buffer_size=200, learning_starts=10**9,
        replay_buffer_class=DiskReplayBuffer, replay_buffer_kwargs={"path": path}, device="cpu",
    )  # fmt: skip
    model.learn(60)
    return model


def test_relative_path_is_warned_of_where_there_is_no_store_as_a_model_keeps_it(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with pytest.warns(UserWarning, match=r"'s\.zarr': there is no store at .*an absolute path"):
        model = trained("s.zarr")
    model.save("model.zip")
    model.replay_buffer.close()
    env = environments(Vectors, 2)
    assert SAC.load("model.zip", env=env).replay_buffer.size() == 30  # and no warning
    monkeypatch.chdir("elsewhere")
    with pytest.warns(UserWarning, match=rf"there is no store at {tmp_path}/elsewhere/s\.zarr"):
        assert SAC.load("../model.zip", env=env).replay_buffer.size() == 0
    moved = SAC.load("../model.zip", env=env, replay_buffer_kwargs={"path": "../s.zarr"})
    assert moved.replay_buffer.size() == 30


def test_buffer_whose_store_is_gone_says_where_it_was_and_what_to_do(tmp_path):
    model = trained(tmp_path / "s.zarr")
    model.save(tmp_path / "model.zip")
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    model.replay_buffer.close()
    (tmp_path / "s.zarr").rename(tmp_path / "moved.zarr")
    gone = rf"{tmp_path}/s\.zarr: .*replay_buffer_kwargs=\{{\.\.\., 'path': its new path\}}"
    with (
        (tmp_path / "buffer.pkl").open("rb") as file,  # of a path it leaves one open
        pytest.raises(mmreplay.StoreNotFoundError, match=gone),
    ):
        model.load_replay_buffer(file)
    with pytest.raises(mmreplay.StoreNotFoundError, match=gone):
        model.learn(2, reset_num_timesteps=False)  # with the buffer that it has
    assert not (tmp_path / "s.zarr").exists()
    kwargs = {"path": tmp_path / "moved.zarr"}
    env = model.get_env()
    model = SAC.load(tmp_path / "model.zip", env=env, replay_buffer_kwargs=kwargs)
    assert model.replay_buffer.size() == 30
    model.learn(2, reset_num_timesteps=False)
    assert model.replay_buffer.size() == 31
