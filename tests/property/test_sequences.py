"""Sequences, portions and trajectories equal what a list of everything says.

Invariant: every window that a naive search finds comes, and no other one does; test_selections.py
has that each comes as often as another.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmreplay
from tests.support.chance import goodness
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import by_effort
from tests.support.oracle import checks
from tests.support.oracle.layout import Episode, Layout
from tests.support.oracle.pair import MODES, Pair
from tests.support.oracle.strategies import episodes, gather_settings, layouts
from tests.support.oracle.windows import (
    check_sequences,
    idle_starts,
    kept_episodes,
    starts_of,
    window_starts,
)

Field = mmreplay.Field
WINDOWS = st.fixed_dictionaries(
    {
        "length": st.sampled_from([1, 2, 3, 5, 9, 30]),
        "burn_in": st.sampled_from([0, 0, 1, 2, 7]),
        "boundary": st.sampled_from(["drop", "pad", "shift", "cross"]),
        "stride": st.sampled_from([1, 1, 2, 3, 10]),
    }
)
ACTS = st.lists(
    st.one_of(episodes(60), st.tuples(st.integers(1, 30), st.sampled_from(MODES))),
    min_size=1,
    max_size=6,
)


def check_windows(data, model, kind, given, most=40):
    """All windows of a kind, in order; then some that were drawn."""
    expected = window_starts(model, **kind)
    at = {name: kind[name] for name in ("length", "burn_in", "boundary")}
    if not expected:
        for call in (data.sample_sequences, data.sequence_batches):
            with pytest.raises(mmreplay.EmptyBufferError):
                call(4, **kind)
        return
    found, idle = [], idle_starts(model, expected, kind)
    which = iter(idle)
    for batch in data.sequence_batches(most, **kind, shuffle=False):
        starts = starts_of(batch, model, which)
        if not found:
            check_sequences(batch, model, starts, **at, **given)
        found += starts
    assert found == expected
    batch = data.sample_sequences(5, **kind)
    for _ in range(2):
        starts = starts_of(batch, model, itertools.cycle(idle))
        assert set(starts) <= set(expected)
        check_sequences(batch, model, starts, **at, **given)
        assert data.sample_sequences(5, **kind, out=batch) is batch


@settings(max_examples=by_effort(4, 25, 400))
@given(
    layouts(lanes=False),
    ACTS,
    st.lists(WINDOWS, min_size=1, max_size=3),
    gather_settings(longest=9),
)
def test_any_window_of_any_store_equals_the_oracle(layout, acts, kinds, given):
    model, random = layout.model(), np.random.default_rng(len(acts))
    with scratch_directory() as folder:
        path = folder / "s.zarr"
        with layout.create_buffer(path, mmreplay.ReplayBuffer, **given) as buffer:
            pair = Pair(buffer, model, random)
            for number, act in enumerate(acts):
                if isinstance(act, tuple):
                    pair.play(act[0], mode=act[1])
                else:
                    pair.episode(act, int(random.integers(model.lanes[0].n)))
                if number == 1:
                    check_windows(buffer, model, kinds[0], given, 6)
                    buffer.flush()
                    checks.forget(buffer.store, model)
            for kind in kinds:
                check_windows(buffer, model, kind, given)
            check_trajectories(buffer, model)
        model.end_session()
        with mmreplay.load(path, **given) as loaded:
            checks.forget(loaded.store, model)
            for kind in kinds:
                check_windows(loaded, model, kind, given)
            check_trajectories(loaded, model)


def check_trajectories(data, model):
    known = {model.ids_of(*one)[0]: number for number, one in enumerate(model.episodes())}
    if not known:
        with pytest.raises(mmreplay.EmptyBufferError, match="no whole episode"):
            data.sample_trajectories(2)
        return
    drawn = data.sample_trajectories(len(known), replace=False)
    assert sorted(int(one.ids[0]) for one in drawn) == sorted(known)
    for one in drawn[:3]:
        expected = model.trajectory(known[int(one.ids[0])])
        assert len(one) == len(expected.ids)
        seen = one.observation if isinstance(one.observation, dict) else {"frame": one.observation}
        checks.check_same(seen, expected.observation, "observation")
        for name in ("action", "reward", "non_terminal", "ids", "extras"):
            checks.check_same(getattr(one, name), getattr(expected, name), name)
        assert (one.terminated, one.truncated) == (expected.terminated, expected.truncated)


# ---------------------------------------------------------------- chance

LAYOUTS = {
    "one environment, all kept": (None, None, 200),
    "one environment, after eviction": (None, 77, 400),
    "many environments, after eviction": (4, 91, 100),
}


@pytest.fixture
def filled(tmp_path):
    buffers = []

    def fill(name, seed=0):
        environments, capacity, n_steps = LAYOUTS[name]
        layout = Layout(Field((), "uint8"), Field(()), capacity=capacity, environments=environments)
        model = layout.model()
        buffers.append(
            layout.create_buffer(
                tmp_path / f"{len(buffers)}.zarr", mmreplay.ReplayBuffer, stack=None, seed=seed
            )
        )
        Pair(buffers[-1], model, np.random.default_rng(0)).play(n_steps, 0.12, "any")
        return buffers[-1], model

    yield fill
    for buffer in buffers:
        buffer.close()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_portion_is_of_an_episode_by_its_length_and_anywhere_in_it(filled, name):
    buffer, model = filled(name)
    length = 4
    long = [one for one in kept_episodes(model) if one.whole and len(one.ids) >= length]
    total = sum(len(one.ids) for one in long)
    chance = {
        id_: len(one.ids) / total / (len(one.ids) - length + 1)
        for one in long
        for id_ in one.ids[: len(one.ids) - length + 1]
    }
    drawn = np.concatenate([buffer.sample_portions(4096, length).id[:, 0] for _ in range(10)])
    found, counts = np.unique(drawn, return_counts=True)
    assert found.tolist() == sorted(chance)
    expected = drawn.size * np.array([chance[one] for one in sorted(chance)])
    assert abs(goodness(counts, expected)) < 5
    batch = buffer.sample_portions(8, length)
    assert batch.mask.all()
    check_sequences(batch, model, batch.id[:, 0].tolist(), length, stack=None)


@pytest.mark.parametrize("size", [1, 7])
def test_distinct_transitions_are_each_as_likely_and_in_any_place(filled, size):
    buffer, model = filled("one environment, after eviction")
    ids = model.ids()
    drawn = np.stack([buffer.sample(size, replace=False).id for _ in range(1500)])
    assert all(len(set(row)) == size for row in drawn.tolist())
    for place in (0, size - 1):
        found, counts = np.unique(drawn[:, place], return_counts=True)
        assert found.tolist() == ids.tolist()
        assert abs(goodness(counts, 1500 / ids.size)) < 5
    whole = buffer.sample(ids.size, replace=False)
    assert sorted(whole.id.tolist()) == ids.tolist()
    with pytest.raises(mmreplay.SchemaError, match=f"at most the {ids.size} transitions"):
        buffer.sample(ids.size + 1, replace=False)


# ---------------------------------------------------------------- the same again


@pytest.mark.parametrize("environments", [None, 4])
def test_the_same_seed_gives_the_same_with_and_without_interruptions(tmp_path, environments):
    def record(path, *, interrupted):
        frame = Field((3,), "uint8", "lz4", 2, 4)
        n = environments or 1
        layout = Layout(frame, Field(()), capacity=90 * n, environments=environments)
        buffer = layout.create_buffer(path, mmreplay.ReplayBuffer, seed=7)
        pair = Pair(buffer, layout.model(), np.random.default_rng(0))
        out = []
        for _ in range(3):
            for number, length in enumerate((3, 9, 14, 5)):
                pair.episode(Episode(length, "truncated"), number % n)
            pair.reset()  # so that a reopening cuts nothing off
            out.append(buffer.sample_sequences(8, 3, 2, "pad").id.tolist())
            out.append(buffer.sample_sequences(8, 4).id.tolist())
            out.append(buffer.sample_portions(8, 4).id.tolist())
            out.append([one.ids.tolist() for one in buffer.sample_trajectories(3)])
            out.append([one.ids.tolist() for one in buffer.sample_trajectories(3, replace=False)])
            out.append(buffer.sample(16, replace=False).id.tolist())
            out += [buffer.sample(16).id.tolist() for _ in range(3)]
            if interrupted:
                buffer.close()
                buffer = mmreplay.ReplayBuffer(path, seed=99, flush_s=0)
                pair.reopened(buffer)
            pair.reset()
        buffer.close()
        return out

    whole = record(tmp_path / "a.zarr", interrupted=False)
    assert record(tmp_path / "b.zarr", interrupted=True) == whole
    assert len({str(one) for one in whole}) == len(whole)
