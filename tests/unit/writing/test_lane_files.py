"""What of a lane is on disk while it is written: sealed, flushed, evicted, closed; in which order."""

import errno
import json
import os
import re
import threading
import warnings

import google_crc32c
import numpy as np
import pytest
import zarr

import mmreplay
from mmreplay import Field, episode_index
from mmreplay.errors import ClosedError, DiskFullError, FailedStoreError, LockedError, SchemaError
from mmreplay.storage import chunk_files
from mmreplay.storage.checkpoint import CheckpointFile
from mmreplay.storage.state_page import BASE, TAIL_START
from mmreplay.system import durable_writes, locks
from mmreplay.writing import build_lane, flush, lane_files

pytestmark = pytest.mark.usefixtures("quick_disk")

WAIT = 30


def checkpoint(writer):
    return CheckpointFile(writer.path / ".live" / "checkpoint", writer.metadata["uuid"]).best


def drain(writer):
    """Wait for what the sealing thread has to do."""
    writer._background.submit(lambda: None).result(WAIT)


def chunks(writer, name="rewards"):
    return chunk_files.chunk_files(writer.path, writer.specs[name])


@pytest.fixture
def log(monkeypatch):
    """Calls that reach the disk, in order: (what, path below the store)."""
    calls = []

    def watch(name):
        real = getattr(durable_writes, name)

        def call(path, *args, **kwargs):
            calls.append((name, re.sub(r"^.*\.zarr/?", "", str(path))))
            return real(path, *args, **kwargs)

        monkeypatch.setattr(durable_writes, name, call)

    for name in ("sync_file", "sync_directory", "write_at", "write_file", "unlink", "allocate"):
        watch(name)
    return calls


# ---------------------------------------------------------------- flushing


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


def test_a_full_disk_at_a_flush_is_told_and_the_next_one_goes_on(make, story, monkeypatch):
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


def test_whatever_ends_a_flush_in_the_background_is_told(make, story, monkeypatch):
    writer = make()
    story.play(writer, 30)

    def fail(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(lane_files.LockedLane, "first_row", fail)
        for timer in (True, False):
            writer._flush_in_background(timer=timer)
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
        tried.append(threading.current_thread())
        if len(tried) > 1:
            return real(descriptor)
        begun.set()
        assert waiting.wait(60)
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(durable_writes, "_fdatasync", fail_once)
    first = threading.Thread(target=writer._flush_in_background, kwargs={"timer": True})
    first.start()
    assert begun.wait(60)
    threading.Timer(0.2, waiting.set).start()
    with pytest.raises(FailedStoreError, match="fsync failed"):
        getattr(writer, call)()
    first.join()
    assert len(tried) == 1
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
    writer._flush_in_background(timer=True)
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


# ---------------------------------------------------------------- sealing


def test_a_half_is_given_back_only_after_a_checkpoint_says_that_its_rows_are_in_a_shard(
    make, story, lz4, log, monkeypatch
):
    writer = make(**lz4)
    seen, real = [], CheckpointFile.write

    def write(self, **changes):
        seen.append((dict(changes), writer.files.words[TAIL_START], list(log)))
        real(self, **changes)

    monkeypatch.setattr(CheckpointFile, "write", write)
    story.play(writer, 16)
    drain(writer)
    assert [(changes, before) for changes, before, _ in seen] == [
        ({"tail_start": 8}, 0),
        ({"tail_start": 16}, 8),
    ]
    assert ("write_file", "frames/c.0.0") in seen[0][2]
    assert ("write_file", "frames/c.1.0") in seen[1][2]
    assert writer.files.words[TAIL_START] == 16
    assert (checkpoint(writer).head, checkpoint(writer).tail_start) == (0, 16)


def test_a_seal_that_could_not_be_recorded_gives_nothing_back(make, story, lz4, monkeypatch, kill):
    writer = make(**lz4)

    def full(self, **changes):
        raise DiskFullError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFile, "write", full)
        story.play(writer, 15)
        drain(writer)
        assert writer.files.words[TAIL_START] == 0
        with pytest.raises(DiskFullError):
            story.step(writer)
        with mmreplay.open(writer.path) as store:
            story.check(store)
    story.step(writer)  # the same call works once there is room
    story.play(writer, 20, reset=False)
    kill(writer)
    with mmreplay.open(writer.path) as store:
        story.check(store)


