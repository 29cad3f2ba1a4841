"""The files of a lane locked for writing: windows prepared ahead, release, the lock."""

import errno
import os
import threading

import pytest

import mmreplay
from mmreplay.errors import (
    DiskFullError,
    LockedError,
    SchemaError,
)
from mmreplay.system import durable_writes, locks
from mmreplay.writing import lane_files
from tests.support.disks.trees import files
from tests.support.documents import attributes
from tests.support.writers import chunks, drain

pytestmark = pytest.mark.usefixtures("quick_disk")

WAIT = 300  # seconds, for events that come at once: only a hang takes as long


@pytest.fixture
def large(monkeypatch):
    """Every chunk file counts as large."""
    monkeypatch.setattr(lane_files, "_AHEAD_BYTES", 1)


def test_the_next_large_chunk_is_ready_before_its_first_row(make, story, large, log):
    writer = make()
    story.play(writer, 8)
    drain(writer)
    assert chunks(writer) == [0, 1, 2]
    log.clear()
    story.play(writer, 8, reset=False)  # row 16 lies in chunk 2, which is there
    drain(writer)
    assert ("allocate", "rewards/c.2") not in log
    assert ("allocate", "rewards/c.3") in log
    with mmreplay.open(writer.path) as store:
        story.check(store)
    writer.close()
    assert chunks(writer) == [0, 1, 2]
    with mmreplay.open(writer.path) as store:
        story.check(store)


def test_a_chunk_made_ahead_goes_when_a_killed_lane_is_opened(make, story, kill, large):
    writer = make()
    story.play(writer, 8)
    drain(writer)
    kill(writer)
    writer = make(append=True)
    assert chunks(writer) == [0, 1]


def test_no_room_for_the_next_chunk_is_no_error_before_it_is_needed(
    make, story, large, monkeypatch
):
    writer = make()
    story.play(writer, 7)

    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        writer.files.prepare_window(writer.specs["rewards"], 1)
        patch.setattr(durable_writes, "_fallocate", full)
        writer.files.prepare_window(writer.specs["rewards"], 2)
        with pytest.raises(DiskFullError):
            story.step(writer)
    story.step(writer)
    with mmreplay.open(writer.path) as store:
        story.check(store)


def test_preparing_the_next_chunk_never_removes_a_file_that_a_step_has_made(
    make, story, large, monkeypatch
):
    writer = make()
    story.play(writer, 7)
    spec, real = writer.specs["rewards"], durable_writes._fallocate
    begun, stepping = threading.Event(), threading.Event()

    def full_ahead(descriptor, size):
        if threading.current_thread() is ahead:
            begun.set()
            stepping.wait(0.1)  # the step waits for its turn, or would be done by then
            raise OSError(errno.ENOSPC, "full")
        real(descriptor, size)

    ahead = threading.Thread(target=writer.files.prepare_window, args=(spec, 2))
    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_fallocate", full_ahead)
        ahead.start()
        assert begun.wait(WAIT)
        window = writer.files.open_window(spec, 2)
        stepping.set()
        ahead.join()
    assert window.chunk == 2
    assert chunks(writer)[-1] == 2


def test_a_lane_is_released_only_after_its_tasks_have_ended(make, story, lz4, monkeypatch):
    writer = make(**lz4, lanes=2)
    lane = writer.writers[0]
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
    writer.writers[1].close()


# ---------------------------------------------------------------- the lock


def test_a_second_writer_is_told_who_holds_the_lane(make, story, monkeypatch):
    writer = make()
    story.play(writer, 3)
    monkeypatch.setattr(locks.DirectoryLock.__init__, "__kwdefaults__", {"patience_s": 0})
    with pytest.raises(
        LockedError,
        match=rf"open for writing already, in this process \(pid {os.getpid()} on .*, since ",
    ):
        make(append=True)
    (writer.path / ".live" / "writer").write_bytes(b"[]")
    with pytest.raises(LockedError, match="already, in this process; close that"):
        make(append=True)
    story.play(writer, 3)
    with mmreplay.open(writer.path) as store:
        story.check(store)


def test_an_opening_that_fails_releases_the_lock(make, story, kill):
    writer = make()
    story.play(writer, 3)
    kill(writer)
    good = (writer.path / ".live" / "checkpoint").read_bytes()
    (writer.path / ".live" / "checkpoint").write_bytes(bytes(8192))
    with pytest.raises(mmreplay.CorruptStoreError):
        make(append=True)
    assert not locks.is_locked(writer.path)
    (writer.path / ".live" / "checkpoint").write_bytes(good)
    assert make(append=True).rows == 4


def test_a_store_of_lanes_is_no_lane(make):
    store = make(lanes=2)
    with pytest.raises(SchemaError, match="this store has many lanes; name one"):
        lane_files.LockedLane(store.path, {})


# ---------------------------------------------------------------- opened again


def test_changes_are_written_when_a_lane_is_opened(make, story, kill):
    writer = make(metadata={"seed": 1})
    story.play(writer, 3)
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
    story.play(writer, 20)
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
