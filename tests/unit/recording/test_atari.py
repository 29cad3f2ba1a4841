"""Atari games: the same frames from one environment and from several, and the true final ones."""

import copy

import ale_py
import gymnasium
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

import mmreplay
from mmreplay.recording import atari
from mmreplay.recording.environments import resolve_id
from mmreplay.recording.recorder import record
from tests.support.writers import rows_of

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


def columns(store, env=0):
    """Frames, actions, rewards, flags and resets of one environment, T + 1 rows an episode."""
    return list(vars(rows_of(store, env)).values())


def assert_same_rows(some, others):
    """Two are equal as far as the shorter one goes, whose last row is a final observation."""
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


STEPS = 200  # of each environment, in which a random player loses all its lives


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The path of a game of Breakout, recorded once: `recorded(env_id, envs, seed, noop_max)`."""
    paths = {}

    def play(env_id, envs, seed, noop_max=atari.NOOP_MAX):
        key = (env_id, envs, seed, noop_max)
        if key not in paths:
            paths[key] = tmp_path_factory.mktemp("game") / "s"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(atari, "NOOP_MAX", noop_max)
                record(env_id, paths[key], STEPS * envs, envs=envs, policy=Policy, seed=seed)
        return paths[key]

    return play


@pytest.fixture
def game(recorded):
    """With sticky actions and random starts, from as many environments: `game(envs)`."""
    return lambda envs: recorded("ALE/Breakout-v5", envs, 4)


@pytest.fixture
def steady_game(recorded):
    """Without either, so that one environment and several play the same."""
    return lambda envs, seed: recorded("BreakoutNoFrameskip-v4", envs, seed, 0)


def test_without_random_starts_one_and_several_environments_record_the_same(steady_game):
    with mmreplay.open(steady_game(2, 3)) as many, mmreplay.open(steady_game(1, 4)) as one:
        assert many.episodes["terminated"].any()
        assert many.episodes["return"].max() >= 1
        assert_same_rows(columns(many, 1), columns(one))


def test_one_environment_is_gymnasiums_preprocessing_and_its_stacks(recorded):
    single = AtariPreprocessing(gymnasium.make("ALE/Breakout-v5", frameskip=1))
    env = FrameStackObservation(single, 4)
    with mmreplay.open(recorded("ALE/Breakout-v5", 1, 8)) as store:
        batch = store.transitions(store.ids, stack=4)
    rewards, non_terminals = [], []
    observation, _ = env.reset(seed=8)
    for n, action in enumerate(batch.action):
        assert np.array_equal(batch.observation[n], observation)
        observation, reward, terminated, _, _ = env.step(action)
        assert np.array_equal(batch.next_observation[n], observation)
        rewards.append(reward)
        non_terminals.append(not terminated)
        if terminated:
            observation, _ = env.reset()
    assert batch.reward.tolist() == rewards
    assert batch.non_terminal.tolist() == non_terminals
    assert sum(rewards) == 2
    assert non_terminals.count(False) == 1


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


def test_several_environments_are_ale_pys_vector_environment(game):
    space = gymnasium.spaces.Box(0, 255, (84, 84), np.uint8)
    policy = Policy(space, gymnasium.spaces.Discrete(4), 5)
    with mmreplay.open(game(2)) as store:
        played = columns(store, 1)
    assert_same_rows(played, by_hand(OneLane("breakout"), policy, 5, STEPS))
    assert (played[3][:-1] == 0).any()  # a terminated episode


@pytest.mark.parametrize("envs", [1, 2])
def test_a_truncated_episode_ends_in_its_true_final_frame(envs, steady_game, tmp_path, monkeypatch):
    seed = 5 - envs
    whole = steady_game(envs, seed)  # before what follows applies to it
    monkeypatch.setattr(atari, "NOOP_MAX", 0)
    monkeypatch.setattr(atari, "max_steps", lambda _spec: 40)
    record("BreakoutNoFrameskip-v4", tmp_path / "s", 50 * envs, envs=envs, policy=Policy, seed=seed)
    with mmreplay.open(whole) as long, mmreplay.open(tmp_path / "s") as short:
        for env in range(envs):
            true = columns(long, env)[0]
            frames, _, _, flags, resets = columns(short, env)
            assert np.array_equal(true[:41], frames[:41])
            assert np.flatnonzero(resets).tolist() == [0, 41]
            assert flags.all()
            assert np.array_equal(frames[41], frames[0])
        assert sorted(short.episodes["length"].tolist()) == [10] * envs + [40] * envs


def test_the_store_names_the_preprocessing_and_the_sticky_actions_of_the_id(game, steady_game):
    for path, env_id, sticky in (
        (game(2), "ALE/Breakout-v5", 0.25),
        (steady_game(1, 4), "BreakoutNoFrameskip-v4", 0.0),
    ):
        with mmreplay.open(path) as store:
            env = store.info()["env"]
        assert env["id"] == env_id
        assert env["action_names"] == ["NOOP", "FIRE", "RIGHT", "LEFT"]
        assert env["preprocessing"]["repeat_action_probability"] == sticky
        assert env["preprocessing"]["frame_skip"] == 4
        assert env["preprocessing"]["max_steps"] == 27_000
        assert env["runs"][0]["versions"]["ale-py"] == ale_py.__version__


def test_gymnasium_alone_makes_the_recorded_game_again(game, steady_game):
    one = steady_game(1, 4)
    for path in (one, game(2)):
        with mmreplay.open(path) as store:
            about = store.info()["env"]
            frames = store.trajectory(0).observation[:3]
        env = gymnasium.make(EnvSpec.from_json(about["env_spec"]))
        assert [type(layer).__name__ for layer in (env, env.env)] == [
            "TimeLimit",
            "AtariPreprocessing",
        ]
        assert (env.observation_space.shape, env.action_space.n) == ((84, 84), about["n_actions"])
        if path == one:
            assert np.array_equal(env.reset(seed=about["runs"][0]["seed"])[0], frames[0])
        env.close()


def test_a_lost_life_is_terminal_only_on_request(game, tmp_path):
    envs = 2
    record(
        "ALE/Breakout-v5",
        tmp_path / "s",
        150 * envs,
        envs=envs,
        policy=Policy,
        seed=4,
        life_loss=True,
    )
    with mmreplay.open(game(envs)) as a, mmreplay.open(tmp_path / "s") as b:
        for env in range(envs):
            plain, lossy = columns(a, env), columns(b, env)
            rows = len(lossy[0])
            assert np.array_equal(plain[0][:rows], lossy[0])
            ends = np.count_nonzero(plain[3][: rows - 1] == 0)
            lost = np.count_nonzero(lossy[3][:-1] == 0)
            assert lost >= ends + 3
            assert np.array_equal(plain[4][:rows], lossy[4])


def test_an_id_registered_with_other_arguments_is_taken_as_it_is():
    assert atari.is_atari(resolve_id("ALE/Breakout-v5")[1])
    assert atari.is_atari(resolve_id("Breakout-v4")[1])
    spec = copy.deepcopy(resolve_id("ALE/Breakout-v5")[1])
    spec.kwargs["obs_type"] = "ram"
    assert not atari.is_atari(spec)
    assert not atari.is_atari(resolve_id("CartPole-v1")[1])


MISSING = """
import sys
import mmreplay

