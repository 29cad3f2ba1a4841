"""Borders that small stores do not reach: default chunks, large files, more files than are mapped.

Every row says which it is, so that a hundred thousand of them can be checked at once.
"""

import shutil

import numpy as np
import pytest

import mmreplay
from tests.support.disks import faults
from tests.support.oracle import checks
from tests.support.oracle.frames import Described
from tests.support.oracle.layout import Layout
from tests.support.oracle.pair import Pair
from tests.support.quiet import settle

Field = mmreplay.Field
EPISODE = 1000  # steps


def record(path, field, n_rows, *, capacity=None, stack=4, **action):
    """A buffer with that many steps in episodes of one length; each frame says which it is."""
    described = Described(field)
    buffer = mmreplay.ReplayBuffer(
        path,
        capacity,
        stack=stack,
        frame=field,
        action=Field((), "int64", **action),
        reward_dtype="float64",
        flush_s=0,
    )
    for row in range(n_rows):
        start = row - row % EPISODE
        if row == start:
            buffer.reset(described.make(0, row, row))
        frame = described.make(0, row + 1, start)
        buffer.step(row, row, frame, truncated=row + 1 == start + EPISODE)
    settle(buffer)
    return buffer


def check_recorded(store, field, n_rows, *, live):
    base = store.refresh().lanes[0].base
    rows = np.arange(base, n_rows)
    starts = rows - rows % EPISODE
    assert store.lanes[0].rows == n_rows
    assert np.array_equal(store.actions[base:], rows)
    assert np.array_equal(store.rewards[base:], rows)
    assert np.array_equal(store.resets[base:], rows == starts)
    assert np.array_equal(store.step[base:], rows - starts + 1)
    assert (store.non_terminals[base:] == 1).all()
    places = Described(field).read(store.frames[base:])
    assert np.array_equal(places[:, 1], rows)
    assert np.array_equal(places[:, 2], starts)
    assert np.array_equal(store.ids, np.arange(store.lanes[0].first, n_rows))
    for number in range(0, len(store.ids), 5000):
        ids = store.ids[number : number + 300]
        batch = store.transitions(ids, stack=3, n_step=2)
        start = ids - ids % EPISODE
        seen = Described(field).read(batch.observation)[..., 1]
        assert np.array_equal(seen, np.maximum(ids[:, None] + np.arange(-2, 1), start[:, None]))
        after = Described(field).read(batch.next_observation)[:, -1]
        assert np.array_equal(after[:, 1], np.minimum(ids + 2, np.minimum(start + EPISODE, n_rows)))
        assert np.array_equal(after[:, 2], start)
    assert len(store.episodes) == (store.ids % EPISODE == 0).sum()
    assert live or store.episodes["truncated"].all()


CASES = {
    # name: field, rows, capacity, action chunk
    "default chunks of scalars and vectors": (Field((6,), "float32"), 140_000, None, None),
    "default chunks, evicted": (Field((6,), "float32"), 210_000, 20_000, None),
    "default shard of 4,096 rows": (Field((16, 64), "uint8"), 9000, None, None),
    "files of a mebibyte, opened ahead": (Field((64, 64), "uint8", "raw", 256), 2300, 700, 600),
    "more files than lie side by side": (Field((64, 64), "uint8", "raw", 1), 8500, None, None),
    "more shards than are kept open": (Field((6, 8), "uint8", "lz4", 1, 1), 4400, None, None),
}


