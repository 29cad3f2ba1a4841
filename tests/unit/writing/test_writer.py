"""The writer of one lane: rows, borders, what is refused, and what is left when a call fails."""

import errno
import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.errors import (
    ClosedError,
    CorruptStoreError,
    DiskFullError,
    FailedStoreError,
    SchemaError,
)
from mmreplay.storage import chunk_files
from mmreplay.storage.state_page import COMMITTED
from mmreplay.system import durable_writes
from mmreplay.writing import seal
from mmreplay.writing import writer as writer_module

pytestmark = pytest.mark.usefixtures("quick_disk")


def checked(story, writer, start=0):
    with mmreplay.open(writer.path) as store:
        story.check(store, start=start)
        first = store.lanes[0].first
        expected = [row for row in story.transitions(writer.path) if row >= first]
        assert store.ids.tolist() == expected


def drain(writer):
    writer._background.submit(lambda: None).result(30)


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
    checked(story, writer)


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


def test_a_lost_life_stops_returns_but_not_the_episode(make, story):
    writer = make()
    story.play(writer, 2)
    story.step(writer, life_lost=True)
    story.step(writer)
    story.step(writer, terminated=True, life_lost=True)
    assert not writer.running
    checked(story, writer)
    with mmreplay.open(writer.path) as store:
        assert store.episodes["length"].tolist() == [5]
        assert store.resets[:].sum() == 1


def test_a_reset_in_mid_episode_ends_it_as_truncated(make, story):
    writer = make()
    story.play(writer, 3)
    story.play(writer, 2)
    story.step(writer, life_lost=True)
    story.reset(writer)
    checked(story, writer)
    with mmreplay.open(writer.path) as store:
        assert store.episodes["truncated"].tolist() == [True, False]
        assert store.episodes["length"].tolist() == [3, 3]


def test_an_episode_of_no_step_is_a_row_and_no_transition(make, story):
    writer = make(action=Field((), "int64", chunk=1))
    for length in (0, 0, 2, 0, 1, 0):
        story.play(writer, length)
    assert writer.rows == 9
    checked(story, writer)
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
        checked(story, writer)


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "float64"])
@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_a_frame_may_be_of_any_shape_and_dtype(make, story, shape, dtype, codec):
    writer = make(frame=Field(shape, dtype, codec, chunk=2, shard=4))
    story.play(writer, 11)
    drain(writer)
    checked(story, writer)


def test_rewards_may_have_64_bits(make):
    writer = make(reward_dtype="float64")
    frame = np.zeros(3, np.uint8)
    writer.reset(frame)
    writer.step(0, 0.1, frame)
    with mmreplay.open(writer.path) as store:
        assert store.rewards[0] == 0.1
        assert store.rewards.dtype == np.float64


# ---------------------------------------------------------------- borders


@pytest.mark.parametrize("codec", ["raw", "lz4"])
@pytest.mark.parametrize("scalars", [1, 2, 3, 8])
@pytest.mark.parametrize("extra", [1, 5])
def test_every_border_of_every_column_is_crossed_at_every_kind_of_row(
    make, story, codec, scalars, extra
):
    writer = make(
        frame={
            "a": Field((2,), "uint8", codec, chunk=2, shard=6),
            "b": Field((), "float32", "raw", chunk=3),
        },
        action=Field((), "int64", chunk=scalars),
        extras={"x": Field((), "float32", chunk=extra)},
    )
    for length in (0, 1, 2, 3, 0, 5, 7, 1, 12, 0, 4):
        story.play(writer, length, ("terminated", "truncated", "")[length % 3])
    drain(writer)
    checked(story, writer)
    writer.close()
    checked(story, writer)


def test_the_number_of_rows_is_that_of_the_other_side_from_the_moment_of_the_commit(make, story):
    writer = make()
    with mmreplay.open(writer.path) as store:
        reader = store.readers[0]
        for step in range(20):
            story.play(writer, 1, reset=not step)
            reader.poll()
            assert reader.head == writer.rows == writer.files.words[COMMITTED]


def test_a_row_is_readable_from_the_moment_committed_passes_it_and_not_before(
    make, story, monkeypatch
):
    writer = make(extras={"x": Field((), "float32")})
    seen = []
    story.play(writer, 2)
    with mmreplay.open(writer.path) as store:

        def barrier():
            rows = store.refresh().lanes[0].rows
            newest = rows - 1
            scalars = [store.actions[newest], store.rewards[newest], store.extras["x"][newest]]
            seen.append((rows, writer.rows, [float(one) for one in scalars]))

        monkeypatch.setattr(writer_module, "_publish", barrier)
        story.step(writer)
        story.reset(writer)
        story.step(writer, terminated=True)
        # At the barrier all is written, and the row before is still a final row to everybody.
        assert seen == [(rows, rows, [0, 0, 0]) for rows in (3, 4, 5)]
        store.refresh()
        story.check(store)


