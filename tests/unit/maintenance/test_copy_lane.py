"""A lane's rows in a new directory: all of them, or the first ones, and the source as it was."""

import os

import numpy as np

import mmreplay
from mmreplay import Field, verify
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


# ---------------------------------------------------------------- damage and failures
