"""The same environment and seed, through one environment, through a vector environment in each
autoreset mode, and through gymnasium's FrameStackObservation: the same experience.

The oracle is a plain loop over one environment that keeps everything in lists.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation, TimeLimit

import mmreplay
from mmreplay.recording.recorder import record
from mmreplay.writing.env_fields import env_fields

SEED, N_ENVS, STEPS = 11, 3, 400


class Walk(gymnasium.Env):
    """Short episodes of images, which end by themselves or are cut by a limit of twelve steps."""

    observation_space: Any = spaces.Box(0, 255, (6, 5, 3), np.uint8)
    action_space: Any = spaces.Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.look(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        ends = bool(self.np_random.random() < 0.1)
        return self.look(), float(np.sum(action)) + 0.25, ends, False, {}

    def look(self):
        return self.np_random.integers(0, 256, (6, 5, 3), dtype=np.uint8)


class Robot(Walk):
    """A dict in a dict, a tuple, a Discrete part; an action of two numbers."""

    observation_space: Any = spaces.Dict(
        {
            "camera": spaces.Dict({"gray": spaces.Box(0, 255, (6, 5), np.uint8)}),
            "joints": spaces.Tuple([spaces.Box(-10, 10, (2,)), spaces.Discrete(5)]),
        }
    )
    action_space: Any = spaces.Box(-1, 1, (2,), np.float32)

    def look(self):
        image = super().look()
        joints = (image[0, :2, 0].astype(np.float32) / 32, int(image[0, 0, 0]) % 5)
        return {"camera": {"gray": image[..., 0]}, "joints": joints}


MAKERS = {
    "CartPole-v1": lambda: gymnasium.make("CartPole-v1", max_episode_steps=25),
    "Pendulum-v1": lambda: gymnasium.make("Pendulum-v1", max_episode_steps=30),
    "FrozenLake-v1": lambda: gymnasium.make("FrozenLake-v1"),
    "Walk": lambda: TimeLimit(Walk(), 12),
    "Robot": lambda: TimeLimit(Robot(), 12),
}


class Policy:
    """Random, with a stream that goes on only with real steps."""

    def __init__(self, observation_space, action_space, seed):
        self.observation_space = observation_space
        self.space = copy.deepcopy(action_space)
        self.space.seed(seed)

    def __call__(self, observation):
        assert self.observation_space.contains(observation)
        return self.space.sample()


@dataclass
class Rows:
    """What an environment gave, as lists: a step each, and the last observations of episodes."""

    frames: list = field(default_factory=list)
    actions: list = field(default_factory=list)
    rewards: list = field(default_factory=list)
    non_terminals: list = field(default_factory=list)
    resets: list = field(default_factory=list)
    ends: list = field(default_factory=list)
    finals: list = field(default_factory=list)


def by_hand(make, seed, steps):
    """So many steps of one environment, in plain lists."""
    env = make()
    fields = env_fields(env)
    policy = Policy(env.observation_space, env.action_space, seed)
    out = Rows()
    observation, _ = env.reset(seed=seed)
    out.resets.append(1)
    while len(out.frames) < steps:
        action = policy(observation)
        out.frames.append(fields.to_frame(observation))
        observation, reward, terminated, truncated, _ = env.step(action)
        out.actions.append(action)
        out.rewards.append(np.float32(reward))
        out.non_terminals.append(0 if terminated else 1)
        over = terminated or truncated or len(out.frames) == steps  # the recording ends
        out.ends.append(int(over))
        if over:
            out.finals.append(fields.to_frame(observation))
            observation, _ = env.reset()
        out.resets.append(int(over))
    del out.resets[-1]
    return out


def assert_same_frames(found, expected):
    if isinstance(expected[0], dict):
        assert set(found) == set(expected[0])
        for key, column in found.items():
            assert np.array_equal(column, np.stack([frame[key] for frame in expected]))
    else:
        assert np.array_equal(found, np.stack(expected))


def assert_is(store, env, expected):
    """The steps of an environment, column by column, and its episodes' final observations."""
    lane, n = store.lanes[0], store.lanes[0].environments

    def own(column):
        at = (slice(None), *(() if n == 1 else (env,)))
        return column[at][lane.step[at] > 0]

    frames = lane.frames
    is_dict = isinstance(frames, dict)
    assert_same_frames(
        {key: own(one) for key, one in frames.items()} if is_dict else own(frames), expected.frames
    )
    for name in ("actions", "rewards", "non_terminals", "resets", "ends"):
        assert np.array_equal(own(getattr(lane, name)), getattr(expected, name)), name
    numbers = np.flatnonzero(store.episodes["id"] % n == env).tolist()
    finals = [store.trajectory(number).observation for number in numbers]
    last = [{key: rows[-1] for key, rows in one.items()} if is_dict else one[-1] for one in finals]
    assert len(last) == len(expected.finals)
    assert_same_frames(
        {key: np.stack([one[key] for one in last]) for key in last[0]}
        if is_dict
        else np.stack(last),
        expected.finals,
    )


