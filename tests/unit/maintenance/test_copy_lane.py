"""A lane's rows in a new directory: all of them, or the first ones, and the source as it was."""

import os

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, verify
from mmreplay.maintenance import copy_lane as copy_of_lane
from mmreplay.maintenance.copy_lane import copy_lane
from mmreplay.reading.lane_reader import LaneReader

ACTION = Field((), "uint8", chunk=8)
LOG_PROB = {"log_prob": Field((2,), "float32", chunk=4)}


def test_whole_chunk_files_are_shared_and_the_newest_are_not(make, story, tmp_path, kinds):
    writer = make(frame=kinds["lz4"], action=ACTION)
    story.play_every_end(writer)
    writer.close()
    copy_lane(LaneReader(writer.path), tmp_path / "copy", 24)
    names = {
        str(one.relative_to(tmp_path / "copy"))
        for one in (tmp_path / "copy").rglob("*")
        if one.is_file() and one.stat().st_nlink > 1
    }
    scalars = ("actions", "rewards", "non_terminals", "resets", "ends", "step")
    assert names == {f"frames/c.{n}.0" for n in range(3)} | {
        f"{name}/c.{n}" for name in scalars for n in range(2)
    }


def test_the_random_state_is_copied(buffer_of, story, tmp_path):
    buffer = buffer_of(seed=3)
    story.play(buffer.writer, 30)
    buffer.sample(4)
    buffer.flush()
    saved = (buffer.writer.path / ".live" / "generator").read_text()
    copy_lane(LaneReader(buffer.writer.path), tmp_path / "live", 30)
    buffer.close()
    copy_lane(LaneReader(buffer.writer.path), tmp_path / "closed", 30)
    assert LaneReader(tmp_path / "live").metadata["generator"] == saved
    assert LaneReader(tmp_path / "closed").metadata["generator"] == saved


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


# ---------------------------------------------------------------- columns that may change


@pytest.fixture
def growing(tmp_path, quick_disk):
    """A buffer of 200 transitions whose derived column `v` is the number of the step from 1 on."""
    with mmreplay.ReplayBuffer(
        tmp_path / "g.zarr",
        200,
        stack=None,
        flush_s=0,
        frame=Field((3,), "uint8", "raw", chunk=8),
        action=Field((), "int64", chunk=8),
        derived={"v": Field((), "float32", chunk=8)},
    ) as buffer:
        buffer.reset(np.zeros(3, "uint8"))
        yield buffer


def more(buffer, n):
    head = buffer.writer.rows
    for t in range(head, head + n):
        buffer.step(t, 1.0, np.zeros(3, "uint8"), v=t + 1)


def test_a_snapshot_has_the_values_of_all_rows_that_it_has(growing, tmp_path, monkeypatch):
    more(growing, 30)
    real = copy_of_lane._Copy.run

    def run(*arguments):
        monkeypatch.setattr(copy_of_lane._Copy, "run", real)
        more(growing, 20)  # before the copy decides how many rows it has
        real(*arguments)

    monkeypatch.setattr(copy_of_lane._Copy, "run", run)
    mmreplay.snapshot(growing.writer.path, tmp_path / "copy.zarr")
    with mmreplay.open(tmp_path / "copy.zarr") as store:
        assert store.extras["v"][:].tolist() == list(range(1, 51))


@pytest.mark.parametrize("at", ["_copy_pending", "_copy_log", "_copy_fields"])
def test_values_that_are_evicted_meanwhile_are_no_zeros_in_a_snapshot(
    growing, tmp_path, monkeypatch, at
):
    more(growing, 300)
    growing.flush()
    real = getattr(copy_of_lane._Copy, at)

    def call(*arguments, **named):
        monkeypatch.setattr(copy_of_lane._Copy, at, real)
        more(growing, 100)
        growing.flush()
        return real(*arguments, **named)

    monkeypatch.setattr(copy_of_lane._Copy, at, call)
    mmreplay.snapshot(growing.writer.path, tmp_path / "copy.zarr")
    with mmreplay.open(tmp_path / "copy.zarr") as store:
        assert (store.transitions(store.ids).extras["v"] == store.ids + 1).all()


def test_a_copy_shares_no_file_of_values_with_its_source(growing, tmp_path):
    more(growing, 30)
    growing.flush()
    mmreplay.snapshot(growing.writer.path, tmp_path / "copy.zarr")
    growing.update([3], v=[-1])
    with mmreplay.load(tmp_path / "copy.zarr", update=["v"], stack=None) as copy:
        assert copy.transitions([3]).extras["v"].tolist() == [4]
        copy.update([4], v=[-2])
    assert growing.transitions([3, 4]).extras["v"].tolist() == [-1, 5]
    assert mmreplay.verify(tmp_path / "copy.zarr").sound
    for file in (tmp_path / "copy.zarr" / "derived").rglob("c.*"):
        assert file.stat().st_nlink == 1
