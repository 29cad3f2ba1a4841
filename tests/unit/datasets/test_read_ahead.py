"""Batches that are read ahead: the same as without, whatever happens between two of them."""

import threading

import numpy as np
import pytest

import mmreplay
from mmreplay import (
    CorruptStoreError,
    Field,
    Hindsight,
    InvalidIdError,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    SchemaError,
)
from mmreplay.storage.chunk_files import chunk_path
from tests.support.numbered_steps import ACTION, CODECS, LANES, play, state_of
from tests.support.oracle.drawn_ahead import check_equal


def read_ahead(readers):
    """How many batches threads have read since this was asked."""
    count = sum(name.startswith("mmreplay-ahead") for name in readers)
    readers.clear()
    return count


CALLS = {
    "sample": lambda data: data.sample(5),
    "without replacement": lambda data: data.sample(5, replace=False),
    "sequences": lambda data: data.sample_sequences(3, 4, burn_in=2, boundary="pad"),
    "across episodes": lambda data: data.sample_sequences(3, 9, burn_in=1, boundary="cross"),
    "portions": lambda data: data.sample_portions(3, 4),
}


@pytest.mark.parametrize(
    ("codec", "lanes"),
    [*(("lz4", lanes) for lanes in LANES), ("raw", "vector"), ("zstd", "one environment")],
)
@pytest.mark.parametrize("settings", [{}, {"n_step": 3, "stack": 2, "stack_axis": -1}])
def test_every_stream_of_batches_is_that_without_prefetch(closed, codec, lanes, settings, readers):
    path = closed(codec, lanes)
    with mmreplay.load(path, seed=3, **settings) as plain:
        with mmreplay.load(path, seed=3, prefetch=2, **settings) as ahead:
            for call in CALLS.values():
                for _ in range(4):
                    check_equal(call(ahead), call(plain))
                    assert state_of(ahead) == state_of(plain)
            for kind in ({"shuffle": True, "epochs": 2}, {"shuffle": False, "drop_last": True}):
                pairs = zip(ahead.batches(7, **kind), plain.batches(7, **kind), strict=True)
                for found, expected in pairs:
                    check_equal(found, expected)
            windows = {"batch_size": 4, "length": 3, "burn_in": 1, "boundary": "shift", "epochs": 2}
            pairs = zip(
                ahead.sequence_batches(**windows), plain.sequence_batches(**windows), strict=True
            )
            for found, expected in pairs:
                check_equal(found, expected)
    assert {name.rpartition("_")[0] for name in readers} == {"mmreplay-ahead"}


def test_out_is_filled_and_returned(closed, readers):
    path = closed("lz4", "one environment")
    with mmreplay.load(path) as plain, mmreplay.load(path, prefetch=2) as ahead:
        batch, windows = ahead.sample(5), None
        seen = batch.observation
        check_equal(batch, plain.sample(5))
        for _ in range(5):
            assert ahead.sample(5, out=batch) is batch
            assert batch.observation is seen
            check_equal(batch, plain.sample(5))
        for _ in range(5):
            windows = ahead.sample_sequences(3, 4, out=windows)
            check_equal(windows, plain.sample_sequences(3, 4))
        assert read_ahead(readers) >= 8
        with pytest.raises(SchemaError, match="out: expected a batch of 4"):
            for _ in range(4):
                ahead.sample(4, out=batch)


def test_a_generator_that_is_set_or_exchanged_counts_at_once(closed):
    path = closed("lz4", "one environment")
    with mmreplay.load(path) as plain, mmreplay.load(path, prefetch=2) as ahead:
        for kind in (np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64):
            for data in (plain, ahead):
                data.generator = np.random.Generator(kind(7))
            for _ in range(4):
                check_equal(ahead.sample(5), plain.sample(5))
        start = state_of(plain)
        check_equal(ahead.sample(5), plain.sample(5))
        for data in (plain, ahead):
            data.generator.bit_generator.state = start
        check_equal(ahead.sample(5), plain.sample(5))


# ---------------------------------------------------------------- around a dataset


GOAL = Field((2,), "uint8", "lz4", chunk=4, shard=8)


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_hindsight_reads_ahead(tmp_path, quick_disk, readers, kind):
    def fill(name, **more):
        frame = {"achieved_goal": GOAL, "desired_goal": GOAL}
        given = {"frame": frame, "action": ACTION, "stack": 2, "n_step": 2, "flush_s": 0}
        buffer = kind(tmp_path / name, seed=4, **given, **more)
        for t in range(60):
            goal = np.full(2, t, "uint8")
            both = {"achieved_goal": goal, "desired_goal": goal * 0}
            if t % 9 == 0:
                buffer.reset(both)
            else:
                buffer.step(0, 0.0, both)
        return Hindsight(buffer, reward, "episode", 0.7)

    def reward(achieved, desired, info):
        return (achieved == desired).all(-1).astype("f4") - 1

    plain, ahead = fill("plain.zarr"), fill("ahead.zarr", prefetch=2)
    with plain.data, ahead.data:
        calls = [{}] if kind is PrioritizedReplayBuffer else [{}, {"group": 3}, {"replace": False}]
        for given in calls:
            for _ in range(6):
                check_equal(ahead.sample(9, **given), plain.sample(9, **given))
            assert read_ahead(readers) >= 4
        for found, expected in zip(ahead.batches(20), plain.batches(20), strict=True):
            check_equal(found, expected)
        check_equal(ahead.sample(9), plain.sample(9))
        check_equal(ahead.data.sample(9), plain.data.sample(9))


