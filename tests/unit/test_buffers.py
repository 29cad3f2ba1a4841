"""Datasets and replay buffers: what is loaded, what is drawn, and what survives."""

import dataclasses
import gc
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, ReplayBuffer
from mmreplay.errors import (
    ClosedError,
    CorruptStoreError,
    EmptyBufferError,
    FormatError,
    InvalidIdError,
    LockedError,
    SchemaError,
    StoreNotFoundError,
)
from mmreplay.format import LANE_SHIFT
from mmreplay.gather import Batch

pytestmark = pytest.mark.usefixtures("quick_disk")

RAW = {"frame": Field((3,), "uint8", "raw", chunk=8), "action": Field((), "int64", chunk=8)}
FRAME = np.zeros(3, np.uint8)


@pytest.fixture
def buffer_of(tmp_path, quick_disk, kill):
    """Open a replay buffer in the test's folder; what is left open dies at the end."""
    buffers = []

    def create(name="store.zarr", **changes):
        new = not (tmp_path / name).exists()
        given = (RAW if new else {}) | {"flush_s": 0} | changes
        buffers.append(ReplayBuffer(tmp_path / name, **given))
        return buffers[-1]

    yield create
    for buffer in buffers:
        kill(buffer.writer)
        buffer.store.close()


@pytest.fixture
def loaded(make, story):
    """A closed store of 30 transitions in 5 episodes, to be loaded with settings."""
    writer = make()
    for _ in range(5):
        story.play(writer, 6, "terminated")
    writer.close()
    return lambda **settings: mmreplay.load(writer.path, **settings)


def arrays(batch):
    found = [getattr(batch, one.name) for one in dataclasses.fields(batch)]
    return [one for one in found if isinstance(one, np.ndarray)]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(arrays(one), arrays(other), strict=True))


# ---------------------------------------------------------------- load


def test_one_store_is_loaded_with_its_settings(loaded):
    with loaded(stack=2, n_step=3, gamma=0.5, padding="zero", stack_axis=-1) as data:
        assert len(data) == 30
        assert data.sample(4).observation.shape == (4, 3, 2)
        assert dataclasses.astuple(data.settings) == (2, 3, 0.5, "zero", -1)
        assert repr(data) == f"<mmreplay.Dataset {data.store.path} transitions=30>"
        assert data.ids.tolist() == data.store.ids.tolist()
        assert len(data.episodes) == 5
        assert data.trajectory(1).ids.tolist() == [7, 8, 9, 10, 11, 12]


def test_the_defaults_are_those_of_the_interface(loaded):
    data = loaded()
    assert dataclasses.astuple(data.settings) == (4, 1, 0.99, "reset", 0)
    assert same(data.sample(8), loaded(seed=0).sample(8))


def test_padding_is_the_first_stores(make, story):
    for name, padding in (("a.zarr", "zero"), ("b.zarr", "reset")):
        writer = make(name, padding=padding)
        story.play(writer, 3)
        writer.close()
    folder = writer.path.parent
    assert mmreplay.load([folder / "a.zarr", folder / "b.zarr"]).settings.padding == "zero"
    assert mmreplay.load([folder / "b.zarr", folder / "a.zarr"]).settings.padding == "reset"
    assert mmreplay.load(folder / "a.zarr", padding="reset").settings.padding == "reset"


@pytest.fixture
def three(make, story):
    """Three stores of 3, 4 and 2 times 5 transitions."""
    for name, length, lanes in (("a.zarr", 3, None), ("b.zarr", 4, None), ("c.zarr", 5, 2)):
        writer = make(name, lanes=lanes)
        story.play(writer, length)
        writer.close()
    return writer.path.parent