def test_flushes_and_seals_copy_what_the_other_one_wrote(make, story, lz4):
    writer = make(**lz4)
    story.play(writer, 20)
    drain(writer)
    writer.flush()
    best = checkpoint(writer)
    assert (best.head, best.tail_start) == (21, 16)
    story.play(writer, 10, reset=False)
    drain(writer)
    best = checkpoint(writer)
    assert (best.head, best.tail_start) == (21, 24)


def test_all_keys_of_a_dict_are_sealed_together(make, story):
    frame = {
        "a": Field((3,), "uint8", "lz4", chunk=4, shard=8),
        "b": Field((2, 2), "float32", "zstd", chunk=2),
        "c": Field((5,), "int16", "raw", chunk=3),
    }
    writer = make(frame=frame)
    story.play(writer, 20)
    drain(writer)
    assert chunks(writer, "frames/a") == chunks(writer, "frames/b") == [0, 1]
    with mmreplay.open(writer.path) as store:
        story.check(store)
    writer.close()
    with mmreplay.open(writer.path) as store:
        story.check(store)


def test_a_short_shard_holds_nothing_of_older_rows(make, story, lz4):
    writer = make(**lz4)
    story.play(writer, 33)  # the tail has been round twice
    writer.close()
    spec = writer.specs["frames"]
    whole = zarr.open_array(writer.path / "frames", mode="r")
    assert whole.shape == (34, 3)
    from mmreplay.format import compression
    from mmreplay.storage import shard_file

    shard = shard_file.Shard(
        chunk_files.chunk_path(writer.path, spec, 4), spec, compression.make_codec(spec.codec)
    )
    out = np.full((4, 3), 99, np.uint8)
    shard.decode(0, out.reshape(-1))
    assert out[2:].tolist() == [[0, 0, 0]] * 2
    assert shard.slices[1] is None


# ---------------------------------------------------------------- evicting


