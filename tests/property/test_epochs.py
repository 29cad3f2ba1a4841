"""Epochs of any store: each transition once, and as the oracle has it.

Invariant: whatever the layout, the settings and the pool, an epoch over all ranks holds each valid
id once, and each batch is byte for byte what a list of everything says.
"""

import contextlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import mmreplay
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import by_effort
from tests.support.oracle import checks
from tests.support.oracle.pair import MODES, Pair
from tests.support.oracle.strategies import gather_settings, layouts


@settings(max_examples=by_effort(5, 25, 500))
@given(
    layouts(),
    gather_settings(longest=40),
    st.integers(1, 90),
    st.integers(0, 99),
    st.sampled_from(MODES),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([1, 8, 40, None]),
    st.integers(0, 3),
)
def test_an_epoch_of_any_store_is_each_transition_once_as_the_oracle_has_it(
    layout, how, n_steps, seed, mode, world_size, shuffle_rows, n_before
):
    given = {"world_size": world_size, "shuffle_rows": shuffle_rows, "epoch": 3}
    with scratch_directory() as folder, contextlib.ExitStack() as stack:
        model, path = layout.model(), folder / "store.zarr"
        writers = [stack.enter_context(one) for one in layout.create_lanes(path)]
        Pair(writers, model, np.random.default_rng(seed)).play(n_steps, mode=mode)
        with mmreplay.load(path, seed=seed, **how) as data:
            checks.forget(data.store, model)
            seen, sizes = [], []
            for rank in range(world_size):
                batches, part = data.batches(7, rank=rank, **given), []
                for number, batch in enumerate(batches):
                    checks.check_batch(batch, model.batch(batch.id, **how))
                    part.append(batch.id)
                    if number == n_before:
                        state = data.state_dict()
                seen += part
                sizes.append(sum(map(len, part)))
                if len(part) > n_before:
                    with mmreplay.load(path, seed=seed + 1, **how) as again:
                        again.load_state_dict(state)
                        rest = [batch.id.tolist() for batch in again.batches(7, rank=rank, **given)]
                    assert rest == [ids.tolist() for ids in part[n_before + 1 :]]
            assert np.sort(np.concatenate(seen)).tolist() == model.ids().tolist()
            assert max(sizes) - min(sizes) <= 1
