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
from mmreplay import Field, VectorWriter, Writer, verify
from mmreplay.errors import (
    DiskFullError,
    FailedStoreError,
    FormatError,
    LockedError,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
)
from mmreplay.format import layout
from mmreplay.system import durable_writes, locks
from mmreplay.writing import create, recover
from tests.support.disks.trees import contents

pytestmark = pytest.mark.usefixtures("quick_disk")

FRAME, ACTION = Field((3,), "uint8", "raw", chunk=8), Field((), "int64", chunk=8)


def attributes(path):
    return json.loads((path / "zarr.json").read_bytes())["attributes"]["mmreplay"]


def check(story, writer):
    with mmreplay.open(writer.path) as store:
        story.check(store)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(locks.DirectoryLock.__init__, "__kwdefaults__", {"patience_s": 0})


# ---------------------------------------------------------------- capacity


@pytest.mark.parametrize("n_lanes", [1, 2, 3, 7])
@pytest.mark.parametrize("capacity", [7, 8, 100, 1000])
def test_a_capacity_is_divided_evenly_and_exactly(capacity, n_lanes):
    shares = create.split_capacity(capacity, n_lanes)
    assert sum(share or 0 for share in shares) == capacity
    assert max(share or 0 for share in shares) - min(share or 0 for share in shares) <= 1


def test_no_capacity_is_none_in_every_lane_and_one_below_the_lanes_is_refused():
    assert create.split_capacity(None, 3) == [None] * 3
    with pytest.raises(SchemaError, match="one transition or more for each of 3 lanes, found 2"):
        create.split_capacity(2, 3)


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
    with pytest.raises(SchemaError, match="capacity: expected a whole number, 1 to"):
        make(capacity=capacity)
    assert list(tmp_path.iterdir()) == []


def test_a_capacity_that_no_lane_could_ever_fill_is_refused(make, tmp_path):
    for capacity in (1 << 40, 10**30):
        with pytest.raises(SchemaError, match=f"1 to {(1 << 40) - 1:,}, or None"):
            make(capacity=capacity)
    assert list(tmp_path.iterdir()) == []
    make(capacity=(1 << 40) - 1).close()
    assert make(append=True).metadata["capacity"] == (1 << 40) - 1


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
    assert writer.metadata | {"crc32c": layout.digest(writer.metadata)} == own


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
    with pytest.raises(StoreNotFoundError, match="file: is no directory; choose another path"):
        make("file/store.zarr")
    with pytest.raises(StoreNotFoundError, match="deeper: cannot be looked into: Not a dir"):
        make("file/deeper/store.zarr")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"frame": None}, "frame: a new store needs one"),
        ({"action": None}, "action: a new store needs one"),
        ({"frame": (84, 84)}, "expected an mmreplay.Field"),
        ({"padding": "edge"}, "padding: expected 'reset' or 'zero', found 'edge'"),
        ({"lanes": 0}, "lanes: expected a whole number, 1 to 4,096, or None; found 0"),
        ({"lanes": 100_000}, "lanes: expected a whole number, 1 to 4,096, or None; found 100000"),
        ({"lanes": "2"}, "lanes: expected a whole number, 1 to 4,096, or None; found '2'"),
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
    writer.files.on_flush = lambda: json.dumps({"state": "z" * 1000})
    writer.close()
    check(story, writer)
    make(append=True)


@pytest.mark.parametrize("n_lanes", [None, 2])
def test_no_room_leaves_nothing(make, tmp_path, monkeypatch, n_lanes, lz4):
    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    real = durable_writes._fallocate
    for at in range(5):
        count = [0]

        def nearly_full(descriptor, size, at=at, count=count):
            count[0] += 1
            if count[0] > at:
                full()
            real(descriptor, size)

        with monkeypatch.context() as patch:
            patch.setattr(durable_writes, "_fallocate", nearly_full)
            with pytest.raises(DiskFullError):
                make(lanes=n_lanes, **lz4)
        assert list(tmp_path.iterdir()) == []
    make(lanes=n_lanes, **lz4)


@pytest.mark.parametrize("n_lanes", [None, 2])
def test_a_death_while_a_store_without_room_is_removed_leaves_no_name(
    make, tmp_path, monkeypatch, n_lanes
):
    """As if killed: nothing more is removed from the first file that goes."""

    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    def killed(*_):
        raise KeyboardInterrupt

    built = durable_writes.replace_directory

    def replace(*args):
        done = built(*args)
        monkeypatch.setattr(durable_writes, "_fallocate", full)
        monkeypatch.setattr(durable_writes, "unlink", killed)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "replace_directory", replace)
        with pytest.raises(KeyboardInterrupt):
            make(lanes=n_lanes)
    monkeypatch.undo()
    assert not (tmp_path / "store.zarr").exists()
    assert len(list(tmp_path.iterdir())) == 1
    make(lanes=n_lanes)
    assert [one.name for one in tmp_path.iterdir()] == ["store.zarr"]


