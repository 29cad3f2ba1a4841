"""A lane's rows in a new directory: all of them, or the first ones, and the source as it was."""

import errno
import os
import threading

import numpy as np
import pytest

import mmreplay
from mmreplay import CorruptStoreError, DiskFullError, Field, verify
from mmreplay.maintenance.copy_lane import copy_lane
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.storage.chunk_files import EvictedError
from tests.support.disks.faults import ALLOCATING, faulty_disk

ACTION = Field((), "uint8", chunk=8)
LOG_PROB = {"log_prob": Field((2,), "float32", chunk=4)}


@pytest.fixture
def writer(make, kinds):
    """Of a lane that is empty yet, with raw and with compressed frames."""
    return make(frame=kinds["dict"], action=ACTION, extras=LOG_PROB)


@pytest.fixture
def lz4_writer(make, kinds):
    return make(frame=kinds["lz4"], action=ACTION)


def contents(path):
    """Every file below a directory, with what its bytes and its times are."""
    found = {}
    for one in sorted(path.rglob("*")):
        about = one.lstat()
        data = one.read_bytes() if one.is_file() else None
        found[str(one.relative_to(path))] = (about.st_ino, about.st_mtime_ns, data)
    return found


def check(story, source, target, stop):
    story.copy(source, target, stop)
    with mmreplay.open(target) as store:
        story.check(store)
    report = verify(target)
    assert (report.findings, report.warnings, report.state) == ([], [], "closed")


@pytest.mark.parametrize("frames", ["zstd", "dict"])
def test_any_first_rows_of_a_closed_lane(make, story, tmp_path, kinds, frames):
    writer = make(frame=kinds[frames], action=ACTION, extras=LOG_PROB)
    story.play_every_end(writer)
    writer.close()
    before = contents(writer.path)
    reader = LaneReader(writer.path)
    for stop in (1, 2, 8, 9, 10, 17, 32, 33):
        target = tmp_path / f"first-{stop}"
        copy_lane(reader, target, stop)
        check(story, writer.path, target, stop)
    assert contents(writer.path) == before


def test_the_copy_can_be_written_and_the_source_stays(writer, story, tmp_path):
    story.play_every_end(writer)
    writer.close()
    for stop in (16, 33):
        target = tmp_path / f"first-{stop}"
        copy_lane(LaneReader(writer.path), target, stop)
        story.copy(writer.path, target, stop)
        before = contents(writer.path)
        with mmreplay.create(target, append=True, flush_s=0) as again:
            story.play(again, 30, "terminated")
        assert contents(writer.path) == before
        check(story, target, target, stop + 30)


def test_the_source_can_be_written_and_the_copy_stays(writer, story, tmp_path):
    story.play_every_end(writer)
    writer.close()
    target = tmp_path / "copy"
    copy_lane(LaneReader(writer.path), target, 33)
    before = contents(target)
    with mmreplay.create(writer.path, append=True, flush_s=0) as again:
        story.play(again, 30, "terminated")
    assert contents(target) == before


def test_a_live_lane(writer, story, tmp_path):
    story.play_every_end(writer)
    writer.flush()
    story.play(writer, 3, reset=False)
    head = writer.rows
    copy_lane(LaneReader(writer.path), tmp_path / "copy", head)
    story.play(writer, 20, reset=False)
    writer.close()
    check(story, writer.path, tmp_path / "copy", head)


def test_a_live_lane_whose_shard_is_not_written_yet(lz4_writer, story, tmp_path):
    holds = threading.Event()
    lz4_writer._session._background.submit(holds.wait)
    story.play(lz4_writer, 13)
    reader = LaneReader(lz4_writer.path)
    try:
        assert (reader.rows.tail_start(), reader.head) == (0, 13)
        copy_lane(reader, tmp_path / "copy", 13)
    finally:
        holds.set()
        lz4_writer._session._background.finish_tasks()
    check(story, lz4_writer.path, tmp_path / "copy", 13)


def test_whole_chunk_files_are_shared_and_the_newest_are_not(lz4_writer, story, tmp_path):
    story.play_every_end(lz4_writer)
    lz4_writer.close()
    copy_lane(LaneReader(lz4_writer.path), tmp_path / "copy", 24)
    names = {
        str(one.relative_to(tmp_path / "copy"))
        for one in (tmp_path / "copy").rglob("*")
        if one.is_file() and one.stat().st_nlink > 1
    }
    scalars = ("actions", "rewards", "non_terminals", "resets", "ends", "step")
    assert names == {f"frames/c.{n}.0" for n in range(3)} | {
        f"{name}/c.{n}" for name in scalars for n in range(2)
    }