def test_a_list_or_a_pattern_numbers_lanes_on_through_all_stores(three):
    by_list = mmreplay.load([three / "a.zarr", str(three / "b.zarr"), three / "c.zarr"])
    for path in (
        str(three / "*.zarr"),
        three / "[abc].zarr",
        [three / "a.zarr", three / "[bc].zarr"],
    ):
        data = mmreplay.load(path)
        assert len(data) == 17
        assert data.ids.tolist() == by_list.ids.tolist()
        assert data.store.path == three / "a.zarr"
    lanes = by_list.ids >> LANE_SHIFT
    assert [int((lanes == n).sum()) for n in range(4)] == [3, 4, 5, 5]
    reverse = mmreplay.load([three / "c.zarr", three / "a.zarr"])
    assert (reverse.ids >> LANE_SHIFT).tolist() == [0] * 5 + [1] * 5 + [2] * 3


def test_a_lane_of_a_store_is_loaded_alone(three):
    assert len(mmreplay.load(three / "c.zarr" / "lane-00001")) == 5


def test_a_store_whose_name_is_a_pattern_is_that_store(make, story):
    writer = make("run[1].zarr")
    story.play(writer, 3)
    assert len(mmreplay.load(writer.path)) == 3


@pytest.mark.parametrize(
    ("path", "error", "match"),
    [
        ("none.zarr", StoreNotFoundError, "there is no store here"),
        ("*.none", StoreNotFoundError, "nothing matches this pattern"),
        ([], StoreNotFoundError, "found an empty list"),
        (["a.zarr", "none.zarr"], StoreNotFoundError, "none.zarr: there is no store here"),
        (["a.zarr", []], StoreNotFoundError, "empty list"),
        ("file", FormatError, "not a store"),
        ("*", FormatError, "file"),
    ],
)
def test_what_cannot_be_loaded_is_named(three, monkeypatch, path, error, match):
    monkeypatch.chdir(three)
    Path("file").write_bytes(b"x")
    with pytest.raises(error, match=match):
        mmreplay.load(path)


@pytest.mark.parametrize("path", [5, None, 1.5])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(SchemaError, match="expected a path, a list of them or a pattern"):
        mmreplay.load(path)


@pytest.mark.parametrize(
    "wrong", [{"stack": 0}, {"n_step": 0}, {"gamma": 2}, {"padding": "edge"}, {"stack_axis": 2}]
)
def test_a_setting_out_of_its_range_is_refused(loaded, buffer_of, tmp_path, wrong):
    with pytest.raises(SchemaError, match=next(iter(wrong))):
        loaded(**wrong)
    with pytest.raises(SchemaError, match=next(iter(wrong))):
        buffer_of("new.zarr", **wrong)
    assert not (tmp_path / "new.zarr").exists()


# ---------------------------------------------------------------- sample


def test_a_batch_is_what_the_store_gives_for_the_ids_that_were_drawn(loaded):
    data = loaded(stack=2, n_step=2, gamma=0.5)
    batch = data.sample(50)
    assert same(batch, data.store.transitions(batch.id, stack=2, n_step=2, gamma=0.5))
    assert same(batch, data.transitions(batch.id))


def test_the_same_seed_draws_the_same_batches(loaded):
    def draws(seed):
        data = loaded(seed=seed)
        return np.concatenate([data.sample(size).id for size in (5, 1, 100)]).tolist()

    assert draws(3) == draws(3)
    assert draws([1, 2]) == draws([1, 2])
    assert draws(np.random.SeedSequence(5)) == draws(np.random.SeedSequence(5))
    assert len({tuple(draws(seed)) for seed in (0, 1, 2, [1, 2], None, None)}) == 6


def test_more_may_be_drawn_than_there_are(loaded):
    assert sorted(set(loaded().sample(2000).id.tolist())) == loaded().ids.tolist()


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "3", None])
def test_a_batch_size_is_a_number_of_transitions(loaded, size):
    for call in (loaded().sample, loaded().batches):
        with pytest.raises(SchemaError, match="batch_size: expected 1 or more"):
            call(size)
    assert len(loaded().sample(np.int64(3))) == 3


def test_out_is_filled_again(loaded):
    data, twin = loaded(seed=1), loaded(seed=1)
    batch = data.sample(8)
    assert same(batch, twin.sample(8))
    for _ in range(3):
        assert data.sample(8, out=batch) is batch
        assert same(batch, twin.sample(8))
    assert data.transitions([1, 2, 3, 4, 5, 7, 8, 9], out=batch) is batch
    with pytest.raises(SchemaError, match="out: expected a batch of 7"):
        data.sample(7, out=batch)


