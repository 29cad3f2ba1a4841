"""Damaged inner chunks of a vector lane: steps of one environment are left out, and no others."""

import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, repair, verify
from mmreplay.format import plan
from mmreplay.reading.vector_reader import VectorReader
from tests.support.disks.trees import flip, names
from tests.support.oracle.vector_pair import FIELDS, of_writer
from tests.support.power_cut.layouts import SHORT_CHUNKS
from tests.support.tampering.repairs import check_kept, damage_start, inner_chunk
from tests.support.writers import drain

LZ4 = Field((3,), "float32", "lz4", chunk=2, shard=8)
RAW = Field((3,), "float32", "raw", chunk=8)


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


NOBODY = {
    "the first ticks": [0, 1],
    "ticks in the middle": [15, 16],
    "the last ticks": [33, 34],
    "all ticks": range(35),
}
"""Pairs of ticks of which the frames of all environments are damaged."""


@pytest.fixture
def ticks_of_nobody(vector):
    """The path of a repaired lane of 5 environments with ticks without a step, and its model."""

    def create(name):
        model = vector(frame=LZ4)
        model.play(70, end=0.5)
        model.writer.close()
        lost = set()
        for block in NOBODY[name]:
            file = model.writer.path / "ticks" / "frames" / f"c.{block // 4}.0.0"
            for env in range(5):
                flip(file, inner_chunk(model.writer.path, block // 4, block % 4 * 5 + env))
                lost |= lost_steps(model, env, 2 * block, 2 * block + 2)
        assert repair(model.writer.path).left_out == len(lost)
        model.model = model.left_out(lost)
        assert min(map(len, model.ticks)) == 0
        return model.writer.path, model

    return create


@pytest.mark.parametrize("name", NOBODY)
def test_ticks_without_a_step_are_copied_and_packed_and_nobody_draws_from_them(
    ticks_of_nobody, tmp_path, name
):
    path, model = ticks_of_nobody(name)
    mmreplay.snapshot(path, tmp_path / "copy.zarr")
    mmreplay.pack(path, tmp_path / "packed.zarr", codec="zstd:3")
    for one in (path, tmp_path / "copy.zarr", tmp_path / "packed.zarr"):
        with mmreplay.open(one) as store:
            model.check(store, [{"stack": 3, "n_step": 4}])
            model.check_columns(store)
            assert store.info()["transitions"] == len(model.ids())
        assert verify(one).findings == []
    if name != "all ticks":
        check_use(path, model)
        return
    with pytest.raises(mmreplay.EmptyBufferError):
        mmreplay.load(path).sample(1)


@pytest.mark.parametrize("name", NOBODY)
def test_ticks_without_a_step_are_evicted_and_no_start_that_is_needed(ticks_of_nobody, make, name):
    path, model = ticks_of_nobody(name)
    model.model.capacity = 150
    model.reopened(make(append=True, capacity=150))
    with mmreplay.open(path) as store:
        for _ in range(12):
            model.play(10, end=0.5)
            model.writer.flush()
            model.writer.flush()  # of starts it is the second one
            model.forget(VectorReader(path).base)
            model.check(store, [{"stack": 3, "n_step": 4}])
        model.writer.close()
    assert VectorReader(path).starts.base
    assert verify(path).findings == []


def test_the_starts_of_a_lane_that_evicts_stay_while_no_tick_that_is_kept_has_a_step(vector, make):
    model = vector(frame=LZ4, capacity=150)
    for _ in range(5):
        model.play(40, end=0.5)
        model.writer.flush()
    model.writer.close()
    path, base, lost = model.writer.path, VectorReader(model.writer.path).base, set()
    for file in (path / "ticks" / "frames").glob("c.*"):
        shard = int(file.name.split(".")[1])
        for number in range(20):
            flip(file, inner_chunk(path, shard, number))
    for env in range(5):
        lost |= lost_steps(model, env, base, 200)
    assert repair(path).kept == 200 - base > 65
    model.model = model.left_out(lost - set(range(5 * base)))
    model.model.capacity = 150
    model.reopened(make(append=True))
    with mmreplay.open(path) as store:
        for _ in range(20):  # more starts than are kept below the oldest that is needed
            model.reset()
            model.writer.flush()
            running = [one.number for one in model.running.values()]
            assert model.writer.files.logs[0].first <= min(running)
        for _ in range(10):
            model.play(10, end=0.5)
            model.writer.flush()
            model.forget(VectorReader(path).base)
            model.check(store, [{"stack": 3, "n_step": 4}])
        model.writer.close()
    assert verify(path).findings == []


@pytest.mark.parametrize(
    ("kind", "kept"), [("a tick of nobody", 70), ("other damage", 32), ("left by a crash", 70)]
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


@pytest.fixture
def stored(vector, kill, tmp_path, monkeypatch):
    """The model of a lane that was closed or left by a crash, and the path of a copy of it."""
    for name, value in SHORT_CHUNKS.items():
        monkeypatch.setattr(plan, name, value)

    def create(n=5, frame=LZ4, end="close", *, capacity=None, plays=(70,)):
        model = vector(n, frame=frame, capacity=capacity)
        model.model.capacity = capacity
        for n_ticks in plays:
            model.play(n_ticks)
            model.writer.flush()
        if end == "close":
            model.writer.close()
        else:
            drain(model.writer)
            kill(model.writer)
        return model, shutil.copytree(model.writer.path, tmp_path / "original.zarr")

    return create


def check_episodes_lost(model, path, original, lost):
    """All is there but these episodes, with its id; returns the ids that are lost."""
    numbers = dict(enumerate(model.columns("ticks")["episode"].ravel().tolist()))
    ids = model.ids().tolist()
    gone = [one for one in ids if numbers[one] in lost]
    assert check_kept(path, original).tolist() == [one for one in ids if numbers[one] not in lost]
    return gone


def check_use(path, model):
    """It is drawn from, an epoch has all of it once, and it is appended to."""
    dataset = mmreplay.load(path, stack=None)
    ids = dataset.ids
    assert np.isin(dataset.sample(200).id, ids).all()
    seen = np.concatenate([batch.id for batch in dataset.batches(16, drop_last=False)])
    assert np.sort(seen).tolist() == ids.tolist()
    windows = dataset.sample_sequences(8, 3)
    assert np.isin(windows.id[windows.mask], ids).all()
    with mmreplay.create(path, append=True, flush_s=0) as writer:
        writer.reset(model.frames())
    assert verify(path).findings == []


@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize("frame", [RAW, LZ4], ids=["raw", "lz4"])
@pytest.mark.parametrize("n", [1, 8])
def test_a_damaged_start_costs_its_episode_and_no_other(stored, n, frame, end):
    model, original = stored(n, frame, end, plays=(200 if n == 1 else 70,))
    path = model.writer.path
    lost = damage_start(path, 3)
    done = repair(path)
    gone = check_episodes_lost(model, path, original, lost)
    assert gone
    assert (done.lost, done.left_out) == (0, len(gone))
    assert done.kept == len(model.ticks)
    assert f"{len(gone)} transitions are lost" in done.notes[0]
    check_use(path, model)


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_damaged_start_of_a_lane_that_evicts(stored, end):
    model, original = stored(8, LZ4, end, capacity=300, plays=(50, 50, 50, 50))
    path = model.writer.path
    lane = VectorReader(path)
    assert lane.base
    numbers = model.columns("ticks")["episode"]
    # Of one that began before what is kept no first observation is seen any more.
    running = int(numbers[lane.base].max())
    began = [one.number for one in model.episodes if one.tick <= lane.base]
    begins = [one.number for one in model.episodes if one.tick > model.first and one.length]
    lost = set()
    for number in (running, begins[4]):
        lost |= set(damage_start(path, number)) - set(began)
    done = repair(path)
    gone = check_episodes_lost(model, path, original, lost)
    assert gone
    assert done.lost == 0
    check_use(path, model)


def test_a_damaged_start_that_no_step_followed_costs_nothing(stored):
    model, original = stored(end="close", plays=(70,))
    path = model.writer.path
    with mmreplay.create(path, append=True, flush_s=0) as writer:
        first = len(model.episodes)
        for _ in range(4):
            writer.reset(model.frames())
        writer.step([1] * 5, [1.0] * 5, model.frames(), [False] * 5, [False] * 5, x=[1] * 5)
    shutil.rmtree(original)
    shutil.copytree(path, original)
    lost = damage_start(path, first + 6)
    assert lost.stop <= first + 15
    done = repair(path)
    assert (done.lost, done.left_out) == (0, 0)
    with mmreplay.open(original) as store:
        assert check_kept(path, original).tolist() == store.ids.tolist()


@pytest.mark.parametrize("frame", [RAW, LZ4], ids=["raw", "lz4"])
def test_a_lost_file_of_starts(stored, frame):
    model, original = stored(8, frame)
    path = model.writer.path
    (file,) = (path / "starts" / "frames").glob("c.1.*")
    file.unlink()
    rows = VectorReader(path).starts.specs["frames"].chunk_rows
    done = repair(path)
    assert done.lost == 0
    assert check_episodes_lost(model, path, original, range(rows, 2 * rows))


def test_a_damaged_start_beside_columns_that_are_made_again(stored):
    model, original = stored(8)
    path = model.writer.path
    lost = damage_start(path, 9)
    for file in ("ticks/count", "starts/env", "starts/tick"):
        (path / file / "c.0").unlink()
        flip(path / file / "c.1")
    assert repair(path).lost == 0
    assert check_episodes_lost(model, path, original, lost)
