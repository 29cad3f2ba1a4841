"""Damaged inner chunks of a vector lane: steps of one environment are left out, and no others."""

import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, repair, verify
from tests.support.disks.trees import flip, names
from tests.support.oracle.vector_pair import FIELDS, of_writer
from tests.support.tampering.repairs import check_kept, inner_chunk
from tests.support.writers import drain

LZ4 = Field((3,), "float32", "lz4", chunk=2, shard=8)


def lost_steps(model, env, start, stop):
    """The ids of an environment's steps in these ticks, and of those after them in their episodes."""
    numbers = model.columns("ticks")["episode"][:, env].tolist()
    inside = {one for one in numbers[start:stop] if one >= 0}
    return {
        tick * model.width + env
        for tick, one in enumerate(numbers)
        if one in inside and tick >= start
    }


@pytest.mark.parametrize(
    ("places", "skip"),
    [
        ([(4, 6)], False),  # of environment 1, in the second block of two ticks
        ([(0, 0)], False),
        ([(8, 12)], False),  # in the last, short shard
        ([(2, 3), (2, 4), (5, 13)], True),
        ([(4, 6), (4, 11)], False),
    ],
)
def test_a_damaged_inner_chunk_costs_its_environment_steps_and_no_other(
    closed_vector, tmp_path, places, skip
):
    path = closed_vector.writer.path
    original = shutil.copytree(path, tmp_path / "original.zarr")
    lost = set()
    for shard, number in places:
        flip(path / "ticks" / "frames" / f"c.{shard}.0.0", inner_chunk(path, shard, number))
        start = 8 * shard + 2 * (number // 5)
        lost |= lost_steps(closed_vector, number % 5, start, start + 2)
    done = repair(path, skip_damaged=skip)
    assert (done.kept, done.lost) == (70, 0)
    assert not done.lanes[0].renumbered
    assert f"{len(lost)} transitions are lost" in done.notes[0]
    assert (done.left_out, done.lanes[0].left_out) == (len(lost), len(lost))
    with mmreplay.open(original) as store:
        expected = [one for one in store.ids.tolist() if one not in lost]
    assert lost
    assert check_kept(path, original).tolist() == expected
    assert names(tmp_path) == ["original.zarr", path.name, f"{path.name}.damaged"]
    with mmreplay.create(path, append=True, flush_s=0) as writer:
        writer.reset(closed_vector.frames())
    assert verify(path).findings == []


def test_steps_are_left_out_of_a_lane_that_evicts_and_has_priorities(tmp_path):
    path = tmp_path / "store.zarr"
    settings = FIELDS | {"frame": LZ4, "lanes": 5, "capacity": 150, "flush_s": 0}
    with mmreplay.PrioritizedReplayBuffer(path, **settings, stack=None) as buffer:
        model = of_writer(buffer.writer)
        for _ in range(4):
            model.play(40)
            buffer.flush()
        buffer.update_priorities(buffer.ids, 1 + np.arange(len(buffer)))
        first, priorities = buffer.store.lanes[0].first, buffer.priorities(buffer.ids)
        known = dict(zip(buffer.ids.tolist(), priorities.tolist(), strict=True))
    original = shutil.copytree(path, tmp_path / "original.zarr")
    shard = (first + 8) // 8
    flip(path / "ticks" / "frames" / f"c.{shard}.0.0", inner_chunk(path, shard, 6))
    lost = lost_steps(model, 1, 8 * shard + 2, 8 * shard + 4)
    assert repair(path).lost == 0
    assert check_kept(path, original).tolist() == sorted(known.keys() - lost)
    with mmreplay.PrioritizedReplayBuffer(path, stack=None, flush_s=0) as buffer:
        kept = buffer.ids
        assert buffer.priorities(kept).tolist() == [known[one] for one in kept.tolist()]


@pytest.mark.parametrize(
    ("kind", "kept"), [("a tick of nobody", 34), ("other damage", 32), ("left by a crash", 34)]
)
def test_steps_are_left_out_only_where_all_else_is_known(vector, kill, kind, kept):
    model = vector(frame=LZ4)
    model.play(70)
    path = model.writer.path
    if kind == "left by a crash":
        model.writer.flush()
        drain(model.writer)
        kill(model.writer)
    else:
        model.writer.close()
    every = kind == "a tick of nobody"
    for number in range(5, 10) if every else [5]:
        flip(path / "ticks" / "frames" / "c.4.0.0", inner_chunk(path, 4, number))
    if kind == "other damage":
        flip(path / "ticks" / "actions" / "c.4.0", 1)
    assert (repair(path).kept, verify(path).findings) == (kept, [])