def test_nothing_is_drawn_from_nothing(make, buffer_of):
    writer = make("empty.zarr")
    with mmreplay.load(writer.path) as data:
        assert len(data) == 0
        with pytest.raises(
            EmptyBufferError, match=r"empty\.zarr: there is no transition to sample yet"
        ):
            data.sample(1)
        with pytest.raises(EmptyBufferError, match=r"empty\.zarr: there is no transition yet"):
            data.batches(1)
        writer.reset(FRAME)
        with pytest.raises(EmptyBufferError):
            data.sample(1)
        writer.step(1, 1.0, FRAME)
        assert data.sample(3).id.tolist() == [0, 0, 0]
    with pytest.raises(EmptyBufferError):
        buffer_of().sample(1)


def test_transitions_may_have_settings_of_their_own(loaded):
    data = loaded(stack=2, gamma=0.5)
    changed = data.transitions([3, 8], stack=None, n_step=2)
    assert changed.observation.shape == (2, 3)
    assert same(changed, data.store.transitions([3, 8], stack=None, n_step=2, gamma=0.5))
    assert data.transitions([3, 8]).observation.shape == (2, 2, 3)
    with pytest.raises(InvalidIdError, match="id 6 "):
        data.transitions([3, 6])
    with pytest.raises(SchemaError, match="stack"):
        data.transitions([3], stack=0)
    with pytest.raises(TypeError, match="stak"):
        data.transitions([3], stak=2)


def test_a_dataset_of_a_live_store_follows_it(make, story):
    writer = make()
    story.play(writer, 3)
    with mmreplay.load(writer.path) as data:
        for length in (4, 7):
            story.play(writer, length)
            assert len(data) == len(story.transitions(writer.path))
            assert set(data.sample(500).id.tolist()) == set(story.transitions(writer.path))
    with pytest.raises(ClosedError):
        data.sample(1)


# ---------------------------------------------------------------- epochs


def ids_of(batches):
    return [batch.id.tolist() for batch in batches]


def flat(batches):
    return [one for batch in ids_of(batches) for one in batch]


def test_an_epoch_has_every_transition_once_in_batches_of_the_size(loaded):
    data = loaded()
    found = ids_of(data.batches(8))
    assert [len(batch) for batch in found] == [8, 8, 8, 6]
    assert sorted(one for batch in found for one in batch) == data.ids.tolist()
    assert flat(data.batches(8, shuffle=False)) == data.ids.tolist()
    assert ids_of(data.batches(100)) != ids_of(data.batches(100))


def test_epochs_go_on_over_calls_and_begin_again_with_the_seed(loaded):
    one, other = loaded(seed=4), loaded(seed=4)
    first = flat(one.batches(7)) + flat(one.batches(7, epochs=2))
    assert first == flat(other.batches(7, epochs=3))
    assert len({tuple(first[n : n + 30]) for n in (0, 30, 60)}) == 3
    assert flat(loaded(seed=5).batches(7)) != first[:30]
    assert flat(loaded().batches(7, epochs=0)) == []


def test_epochs_without_end_go_on(loaded):
    batches = loaded().batches(30, epochs=None)
    assert all(sorted(next(batches).id.tolist()) == loaded().ids.tolist() for _ in range(5))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7, 31])
