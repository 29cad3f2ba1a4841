"""`verify` of lanes of many environments: sound ones, and each rule between ticks and starts."""

import json
import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, verify
from tests.support.disks.trees import flip
from tests.support.oracle.vector_pair import FIELDS, of_writer
from tests.support.tampering.findings import texts
from tests.support.tampering.forgery import edit, forge

LZ4 = Field((3,), "float32", "lz4", chunk=2, shard=8)


def assert_sound(path, state):
    report = verify(path)
    assert (report.state, texts(report), report.warnings) == (state, [], [])
    return report


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("codec", ["raw", "lz4"])
@pytest.mark.parametrize("capacity", [None, 300])
def test_a_sound_lane(vector, kill, n, codec, capacity):
    frame = LZ4 if codec == "lz4" else Field((3,), "float32", "raw", chunk=8)
    model = vector(n, frame=frame, capacity=capacity)
    path = model.writer.path
    model.play(90)
    assert assert_sound(path, "live").rows == 90
    for _ in range(2):
        model.play(130 if n > 1 else 500)
        model.writer.flush()
    report = assert_sound(path, "live")
    assert report.rows == model.writer.rows - model.writer.base
    assert (model.writer.base > 0) == (capacity is not None)
    kill(model.writer)
    assert_sound(path, "crashed")
    mmreplay.create(path, append=True, flush_s=0).close()
    assert_sound(path, "closed")


def test_a_lane_of_a_store_of_lanes(vector, make, story):
    story.play(make("store.zarr", lane="single", frame=LZ4, extras={"x": Field((), "int8")}), 9)
    model = vector(4, lane="many", frame=LZ4)
    model.play(40)
    model.writer.close()
    lane = model.writer.path
    assert texts(verify(lane.parent)) == []
    flip(lane / "ticks" / "frames" / "c.1.0.0", 9)
    found = verify(lane.parent).findings
    assert {(one.lane, one.array, one.file) for one in found} == {
        (lane.name, "ticks/frames", f"{lane.name}/ticks/frames/c.1.0.0")
    }


# ---------------------------------------------------------------- files


@pytest.fixture
def closed(copy_of, vector):
    """A closed lane of 5 environments and 70 ticks."""

    def make_it():
        model = vector(frame=LZ4)
        model.play(70)
        model.writer.close()
        return model.writer.path

    return copy_of("closed", make_it)


def test_an_inner_chunk_names_its_environment(closed):
    """Of the shard's 4 blocks of 2 ticks, each with one chunk of every environment."""
    flip(closed / "ticks" / "frames" / "c.1.0.0", 3)
    found = texts(verify(closed))
    assert any(
        one.startswith("ticks/frames/c.1.0.0, rows 8 to 9: inner chunk 0: ")
        and one.endswith("(environment 0)")
        for one in found
    ), found


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("ticks/rewards/c.0.0", "checksum"),
        ("ticks/episode/c.0.0", "checksum"),
        ("starts/env/c.0", "checksum"),
        ("starts/frames/c.0.0", "expected"),
        ("checksums of ticks", "differs"),
    ],
)
def test_a_byte_that_changed(closed, file, expected):
    name = "ticks/checksums/rewards/c.0" if file == "checksums of ticks" else file
    flip(closed / name, 1)
    found = texts(verify(closed))
    assert found
    assert any(expected in one for one in found), found


@pytest.mark.parametrize(
    "file", ["ticks/rewards/c.0.0", "starts/tick/c.0", "ticks/zarr.json", "starts/env/zarr.json"]
)
def test_a_file_that_is_missing(closed, file):
    (closed / file).unlink()
    found = verify(closed).findings
    assert file in {one.file for one in found}


def test_a_log_that_is_missing(closed):
    shutil.rmtree(closed / "starts")
    report = verify(closed)
    assert "starts/zarr.json: missing, with its directory" in texts(report)
    assert report.state == "closed"