for missing, env_id in (("gymnasium", "CartPole-v1"), ("ale_py", "ALE/Breakout-v5"),
                        ("ale_py", "NoSuch-v0"), ("cv2", "ALE/Breakout-v5")):
    sys.modules[missing] = None
    try:
        mmreplay.record(env_id, sys.argv[1], 1)
    except mmreplay.MmreplayError as error:
        print(" ".join(str(error).split()))
    del sys.modules[missing]
"""


def test_a_missing_package_is_reported_with_the_command_that_installs_it(child, tmp_path):
    messages = child(MISSING, tmp_path / "s").splitlines()
    expected = (
        'needs gymnasium: pip install "mmreplay[gymnasium]"',
        'Atari games need ale-py: pip install "mmreplay[atari]"',
        '(Atari games need pip install "mmreplay[atari]")',
        'needs OpenCV: pip install "mmreplay[atari]"',
    )
    for message, text in zip(messages, expected, strict=True):
        assert text in message


def test_stacks_made_by_ale_py_give_a_warning(tmp_path):
    envs = AtariVectorEnv("pong", 1)
    with pytest.warns(UserWarning, match=r"stacks of 4 frames.*without stacks \(stack_num=1\)"):
        record(envs, tmp_path / "stacks.zarr", 4)
    envs.close()


def test_a_recording_goes_on_in_a_loop_with_ale_pys_vector_environment(tmp_path):
    """Stacks of one are frames, also the final ones in same-step mode."""
    record("ALE/Pong-v5", tmp_path / "s.zarr", 6, envs=2)
    envs = gymnasium.make_vec(
        "ALE/Pong-v5",
        num_envs=2,
        stack_num=1,
        autoreset_mode="SameStep",
        max_num_frames_per_episode=24,  # six steps, so that episodes end within these
    )
    with mmreplay.ReplayBuffer(tmp_path / "s.zarr") as buffer:
        env = mmreplay.RecordExperience(envs, buffer)
        env.reset(seed=0)
        ends = 0
        for _ in range(9):
            seen, _, terminated, truncated, _ = env.step(np.zeros(2, np.int64))
            ends += int((terminated | truncated).sum())
        assert ends > 0
        assert buffer.sample(2).observation.shape == (2, 4, 84, 84)
    env.close()
    with mmreplay.open(tmp_path / "s.zarr") as store:
        assert store.frames[-1].tobytes() == seen.tobytes()
