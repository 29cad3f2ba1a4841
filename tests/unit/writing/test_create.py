"""Making stores: whole or not at all, whatever fails."""

import errno

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.errors import (
    DiskFullError,
    FailedStoreError,
    FormatError,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
)
from mmreplay.format import layout
from mmreplay.system import durable_writes
from tests.support.writers import ACTION, FRAME, attributes

pytestmark = pytest.mark.usefixtures("quick_disk")


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
def test_an_existing_path_is_not_overwritten(make, tmp_path, there):
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


def test_arguments_that_make_no_store_are_refused_and_leave_no_file(make, tmp_path):
    for wrong, match in (
        ({"frame": None}, "frame: a new store needs one"),
        ({"action": None}, "action: a new store needs one"),
        ({"frame": (84, 84)}, "expected an mmreplay.Field"),
        ({"padding": "edge"}, "padding: expected 'reset' or 'zero', found 'edge'"),
        ({"lanes": 0}, "lanes: expected a whole number, 1 to 65,536, or None; found 0"),
        ({"lanes": 100_000}, "lanes: expected a whole number, 1 to 65,536, or None; found 100000"),
        ({"lanes": "2"}, "lanes: expected a whole number, 1 to 65,536, or None; found '2'"),
        ({"lanes": 3, "capacity": 2}, "for each of 3 environments"),
        ({"metadata": [1]}, "metadata: expected a dict, found list"),
        ({"metadata": "words"}, "metadata: expected a dict, found str"),
        ({"flush_s": "3"}, "flush_s: expected seconds, 0 for never; found '3'"),
        ({"flush_s": None}, "flush_s: expected seconds"),
        ({"flush_s": float("nan")}, "flush_s: expected seconds, 0 for never; found nan"),
        ({"flush_s": np.float32("-inf")}, "flush_s: expected seconds"),
        ({"codec": 5}, "codec: expected 'raw', 'lz4', 'zstd', a name with a level"),
        ({"frame": Field((3,)), "codec": "lz5"}, "expected codec"),
        ({"reward_dtype": "int32"}, "reward_dtype"),
        ({"extras": {"reward": Field()}}, "arguments of step"),
        ({"metadata": {"x": np.float32(1)}}, "metadata"),
        ({"metadata": {"x": float("nan")}}, "metadata"),
        ({"metadata": {"x": object()}}, "metadata"),
        ({"metadata": {"x": "y" * (2 << 20)}}, "metadata"),
    ):
        with pytest.raises(SchemaError, match=match):
            make(**wrong)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("n_lanes", [None, 2])
def test_a_full_disk_at_creation_leaves_no_file(make, tmp_path, monkeypatch, n_lanes, lz4):
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


