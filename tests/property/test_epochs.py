"""Epochs and groups of any store: each transition once, or equally likely, and as the oracle has it.

Invariant: whatever the layout, the settings and the pool, an epoch over all ranks holds each valid
id once, and each batch is byte for byte what a list of everything says.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmreplay
from mmreplay import Field
from tests.support.chance import goodness
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import by_effort
from tests.support.oracle import checks
from tests.support.oracle.pair import Pair
from tests.support.oracle.strategies import Layout, gather_settings, layouts
from tests.support.oracle.vector_pair import of_writer


@settings(max_examples=by_effort(6, 80, 500))
@given(
    layouts(),
    gather_settings(longest=40),
    st.integers(1, 90),
    st.integers(0, 99),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([1, 8, 40, None]),
    st.integers(0, 3),
)
def test_an_epoch_of_any_store_is_each_transition_once_as_the_oracle_has_it(
    layout, how, n_steps, seed, world_size, shuffle_rows, n_before
):
    given = {"world_size": world_size, "shuffle_rows": shuffle_rows, "epoch": 3}
    with scratch_directory() as folder:
        model = layout.model()
        with layout.create(folder / "store.zarr") as writer:
            Pair(writer, model, np.random.default_rng(seed)).together(n_steps)
            with mmreplay.open(folder / "store.zarr") as store:
                for view, own in zip(store.lanes, model.lanes, strict=True):
                    own.forget(view.base)
            with mmreplay.load(folder / "store.zarr", seed=seed, **how) as data:
                seen = []
                for rank in range(world_size):
                    batches, part = data.batches(7, rank=rank, **given), []
                    for number, batch in enumerate(batches):
                        checks.check_batch(batch, model.batch(batch.id, **how, live=True))
                        part.append(batch.id)
                        if number == n_before:
                            state = data.state_dict()
                    seen += part
                    if len(part) > n_before:
                        with mmreplay.load(folder / "store.zarr", seed=seed + 1, **how) as again:
                            again.load_state_dict(state)
                            rest = [
                                batch.id.tolist() for batch in again.batches(7, rank=rank, **given)
                            ]
                        assert rest == [ids.tolist() for ids in part[n_before + 1 :]]
                assert np.sort(np.concatenate(seen)).tolist() == model.ids().tolist()


FRAMES = {
    "compressed": Field((3,), "uint8", "lz4", 4, 16),
    "raw": Field((3,), "uint8", "raw", 8),
    "raw, environment by environment": Field((4096,), "uint8", "raw", 64),
}


@pytest.fixture(params=FRAMES)
def vectors(request, tmp_path):
    """A store of three environments that steps leave out at times, and the model of it."""
    path = tmp_path / "vector.zarr"
    fields = {"frame": FRAMES[request.param], "action": Field((), "int64", chunk=8)}
    with mmreplay.create(path, **fields, lanes=3, flush_s=0) as writer:
        pair = of_writer(writer)
        pair.play(60)
    return path, pair.model


def test_groups_of_a_vector_lane_give_each_transition_equally_often(vectors):
    path, model = vectors
    with mmreplay.load(path, stack=None) as data:
        expected = model.ids()
        drawn = np.concatenate([data.sample(6000, group=6).id for _ in range(20)]).reshape(-1, 6)
        for each in drawn.T:
            ids, counts = np.unique(each, return_counts=True)
            assert np.array_equal(ids, expected)
            assert abs(goodness(counts, each.size / ids.size)) < 5


@pytest.mark.parametrize("capacity", [None, 60])
def test_groups_of_lanes_of_all_lengths_give_each_transition_equally_often(tmp_path, capacity):
    layout = Layout(Field((3,), "uint8", "lz4", 4, 16), Field(()), {}, lanes=3, capacity=capacity)
    model = layout.model()
    with layout.create(tmp_path / "s.zarr") as writer:
        Pair(writer, model, np.random.default_rng(0)).together(40, end=0.2)
    with mmreplay.load(tmp_path / "s.zarr", stack=2) as data:
        drawn = np.concatenate([data.sample(5000, group=5).id for _ in range(20)]).reshape(-1, 5)
        for each in drawn.T:
            ids, counts = np.unique(each, return_counts=True)
            assert np.array_equal(ids, model.ids())
            assert abs(goodness(counts, each.size / ids.size)) < 5
        batch = data.sample(20, group=5)
        checks.check_batch(batch, model.batch(batch.id, stack=2))
