"""Sequences, portions and trajectories equal what a list of everything says, and come uniformly.

Invariant: every window that a naive search finds comes, no other one does, and none more often
than chance allows.
"""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmreplay
from tests.support.chance import goodness
from tests.support.disks import faults
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.oracle.layout import Episode, Layout
from tests.support.oracle.pair import Pair
from tests.support.oracle.strategies import episodes, gather_settings, layouts
from tests.support.oracle.windows import check_sequences, kept_episodes, window_starts

pytestmark = pytest.mark.timeout(0 if THOROUGH else 900)
Field = mmreplay.Field


@st.composite
def windows(draw):
    return {
        "length": draw(st.sampled_from([1, 2, 3, 5, 9, 30])),
        "burn_in": draw(st.sampled_from([0, 0, 1, 2, 7])),
        "boundary": draw(st.sampled_from(["drop", "pad", "shift"])),
        "stride": draw(st.sampled_from([1, 1, 2, 3, 10])),
    }


def check_windows(data, model, kind, given, most=40, **known):
    """All windows of a kind, in order; then some that were drawn."""
    expected = window_starts(model, **kind)
    at = {"length": kind["length"], "burn_in": kind["burn_in"]}
    if not expected:
        for call in (data.sample_sequences, data.sequence_batches):
            with pytest.raises(mmreplay.EmptyBufferError):
                call(4, **kind)
        return
    start = 0
    for batch in data.sequence_batches(most, **kind, shuffle=False):
        check_sequences(batch, model, expected[start : start + most], **at, **known, **given)
        start += len(batch)
        if start >= most:
            break
    batch = data.sample_sequences(5, **kind)
    for _ in range(2):
        starts = starts_of(batch)
        assert set(starts) <= set(expected)
        check_sequences(batch, model, starts, **at, **known, **given)
        assert data.sample_sequences(5, **kind, out=batch) is batch


def starts_of(batch):
    return batch.id[:, batch.burn_in].tolist()


@settings(max_examples=by_effort(8, 80, 400))
@given(st.data())
def test_any_window_of_any_store_equals_the_oracle(data):
    layout = data.draw(layouts(one_lane=True))
    longest = min(3 * (layout.capacity or 10), 60)
    script = data.draw(st.lists(episodes(longest), min_size=1, max_size=6))
    kinds = data.draw(st.lists(windows(), min_size=1, max_size=3))
    given = data.draw(gather_settings(longest=9))
    model = layout.model()
    with scratch_directory() as folder:
        path = folder / "s.zarr"
        with layout.create_buffer(path, mmreplay.ReplayBuffer, **given) as buffer:
            pair = Pair(buffer, model, np.random.default_rng(len(script)))
            for number, episode in enumerate(script):
                pair.episode(episode)
                if number == 1:
                    check_windows(buffer, model, kinds[0], given, 6)
                    buffer.flush()
                    for view, own in zip(buffer.store.lanes, model.lanes, strict=True):
                        own.forget(view.base)
            for kind in kinds:
                check_windows(buffer, model, kind, given, begins_are_known=True)
            check_trajectories(buffer, model, live=True)
        for lane in model.lanes:
            lane.end_session()
        with mmreplay.load(path, **given) as loaded:
            for view, own in zip(loaded.store.lanes, model.lanes, strict=True):
                own.forget(view.base)
            for kind in kinds:
                check_windows(loaded, model, kind, given)
            check_trajectories(loaded, model, live=False)


def check_trajectories(data, model, *, live):
    known = {one.id: number for number, one in enumerate(model.episodes(live))}
    if not known:
        with pytest.raises(mmreplay.EmptyBufferError, match="no whole episode"):
            data.sample_trajectories(2)
        return
    drawn = data.sample_trajectories(len(known), replace=False)
    assert sorted(int(one.ids[0]) for one in drawn) == sorted(known)
    for one in drawn[:3]:
        expected = model.trajectory(known[int(one.ids[0])], live)
        assert len(one) == len(expected.ids)
        seen = one.observation if isinstance(one.observation, dict) else {"frame": one.observation}
        checks.check_same(seen, expected.observation, "observation")
        for name in ("action", "reward", "non_terminal", "ids", "extras"):
            checks.check_same(getattr(one, name), getattr(expected, name), name)
        assert (one.terminated, one.truncated) == (expected.terminated, expected.truncated)


# ---------------------------------------------------------------- chance

