"""The files of a lane locked for writing: windows prepared ahead, release, the lock."""

import json
import os
import shutil
import threading

import numpy as np
import pytest

import mmreplay
from mmreplay.errors import (
    FailedStoreError,
    LockedError,
    SchemaError,
)
from mmreplay.system import durable_writes, locks
from mmreplay.writing import build_lane, close, lane_files
from tests.support.disks.trees import contents, files, flip
from tests.support.documents import attributes
from tests.support.oracle import checks

pytestmark = pytest.mark.usefixtures("quick_disk")

WAIT = 300  # seconds, for events that come at once: only a hang takes as long


def test_a_lane_is_released_only_after_its_tasks_have_ended(make, story, lz4, monkeypatch):
    lane = make(**lz4)
    held, released = threading.Event(), []
    real = lane_files.LockedLane.release

    def release(self):
        released.append(held.is_set())
        real(self)

    monkeypatch.setattr(lane_files.LockedLane, "release", release)
    lane._background.submit(lambda: held.wait(WAIT))
    threading.Timer(0.05, held.set).start()
    lane._release_unclosed()
    assert released == [True]


# ---------------------------------------------------------------- the lock


def test_a_second_writer_is_told_who_holds_the_lane(make, story, monkeypatch):
    writer = make()
    story.play(writer, 3, "truncated")
    monkeypatch.setattr(locks.DirectoryLock.__init__, "__kwdefaults__", {"patience_s": 0})
    with pytest.raises(
        LockedError,
        match=rf"open for writing already, in this process \(pid {os.getpid()} on .*, since ",
    ):
        make(append=True)
    (writer.path / ".live" / "writer").write_bytes(b"[]")
    with pytest.raises(LockedError, match="already, in this process; close that"):
        make(append=True)
    story.play(writer, 3, "truncated")
    with mmreplay.open(writer.path) as store:
        story.check(store)


def test_an_opening_that_fails_releases_the_lock(make, story, kill):
    writer = make()
    story.play(writer, 3, "truncated")
    kill(writer)
    good = (writer.path / ".live" / "checkpoint").read_bytes()
    (writer.path / ".live" / "checkpoint").write_bytes(bytes(8192))
    with pytest.raises(mmreplay.CorruptStoreError):
        make(append=True)
    assert not locks.is_locked(writer.path)
    (writer.path / ".live" / "checkpoint").write_bytes(good)
    assert make(append=True).rows == 4


def test_a_store_of_lanes_is_no_lane(make):
    store = make(n_lanes=2)
    with pytest.raises(SchemaError, match="this store has many lanes; name one"):
        lane_files.LockedLane(store.path, {})


# ---------------------------------------------------------------- opened again


def test_changes_are_written_when_a_lane_is_opened(make, story, kill):
    writer = make(metadata={"seed": 1})
    story.play(writer, 3, "truncated")
    writer.close()
    writer = make(append=True, capacity=50, metadata={"seed": 2}, padding="zero")
    own = attributes(writer.path)
    assert (own["capacity"], own["env"], own["padding"]) == (50, {"seed": 2}, "zero")
    kill(writer)
    own = attributes(make(append=True, capacity=60).path)
    assert (own["capacity"], own["env"], own["padding"]) == (60, {"seed": 2}, "zero")


def test_a_reopening_that_finds_no_room_leaves_the_lane_closed_and_clean(
    make, story, lz4, monkeypatch
):
    writer = make(**lz4)
    story.play(writer, 20, "truncated")
    writer.close()
    before = files(writer.path)

    def full(*_):
        raise mmreplay.DiskFullError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_fallocate", full)
        with pytest.raises(mmreplay.DiskFullError):
            make(append=True)
    assert files(writer.path) == before
    with mmreplay.open(writer.path) as store:
        story.check(store)
    make(append=True)


@pytest.mark.parametrize("arguments", [{}, {"lanes": 2}], ids=["one environment", "vector lane"])
def test_a_store_that_is_removed_as_it_is_opened_says_so(make, monkeypatch, arguments):
    make(**arguments).close()
    real = durable_writes.sync_name

    def sync_name(path):
        real(path)
        shutil.rmtree(str(path))

    monkeypatch.setattr(durable_writes, "sync_name", sync_name)
    with pytest.raises(FailedStoreError, match="was removed while it was open"):
        make(append=True)


# ---------------------------------------------------------------- the copy of all documents


def copies(path):
    """Lanes and logs that have one."""
    return sorted(
        one.parent.relative_to(path).as_posix()
        for one in path.rglob("zarr.json")
        if "consolidated_metadata" in json.loads(one.read_bytes())
    )