@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_a_flush_evicts_chunk_files_wholly_below_the_context_of_the_oldest_transition(
    make, story, codec
):
    writer = make(frame=Field((3,), "uint8", codec, chunk=4, shard=8), capacity=10)
    for _ in range(30):
        story.play(writer, 6, "terminated")
        drain(writer)
        writer.flush()
        transitions = story.transitions(writer.path)
        first = transitions[-10:][0]
        base = checkpoint(writer).base
        assert writer.files.base == writer.files.words[BASE] == base
        assert base <= max(first - 64, 0)
        assert base > first - 64 - 8 or base == 0
        for path, spec in writer.specs.items():
            found = chunks(writer, path)
            last = -(-writer.rows // spec.chunk_rows)
            if not spec.is_raw:
                last = writer.files.tail_start // spec.chunk_rows
            assert found == list(range(base // spec.chunk_rows, last))
        with mmreplay.open(writer.path) as store:
            story.check(store, start=base)
            assert store.ids.tolist() == transitions[-10:]
    assert base > 100


def test_base_is_checkpointed_and_stored_before_a_file_goes(make, story, monkeypatch):
    writer = make(capacity=5)
    seen, real = [], durable_writes.unlink

    def unlink(path):
        seen.append(
            (int(path.name.split(".")[1]), checkpoint(writer).base, writer.files.words[BASE])
        )
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


def test_who_asks_late_whether_to_evict_moves_nothing_back(make, story, monkeypatch):
    writer = make(capacity=5)
    monkeypatch.setattr(writer._background, "wake", lambda: None)
    story.play(writer, 150)
    writer.flush()
    real = episode_index.first_row

    def late(*args):
        monkeypatch.setattr(episode_index, "first_row", real)
        found = real(*args)
        story.play(writer, 60, reset=False)  # the thread that asks waits for its turn here
        writer.flush()
        return found

    monkeypatch.setattr(episode_index, "first_row", late)
    writer._flush_in_background(timer=False)
    writer.close()
    own = json.loads((writer.path / "zarr.json").read_bytes())["attributes"]["mmreplay"]
    assert own["first"] == 205
    again = make(append=True)
    with mmreplay.open(again.path) as store:
        assert store.ids.tolist() == list(range(205, 210))
        story.check(store, start=205 - 64)


def test_the_index_in_memory_forgets_episodes_that_went(make, story):
    writer = make(capacity=5)
    for _ in range(100):
        story.play(writer, 3)
    writer.flush()
    base = writer.files.base
    assert writer.files.starts[0] <= base < writer.files.starts[1]
    assert len(writer.files.starts) < 20


# ---------------------------------------------------------------- windows prepared ahead


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


def test_no_room_for_a_chunk_ahead_is_no_error_yet(make, story, large, monkeypatch):
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


def test_no_room_for_a_chunk_ahead_takes_no_file_from_the_step(make, story, large, monkeypatch):
    writer = make()
    story.play(writer, 7)
    spec, real = writer.specs["rewards"], durable_writes._fallocate
    begun, stepping = threading.Event(), threading.Event()

    def full_ahead(descriptor, size):
        if threading.current_thread() is ahead:
            begun.set()
            stepping.wait(0.5)  # the step waits for its turn, or would be done by then
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


def test_a_ring_on_a_full_disk_evicts(make, story, monkeypatch):
    writer = make(capacity=8)
    monkeypatch.setattr(writer._background, "wake", lambda: None)  # nobody else evicts
    writer.files.on_flush = lambda: "state"
    story.play(writer, 30)
    story.play(writer, 65)
    before, real = chunks(writer), durable_writes._fallocate
    n_full = []

    def full(descriptor, size):
        if chunks(writer)[0] == before[0]:
            n_full.append(1)
            raise OSError(errno.ENOSPC, "full")
        real(descriptor, size)

    def full_write(path, data, **how):
        if chunks(writer)[0] == before[0]:
            raise DiskFullError("full")
        write_file(path, data, **how)

    write_file = durable_writes.write_file
    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_fallocate", full)
        patch.setattr(durable_writes, "write_file", full_write)
        story.play(writer, 9)
    assert n_full
    assert chunks(writer)[0] > before[0]
    assert checkpoint(writer).base > 0
    assert build_lane.read_generator(writer.path) == "state"


def test_a_lane_is_let_go_when_its_tasks_have_ended(make, story, lz4, monkeypatch):
    writer = make(**lz4, lanes=2)
    lane = writer.writers[0]
    held, released = threading.Event(), []
    real = lane_files.LockedLane.release

    def release(self):
        released.append(held.is_set())
        real(self)

    monkeypatch.setattr(lane_files.LockedLane, "release", release)
    lane._background.submit(lambda: held.wait(WAIT))
    threading.Timer(0.2, held.set).start()
    lane._release_unclosed()
    assert released == [True]
    writer.writers[1].close()


def test_a_flush_that_waited_for_a_lane_to_be_let_go_does_nothing(make, story):
    writer = make()
    story.play(writer, 8)
    before = checkpoint(writer)
    inner = writer.files
    writer._release_unclosed()
    flush.flush(inner)
    assert checkpoint(writer) == before


# ---------------------------------------------------------------- closing


@pytest.mark.parametrize("codec", ["raw", "lz4", "zstd"])
@pytest.mark.parametrize("length", [0, 1, 7, 8, 16, 30])
def test_a_closed_lane_is_plain_zarr_and_nothing_else(make, story, codec, length):
    writer = make(
        frame={"a": Field((3,), "uint8", codec, chunk=4, shard=8), "b": Field((), "float16")},
        action=Field((2,), "float32", chunk=5),
        extras={"x": Field((2,), "bool", chunk=7)},
    )
    if length:
        story.play(writer, length - 1)
    writer.close()
    path = writer.path
    for folder in [path, *(one for one in path.rglob("*") if one.is_dir())]:
        names = {one.name for one in folder.iterdir() if one.is_file()}
        assert "zarr.json" in names
        assert all(name == "zarr.json" or name.startswith("c.") for name in names)
    assert not (path / ".live").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = zarr.open_group(path, mode="r", zarr_format=3, use_consolidated=False)
        members = dict(group.members(max_depth=None))
    story.lanes.setdefault(path, [])
    if length:
        for name, expected in story.columns(path, writer.schema).items():
            assert members[name].dtype == expected.dtype
            assert np.array_equal(members[name][:], expected)
    for name, spec in writer.specs.items():
        assert members[name].shape == (length, *spec.row_shape)
        sums = members[f"checksums/{name}"][:]
        assert sums.shape == (-(-length // spec.chunk_rows),)
        for chunk, value in enumerate(sums):
            data = chunk_files.chunk_path(path, spec, chunk).read_bytes()
            assert google_crc32c.value(data) == value
    assert members["episodes/starts"][:].tolist() == [0][:length]
    own = json.loads((path / "zarr.json").read_bytes())["attributes"]["mmreplay"]
    assert (own["rows"], own["first"], own["closed"]) == (length, 0, True)


def test_the_unused_end_of_the_last_chunk_is_zeros_that_take_no_room(make, story):
    action = Field((), "int64", chunk=1 << 17)  # 1 MiB a chunk file
    writer = make(action=action)
    story.play(writer, 10)
    # What an interrupted step has left past the head must not get into the file.
    writer._chunks.columns["actions"].new.rows[11] = 77
    path = chunk_files.chunk_path(writer.path, writer.specs["actions"], 0)
    assert path.stat().st_blocks * 512 >= 1 << 20
    writer.close()
    assert path.stat().st_size == 1 << 20
    assert path.stat().st_blocks * 512 <= 64 * 1024
    assert path.read_bytes()[11 * 8 :].strip(b"\0") == b""
    again = make(append=True)
    assert path.stat().st_blocks * 512 >= 1 << 20
    again.close()


def test_the_index_of_a_closed_lane_names_its_resets(make, story):
    writer = make(capacity=30)
    for length in (3, 0, 5, 7, 100, 2, 0, 0, 9, 20):
        story.play(writer, length)
    writer.close()
    starts = zarr.open_array(writer.path / "episodes" / "starts", mode="r")[:]
    resets = np.flatnonzero(story.columns(writer.path, writer.schema)["resets"])
    first = story.transitions(writer.path)[-30]
    base = first - 64
    assert starts.tolist() == [row for row in resets.tolist() if row >= base]
    assert len(starts) < len(resets)
    again = make(append=True)
    story.play(again, 4)
    again.close()
    with mmreplay.open(writer.path) as store:
        story.check(store, start=store.lanes[0].base)


def test_evicted_files_stay_gone_and_read_as_zeros(make, story):
    writer = make(capacity=5)
    story.play(writer, 100)
    writer.close()
    rewards = zarr.open_array(writer.path / "rewards", mode="r")[:]
    expected = story.columns(writer.path, writer.schema)["rewards"]
    assert rewards[:24].tolist() == [0] * 24
    assert rewards[24:].tolist() == expected[24:].tolist()


@pytest.mark.parametrize("codec", ["raw", "lz4"])
@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, DiskFullError), (errno.EIO, FailedStoreError)]
)
def test_a_close_that_fails_at_any_write_loses_nothing(
    make, story, monkeypatch, codec, number, error
):
    writer = make(frame=Field((3,), "uint8", codec, chunk=4, shard=8))
    story.play(writer, 20)
    n_failed, at, real = 0, 0, os.write
    while True:
        count = [0]

        def write(descriptor, data, count=count, at=at):
            count[0] += 1
            if count[0] > at:
                raise OSError(number, "no")
            return real(descriptor, data)

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write)
            try:
                writer.close()
                break
            except error:
                n_failed += 1
        at += 3
        with mmreplay.open(writer.path) as store:
            story.check(store)
        if error is DiskFullError:  # the same call works once there is room, and no other
            for call in (story.step, story.reset):
                with pytest.raises(ClosedError, match=r"close\(\) found no room"):
                    call(writer)
        else:
            writer = make(append=True)
        with mmreplay.open(writer.path) as store:
            story.check(store)
    with mmreplay.open(writer.path) as store:
        story.check(store)
    assert mmreplay.verify(writer.path).findings == []
    assert n_failed > 3


def test_the_root_says_closed_only_after_everything_else_is_durable(
    make, story, lz4, log, monkeypatch
):
    writer = make(**lz4)
    story.play(writer, 20)
    drain(writer)
    log.clear()
    real = build_lane.write_metadata

    def write_metadata(*args, **changes):
        log.append(("closed", str(changes["closed"])))
        return real(*args, **changes)

    monkeypatch.setattr(build_lane, "write_metadata", write_metadata)
    writer.close()
    place = log.index(("closed", "True"))
    before, after = log[:place], log[place + 1 :]
    for name in writer.specs:
        assert ("write_file", f"{name}/zarr.json") in before
    assert ("write_file", "frames/c.2.0") in before
    assert ("write_file", "episodes/starts/zarr.json") in before
    assert after[0] == ("write_file", "zarr.json")
    assert all(path.startswith(".live") for name, path in after if name == "unlink")
    assert not any(name in {"write_at", "sync_file", "allocate"} for name, _ in after)


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


def test_an_opening_that_fails_lets_go_of_the_lock(make, story, kill):
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
