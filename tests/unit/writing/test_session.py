"""What every writer has: background flushes that fail, being dropped, a forked child."""

import copy
import errno
import gc
import os
import pickle

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.errors import ClosedError, CorruptStoreError, FailedStoreError, SchemaError
from mmreplay.system import durable_writes
from tests.support.oracle.vector_pair import FIELDS
from tests.support.writers import assert_store_matches

pytestmark = pytest.mark.usefixtures("quick_disk")

FRAME = FIELDS["frame"]


def full(*_):
    raise OSError(errno.ENOSPC, "full")


def test_a_timed_flush_that_failed_is_reported_by_the_next_call(make, story, monkeypatch):
    writer = make()
    story.play(writer, 3)

    def broken(*_):
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_fdatasync", broken)
        writer._session._timed_flush.flush_in_background(timer=True)
    with pytest.raises(FailedStoreError, match="broken"):
        story.step(writer)
    writer._session._timed_flush.flush_in_background(timer=True)
    assert writer.rows == 4


def test_any_error_of_a_timed_flush_is_reported_by_the_next_call(make, story, monkeypatch):
    writer = make()
    story.play(writer, 3)

    def gone(*_):
        raise CorruptStoreError("a directory is gone")

    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "sync_directory", gone)
        writer._session._timed_flush.flush_in_background(timer=True)
    with pytest.raises(FailedStoreError, match="a directory is gone"):
        story.step(writer)
    assert_store_matches(story, writer)


def test_a_full_disk_at_a_timed_flush_does_not_end_writing(make, story, monkeypatch):
    writer = make()
    story.play(writer, 3)
    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_write_all", full)
        writer._session._timed_flush.flush_in_background(timer=True)
    story.play(writer, 20, reset=False)
    assert_store_matches(story, writer)


@pytest.mark.parametrize("n_lanes", [None, 2])
def test_a_dropped_writer_releases_its_lane_at_once(tmp_path, n_lanes):
    fields = Field((2,)), Field((), "int64")
    frames = np.zeros((2,) if n_lanes is None else (n_lanes, 2), np.uint8)
    gc.disable()
    try:
        writer = mmreplay.create(tmp_path / "s.zarr", *fields, lanes=n_lanes, flush_s=3600)
        writer.reset(frames)
        del writer
        with mmreplay.create(tmp_path / "s.zarr", append=True) as again:
            assert again.n_steps == 0
    finally:
        gc.enable()


def test_a_forked_child_has_no_vector_writer_and_its_parent_goes_on(make):
    writer = make(lanes=2)
    values = np.zeros((2, 3), np.uint8)
    none = [False] * 2
    writer.reset(values)
    writer.step([1, 1], [0, 0], values, none, none)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            writer.step([1, 1], [0, 0], values, none, none)
        except ClosedError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    writer.step([1, 1], [0, 0], values, none, none)
    assert writer.rows == 2


@pytest.mark.parametrize("double", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("width", [{}, {"lanes": 2}], ids=str)
def test_a_writer_is_neither_pickled_nor_copied_and_says_what_to_do_instead(make, width, double):
    writer = make(**width)
    with pytest.raises(SchemaError, match=r"one writer; another process .*mmreplay\.load\("):
        double(writer)
    writer.close()


def test_a_reset_after_an_interrupted_step_finds_out_whose_episodes_had_ended(make):
    writer = make(frame=FRAME, action=FIELDS["action"], lanes=2)
    frames, actions = (
        np.zeros((2, *FRAME.shape), FRAME.dtype),
        np.zeros((2, *FIELDS["action"].shape)),
    )
    values = actions.astype(FIELDS["action"].dtype), [0.0, 0.0], frames
    writer.reset(frames)
    writer.step(*values, [False, True], [False, False])
    numbers = writer._current.copy()
    writer.step(*values, [True, False], [False, False], mask=[True, False])
    # As an interrupt leaves it between the commit and what the writer knows of the episodes.
    writer._border, writer._current[:] = 0, numbers
    writer.reset(frames, [False, True])
    assert writer.running.tolist() == [False, True]


def test_a_failed_write_of_a_start_ends_writing(make, monkeypatch):
    writer = make(**FIELDS, lanes=2)
    frames = np.zeros((2, *FRAME.shape), FRAME.dtype)
    writer.reset(frames)

    def make_room(_):
        raise FailedStoreError("no more")

    monkeypatch.setattr(writer._starts, "make_room", make_room)
    writer._starts.border = 0
    for _ in range(2):
        with pytest.raises(FailedStoreError, match="no more"):
            writer.reset(frames)
        monkeypatch.undo()
