"""All lanes written together: what a step gives each, and that it is whole or not at all."""

import threading

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, Writer
from mmreplay.errors import DiskFullError, SchemaError
from mmreplay.storage.checkpoint import CheckpointFile
from mmreplay.storage.lane_metadata import read_metadata
from mmreplay.system import durable_writes
from tests.support.writers import make_lanes

pytestmark = pytest.mark.usefixtures("quick_disk")


def frames_of(value, n_lanes=3):
    return np.full((n_lanes, 3), value, np.uint8)


@pytest.fixture
def vector(make):
    """Three lanes, each in the middle of an episode."""
    writer = make(n_lanes=3, extras={"x": Field((), "int8")})
    writer.reset(frames_of(1))
    return writer


@pytest.fixture(scope="module")
def refusing(tmp_path_factory):
    """Three lanes to which the tests of a module append steps of the action 6 alone."""
    fields = Field((3,), "uint8", "raw", chunk=8), Field((), "int64", chunk=8)
    path = tmp_path_factory.mktemp("refusing") / "store.zarr"
    extras = {"x": Field((), "int8")}
    with make_lanes(path, n_lanes=3, frame=fields[0], action=fields[1], extras=extras) as writer:
        writer.reset(frames_of(1))
        yield writer


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
        ({"actions": [1, 2]}, "actions: expected one for each of 3 environments"),
        ({"actions": 1}, "actions: expected one for each of 3 environments"),
        ({"actions": [1, 2, 1.5]}, "actions"),
        ({"actions": [1, 2, None]}, "actions"),
        ({"actions": [[1], [1, 2], [3]]}, "actions"),
        ({"rewards": [1.0]}, "rewards: expected one for each of 3 environments"),
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
        *(
            ({name: [0, 0, np.nan]}, f"{name}: expected bools, found NaN")
            for name in ("terminated", "truncated", "life_lost", "mask")
        ),
        ({"x": [1, 2, 300]}, "x: expected dtype int8"),
        ({"x": [1, 2, "a"]}, "x"),
        ({"x": [1, 2]}, "x: expected one for each"),
        ({"x": 0.5}, "x: expected one for each"),
        ({"x": [[1], [1, 2], 3]}, "x"),
        ({"y": [1, 2, 3]}, "extras: expected"),
    ],
    ids=str,
)
def test_a_step_is_checked_for_all_lanes_before_the_first_one_is_written(refusing, wrong, match):
    before = rows(refusing)
    for _ in range(2):
        with pytest.raises(SchemaError, match=match):
            step(refusing, 5, **wrong)
        assert rows(refusing) == before
    step(refusing, 6)
    n_steps = before[0]
    assert rows(refusing) == [n_steps + 1] * 3
    with mmreplay.open(refusing.path) as store:
        assert [lane.actions[:].tolist() for lane in store.lanes] == [[6] * n_steps + [0]] * 3


@pytest.mark.parametrize(
    "wrong", [frames_of(1, 2), None, [[1], [1, 2], [3]], frames_of(1).astype("i2")]
)
def test_a_reset_is_checked_for_all_lanes_before_the_first_one_is_written(vector, wrong):
    with pytest.raises(SchemaError, match="frames"):
        vector.reset(wrong)
    with pytest.raises(SchemaError, match="mask"):
        vector.reset(frames_of(1), mask=[True])
    with pytest.raises(SchemaError, match="mask"):
        vector.reset(frames_of(1), mask=[1, 0, np.nan])
    assert rows(vector) == [1, 1, 1]


def test_a_full_disk_in_one_lane_leaves_all_as_they_were(vector, monkeypatch):
    for value in range(7):
        step(vector, value)
    assert rows(vector) == [8, 8, 8]
    real, count = durable_writes.allocate, [0]

    def nearly_full(path, size):
        count[0] += 1
        if count[0] > 7:
            raise DiskFullError("no room")
        real(path, size)

    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "allocate", nearly_full)
        for _ in range(2):
            with pytest.raises(DiskFullError):
                step(vector, 9)
            assert rows(vector) == [8, 8, 8]
    step(vector, 9)
    assert rows(vector) == [9, 9, 9]


def test_dict_frames_are_given_lane_by_lane(make):
    writer = make(
        n_lanes=2, frame={"a": Field((2,), "uint8", "raw"), "b": Field((), "float32", "raw")}
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
    writer = make(n_lanes=2, action=Field((2,), "float32"))
    writer.reset(frames_of(1, 2))
    writer.step(np.array([[1, 2], [3, 4]]), [0, 0], frames_of(1, 2), [0, 0], [0, 0])
    with mmreplay.open(writer.path) as store:
        assert [lane.actions[0].tolist() for lane in store.lanes] == [[1, 2], [3, 4]]


def test_a_close_closes_every_lane_also_after_one_failed(make, story, monkeypatch):
    writer = make(n_lanes=3)
    story.play(writer, 5)
    real = Writer.close

    def close(self):
        if self.path.name == "lane-00000":
            raise DiskFullError("no room for lane 0")
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "close", close)
        with pytest.raises(DiskFullError, match="lane 0"):
            writer.close()
    assert [read_metadata(one.path)["closed"] for one in writer.writers] == [False, True, True]
    writer.writers[0].close()
    with pytest.raises(KeyError), make(append=True) as again:
        raise KeyError
    assert [read_metadata(one.path)["closed"] for one in again.writers] == [True] * 3


def test_a_vector_writer_flushes_and_describes_itself(vector, story):
    vector.flush()
    assert repr(vector) == f"<mmreplay.LanesWriter {vector.path} lanes=3>"
    assert vector.metadata == vector.writers[0].metadata
    for one in vector.writers:
        best = CheckpointFile(one.path / ".live" / "checkpoint", one.metadata["uuid"]).best
        assert best.head == 1


def test_lanes_of_one_writer_share_their_threads(make, story, lz4):
    before = set(threading.enumerate())
    writer = make(n_lanes=4, flush_s=3600, **lz4)
    story.play(writer, 40)
    assert len(set(threading.enumerate()) - before) == 2
    with mmreplay.open(writer.path) as store:
        story.check(store)
    writer.close()
    assert set(threading.enumerate()) == before