# ---------------------------------------------------------------- refused


@pytest.fixture
def running(make, story):
    """A writer in the middle of an episode, with an extra column."""
    writer = make(extras={"x": Field((), "int8")})
    story.play(writer, 3)
    return writer


FRAME = np.zeros(3, np.uint8)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((1, 1.0, np.zeros(4, np.uint8)), r"frame: expected shape \(3,\), found \(4,\)"),
        ((1, 1.0, np.zeros(3, np.int16)), "frame: expected dtype uint8, found int16"),
        ((1, 1.0, np.full(3, 1.5)), r"must lie in \[0, 1\]"),
        ((1, 1.0, {"a": FRAME}), "frame"),
        ((1, 1.0, None), "frame"),
        ((1.5, 1.0, FRAME), "action"),
        (("x", 1.0, FRAME), "action"),
        ((None, 1.0, FRAME), "action"),
        ((1 << 63, 1.0, FRAME), "action"),
        ((np.array([1]), 1.0, FRAME), "action"),
        ((1, "x", FRAME), "reward"),
        ((1, None, FRAME), "reward"),
        ((1, [1.0], FRAME), "reward"),
        ((1, np.zeros(2), FRAME), "reward"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_and_leaves_no_trace(running, story, arguments, match):
    checked(story, running)
    for _ in range(2):
        with pytest.raises(SchemaError, match=match):
            running.step(*arguments, x=5)
        assert running.rows == 4
        checked(story, running)
    story.play(running, 10, reset=False)
    checked(story, running)
    with pytest.raises(SchemaError, match=match):
        running.step(*arguments, x=5)
    story.reset(running)
    checked(story, running)
    with pytest.raises(SchemaError, match=match):
        running.step(*arguments, x=5)
    running.close()
    checked(story, running)


@pytest.mark.parametrize(
    ("extras", "match"),
    [
        ({}, r"extras: expected \['x'\], found none"),
        ({"x": 1, "y": 1}, r"extras: expected \['x'\], found \['x', 'y'\]"),
        ({"y": 1}, r"extras: expected \['x'\], found \['y'\]"),
        ({"x": 300}, "x: expected dtype int8"),
        ({"x": 1.5}, "x: expected dtype int8"),
        ({"x": [1]}, r"x: expected shape \(\), found \(1,\)"),
        ({"x": "a"}, "x: "),
        ({"x": None}, "x: "),
    ],
)
def test_extras_that_do_not_fit_are_refused_and_leave_no_trace(running, story, extras, match):
    with pytest.raises(SchemaError, match=match):
        running.step(1, 1.0, FRAME, life_lost=True, **extras)
    checked(story, running)
    story.play(running, 10, reset=False)
    checked(story, running)


def test_extras_that_were_not_declared_are_refused(make, story):
    writer = make()
    story.play(writer, 1)
    with pytest.raises(SchemaError, match=r"extras: expected none, found \['x'\]"):
        writer.step(1, 1.0, FRAME, x=1)
    checked(story, writer)


def test_a_float32_action_that_would_not_stay_finite_is_refused(make):
    for shape in ((), (1,)):
        writer = make(f"{len(shape)}.zarr", action=Field(shape, "float32"))
        writer.reset(np.zeros(3, np.uint8))
        for large in (1e300, np.float64(-1e39)):
            with pytest.raises(SchemaError, match="action: expected dtype float32"):
                writer.step(np.broadcast_to(large, shape), 0.0, np.zeros(3, np.uint8))
        assert writer.rows == 1
        for action in (0.1, np.float32(2), 3, np.inf):
            writer.step(np.broadcast_to(action, shape), 0.0, np.zeros(3, np.uint8))
        with mmreplay.open(writer.path) as store:
            assert store.actions[:].ravel().tolist() == [np.float32(0.1), 2, 3, np.inf, 0]


@pytest.mark.parametrize(("dtype", "wrong"), [("bool", 0.5), ("float16", 1e10)])
def test_a_number_that_a_small_dtype_does_not_hold_is_refused(make, dtype, wrong):
    writer = make(action=Field((), dtype))
    writer.reset(FRAME)
    with pytest.raises(SchemaError, match=f"action: expected dtype {dtype}"):
        writer.step(wrong, 0.0, FRAME)
    assert writer.rows == 1
    for action in (True, False):
        writer.step(action, 0.0, FRAME)
    with mmreplay.open(writer.path) as store:
        assert store.actions[:].tolist() == [1, 0, 0]


def test_a_bool_of_numpy_is_taken_as_an_integer(make):
    writer = make(action=Field((), "int64"))
    writer.reset(FRAME)
    writer.step(np.True_, 0.0, FRAME)
    with mmreplay.open(writer.path) as store:
        assert store.actions[:].tolist() == [1, 0]


def test_a_vector_action_that_does_not_fit_is_refused(make, story):
    writer = make(action=Field((2,), "float32"))
    story.play(writer, 1)
    for action in (1.0, [1.0], [[1.0, 2.0]], ["a", "b"], [[1], [1, 2]], None):
        with pytest.raises(SchemaError, match="action"):
            writer.step(action, 0.0, FRAME)
        checked(story, writer)
    writer.step([1, 2], 0.0, FRAME)
    writer.step(np.array([0.5, 2.0]), 0.0, FRAME)
    with mmreplay.open(writer.path) as store:
        assert store.actions[1:3].tolist() == [[1, 2], [0.5, 2]]


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
    checked(story, writer)


@pytest.mark.parametrize(
    "frame", [np.zeros(4, "u1"), np.zeros(3, "i2"), None, "abc", {"frame": FRAME}]
)
def test_a_reset_that_does_not_fit_changes_nothing(running, story, frame):
    with pytest.raises(SchemaError, match="frame"):
        running.reset(frame)
    assert running.running
    story.play(running, 1, reset=False)
    checked(story, running)


def test_a_dict_frame_needs_all_its_keys_and_no_other(make, story):
    writer = make(frame={"a": Field((3,), "uint8", "raw"), "b": Field((), "float32", "raw")})
    story.play(writer, 3)
    good = {"a": FRAME, "b": np.float32(1)}
    for wrong in ({}, {"a": FRAME}, good | {"c": 1}, FRAME, None, [FRAME, 1.0]):
        with pytest.raises(SchemaError, match=r"frame: expected a dict with the keys \['a', 'b'\]"):
            writer.step(1, 1.0, wrong)
        with pytest.raises(SchemaError, match=r"frame: expected a dict with the keys"):
            writer.reset(wrong)
    with pytest.raises(SchemaError, match=r"frame\['b'\]: expected shape \(\), found \(2,\)"):
        writer.step(1, 1.0, good | {"b": [1.0, 2.0]})
    checked(story, writer)
    story.play(writer, 1, reset=False)
    checked(story, writer)


def test_a_step_that_was_interrupted_leaves_a_final_row(make, story):
    writer = make(extras={"x": Field((), "float32", chunk=3)})

    class Interrupting:
        def __float__(self):
            raise KeyboardInterrupt

    for length in (1, 7, 8, 2):
        story.play(writer, length)
        with pytest.raises(KeyboardInterrupt):
            writer.step(5, Interrupting(), FRAME, x=1.0)
        checked(story, writer)
    story.play(writer, 2)
    checked(story, writer)
    with pytest.raises(KeyboardInterrupt):
        writer.step(5, Interrupting(), FRAME, x=1.0)
    writer.close()
    checked(story, writer)


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
        checked(story, writer)
    writer.close()
    checked(story, writer)
    assert mmreplay.verify(writer.path).findings == []
    if following == "close":
        story.play(make(append=True), 3)
        checked(story, writer)


# ---------------------------------------------------------------- a disk that is full or broken


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["step", "reset"])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
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
            checked(story, writer)
            count[0] = at
    act(writer)
    story.play(writer, 30, reset=False)
    checked(story, writer)
    drain(writer)
    writer.close()
    checked(story, writer)
    assert mmreplay.verify(writer.path).findings == []


