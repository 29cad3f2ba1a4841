"""Making stores and opening them for writing: one lane, all lanes at once, lanes by name."""

import errno
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, VectorWriter, Writer, files, lanes
from mmreplay.errors import (
    DiskFullError,
    FormatError,
    LockedError,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
)

pytestmark = pytest.mark.usefixtures("quick_disk")

FRAME, ACTION = Field((3,), "uint8", "raw", chunk=8), Field((), "int64", chunk=8)


def attributes(path):
    return json.loads((path / "zarr.json").read_bytes())["attributes"]["mmreplay"]


def contents(path):
    return {
        str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()
    }


def check(story, writer):
    with mmreplay.open(writer.path) as store:
        story.check(store)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(files.DirectoryLock.__init__, "__kwdefaults__", {"patience_s": 0})


# ---------------------------------------------------------------- capacity


@pytest.mark.parametrize("n_lanes", [1, 2, 3, 7])
@pytest.mark.parametrize("capacity", [7, 8, 100, 1000])
def test_a_capacity_is_divided_evenly_and_exactly(capacity, n_lanes):
    shares = lanes.split_capacity(capacity, n_lanes)
    assert sum(share or 0 for share in shares) == capacity
    assert max(share or 0 for share in shares) - min(share or 0 for share in shares) <= 1


def test_no_capacity_is_none_in_every_lane_and_one_below_the_lanes_is_refused():
    assert lanes.split_capacity(None, 3) == [None] * 3
    with pytest.raises(SchemaError, match="one transition or more for each of 3 lanes, found 2"):
        lanes.split_capacity(2, 3)


def test_lanes_have_their_share_of_the_capacity(make, story):
    writer = make(lanes=3, capacity=10)
    assert [one.metadata["capacity"] for one in writer.writers] == [4, 3, 3]
    story.play(writer, 20)
    with mmreplay.open(writer.path) as store:
        assert [len(lane) for lane in store.lanes] == [4, 3, 3]
        assert len(store) == 10
    writer.close()
    again = make(append=True, capacity=11)
    assert [one.metadata["capacity"] for one in again.writers] == [4, 4, 3]


@pytest.mark.parametrize("capacity", [0, -1, True, 2.5, "5", np.float32(3), [4]])
def test_a_capacity_that_is_no_number_of_transitions_is_refused(make, tmp_path, capacity):
    with pytest.raises(SchemaError, match="capacity: expected 1 or more transitions"):
        make(capacity=capacity)
    assert list(tmp_path.iterdir()) == []


def test_a_capacity_may_be_a_numpy_integer(make):
    assert attributes(make(capacity=np.int64(5)).path)["capacity"] == 5


# ---------------------------------------------------------------- create


def test_a_new_store_is_a_writer_or_a_vector_writer(make):
    assert isinstance(make("a.zarr"), Writer)
    many = make("b.zarr", lanes=1)
    assert isinstance(many, VectorWriter)
    assert (len(many), many.path.name) == (1, "b.zarr")
    assert isinstance(make("c.zarr", lane="me"), Writer)


def test_the_attributes_hold_what_was_given(make):
    writer = make(capacity=50, padding="zero", metadata={"id": "ALE/Pong-v5", "seed": [1, None]})
    own = attributes(writer.path)
    assert own["capacity"] == 50
    assert own["padding"] == "zero"
    assert own["env"] == {"id": "ALE/Pong-v5", "seed": [1, None]}
    assert own["versions"]["mmreplay"] == mmreplay.__version__
    assert writer.metadata == own


@pytest.mark.parametrize(
    "there", [lambda p: p.mkdir(), lambda p: p.write_bytes(b"x"), lambda p: p.symlink_to("none")]
)
def test_what_is_there_already_is_left_alone(make, tmp_path, there):
    path = tmp_path / "store.zarr"
    there(path)
    with pytest.raises(StoreExistsError, match=r"store\.zarr: .*append=True"):
        make()
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_store_is_not_appended_to(make, tmp_path):
    (tmp_path / "store.zarr").mkdir()
    with pytest.raises(FormatError, match="not a store"):
        make(append=True)


def test_the_directory_above_must_be_there(make):
    with pytest.raises(StoreNotFoundError, match="there is no such directory; make one first"):
        make("none/store.zarr")