@pytest.mark.parametrize("given", [{}, {"lanes": 2}, {"lane": "me"}])
def test_a_store_that_cannot_be_made_is_not_said_to_hold_rows(make, tmp_path, monkeypatch, given):
    def broken(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_fsync", broken)
        with pytest.raises(
            FailedStoreError, match=r"store\.zarr: could not be made: Input/output"
        ) as e:
            make(**given)
    assert "committed" not in str(e.value)
    assert list(tmp_path.iterdir()) == []
    make(**given)


def test_a_lane_that_cannot_be_made_is_not_said_to_hold_rows(make, monkeypatch):
    path = make(lane="a").path.parent

    def broken(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_fsync", broken)
        with pytest.raises(FailedStoreError, match=r"lane-00001: could not be made: Input/") as e:
            make(append=True, lane="b")
    assert "committed" not in str(e.value)
    assert sorted(one.name for one in path.iterdir()) == ["lane-00000", "zarr.json"]
    assert make(append=True, lane="b").path.name == "lane-00001"


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_of_a_lane_that_was_begun_nothing_takes_room(make, monkeypatch, lz4, failure):
    path = make(lane="a", **lz4).path.parent

    def fail(descriptor, size):
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_fallocate", fail)
        with pytest.raises((DiskFullError, KeyboardInterrupt)):
            make(append=True, lane="b")
    assert sorted(one.name for one in path.iterdir()) == ["lane-00000", "zarr.json"]
    assert make(append=True, lane="b").path.name == "lane-00001"


def test_a_store_has_its_name_only_once_it_is_whole_and_durable(make, tmp_path, monkeypatch):
    path, seen = tmp_path / "store.zarr", []
    real_replace, real_tree, synced = durable_writes.replace_directory, durable_writes.sync_tree, []

    def replace(built, target):
        assert not path.exists()
        assert synced == [built]
        with mmreplay.open(built) as store:
            assert len(store) == 0
        seen.append(target)
        return real_replace(built, target)

    monkeypatch.setattr(
        durable_writes, "sync_tree", lambda built: (real_tree(built), synced.append(built))
    )
    monkeypatch.setattr(durable_writes, "replace_directory", replace)
    make(lanes=2)
    assert seen == [path]
    assert [one.name for one in tmp_path.iterdir()] == ["store.zarr"]


def test_of_two_who_make_the_same_store_one_does_and_the_other_is_told(
    make, monkeypatch, impatient
):
    real = durable_writes.replace_directory

    def beaten(built, path):
        monkeypatch.setattr(durable_writes, "replace_directory", real)
        make(path.name).close()
        return real(built, path)

    monkeypatch.setattr(durable_writes, "replace_directory", beaten)
    with pytest.raises(StoreExistsError, match="somebody else made it at this moment"):
        make()
    monkeypatch.setattr(durable_writes, "replace_directory", beaten)
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
    with pytest.raises(LockedError, match="open for writing already, in this process"):
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


# ---------------------------------------------------------------- wherever, and whenever


def test_a_store_stays_the_same_when_the_working_directory_changes(tmp_path, monkeypatch, lz4):
    given = lz4 | {"action": Field((), "int64", chunk=8), "flush_s": 0}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "b")
    with mmreplay.create("s.zarr", **given) as other:
        other.reset(np.full(3, 2, np.uint8))
        for _ in range(40):
            other.step(2, 2.0, np.full(3, 2, np.uint8))
    before = contents(tmp_path / "b")
    monkeypatch.chdir(tmp_path / "a")
    buffer = mmreplay.ReplayBuffer(
        "s.zarr", stack=None, frame=given["frame"], action=Field((), "int64"), flush_s=0
    )
    data = None
    buffer.reset(np.ones(3, np.uint8))
    for step in range(40):
        buffer.step(1, 1.0, np.ones(3, np.uint8))
        if step == 20:
            buffer.flush()
            data = mmreplay.load("s.zarr", stack=None)
            store = mmreplay.open("s.zarr")
            monkeypatch.chdir(tmp_path / "b")
    store.refresh()
    assert store.live.rows(0) == 41
    assert (data.sample(32).observation == 1).all()
    assert (buffer.sample(32).observation == 1).all()
    buffer.close()
    assert (data.sample(32).observation == 1).all()
    assert contents(tmp_path / "b") == before
    assert mmreplay.verify(tmp_path / "a" / "s.zarr").sound


@pytest.mark.parametrize("n_lanes", [None, 2])
@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_a_store_can_be_closed_while_the_interpreter_ends(child, tmp_path, codec, n_lanes):
    code = """
import atexit, sys
import numpy as np
import mmreplay

path, codec, lanes = sys.argv[1], sys.argv[2], eval(sys.argv[3])
field = mmreplay.Field((4,), "uint8", codec, 2, None if codec == "raw" else 4)
writer = mmreplay.create(path, field, mmreplay.Field((), "int64", chunk=8), lanes=lanes)
lead = () if lanes is None else (lanes,)
frame = np.zeros((*lead, 4), np.uint8)

def end():
    for _ in range(20):
        writer.step(np.zeros(lead, int), np.zeros(lead), frame, *[np.zeros(lead, bool)] * 2)
    writer.close()

writer.reset(frame)
atexit.register(end)
"""
    child(code, tmp_path / "s.zarr", codec, n_lanes)
    report = mmreplay.verify(tmp_path / "s.zarr")
    assert (report.sound, report.state, report.rows) == (True, "closed", 21 * (n_lanes or 1))


def test_metadata_is_kept_as_json_has_it(make, story):
    writer = make(metadata={"meanings": {number: str(number) for number in range(12)}, 1: (2, 3)})
    story.play(writer, 9)
    assert writer.metadata["env"]["1"] == [2, 3]
    writer.close()
    assert verify(writer.path).sound
    make(append=True, metadata={7: {"k": 2, 1: "x"}}).close()
    assert verify(writer.path).sound
    with pytest.raises(SchemaError, match="a key stands twice"):
        make("other.zarr", metadata={1: 2, "1": 3})


@pytest.mark.parametrize("name", ["", "x" * 256, 5, b"a"])
def test_a_name_that_no_lane_can_have_is_refused(make, tmp_path, name):
    with pytest.raises(SchemaError, match="lane: expected a name of 1 to 255 letters"):
        make(lane=name)
    assert list(tmp_path.iterdir()) == []


def test_a_recovery_says_who_is_at_it_and_not_who_died(make, story, kill, impatient, monkeypatch):
    writer = make()
    story.play(writer, 9)
    path = writer.path / ".live" / "writer"
    path.write_text(path.read_text().replace(f'"pid": {os.getpid()}', '"pid": 1'))
    kill(writer)
    told = []
    monkeypatch.setattr(recover, "_remove_litter", lambda _: told.append(path.read_text()))
    make(append=True)
    assert f'"pid": {os.getpid()}' in told[0]


# ---------------------------------------------------------------- arguments that are none


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metadata": [1]}, "metadata: expected a dict, found list"),
        ({"metadata": "words"}, "metadata: expected a dict, found str"),
        ({"flush_s": "3"}, "flush_s: expected seconds, 0 for never; found '3'"),
        ({"flush_s": None}, "flush_s: expected seconds"),
        ({"flush_s": float("nan")}, "flush_s: expected seconds, 0 for never; found nan"),
        ({"flush_s": -1}, "flush_s: expected seconds"),
        ({"flush_s": np.float32("-inf")}, "flush_s: expected seconds"),
        ({"codec": 5}, "codec: expected 'raw', 'lz4', 'zstd' or a zarr codec as a dict, found 5"),
    ],
)
def test_an_argument_that_is_none_is_named_before_anything_is_made(tmp_path, given, message):
    with pytest.raises(SchemaError, match=message):
        mmreplay.create(tmp_path / "store.zarr", **{"frame": FRAME, "action": ACTION} | given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seconds", [float("inf"), np.float64("inf"), 10**400])
def test_forever_is_never(make, story, seconds):
    writer = make(flush_s=seconds)
    story.play(writer, 3)
    assert writer._background.flush_s == 0
    assert not [one for one in threading.enumerate() if one.name == "mmreplay-flush"]
    writer.close()
    check(story, writer)


@pytest.mark.parametrize("seconds", [np.float32(0.5), np.int64(2), 3, 4.5])
def test_seconds_are_any_number(make, seconds):
    assert make(flush_s=seconds)._background.flush_s == seconds


@pytest.mark.parametrize("place", ["lane-00002", "lane-00000/more.zarr", "more.zarr"])
def test_no_store_is_made_within_another(make, tmp_path, place):
    make("outer.zarr", lanes=2)
    with pytest.raises(SchemaError, match=r"lies within the store .*outer\.zarr"):
        make(f"outer.zarr/{place}")
    assert not (tmp_path / "outer.zarr" / place).exists()
