"""The writer of one lane: rows, failures of the disk, and what is left when a call fails."""

import errno
import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.errors import (
    ClosedError,
    DiskFullError,
    FailedStoreError,
    SchemaError,
)
from mmreplay.system import durable_writes
from tests.support.writers import assert_store_matches, drain

pytestmark = pytest.mark.usefixtures("quick_disk")

FRAME = np.zeros(3, np.uint8)


# ---------------------------------------------------------------- rows


def test_an_episode_of_t_steps_is_t_plus_1_rows(make, story):
    writer = make(extras={"x": Field((2,), "float32")})
    assert (writer.rows, writer.n_steps, writer.running) == (0, 0, False)
    story.play(writer, 3, "terminated")
    assert (writer.rows, writer.n_steps, writer.running) == (4, 3, False)
    story.play(writer, 2, "truncated")
    story.play(writer, 2)
    assert (writer.rows, writer.n_steps, writer.running) == (10, 7, True)
    with mmreplay.open(writer.path) as store:
        assert store.non_terminals[:].tolist() == [1, 1, 0, 0, 1, 1, 1, 1, 1, 1]
        assert store.resets[:].tolist() == [1, 0, 0, 0, 1, 0, 0, 1, 0, 0]
        assert store.rewards[:].tolist() == [1, 1.25, 1.5, 0, 2, 2.25, 0, 2.75, 3, 0]
        assert (store.extras["x"][:] == 0).all(axis=1).tolist() == [
            n in {3, 6, 9} for n in range(10)
        ]
    assert_store_matches(story, writer)


def test_both_flags_mean_terminated(make):
    writer = make()
    writer.reset(np.zeros(3, np.uint8))
    writer.step(1, 1.0, np.zeros(3, np.uint8), True, True)
    with mmreplay.open(writer.path) as store:
        assert store.non_terminals[:].tolist() == [0, 0]
        assert store.episodes["terminated"].tolist() == [True]


@pytest.mark.parametrize("flag", [True, np.True_, 1, np.int64(1)])
def test_flags_may_be_of_any_kind(make, flag):
    writer = make()
    frame = np.zeros(3, np.uint8)
    writer.reset(frame)
    writer.step(0, 0, frame, life_lost=flag)
    writer.step(0, 0, frame, truncated=flag)
    assert not writer.running
    writer.reset(frame)
    writer.step(0, 0, frame, terminated=flag)
    with mmreplay.open(writer.path) as store:
        assert store.non_terminals[:].tolist() == [0, 1, 1, 0, 0]


@pytest.mark.parametrize(
    "flag", [np.array([False, True]), np.array([False, False]), "False", float("nan"), [False]]
)
@pytest.mark.parametrize("name", ["terminated", "truncated", "life_lost"])
def test_a_flag_that_is_no_bool_is_refused_before_the_row_is_written(make, name, flag):
    writer = make()
    frame = np.zeros(3, np.uint8)
    writer.reset(frame)
    with pytest.raises(SchemaError, match=r"^flags terminated, truncated, life_lost: expected"):
        writer.step(0, 0, frame, **{name: flag})
    assert (writer.rows, writer.n_steps, writer.running) == (1, 0, True)
    writer.step(0, 0, frame)
    writer.close()
    assert mmreplay.verify(writer.path).sound


def test_the_bytes_of_bools_are_stored_as_0_and_1(make):
    bools = np.array([0, 1, 2, 255], np.uint8).view(bool)
    extras = {"one": Field((), "bool"), "four": Field((4,), "bool")}
    writer = make(frame=Field((4,), "bool"), action=Field((4,), "bool"), extras=extras)
    writer.reset(bools)
    writer.step(bools, 0, bools, one=bools[3:].reshape(()), four=bools)
    writer.close()
    with mmreplay.open(writer.path) as store:
        columns = (store.frames, store.actions, *store.extras.values())
        assert [column[0].view(np.uint8).tolist() for column in columns] == [
            [0, 1, 1, 1], [0, 1, 1, 1], 1, [0, 1, 1, 1],
        ]  # fmt: skip
    assert mmreplay.verify(writer.path).sound


def test_a_store_goes_on_where_it_was_moved_and_touches_no_other(make, story, tmp_path, lz4):
    writer = make(**lz4, capacity=50)
    story.play(writer, 30)
    (tmp_path / "store.zarr").rename(tmp_path / "moved.zarr")
    other = make(**lz4)
    other.reset(np.full(3, 7, np.uint8))
    other.flush()
    story.play(writer, 100, reset=False)
    writer.flush()
    writer.close()
    other.close()
    assert mmreplay.verify(tmp_path / "moved.zarr").sound
    assert mmreplay.verify(other.path).sound
    with mmreplay.open(tmp_path / "moved.zarr") as store, mmreplay.open(other.path) as another:
        assert store.lanes[0].frames.shape[0] == 131
        assert another.frames[:].tolist() == [[7, 7, 7]]