def test_the_path_above_must_be_a_directory(make, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreNotFoundError, match="file: is no directory; make one first"):
        make("file/store.zarr")


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"frame": None}, "frame: a new store needs one"),
        ({"action": None}, "action: a new store needs one"),
        ({"frame": (84, 84)}, "expected an mmreplay.Field"),
        ({"padding": "edge"}, "padding: expected 'reset' or 'zero', found 'edge'"),
        ({"lanes": 0}, "lanes: expected 1 or more, found 0"),
        ({"lanes": 2, "lane": "me"}, "give one of them"),
        ({"lanes": 3, "capacity": 2}, "for each of 3 lanes"),
        ({"flush_s": -1}, "flush_s: expected seconds"),
        ({"frame": Field((3,)), "codec": "lz5"}, "expected codec"),
        ({"reward_dtype": "int32"}, "reward_dtype"),
        ({"extras": {"reward": Field()}}, "arguments of step"),
        ({"metadata": {"x": np.float32(1)}}, "metadata"),
        ({"metadata": {"x": float("nan")}}, "metadata"),
        ({"metadata": {"x": object()}}, "metadata"),
        ({"metadata": {"x": "y" * (2 << 20)}}, "metadata"),
    ],
)
def test_what_cannot_be_made_is_refused_and_leaves_nothing(make, tmp_path, wrong, match):
    with pytest.raises(SchemaError, match=match):
        make(**wrong)
    assert list(tmp_path.iterdir()) == []


def test_metadata_that_is_allowed_leaves_a_store_that_opens(make, story):
    writer = make(metadata={"x": "y" * 500_000})
    story.play(writer, 3)
    writer.save_generator(lambda: json.dumps({"state": "z" * 1000}))
    writer.close()
    check(story, writer)
    make(append=True)


@pytest.mark.parametrize("n_lanes", [None, 2])
def test_no_room_leaves_nothing(make, tmp_path, monkeypatch, n_lanes, lz4):
    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    real = files._fallocate
    for at in range(5):
        count = [0]

        def nearly_full(descriptor, size, at=at, count=count):
            count[0] += 1
            if count[0] > at:
                full()
            real(descriptor, size)

        with monkeypatch.context() as patch:
            patch.setattr(files, "_fallocate", nearly_full)
            with pytest.raises(DiskFullError):
                make(lanes=n_lanes, **lz4)
        assert list(tmp_path.iterdir()) == []
    make(lanes=n_lanes, **lz4)


def test_a_store_has_its_name_only_once_it_is_whole_and_durable(make, tmp_path, monkeypatch):
    path, seen = tmp_path / "store.zarr", []
    real_replace, real_tree, synced = files.replace_directory, files.sync_tree, []

    def replace(built, target):
        assert not path.exists()
        assert synced == [built]
        with mmreplay.open(built) as store:
            assert len(store) == 0
        seen.append(target)
        return real_replace(built, target)

    monkeypatch.setattr(files, "sync_tree", lambda built: (real_tree(built), synced.append(built)))
    monkeypatch.setattr(files, "replace_directory", replace)
    make(lanes=2)
    assert seen == [path]
    assert [one.name for one in tmp_path.iterdir()] == ["store.zarr"]


def test_of_two_who_make_the_same_store_one_does_and_the_other_is_told(
    make, monkeypatch, impatient
):
    real = files.replace_directory

    def beaten(built, path):
        monkeypatch.setattr(files, "replace_directory", real)
        make(path.name).close()
        return real(built, path)

    monkeypatch.setattr(files, "replace_directory", beaten)
    with pytest.raises(StoreExistsError, match="somebody else made it at this moment"):
        make()
    monkeypatch.setattr(files, "replace_directory", beaten)
    assert make("other.zarr", append=True, frame=FRAME, action=ACTION).rows == 0


# ---------------------------------------------------------------- append


def test_append_makes_a_store_or_goes_on_with_it(make, story):
    given = {
        "append": True,
        "frame": FRAME,
        "action": ACTION,
        "extras": {"x": Field((2,), "float32")},
    }
    writer = make(**given)
    story.play(writer, 5)
    writer.close()
    writer = make(**given)
    story.play(writer, 5)
    writer.close()
    writer = make(append=True)
    assert writer.rows == 12
    check(story, writer)


