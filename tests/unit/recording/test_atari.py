"""Atari games: the same frames from one environment and from several, and the true final ones."""

import copy
import subprocess
import sys

import ale_py
import gymnasium
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium.wrappers import AtariPreprocessing

import mmreplay
from mmreplay.recording import atari
from mmreplay.recording.environments import resolve_id
from mmreplay.recording.recorder import record

gymnasium.register_envs(ale_py)


class Policy:
    """Random, from the environment's own seed; it can be used by hand as well."""

    def __init__(self, observation_space, action_space, seed):
        assert observation_space.shape == (84, 84)
        self.space = copy.deepcopy(action_space)
        self.space.seed(seed)

    def __call__(self, observation):
        assert observation.shape == (84, 84)
        return self.space.sample()


def frames_of(lane):
    return lane.frames[:]


def columns(lane):
    return [lane.frames[:], lane.actions[:], lane.rewards[:], lane.non_terminals[:], lane.resets[:]]


def assert_same_rows(some, others):
    """Two lanes are equal as far as the shorter one goes, whose last row is a final one."""
    rows = min(len(some[0]), len(others[0])) - 1
    for one, other in zip(some, others, strict=True):
        assert np.array_equal(one[:rows], other[:rows])
    assert np.array_equal(some[0][rows], others[0][rows])


