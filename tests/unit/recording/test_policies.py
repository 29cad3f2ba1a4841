"""Policies: the calls they get, and the messages about those that do not work."""

import numpy as np
import pytest
from gymnasium import spaces

from mmreplay import MmreplayError
from mmreplay.recording.policies import Actor, load_policy

OBSERVATIONS = spaces.Box(-10, 10, (2,), np.float32)
ALL = np.ones(3, dtype=np.bool_)


def actor(policy, action_space, n_lanes=3):
    return Actor(policy, OBSERVATIONS, action_space, 5, n_lanes)


def observations(n_lanes=3):
    return np.arange(2 * n_lanes, dtype=np.float32).reshape(n_lanes, 2)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_function_gets_one_observation_of_one_environment():
    seen = []

    def policy(observation):
        seen.append(observation)
        return len(seen) % 2

    actions = actor(policy, spaces.Discrete(2)).act(observations(), None)
    assert [one.tolist() for one in seen] == [[0, 1], [2, 3], [4, 5]]
    assert actions.tolist() == [1, 0, 1]
    assert actions.dtype == np.int64


def test_dict_and_tuple_observations_are_split_by_lane():
    seen = []

    def policy(observation):
        seen.append(observation)
        return 0

    space = spaces.Dict({"a": OBSERVATIONS, "b": spaces.Tuple([spaces.Discrete(9)])})
    chooses = Actor(policy, space, spaces.Discrete(2), 0, 2)
    chooses.act({"a": observations(2), "b": (np.array([7, 8]),)}, None)
    assert seen[1]["a"].tolist() == [2, 3]
    assert seen[1]["b"] == (8,)


def test_a_class_is_made_once_for_each_environment_with_its_own_seed_and_is_reset_by_episode():
    made = []

    class Policy:
        def __init__(self, observation_space, action_space, seed):
            assert observation_space == OBSERVATIONS
            assert action_space == spaces.Discrete(9)
            self.seed, self.n_resets = seed, 0
            made.append(self)

        def reset(self):
            self.n_resets += 1

        def __call__(self, observation):
            return self.seed

    chooses = actor(Policy, spaces.Discrete(9))
    assert [one.seed for one in made] == [5, 6, 7]
    chooses.start(ALL)
    chooses.start(np.array([False, True, False]))
    assert [one.n_resets for one in made] == [1, 2, 1]
    assert chooses.act(observations(), None).tolist() == [5, 6, 7]


def test_a_batched_policy_gets_all_observations_at_once():
    starts = []

    class Policy:
        batched = True

        def __init__(self, observation_space, action_space, seed):
            self.seed = seed

        def reset(self, mask):
            starts.append(mask.tolist())

        def __call__(self, observations):
            return observations[:, 0] > 1

    chooses = actor(Policy, spaces.Discrete(2))
    chooses.start(ALL)
    assert starts == [[True, True, True]]
    assert chooses.act(observations(), None).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=-1),
        spaces.Box(-1, 1, (2,), np.float32),
        spaces.MultiDiscrete([3, 2]),
        spaces.MultiBinary(3),
    ],
)
def test_the_random_policy_draws_each_lane_from_its_own_seed(space):
    together = actor(None, space)
    alone = [Actor(None, OBSERVATIONS, space, 5 + i, 1) for i in range(3)]
    for step in range(20):
        ignored = np.array([False, step % 3 == 1, False])
        actions = together.act(observations(), ignored)
        for i in np.flatnonzero(~ignored):
            one = alone[i].act(observations(1), None)[0]
            assert np.array_equal(actions[i], one)
            assert space.contains(actions[i])


@pytest.mark.parametrize(
    ("returned", "space", "message"),
    [
        (2, spaces.Discrete(2), "returned 2, expected 0 to 1"),
        (np.int64(-1), spaces.Discrete(2), "expected 0 to 1"),
        (0.5, spaces.Discrete(2), "expected whole numbers"),
        ("left", spaces.Discrete(2), "returned 'left', expected an action of shape"),
        (None, spaces.Discrete(2), "returned None"),
        ((np.zeros(2), None), spaces.Box(-1, 1, (2,)), "expected an action of shape"),
        ([1], spaces.Discrete(2), r"returned an array of shape \(1,\)"),
        ([1.0], spaces.Box(-1, 1, (2,)), r"expected an action of shape \(2,\) and dtype float32"),
    ],
)
def test_invalid_actions_are_refused(returned, space, message):
    with pytest.raises(MmreplayError, match=message):
        actor(lambda _: returned, space).act(observations(), None)


def test_module_and_callable_are_imported(folder):
    (folder / "mypolicy.py").write_text(
        "class A:\n    @staticmethod\n    def f(o): return 1\nx = 3\n"
    )
    name, found = load_policy("mypolicy:A.f")
    assert name == "mypolicy:A.f"
    assert found is not None
    assert found(0) == 1
    assert load_policy("random") == ("random", None)
    assert load_policy(lambda _: 0)[0].endswith("<lambda>")
    for policy, message in {
        "mypolicy": "expected 'random', 'module:callable' or",
        ":f": "expected 'random', 'module:callable' or",
        "nosuchmodule:f": "loading it raised ModuleNotFoundError",
        "mypolicy.sub:f": "loading it raised ModuleNotFoundError",
        "mypolicy:B": "has no attribute 'B'",
        "mypolicy:A.g": "has no attribute 'g'",
        "mypolicy:x": "expected a callable policy\\(observation\\), found an object of type int",
    }.items():
        with pytest.raises(MmreplayError, match=message):
            load_policy(policy)