@pytest.mark.parametrize("size", [1, 4, 8])
def test_each_transition_comes_once_over_all_ranks(loaded, world_size, size):
    parts = [
        ids_of(loaded().batches(size, epochs=2, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    whole = [one for part in parts for batch in part for one in batch]
    assert sorted(whole) == sorted(loaded().ids.tolist() * 2)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7, 31])
@pytest.mark.parametrize("size", [1, 4, 8])
def test_with_drop_last_every_rank_has_the_same_number_of_full_batches(loaded, world_size, size):
    parts = [
        ids_of(loaded().batches(size, rank=rank, world_size=world_size, drop_last=True))
        for rank in range(world_size)
    ]
    assert {len(part) for part in parts} == {30 // world_size // size}
    assert all(len(batch) == size for part in parts for batch in part)
    whole = [one for part in parts for batch in part for one in batch]
    assert len(set(whole)) == len(whole)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"rank": -1}, "rank and world_size"),
        ({"rank": 1}, "rank and world_size"),
        ({"rank": 3, "world_size": 3}, "rank and world_size"),
        ({"world_size": 0}, "rank and world_size"),
        ({"epochs": -1}, "epochs: expected 0 or more"),
    ],
)
def test_an_epoch_that_cannot_be_divided_is_refused_at_once(loaded, wrong, match):
    with pytest.raises(SchemaError, match=match):
        loaded().batches(4, **wrong)


# ---------------------------------------------------------------- ReplayBuffer


def test_a_buffer_records_and_samples(buffer_of, story):
    with buffer_of(stack=2, n_step=3, gamma=0.5, capacity=100) as buffer:
        buffer.reset(FRAME)
        for row in range(10):
            buffer.step(row, row / 2, np.full(3, row + 1, np.uint8), terminated=row == 9)
        assert len(buffer) == 10
        assert buffer.capacity == 100
        batch = buffer.sample(64)
        assert isinstance(batch, Batch)
        assert batch.observation.shape == (64, 2, 3)
        assert np.array_equal(batch.observation[:, 1, 0], batch.id)
        assert buffer.sample(64, out=batch) is batch
        assert buffer.ids.tolist() == list(range(10))
        assert buffer.transitions([4]).reward.tolist() == [2 + 1.25 + 0.75]
        assert buffer.episodes["length"].tolist() == [10]
        assert len(buffer.trajectory(0)) == 10
        assert dataclasses.astuple(buffer.settings) == (2, 3, 0.5, "reset", 0)
        assert repr(buffer) == f"<mmreplay.ReplayBuffer {buffer.writer.path}>"
        buffer.flush()
    assert not (buffer.writer.path / ".live").exists()
    buffer.close()
    for call in (
        lambda: buffer.sample(1),
        lambda: buffer.reset(FRAME),
        buffer.flush,
        lambda: len(buffer),
    ):
        with pytest.raises(ClosedError):
            call()


def test_a_buffer_keeps_its_capacity_exactly(buffer_of, story):
    buffer = buffer_of(capacity=20)
    for _ in range(30):
        story.play(buffer.writer, 7, "terminated")
        expected = story.transitions(buffer.writer.path)[-20:]
        assert len(buffer) == len(expected)
        assert buffer.ids.tolist() == expected
        assert set(buffer.sample(300).id.tolist()) <= set(expected)


@pytest.mark.parametrize(
    ("capacity", "stack", "n_step"), [(1, 1, 1), (1, 4, 3), (3, 65, 5), (2, None, 1)]
)
def test_a_capacity_below_everything_else_works(buffer_of, story, capacity, stack, n_step):
    buffer = buffer_of(capacity=capacity, stack=stack, n_step=n_step)
    for length in (1, 30, 2, 100):
        story.play(buffer.writer, length, "truncated")
        assert len(buffer) == capacity or length == 1
        assert len(buffer.sample(16)) == 16


def test_a_stack_past_the_context_is_refused_with_a_capacity(buffer_of, tmp_path):
    with pytest.raises(SchemaError, match="at most 65 where a capacity evicts rows, found 66"):
        buffer_of(capacity=10, stack=66)
    assert not (tmp_path / "store.zarr").exists()
    buffer_of(stack=66).close()
    with pytest.raises(SchemaError, match="at most 65"):
        buffer_of(stack=66, capacity=10)
    buffer_of(stack=4, capacity=10).close()
    with pytest.raises(SchemaError, match="at most 65"):
        buffer_of(stack=66)