@pytest.mark.parametrize(
    "wrong",
    [
        {"frame": Field((4,))},
        {"frame": Field((3,), "int8")},
        {"frame": {"frame": Field((3,))}},
        {"action": Field((), "int32")},
        {"action": Field((1,), "int64")},
        {"extras": {}},
        {"extras": {"y": Field((), "float32")}},
        {"extras": {"x": Field((2,), "float32")}},
        {"reward_dtype": "float64"},
        {"codec": "zstd"},
        {"frame": Field((3,), codec="raw")},
        {"frame": Field((3,), codec={"name": "gzip"})},
        {"lanes": 2},
        {"lane": "me"},
        {"padding": "edge"},
        {"flush_s": -1.0},
        {"metadata": {"x": {1, 2}}},
        {"metadata": {"x": "y" * (2 << 20)}},
    ],
    ids=str,
)
def test_what_does_not_match_is_refused_and_the_store_is_not_touched(make, story, kill, lz4, wrong):
    writer = make(**lz4, extras={"x": Field((), "float32")})
    story.play(writer, 200)
    writer.close()
    for state in ("closed", "killed"):
        if state == "killed":
            writer = make(append=True)
            kill(writer)
        before = contents(writer.path)
        with pytest.raises(SchemaError):
            make(**{"append": True, "capacity": 5, **wrong})
        assert contents(writer.path) == before
    check(story, writer)


@pytest.mark.parametrize(
    "given",
    [
        {"frame": Field((3,), "uint8")},
        {"frame": Field((3,), "uint8", "lz4"), "action": ACTION},
        {"frame": Field((3,), "uint8", chunk=16, shard=64)},
        {"codec": "lz4"},
        {"extras": {"x": Field((), "float32")}},
        {"reward_dtype": "float32"},
    ],
    ids=str,
)
def test_what_matches_is_accepted_and_the_layout_stays(make, story, lz4, given):
    writer = make(**lz4, extras={"x": Field((), "float32")})
    story.play(writer, 20)
    writer.close()
    writer = make(append=True, **given)
    assert (writer.specs["frames"].inner_rows, writer.specs["frames"].chunk_rows) == (4, 8)
    story.play(writer, 5)
    check(story, writer)


def test_a_store_of_lanes_is_opened_with_all_of_them_or_refused(make, story):
    writer = make(lanes=3)
    story.play(writer, 5)
    writer.close()
    with pytest.raises(SchemaError, match="expected 2 lanes, found 3"):
        make(append=True, lanes=2)
    for given in ({}, {"lanes": 3}):
        writer = make(append=True, **given)
        assert isinstance(writer, VectorWriter)
        story.play(writer, 2)
        writer.close()
    check(story, writer)


def test_a_lane_that_is_held_keeps_all_others_closed(make, story, impatient):
    writer = make(lanes=3)
    story.play(writer, 5)
    writer.close()
    held = mmreplay.create(writer.path / "lane-00001", append=True, flush_s=0)
    with pytest.raises(LockedError, match="lane-00001"):
        make(append=True)
    assert [attributes(one.path)["closed"] for one in writer.writers] == [True, False, True]
    held.close()
    make(append=True)


# ---------------------------------------------------------------- VectorWriter


def frames_of(value, n_lanes=3):
    return np.full((n_lanes, 3), value, np.uint8)


@pytest.fixture
def vector(make):
    """Three lanes, each in the middle of an episode."""
    writer = make(lanes=3, extras={"x": Field((), "int8")})
    writer.reset(frames_of(1))
    return writer


def step(writer, value=1, **changes):
    n = len(writer)
    given = {
        "actions": np.full(n, value),
        "rewards": np.full(n, value, np.float32),
        "frames": frames_of(value, n),
        "terminated": np.zeros(n, bool),
        "truncated": np.zeros(n, bool),
        "x": np.full(n, value),
    }
    writer.step(**{**given, **changes})


def rows(writer):
    return [one.rows for one in writer.writers]