def test_a_lost_life_stops_returns_but_not_the_episode(make, story):
    writer = make()
    story.play(writer, 2)
    story.step(writer, life_lost=True)
    story.step(writer)
    story.step(writer, terminated=True, life_lost=True)
    assert not writer.running
    assert_store_matches(story, writer)
    with mmreplay.open(writer.path) as store:
        assert store.episodes["length"].tolist() == [5]
        assert store.resets[:].sum() == 1


def test_a_reset_in_mid_episode_ends_it_as_truncated(make, story):
    writer = make()
    story.play(writer, 3)
    story.play(writer, 2)
    story.step(writer, life_lost=True)
    story.reset(writer)
    assert_store_matches(story, writer)
    with mmreplay.open(writer.path) as store:
        assert store.episodes["truncated"].tolist() == [True, False]
        assert store.episodes["length"].tolist() == [3, 3]


def test_an_episode_of_no_step_is_a_row_and_no_transition(make, story):
    writer = make(action=Field((), "int64", chunk=1))
    for length in (0, 0, 2, 0, 1, 0):
        story.play(writer, length)
    assert writer.rows == 9
    assert_store_matches(story, writer)
    with mmreplay.open(writer.path) as store:
        assert len(store) == 3
        assert store.episodes["length"].tolist() == [2, 1]


def test_an_action_may_be_of_any_shape_and_dtype(make, story):
    for number, (shape, dtype) in enumerate(
        [
            ((), "int64"),
            ((), "float32"),
            ((), "float16"),
            ((), "bool"),
            ((2,), "float32"),
            ((1, 2), "uint8"),
        ]
    ):
        writer = make(f"{number}.zarr", action=Field(shape, dtype, chunk=4))
        story.play(writer, 9)
        assert_store_matches(story, writer)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "float64"])
@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_frames_of_a_dict_may_be_of_any_shape_and_dtype(make, story, dtype, codec):
    fields = [Field(shape, dtype, codec, chunk=2, shard=4) for shape in [(), (3,), (2, 2)]]
    writer = make(frame=dict(zip("abc", fields, strict=True)))
    story.play(writer, 11)
    drain(writer)
    assert_store_matches(story, writer)


@pytest.mark.parametrize(("shape", "dtype"), [((), "float16"), ((3,), "bool"), ((2, 2), "float64")])
@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_a_frame_may_be_of_any_shape(make, story, shape, dtype, codec):
    writer = make(frame=Field(shape, dtype, codec, chunk=2, shard=4))
    story.play(writer, 11)
    drain(writer)
    assert_store_matches(story, writer)


@pytest.mark.parametrize("reward", [np.array([1.0]), None, "1", [1.0]])
def test_a_reward_is_a_number(make, reward):
    writer = make()
    writer.reset(np.zeros(3, np.uint8))
    with pytest.raises(SchemaError, match=r"^reward: expected a number, found .*; convert it, an"):
        writer.step(0, reward, np.zeros(3, np.uint8))
    assert writer.rows == 1
    writer.step(0, np.array([1.0]).item(), np.zeros(3, np.uint8))
    assert mmreplay.open(writer.path).rewards[0] == 1


def test_rewards_may_have_64_bits(make):
    writer = make(reward_dtype="float64")
    frame = np.zeros(3, np.uint8)
    writer.reset(frame)
    writer.step(0, 0.1, frame)
    with mmreplay.open(writer.path) as store:
        assert store.rewards[0] == 0.1
        assert store.rewards.dtype == np.float64


def test_a_step_needs_a_running_episode(make, story):
    writer = make()
    with pytest.raises(
        SchemaError, match=r"step\(\) at row 0, but no episode is running; call reset"
    ):
        writer.step(1, 1.0, FRAME)
    for end in ("terminated", "truncated"):
        story.play(writer, 2, end)
        with pytest.raises(SchemaError, match="no episode is running: it has ended; call reset"):
            writer.step(1, 1.0, FRAME)
    story.play(writer, 2)
    writer.close()
    writer = make(append=True)
    with pytest.raises(SchemaError, match="no episode is running"):
        writer.step(1, 1.0, FRAME)
    assert_store_matches(story, writer)