@pytest.mark.parametrize("given", [{}, {"lanes": 2}, {"lane": "me"}])
def test_a_store_that_cannot_be_made_is_not_said_to_hold_rows(make, tmp_path, monkeypatch, given):
    def broken(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_fsync", broken)
        with pytest.raises(
            FailedStoreError,
            match=r"store\.zarr: fsync failed: Input/output.* nothing is left behind",
        ) as e:
            make(**given)
    assert "committed" not in str(e.value)
    assert list(tmp_path.iterdir()) == []
    make(**given)


@pytest.mark.parametrize("failure", [(OSError, errno.ENOSPC, "full"), (KeyboardInterrupt,)])
def test_a_lane_that_could_not_be_made_takes_no_room(make, monkeypatch, lz4, failure):
    path = make(lane="a", **lz4).path.parent

    def fail(descriptor, size):
        raise failure[0](*failure[1:])

    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_fallocate", fail)
        with pytest.raises((DiskFullError, KeyboardInterrupt)):
            make(append=True, lane="b")
    assert sorted(one.name for one in path.iterdir()) == ["lane-00000", "zarr.json"]
    assert make(append=True, lane="b").path.name == "lane-00001"


def test_of_two_processes_that_create_a_store_one_succeeds_and_the_other_gets_an_error(
    make, monkeypatch, impatient
):
    real = durable_writes.replace_directory

    def beaten(built, path):
        monkeypatch.setattr(durable_writes, "replace_directory", real)
        make(path.name).close()
        return real(built, path)

    monkeypatch.setattr(durable_writes, "replace_directory", beaten)
    with pytest.raises(StoreExistsError, match="another process has just created it"):
        make()
    monkeypatch.setattr(durable_writes, "replace_directory", beaten)
    assert make("other.zarr", append=True, frame=FRAME, action=ACTION).rows == 0


def test_metadata_is_kept_as_json_has_it(make, story):
    writer = make(metadata={"meanings": {number: str(number) for number in range(12)}, 1: (2, 3)})
    story.play(writer, 9, "truncated")
    assert writer.metadata["env"]["1"] == [2, 3]
    writer.close()
    assert attributes(writer.path)["env"] == writer.metadata["env"]
    make(append=True, metadata={7: {"k": 2, 1: "x"}}).close()
    assert attributes(writer.path)["env"] == writer.metadata["env"] | {"7": {"k": 2, "1": "x"}}
    with pytest.raises(SchemaError, match="a key appears twice"):
        make("other.zarr", metadata={1: 2, "1": 3})


@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_a_lane_of_atari_that_is_open_has_few_files_and_takes_little_room_at_once(make, codec):
    frame = Field((84, 84), "uint8", codec)
    with make(frame=frame, action=Field((), "int64")) as writer:
        writer.reset(np.zeros((84, 84), np.uint8))
        writer.step(0, 1.0, np.zeros((84, 84), np.uint8))
        files = [one for one in writer.path.rglob("*") if one.is_file()]
        assert len(files) <= 44
        assert sum(512 * one.stat().st_blocks for one in files) <= 64_000_000


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
def test_rows_of_another_environment_are_refused(tmp_path):
    gymnasium = pytest.importorskip("gymnasium")
    first, second = (gymnasium.make(name) for name in ("CartPole-v0", "CartPole-v1"))
    mmreplay.create(tmp_path / "s", env=first).close()
    mmreplay.create(tmp_path / "s", env=first, append=True).close()
    with pytest.raises(SchemaError, match="found env CartPole-v1"):
        mmreplay.create(tmp_path / "s", env=second, append=True)
    with pytest.raises(
        SchemaError, match="expected CartPole-v0, which this store was recorded from"
    ):
        mmreplay.RecordExperience(second, tmp_path / "s", append=True)


def test_metadata_is_merged_and_never_erases_where_the_rows_came_from(tmp_path):
    gymnasium = pytest.importorskip("gymnasium")
    env, path = gymnasium.make("CartPole-v1"), tmp_path / "s"

    def kept(**how):
        with mmreplay.create(path, env=env, append=True, **how) as writer:
            return writer.metadata["env"]

    known = kept(metadata={"run": {"seed": 1, "net": "small"}, "versions": {"mine": "3"}})
    assert known["id"] == "CartPole-v1"
    assert known["versions"]["gymnasium"]
    assert known["versions"]["mine"] == "3"
    assert kept() == known
    changed = kept(metadata={"run": {"seed": 2}, "versions": {"yours": "4"}, "new": None})
    assert changed == known | {
        "run": {"seed": 2, "net": "small"},
        "versions": known["versions"] | {"yours": "4"},
        "new": None,
    }
    recorder = mmreplay.RecordExperience(env, path, metadata={"note": "again"})
    assert recorder.writer.metadata["env"] == changed | {"note": "again", "life_loss": False}
    recorder.close()


def test_lanes_that_are_added_have_the_metadata_of_the_store_too(make):
    make(lane="a", metadata={"seed": 1, "who": "a"}).close()
    with make(lane="b", metadata={"seed": 2}) as writer:
        assert writer.metadata["env"] == {"seed": 2, "who": "a"}


@pytest.mark.parametrize("lane", [None, "actor-0"])
def test_resume_needs_a_store_or_a_free_path(make, tmp_path, lane):
    named = {} if lane is None else {"lane": lane}
    with pytest.raises(StoreNotFoundError, match=r"no store here to resume.*resume='auto'"):
        make(resume=True, **named)
    assert not list(tmp_path.iterdir())
    make(resume=False, **named).close()
    with pytest.raises(StoreExistsError, match=r"already.*resume=True"):
        make(resume=False, **named)
    for resume in (True, "auto"):
        make(resume=resume, **named).close()
    if lane is not None:
        with pytest.raises(StoreNotFoundError, match="no lane 'b' to resume"):
            make(resume=True, lane="b")
        make(resume=False, lane="b").close()
    for wrong in ("yes", 1, 0):
        with pytest.raises(SchemaError, match="resume: expected True, False or 'auto', found"):
            make(resume=wrong, **named)


@pytest.mark.parametrize("lanes", [None, 2])
def test_a_step_without_an_extra_stores_its_fill_and_the_store_keeps_it(make, lanes):
    extras = {"x": Field((), "float32", fill=-1), "y": Field((2,), "int8")}
    n = () if lanes is None else (lanes,)
    given, frame = {} if lanes is None else {"lanes": lanes}, np.zeros((*n, *FRAME.shape), "u1")
    flags, y = (np.zeros(n, bool),) * 2, np.ones((*n, 2), "i1")
    with make(extras=extras, **given) as writer:
        writer.reset(frame)
        writer.step(np.zeros(n, "i8"), np.ones(n), frame, *flags, y=y)
        writer.step(np.zeros(n, "i8"), np.ones(n), frame, *flags, y=y, x=np.full(n, 5.0))
        for wrong in ({}, {"x": np.ones(n)}, {"y": y, "z": y}):
            with pytest.raises(SchemaError, match=r"extras: expected \['x', 'y'\], found"):
                writer.step(np.zeros(n, "i8"), np.ones(n), frame, *flags, **wrong)
    with make(append=True) as writer:
        writer.reset(frame)
        writer.step(np.zeros(n, "i8"), np.ones(n), frame, *flags, y=y)
    make(append=True, extras={"x": Field((), "float32"), "y": Field((2,), "int8")}).close()
    with pytest.raises(SchemaError, match=r"extras/x: expected fill -1.0, found 2.0; leave it out"):
        make(append=True, extras=extras | {"x": Field((), "float32", fill=2)})
    with mmreplay.open(writer.path) as store:
        batch = store.transitions(store.ids)
        assert batch.extras["x"].reshape(3, -1).tolist() == [
            [x] * (lanes or 1) for x in (-1, 5, -1)
        ]