def test_a_buffer_goes_on_where_it_stopped(buffer_of, story):
    buffer = buffer_of(capacity=100)
    story.play(buffer.writer, 30)
    buffer.close()
    buffer = buffer_of()
    assert (len(buffer), buffer.capacity) == (30, 100)
    with pytest.raises(SchemaError, match="call reset"):
        buffer.step(1, 1.0, FRAME)
    story.play(buffer.writer, 10)
    story.check(buffer.store)
    buffer.close()
    buffer = buffer_of(capacity=15)
    assert (len(buffer), buffer.capacity) == (15, 15)


@pytest.mark.parametrize(
    "wrong",
    [
        {"frame": Field((4,))},
        {"action": Field((2,))},
        {"codec": "lz4"},
        {"extras": {"x": Field()}},
        {"reward_dtype": "float64"},
        {"lanes": 2},
    ],
    ids=str,
)
def test_fields_that_do_not_match_are_refused_and_nothing_goes(buffer_of, story, wrong):
    buffer = buffer_of()
    story.play(buffer.writer, 300)
    buffer.close()
    with pytest.raises(SchemaError, match="expected"):
        buffer_of(capacity=5, **wrong)
    assert len(buffer_of(**RAW)) == 300


def test_a_buffer_that_somebody_writes_is_locked(buffer_of, monkeypatch):
    from mmreplay import files

    monkeypatch.setattr(files.DirectoryLock.__init__, "__kwdefaults__", {"patience_s": 0})
    buffer_of()
    with pytest.raises(LockedError):
        buffer_of()


def test_a_buffer_of_lanes_divides_its_capacity(buffer_of, story):
    buffer = buffer_of(lanes=3, capacity=20, stack=2)
    buffer.reset(np.zeros((3, 3), np.uint8))
    buffer.step([1, 2, 3], [0, 0, 0], np.ones((3, 3), np.uint8), [0, 0, 0], [0, 0, 0])
    assert len(buffer) == 3
    assert buffer.capacity == 20
    buffer.close()
    assert buffer_of(lanes=3).capacity == 20
    # One writer a store: the lanes of the one above are still open.


def test_a_dropped_buffer_lets_go_of_its_lane_at_once(tmp_path, quick_disk):
    gc.disable()
    try:
        buffer = ReplayBuffer(tmp_path / "b.zarr", flush_s=3600, **RAW)
        buffer.reset(FRAME)
        del buffer
        with ReplayBuffer(tmp_path / "b.zarr") as again:
            assert again.writer.n_steps == 0
    finally:
        gc.enable()


# ---------------------------------------------------------------- seeds


@pytest.fixture
def twin_of(make, story):
    """What a dataset of 50 transitions draws that nobody else touches."""
    writer = make("twin.zarr")
    story.play(writer, 50)
    writer.close()
    return lambda seed: mmreplay.load(writer.path, seed=seed)


def test_the_generator_goes_on_where_it_stopped_after_a_close(buffer_of, story, twin_of):
    buffer, twin = buffer_of(seed=7), twin_of(7)
    story.play(buffer.writer, 50)
    for _ in range(3):
        assert same(buffer.sample(16), twin.sample(16))
    for seed in (7, 8, None):  # counts only at creation
        buffer.close()
        buffer = buffer_of(seed=seed)
        for _ in range(2):
            assert same(buffer.sample(16), twin.sample(16))


def test_after_a_kill_the_generator_is_that_of_the_last_flush(buffer_of, story, kill, twin_of):
    buffer, twin = buffer_of(seed=7), twin_of(7)
    story.play(buffer.writer, 50)
    assert same(buffer.sample(16), twin.sample(16))
    buffer.flush()
    lost = buffer.sample(16)
    kill(buffer.writer)
    buffer = buffer_of(seed=9)
    assert same(buffer.sample(16), lost)
    kill(buffer.writer)  # nothing was flushed since
    assert same(buffer_of().sample(16), lost)


def test_after_a_kill_before_the_first_flush_the_seed_counts(buffer_of, story, kill, twin_of):
    buffer = buffer_of(seed=7)
    story.play(buffer.writer, 50)
    buffer.sample(16)
    kill(buffer.writer)
    assert same(buffer_of(seed=9).sample(16), twin_of(9).sample(16))