def test_files_are_copied_where_links_are_not_allowed(writer, story, tmp_path):
    story.play_every_end(writer)
    writer.close()
    with faulty_disk() as disk:
        disk.fail({"link"}, errno.EPERM, forever=True)
        copy_lane(LaneReader(writer.path), tmp_path / "copy", 33)
        assert disk.hits
    check(story, writer.path, tmp_path / "copy", 33)
    assert all(one.stat().st_nlink == 1 for one in writer.path.rglob("c.*"))


def test_an_evicting_lane_keeps_its_ids(make, story, tmp_path, kinds):
    writer = make(frame=kinds["lz4"], action=ACTION, capacity=20)
    for _ in range(20):
        story.play(writer, 9, "terminated")
    writer.close()
    copy_lane(LaneReader(writer.path), tmp_path / "copy", 180)
    assert verify(tmp_path / "copy").sound
    with mmreplay.open(writer.path) as source, mmreplay.open(tmp_path / "copy") as copy:
        assert np.array_equal(source.ids, copy.ids)
        story.lanes[tmp_path / "copy"] = story.lanes[writer.path]
        story.check(copy, start=copy.lanes[0].base)


def test_a_copy_fails_when_rows_are_evicted_meanwhile(make, story, tmp_path, kinds):
    writer = make(frame=kinds["raw"], action=ACTION, capacity=20)
    story.play(writer, 20)
    reader = LaneReader(writer.path)
    for _ in range(20):
        story.play(writer, 9, "terminated")
    writer.flush()
    with pytest.raises(EvictedError):
        copy_lane(reader, tmp_path / "copy", 20)
    assert not (tmp_path / "copy").exists()


def test_the_random_state_is_copied(buffer_of, story, tmp_path):
    buffer = buffer_of(seed=3)
    story.play(buffer.writer, 30)
    buffer.sample(4)
    buffer.flush()
    saved = (buffer.writer.path / ".live" / "generator").read_text()
    copy_lane(LaneReader(buffer.writer.path), tmp_path / "live", 30)
    buffer.close()
    copy_lane(LaneReader(buffer.writer.path), tmp_path / "closed", 30)
    copy_lane(LaneReader(buffer.writer.path), tmp_path / "rows", 30, side_data=())
    assert LaneReader(tmp_path / "live").metadata["generator"] == saved
    assert LaneReader(tmp_path / "closed").metadata["generator"] == saved
    assert "generator" not in LaneReader(tmp_path / "rows").metadata


def test_priorities_are_copied_and_not_shared(tmp_path, story, kinds):
    arguments = {"frame": kinds["raw"], "action": ACTION, "flush_s": 0, "seed": 0}
    with mmreplay.PrioritizedReplayBuffer(tmp_path / "store.zarr", **arguments) as buffer:
        story.play(buffer.writer, 30)
        buffer.update_priorities(buffer.store.ids, np.arange(30.0))
    copy_lane(LaneReader(tmp_path / "store.zarr"), tmp_path / "copy", 30)
    own, copy = (
        path / "priorities" / "c.0" for path in (tmp_path / "store.zarr", tmp_path / "copy")
    )
    assert own.read_bytes() == copy.read_bytes()
    assert not os.path.samefile(own, copy)
    assert verify(tmp_path / "copy").sound


# ---------------------------------------------------------------- damage and failures


def test_damaged_rows_are_not_copied(writer, story, tmp_path):
    story.play_every_end(writer)
    writer.close()
    path = writer.path / "rewards" / "c.4"
    data = bytearray(path.read_bytes())
    data[2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptStoreError, match=r"c\.4: does not match its checksum; run"):
        copy_lane(LaneReader(writer.path), tmp_path / "copy", 33)
    assert not (tmp_path / "copy").exists()


def test_bytes_past_the_last_row_are_not_copied(writer, story, tmp_path):
    story.play_every_end(writer)
    writer.close()
    path = writer.path / "rewards" / "c.4"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert not verify(writer.path).sound
    copy_lane(LaneReader(writer.path), tmp_path / "copy", 33)
    check(story, writer.path, tmp_path / "copy", 33)


def test_a_full_disk_leaves_no_copy(lz4_writer, story, tmp_path):
    story.play_every_end(lz4_writer)
    lz4_writer.close()
    before = contents(lz4_writer.path)
    reader = LaneReader(lz4_writer.path)
    failed = 0
    for at in range(1, 1000, 5):
        with faulty_disk() as disk:
            disk.fail(ALLOCATING | {"link"}, errno.ENOSPC, at=at, forever=True)
            try:
                copy_lane(reader, tmp_path / "copy", 33)
            except DiskFullError:
                failed += 1
            else:
                break
        assert not (tmp_path / "copy").exists()
    assert failed > 12
    assert contents(lz4_writer.path) == before
    check(story, lz4_writer.path, tmp_path / "copy", 33)
