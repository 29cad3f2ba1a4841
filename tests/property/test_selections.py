"""What is selected of any store: sampled in every way as the oracle has it, and nothing else.

Invariant: whatever was selected, and however the store grew since, each transition of it that is
still there is one of the dataset's, and so is each window, and each episode, all of whose steps
are selected.
"""

import contextlib
import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmreplay
from mmreplay import EmptyBufferError, Field
from mmreplay.ids import LANE_SHIFT
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import by_effort
from tests.support.even_draws import EvenGenerator
from tests.support.oracle import checks
from tests.support.oracle.pair import Pair
from tests.support.oracle.strategies import Layout, gather_settings, layouts
from tests.support.oracle.vector_pair import of_writer
from tests.support.oracle.windows import kept_episodes

WINDOWS = st.fixed_dictionaries(
    {
        "length": st.sampled_from([1, 2, 3, 7]),
        "burn_in": st.sampled_from([0, 0, 1, 4]),
        "boundary": st.sampled_from(["drop", "pad", "shift"]),
        "stride": st.sampled_from([1, 2, 3]),
    }
)


@dataclasses.dataclass
class Known:
    """An episode of which steps can be sampled.

    Attributes:
        ids: of these, in their order.
        whole: whether these are all.
        env: its environment, of all lanes.
    """

    ids: list[int]
    whole: bool
    env: int


def of_rows(model):
    """The episodes of a store of lanes of one environment each."""
    return [
        Known([kept.lane << LANE_SHIFT | row for row in kept.rows], kept.whole, kept.lane)
        for kept in kept_episodes(model)
    ]


def of_ticks(model):
    """The episodes of a store of one vector lane."""
    return [Known(cells, len(cells) == one.length, one.env) for one, cells in model.kept()]


def windows_of(episodes, selected, length, burn_in, boundary, stride):
    """The first steps after the burn-in of windows whose steps to learn from are all selected."""
    out = set()
    for one in episodes:
        n, places = len(one.ids), set()
        for offset in range(0, n, stride):
            if boundary == "pad":
                places.add(offset)
            elif offset + burn_in + length <= n:
                places.add(offset + burn_in)
        if boundary == "shift":
            places.add(max(n - length, 0))
        out |= {one.ids[at] for at in places if selected.issuperset(one.ids[at : at + length])}
    return sorted(out)


def check_selected(data, episodes, selected, kinds, check_batch):
    """Every way to sample, against what should be there of the ids that were selected."""
    there = sorted(selected & {id_ for one in episodes for id_ in one.ids})
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
    check_batch(data.sample(9))
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
    for kind in kinds:
        starts = windows_of(episodes, selected, **kind)
        found = []
        with contextlib.suppress(EmptyBufferError):
            for windows in data.sequence_batches(50, **kind, shuffle=False):
                found += windows.id[:, windows.burn_in].tolist()
                to_learn = windows.id[:, windows.burn_in :]
                assert selected.issuperset(to_learn[to_learn >= 0].tolist())
        assert found == starts
        if starts:
            drawn = data.sample_sequences(2 * len(starts), **kind)
            drawn = np.sort(drawn.id[:, drawn.burn_in])
            assert drawn.tolist() == np.repeat(starts, 2).tolist()


def choice(data, episodes, random):
    """A selection of a dataset, and the ids that it is to have."""
    table, ids = data.episodes, data.ids
    by_first = {one.ids[0]: one.ids for one in episodes}
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


def check_store(data, episodes, kinds, random, check_batch):
    """A selection, one of that, and splits; returns the first one, and what it has."""
    selected, ids = choice(data, episodes, random)
    check_selected(selected, episodes, ids, kinds, check_batch)
    inner, inner_ids = choice(selected, episodes, random)
    check_selected(inner, episodes, inner_ids & ids, kinds, check_batch)
    check_split(data, episodes, set(data.ids.tolist()), random)
    check_split(selected, episodes, ids, random)
    return selected, ids


def check_split(data, episodes, ids, random):
    """Two parts that have all of it, and no episode in common."""
    there = [set(one.ids) & ids for one in episodes if set(one.ids) & ids]
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


