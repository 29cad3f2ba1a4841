"""Replay buffers: what they record and draw, and what survives."""

import dataclasses
import functools
import json
import os
import pickle
import time

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import mmreplay
from mmreplay import Field, PrioritizedReplayBuffer, ReplayBuffer
from mmreplay.batches.batch import Batch
from mmreplay.errors import (
    ClosedError,
    CorruptStoreError,
    DiskFullError,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
)
from mmreplay.writing import build_lane
from tests.support.counter_env import Counter

pytestmark = pytest.mark.usefixtures("quick_disk")

RAW = {"frame": Field((3,), "uint8", "raw", chunk=8), "action": Field((), "int64", chunk=8)}
FRAME = np.zeros(3, np.uint8)


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
        assert dataclasses.astuple(buffer.settings) == (2, 3, 0.5, "reset", 0, None, None, ())
        about = f"<mmreplay.ReplayBuffer {buffer.writer.path} "
        assert repr(buffer) == f"{about}transitions=10 capacity=100 stack=2 n_step=3 gamma=0.5>"
        buffer.flush()
    assert repr(buffer) == f"{about}closed capacity=100 stack=2 n_step=3 gamma=0.5>"
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


def test_a_buffer_is_not_pickled_and_says_what_to_do_instead(buffer_of):
    with (
        buffer_of() as buffer,
        pytest.raises(SchemaError, match=r"one writer; call mmreplay\.load"),
    ):
        pickle.dumps(buffer)


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


@pytest.mark.parametrize("prefetch", [0, 2])
def test_state_that_is_loaded_brings_back_the_batches_of_then(buffer_of, story, kill, prefetch):
    def run(buffer, n=10):
        return [buffer.sample(8).id.tolist() for _ in range(n)]

    buffer = buffer_of(seed=3, prefetch=prefetch)
    story.play(buffer.writer, 200)
    run(buffer)
    state, expected = json.loads(json.dumps(buffer.state_dict())), run(buffer)
    buffer.flush()  # what is stored is the state of now
    kill(buffer.writer)
    buffer = buffer_of(prefetch=prefetch)
    later = run(buffer)
    buffer.load_state_dict(state)
    assert run(buffer) == expected != later
    assert run(buffer) == later  # on from there: what was stored was the state after these
    story.play(buffer.writer, 200)
    buffer.load_state_dict(state)
    assert max(map(max, run(buffer))) > max(map(max, expected))  # of all that there is by now


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
    story.play(buffer.writer, 60)
    buffer.close()
    with pytest.raises(SchemaError, match="expected"):
        buffer_of(capacity=5, **wrong)
    assert len(buffer_of(**RAW)) == 60


def test_a_capacity_is_of_all_environments_together(buffer_of):
    buffer = buffer_of(lanes=3, capacity=20, stack=2)
    buffer.reset(np.zeros((3, 3), np.uint8))
    for n in range(30):
        buffer.step([1, 2, 3], [n] * 3, np.ones((3, 3), np.uint8), [0, 0, 0], [0, 0, 0])
        assert len(buffer) == min(3 * n + 3, 18)  # whole steps of all
    assert buffer.capacity == 20
    buffer.close()
    assert buffer_of(lanes=3).capacity == 20
    # One writer a store: the lanes of the one above are still open.


# ---------------------------------------------------------------- vector environments