def test_a_step_that_was_interrupted_leaves_a_final_row(make, story):
    writer = make(extras={"x": Field((), "float32", chunk=3)})

    class Interrupting:
        def __float__(self):
            raise KeyboardInterrupt

    for length in (1, 7, 8, 2):
        story.play(writer, length)
        with pytest.raises(KeyboardInterrupt):
            writer.step(5, Interrupting(), FRAME, x=1.0)
        assert_store_matches(story, writer)
    story.play(writer, 2)
    assert_store_matches(story, writer)
    with pytest.raises(KeyboardInterrupt):
        writer.step(5, Interrupting(), FRAME, x=1.0)
    writer.close()
    assert_store_matches(story, writer)


@pytest.mark.parametrize("following", ["step", "reset", "close"])
def test_a_reset_that_was_interrupted_leaves_no_start(make, story, monkeypatch, following):
    def interrupt(*_):
        raise KeyboardInterrupt

    writer = make()
    for length in (3, 7, 12):
        story.play(writer, length)
        with monkeypatch.context() as patch:
            patch.setattr(mmreplay.Writer, "_commit", interrupt)
            with pytest.raises(KeyboardInterrupt):
                writer.reset(FRAME)
        if following == "step":
            story.play(writer, 9, reset=False)
        assert_store_matches(story, writer)
    writer.close()
    assert_store_matches(story, writer)
    assert mmreplay.verify(writer.path).findings == []
    if following == "close":
        story.play(make(append=True), 3)
        assert_store_matches(story, writer)


# ---------------------------------------------------------------- a disk that is full or broken


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("call", "at"), [*(("step", at) for at in range(1, 6)), ("reset", 1), ("reset", 5)]
)
def test_no_room_for_a_chunk_changes_nothing_and_the_same_call_works_later(
    make, story, monkeypatch, call, at
):
    writer = make()
    story.play(writer, 7)
    count, real = [0], os.posix_fallocate

    def nearly_full(*args):
        count[0] += 1
        if count[0] >= at:
            full()
        real(*args)

    act = getattr(story, call)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", nearly_full)
        for _ in range(2):
            with pytest.raises(DiskFullError, match="nothing was changed"):
                act(writer)
            assert writer.rows == 8
            assert_store_matches(story, writer)
            count[0] = at
    act(writer)
    story.play(writer, 30, reset=False)
    assert_store_matches(story, writer)
    drain(writer)
    writer.close()
    assert_store_matches(story, writer)
    assert mmreplay.verify(writer.path).findings == []


@pytest.mark.parametrize("call", ["step", "reset"])
def test_a_full_disk_at_sealing_is_reported_once_both_halves_of_the_tail_are_full(
    make, story, lz4, monkeypatch, call
):
    writer = make(**lz4)
    act = getattr(story, call)
    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_write_all", full)
        story.play(writer, 15)
        for _ in range(2):
            with pytest.raises(DiskFullError):
                act(writer)
            assert writer.rows == 16
            assert_store_matches(story, writer)
    act(writer)
    story.play(writer, 40, reset=False)
    drain(writer)
    assert_store_matches(story, writer)
    writer.close()
    assert_store_matches(story, writer)
    assert mmreplay.verify(writer.path).findings == []


@pytest.mark.parametrize("call", ["step", "reset", "flush"])
def test_a_failure_that_is_no_full_disk_ends_writing_for_good(make, story, monkeypatch, call):
    writer = make()
    story.play(writer, 7)

    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    act = writer.flush if call == "flush" else (lambda: getattr(story, call)(writer))
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", broken)
        patch.setattr(durable_writes, "_fdatasync", broken)
        with pytest.raises(FailedStoreError, match=r"Input/output error|failed"):
            act()
    for again in (writer.flush, lambda: story.step(writer), lambda: story.reset(writer)):
        with pytest.raises(FailedStoreError):
            again()
    if call != "flush":  # an fsync of rows that failed: nothing has been flushed
        assert_store_matches(story, writer)
    writer.close()
    assert make(append=True).rows == (0 if call == "flush" else 8)


def test_a_failed_fsync_of_a_seal_is_final(make, story, lz4, monkeypatch):
    writer = make(**lz4)

    def broken(path):
        raise FailedStoreError(f"{path}: fsync failed")

    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "sync_directory", broken)
        with pytest.raises(FailedStoreError, match="fsync failed"):
            story.play(writer, 20)
    for again in (writer.flush, lambda: story.step(writer), lambda: story.reset(writer)):
        with pytest.raises(FailedStoreError, match="fsync failed"):
            again()
    assert_store_matches(story, writer)
    writer.close()
    make(append=True).close()
    assert_store_matches(story, writer)