def test_names_that_are_not_known(closed):
    (closed / "notes.txt").write_text("x")
    (closed / "ticks" / "resets").mkdir()
    (closed / "zarr.json.1.tmp").write_text("x")
    report = verify(closed)
    assert texts(report) == [
        "notes.txt: no part of the store: expected the logs ticks and starts only",
        "ticks/resets: no part of the store: expected arrays and groups of the schema only",
    ]
    assert [one.file for one in report.warnings] == ["zarr.json.1.tmp"]


def test_a_priority_that_is_none(tmp_path, quick_disk):
    given = {"frame": LZ4, "action": Field((), "int64", chunk=8), "lanes": 3, "capacity": 90}
    path, none = tmp_path / "store.zarr", [False] * 3
    with mmreplay.PrioritizedReplayBuffer(path, stack=None, flush_s=0, **given) as buffer:
        buffer.reset(np.zeros((3, 3), "f4"))
        for _ in range(20):
            buffer.step([0] * 3, [0.0] * 3, np.ones((3, 3), "f4"), none, none)
        buffer.update_priorities(buffer.ids, np.ones(60))
    assert_sound(path, "closed")
    np.memmap(path / "ticks" / "priorities" / "c.0.0", "<f8", "r+").reshape(-1, 3)[7, 2] = -1
    (found,) = [one for one in verify(path).findings if "finite" in one.message]
    assert (found.array, found.rows) == ("ticks/priorities", (7, 8))


def change(path, **changes):
    edit(path / "zarr.json", lambda d: d["attributes"]["mmreplay"].update(changes))


def test_a_log_of_another_lane(closed):
    change(closed / "starts", uuid="0" * 32)
    assert any("starts/zarr.json: uuid: expected that of" in one for one in texts(verify(closed)))


def test_attributes_that_are_not_those_of_a_log(closed):
    change(closed / "ticks", capacity=3)
    assert texts(verify(closed)) == [
        "ticks/zarr.json: attributes.mmreplay: 'capacity' is unknown to format 1"
    ]


@pytest.mark.parametrize("log", ["ticks", "starts"])
def test_the_first_row_where_no_capacity_is_set(closed, log):
    change(closed / log, first=3)
    assert f"{log}/zarr.json: first: expected 0 where no capacity is set, found 3" in texts(
        verify(closed)
    )


def test_the_first_tick_is_that_of_the_capacity(vector):
    model = vector(capacity=100)
    model.play(60)
    model.writer.close()
    own = json.loads((model.writer.path / "ticks" / "zarr.json").read_bytes())
    first = own["attributes"]["mmreplay"]["first"]
    change(model.writer.path / "ticks", first=first - 1)
    (found,) = texts(verify(model.writer.path))
    assert found.startswith(f"ticks/zarr.json: first: expected {first}, from which on the 100 ")


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_priority_of_an_environment_that_was_left_out(tmp_path, kill, end):
    path = tmp_path / "store.zarr"
    buffer = mmreplay.PrioritizedReplayBuffer(path, **FIELDS, lanes=5, stack=None, flush_s=0)
    model = of_writer(buffer.writer)
    model.play(70)
    buffer.update_priorities(buffer.ids, np.ones(len(buffer)))
    kill(buffer.writer) if end == "kill" else buffer.close()
    assert texts(verify(path)) == []
    tick, env = np.argwhere(model.columns("ticks")["episode"] < 0)[3]

    def give(data):
        np.frombuffer(data, "<f8").reshape(-1, 5)[tick, env] = 0.5

    if end == "close":
        forge(path / "ticks", "priorities", 0, give)
    else:
        give(np.memmap(path / "ticks" / "priorities" / "c.0.0", "u1", "r+"))
    text = "environments that were left out: expected no priority, found one in tick"
    assert texts(verify(path)) == [f"ticks/priorities, row {tick}: {text} {tick}"]
