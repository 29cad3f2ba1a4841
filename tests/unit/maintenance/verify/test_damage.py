"""Damage to a lane, and what `verify` says of it: of one environment, and of three with gaps.

Invariant: whatever breaks one rule has a finding that names the array, the file and the rows, and
of damage that a checksum shows no rule says anything.
"""

import json
import os
import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, verify
from mmreplay.maintenance.verify import chunks, rules
from tests.support.disks.trees import flip
from tests.support.oracle.pair import FIELDS, of_writer
from tests.support.tampering.findings import messages, texts
from tests.support.tampering.forgery import forge

ACTION = Field((), "uint8", chunk=8)
LZ4 = Field((3,), "float32", "lz4", chunk=2, shard=8)
BLOCK = 4096


def put(lane, array, entry, value, n=1):
    """Store another number into a raw array, with a checksum that fits."""
    document = json.loads((lane / array / "zarr.json").read_bytes())
    dtype = np.dtype(document["data_type"])
    rows = document["chunk_grid"]["configuration"]["chunk_shape"][0]
    log, _, name = array.rpartition("finals/")
    chunk, place = divmod(entry, rows * n)

    def change(data):
        values = np.frombuffer(data, dtype)
        values[place * values.size // (rows * n)] = value

    forge(lane / log.strip("/") / "finals" if "finals/" in array else lane, name, chunk, change)


@pytest.fixture
def one(closed_store):
    """A closed lane of one environment: episodes of 9, 11 and 13 steps, in chunks of 8 rows."""
    return closed_store("raw")


@pytest.fixture
def three(copy_of, make):
    """A closed lane of 3 environments and 8 rows, with gaps; a final observation in [] brackets:

    environment 0: 1 2 3] 1 2 3 4 5]
    environment 1: 1 2] . . 1 2 3 4]
    environment 2: 1 2 3 4 5] . 1 2]
    """

    def make_it():
        writer = make(**FIELDS | {"lanes": 3})
        pair = of_writer(writer)
        pair.reset()
        pair.step()
        pair.step(terminated=[1])
        pair.step(truncated=[0])
        pair.reset([0])
        pair.step()
        pair.reset([1])
        pair.step(terminated=[2])
        pair.step()
        pair.reset([2])
        pair.step()
        pair.step()
        writer.close()
        return writer.path

    return copy_of("three", make_it)


ONE = [
    # array, entry, value, rows of the finding, what it says
    ("step", 5, 9, (5, 7), rules.NUMBER),
    ("step", 3, 0, (3, 4), rules.NO_TRANSITION),
    ("resets", 9, 0, (9, 10), rules.RESET),
    ("resets", 4, 1, (4, 5), rules.RESET),
    ("resets", 9, 2, (9, 10), rules.FLAG),
    ("ends", 4, 1, (4, 5), rules.END),
    ("ends", 8, 0, (8, 9), rules.END),
    ("ends", 32, 0, (32, 33), rules.END),
    ("non_terminals", 4, 2, (4, 5), rules.FLAG),
    ("finals/id", 1, 18, (1, 2), rules.NO_END),
    ("finals/id", 2, 40, (2, 3), rules.NO_END),
    ("finals/first", 1, 8, (1, 2), rules.FIRST),
]
THREE = [
    ("ends", 3 * 2 + 1, 1, (2, 3), rules.LEFT_OUT),
    ("resets", 3 * 4 + 1, 0, (4, 5), rules.RESET),
    ("step", 3 * 4 + 1, 5, (4, 6), rules.NUMBER),
    ("ends", 3 * 1 + 1, 0, (1, 2), rules.END),
    ("finals/id", 0, 3 * 1 + 0, (0, 1), rules.NO_END),
    ("finals/id", 1, 3 * 1 + 1, (1, 2), rules.NO_END),
    ("finals/first", 2, 3, (2, 3), rules.FIRST),
]


def assert_found(lane, array, rows, text):
    found = verify(lane).findings
    wanted = [one for one in found if one.array == array and one.message.startswith(text)]
    assert [one.rows for one in wanted] == [rows], texts(verify(lane))
    assert wanted[0].file.startswith(f"{array}/c.0") or rows[0] >= 8
    assert not any("crc32c" in one.message for one in found)


@pytest.mark.parametrize(("array", "entry", "value", "rows", "text"), ONE)
def test_each_rule_for_the_rows_of_one_environment(one, array, entry, value, rows, text):
    put(one, array, entry, value)
    assert_found(one, array, rows, text)


@pytest.mark.parametrize(("array", "entry", "value", "rows", "text"), THREE)
def test_each_rule_for_the_rows_of_three_environments(three, array, entry, value, rows, text):
    assert verify(three).findings == []
    put(three, array, entry, value, 1 if array.startswith("finals") else 3)
    assert_found(three, array, rows, text)


def test_a_final_observation_that_is_missing(one):
    """All later ones move up, as if it had never been written."""
    for entry, (last, first) in enumerate([(19, 9), (32, 20), (32, 20)]):
        put(one, "finals/id", entry, last)
        put(one, "finals/first", entry, first)
    found = {(one.array, one.rows): one.message for one in verify(one).findings}
    assert found["ends", (8, 9)].startswith(rules.NO_FINAL)
    assert found["finals/id", (2, 3)].startswith(rules.NO_END)


def test_a_priority_file_that_is_missing(three):
    with mmreplay.PrioritizedReplayBuffer(three, flush_s=0) as buffer:
        buffer.update_priorities(buffer.ids, np.ones(len(buffer)))
    assert verify(three).findings == []
    (three / "priorities" / "c.0.0").unlink()
    assert messages(three, "priorities/c.0.0") == ["expected this chunk file, found none"]


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("file", "rows", "texts"),
    [
        ("rewards/c.1", (8, 16), {"flip": "checksum: expected crc32c", "cut": "expected 32 bytes"}),
        ("step/c.1", (8, 16), {"flip": "checksum: expected crc32c", "cut": "expected 64 bytes"}),
        ("finals/id/c.0", (0, 3), {"flip": "checksum: expected crc32c", "cut": "expected 131,072"}),
        ("frames/c.1.0", (8, 16), {"flip": "inner chunk 0: ", "cut": "the shard's index does not"}),
    ],
)
@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_damage_to_a_chunk_file_is_one_finding(lz4_store, file, rows, texts, how):
    path = lz4_store / file
    if how == "flip":
        flip(path, 3)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    (found,) = verify(lz4_store).findings
    assert found.message.startswith(texts.get(how, "expected this chunk file, found none"))
    assert (found.file, found.array) == (file, os.path.dirname(file))
    wanted = (rows[0], rows[0] + 4) if how == "flip" and "frames" in file else rows
    assert found.rows in (rows, wanted)


