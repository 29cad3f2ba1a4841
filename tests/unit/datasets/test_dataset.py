"""Stores loaded for training: what is loaded, what is drawn, and in which order."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.errors import (
    EmptyBufferError,
    InvalidIdError,
    SchemaError,
)

pytestmark = pytest.mark.usefixtures("quick_disk")

FRAME = np.zeros(3, np.uint8)


# ---------------------------------------------------------------- sample


def test_the_same_seed_draws_the_same_batches(loaded):
    def draws(seed):
        data = loaded(seed=seed)
        return np.concatenate([data.sample(size).id for size in (5, 1, 100)]).tolist()

    assert draws(3) == draws(3)
    assert draws([1, 2]) == draws([1, 2])
    assert draws(np.random.SeedSequence(5)) == draws(np.random.SeedSequence(5))
    assert len({tuple(draws(seed)) for seed in (0, 1, 2, [1, 2], None, None)}) == 6


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "3", None])
def test_a_batch_size_is_a_number_of_transitions(loaded, size):
    for call in (loaded().sample, loaded().batches):
        with pytest.raises(SchemaError, match="batch_size: expected a whole number"):
            call(size)
    assert len(loaded().sample(np.int64(3))) == 3


def test_nothing_is_drawn_from_nothing(make, buffer_of):
    writer = make("empty.zarr")
    with mmreplay.load(writer.path) as data:
        assert len(data) == 0
        with pytest.raises(EmptyBufferError, match=r"empty\.zarr: there is no transition yet"):
            data.sample(1)
        with pytest.raises(EmptyBufferError, match=r"empty\.zarr: there is no transition yet"):
            data.batches(1)
        writer.reset(FRAME)
        with pytest.raises(EmptyBufferError):
            data.sample(1)
        writer.step(1, 1.0, FRAME)
        assert data.sample(3).id.tolist() == [0, 0, 0]
    with pytest.raises(EmptyBufferError):
        buffer_of().sample(1)


def test_transitions_may_have_settings_of_their_own(loaded, same):
    data = loaded(stack=2, gamma=0.5)
    changed = data.transitions([3, 8], stack=None, n_step=2)
    assert changed.observation.shape == (2, 3)
    assert same(changed, data.store.transitions([3, 8], stack=None, n_step=2, gamma=0.5))
    assert data.transitions([3, 8]).observation.shape == (2, 2, 3)
    with pytest.raises(InvalidIdError, match="id 30 "):
        data.transitions([3, 30])
    with pytest.raises(SchemaError, match="stack"):
        data.transitions([3], stack=0)
    with pytest.raises(TypeError, match="stak"):
        data.transitions([3], stak=2)


# ---------------------------------------------------------------- epochs


def ids_of(batches):
    return [batch.id.tolist() for batch in batches]


def flat(batches):
    return [one for batch in ids_of(batches) for one in batch]


def test_an_epoch_has_every_transition_once_in_batches_of_the_size(loaded):
    data = loaded()
    found = ids_of(data.batches(8))
    assert [len(batch) for batch in found] == [8, 8, 8, 6]
    assert sorted(one for batch in found for one in batch) == data.ids.tolist()
    assert flat(data.batches(8, shuffle=False)) == data.ids.tolist()
    assert ids_of(data.batches(100)) != ids_of(data.batches(100))


def test_epochs_go_on_over_calls_and_begin_again_with_the_seed(loaded):
    one, other = loaded(seed=4), loaded(seed=4)
    first = flat(one.batches(7)) + flat(one.batches(7, epochs=2))
    assert first == flat(other.batches(7, epochs=3))
    assert len({tuple(first[n : n + 30]) for n in (0, 30, 60)}) == 3
    assert flat(loaded(seed=5).batches(7)) != first[:30]
    assert flat(loaded().batches(7, epochs=0)) == []


def test_an_epoch_may_be_named_and_the_next_call_goes_on_after_it(loaded):
    by_turns = loaded(seed=4)
    epochs = [flat(by_turns.batches(7)) for _ in range(4)]
    data = loaded(seed=4)
    assert flat(data.batches(7, epoch=2)) == epochs[2]
    assert flat(data.batches(7)) == epochs[3]
    assert flat(data.batches(7, epochs=2, epoch=0)) == epochs[0] + epochs[1]
    assert flat(data.batches(7)) == epochs[2]


def test_ranks_that_shuffle_need_a_seed_to_share(loaded, buffer_of):
    for data in (loaded(seed=None), buffer_of("live.zarr", seed=None)):
        with pytest.raises(SchemaError, match="seed: expected one that all 2 ranks share"):
            data.batches(4, rank=1, world_size=2)
    for seed in (
        np.random.SeedSequence(),
        np.random.default_rng(),
        np.random.PCG64(),
        np.random.RandomState(),
    ):
        with pytest.raises(SchemaError, match=f"; found {type(seed).__name__}, with which each"):
            loaded(seed=seed).batches(4, rank=1, world_size=2)
    for shared in (3, np.int64(3), [1, 2], (3,), np.arange(3), 10**40, [2**64 - 1, 2]):
        assert flat(loaded(seed=shared).batches(4, rank=1, world_size=2))
    ordered = [
        flat(loaded(seed=None).batches(4, shuffle=False, rank=rank, world_size=2))
        for rank in (0, 1)
    ]
    assert sorted(ordered[0] + ordered[1]) == loaded().ids.tolist()


@pytest.mark.parametrize("world_size", [1, 2, 7])
@pytest.mark.parametrize("size", [1, 4])
def test_ranks_share_an_epoch_and_have_the_same_number_of_full_batches_with_drop_last(
    loaded, world_size, size
):
    def parts(**given):
        ranks = range(world_size)
        return [
            ids_of(loaded().batches(size, rank=rank, world_size=world_size, **given))
            for rank in ranks
        ]

    whole = [one for part in parts(epochs=2) for batch in part for one in batch]
    assert sorted(whole) == sorted(loaded().ids.tolist() * 2)
    full = parts(drop_last=True)
    assert {len(part) for part in full} == {30 // world_size // size}
    assert all(len(batch) == size for part in full for batch in part)
    whole = [one for part in full for batch in part for one in batch]
    assert len(set(whole)) == len(whole)


# ---------------------------------------------------------------- other processes


def test_a_pickled_dataset_goes_on_from_its_state(loaded, same):
    data = loaded(seed=7)
    drawn = data.batches(4)
    next(drawn)  # in the middle of an epoch: the next call begins the next one
    data.sample(5)
    with pickle.loads(pickle.dumps(data)) as other:
        assert (other.settings, other.paths) == (data.settings, data.paths)
        for one, twin in zip(other.batches(4, epochs=2), data.batches(4, epochs=2), strict=True):
            assert same(one, twin)
        assert same(other.sample(6), data.sample(6))
        assert same(other.sample(6, replace=False), data.sample(6, replace=False))
        assert same(other.sample_sequences(6, 3), data.sample_sequences(6, 3))
    assert len(data.sample(5)) == 5  # which is open still


def test_a_pickled_dataset_keeps_the_numbers_of_lanes_that_came_later(make, story, same):
    writers = [make("a.zarr", lane="x"), make("b.zarr", lane="x")]
    for writer in writers:
        story.play(writer, 4)
    data = mmreplay.load([writer.path.parent for writer in writers])
    writers.append(make("a.zarr", lane="y", append=True))
    story.play(writers[2], 6)
    data.refresh()
    other = pickle.loads(pickle.dumps(data))
    assert other.ids.tolist() == data.ids.tolist()
    assert same(other.sample(20), data.sample(20))


# ---------------------------------------------------------------- forks


FORK = """
import os, sys, mmreplay