def test_each_lane_gets_its_own(vector):
    step(
        vector,
        actions=[1, 2, 3],
        rewards=[0.5, 1.5, 2.5],
        frames=np.arange(9, dtype=np.uint8).reshape(3, 3),
        terminated=[True, False, False],
        truncated=[False, True, False],
        life_lost=[False, False, True],
        x=[7, 8, 9],
    )
    assert vector.n_steps == 3
    assert [one.running for one in vector.writers] == [False, False, True]
    with mmreplay.open(vector.path) as store:
        assert [lane.actions[:].tolist() for lane in store.lanes] == [[1, 0], [2, 0], [3, 0]]
        assert [lane.rewards[0] for lane in store.lanes] == [0.5, 1.5, 2.5]
        assert [lane.non_terminals[:].tolist() for lane in store.lanes] == [[0, 0], [1, 1], [0, 0]]
        assert [lane.frames[1].tolist() for lane in store.lanes] == [
            [0, 1, 2],
            [3, 4, 5],
            [6, 7, 8],
        ]
        assert [lane.extras["x"][0] for lane in store.lanes] == [7, 8, 9]


def test_lanes_that_the_mask_leaves_out_are_left_alone(vector):
    step(vector, terminated=[False, True, False])
    assert rows(vector) == [2, 2, 2]
    with pytest.raises(SchemaError, match="no episode is running"):
        step(vector, 2)
    assert rows(vector) == [2, 2, 2]
    vector.reset(frames_of(9), mask=[False, True, False])
    step(vector, 3, mask=np.array([True, True, False]))
    assert rows(vector) == [3, 4, 2]
    step(vector, 4, mask=[0, 0, 0])
    assert rows(vector) == [3, 4, 2]
    with mmreplay.open(vector.path) as store:
        assert [lane.frames[-1][0] for lane in store.lanes] == [3, 3, 1]
        assert store.lanes[1].resets[:].tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"actions": [1, 2]}, "actions: expected one for each of 3 lanes"),
        ({"actions": 1}, "actions: expected one for each of 3 lanes"),
        ({"actions": [1, 2, 1.5]}, "actions"),
        ({"actions": [1, 2, None]}, "actions"),
        ({"actions": [[1], [1, 2], [3]]}, "actions"),
        ({"rewards": [1.0]}, "rewards: expected one for each of 3 lanes"),
        ({"rewards": ["a", "b", "c"]}, "rewards"),
        ({"rewards": [1.0, 2.0, None]}, "rewards"),
        ({"rewards": [[1.0], [1.0, 2.0], []]}, "rewards"),
        ({"frames": frames_of(1, 2)}, "frames: expected shape"),
        ({"frames": frames_of(1).astype("i2")}, "frames: expected dtype"),
        ({"frames": frames_of(1) * 2.0}, "frames: floats"),
        ({"frames": [[1], [1, 2], [3]]}, "frames"),
        ({"frames": {"a": frames_of(1)}}, "frames"),
        ({"frames": None}, "frames"),
        ({"terminated": [False] * 2}, "terminated: expected one for each"),
        ({"terminated": False}, "terminated: expected one for each"),
        ({"truncated": [None] * 3}, "truncated"),
        ({"life_lost": [True]}, "life_lost: expected one for each"),
        ({"mask": [True]}, "mask: expected one for each"),
        ({"x": [1, 2, 300]}, "x: expected dtype int8"),
        ({"x": [1, 2, "a"]}, "x"),
        ({"x": [1, 2]}, "x: expected one for each"),
        ({"x": 0.5}, "x: expected one for each"),
        ({"x": [[1], [1, 2], 3]}, "x"),
        ({"y": [1, 2, 3]}, "extras: expected"),
    ],
    ids=str,
)
def test_a_step_is_checked_for_all_lanes_before_the_first_one_is_written(vector, wrong, match):
    for _ in range(2):
        with pytest.raises(SchemaError, match=match):
            step(vector, 5, **wrong)
        assert rows(vector) == [1, 1, 1]
    step(vector, 6)
    assert rows(vector) == [2, 2, 2]
    with mmreplay.open(vector.path) as store:
        assert [lane.actions[:].tolist() for lane in store.lanes] == [[6, 0]] * 3


@pytest.mark.parametrize(
    "wrong", [frames_of(1, 2), None, [[1], [1, 2], [3]], frames_of(1).astype("i2")]
)
def test_a_reset_is_checked_for_all_lanes_before_the_first_one_is_written(vector, wrong):
    with pytest.raises(SchemaError, match="frames"):
        vector.reset(wrong)
    with pytest.raises(SchemaError, match="mask"):
        vector.reset(frames_of(1), mask=[True])
    assert rows(vector) == [1, 1, 1]