def test_an_inner_chunk_names_its_environment(make):
    pair = of_writer(make(**FIELDS | {"lanes": 5, "frame": LZ4}))
    pair.play(30)
    pair.writer.close()
    path = pair.writer.path
    flip(path / "frames" / "c.1.0.0", 3)
    (found,) = verify(path).findings
    assert found.rows == (8, 10)
    assert found.message.startswith("inner chunk 0: ")
    assert found.message.endswith("(environment 0)")


@pytest.mark.parametrize("array", ["frames", "rewards"])
def test_two_chunk_files_that_were_exchanged_are_found(make, array):
    """Also shards whose inner chunks are of equal lengths, as of frames that are mere noise."""
    generator = np.random.default_rng(0)
    writer = make(frame=Field((64,), "uint8", "lz4", chunk=4, shard=8), action=ACTION)
    writer.reset(np.zeros(64, np.uint8))
    for row in range(1, 30):
        writer.step(0, float(row), generator.integers(256, size=64, dtype=np.uint8))
    writer.close()
    one, two = (next((writer.path / array).glob(f"c.{chunk}*")) for chunk in (0, 1))
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)
    files = [one.file for one in verify(writer.path).findings]
    assert files == [f"{array}/{one.name}", f"{array}/{two.name}"]


@pytest.mark.parametrize("array", ["frames", "actions", "finals/first"])
def test_checksums_that_are_damaged(lz4_store, array):
    folder, name = (lz4_store, array) if "/" not in array else (lz4_store / "finals", "first")
    sums = folder / "checksums" / name / "c.0"
    flip(sums, 2)
    assert [one.message for one in verify(lz4_store).findings] == [chunks.WRONG_CHECKSUM]
    sums.write_bytes(bytes(4) + sums.read_bytes()[4:])
    assert [one.message for one in verify(lz4_store).findings] == [chunks.NO_CHECKSUM]
    flip(sums, -1)
    assert any("expected zeros past the last" in one for one in texts(verify(lz4_store)))


def test_holes_say_what_zeros_say(tmp_path):
    writer = mmreplay.create(
        tmp_path / "s.zarr", Field((2,), "uint8", "raw", chunk=8192), Field(chunk=8192), flush_s=0
    )
    zeros = np.zeros(2, "uint8")
    writer.reset(zeros)
    for row in range(6000):
        writer.step(int(row < 50), 0.0, zeros)
    writer.close()
    files = sorted(writer.path.rglob("c.*"))
    for file in files:
        dig(file)
    assert verify(writer.path).findings == []
    flip(writer.path / "actions" / "c.0", 5000)
    assert [one.array for one in verify(writer.path).findings] == ["actions"]