@pytest.mark.parametrize("arguments", [{}, {"lanes": 2}], ids=["one environment", "vector lane"])
def test_only_a_closed_lane_has_a_copy_of_its_documents(make, kill, arguments):
    writer = make(**arguments)
    assert copies(writer.path) == []
    writer.close()
    assert copies(writer.path) == ["."]
    checks.check_copy(writer.path)
    kill(make(append=True))
    assert copies(writer.path) == []
    make(append=True).close()
    checks.check_copy(writer.path)


def test_each_lane_of_a_store_has_a_copy_and_the_store_has_none(make):
    writer = make(n_lanes=2)
    writer.close()
    assert copies(writer.path) == ["lane-00000", "lane-00001"]


def test_the_copy_of_a_vector_lane_goes_before_a_log_is_open_and_not_if_there_is_no_room(
    make, monkeypatch
):
    writer = make(lanes=2)
    writer.close()
    before = files(writer.path)

    def full(*_, **__):
        raise mmreplay.DiskFullError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(build_lane, "build_live", full)
        with pytest.raises(mmreplay.DiskFullError):
            make(append=True)
    assert files(writer.path) == before
    real, seen = build_lane.write_metadata, []

    def write_metadata(path, metadata, *documents, **changes):
        seen.append((metadata["kind"], changes.get("closed"), copies(writer.path)))
        return real(path, metadata, *documents, **changes)

    monkeypatch.setattr(build_lane, "write_metadata", write_metadata)
    again = make(append=True)
    assert seen == [("vector", None, ["."]), ("log", False, []), ("log", False, [])]
    seen.clear()
    again.close()
    assert seen == [("log", True, []), ("log", True, []), ("vector", None, [])]


def no_room(log, monkeypatch):
    """No `.live` can be built in that log."""
    real = build_lane.build_live

    def build_live(path, *rest, **given):
        if path.name == log:
            raise mmreplay.DiskFullError("no room")
        return real(path, *rest, **given)

    monkeypatch.setattr(build_lane, "build_live", build_live)


def damage(log, path):
    flip(path / log / "frames" / "c.0.0.0" if log == "ticks" else path / log / "env" / "c.0")


@pytest.mark.parametrize("log", ["starts", "ticks"])
@pytest.mark.parametrize("cause", [mmreplay.DiskFullError, mmreplay.CorruptStoreError])
def test_a_vector_lane_of_which_one_log_cannot_be_opened_stays_closed(
    make, monkeypatch, log, cause
):
    writer = make(lanes=2)
    writer.reset(np.ones((2, 3), np.uint8))
    writer.step([1, 2], [1.0, 2.0], np.ones((2, 3), np.uint8), [False] * 2, [False] * 2)
    writer.close()
    if cause is mmreplay.CorruptStoreError:
        damage(log, writer.path)
    else:
        no_room(log, monkeypatch)
    before = contents(writer.path)
    with pytest.raises(cause):
        make(append=True)
    assert contents(writer.path) == before
    assert copies(writer.path) == ["."]


@pytest.mark.parametrize("closed", ["starts", "ticks"])
def test_a_vector_lane_of_which_one_log_was_left_open_goes_on(make, kill, monkeypatch, closed):
    writer = make(lanes=2)
    writer.reset(np.ones((2, 3), np.uint8))
    if closed == "starts":  # cut off in a close, else in an opening
        monkeypatch.setattr(close, "_finish", only(close._finish, "starts"))
        with pytest.raises(mmreplay.FailedStoreError):
            writer.close()
    else:
        writer.close()
        monkeypatch.setattr(build_lane, "write_metadata", only(build_lane.write_metadata, "starts"))
        with pytest.raises(mmreplay.FailedStoreError):
            make(append=True)
    kill(writer)
    monkeypatch.undo()
    logs = {log: attributes(writer.path / log)["closed"] for log in ("starts", "ticks")}
    assert logs == {log: log == closed for log in logs}
    again = make(append=True)
    again.reset(np.ones((2, 3), np.uint8))
    again.step([1, 2], [1.0, 2.0], np.ones((2, 3), np.uint8), [False] * 2, [False] * 2)
    again.close()
    checks.check_verified(writer.path)
    with mmreplay.open(writer.path) as store:
        assert len(store) == 2


def only(real, name):
    """As `real`, but for a log that has not that name it fails."""

    def call(log, *rest, **given):
        path = getattr(log, "path", log)
        if path.name not in (name, "store.zarr"):
            raise mmreplay.FailedStoreError("no more")
        return real(log, *rest, **given)

    return call
