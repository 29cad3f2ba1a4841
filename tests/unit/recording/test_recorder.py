"""The recorder: how many rows, which seeds, how it goes on, how it ends."""

import gymnasium
import numpy as np
import pytest

import mmreplay
from mmreplay import Field, SchemaError
from mmreplay.recording.recorder import record
from tests.support.counter_env import Counter, metadata

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_the_environment_the_seeds_the_policy_and_versions_are_in_the_store(tmp_path):
    record("CartPole-v1", tmp_path / "s", 20, envs=2, seed=5)
    env = metadata(tmp_path / "s")
    assert env["id"] == "CartPole-v1"
    assert env["n_envs"] == 2
    assert env["preprocessing"] is None
    (run,) = env["runs"]
    assert run["seed"] == 5
    assert run["lane_seeds"] == [5, 6]
    assert run["policy"] == "random"
    assert run["versions"]["gymnasium"] == gymnasium.__version__


def test_the_same_seed_records_the_same_and_another_one_something_else(tmp_path):
    for name, seed in {"a": 1, "b": 1, "c": 2}.items():
        record("CartPole-v1", tmp_path / name, 50, seed=seed)
    a, b, c = (mmreplay.open(tmp_path / name) for name in "abc")
    assert np.array_equal(a.frames[:], b.frames[:])
    assert np.array_equal(a.actions[:], b.actions[:])
    assert not np.array_equal(a.actions[:50], c.actions[:50])
    assert not np.array_equal(a.frames[0], c.frames[0])


def test_appending_goes_on_with_other_episodes(tmp_path):
    path = tmp_path / "s"
    for steps in (60, 60, 60):
        record("CartPole-v1", path, steps, envs=2, seed=3, append=True)
    runs = metadata(path)["runs"]
    assert runs[0]["rows_before"] == 0
    assert len({run["seed"] for run in runs}) == 3
    with mmreplay.open(path) as store:
        assert len(store) == 180
        episodes = [store.trajectory(number) for number in range(len(store.episodes))]
        first = [one.observation[0].tobytes() for one in episodes]
        assert len(set(first)) == len(first) > 6


def test_appending_takes_the_number_of_environments_from_the_store(tmp_path):
    assert record("CartPole-v1", tmp_path / "s", 10, envs=3).environments == 3
    result = record("CartPole-v1", tmp_path / "s", 10, append=True)
    assert (result.environments, result.steps) == (3, 10)
    with mmreplay.open(tmp_path / "s") as store:
        assert len(store.lanes) == 1
        assert len(store) == 20
    with pytest.raises(
        SchemaError, match="a vector environment of 3, found a vector environment of 2"
    ):
        record("CartPole-v1", tmp_path / "s", 10, envs=2, append=True)


@pytest.mark.parametrize("envs", [None, 2, 3])
def test_appending_to_lanes_of_several_processes_says_what_the_store_is(tmp_path, envs):
    for name, lanes in (("a", None), ("b", 3)):
        fields = {"frame": Field((4,), "float32"), "action": Field((), "int64")}
        mmreplay.create(tmp_path / "s", lane=name, lanes=lanes, **fields).close()
    with pytest.raises(SchemaError, match="has several lanes, each written by its"):
        record("CartPole-v1", tmp_path / "s", 10, envs=envs, append=True)


def test_appending_another_environment_is_refused(tmp_path):
    record("CartPole-v1", tmp_path / "s", 10)
    with pytest.raises(SchemaError, match="'CartPole-v1', found 'CartPole-v0'"):
        record("CartPole-v0", tmp_path / "s", 10, append=True)
    with pytest.raises(SchemaError):
        record("Pendulum-v1", tmp_path / "s", 10, append=True)
    with mmreplay.open(tmp_path / "s") as store:
        assert len(store) == 10


@pytest.mark.parametrize("life_loss", [False, True])
@pytest.mark.parametrize("envs", [None, 2])
def test_appending_takes_lost_lives_as_the_store_does(tmp_path, envs, life_loss):
    path = tmp_path / "s"
    record(Counter, path, 14, envs=envs, life_loss=life_loss)
    record(Counter, path, 14, envs=envs, append=True)
    record(Counter, path, 14, envs=envs, append=True, life_loss=life_loss)
    assert metadata(path)["life_loss"] is life_loss
    lost = [mmreplay.open(path).transitions(i, stack=None).non_terminal for i in ([2], [14 + 2])]
    if envs is None:
        assert [bool(flag[0]) for flag in lost] == [not life_loss] * 2
    with pytest.raises(SchemaError, match=f"{life_loss}, found {not life_loss}; leave it out, or"):
        record(Counter, path, 14, envs=envs, append=True, life_loss=not life_loss)


@pytest.mark.parametrize("lanes", [None, 2])
def test_evicted_rows_are_counted(lanes, tmp_path):
    path, envs = tmp_path / "s", lanes or 1
    fields = {"frame": Field((2,), "float32", chunk=64), "action": Field((), "int64", chunk=64)}
    mmreplay.create(path, **fields, lanes=lanes, capacity=10 * envs).close()
    result = record(Counter, path, 500 * envs, envs=envs, append=True)
    assert result.steps == 500 * envs
    assert result.rows == 500
    assert 0 < result.evicted_rows < result.rows
    with mmreplay.open(path) as store:
        assert sum(lane.first for lane in store.lanes) == result.evicted_rows
        assert sum(lane.rows for lane in store.lanes) == result.rows
    assert result.to_json()["evicted_rows"] == result.evicted_rows
    again = record(Counter, path, 10, append=True, envs=envs)
    assert again.steps == 10
    assert again.evicted_rows >= result.evicted_rows