def by_hand(env, policy, seed, steps):
    """The columns of one environment, stepped by hand."""
    frames, actions, rewards, non_terminals, resets = [], [], [], [], []
    observation, _ = env.reset(seed=seed)
    frames.append(observation)
    resets.append(1)
    for _ in range(steps):
        action = policy(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        frames.append(observation)
        actions.append(action)
        rewards.append(reward)
        non_terminals.append(0 if terminated else 1)
        resets.append(0)
        if terminated or truncated:
            actions.append(0)
            rewards.append(0)
            non_terminals.append(0 if terminated else 1)
            observation, _ = env.reset()
            frames.append(observation)
            resets.append(1)
    return [np.array(column) for column in (frames, actions, rewards, non_terminals, resets)]


@pytest.mark.parametrize(("game", "steps"), [("Breakout", 400), ("MsPacman", 250)])
def test_without_random_starts_one_and_several_environments_record_the_same(
    game, steps, tmp_path, monkeypatch
):
    monkeypatch.setattr(atari, "NOOP_MAX", 0)
    env_id = f"{game}NoFrameskip-v4"
    record(env_id, tmp_path / "many", 2 * steps, envs=2, policy=Policy, seed=3)
    with mmreplay.open(tmp_path / "many") as many:
        assert many.episodes["terminated"].any() == (game == "Breakout")
        for i, lane in enumerate(many.lanes):
            record(env_id, tmp_path / f"one-{i}", steps, policy=Policy, seed=3 + i)
            with mmreplay.open(tmp_path / f"one-{i}") as one:
                assert_same_rows(columns(lane), columns(one))


def test_one_environment_is_gymnasiums_atari_preprocessing(tmp_path):
    record("ALE/Breakout-v5", tmp_path / "s", 400, policy=Policy, seed=4)
    env = AtariPreprocessing(gymnasium.make("ALE/Breakout-v5", frameskip=1))
    policy = Policy(env.observation_space, env.action_space, 4)
    with mmreplay.open(tmp_path / "s") as store:
        assert store.episodes["terminated"].any()
        assert_same_rows(columns(store), by_hand(env, policy, 4, 400))


class OneLane:
    """One lane of ale-py's vector environment, in another autoreset mode than the recorder's."""

    def __init__(self, game):
        self.env = AtariVectorEnv(
            game,
            1,
            stack_num=1,
            autoreset_mode="SameStep",
            repeat_action_probability=0.25,
            use_fire_reset=False,
            reward_clipping=False,
        )
        self.next = None

    def reset(self, seed=None):
        if self.next is None:
            return self.env.reset(seed=seed)[0][0, 0], {}
        return self.next, {}

    def step(self, action):
        frames, rewards, terminated, truncated, infos = self.env.step(np.array([action]))
        self.next = frames[0, 0]
        over = terminated[0] or truncated[0]
        frame = infos["final_obs"][0, 0] if over else frames[0, 0]
        return frame, rewards[0], terminated[0], truncated[0], {}


def test_several_environments_are_ale_pys_vector_environment(tmp_path):
    record("ALE/MsPacman-v5", tmp_path / "s", 1000, envs=2, policy=Policy, seed=4)
    space = gymnasium.spaces.Box(0, 255, (84, 84), np.uint8)
    with mmreplay.open(tmp_path / "s") as store:
        assert store.episodes["terminated"].any()
        for i, lane in enumerate(store.lanes):
            policy = Policy(space, gymnasium.spaces.Discrete(9), 4 + i)
            assert_same_rows(columns(lane), by_hand(OneLane("ms_pacman"), policy, 4 + i, 500))
            assert lane.rewards[:].max() >= 10


@pytest.mark.parametrize("envs", [1, 2])
def test_a_truncated_episode_ends_in_its_true_final_frame(envs, tmp_path, monkeypatch):
    monkeypatch.setattr(atari, "NOOP_MAX", 0)
    env_id = "MsPacmanNoFrameskip-v4"
    record(env_id, tmp_path / "long", 110 * envs, envs=envs, policy=Policy, seed=8)
    monkeypatch.setattr(atari, "max_steps", lambda _spec: 100)
    record(env_id, tmp_path / "short", 110 * envs, envs=envs, policy=Policy, seed=8)
    with mmreplay.open(tmp_path / "long") as long, mmreplay.open(tmp_path / "short") as short:
        for true, cut in zip(long.lanes, short.lanes, strict=True):
            assert np.array_equal(frames_of(true)[:101], frames_of(cut)[:101])
            assert np.flatnonzero(cut.resets[:]).tolist() == [0, 101]
            assert cut.non_terminals[:].all()
            assert np.array_equal(frames_of(cut)[101], frames_of(cut)[0])
        assert short.episodes["length"].tolist() == [100, 10] * envs


@pytest.mark.parametrize("envs", [1, 2])
def test_the_preprocessing_is_in_the_store_and_sticky_actions_are_those_of_the_id(envs, tmp_path):
    for env_id, sticky in {"ALE/Pong-v5": 0.25, "PongNoFrameskip-v4": 0.0}.items():
        path = tmp_path / env_id.replace("/", "-")
        record(env_id, path, 4, envs=envs)
        with mmreplay.open(path) as store:
            env = store.info()["env"]
        assert env["id"] == env_id
        assert env["preprocessing"]["repeat_action_probability"] == sticky
        assert env["preprocessing"]["frame_skip"] == 4
        assert env["preprocessing"]["max_steps"] == 27_000
        assert env["runs"][0]["versions"]["ale-py"] == ale_py.__version__


@pytest.mark.parametrize("envs", [1, 2])
def test_a_lost_life_is_terminal_only_where_that_is_asked_for(envs, tmp_path):
    steps = 250 * envs
    record("ALE/Breakout-v5", tmp_path / "a", steps, envs=envs, policy=Policy, seed=2)
    record(
        "ALE/Breakout-v5", tmp_path / "b", steps, envs=envs, policy=Policy, seed=2, life_loss=True
    )
    with mmreplay.open(tmp_path / "a") as a, mmreplay.open(tmp_path / "b") as b:
        for plain, lossy in zip(a.lanes, b.lanes, strict=True):
            assert np.array_equal(frames_of(plain), frames_of(lossy))
            ends = np.count_nonzero(plain.non_terminals[:-1] == 0)
            lost = np.count_nonzero(lossy.non_terminals[:-1] == 0)
            assert lost >= ends + 3
            assert np.array_equal(plain.resets[:], lossy.resets[:])


def test_an_id_registered_with_other_arguments_is_taken_as_it_is():
    assert atari.is_atari(resolve_id("ALE/Breakout-v5")[1])
    assert atari.is_atari(resolve_id("Breakout-v4")[1])
    spec = copy.deepcopy(resolve_id("ALE/Breakout-v5")[1])
    spec.kwargs["obs_type"] = "ram"
    assert not atari.is_atari(spec)
    assert not atari.is_atari(resolve_id("CartPole-v1")[1])


@pytest.mark.parametrize(
    ("missing", "env_id", "message"),
    [
        ("ale_py", "ALE/Breakout-v5", 'Atari games need ale-py: pip install "mmreplay[atari]"'),
        ("ale_py", "NoSuch-v0", '(Atari games need pip install "mmreplay[atari]")'),
        ("cv2", "ALE/Breakout-v5", 'needs OpenCV: pip install "mmreplay[atari]"'),
        ("gymnasium", "CartPole-v1", 'needs gymnasium: pip install "mmreplay[gymnasium]"'),
    ],
)
def test_what_is_not_installed_is_said_with_the_command_that_helps(
    missing, env_id, message, tmp_path
):
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        f"import mmreplay\n"
        f"try:\n    mmreplay.record({env_id!r}, {str(tmp_path / 's')!r}, 1)\n"
        f"except mmreplay.MmreplayError as error:\n    print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert message in result.stdout


def test_ale_pys_own_stacks_are_warned_of(tmp_path):
    envs = AtariVectorEnv("pong", 2)
    with pytest.warns(UserWarning, match="AtariVectorEnv.* stacks of 4 frames"):
        record(envs, tmp_path / "stacks.zarr", 4)
    envs.close()
    envs = AtariVectorEnv("pong", 2, stack_num=1)
    record(envs, tmp_path / "frames.zarr", 4)
    envs.close()