def test_an_encoder_that_fails_is_tried_again(make, story, lz4, monkeypatch):
    from mmreplay.format import compression

    writer = make(**lz4)

    def fail(*_, **__):
        raise MemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(compression, "encode", fail)
        story.play(writer, 15)
        with pytest.raises(MemoryError):
            story.step(writer)
        assert_store_matches(story, writer)
    story.play(writer, 20, reset=False)
    assert_store_matches(story, writer)


# ---------------------------------------------------------------- base, first


def test_first_follows_the_capacity_exactly_and_base_keeps_its_context(make, story):
    writer = make(capacity=7)
    with mmreplay.open(writer.path) as store:
        for length in (3, 2, 0, 4, 1, 9, 5, 30, 2, 60, 80):
            story.play(writer, length, "terminated")
            expected = story.transitions(writer.path)[-7:]
            assert store.ids.tolist() == expected
            view = store.lanes[0]
            assert view.first <= expected[0]
            writer.flush()
            store.refresh()
            assert view.base <= max(view.first - 64, 0)
    writer.close()
    with mmreplay.open(writer.path) as store:
        assert store.ids.tolist() == expected


# ---------------------------------------------------------------- the end of a writer


def test_base_is_the_oldest_row_kept_also_after_it_was_opened_again(make, story):
    writer = make(capacity=7)
    assert writer.base == 0
    story.play(writer, 40)
    writer.flush()
    assert writer.base == 0  # the context of the oldest transition reaches to the beginning
    story.play(writer, 100)
    writer.flush()
    base = writer.base
    assert 0 < base <= writer.rows - 1 - 7 - 64
    with mmreplay.open(writer.path) as store:
        assert store.lanes[0].base == base
    writer.close()
    assert make(append=True).base == base


def test_a_closed_writer_says_so_and_closing_twice_is_fine(make, story):
    writer = make()
    story.play(writer, 3)
    assert "rows=4" in repr(writer)
    writer.close()
    writer.close()
    for call in (writer.flush, lambda: story.step(writer), lambda: story.reset(writer)):
        with pytest.raises(ClosedError, match="closed"):
            call()
    assert repr(writer).endswith("closed>")
    assert not writer.running
    assert_store_matches(story, writer)


def test_leaving_the_context_closes_also_after_an_error(make, story):
    with pytest.raises(KeyError), make() as writer:
        story.play(writer, 3)
        raise KeyError
    assert not (writer.path / ".live").exists()
    assert_store_matches(story, writer)


def test_a_dropped_writer_releases_its_lane(make, story, tmp_path, quick_disk):
    writer = mmreplay.create(tmp_path / "w.zarr", Field((3,)), Field((), "int64"), flush_s=3600)
    assert isinstance(writer, mmreplay.Writer)
    story.play(writer, 3)
    path = writer.path
    del writer
    gc.collect()
    again = make("w.zarr", append=True)
    assert again.path == path
    assert again.rows == 4
    assert_store_matches(story, again)


def test_a_forked_child_has_no_writer_and_its_parent_goes_on(make, story, tmp_path):
    code = """
import os, sys, numpy as np, mmreplay
from mmreplay import Field
frame = np.zeros(3, np.uint8)
writer = mmreplay.create(sys.argv[1], Field((3,), "uint8", "lz4", 4, 8), Field((), "int64"))
writer.reset(frame)
for _ in range(10):
    writer.step(1, 1.0, frame)
if os.fork() == 0:
    for call in (lambda: writer.step(1, 1.0, frame), lambda: writer.reset(frame), writer.flush):
        try:
            call()
        except mmreplay.ClosedError as error:
            assert "parent" in str(error)
        else:
            os._exit(1)
    writer.close()
    os._exit(0 if os.path.exists(sys.argv[1] + "/.live") else 2)
print(os.waitstatus_to_exitcode(os.wait()[1]))
for _ in range(10):
    writer.step(1, 1.0, frame)
writer.close()
print(len(mmreplay.open(sys.argv[1])))
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path / "s.zarr")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (run.stdout, run.stderr) == ("0\n20\n", "")


def test_threads_of_a_writer_end_with_it(make, story):
    before = set(threading.enumerate())
    writer = make(flush_s=3600, frame=Field((3,), "uint8", "lz4", 4, 8))
    story.play(writer, 20)
    while len(set(threading.enumerate()) - before) < 2:  # one may be about to begin
        time.sleep(0.01)
    assert len(set(threading.enumerate()) - before) == 2
    writer.close()
    assert set(threading.enumerate()) == before