LAYOUTS = {
    "all kept": (None, 200),
    "after eviction": (77, 400),
}
KINDS = {
    "drop": {"length": 3},
    "drop with a burn-in": {"length": 2, "burn_in": 2, "stride": 2},
    "pad": {"length": 6, "burn_in": 3, "boundary": "pad"},
    "shift": {"length": 5, "burn_in": 1, "boundary": "shift", "stride": 3},
}


@pytest.fixture
def filled(tmp_path):
    buffers = []

    def fill(name, seed=0):
        capacity, n_steps = LAYOUTS[name]
        layout = Layout(Field((), "uint8"), Field(()), {}, capacity=capacity)
        model = layout.model()
        buffers.append(
            layout.create_buffer(
                tmp_path / f"{len(buffers)}.zarr", mmreplay.ReplayBuffer, stack=None, seed=seed
            )
        )
        Pair(buffers[-1], model, np.random.default_rng(0)).together(n_steps, end=0.12)
        return buffers[-1], model

    yield fill
    for buffer in buffers:
        buffer.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_each_window_is_drawn_with_the_same_probability(filled, name, kind):
    buffer, model = filled(name)
    expected = window_starts(model, **KINDS[kind])
    drawn = np.concatenate(
        [
            buffer.sample_sequences(4096, **KINDS[kind]).id[:, KINDS[kind].get("burn_in", 0)]
            for _ in range(30)
        ]
    )
    found, counts = np.unique(drawn, return_counts=True)
    assert found.tolist() == expected
    assert abs(goodness(counts, drawn.size / len(expected))) < 5


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_portion_is_of_an_episode_by_its_length_and_anywhere_in_it(filled, name):
    buffer, model = filled(name)
    length = 4
    long = [one for one in kept_episodes(model) if one.whole and len(one.rows) >= length]
    total = sum(len(one.rows) for one in long)
    chance = {
        one.lane << 40 | row: len(one.rows) / total / (len(one.rows) - length + 1)
        for one in long
        for row in one.rows[: len(one.rows) - length + 1]
    }
    drawn = np.concatenate([buffer.sample_portions(4096, length).id[:, 0] for _ in range(30)])
    found, counts = np.unique(drawn, return_counts=True)
    assert found.tolist() == sorted(chance)
    expected = drawn.size * np.array([chance[one] for one in sorted(chance)])
    assert abs(goodness(counts, expected)) < 5
    batch = buffer.sample_portions(8, length)
    assert batch.mask.all()
    check_sequences(batch, model, batch.id[:, 0].tolist(), length, stack=None)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_each_whole_episode_is_drawn_with_the_same_probability(filled, name, replace):
    buffer, model = filled(name)
    expected = [one.id for one in model.episodes(live=True)]
    size = max(len(expected) // 3, 1)
    drawn = [buffer.sample_trajectories(size, replace=replace) for _ in range(8_000 // size)]
    if not replace:
        assert all(len({one.ids[0] for one in some}) == size for some in drawn)
    firsts = np.array([one.ids[0] for some in drawn for one in some])
    found, counts = np.unique(firsts, return_counts=True)
    assert found.tolist() == expected
    # What is drawn without replacement is spread more evenly than chance would have it.
    assert goodness(counts, firsts.size / len(expected)) < 5


@pytest.mark.parametrize("size", [1, 7, 60])
def test_distinct_transitions_are_each_as_likely_and_in_any_place(filled, size):
    buffer, model = filled("after eviction")
    ids = model.ids()
    drawn = np.stack([buffer.sample(size, replace=False).id for _ in range(3000)])
    assert all(len(set(row)) == size for row in drawn.tolist())
    for place in (0, size - 1):
        found, counts = np.unique(drawn[:, place], return_counts=True)
        assert found.tolist() == ids.tolist()
        assert abs(goodness(counts, 3000 / ids.size)) < 5
    whole = buffer.sample(ids.size, replace=False)
    assert sorted(whole.id.tolist()) == ids.tolist()
    with pytest.raises(mmreplay.SchemaError, match=f"at most the {ids.size} transitions"):
        buffer.sample(ids.size + 1, replace=False)


# ---------------------------------------------------------------- the same again


def test_the_same_seed_gives_the_same_sequences_with_and_without_interruptions(tmp_path):
    def record(path, *, interrupted):
        layout = Layout(Field((3,), "uint8", "lz4", 2, 4), Field(()), {}, capacity=80)
        buffer = layout.create_buffer(path, mmreplay.ReplayBuffer, seed=7)
        pair = Pair(buffer, layout.model(), np.random.default_rng(0))
        out = []
        for _ in range(6):
            for length in (3, 9, 14, 5):
                pair.episode(Episode(length, "truncated"))
            pair.reset()  # so that a reopening cuts nothing off
            out.append(buffer.sample_sequences(8, 3, 2, "pad").id.tolist())
            out.append(buffer.sample_sequences(8, 4).id.tolist())
            out.append(buffer.sample_portions(8, 4).id.tolist())
            out.append([one.ids.tolist() for one in buffer.sample_trajectories(3)])
            out.append([one.ids.tolist() for one in buffer.sample_trajectories(3, replace=False)])
            out.append(buffer.sample(16, replace=False).id.tolist())
            if interrupted:
                buffer.close()
                buffer = mmreplay.ReplayBuffer(path, seed=99, flush_s=0)
                pair.writer = buffer
        buffer.close()
        return out

    whole = record(tmp_path / "a.zarr", interrupted=False)
    assert record(tmp_path / "b.zarr", interrupted=True) == whole
    assert len({str(one) for one in whole}) == len(whole)


def test_every_window_comes_once_an_epoch_in_another_order_each(filled):
    buffer, model = filled("after eviction")
    expected = window_starts(model, 3, stride=2)
    orders = []
    for _ in range(2):
        batches = list(buffer.sequence_batches(16, 3, stride=2))
        assert [len(one) for one in batches[:-1]] == [16] * (len(batches) - 1)
        orders.append([start for one in batches for start in starts_of(one)])
        assert sorted(orders[-1]) == expected
    assert orders[0] != orders[1] != expected


# ---------------------------------------------------------------- beside a writer


@pytest.mark.deep
@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_sequences_are_right_beside_a_writer_that_evicts(tmp_path, codec):
    """Each frame holds its row's number and its episode's."""
    frame = Field(
        (2,),
        "int64",
        codec,
        chunk=512 if codec == "raw" else 4,
        shard=None if codec == "raw" else 16,
    )
    action = Field((), "int64", chunk=512)
    layout = Layout(frame, action, {}, capacity=300)
    with layout.create_buffer(
        tmp_path / "s.zarr", mmreplay.ReplayBuffer, stack=3, flush_s=0.01
    ) as buffer:
        writers = faults.lanes_of(buffer)
        rows = [0] * len(writers)
        random = np.random.default_rng(0)
        stop = threading.Event()

        def episode(lane, length):
            start = rows[lane]
            for step in range(length + 1):
                value = np.array([rows[lane], start])
                if step == 0:
                    writers[lane].reset(value)
                else:
                    writers[lane].step(rows[lane] - 1, 1.0, value, truncated=step == length)
                rows[lane] += 1

        def write():
            while not stop.is_set():
                episode(int(random.integers(len(writers))), int(random.integers(1, 60)))

        for lane in range(len(writers)):
            for _ in range(5):
                episode(lane, 30)
        thread = threading.Thread(target=write)
        thread.start()
        try:
            n_evicted = 0
            for number in range(by_effort(100, 600, 2_000)):
                boundary = ("drop", "pad", "shift")[number % 3]
                batch = buffer.sample_sequences(8, 9, 4, boundary)
                row = batch.id & ((1 << 40) - 1)
                real = batch.mask
                assert np.array_equal(batch.observation[real][:, -1, 0], row[real])
                assert np.array_equal(batch.next_observation[real][:, -1, 0], row[real] + 1)
                assert np.array_equal(batch.action[real], row[real])
                starts = batch.observation[..., -1, 1][real]
                assert np.array_equal(batch.step[real], row[real] - starts)
                stacks = np.maximum(row[real][:, None] + np.arange(-2, 1), starts[:, None])
                assert np.array_equal(batch.observation[real][..., 0], stacks)
                assert real[:, 4].all()
                if boundary == "drop":
                    assert real.all()
                for one in buffer.sample_trajectories(2):
                    try:
                        seen = one.observation
                    except mmreplay.InvalidIdError:
                        n_evicted += 1
                    else:
                        first = one.ids[0] & ((1 << 40) - 1)
                        assert seen[:, 0].tolist() == list(range(first, first + len(one) + 1))
                        assert set(seen[:, 1].tolist()) == {first}
        finally:
            stop.set()
            thread.join()