def child(data):
    here, there = os.pipe()
    if os.fork() == 0:
        os.write(there, repr(data.sample(6).id.tolist()).encode())
        os._exit(0)
    os.wait()
    return os.read(here, 1000).decode()

data = mmreplay.load(sys.argv[1], seed=int(sys.argv[2]))
print(child(data))
print(child(data))
print(data.sample(6).id.tolist())
"""


def test_forked_children_draw_neither_what_their_parent_nor_what_their_siblings_draw(make, story):
    writer = make()
    story.play(writer, 500)
    writer.close()

    def run(seed):
        found = subprocess.run(
            [sys.executable, "-W", "error", "-c", FORK, str(writer.path), str(seed)],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        return found.stdout.splitlines()

    lines = run(3)
    assert len(set(lines)) == 3
    assert lines[2] == str(mmreplay.load(writer.path, seed=3).sample(6).id.tolist())
    assert run(3) == lines  # the n-th child draws the same on every run


@pytest.mark.parametrize("seed", [-1, "a", 1.5, [1, -2], object(), True, np.False_])
def test_an_invalid_seed_is_refused_before_anything_is_made(loaded, tmp_path, seed):
    fields = {"frame": Field((3,)), "action": Field((), "int64")}
    calls = [
        lambda: loaded(seed=seed),
        lambda: mmreplay.load(tmp_path / "none.zarr", seed=seed),
        lambda: mmreplay.ReplayBuffer(tmp_path / "new.zarr", seed=seed, **fields),
        lambda: mmreplay.PrioritizedReplayBuffer(tmp_path / "new.zarr", seed=seed, **fields),
    ]
    for call in calls:
        with pytest.raises(SchemaError, match="seed: expected a whole number, 0 or more"):
            call()
    assert not (tmp_path / "new.zarr").exists()