def test_a_store_that_was_recorded_before_takes_the_seed(make, buffer_of, story, twin_of):
    writer = make()
    story.play(writer, 50)
    writer.close()
    assert same(buffer_of(seed=5).sample(16), twin_of(5).sample(16))


def test_a_session_that_ends_takes_nothing_from_the_generator(make, story, kill, twin_of):
    writer = make()
    story.play(writer, 50)
    data, twin = mmreplay.load(writer.path, seed=3), twin_of(3)
    for end in (kill, type(writer).close, kill):
        assert same(data.sample(16), twin.sample(16))
        end(writer)
        writer = make(append=True)
        assert same(data.sample(16), twin.sample(16))


@pytest.mark.parametrize(
    "state",
    [
        "",
        "{",
        "[]",
        "3",
        '{"bit_generator": "MT19937"}',
        '{"bit_generator": "PCG64"}',
        '{"bit_generator": "PCG64", "state": {"state": -1, "inc": "x"}, "has_uint32": 0, "uinteger": 0}',
    ],
)
def test_a_stored_generator_that_is_none_is_named(make, buffer_of, story, state):
    writer = make()
    story.play(writer, 5)
    writer.save_generator(lambda: state)
    writer.close()
    with pytest.raises(
        CorruptStoreError, match=r"store\.zarr: the saved random state cannot be read"
    ):
        buffer_of()


FORK = """
import os, sys, mmreplay

def child(data):
    here, there = os.pipe()
    if os.fork() == 0:
        os.write(there, repr(data.sample(6).id.tolist()).encode())
        os._exit(0)
    os.wait()
    return os.read(here, 1000).decode()

data = mmreplay.load(sys.argv[1], seed=int(sys.argv[2]))
print(child(data))
print(child(data))
print(data.sample(6).id.tolist())
"""


def test_forked_children_draw_neither_what_their_parent_nor_what_their_siblings_draw(make, story):
    writer = make()
    story.play(writer, 500)
    writer.close()

    def run(seed):
        found = subprocess.run(
            [sys.executable, "-W", "error", "-c", FORK, str(writer.path), str(seed)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return found.stdout.splitlines()

    lines = run(3)
    assert len(set(lines)) == 3
    assert lines[2] == str(mmreplay.load(writer.path, seed=3).sample(6).id.tolist())
    assert run(3) == lines  # the n-th child draws the same on every run


def test_a_forked_child_does_not_wait_for_a_lock_that_a_thread_of_its_parent_held(make, story):
    writer = make()
    story.play(writer, 50)
    writer.close()
    code = """
import os, sys, threading, mmreplay
data = mmreplay.load(sys.argv[1])
held, done = threading.Event(), threading.Event()
def hold():
    with data.store._lock:
        held.set()
        done.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
if os.fork() == 0:
    os._exit(0 if len(data.sample(4)) == 4 else 1)
print(os.waitstatus_to_exitcode(os.wait()[1]))
done.set()
"""
    run = subprocess.run(
        [sys.executable, "-c", code, str(writer.path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.stdout, run.stderr) == ("0\n", "")


def test_one_thread_steps_and_another_samples(buffer_of, story):
    buffer = buffer_of(capacity=50, frame=Field((3,), "uint8", "lz4", chunk=4, shard=8), n_step=3)
    story.play(buffer.writer, 5)
    wrong, stop = [], threading.Event()

    def sample():
        batch = None
        try:
            while not stop.is_set():
                batch = buffer.sample(16, out=batch)
                expected = np.stack(
                    [story.value(buffer.writer.schema.frames["frame"], row) for row in batch.id]
                )
                if not np.array_equal(batch.observation[:, -1], expected):
                    wrong.append(batch.id)
        except Exception as error:
            wrong.append(error)

    thread = threading.Thread(target=sample)
    thread.start()
    for _ in range(30):
        story.play(buffer.writer, 20, "terminated")
        buffer.flush()
    stop.set()
    thread.join()
    assert wrong == []