@pytest.mark.parametrize("kind", [ReplayBuffer, mmreplay.PrioritizedReplayBuffer])
def test_a_buffer_takes_its_fields_and_its_width_from_a_vector_environment(tmp_path, kind):
    lengths = (3, 5)
    envs = SyncVectorEnv(
        [functools.partial(Counter, n) for n in lengths], autoreset_mode=AutoresetMode.DISABLED
    )

    def run(path, *, interrupted):
        drawn = []
        buffer = kind(path, env=envs, stack=2, n_step=2, gamma=0.5, seed=7)
        observations, _ = envs.reset()
        buffer.reset(observations)
        for t in range(24):
            actions = np.array([t % 2, 1])
            observations, rewards, terminated, truncated, _ = envs.step(actions)
            buffer.step(actions, rewards, observations, terminated, truncated)
            over = terminated | truncated
            if over.any():
                observations, _ = envs.reset(options={"reset_mask": over})
                buffer.reset(observations, over)
        for _ in range(3):
            drawn.append(buffer.sample(16).id.tolist())
            if interrupted:
                buffer.close()
                buffer = kind(path, env=envs, stack=2, n_step=2, gamma=0.5)
        assert isinstance(buffer.writer, mmreplay.VectorWriter)
        assert len(buffer.writer) == buffer.store.lanes[0].environments == 2
        return buffer, drawn

    buffer, drawn = run(tmp_path / "a.zarr", interrupted=True)
    assert run(tmp_path / "b.zarr", interrupted=False)[1] == drawn
    assert len(buffer) == 48
    for length, env in zip(lengths, (0, 1), strict=True):
        mine = buffer.episodes[buffer.episodes["id"] % 2 == env]
        assert mine["length"][:4].tolist() == [length] * 4
        assert mine["terminated"][:4].all()


# ---------------------------------------------------------------- seeds


def test_the_generator_goes_on_where_it_stopped_after_a_close(buffer_of, story, twin_of, same):
    buffer, twin = buffer_of(seed=7), twin_of(7)
    story.play(buffer.writer, 50, "terminated")
    for _ in range(3):
        assert same(buffer.sample(16), twin.sample(16))
    for seed in (7, 8, None):  # counts only at creation
        buffer.close()
        buffer = buffer_of(seed=seed)
        for _ in range(2):
            assert same(buffer.sample(16), twin.sample(16))


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
def test_an_invalid_stored_generator_is_an_error_that_names_it(make, buffer_of, story, state):
    writer = make()
    story.play(writer, 5)
    writer.files.on_flush = lambda: state
    writer.close()
    with pytest.raises(
        CorruptStoreError, match=r"store\.zarr: the saved random state cannot be read"
    ):
        buffer_of()


# ---------------------------------------------------------------- a dataset that grows


def test_a_subclass_may_step_and_reset_in_its_own_way(tmp_path):
    class Halved(ReplayBuffer):
        def reset(self, frame, mask=None, **fields):
            super().reset(frame + 1, mask, **fields)

        def step(self, action, reward, next_frame, terminated=False, truncated=False, **more):
            super().step(action, reward / 2, next_frame, terminated, truncated, **more)

    with Halved(
        tmp_path / "s.zarr", stack=None, frame=Field((1,)), action=Field((), "int64")
    ) as buffer:
        buffer.reset(np.zeros(1, "uint8"))
        buffer.step(0, 3.0, np.zeros(1, "uint8"), life_lost=True)
        batch = buffer.transitions([0])
        assert batch.reward.tolist() == [1.5]
        assert batch.observation.tolist() == [[1]]
        assert not batch.non_terminal[0]


# ---------------------------------------------------------------- a random state of somebody else


