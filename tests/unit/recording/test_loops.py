"""The loops that step environments: what is recorded of an episode, and what an error leaves."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import mmreplay
from mmreplay import MmreplayError, SchemaError
from mmreplay.recording.recorder import record
from tests.support.counter_env import Counter

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.mark.parametrize("vector", [False, True])
def test_stopping_keeps_the_recorded_steps(vector, tmp_path):
    asked = []

    def stop():
        asked.append(1)
        return len(asked) == 10

    result = record(Counter, tmp_path / "s", 1000, envs=3 if vector else 1, stop=stop)
    assert result.stopped
    assert result.steps == (30 if vector else 10)
    with mmreplay.open(tmp_path / "s") as store:
        assert len(store) == result.steps
        assert store.info()["state"] == "closed"


@pytest.mark.parametrize("envs", [1, 2])
def test_an_error_in_the_environment_is_reported_and_recorded_steps_are_kept(envs, tmp_path):
    def make():
        env = Counter()
        env.fails_at = (1, 3)
        return env

    with pytest.raises(
        MmreplayError, match=r"^the environment raised RuntimeError: the simulator broke .*before"
    ):
        record(make, tmp_path / "s", 100, envs=envs)
    with mmreplay.open(tmp_path / "s") as store:
        assert len(store) == 9 * envs
        assert store.info()["state"] == "closed"


def test_a_policy_that_fails_at_its_first_action_leaves_no_store(tmp_path):
    def broken(observation):
        return observation.nothing

    with pytest.raises(MmreplayError, match=r"^the policy raised AttributeError.*test_loops"):
        record(Counter, tmp_path / "s", 100, policy=broken)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("envs", [1, 2])
@pytest.mark.parametrize("where", ["__init__", "reset", "__call__"])
def test_an_error_in_a_policy_is_reported_as_one_of_the_policy(where, envs, batched, tmp_path):
    class Broken:
        def __init__(self, observation_space, action_space, seed):
            self.calls = 0
            self.check("__init__")

        def reset(self, *lanes):
            self.check("reset")

        def __call__(self, observation):
            self.check("__call__")
            return np.zeros(envs, np.int64) if batched else 0

        def check(self, here):
            self.calls += here == where
            if here == where and (self.calls == 3 or where == "__init__"):
                raise KeyError("lost")

    Broken.batched = batched
    with pytest.raises(MmreplayError, match=r"^the policy raised KeyError: 'lost' "):
        record(Counter, tmp_path / "s", 100, policy=Broken, envs=envs)


@pytest.mark.parametrize("envs", [1, 3])
def test_life_loss_needs_an_environment_with_lives(envs, tmp_path):
    with pytest.raises(SchemaError, match="no 'lives'"):
        record(lambda: Counter(lives=False), tmp_path / "s", 5, envs=envs, life_loss=True)
    assert not (tmp_path / "s").exists()


class OwnArrays(SyncVectorEnv):
    """Hands out the arrays that it goes on with."""

    def __init__(self):
        super().__init__([lambda: Counter(3)] * 2, autoreset_mode=AutoresetMode.DISABLED)
        self.ends, self.gains = np.zeros(2, np.bool_), np.zeros(2)

    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed, options=options)
        self.ends[:], self.gains[:] = False, 0
        return found

    def step(self, actions):
        observations, self.gains[:], self.ends[:], truncated, infos = super().step(actions)
        return observations, self.gains, self.ends, truncated, infos


def test_an_environment_may_reuse_its_arrays(tmp_path):
    record(OwnArrays(), tmp_path / "store.zarr", 12)
    with mmreplay.open(tmp_path / "store.zarr") as store:
        assert store.episodes["return"].tolist() == [3.0] * 4
        assert store.episodes["terminated"].all()