# ---------------------------------------------------------------- a store that grows


def test_neither_goals_nor_a_burn_in_are_given_that_were_evicted(tmp_path, quick_disk):
    frame = {"achieved_goal": GOAL, "desired_goal": GOAL}

    def reward(achieved, desired, info):
        return (achieved == desired).all(-1).astype("f4")

    def step(t):
        goals = np.array([t % 256, t // 256], "uint8")
        return {"achieved_goal": goals, "desired_goal": goals * 0}

    with ReplayBuffer(
        tmp_path / "s.zarr", 30, 1, frame=frame, action=ACTION, flush_s=0, prefetch=2
    ) as buffer:
        hindsight = Hindsight(buffer, reward, "episode", 1.0)
        buffer.reset(step(0))
        n_goals = 0
        for t in range(1, 100):
            buffer.step(0, 0.0, step(t))
            first = int(buffer.ids[0])
            if t < 60:
                continue
            batch = hindsight.sample(4)
            goals = batch.extras["hindsight"]
            assert goals.min() >= first
            n_goals += int((goals < batch.id).sum())
            values = np.stack([(goals + 1) % 256, (goals + 1) // 256], 1)  # seen after these steps
            assert batch.observation["desired_goal"][:, 0].tolist() == values.tolist()
        assert n_goals > 30
        for t in range(100, 140):
            buffer.step(0, 0.0, step(t))
            windows = buffer.sample_sequences(4, 3, burn_in=8, boundary="pad")
            assert windows.id[windows.mask].min() >= int(buffer.ids[0])


def test_a_dataset_beside_a_writer_reads_ahead_and_draws_again_when_that_closes(make):
    writer, numbers = make(frame=CODECS["lz4"]), np.random.default_rng(9)
    play(writer, 7)
    with mmreplay.load(writer.path, seed=9, prefetch=2) as data:

        def check_next(ids, truncated=None):
            chosen = (numbers.random(4) * len(ids)).astype(int)
            expected = data.transitions(ids[chosen])
            if truncated is not None:  # as it was known when the batch was drawn
                expected.truncated[:] = truncated[chosen]
            check_equal(data.sample(4), expected)

        early = data.ids
        truncated = data.transitions(early).truncated
        check_next(early)
        play(writer, 9)
        check_next(early, truncated)
        assert len(data) > len(early)
        writer.close()
        check_next(data.ids)


def test_a_window_of_an_epoch_that_was_evicted_is_named_when_it_is_due(tmp_path, quick_disk):
    with ReplayBuffer(
        tmp_path / "s.zarr", 20, frame=CODECS["raw"], action=ACTION, flush_s=0, prefetch=3
    ) as buffer:
        play(buffer, 20)
        windows = buffer.sequence_batches(2, 1, shuffle=False)
        assert next(windows).id[:, 0].tolist() == [0, 1]
        play(buffer, 4)
        with pytest.raises(InvalidIdError, match="id 2 "):
            next(windows)
        epoch = buffer.batches(5, shuffle=False)
        first = buffer.ids[:5].tolist()
        assert next(epoch).id.tolist() == first
        later = buffer.ids[5:10].tolist()
        play(buffer, 8)
        assert next(epoch).id.tolist() == [one for one in later if one in buffer.ids]


# ---------------------------------------------------------------- failures


def test_what_a_thread_fails_with_is_raised_by_the_call_that_it_read_for(closed, tmp_path):
    path = tmp_path / "damaged.zarr"
    with mmreplay.create(path, CODECS["lz4"], ACTION, flush_s=0) as writer:
        play(writer, 60)
    shard = chunk_path(path, writer.files.rows.specs["frames"], 2)
    data = bytearray(shard.read_bytes())
    data[5] ^= 255
    shard.write_bytes(data)

    def outcomes(**more):
        found = []
        with mmreplay.load(path, seed=2, **more) as loaded:
            for _ in range(40):
                try:
                    found.append(loaded.sample(2).id.tolist())
                except CorruptStoreError as error:
                    found.append(str(error))
        return found

    expected = outcomes()
    assert outcomes(prefetch=3) == expected
    assert 1 < sum(isinstance(one, str) for one in expected) < 39


def test_without_threads_to_be_had_batches_are_read_when_asked_for(closed, monkeypatch):
    def none(thread):
        raise RuntimeError("can't start new thread")

    path = closed("lz4", "one environment")
    with mmreplay.load(path) as plain, mmreplay.load(path, prefetch=2) as ahead:
        monkeypatch.setattr(threading.Thread, "start", none)
        for _ in range(5):
            check_equal(ahead.sample(5), plain.sample(5))
        for found, expected in zip(ahead.batches(9), plain.batches(9), strict=True):
            check_equal(found, expected)


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "two", None, 1025, 10**20])
def test_an_invalid_prefetch_is_refused_before_anything_is_made(closed, tmp_path, wrong):
    fields = {"frame": Field((3,)), "action": Field((), "int64")}
    for call in (
        lambda: mmreplay.load(closed("raw", "vector"), prefetch=wrong),
        lambda: ReplayBuffer(tmp_path / "new.zarr", prefetch=wrong, **fields),
        lambda: PrioritizedReplayBuffer(tmp_path / "new.zarr", prefetch=wrong, **fields),
    ):
        with pytest.raises(
            SchemaError, match="prefetch: expected a whole number, 0 to 1,024; found"
        ):
            call()
    assert not (tmp_path / "new.zarr").exists()