@pytest.mark.parametrize("call", ["step", "reset"])
def test_no_room_for_a_shard_is_told_when_both_halves_are_full(make, story, lz4, monkeypatch, call):
    writer = make(**lz4)
    act = getattr(story, call)
    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_write_all", full)
        story.play(writer, 15)
        for _ in range(2):
            with pytest.raises(DiskFullError):
                act(writer)
            assert writer.rows == 16
            checked(story, writer)
    act(writer)
    story.play(writer, 40, reset=False)
    drain(writer)
    checked(story, writer)
    writer.close()
    checked(story, writer)
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
        checked(story, writer)
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
    checked(story, writer)
    writer.close()
    make(append=True).close()
    checked(story, writer)


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
        checked(story, writer)
    story.play(writer, 20, reset=False)
    checked(story, writer)


def test_a_failed_flush_of_the_clock_is_told_by_the_next_call(make, story, monkeypatch):
    writer = make()
    story.play(writer, 3)

    def broken(*_):
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_fdatasync", broken)
        writer._flush_in_background(timer=True)
    with pytest.raises(FailedStoreError, match="broken"):
        story.step(writer)
    writer._flush_in_background(timer=True)
    assert writer.rows == 4


def test_whatever_stops_a_flush_by_the_clock_is_told_by_the_next_call(make, story, monkeypatch):
    writer = make()
    story.play(writer, 3)

    def gone(*_):
        raise CorruptStoreError("a directory is gone")

    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "sync_directory", gone)
        writer._flush_in_background(timer=True)
    with pytest.raises(FailedStoreError, match="a directory is gone"):
        story.step(writer)
    checked(story, writer)


