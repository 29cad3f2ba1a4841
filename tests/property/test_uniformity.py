"""Sampling is uniform over every valid transition, and gives nothing else.

Invariant: in many draws no id comes that is no transition, each one comes, and none more
often than chance allows.
"""

import numpy as np
import pytest

import mmreplay
from tests.support.chance import goodness
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle.layout import Layout
from tests.support.oracle.pair import Pair

N_DRAWS = by_effort(100_000, 300_000, 1_000_000)
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


@pytest.mark.deep
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_draws_are_uniform_over_all_valid_ids_and_no_others(tmp_path, name, seed):
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


def test_draws_are_independent_of_each_other(tmp_path):
    buffer, _ = filled(tmp_path / "s.zarr", n_steps=40, end=0.1, seed=1)
    with buffer:
        ids = buffer.ids
        drawn = np.searchsorted(ids, np.concatenate([buffer.sample(512).id for _ in range(200)]))
        pairs = np.bincount(drawn[:-1] * ids.size + drawn[1:], minlength=ids.size**2)
        assert abs(goodness(pairs, pairs.mean())) < 5