def dig(path):
    """The same bytes, with a hole wherever a block of them is zeros."""
    data = path.read_bytes()
    with path.open("wb") as file:
        file.truncate(len(data))
        for start in range(0, len(data), BLOCK):
            if any(data[start : start + BLOCK]):
                file.seek(start)
                file.write(data[start : start + BLOCK])


# ---------------------------------------------------------------- lanes that are not closed


@pytest.mark.parametrize(
    ("n", "frame", "capacity"),
    [(None, LZ4, 150), (4, LZ4, None), (4, FIELDS["frame"], 150)],
    ids=["one", "four", "four, raw"],
)
def test_sound_lanes_in_each_state(make, kill, n, frame, capacity):
    pair = of_writer(make(**FIELDS | {"lanes": n, "frame": frame, "capacity": capacity}))
    path = pair.writer.path
    pair.play(90, mode="any")
    pair.writer.flush()
    pair.play(130, mode="any")
    report = verify(path)
    assert (report.state, texts(report), report.warnings) == ("live", [], [])
    assert report.unflushed > 0 or capacity
    pair.writer.flush()
    assert verify(path).unflushed == 0
    pair.play(20, mode="any")
    kill(pair.writer)
    report = verify(path)
    assert (report.state, texts(report), report.warnings) == ("crashed", [], [])
    mmreplay.create(path, append=True, flush_s=0).close()
    report = verify(path)
    assert (report.state, texts(report), report.warnings) == ("closed", [], [])
    assert (report.rows < 240) == (capacity is not None)


@pytest.mark.parametrize("state", ["live", "crashed"])
def test_damage_to_what_is_not_closed(make, story, kill, kinds, state):
    writer = make(frame=kinds["lz4"], action=ACTION)
    story.play_every_end(writer)
    writer.flush()
    if state == "crashed":
        kill(writer)
    path = writer.path
    flip(path / "frames" / "c.1.0", 17)
    assert {one.file for one in verify(path).findings} == {"frames/c.1.0"}
    flip(path / "frames" / "c.1.0", 17)
    flip(path / "resets" / "c.4", 0)  # which has no checksum yet
    assert {(one.array, one.rows) for one in verify(path).findings} == {("resets", (32, 33))}
    step = path / "step" / "c.1"
    data = step.read_bytes()
    step.unlink()  # of the other rows, steps still must fit each other
    found = {(one.array, one.rows) for one in verify(path).findings}
    assert found == {("step", (8, 16)), ("resets", (32, 33))}
    step.write_bytes(data)
    flip(path / "resets" / "c.4", 0)
    (path / "rewards" / "c.2").unlink()
    assert {one.file for one in verify(path).findings} == {"rewards/c.2"}


def test_a_copy_of_a_crashed_store_counts_its_untrusted_rows(tmp_path, kill):
    writer = mmreplay.create(tmp_path / "s.zarr", Field((3,)), Field((), "int64"), flush_s=0)
    writer.reset(np.zeros(3, "u1"))
    writer.step(0, 0.0, np.zeros(3, "u1"))
    writer.flush()
    for _ in range(5):
        writer.step(0, 0.0, np.zeros(3, "u1"))
    kill(writer)
    copy = shutil.copytree(tmp_path / "s.zarr", tmp_path / "copy.zarr")
    assert verify(tmp_path / "s.zarr").untrusted == 0
    report = verify(copy)
    assert (report.sound, report.rows, report.untrusted) == (True, 1, 5)
    assert "has 5 rows after the last flush" in report.warnings[0].message


def test_a_lane_that_is_opened_and_closed_meanwhile_is_examined_again(make, story, kinds):
    writer = make(frame=kinds["lz4"], action=ACTION, capacity=20)
    story.play(writer, 90, "terminated")
    writer.close()
    times = []

    def write(*_):
        times.append(1)
        if len(times) == 1:
            with mmreplay.create(writer.path, append=True, flush_s=0) as again:
                story.play(again, 100, "terminated")

    report = verify(writer.path, write)
    assert (report.state, report.findings) == ("closed", [])
    assert report.rows < 110


def test_a_writer_that_evicts_meanwhile_is_not_disturbed(make):
    pair = of_writer(make(**FIELDS | {"lanes": 4, "frame": LZ4, "capacity": 120}))
    pair.play(120)
    pair.writer.flush()
    bases = [pair.writer.base]

    def write(*_):
        pair.play(5)
        pair.writer.flush()
        bases.append(pair.writer.base)

    report = verify(pair.writer.path, write)
    assert (report.state, texts(report)) == ("live", [])
    assert bases[-1] > bases[0] + 64
