"""Sealing: a job shared by two threads, and the halves of the tail that it gives back."""

import os
import shutil
import threading
import types

import numpy as np
import pytest

import mmreplay
from mmreplay.errors import (
    DiskFullError,
)
from mmreplay.storage.state_page import TAIL_START, CheckpointFile
from mmreplay.system import durable_writes
from mmreplay.writing import seal
from mmreplay.writing.seal import SealJob
from tests.support.writers import assert_store_matches, drain

pytestmark = pytest.mark.usefixtures("quick_disk")

WAIT = 300  # seconds, for events that come at once: only a hang takes as long


def test_a_part_in_which_the_writer_is_interrupted_is_encoded_by_the_sealing_thread(monkeypatch):
    begun, held, interrupted = threading.Event(), threading.Event(), []

    def encode(self, part):
        if threading.current_thread() is threading.main_thread():
            interrupted.append(part)
            raise KeyboardInterrupt
        begun.set()
        assert held.wait(WAIT)
        return bytes([part])

    done = []
    monkeypatch.setattr(SealJob, "_encode", encode)
    monkeypatch.setattr(SealJob, "_finish", lambda self, parts: done.append(parts))
    log = types.SimpleNamespace(tail_specs=[types.SimpleNamespace(inner_rows=2, width=1)])
    job = SealJob(log, 0, 8)
    sealing = threading.Thread(target=job.run, daemon=True)
    sealing.start()
    assert begun.wait(WAIT)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            job.work(fast=True)
    held.set()
    job.done.wait()
    sealing.join(WAIT)
    assert interrupted == [1, 2]
    assert job.error is None
    assert done == [[bytes([n]) for n in range(4)]]


def test_a_seal_without_its_checkpoint_does_not_free_the_tail(make, story, lz4, monkeypatch, kill):
    writer = make(**lz4)

    def full(self, **changes):
        raise DiskFullError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFile, "write", full)
        story.play(writer, 15)
        drain(writer)
        assert writer.files.rows.state.words[TAIL_START] == 0
        with pytest.raises(DiskFullError):
            story.step(writer)
        with mmreplay.open(writer.path) as store:
            story.check(store)
    story.step(writer)  # the same call works once there is room
    story.play(writer, 20, reset=False)
    kill(writer)
    with mmreplay.open(writer.path) as store:
        story.check(store)


def test_a_tail_full_to_the_last_row_goes_on_after_a_kill(make, story, lz4, kill, monkeypatch):
    writer = make(**lz4)
    monkeypatch.setattr(seal.SealJob, "run", lambda self: None)  # the thread never gets to it
    story.play(writer, 15)
    assert writer.files.rows.tail_start == 0
    kill(writer)
    monkeypatch.undo()
    assert_store_matches(story, writer)
    writer = make(append=True)
    assert writer.rows == 15
    assert writer.files.rows.tail_start == 0
    story.play(writer, 3, "truncated")
    drain(writer)
    assert writer.files.rows.tail_start == 16
    assert_store_matches(story, writer)
    writer.close()
    assert_store_matches(story, writer)


def test_an_interrupt_while_a_shared_tail_is_replaced_loses_no_row(tmp_path, monkeypatch):
    frame = mmreplay.Field((2,), "uint8", "lz4", chunk=2, shard=4)
    writer = mmreplay.create(tmp_path / "s.zarr", frame, mmreplay.Field((), "int64"))

    def step():
        writer.step(0, 0.0, np.full(2, writer.rows + 2, np.uint8))

    writer.reset(np.ones(2, np.uint8))
    for _ in range(5):
        step()
    shutil.copytree(writer.path, tmp_path / "copy", copy_function=os.link)
    real = durable_writes.make_own

    def make_own(path, *more):
        is_shared = path.lstat().st_nlink > 1
        real(path, *more)
        if is_shared and path.name.endswith(".tail"):
            monkeypatch.setattr(durable_writes, "make_own", real)
            raise KeyboardInterrupt

    monkeypatch.setattr(durable_writes, "make_own", make_own)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(8):
            step()
    stop = writer.rows
    writer.reset(np.full(2, stop + 1, np.uint8))
    for _ in range(20):
        step()
    with mmreplay.open(writer.path) as store:
        assert store.frames[:, 0].tolist() == list(range(1, stop + 21))
    writer.close()
