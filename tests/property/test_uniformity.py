"""Sampling is uniform over every valid transition, and gives nothing else.

Invariant: in a million draws no id comes that is no transition, each one comes, and none more
often than chance allows.
"""

import statistics

import numpy as np
import pytest

import mmreplay
from tests.support.chance import goodness
from tests.support.disks import faults
from tests.support.effort import THOROUGH
from tests.support.oracle import checks
from tests.support.oracle.layout import Layout
from tests.support.oracle.pair import MODES, Pair
from tests.support.oracle.windows import kept_episodes

N_DRAWS = 1_000_000
BATCH = 4096
SEEDS = range(5 if THOROUGH else 1)
SMALL = (mmreplay.Field(()), mmreplay.Field(()))
LAYOUTS = {
    # name: environments, capacity, steps, mode
    "all kept": (None, None, 300, "any"),
    "before eviction": (None, 400, 300, "any"),
    "after eviction": (None, 100, 900, "any"),
    "capacity one": (None, 1, 50, "any"),
    "many, all kept": (5, None, 60, "at once"),
    "many, some left out, all kept": (5, None, 60, "any"),
    "many, some left out, after eviction": (5, 203, 200, "next step"),
}


def filled(path, *, environments=None, capacity=None, n_steps, end=0.15, mode="at once", seed=0):
    """A buffer, and what it must have."""
    layout = Layout(*SMALL, capacity=capacity, environments=environments)
    buffer = layout.create_buffer(path, mmreplay.ReplayBuffer, stack=None, seed=seed)
    pair = Pair(buffer, layout.model(), np.random.default_rng(seed))
    pair.play(n_steps, end, mode)
    return buffer, pair


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_million_draws_are_uniform_over_all_valid_ids_and_no_others(tmp_path, name, seed):
    environments, capacity, n_steps, mode = LAYOUTS[name]
    given = {"environments": environments, "capacity": capacity, "mode": mode, "seed": seed}
    buffer, pair = filled(tmp_path / "s.zarr", n_steps=n_steps, **given)
    with buffer:
        drawn = np.concatenate([buffer.sample(BATCH).id for _ in range(-(-N_DRAWS // BATCH))])
    ids, counts = np.unique(drawn, return_counts=True)
    assert np.array_equal(ids, pair.model.ids()), "an id that is none, or one that never came"
    assert abs(goodness(counts, counts.mean())) < 5
    lane = pair.lane
    gaps = lane.n * (len(lane.rows) - lane.first) - ids.size
    assert (gaps > 0) == (lane.n > 1 and mode != "at once")


@pytest.mark.parametrize("mode", MODES)
def test_draws_stay_uniform_while_a_store_grows_and_evicts(tmp_path, mode, quick_disk):
    buffer, pair = filled(
        tmp_path / "s.zarr", environments=4, capacity=130, n_steps=30, mode=mode, seed=1
    )
    with buffer:
        for _ in range(5):
            buffer.flush()
            checks.forget(buffer.store, pair.model)
            ids, counts = np.unique(buffer.sample(20_000).id, return_counts=True)
            assert ids.tolist() == pair.model.ids().tolist()
            assert abs(goodness(counts, 20_000 / ids.size)) < 5
            # Portions are of an episode by its length, and anywhere in it.
            whole = [one.ids for one in kept_episodes(pair.model) if one.whole and one.ids[1:]]
            chances = {id_: len(each) / (len(each) - 1) for each in whole for id_ in each[:-1]}
            found, counts = np.unique(
                buffer.sample_portions(20_000, 2).id[:, 0], return_counts=True
            )
            assert found.tolist() == sorted(chances)
            expected = np.array([chances[one] for one in sorted(chances)])
            assert abs(goodness(counts, 20_000 * expected / expected.sum())) < 5
            pair.play(30, 0.2, mode)
        assert pair.lane.base > 0


def test_draws_are_independent_of_each_other(tmp_path):
    buffer, _ = filled(tmp_path / "s.zarr", n_steps=40, end=0.1, seed=1)
    with buffer:
        ids = buffer.ids
        drawn = np.searchsorted(ids, np.concatenate([buffer.sample(512).id for _ in range(400)]))
        pairs = np.bincount(drawn[:-1] * ids.size + drawn[1:], minlength=ids.size**2)
        assert abs(goodness(pairs, pairs.mean())) < 5


def test_an_epoch_holds_each_transition_once_over_all_ranks(tmp_path):
    buffer, pair = filled(
        tmp_path / "s.zarr", environments=2, capacity=61, n_steps=90, mode="next step"
    )
    buffer.close()
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
            assert np.array_equal(np.sort(np.concatenate(parts)), pair.model.ids())
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
        orders.append(seen[0].tolist())
        assert seen[0].tolist() != seen[1].tolist()
    assert orders[0] != sorted(orders[0])


def test_shuffled_epochs_put_every_transition_anywhere(tmp_path):
    filled(tmp_path / "s.zarr", n_steps=20, end=0.1)[0].close()
    with mmreplay.load(tmp_path / "s.zarr", stack=None, seed=0) as data:
        ids = data.ids
        counts = np.zeros((ids.size, ids.size))
        for batch in data.batches(ids.size, epochs=2000):
            counts[np.arange(ids.size), np.searchsorted(ids, batch.id)] += 1
        scores = [goodness(row, row.mean()) for row in counts]
    assert max(map(abs, scores)) < 5
    assert abs(statistics.fmean(scores)) < 1


def test_generator_of_the_last_flush_goes_on_after_a_crash(tmp_path):
    buffer, _ = filled(tmp_path / "s.zarr", n_steps=40, seed=7)
    buffer.sample(8)
    buffer.flush()
    expected = buffer.sample(8).id.tolist()
    faults.kill(buffer)
    with mmreplay.ReplayBuffer(tmp_path / "s.zarr", seed=1, flush_s=0) as again:
        assert again.sample(8).id.tolist() == expected