def test_a_full_disk_in_one_lane_leaves_all_as_they_were(vector, monkeypatch):
    for value in range(7):
        step(vector, value)
    assert rows(vector) == [8, 8, 8]
    real, count = files.allocate, [0]

    def nearly_full(path, size):
        count[0] += 1
        if count[0] > 7:
            raise DiskFullError("no room")
        real(path, size)

    with monkeypatch.context() as patch:
        patch.setattr(files, "allocate", nearly_full)
        for _ in range(2):
            with pytest.raises(DiskFullError):
                step(vector, 9)
            assert rows(vector) == [8, 8, 8]
    step(vector, 9)
    assert rows(vector) == [9, 9, 9]


def test_dict_frames_are_given_lane_by_lane(make):
    writer = make(
        lanes=2, frame={"a": Field((2,), "uint8", "raw"), "b": Field((), "float32", "raw")}
    )
    good = {"a": np.array([[1, 2], [3, 4]], np.uint8), "b": np.array([0.5, 1.5], np.float32)}
    writer.reset(good)
    with pytest.raises(SchemaError, match=r"frames: expected a dict with the keys \['a', 'b'\]"):
        writer.reset({"a": good["a"]})
    with pytest.raises(SchemaError, match="b: expected shape"):
        writer.reset(good | {"b": np.zeros(3, np.float32)})
    writer.step([1, 2], [0, 0], good, [0, 0], [0, 0])
    with mmreplay.open(writer.path) as store:
        frames = store.lanes[1].frames
        assert isinstance(frames, dict)
        assert frames["a"][:].tolist() == [[3, 4]] * 2
        assert frames["b"][:].tolist() == [1.5] * 2


def test_vector_actions_may_be_of_a_lower_kind(make):
    writer = make(lanes=2, action=Field((2,), "float32"))
    writer.reset(frames_of(1, 2))
    writer.step(np.array([[1, 2], [3, 4]]), [0, 0], frames_of(1, 2), [0, 0], [0, 0])
    with mmreplay.open(writer.path) as store:
        assert [lane.actions[0].tolist() for lane in store.lanes] == [[1, 2], [3, 4]]


def test_a_close_closes_every_lane_also_after_one_failed(make, story, monkeypatch):
    writer = make(lanes=3)
    story.play(writer, 5)
    real = Writer.close

    def close(self):
        if self.path.name == "lane-00000":
            self._disk.release()
            raise DiskFullError("no room for lane 0")
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "close", close)
        with pytest.raises(DiskFullError, match="lane 0"):
            writer.close()
    assert [attributes(one.path)["closed"] for one in writer.writers] == [False, True, True]
    writer.writers[0].close()
    with pytest.raises(KeyError), make(append=True) as again:
        raise KeyError
    assert [attributes(one.path)["closed"] for one in again.writers] == [True] * 3


def test_a_vector_writer_flushes_and_describes_itself(vector, story):
    vector.flush()
    assert repr(vector) == f"<mmreplay.VectorWriter {vector.path} lanes=3>"
    assert vector.metadata == vector.writers[0].metadata
    from mmreplay.state import CheckpointFile

    for one in vector.writers:
        best = CheckpointFile(one.path / ".live" / "checkpoint", one.metadata["uuid"]).best
        assert best.head == 1


def test_lanes_of_one_writer_share_their_threads(make, story, lz4):
    before = set(threading.enumerate())
    writer = make(lanes=4, flush_s=3600, **lz4)
    story.play(writer, 40)
    assert len(set(threading.enumerate()) - before) == 2
    check(story, writer)
    writer.close()
    assert set(threading.enumerate()) == before


# ---------------------------------------------------------------- lanes by name


def test_the_same_name_opens_the_same_lane_again(make, story):
    first = make(lane="actor-0", capacity=100)
    second = make(append=True, lane="actor-1")
    story.play(first, 5)
    story.play(second, 7)
    assert [one.path.name for one in (first, second)] == ["lane-00000", "lane-00001"]
    first.close()
    second.close()
    again = make(append=True, lane="actor-0")
    assert again.path == first.path
    story.play(again, 3)
    with mmreplay.open(first.path.parent) as store:
        story.check(store)
        assert [lane.name for lane in store.lanes] == ["actor-0", "actor-1"]
        assert len(store) == 15