def with_state(path, change):
    """Change the random state in a closed store, as text."""
    document = json.loads((path / "zarr.json").read_bytes())
    own = document["attributes"]["mmreplay"]
    own["generator"] = change(own["generator"])
    own.pop("crc32c")
    (path / "zarr.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def test_foreign_values_in_a_saved_state_are_not_saved_again(buffer_of, story, twin_of, same):
    buffer = buffer_of(seed=4)
    story.play(buffer.writer, 50, "terminated")
    buffer.close()
    more = '"x": ' + "[" * 500 + "]" * 500 + ', "sampler": {"largest": [[[]]], "batches": 1e300}'
    with_state(buffer.writer.path, lambda text: f"{text[:-1]}, {more}}}")
    again = buffer_of()
    again.flush()
    saved = json.loads(build_lane.read_generator(again.writer.path))
    assert saved.pop("sampler", {}).keys() <= {"batches"}
    assert saved == again.generator.bit_generator.state
    assert same(again.sample(16), twin_of(4).sample(16))
    again.close()
    assert mmreplay.verify(again.writer.path).findings == []
    with_state(buffer.writer.path, lambda text: f"{text[:-1]}, {more}}}")
    with PrioritizedReplayBuffer(buffer.writer.path, flush_s=0) as again:
        assert (again.beta, again.sampler.largest) == (0.4, 1)


@pytest.mark.parametrize("lanes", [None, 2])
@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (ReplayBuffer, "replay_buffer.Store"),
        (PrioritizedReplayBuffer, "prioritized.PriorityColumn"),
    ],
    ids=["uniform", "prioritized"],
)
def test_buffer_that_cannot_be_had_leaves_no_store_unless_it_was_there(
    tmp_path, monkeypatch, kind, part, lanes
):
    fields = {"frame": Field((2,)), "action": Field((), "int64")}
    new, old = tmp_path / "new", tmp_path / "old"
    kind(old, lanes=lanes, flush_s=0, **fields).close()

    def full(*_, **__):
        raise DiskFullError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(f"mmreplay.datasets.{part}", full)
        for path in (old, new):
            with pytest.raises(DiskFullError, match="no room"):
                kind(path, lanes=lanes, flush_s=0, **fields)
    assert list(tmp_path.iterdir()) == [old]
    mmreplay.create(new, lanes=lanes, **fields).close()
    assert mmreplay.verify(old).sound


# ---------------------------------------------------------------- resuming says so


def test_a_resumed_buffer_logs_one_line_with_its_size_its_age_and_the_seed(
    buffer_of, caplog, monkeypatch
):
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)

    def lines(age_s, n_steps=1, **how):
        caplog.clear()
        with caplog.at_level("INFO"), buffer_of(**how) as buffer:
            buffer.reset(FRAME)
            for _ in range(n_steps):
                buffer.step(0, 1.0, FRAME)
        os.utime(buffer.writer.path / "zarr.json", (now - age_s, now - age_s))
        return [(one.levelname, one.message.split(".zarr: ")[1]) for one in caplog.records]

    assert lines(40, 1200) == []
    for age_s, level, how, age in (
        (119, "WARNING", {}, "40 seconds"),
        (7199, "WARNING", {"resume": "auto", "seed": 8}, "119 seconds"),
        (100_000, "INFO", {"resume": True}, "120 minutes"),
        (2 * 86_400, "WARNING", {}, "28 hours"),
        (-50, "WARNING", {}, "2 days"),
        (0, "WARNING", {}, "0 seconds"),  # of a clock that was set back
    ):
        found = lines(age_s, **how)
        assert [one for one, _ in found] == [level]
        assert f"last written {age} ago; its random state continues, and seed= is" in found[0][1]


def test_the_line_counts_transitions_and_names_no_seed_where_one_counts(make, story, caplog):
    writer = make("a.zarr")
    story.play(writer, 1234, "terminated")
    story.play(writer, 6)
    writer.close()
    with ReplayBuffer(writer.path):
        assert "a.zarr: resumed, with 1,240 transitions, last written" in caplog.text
        assert "seed" not in caplog.text  # no buffer has written there: it counts


def test_the_line_says_that_a_smaller_capacity_evicts(make, story, caplog):
    writer = make("a.zarr")
    story.play(writer, 1240, "terminated")
    writer.close()
    said = []
    for capacity in (5_000, 100, 100, 400, 50):
        caplog.clear()
        with ReplayBuffer(writer.path, capacity):
            _, _, more = caplog.text.partition(" ago")
            said.append(more.partition("; older")[2].strip())
    evicted = "ones were evicted (capacity {}, before {})"
    assert said == ["", evicted.format(100, "5,000"), "", "", evicted.format(50, 400)]


def test_resume_true_needs_a_store_and_false_a_free_path(buffer_of):
    with pytest.raises(StoreNotFoundError, match="no store here to resume"):
        buffer_of(resume=True)
    buffer_of(resume=False).close()
    with pytest.raises(StoreExistsError, match="already exists"):
        buffer_of(resume=False)
    buffer_of(resume=True).close()
