"""Fields of episodes, as a writer is given them."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, Text
from mmreplay.errors import SchemaError
from mmreplay.writing import episode_log

FIELDS = {"task": Text(8), "success": Field((), "int8"), "goal": Field((2,), "float32")}
N = 3


def create(path, lanes=None, **settings):
    return mmreplay.create(
        path, Field((1,)), Field((), "int64"), episode=FIELDS, lanes=lanes, flush_s=0, **settings
    )


def frames(lanes):
    return np.zeros((lanes, 1) if lanes else (1,), np.uint8)


def step(writer, ended=(), mask=None):
    """One step of all environments, or of those of the mask."""
    ends = np.isin(np.arange(N), ended)
    writer.step([0] * N, [0.0] * N, frames(N), ends, ends & False, mask=mask)


def column(path, name):
    with mmreplay.open(path) as store:
        return store.episodes[name].tolist()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.zarr"


def test_fields_belong_to_the_episode_that_begins_or_made_the_newest_step(path):
    with create(path) as writer:
        writer.reset(frames(None), task="one", success=1, goal=[1, 2])
        writer.step(0, 0.0, frames(None))
        writer.episode(task="first")
        writer.reset(frames(None), task="never")  # an episode without a step
        writer.reset(frames(None), task="two")
        writer.episode(success=2)  # still of the first one
        writer.step(0, 0.0, frames(None), terminated=True)
        writer.episode(goal=[3, 4])
    assert column(path, "task") == ["first", "two"]
    assert column(path, "success") == [2, 0]
    assert column(path, "goal") == [[1, 2], [3, 4]]


def test_fields_of_many_environments(path):
    with create(path, N) as writer:
        writer.reset(frames(N), task=["a", "b", "c"], success=7, goal=np.arange(6).reshape(N, 2))
        step(writer, ended=[0, 2])
        ended = np.array([True, False, True])
        writer.reset(frames(N), mask=ended, task=["d", "not used" * 9, "e"])
        writer.episode(ended, success=[1, 2, 3])  # of those that ended
        step(writer)
        writer.episode([False, True, True], task="f")
    assert column(path, "task") == ["a", "f", "c", "d", "f"]
    assert column(path, "success") == [1, 7, 3, 0, 0]
    assert column(path, "goal") == [[0, 1], [2, 3], [4, 5], [0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"task": "too long a text"}, "at most 8 bytes"),
        ({"task": 3}, "task"),
        ({"success": 1.5}, "success"),
        ({"success": 1000}, "success"),
        ({"goal": [1, 2, 3]}, "goal"),
        ({"other": 1}, "not a field of episodes"),
        ({"length": 1}, "not a field of episodes"),
    ],
)
@pytest.mark.parametrize("lanes", [None, N])
def test_what_does_not_fit_is_refused_and_nothing_happens(path, lanes, given, problem):
    with create(path, lanes) as writer:
        with pytest.raises(SchemaError, match=problem):
            writer.reset(frames(lanes), **given)
        assert not np.any(writer.running)
        writer.reset(frames(lanes), task="kept")
        step(writer) if lanes else writer.step(0, 0.0, frames(None))
        with pytest.raises(SchemaError, match=problem):
            writer.episode(**given)
    assert column(path, "task") == ["kept"] * (lanes or 1)


def test_lists_have_one_for_each_environment(path):
    with create(path, N) as writer:
        for task in (["a"], ["a"] * 4):
            with pytest.raises(SchemaError, match="one for each of 3"):
                writer.reset(frames(N), task=task)


def test_an_episode_without_a_step_has_no_fields_to_change(path):
    with create(path) as writer:
        with pytest.raises(SchemaError, match="no step"):
            writer.episode(success=1)
        writer.reset(frames(None))
        with pytest.raises(SchemaError, match="no step"):
            writer.episode(success=1)
        writer.step(0, 0.0, frames(None))
    with create(path, append=True) as writer, pytest.raises(SchemaError, match=r"mmreplay\.tag"):
        writer.episode(success=1)


def test_when_an_episode_started(path, monkeypatch):
    monkeypatch.setattr(episode_log, "time_ns", lambda: 11)
    with create(path) as writer:
        for given in ({}, {"started": 5}, {}):
            writer.reset(frames(None), **given)
            writer.step(0, 0.0, frames(None))
    assert column(path, "started") == [11, 5, 11]


def test_a_store_that_declares_none_has_only_started(path):
    with mmreplay.create(path, Field((1,)), Field((), "int64")) as writer:
        writer.reset(frames(None))
        writer.step(0, 0.0, frames(None))
    assert sorted(one.name for one in (path / "episodes").iterdir()) == ["started", "zarr.json"]


@pytest.mark.parametrize("lanes", [None, N])
def test_numbers_survive_eviction_and_reopening(path, lanes):
    action = Field((), "int64", chunk=64)
    n = lanes or 1
    numbers = iter(range(10_000))
    with mmreplay.create(
        path,
        Field((1,), chunk=64),
        action,
        capacity=64 * n,
        lanes=lanes,
        flush_s=0,
        episode={"at": Field((), "int64")},
    ) as writer:
        _play(writer, lanes, numbers, 200)
    with mmreplay.create(path, append=True, flush_s=0) as writer:
        _play(writer, lanes, numbers, 100)
        with mmreplay.open(path) as live:
            seen = live.episodes["at"]
    begun = next(numbers)
    with mmreplay.open(path) as store:
        kept = store.episodes["at"].tolist()
        assert store.lanes[0].base > 0
    assert kept == list(range(begun - len(kept), begun))
    assert kept == seen.tolist()


def _play(writer, lanes, numbers, n_episodes):
    """Episodes of two steps each."""
    for _ in range(n_episodes):
        ids = [next(numbers) for _ in range(lanes or 1)]
        writer.reset(frames(lanes), at=ids if lanes else ids[0])
        for t in range(2):
            if lanes:
                step(writer, ended=range(N) if t else ())
            else:
                writer.step(0, 0.0, frames(None), terminated=t == 1)
    writer.flush()
