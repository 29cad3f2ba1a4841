"""`tag`: fields of the episodes of a closed store."""

import os

import numpy as np
import pytest
import zarr

import mmreplay
from mmreplay import Field, Text
from mmreplay.errors import LockedError, SchemaError, StoreNotFoundError
from mmreplay.system import durable_writes
from tests.support.disks import faults
from tests.support.disks.trees import contents, flip

FIELDS = {"task": Text(4), "success": Field((), "int8")}


def create(path, lanes=None, **settings):
    return mmreplay.create(
        path, Field((1,)), Field((), "int64"), episode=FIELDS, lanes=lanes, flush_s=0, **settings
    )


def play(writer, n_episodes):
    frame = np.zeros(1, np.uint8)
    for number in range(n_episodes):
        writer.reset(frame, task=f"t{number}")
        for t in range(number + 1):
            writer.step(0, 1.0, frame, terminated=t == number)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "s.zarr"
    with create(path) as writer:
        play(writer, 4)
    return path


def column(path, name):
    with mmreplay.open(path) as store:
        return store.episodes[name].tolist()


def test_values_for_all_or_some_episodes(path):
    assert mmreplay.tag(path, success=1) == 4
    assert mmreplay.tag(path, [3, 0], task=["last", "none"]) == 2
    assert mmreplay.tag(path, lambda e: e["length"] > 2, success=2) == 2
    assert mmreplay.tag(path, np.array([False, True, False, False]), success=3) == 1
    assert column(path, "success") == [1, 3, 2, 2]
    assert column(path, "task")[1:3] == ["t1", "t2"]
    assert {column(path, "task")[0], column(path, "task")[3]} == {"last", "none"}
    assert mmreplay.verify(path).sound
    assert os.listdir(path.parent) == ["s.zarr"]


@pytest.mark.parametrize(
    ("value", "dtype", "rest"),
    [(7, "int64", 0), (0.5, "float64", 0), (True, "bool", False), ("good", "<U4", "")],
)
def test_a_new_field_has_the_type_of_its_values(path, value, dtype, rest):
    ids = mmreplay.open(path).ids
    mmreplay.tag(path, [1], new=value)
    with mmreplay.open(path) as store:
        assert store.episodes.dtype["new"] == np.dtype(dtype)
        assert store.episodes["new"].tolist() == [rest, value, rest, rest]
        assert np.array_equal(store.ids, ids)
    stored = zarr.open_group(path, mode="r", use_consolidated=True)["episodes/new"]
    assert stored.shape[0] == 4
    with create(path, append=True) as writer:  # a writer gives it, too
        writer.reset(np.zeros(1, np.uint8), new=value)
        writer.step(0, 0.0, np.zeros(1, np.uint8))
    assert column(path, "new") == [rest, value, rest, rest, value]


def test_a_longer_text_makes_room(path):
    mmreplay.tag(path, [1], task="much longer")
    assert column(path, "task") == ["t0", "much longer", "t2", "t3"]
    assert zarr.open_group(path, mode="r")["episodes/task"].shape == (4, 11)


def test_a_store_of_lanes(tmp_path):
    path = tmp_path / "lanes.zarr"
    for lane in ("a", "b"):
        with create(path, lane=lane) as writer:
            play(writer, 2)
    mmreplay.tag(path, [1, 2], success=[1, 2], new="x")
    assert column(path, "success") == [0, 1, 2, 0]
    assert column(path, "new") == ["", "x", "x", ""]
    with create(path, lane="c") as writer:
        writer.reset(np.zeros(1, np.uint8), new="y")
        writer.step(0, 0.0, np.zeros(1, np.uint8))
    assert column(path, "new") == ["", "x", "x", "", "y"]
    assert mmreplay.verify(path).sound


def test_an_open_store_is_locked(path):
    with create(path, append=True), pytest.raises(LockedError):
        mmreplay.tag(path, success=1)
    faults.kill(create(path, append=True))
    with pytest.raises(LockedError, match="repair"):
        mmreplay.tag(path, success=1)


@pytest.mark.parametrize(
    ("episodes", "fields"),
    [
        (None, {}),
        (None, {"return": 1}),
        (None, {"a b": 1}),
        (None, {"success": 1.5}),
        (None, {"success": "yes"}),
        (None, {"task": 3}),
        (None, {"task": "a\0"}),
        (None, {"success": [1, 2]}),
        ([4], {"success": 1}),
        ([True], {"success": 1}),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(path, episodes, fields):
    before = contents(path)
    with pytest.raises(SchemaError):
        mmreplay.tag(path, episodes, **fields)
    assert contents(path) == before
    assert os.listdir(path.parent) == ["s.zarr"]


def test_no_store(tmp_path):
    with pytest.raises(StoreNotFoundError):
        mmreplay.tag(tmp_path / "none.zarr", success=1)


def test_a_field_that_is_damaged_is_not_written_over(path):
    flip(path / "episodes/success/c.0", 1)
    before = contents(path)
    with pytest.raises(mmreplay.CorruptStoreError, match="success"):
        mmreplay.tag(path, success=1)
    assert contents(path) == before


@pytest.mark.parametrize("at", range(0, 40, 3))
def test_an_interruption_leaves_all_of_the_values_or_none(path, monkeypatch, at):
    calls, before = iter(range(10_000)), contents(path)
    for name in ("write_new", "write_file", "sync_tree", "remove_tree", "make_directory"):
        real = getattr(durable_writes, name)

        def call(*given, real=real, **named):
            if next(calls) == at:
                raise KeyboardInterrupt
            return real(*given, **named)

        monkeypatch.setattr(durable_writes, name, call)
    try:
        mmreplay.tag(path, success=1, new="x")
    except KeyboardInterrupt:
        monkeypatch.undo()
        if contents(path) != before:
            assert column(path, "success") == [1] * 4
    monkeypatch.undo()
    assert mmreplay.verify(path).sound
    mmreplay.tag(path, success=2)
    assert column(path, "success") == [2] * 4
