"""How `record` gets its environment: by id, from a factory, or as it is given."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv

from mmreplay import FrameStack, MmreplayError, RecordExperience, ReplayBuffer
from mmreplay.recording.environments import resolve_id
from mmreplay.recording.recorder import record
from tests.support.counter_env import Counter, metadata

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_only_environments_made_by_record_are_closed(tmp_path):
    made = []

    def factory():
        made.append(Counter())
        return made[-1]

    record(factory, tmp_path / "a", 3, envs=2)
    assert [env.closed for env in made] == [True, True]
    env = Counter()
    record(env, tmp_path / "b", 3)
    assert not env.closed


def test_an_error_in_an_environment_factory_is_reported(tmp_path):
    def make():
        raise OSError("no display")

    with pytest.raises(MmreplayError, match=r"^the environment raised OSError: no display"):
        record(make, tmp_path / "s", 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": "NoSuchThing-v0", "steps": 1}, "NoSuchThing"),
        ({"env": "nosuchmodule:Thing-v0", "steps": 1}, "cannot import nosuchmodule"),
        ({"env": "CartPole-v1", "steps": 0}, "steps: expected a whole number, 1 or more; found 0"),
        (
            {"env": "CartPole-v1", "steps": 1, "envs": 0},
            "envs: expected a whole number, 1 to 65,536",
        ),
        ({"env": "CartPole-v1", "steps": 1, "envs": "2"}, "^envs: expected .*, or None; found '2'"),
        ({"env": "CartPole-v1", "steps": 1, "seed": -1}, "seed: expected a whole number, 0 to"),
        ({"env": Counter(), "steps": 1, "envs": 2}, "found 2, but Counter has 1"),
        ({"env": "CartPole-v1", "steps": 1, "policy": "nosuchmodule:f"}, "No module"),
        ({"env": "CartPole-v1", "steps": 1, "policy": 5}, "^policy: expected .*, found 5"),
        ({"env": "CartPole-v1", "steps": 1, "stop": 5}, "^stop: expected .*, found 5"),
    ],
)
def test_wrong_arguments_are_refused_and_leave_no_store(arguments, message, tmp_path):
    with pytest.raises(MmreplayError, match=message):
        record(path=tmp_path / "s", **arguments)
    assert not (tmp_path / "s").exists()


def test_an_unknown_id_names_the_module_that_it_needs():
    with pytest.raises(MmreplayError, match="the module that registers them: MODULE:MyGrid-v0"):
        resolve_id("MyGrid-v0")


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("meanings", "expected"), [(["a", "b"], ["a", "b"]), (("a",), ["a"]), ([1], ["1"])]
)
def test_names_of_actions_are_kept_where_the_environment_has_some(tmp_path, n, meanings, expected):
    class Named(Counter):
        def get_action_meanings(self):
            return meanings

    record(lambda: Named(5), tmp_path / "x.zarr", 8, envs=n)
    assert metadata(tmp_path / "x.zarr").get("action_names") == expected


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Discrete(4), {"n_actions": 4}),
        (spaces.Discrete(3, start=-1), {"n_actions": 3, "action_start": -1}),
        (spaces.MultiDiscrete([2, 3]), {}),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
def test_the_number_of_actions_is_kept_whichever_occur(tmp_path, space, expected, n):
    class Chosen(Counter):
        def __init__(self):
            super().__init__(5)
            self.action_space = space

    def vector():
        return gymnasium.vector.SyncVectorEnv([Chosen] * n)

    record(Chosen, tmp_path / "a.zarr", 8, envs=n)
    ReplayBuffer(tmp_path / "b.zarr", env=Chosen() if n == 1 else vector()).close()
    env = RecordExperience(Chosen() if n == 1 else vector(), tmp_path / "c.zarr")
    env.reset()
    env.close()
    for path in sorted(tmp_path.iterdir()):
        about = metadata(path)
        assert {
            key: about[key] for key in ("n_actions", "action_start") if key in about
        } == expected


BOX = spaces.Box(-1, np.array([1, 2], np.float32), dtype=np.float32)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (BOX, {"dtype": "float32", "shape": [2], "low": -1.0, "high": [1.0, 2.0]}),
        (spaces.Discrete(3, start=-1), {"dtype": "int64", "start": -1, "n": 3}),
        (spaces.MultiDiscrete([2, 3]), {"dtype": "int64", "nvec": [2, 3], "start": [0, 0]}),
        (spaces.MultiBinary((2, 3)), {"n": [2, 3]}),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
def test_a_store_has_the_spaces_of_one_environment(tmp_path, space, expected, n):
    class Chosen(Counter):
        def __init__(self):
            super().__init__(5)
            self.action_space = space
            self.observation_space = spaces.Dict({"a": spaces.Tuple([space])})

    env = Chosen() if n == 1 else SyncVectorEnv([Chosen] * n)
    ReplayBuffer(tmp_path / "a.zarr", env=env).close()
    about, one = metadata(tmp_path / "a.zarr"), {"type": type(space).__name__, **expected}
    assert json.loads(about["action_space"]) == one
    in_tuple = {"type": "Tuple", "subspaces": [one]}
    assert json.loads(about["observation_space"]) == {"type": "Dict", "subspaces": {"a": in_tuple}}
    assert "env_spec" not in about


class Bare(gymnasium.Wrapper):
    """A wrapper that does not keep its arguments."""


def made(**options):
    return gymnasium.make("CartPole-v1", **options)


@pytest.mark.parametrize(
    ("make", "has_spec"),
    [
        (lambda: made(max_episode_steps=30), True),
        (lambda: gymnasium.wrappers.ClipReward(made(), -1, 1), True),
        (lambda: gymnasium.wrappers.TransformReward(made(), abs), False),
        (lambda: Bare(made()), False),
        (lambda: FrameStack(made(), 3), True),
        (lambda: SyncVectorEnv([lambda: made(max_episode_steps=30)] * 2), True),
        (lambda: gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync"), True),
        (lambda: gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point"), 0),
        (lambda: gymnasium.wrappers.vector.ClipReward(SyncVectorEnv([made]), -1, 1), False),
    ],
)
def test_gymnasium_makes_the_environment_of_a_store_again_where_it_can(tmp_path, make, has_spec):
    env = make()
    ReplayBuffer(tmp_path / "a.zarr", env=env).close()
    text = metadata(tmp_path / "a.zarr").get("env_spec")
    assert (text is not None) == has_spec
    if text is not None:
        one = env.envs[0] if isinstance(env, SyncVectorEnv) else env
        assert gymnasium.make(EnvSpec.from_json(text)).spec == one.spec
    env.close()


def test_a_specification_of_more_than_100_kb_is_left_out(tmp_path):
    env = made()
    env.spec.kwargs["note"] = "x" * 100_000
    ReplayBuffer(tmp_path / "a.zarr", env=env).close()
    assert {"env_spec", "action_space"} & {*metadata(tmp_path / "a.zarr")} == {"action_space"}


def test_a_store_says_for_which_environment_it_was_made_and_metadata_is_added(tmp_path):
    envs = gymnasium.make_vec("CartPole-v1", 3)
    path = tmp_path / "store.zarr"
    ReplayBuffer(path, env=envs).close()
    first = metadata(path)
    assert (first["id"], first["n_envs"]) == ("CartPole-v1", 3)
    ReplayBuffer(path, env=envs, metadata={"run": 7}).close()
    ReplayBuffer(path, env=envs).close()
    assert metadata(path) == {**first, "run": 7}


def test_a_vector_environment_without_an_id_has_that_of_its_first(tmp_path):
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    ReplayBuffer(tmp_path / "store.zarr", env=envs).close()
    assert metadata(tmp_path / "store.zarr")["id"] == "CartPole-v1"