def assert_store_is(path, make, steps, n_envs):
    with mmreplay.open(path) as store:
        assert len(store) == steps
        assert [lane.environments for lane in store.lanes] == [n_envs]
        for env in range(n_envs):
            own = np.count_nonzero(store.ids % n_envs == env)
            assert_is(store, env, by_hand(make, SEED + env, own))
    assert mmreplay.verify(path).findings == []


@pytest.mark.parametrize("name", MAKERS)
def test_one_environment_is_recorded_as_it_is_stepped(name, tmp_path):
    result = record(MAKERS[name], tmp_path / "s", STEPS, policy=Policy, seed=SEED)
    assert (result.steps, result.environments, result.stopped) == (STEPS, 1, False)
    assert_store_is(tmp_path / "s", MAKERS[name], STEPS, 1)


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(
    "name",
    [
        "Walk",
        "Robot",
        *(
            pytest.param(name, marks=pytest.mark.deep(only=True))
            for name in ("CartPole-v1", "Pendulum-v1", "FrozenLake-v1")
        ),
    ],
)
def test_every_autoreset_mode_records_the_same_as_one_environment(name, mode, tmp_path):
    def make_vector():
        # In place: the hardest case, one array is handed out again and again.
        return SyncVectorEnv([MAKERS[name]] * N_ENVS, autoreset_mode=mode, copy=False)

    result = record(make_vector, tmp_path / "s", STEPS, policy=Policy, seed=SEED)
    assert (result.steps, result.environments, result.stopped) == (STEPS, N_ENVS, False)
    assert_store_is(tmp_path / "s", MAKERS[name], STEPS, N_ENVS)


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
def test_environments_in_processes_too(mode, tmp_path):
    env = AsyncVectorEnv([MAKERS["CartPole-v1"]] * 2, autoreset_mode=mode)
    try:
        record(env, tmp_path / "s", 150, policy=Policy, seed=SEED)
    finally:
        env.close()
    assert_store_is(tmp_path / "s", MAKERS["CartPole-v1"], 150, 2)


@pytest.mark.parametrize("name", ["Walk"])
@pytest.mark.parametrize("mode", [None, *AutoresetMode], ids=lambda mode: mode and mode.value)
def test_stacks_are_those_of_frame_stack_observation(name, mode, tmp_path):
    make = MAKERS[name]
    n_envs = 1 if mode is None else N_ENVS

    def make_vector():
        return make() if mode is None else SyncVectorEnv([make] * n_envs, autoreset_mode=mode)

    record(make_vector, tmp_path / "s", STEPS, policy=Policy, seed=SEED)
    with mmreplay.open(tmp_path / "s") as store:
        for i in range(n_envs):
            stacked = FrameStackObservation(make(), 4, padding_type="reset")
            plain = make()
            policy = Policy(plain.observation_space, plain.action_space, SEED + i)
            ids = store.ids[store.ids % n_envs == i].tolist()
            assert len(ids) > STEPS / n_envs / 2
            stack, _ = stacked.reset(seed=SEED + i)
            for number, one in enumerate(ids):
                stack_before = stack
                stack, reward, terminated, truncated, _ = stacked.step(policy(stack[-1]))
                batch = store.transitions([one], stack=4, padding="reset")
                assert np.array_equal(batch.observation[0], stack_before), number
                assert np.array_equal(batch.next_observation[0], stack), number
                assert batch.reward[0] == np.float32(reward)
                assert batch.non_terminal[0] == (not terminated)
                if terminated or truncated:
                    stack, _ = stacked.reset()
