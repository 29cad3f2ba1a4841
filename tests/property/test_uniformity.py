"""Sampling is uniform over every valid transition, and gives nothing else.

Invariant: in a million draws no id comes that is no transition, each one comes, and none more
often than chance allows.
"""

import statistics

import numpy as np
import pytest

import mmreplay
from tests.support.chance import goodness
from tests.support.effort import THOROUGH
from tests.support.oracle.layout import Layout
from tests.support.oracle.pair import Pair

N_DRAWS = 1_000_000
BATCH = 4096
SEEDS = range(5 if THOROUGH else 1)

Field = mmreplay.Field
LAYOUTS = {
    "all kept": (None, 300),
    "before eviction": (400, 300),
    "after eviction": (100, 900),
    "capacity one": (1, 50),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_million_draws_are_uniform_over_all_valid_ids_and_no_others(tmp_path, name, seed):
    capacity, n_steps = LAYOUTS[name]
    layout = Layout(Field((), "uint8"), Field(()), {}, capacity=capacity)
    model = layout.model()
    with layout.create_buffer(
        tmp_path / "s.zarr", mmreplay.ReplayBuffer, stack=None, seed=seed
    ) as buffer:
        pair = Pair(buffer, model, np.random.default_rng(seed))
        pair.together(n_steps, end=0.15)
        expected = model.ids()
        drawn = np.concatenate([buffer.sample(BATCH).id for _ in range(-(-N_DRAWS // BATCH))])
    assert drawn.size >= N_DRAWS
    ids, counts = np.unique(drawn, return_counts=True)
    assert np.array_equal(ids, expected), "an id that is none, or one that never came"
    assert abs(goodness(counts, counts.mean())) < 5


def test_draws_are_independent_of_each_other(tmp_path):
    with mmreplay.ReplayBuffer(
        tmp_path / "s.zarr", frame=Field(()), action=Field(()), stack=None, seed=1, flush_s=0
    ) as buffer:
        Pair(buffer, Layout(Field(()), Field(()), {}).model(), np.random.default_rng(0)).together(
            40, end=0.1
        )
        ids = buffer.ids
        drawn = np.searchsorted(ids, np.concatenate([buffer.sample(512).id for _ in range(400)]))
        pairs = np.bincount(drawn[:-1] * ids.size + drawn[1:], minlength=ids.size**2)
        assert abs(goodness(pairs, pairs.mean())) < 5


def test_an_epoch_holds_each_transition_once_over_all_ranks(tmp_path):
    layout = Layout(Field(()), Field(()), {}, lanes=2, capacity=61)
    model = layout.model()
    with layout.create(tmp_path / "s.zarr") as writer:
        Pair(writer, model, np.random.default_rng(0)).together(90)
    orders = []
    for world_size in (1, 2, 3, 7):
        seen = []
        for rank in range(world_size):
            with mmreplay.load(tmp_path / "s.zarr", seed=3) as data:
                for _ in range(2):
                    batches = data.batches(8, rank=rank, world_size=world_size)
                    seen.append(np.concatenate([batch.id for batch in batches]))
        for epoch in range(2):
            parts = seen[epoch::2]
            assert np.array_equal(np.sort(np.concatenate(parts)), model.ids())
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
        orders.append(seen[0].tolist())
        assert seen[0].tolist() != seen[1].tolist()
    assert orders[0] != sorted(orders[0])


def test_shuffled_epochs_put_every_transition_anywhere(tmp_path):
    layout = Layout(Field(()), Field(()), {})
    with layout.create(tmp_path / "s.zarr") as writer:
        Pair(writer, layout.model(), np.random.default_rng(0)).together(20, end=0.1)
    with mmreplay.load(tmp_path / "s.zarr", stack=None, seed=0) as data:
        ids = data.ids
        counts = np.zeros((ids.size, ids.size))
        for batch in data.batches(ids.size, epochs=2000):
            counts[np.arange(ids.size), np.searchsorted(ids, batch.id)] += 1
        scores = [goodness(row, row.mean()) for row in counts]
    assert max(map(abs, scores)) < 5
    assert abs(statistics.fmean(scores)) < 1


def test_same_seed_and_data_give_the_same_batches_with_and_without_interruptions(tmp_path):
    def record(path, *, interrupted):
        layout = Layout(Field((3,), "uint8", "lz4", 2, 4), Field(()), {}, capacity=50)
        buffer = layout.create_buffer(path, mmreplay.ReplayBuffer, seed=7)
        pair = Pair(buffer, layout.model(), np.random.default_rng(0))
        out = []
        for _ in range(6):
            pair.together(25, end=0.0)
            pair.reset()  # so that a reopening cuts nothing off
            out += [buffer.sample(16).id.tolist() for _ in range(3)]
            if interrupted:
                buffer.close()
                buffer = mmreplay.ReplayBuffer(path, seed=99, flush_s=0)
                pair.writer = buffer
            pair.reset()
        buffer.close()
        return out

    whole = record(tmp_path / "a.zarr", interrupted=False)
    assert record(tmp_path / "b.zarr", interrupted=True) == whole
    assert len({str(one) for one in whole}) == len(whole)


def test_generator_of_the_last_flush_goes_on_after_a_crash(tmp_path):
    from tests.support.disks import faults

    layout = Layout(Field((3,)), Field(()), {})
    buffer = layout.create_buffer(tmp_path / "s.zarr", mmreplay.ReplayBuffer, seed=7)
    Pair(buffer, layout.model(), np.random.default_rng(0)).together(40)
    buffer.sample(8)
    buffer.flush()
    expected = buffer.sample(8).id.tolist()
    faults.kill(buffer)
    with mmreplay.ReplayBuffer(tmp_path / "s.zarr", seed=1, flush_s=0) as again:
        assert again.sample(8).id.tolist() == expected