def test_a_full_disk_at_a_flush_of_the_clock_ends_nothing(make, story, monkeypatch):
    writer = make()
    story.play(writer, 3)
    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_write_all", full)
        writer._flush_in_background(timer=True)
    story.play(writer, 20, reset=False)
    checked(story, writer)


# ---------------------------------------------------------------- sealing under pressure


def test_a_writer_that_is_faster_than_the_thread_helps_it(make, story, lz4, monkeypatch):
    from mmreplay.format import compression

    writer = make(**lz4)
    begun, held, fasts = threading.Event(), threading.Event(), []
    real = compression.encode

    def encode(codec, data, *, fast=False):
        fasts.append((threading.current_thread() is threading.main_thread(), fast))
        if len(fasts) == 1:
            begun.set()
            assert held.wait(30)
        if len(fasts) == 2:
            held.set()
        return real(codec, data, fast=fast)

    monkeypatch.setattr(compression, "encode", encode)
    story.play(writer, 8)
    assert begun.wait(30)
    story.play(writer, 30, reset=False)
    # The first half has two chunks: the thread was held up in one, so the writer did the other.
    assert fasts[:2] == [(False, False), (True, True)]
    drain(writer)
    checked(story, writer)


def test_a_tail_full_to_the_last_row_goes_on_after_a_kill(make, story, lz4, kill, monkeypatch):
    writer = make(**lz4)
    monkeypatch.setattr(seal.SealJob, "run", lambda self: None)  # the thread never gets to it
    story.play(writer, 15)
    assert writer.files.tail_start == 0
    kill(writer)
    monkeypatch.undo()
    checked(story, writer)
    writer = make(append=True)
    assert writer.rows == 16
    assert writer.files.tail_start == 0
    story.play(writer, 3)
    drain(writer)
    assert writer.files.tail_start == 16
    checked(story, writer)
    writer.close()
    checked(story, writer)


def test_a_tail_full_to_the_last_row_is_closed_after_a_kill(make, story, lz4, kill, monkeypatch):
    writer = make(**lz4)
    monkeypatch.setattr(seal.SealJob, "run", lambda self: None)
    story.play(writer, 15)
    kill(writer)
    monkeypatch.undo()
    make(append=True).close()
    checked(story, writer)
    assert chunk_files.chunk_files(writer.path, writer.specs["frames"]) == [0, 1]


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
    checked(story, writer)


def test_leaving_the_context_closes_also_after_an_error(make, story):
    with pytest.raises(KeyError), make() as writer:
        story.play(writer, 3)
        raise KeyError
    assert not (writer.path / ".live").exists()
    checked(story, writer)


def test_a_writer_that_was_dropped_lets_go_of_its_lane(make, story, tmp_path, quick_disk):
    writer = mmreplay.create(tmp_path / "w.zarr", Field((3,)), Field((), "int64"), flush_s=3600)
    assert isinstance(writer, mmreplay.Writer)
    story.play(writer, 3)
    path = writer.path
    del writer
    gc.collect()
    again = make("w.zarr", append=True)
    assert again.path == path
    assert again.rows == 4
    checked(story, again)


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
        timeout=60,
        check=False,
    )
    assert (run.stdout, run.stderr) == ("0\n20\n", "")


def test_threads_of_a_writer_end_with_it(make, story):
    before = set(threading.enumerate())
    writer = make(flush_s=3600, frame=Field((3,), "uint8", "lz4", 4, 8))
    story.play(writer, 20)
    assert len(set(threading.enumerate()) - before) == 2
    writer.close()
    assert set(threading.enumerate()) == before
