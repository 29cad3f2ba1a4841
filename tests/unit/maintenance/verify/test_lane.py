"""Lanes that are not closed: live, or left by a crash."""

import os
import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, verify
from tests.support.disks.trees import flip

ACTION = Field((), "uint8", chunk=8)


def test_a_live_store_is_sound_and_its_damage_is_found(make, story, kinds):
    writer = make(frame=kinds["lz4"], action=ACTION)
    story.play_every_end(writer)
    report = verify(writer.path)
    assert (report.state, report.findings, report.warnings) == ("live", [], [])
    assert report.rows == 37
    flip(writer.path / "frames" / "c.1.0", 17)
    assert {one.file for one in verify(writer.path).findings} == {"frames/c.1.0"}
    flip(writer.path / "frames" / "c.1.0", 17)
    (writer.path / "rewards" / "c.2").unlink()
    assert {one.file for one in verify(writer.path).findings} == {"rewards/c.2"}


def test_a_crashed_store_is_sound_and_its_damage_is_found(make, story, kill, kinds):
    writer = make(frame=kinds["lz4"], action=ACTION, capacity=100)
    for _ in range(2):  # the second one recovers
        for _ in range(7):
            story.play(writer, 30, "terminated")
        kill(writer)
        report = verify(writer.path)
        assert (report.state, report.findings) == ("crashed", [])
        assert report.rows > 100
        writer = make(append=True)
    kill(writer)
    # Not of the oldest: the kill may have come before those below base were unlinked.
    file = sorted((writer.path / "actions").glob("c.*"), key=lambda path: int(path.name[2:]))[-2]
    file.unlink()
    assert [one.file for one in verify(writer.path).findings] == [f"actions/{file.name}"]


def test_a_crashed_store_after_a_reboot_is_sound(make, story, kill, kinds):
    """The state page is not trusted then, and the checkpoint says what there is."""
    writer = make(frame=kinds["lz4"], action=ACTION)
    story.play(writer, 15)
    writer.flush()
    story.play(writer, 25, "terminated")
    kill(writer)
    state = writer.path / ".live" / "state"
    data = bytearray(state.read_bytes())
    data[56:72] = bytes(16)  # the boot id
    state.write_bytes(data)
    report = verify(writer.path)
    assert (report.state, report.rows, report.findings) == ("crashed", 16, [])


@pytest.mark.parametrize("file", ["state", "checkpoint"])
def test_a_crashed_store_that_cannot_be_recovered(make, story, kill, file, kinds):
    writer = make(frame=kinds["lz4"], action=ACTION)
    story.play(writer, 15)
    kill(writer)
    (writer.path / ".live" / file).write_bytes(b"")
    report = verify(writer.path)
    assert report.state == "unknown"
    assert [one.file for one in report.findings] == [".live"]


def test_a_truncated_checkpoint_is_found_though_half_of_it_can_be_read(make, story, kill, kinds):
    writer = make(frame=kinds["lz4"], action=ACTION)
    story.play(writer, 15)
    writer.flush()
    story.play(writer, 9)
    writer.flush()
    kill(writer)
    checkpoint = writer.path / ".live" / "checkpoint"
    os.truncate(checkpoint, 4096)
    (finding,) = verify(writer.path).findings
    assert (finding.file, finding.message) == (
        ".live/checkpoint",
        "expected 8,192 bytes, found 4,096",
    )
    assert mmreplay.repair(writer.path).kept == len(story.lanes[writer.path])
    assert verify(writer.path).sound


def test_a_copy_of_a_crashed_store_counts_its_untrusted_rows(tmp_path, kill):
    writer = mmreplay.create(
        tmp_path / "s.zarr", mmreplay.Field((3,)), mmreplay.Field((), "int64"), flush_s=0
    )
    writer.reset(np.zeros(3, "u1"))
    writer.flush()
    for _ in range(5):
        writer.step(0, 0.0, np.zeros(3, "u1"))
    kill(writer)
    copy = shutil.copytree(tmp_path / "s.zarr", tmp_path / "copy.zarr")
    assert verify(tmp_path / "s.zarr").untrusted == 0
    report = verify(copy)
    assert (report.sound, report.rows, report.untrusted) == (True, 1, 5)
    assert "speaks of 5 rows" in report.warnings[0].message
    with mmreplay.open(copy) as store:
        assert store.info()["live"]["untrusted_rows"] == 5
    assert mmreplay.repair(copy).untrusted == 5
    assert verify(copy).rows == 1