def test_a_named_lane_has_a_capacity_of_its_own(make):
    first = make(lane="a", capacity=100, padding="zero", metadata={"seed": 1})
    second = make(append=True, lane="b")
    third = make(append=True, lane="c", capacity=7, metadata={"seed": 2})
    assert [one.metadata["capacity"] for one in (first, second, third)] == [100, 100, 7]
    assert [one.metadata["padding"] for one in (first, second, third)] == ["zero"] * 3
    assert [one.metadata["env"]["seed"] for one in (first, second, third)] == [1, 1, 2]


def test_a_lane_that_somebody_writes_cannot_be_opened_twice(make, impatient):
    make(lane="a")
    with pytest.raises(LockedError, match="another writer holds this lane"):
        make(append=True, lane="a")
    make(append=True, lane="b")


def test_lanes_of_a_store_share_a_layout_whatever_the_others_ask_for(make, lz4):
    first = make(lane="a", **lz4)
    second = make(
        append=True, lane="b", frame=Field((3,), "uint8", chunk=2, shard=2), action=ACTION
    )
    assert second.specs == first.specs


def test_fields_that_are_left_out_are_the_stores(make, story):
    make(lane="a", extras={"x": Field((), "float32")}, reward_dtype="float64")
    for name, given in (
        ("b", {}),
        ("c", {"frame": FRAME, "action": ACTION}),
        ("d", {"frame": FRAME}),
    ):
        writer = make(append=True, lane=name, **given)
        assert writer.schema.reward_dtype == np.float64
        assert list(writer.schema.extras) == ["x"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"frame": Field((4,)), "action": ACTION},
        {"frame": Field((4,))},
        {"action": Field((), "int8")},
        {"extras": {"y": Field()}},
        {"reward_dtype": "float64"},
        {"codec": "lz4"},
    ],
    ids=str,
)
def test_a_lane_that_does_not_match_is_refused_and_not_made(make, wrong):
    path = make(lane="a").path.parent
    with pytest.raises(SchemaError, match="expected"):
        make(append=True, lane="b", **wrong)
    assert sorted(one.name for one in path.iterdir()) == ["lane-00000", "zarr.json"]


def test_a_store_of_one_lane_takes_no_names(make):
    make("one.zarr").close()
    with pytest.raises(SchemaError, match="a store of one lane; lane= needs one of many"):
        make("one.zarr", append=True, lane="a")


def test_litter_of_a_lane_that_was_never_finished_goes(make):
    path = make(lane="a").path.parent
    (path / ".lane-00001.tmp" / "frames").mkdir(parents=True)
    make(append=True, lane="b")
    assert sorted(one.name for one in path.iterdir()) == ["lane-00000", "lane-00001", "zarr.json"]


ACTOR = """
import sys, numpy as np, mmreplay
from mmreplay import Field
path, name = sys.argv[1:]
frame = Field((3,), "uint8", "lz4", chunk=4, shard=8)
number = int(name.split("-")[1])
print("ready", flush=True)
sys.stdin.readline()
with mmreplay.create(path, frame, Field((), "int64"), lane=name, append=True) as writer:
    for _ in range(3):
        writer.reset(np.full(3, number, np.uint8))
        for step in range(10):
            writer.step(number, step, np.full(3, number, np.uint8), terminated=step == 9)
print(writer.path.name)
"""


def test_several_processes_write_lanes_of_one_store_at_once(tmp_path):
    path = tmp_path / "run.zarr"
    actors = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", ACTOR, str(path), f"actor-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    try:
        for actor in actors:
            assert actor.stdout is not None
            assert actor.stdout.readline() == "ready\n"
        for actor in actors:
            assert actor.stdin is not None
            actor.stdin.write("\n")
            actor.stdin.flush()
        found = [actor.communicate(timeout=60) for actor in actors]
    finally:
        for actor in actors:
            actor.kill()
            actor.wait()
    assert [error for _, error in found] == [""] * 4
    assert sorted(output.strip() for output, _ in found) == [f"lane-0000{n}" for n in range(4)]
    with mmreplay.open(path) as store:
        assert len(store) == 120
        for lane in store.lanes:
            assert lane.name is not None
            number = int(lane.name.split("-")[1])
            assert (lane.frames[:] == number).all()
            assert lane.actions[:].tolist() == ([number] * 10 + [0]) * 3
    assert os.listdir(tmp_path) == ["run.zarr"]
