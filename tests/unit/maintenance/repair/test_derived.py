"""Columns of a vector lane that follow from its others: nothing is lost where they are damaged."""

import shutil

import numpy as np
import pytest
import zarr

import mmreplay
from mmreplay import Field, repair, verify
from mmreplay.reading.vector_reader import VectorReader
from tests.support.disks.trees import flip
from tests.support.tampering.repairs import check_kept
from tests.support.writers import drain

FRAMES = {
    "raw": Field((3,), "float32", "raw", chunk=8),
    "lz4": Field((3,), "float32", "lz4", chunk=2, shard=8),
}


@pytest.fixture
def stored(vector, kill, tmp_path):
    """The model of a lane that was closed or left by a crash, and the path of a copy of it."""

    def create(n=5, frame="lz4", end="close", *, capacity=None):
        model = vector(n, frame=FRAMES[frame], capacity=capacity)
        model.model.capacity = capacity
        for _ in range(4 if capacity else 1):
            model.play(50)
            model.writer.flush()
        if end == "close":
            model.writer.close()
        else:
            drain(model.writer)
            kill(model.writer)
        path = model.writer.path
        return model, shutil.copytree(path, tmp_path / "original.zarr")

    return create


def chunk(path, column, n=-1):
    files = (path / column).glob("c.*")
    return sorted(files, key=lambda file: int(file.name.split(".")[1]))[n]


def check_whole(model, path, original):
    """Every transition is there with its id; counts and starts are those of the model."""
    assert check_kept(path, original).tolist() == model.ids().tolist()
    group = zarr.open_group(str(path), mode="r")
    with mmreplay.open(path) as store:
        base = store.lanes[0].base
    columns = model.columns("ticks")
    assert np.array_equal(group["ticks/count"][base:], columns["count"][base:])
    numbers = np.unique(columns["episode"][base:])
    for one in numbers[numbers >= 0].tolist():
        found = [int(group[f"starts/{name}"][one]) for name in ("env", "tick")]
        known = model.episodes[one]
        assert found[0] == known.env
        assert found[1] == known.tick if known.tick > base or not base else found[1] <= base


@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize("column", ["ticks/count", "starts/env", "starts/tick"])
@pytest.mark.parametrize("how", ["flip", "remove"])
def test_it_is_made_again_from_the_ticks(stored, n, frame, end, column, how):
    model, original = stored(n, frame, end)
    path = model.writer.path
    file = chunk(path, column)
    file.unlink() if how == "remove" else flip(file, 8)
    assert not verify(path).sound
    done = repair(path)
    assert (done.kept, done.lost, done.left_out) == (50, 0, 0)
    assert f"{column} was damaged; it is made again from ticks/episode" in done.notes
    check_whole(model, path, original)
    with mmreplay.create(path, append=True, flush_s=0) as writer:
        writer.reset(model.frames())
    assert verify(path).findings == []


@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize("column", ["ticks/count", "starts/env", "starts/tick"])
@pytest.mark.parametrize("how", ["flip", "remove"])
def test_of_a_lane_that_evicts(stored, end, column, how):
    model, original = stored(8, "lz4", end, capacity=300)
    path = model.writer.path
    with mmreplay.open(path) as store:
        base = store.lanes[0].base
    assert base
    file = chunk(path, column)
    file.unlink() if how == "remove" else flip(file, 8 * base if column == "ticks/count" else 80)
    done = repair(path)
    assert done.lost == 0
    if column == "ticks/count" and how == "remove":
        # Nothing tells how many went before: what is kept is, and whatever may be sampled.
        assert any("they are counted as 8 each" in one for one in done.notes)
        with mmreplay.open(original) as store:
            assert check_kept(path, original).tolist() == store.ids.tolist()
    else:
        check_whole(model, path, original)


def test_together_with_a_lost_inner_chunk_of_frames(stored):
    model, original = stored()
    path = model.writer.path
    flip(chunk(path, "ticks/count"), 8)
    flip(path / "starts" / "tick" / "c.0", 9)
    flip(path / "ticks" / "frames" / "c.2.0.0", 4)
    done = repair(path)
    assert (done.kept, done.lost) == (50, 0)
    assert 0 < done.left_out < 50
    assert len(check_kept(path, original)) == len(model.ids()) - done.left_out


@pytest.mark.parametrize("skip", [False, True])
def test_together_with_ticks_that_are_lost(stored, skip):
    model, _ = stored()
    path = model.writer.path
    for column in ("ticks/count", "starts/env", "starts/tick"):
        chunk(path, column).unlink()
    (path / "ticks" / "frames" / "c.2.0.0").unlink()
    done = repair(path, skip_damaged=skip)
    assert verify(path).findings == []
    assert done.kept > 24 if skip else done.kept == 16
    with mmreplay.open(path) as store:
        rewards = store.transitions(store.ids, stack=None).reward
    known = model.columns("ticks")["rewards"]
    numbers = model.columns("ticks")["episode"]
    assert set(rewards.tolist()) <= set(known[numbers >= 0].tolist())
    assert rewards[: (numbers[:16] >= 0).sum()].tolist() == known[:16][numbers[:16] >= 0].tolist()


@pytest.mark.parametrize("column", ["env", "tick"])
def test_a_start_that_contradicts_its_ticks_in_a_lane_left_by_a_crash(stored, column):
    model, original = stored(end="kill")
    path, one = model.writer.path, model.episodes[7]
    assert one.length
    values = np.memmap(path / "starts" / column / "c.0", "<i8", "r+")
    values[7] = (values[7] + 1) % 5
    (found,) = {one.array for one in verify(path).findings}
    assert found == "ticks/episode"
    assert repair(path).lost == 0
    check_whole(model, path, original)


def test_a_tick_that_contradicts_its_start_is_not_what_the_start_is_made_of(stored):
    model, _ = stored(end="kill")
    path = model.writer.path
    numbers = model.columns("ticks")["episode"]
    tick = int(np.flatnonzero((numbers[48:] >= 0).sum(1) > 2)[0]) + 48
    env = int(np.flatnonzero(numbers[tick] >= 0)[0])
    rows = VectorReader(path).ticks.specs["episode"].chunk_rows
    file = path / "ticks" / "episode" / f"c.{tick // rows}.0"
    values = np.memmap(file, "<i8", "r+").reshape(rows, 5)
    assert values[tick % rows, env] == numbers[tick, env]
    values[tick % rows, env] = max(numbers[tick])
    done = repair(path)
    assert done.kept in {tick - 1, tick}
    assert verify(path).findings == []