@settings(max_examples=by_effort(2, 60, 500))
@given(layouts(), gather_settings(longest=9), st.integers(2, 70), st.integers(0, 99), WINDOWS)
def test_what_is_selected_of_lanes_is_as_the_oracle_has_it(layout, how, n_steps, seed, kind):
    model, random = layout.model(), np.random.default_rng(seed)
    with scratch_directory() as folder:
        path = folder / "store.zarr"
        with layout.create(path) as writer:
            pair = Pair(writer, model, random)
            pair.together(n_steps)
            with mmreplay.load(path, **how) as data:
                follow(data, model)

                def check_batch(batch):
                    expected = model.batch(batch.id, **how, live=True)
                    checks.check_batch(batch, expected)

                if not len(data):
                    return
                selected, ids = check_store(data, of_rows(model), [kind], random, check_batch)
                for n_more in (3, 40):  # of which nothing is selected
                    pair.together(n_more)
                    writer.flush()
                    follow(data, model)
                    check_selected(selected, of_rows(model), ids, [kind], check_batch)


def follow(data, model):
    for view, own in zip(data.store.refresh().lanes, model.lanes, strict=True):
        own.forget(view.base)


@settings(max_examples=by_effort(2, 60, 500))
@given(
    st.integers(1, 5),
    st.sampled_from([None, 9, 40]),
    st.sampled_from(["raw", "lz4"]),
    st.integers(1, 40),
    st.integers(0, 99),
    WINDOWS,
)
def test_what_is_selected_of_a_vector_lane_is_as_the_oracle_has_it(
    width, capacity, codec, n_ticks, seed, kind
):
    random, how = np.random.default_rng(seed), {"stack": 2, "n_step": 2}
    fields = {"frame": Field((3,), "uint8", codec, 4), "action": Field((), "int64", chunk=8)}
    with scratch_directory() as folder:
        path = folder / "store.zarr"
        with mmreplay.create(path, **fields, lanes=width, capacity=capacity, flush_s=0) as writer:
            pair = of_writer(writer, seed)
            model = pair.model
            model.capacity = capacity
            pair.play(n_ticks)
            with mmreplay.load(path, **how) as data:

                def check_batch(batch):
                    rows = model.rows(batch.id)
                    found = dataclasses.replace(batch, id=rows)
                    checks.check_batch(found, model.lanes.batch(rows, **how))

                model.ids()
                if not len(data):
                    return
                selected, ids = check_store(data, of_ticks(model), [kind], random, check_batch)
                for n_more in (1, 30):
                    pair.play(n_more)
                    writer.flush()
                    model.forget(writer.base)
                    model.ids()
                    check_selected(selected, of_ticks(model), ids, [kind], check_batch)


def test_lanes_of_both_kinds_are_selected_of_together(tmp_path):
    layout = Layout(Field((3,), "uint8", "raw", 8), Field((), "int64", chunk=8), {})
    paths = [tmp_path / "rows.zarr", tmp_path / "ticks.zarr"]
    model = layout.model()
    with layout.create(paths[0]) as writer:
        Pair(writer, model, np.random.default_rng(0)).together(60)
    arguments = {"frame": layout.frame, "action": layout.action, "lanes": 3, "flush_s": 0}
    with mmreplay.create(paths[1], **arguments) as writer:
        pair = of_writer(writer)
        pair.play(30)
    for order in (paths, paths[::-1]):
        place = {path: number for number, path in enumerate(order)}
        shift = place[paths[1]] << LANE_SHIFT
        episodes = [
            Known(
                [id_ + (place[paths[0]] << LANE_SHIFT) for id_ in one.ids],
                one.whole,
                3 * place[paths[0]],
            )
            for one in of_rows(model)
        ]
        pair.model.ids()
        episodes += [
            Known([id_ + shift for id_ in one.ids], one.whole, one.env + place[paths[1]])
            for one in of_ticks(pair.model)
        ]
        with mmreplay.load(order, stack=2) as data:
            kind = {"length": 3, "burn_in": 1, "boundary": "shift", "stride": 2}
            random = np.random.default_rng(1)
            check_store(data, episodes, [kind], random, lambda batch: None)
