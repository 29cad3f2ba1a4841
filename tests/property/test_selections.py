"""What is selected of any store: sampled in every way as the oracle has it, and nothing else.

Invariant: whatever was selected, and however the store grew since, each transition of it that is
still there is one of the dataset's, and so is each window, and each episode, all of whose steps
are selected.
"""

import contextlib
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmreplay
from mmreplay import EmptyBufferError, Field
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import by_effort
from tests.support.even_draws import EvenGenerator
from tests.support.oracle import checks
from tests.support.oracle.layout import Layout
from tests.support.oracle.pair import MODES, Pair
from tests.support.oracle.strategies import gather_settings, layouts
from tests.support.oracle.windows import (
    check_windows,
    idle_starts,
    kept_episodes,
    starts_of,
    whole_windows,
    window_starts,
)

WINDOWS = st.fixed_dictionaries(
    {
        "length": st.sampled_from([1, 2, 3, 7]),
        "burn_in": st.sampled_from([0, 0, 1, 4]),
        "boundary": st.sampled_from(["drop", "pad", "shift", "cross"]),
        "stride": st.sampled_from([1, 2, 3]),
    }
)


def check_selected(data, model, selected, kinds, how):
    """Every way to sample, against what should be there of the ids that were selected."""
    episodes = kept_episodes(model)
    there = sorted(selected & set(model.ids().tolist()))
    assert data.ids.tolist() == there
    assert len(data) == len(there)
    whole = [one for one in episodes if one.whole and selected.issuperset(one.ids)]
    table = data.episodes
    assert sorted(table[["id", "length", "env"]].tolist()) == sorted(
        (one.ids[0], len(one.ids), one.env) for one in whole
    )
    for number in {0, len(table) - 1} if len(table) else ():
        ids = data.trajectory(number).ids.tolist()
        assert ids in [one.ids for one in whole]
    data.generator = EvenGenerator()
    if not there:
        for call in (lambda: data.sample(3), lambda: next(data.batches(3))):
            with pytest.raises(EmptyBufferError):
                call()
        return
    batch = data.sample(2 * len(there))
    assert np.sort(batch.id).tolist() == np.repeat(there, 2).tolist()
    batch = data.sample(9)
    checks.check_batch(batch, model.batch(batch.id, **how))
    assert sorted(data.sample(len(there), replace=False).id.tolist()) == there
    assert np.isin(data.sample(12, group=3).id, there).all()
    for shuffle in (True, "full", False):
        seen = [batch.id for batch in data.batches(40, shuffle=shuffle)]
        assert np.sort(np.concatenate(seen)).tolist() == there
    firsts = sorted(one.ids[0] for one in whole)
    if firsts:
        drawn = data.sample_trajectories(2 * len(firsts))
        assert sorted(int(one.ids[0]) for one in drawn) == np.repeat(firsts, 2).tolist()
        drawn = data.sample_trajectories(len(firsts), replace=False)
        assert sorted(int(one.ids[0]) for one in drawn) == firsts
    else:
        with pytest.raises(EmptyBufferError):
            data.sample_trajectories(1)
    data.generator = np.random.default_rng(0)
    long = {id_ for one in whole if len(one.ids) >= 2 for id_ in one.ids}
    with contextlib.nullcontext() if long else pytest.raises(EmptyBufferError):
        assert long.issuperset(data.sample_portions(9, 2).id.ravel().tolist())
    data.generator = EvenGenerator()
    windows = {"action": (0, 2), "observation": (-1, 3), "reward": (-9, 9)}
    check_windows(data.sample_windows(9, windows), model, batch.id.tolist(), windows)
    del windows["reward"]
    there = whole_windows(model, windows, selected)
    with contextlib.nullcontext() if there else pytest.raises(EmptyBufferError):
        data.generator = EvenGenerator()
        drawn = data.sample_windows(2 * len(there) or 1, windows, "drop")
        assert np.sort(drawn.id).tolist() == np.repeat(there, 2).tolist()
        check_windows(drawn, model, drawn.id.tolist(), windows)
        assert all(mask.all() for mask in drawn.mask.values())
        every = [one.id for one in data.window_batches(40, windows, "drop", shuffle=False)]
        assert np.concatenate(every).tolist() == there
    for kind in kinds:
        of = selected if "selected" in repr(data) else None
        starts = window_starts(model, **kind, selected=of)
        found, idle = [], idle_starts(model, starts, kind)
        which = itertools.cycle(idle)
        with contextlib.suppress(EmptyBufferError):
            for windows in data.sequence_batches(50, **kind, shuffle=len(there) % 2 > 0):
                found += starts_of(windows, model, which)
                to_learn = windows.id[:, windows.burn_in :]
                assert selected.issuperset(to_learn[to_learn >= 0].tolist())
        assert sorted(found) == starts
        if starts:
            drawn = data.sample_sequences(2 * len(starts), **kind)
            drawn = sorted(starts_of(drawn, model, itertools.cycle(idle)))
            assert drawn == np.repeat(starts, 2).tolist()


