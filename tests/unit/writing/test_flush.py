"""The order of a flush, and what it evicts."""

import errno
import json
import os
import threading

import pytest

import mmreplay
from mmreplay import Field
from mmreplay.errors import (
    DiskFullError,
    FailedStoreError,
)
from mmreplay.storage.state_page import BASE
from mmreplay.system import durable_writes
from mmreplay.writing import build_lane, flush, kept_rows
from tests.support.oracle.vector_pair import FIELDS, of_writer
from tests.support.writers import attributes, checkpoint, chunks, drain

pytestmark = pytest.mark.usefixtures("quick_disk")

WAIT = 300  # seconds, for events that come at once: only a hang takes as long


def test_a_flush_makes_the_head_durable_in_the_other_slot(make, story):
    writer = make()
    path = writer.path / ".live" / "checkpoint"
    for length in (3, 10, 1):
        story.play(writer, length)
        old, before = checkpoint(writer), path.read_bytes()
        writer.flush()
        best, after = checkpoint(writer), path.read_bytes()
        assert (best.head, best.generation, best.base) == (writer.rows, old.generation + 1, 0)
        slots = [slice(0, 4096), slice(4096, 8192)]
        assert [after[slot] == before[slot] for slot in slots].count(True) == 1


@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_a_checkpoint_speaks_only_of_what_is_durable(make, story, log, codec):
    writer = make(frame=Field((3,), "uint8", codec, chunk=4, shard=8))
    story.play(writer, 20)
    drain(writer)
    log.clear()
    writer.flush()
    assert log[-1] == ("write_at", ".live/checkpoint")
    synced = {path for name, path in log[:-1] if name == "sync_file"}
    named = {path for name, path in log[:-1] if name == "sync_directory"}
    for path, spec in writer.specs.items():
        assert path in named
        assert f"checksums/{path}" in named
        if spec.is_raw:
            assert {f"{path}/{spec.key(chunk)}" for chunk in chunks(writer, path)} <= synced
    if codec == "lz4":
        assert ".live/frames.tail" in synced
    assert "checksums/rewards/c.0" in synced


def test_a_flush_syncs_what_was_written_since_the_last_one_and_nothing_older(make, story, log):
    writer = make()
    story.play(writer, 31)
    drain(writer)
    writer.flush()
    log.clear()
    writer.flush()
    assert log == [("write_at", ".live/checkpoint")]
    story.play(writer, 1, reset=False)
    log.clear()
    writer.flush()
    # Row 31, in chunk 3, has got its action; row 32 is the first of chunk 4.
    synced = [path for name, path in log if name == "sync_file"]
    assert sorted(path for path in synced if path.startswith("rewards/")) == [
        "rewards/c.3",
        "rewards/c.4",
    ]
    assert "rewards" in {path for name, path in log if name == "sync_directory"}


def test_a_file_made_while_a_flush_runs_has_its_name_synced_by_the_next_one(
    make, story, monkeypatch, log
):
    writer = make()
    story.play(writer, 6)
    drain(writer)
    writer.flush()
    real = durable_writes.allocate

    def allocate(path, size):
        flush.flush(writer.files)  # as the flushing thread may do at this moment
        real(path, size)

    log.clear()
    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "allocate", allocate)
        story.play(writer, 2, reset=False)
        drain(writer)
    writer.flush()
    for name, spec in writer.specs.items():
        made = log.index(("allocate", f"{name}/{spec.key(1)}"))
        assert ("sync_directory", name) in log[made:]


def test_a_flush_saves_what_the_generator_says(make, story):
    writer = make()
    assert build_lane.read_generator(writer.path) is None
    states = iter(["first", None, "second"])
    writer.files.on_flush = lambda: next(states)
    for expected in ("first", "first", "second"):
        writer.flush()
        assert build_lane.read_generator(writer.path) == expected
    (writer.path / ".live" / "generator").write_bytes(b"\xff\xff")
    assert build_lane.read_generator(writer.path) is None


def test_flush_reports_a_full_disk_and_the_next_flush_succeeds(make, story, monkeypatch):
    writer = make()
    writer.files.on_flush = lambda: "state"
    story.play(writer, 30)
    before = checkpoint(writer)

    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(DiskFullError):
            writer.flush()
    assert checkpoint(writer) == before
    story.play(writer, 3)
    writer.flush()
    assert checkpoint(writer).head == writer.rows