# Those of the others that are quick go over the same borders, or tests/unit has them, lowered.
LONG = {
    "default chunks, evicted",
    "default chunks of scalars and vectors",
    "more files than lie side by side",
    "more shards than are kept open",
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=pytest.mark.deep(only=True)) if one in LONG else one for one in CASES],
)
def test_every_row_is_right_on_both_sides_of_every_border(tmp_path, name):
    field, n_rows, capacity, chunk = CASES[name]
    path = tmp_path / "s.zarr"
    with record(path, field, n_rows, capacity=capacity, chunk=chunk) as buffer:
        check_recorded(buffer.store, field, n_rows, live=True)
        with mmreplay.open(path) as store:
            check_recorded(store, field, n_rows, live=True)
        buffer.flush()
    with mmreplay.open(path) as store:
        assert capacity is None or len(store) == capacity
        assert capacity is None or store.lanes[0].base > 0
        check_recorded(store, field, n_rows, live=False)


def test_a_reader_that_follows_grows_past_every_border(tmp_path):
    field = Field((64, 64), "uint8", "raw", 16)
    path = tmp_path / "s.zarr"
    with record(path, field, 1, chunk=64) as buffer, mmreplay.open(path) as follower:
        described = Described(field)
        for row in range(1, 700):
            buffer.step(row, row, described.make(0, row + 1, 0))
            if row % 7 == 0:
                batch = follower.transitions([row, row // 2], stack=2)
                after = described.read(batch.next_observation)[:, -1, 1]
                assert after.tolist() == [row + 1, row // 2 + 1]
        check_recorded(follower, field, 700, live=True)


def test_stores_loaded_as_one_are_one_store(tmp_path):
    frame = Field((3,), "uint8", "raw", 4)
    layouts = [
        Layout(frame, Field(()), capacity=30, padding="zero"),
        Layout(frame, Field((), chunk=5), lanes=2, environments=3),
        Layout(Field((3,), "uint8", "raw", 7), Field((), chunk=5), lanes=2),
        Layout(frame, Field(())),
    ]
    models = []
    for number, layout in enumerate(layouts):
        writers = layout.create_lanes(tmp_path / f"{number}.zarr")
        models.append(layout.model())
        Pair(writers, models[-1], np.random.default_rng(number)).play(45, mode="any")
        for writer in writers:
            writer.close()
        models[-1].end_session()
    whole = models[0]
    whole.lanes = [lane for model in models for lane in model.lanes]
    for given in (
        [tmp_path / f"{number}.zarr" for number in range(4)],
        [str(tmp_path / "[01].zarr"), str(tmp_path / "2.zarr"), str(tmp_path / "3.zarr")],
        str(tmp_path / "*.zarr"),
    ):
        with mmreplay.load(given, stack=3, n_step=2, seed=1) as data:
            assert data.settings.padding == "zero"
            checks.check_store(data.store, whole)
            batch = data.sample(200)
            settings = {"stack": 3, "n_step": 2, "padding": "zero"}
            checks.check_batch(batch, whole.batch(batch.id, **settings))
            assert set((batch.id >> 40).tolist()) == set(range(6))


@pytest.mark.parametrize("codec", ["raw", "lz4"])
@pytest.mark.parametrize("state", ["closed", "live", "crashed", "copied"])
def test_reading_makes_no_call_that_changes_the_disk(tmp_path, codec, state):
    path = tmp_path / "s.zarr"
    layout = Layout(Field((3,), "uint8", codec, 2), Field((), chunk=8), capacity=20)
    writer = layout.create(path)
    Pair(writer, layout.model(), np.random.default_rng(0)).play(60)
    if state == "closed":
        writer.close()
    elif state == "crashed":
        faults.kill(writer)
    elif state == "copied":
        writer.flush()
        shutil.copytree(path, tmp_path / "copy.zarr")
        path = tmp_path / "copy.zarr"
    if state in ("live", "copied"):
        settle(writer)
    names = sorted(str(one) for one in path.rglob("*"))
    with faults.faulty_disk() as disk:
        with mmreplay.load(path, stack=2) as data:
            data.sample(32)
            data.store.info()
            data.store.refresh()
            assert len(data.trajectory(0).ids)
        mmreplay.verify(path)
        assert disk.log == []
    assert sorted(str(one) for one in path.rglob("*")) == names
    writer.close()
