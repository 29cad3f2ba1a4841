"""A relabelled step is the one that the environment makes when it is given that goal."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

import mmreplay

LIMIT = 25


class Reach(gymnasium.Env):
    """A point that walks to a goal; observations, rewards and ends as of a Gymnasium-Robotics task."""

    def __init__(self):
        goal = Box(-9, 9, (2,), np.float64)
        self.observation_space = Dict(
            {
                "observation": Box(-9, 9, (4,), np.float64),
                "achieved_goal": goal,
                "desired_goal": goal,
            }
        )
        self.action_space = Box(-1, 1, (2,), np.float32)
        self.goal = self.place = self.last = np.zeros(2)
        self.n_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal = self.np_random.uniform(-2, 2, 2)
        self.place = self.last = self.np_random.uniform(-2, 2, 2)
        self.n_steps = 0
        return self.seen(), {}

    def step(self, action):
        self.last, self.place = self.place, np.clip(self.place + action / 2, -9, 9)
        self.n_steps += 1
        reward = self.compute_reward(self.place, self.goal, {})
        terminated = self.compute_terminated(self.place, self.goal, {})
        return self.seen(), float(reward), bool(terminated), self.n_steps == LIMIT, {}

    def seen(self):
        state = np.concatenate((self.place, self.last))
        return {"observation": state, "achieved_goal": self.place, "desired_goal": self.goal}

    def compute_reward(self, achieved_goal, desired_goal, info):
        near = np.linalg.norm(achieved_goal - desired_goal, axis=-1) <= 0.45
        return near.astype(np.float64)

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return self.compute_reward(achieved_goal, desired_goal, info) > 0


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    out = tmp_path_factory.mktemp("goals") / "reach.zarr"
    mmreplay.record(Reach(), out, 600, seed=3)
    return out


def walk(env, observation, goal, actions):
    """What the environment gives for some actions, from a place and with a goal."""
    env.place, env.last = np.split(observation, 2)
    env.goal, env.n_steps = goal, -1000
    total, steps, terminated = 0.0, 0, False
    for action in actions:
        seen, reward, terminated, _, _ = env.step(action)
        total += 0.9**steps * reward
        steps += 1
        if terminated:
            break
    return seen, total, 0.9**steps * (not terminated), steps


@pytest.mark.parametrize("n_step", [1, 4])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_relabelled_steps_are_those_of_an_environment_with_that_goal(path, strategy, n_step):
    env = Reach()
    with mmreplay.load(path, stack=None, n_step=n_step, gamma=0.9) as data:
        hindsight = mmreplay.Hindsight(
            data,
            env.unwrapped.compute_reward,
            strategy,
            probability=0.8,
            terminal=env.unwrapped.compute_terminated,
        )
        batch = hindsight.sample(300)
        ends = {}
        for one in data.episodes:
            ends |= dict.fromkeys(range(one["id"], one["id"] + one["length"]), one)
        actions = data.store.actions[:]
    relabelled = batch.extras["hindsight"] >= 0
    assert 0.6 < relabelled.mean() < 0.95
    assert 0.05 < (batch.reward[relabelled] > 0).mean() < 0.95
    for place, row in enumerate(batch.id.tolist()):
        episode = ends[row]
        stop = int(episode["id"] + episode["length"])
        goal = batch.observation["desired_goal"][place]
        seen, total, discount, _ = walk(
            env,
            batch.observation["observation"][place],
            goal,
            actions[row : min(row + n_step, stop)],
        )
        assert batch.reward[place] == np.float32(total)
        assert batch.discount[place] == np.float32(discount)
        for key, found in batch.next_observation.items():
            assert np.array_equal(found[place], seen[key]), key


def test_most_episodes_fail_and_hindsight_finds_success_in_them(path):
    with mmreplay.load(path, stack=None) as data:
        stored = data.transitions(data.ids)
        hindsight = mmreplay.Hindsight(data, Reach().compute_reward, probability=1)
        relabelled = hindsight.relabel(data.ids)
    assert stored.reward.mean() < 0.05
    assert relabelled.reward.mean() > 2 * stored.reward.mean()