def choice(data, model, random):
    """A selection of a dataset, and the ids that it is to have."""
    table, ids = data.episodes, data.ids
    by_first = {one.ids[0]: one.ids for one in kept_episodes(model)}
    some = random.random(ids.size) < random.choice([0.1, 0.5, 0.95])
    some[random.integers(ids.size)] = True
    wanted = set(ids[some].tolist())
    kind = random.integers(4) if len(table) else 0
    if kind == 0:
        given = (some, random.permutation(ids[some]), lambda every: every[some], lambda _: some)
        return data.select(ids=given[random.integers(4)]), wanted
    mask = random.random(len(table)) < random.choice([0.1, 0.5, 0.9])
    mask[random.integers(len(table))] = True
    whole = {id_ for first in table["id"][mask].tolist() for id_ in by_first[first]}
    both = whole & wanted
    if kind == 1 and both:
        return data.select(episodes=mask, ids=some), both
    if kind == 2 and both:
        return data.select(episodes=mask).select(ids=sorted(both)), both
    forms = (mask, np.flatnonzero(mask), lambda _: mask, np.flatnonzero(mask)[::-1] - len(table))
    return data.select(episodes=forms[random.integers(4)]), whole


def check_store(data, model, kinds, random, how):
    """A selection, one of that, and splits; returns the first one, and what it has."""
    check_selected(data, model, set(data.ids.tolist()), kinds, how)
    selected, ids = choice(data, model, random)
    check_selected(selected, model, ids, kinds, how)
    inner, inner_ids = choice(selected, model, random)
    check_selected(inner, model, inner_ids & ids, kinds, how)
    check_split(data, model, set(data.ids.tolist()), random)
    check_split(selected, model, ids, random)
    return selected, ids


def check_split(data, model, ids, random):
    """Two parts that have all of it, and no episode in common."""
    there = [set(one.ids) & ids for one in kept_episodes(model) if set(one.ids) & ids]
    seed, share = int(random.integers(9)), float(random.choice([0.1, 0.5, 0.9]))
    if len(there) < 2:
        with pytest.raises(mmreplay.SchemaError, match="two episodes"):
            data.split(share, seed=seed)
        return
    one, other = data.split(share, seed=seed)
    parts = [set(part.ids.tolist()) for part in (one, other)]
    assert parts[0].isdisjoint(parts[1])
    assert parts[0] | parts[1] == ids
    n = [sum(bool(episode & part) for episode in there) for part in parts]
    assert sum(n) == len(there)
    assert n[0] == min(max(round(len(there) * share), 1), len(there) - 1)
    again = data.split(share, seed=seed)
    assert [part.ids.tolist() for part in again] == [sorted(part) for part in parts]
    copy = pickle.loads(pickle.dumps(other))
    assert copy.ids.tolist() == sorted(parts[1])
    assert copy.sample(5).id.tolist() == other.sample(5).id.tolist()
    copy.store.close()


@settings(max_examples=by_effort(4, 25, 800))
@given(
    layouts(),
    gather_settings(longest=9),
    st.integers(2, 70),
    st.integers(0, 99),
    st.sampled_from(MODES),
    WINDOWS,
)
def test_what_is_selected_is_as_the_oracle_has_it(layout, how, n_steps, seed, mode, kind):
    model, random = layout.model(), np.random.default_rng(seed)
    with scratch_directory() as folder, contextlib.ExitStack() as stack:
        path = folder / "store.zarr"
        writers = [stack.enter_context(one) for one in layout.create_lanes(path)]
        pair = Pair(writers, model, random)
        pair.play(n_steps, mode=mode)
        with mmreplay.load(path, **how) as data:
            checks.forget(data.store, model)
            selected, ids = check_store(data, model, [kind], random, how)
            for n_more in (3, 40):  # of which nothing is selected
                pair.play(n_more, mode=mode)
                for writer in writers:
                    writer.flush()
                checks.forget(data.store.refresh(), model)
                check_selected(selected, model, ids, [kind], how)


def test_stores_of_one_environment_and_of_many_are_selected_of_together(tmp_path):
    fields = Field((3,), "uint8", "raw", 8), Field((), "int64", chunk=8)
    paths, lanes = [tmp_path / "one.zarr", tmp_path / "many.zarr"], []
    for path, environments in zip(paths, (None, 3), strict=True):
        layout = Layout(*fields, environments=environments)
        model = layout.model()
        with layout.create(path) as writer:
            Pair(writer, model, np.random.default_rng(0)).play(40, mode="any")
        model.end_session()
        lanes += model.lanes
    for order in (1, -1):
        model.lanes = lanes[::order]
        with mmreplay.load(paths[::order], stack=2) as data:
            kind = {"length": 3, "burn_in": 1, "boundary": "shift", "stride": 2}
            check_store(data, model, [kind], np.random.default_rng(1), {"stack": 2})