def test_a_failed_fsync_ends_writing_for_good_and_readers_go_on(make, story, monkeypatch):
    writer = make()
    story.play(writer, 30, "truncated")
    writer.flush()
    flushed = writer.rows
    story.play(writer, 30)
    follower = mmreplay.open(writer.path)

    def fail(descriptor):
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_fdatasync", fail)
        with pytest.raises(FailedStoreError, match="fsync failed"):
            writer.flush()
    for call in (writer.flush, lambda: story.step(writer), lambda: story.reset(writer)):
        with pytest.raises(FailedStoreError, match="fsync failed"):
            call()
    with follower as store:
        story.check(store)
    # Nobody knows any more which of the rows after the last flush are on the disk.
    with mmreplay.open(writer.path) as store:
        assert store.lanes[0].rows == flushed
    writer.close()
    for rows in story.lanes.values():
        del rows[flushed:]
    assert make(append=True).rows == flushed
    with mmreplay.open(writer.path) as store:
        story.check(store)


def test_any_error_of_a_flush_in_the_background_is_reported(make, story, monkeypatch):
    writer = make()
    story.play(writer, 30)

    def fail(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(kept_rows.LaneRows, "first_row", fail)
        for timer in (True, False):
            writer._session._timed_flush.flush_in_background(timer=timer)
    with pytest.raises(FailedStoreError, match="in the background failed: MemoryError"):
        story.step(writer)
    writer.close()
    again = make(append=True)
    with mmreplay.open(again.path) as store:
        story.check(store)


@pytest.mark.parametrize("call", ["flush", "close"])
def test_a_call_that_waits_for_a_flush_that_fails_does_not_try_its_fsyncs_again(
    make, story, monkeypatch, call
):
    writer = make()
    story.play(writer, 30)
    begun, waiting, tried, real = (
        threading.Event(),
        threading.Event(),
        [],
        durable_writes._fdatasync,
    )

    def fail_once(descriptor):
        tried.append(os.fstat(descriptor).st_ino)
        if begun.is_set():
            return real(descriptor)
        begun.set()
        assert waiting.wait(60)
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(durable_writes, "_fdatasync", fail_once)
    first = threading.Thread(
        target=writer._session._timed_flush.flush_in_background, kwargs={"timer": True}
    )
    first.start()
    assert begun.wait(60)
    threading.Timer(0.05, waiting.set).start()
    with pytest.raises(FailedStoreError, match="fsync failed"):
        getattr(writer, call)()
    first.join()
    assert len(tried) == len(set(tried))
    writer.close()
    assert make(append=True).rows == 0


def test_flushes_of_two_threads_come_one_after_the_other(make, story, monkeypatch):
    writer = make()
    story.play(writer, 30)
    generation = checkpoint(writer).generation
    inside, most, real = [], [], flush._sync_rows

    def sync_rows(self, head):
        inside.append(1)
        most.append(len(inside))
        real(self, head)
        inside.pop()

    monkeypatch.setattr(flush, "_sync_rows", sync_rows)
    threads = [threading.Thread(target=writer.flush) for _ in range(8)]
    for thread in threads:
        story.play(writer, 1, reset=False)
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert checkpoint(writer).generation == generation + 8


def test_a_background_flush_that_waited_for_a_close_does_nothing(make, story):
    writer = make()
    story.play(writer, 30)
    writer.close()
    listing = sorted(writer.path.rglob("*"))
    writer._session._timed_flush.flush_in_background(timer=True)
    flush.flush(writer.files)
    assert sorted(writer.path.rglob("*")) == listing


def test_the_clock_flushes_by_itself(make, story, monkeypatch):
    flushed = threading.Event()
    real = flush.flush
    monkeypatch.setattr(flush, "flush", lambda self: (real(self), flushed.set()))
    writer = make(flush_s=0.01)
    story.play(writer, 3)
    flushed.clear()
    assert flushed.wait(WAIT)
    assert flushed.wait(WAIT)
    assert checkpoint(writer).head == writer.rows


# ---------------------------------------------------------------- evicting


@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_a_flush_evicts_chunk_files_wholly_below_the_context_of_the_oldest_transition(
    make, story, codec
):
    writer = make(frame=Field((3,), "uint8", codec, chunk=4, shard=8), capacity=10)
    for episode in range(30):
        story.play(writer, 6, "terminated")
        drain(writer)
        writer.flush()
        transitions = story.transitions(writer.path)
        first = transitions[-10:][0]
        base = checkpoint(writer).base
        assert writer.log.base == writer.log.words[BASE] == base
        assert base <= max(first - 64, 0)
        assert base > first - 64 - 8 or base == 0
        for path, spec in writer.specs.items():
            found = chunks(writer, path)
            last = -(-writer.rows // spec.chunk_rows)
            if not spec.is_raw:
                last = writer.log.tail_start // spec.chunk_rows
            assert found == list(range(base // spec.chunk_rows, last))
        if episode % 3 == 2:
            with mmreplay.open(writer.path) as store:
                story.check(store, start=base)
                assert store.ids.tolist() == transitions[-10:]
    assert base > 100


def test_base_is_checkpointed_and_stored_before_a_file_goes(make, story, monkeypatch):
    writer = make(capacity=5)
    seen, real = [], durable_writes.unlink

    def unlink(path):
        seen.append((int(path.name.split(".")[1]), checkpoint(writer).base, writer.log.words[BASE]))
        real(path)

    monkeypatch.setattr(durable_writes, "unlink", unlink)
    story.play(writer, 100)
    drain(writer)
    writer.flush()
    assert len(seen) == 3 * 5
    assert all((chunk + 1) * 8 <= durable == stored for chunk, durable, stored in seen)
    assert checkpoint(writer).base == 31  # of 101 rows, the oldest of 5 transitions is row 95


def test_a_larger_capacity_brings_nothing_back_and_a_smaller_one_evicts_at_once(make, story):
    writer = make(capacity=20)
    story.play(writer, 200)
    writer.close()
    writer = make(append=True, capacity=500)
    with mmreplay.open(writer.path) as store:
        base = 180 - 64
        assert store.lanes[0].base == base
        assert store.ids.tolist() == list(range(180, 200))
    story.play(writer, 100)
    writer.close()
    with mmreplay.open(writer.path) as store:
        assert store.lanes[0].base == base
        assert len(store) == 120
        story.check(store, start=base)
    writer = make(append=True, capacity=3)
    with mmreplay.open(writer.path) as store:
        assert store.ids.tolist() == [298, 299, 300]
    writer.flush()
    assert chunks(writer)[0] == (298 - 64) // 8


def test_an_eviction_is_woken_when_there_is_something_to_evict(make, story, monkeypatch):
    evicted = threading.Event()
    real = flush.evict
    monkeypatch.setattr(flush, "evict", lambda self: (real(self), evicted.set()))
    writer = make(capacity=5)
    story.play(writer, 90)
    assert evicted.wait(WAIT)
    drain(writer)


def test_a_flush_that_waited_until_its_lane_was_released_does_nothing(make, story):
    writer = make()
    story.play(writer, 8)
    before = checkpoint(writer)
    inner = writer.files
    writer._release_unclosed()
    flush.flush(inner)
    assert checkpoint(writer) == before


def test_a_recovery_is_flushed_soon_where_a_clock_flushes(make, story, kill, monkeypatch):
    writer = make()
    story.play(writer, 9)
    kill(writer)
    flushed = threading.Event()
    real = flush.flush
    monkeypatch.setattr(flush, "flush", lambda self: (real(self), flushed.set()))
    again = mmreplay.create(writer.path, append=True, flush_s=3600)
    assert flushed.wait(WAIT)
    assert again.log.checkpoint.best.head == 10
    again.close()


def test_what_can_go_is_looked_up_in_turn(make, story, monkeypatch):
    writer = make(capacity=5)
    story.play(writer, 10)
    asked = []

    def can_evict(log):
        asked.append(writer.files.flush_lock.locked())
        return False

    monkeypatch.setattr(flush, "_can_evict", can_evict)
    writer._session._timed_flush.flush_in_background(timer=False)
    assert asked == [True]


@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_a_flush_that_cannot_open_a_file_gives_up_no_row(make, story, kill, codec, monkeypatch):
    writer = make(frame=Field((3,), "uint8", codec, chunk=4, shard=8 if codec == "lz4" else None))
    story.play(writer, 12)
    writer.flush()
    story.play(writer, 9)

    def full(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        with pytest.raises(FailedStoreError, match=r"may not open more than .* files"):
            writer.flush()
    kill(writer)
    again = make(append=True)
    assert again.rows == len(story.lanes[again.path])
    with mmreplay.open(again.path) as store:
        story.check(store)


def test_random_state_is_kept_with_the_ticks(make, kill):
    model = of_writer(make(**FIELDS, lanes=2))
    model.play(3)
    model.writer.files.on_flush = lambda: json.dumps({"state": 7})
    model.writer.flush()
    kill(model.writer)
    model.reopened(make(append=True))
    assert model.writer.files.generator() == '{"state": 7}'
    model.writer.close()
    assert attributes(model.writer.path / "ticks")["generator"] == '{"state": 7}'
    assert "generator" not in attributes(model.writer.path / "starts")
