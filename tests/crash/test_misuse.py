"""Two writers, forked children, wrong values, wrong order: the right error, and nothing changed."""

import gc
import json
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import warnings

import numpy as np
import pytest

import mmreplay
from tests.support.oracle import checks
from tests.support.oracle.disk import check_plain_zarr
from tests.support.oracle.layout import Layout
from tests.support.oracle.pair import Pair

Field = mmreplay.Field
LAYOUT = Layout(
    Field((3, 4), "uint8", "lz4", 2, 4),
    Field((), "int64", chunk=11),
    {"thought": Field((2,), "float32")},
)


@pytest.fixture
def pair(tmp_path):
    writer = LAYOUT.create(tmp_path / "s.zarr")
    pair = Pair(writer, LAYOUT.model(), np.random.default_rng(0))
    pair.play(15, end=0.0)
    del writer
    yield pair
    pair.writer.close()


def path_of(pair):
    return pair.writer.path


# ---------------------------------------------------------------- two writers


def test_second_writer_is_told_who_holds_the_lane(pair):
    for open_again in (
        lambda: mmreplay.create(path_of(pair), append=True),
        lambda: mmreplay.ReplayBuffer(path_of(pair)),
    ):
        with pytest.raises(mmreplay.LockedError) as caught:
            open_again()
        message = str(caught.value)
        assert f"pid {os.getpid()} " in message
        assert socket.gethostname() in message
        assert str(path_of(pair)) in message
    pair.play(5)
    with mmreplay.open(path_of(pair)) as store:
        checks.check_store(store, pair.model)


def test_second_writer_of_another_process_is_told_the_pid(pair):
    code = (
        "import mmreplay, sys\n"
        "try: mmreplay.create(sys.argv[1], append=True)\n"
        "except mmreplay.LockedError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, str(path_of(pair))]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"pid {os.getpid()} " in out


def test_writer_that_was_dropped_without_close_keeps_nobody_out(pair):
    writer, pair.writers = pair.writer, [None]
    path = writer.path
    del writer
    gc.collect()
    with mmreplay.create(path, append=True) as again:
        assert again.rows == len(pair.model.lanes[0].rows)
        pair.reopened(again)


# ---------------------------------------------------------------- forked children


def forked(task):
    """Run a task in a forked child; its return value."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: threads and fork
        pid = os.fork()
    if not pid:
        status = 1
        signal.alarm(60)  # a child that waits for its parent's threads waits for ever
        try:
            os.close(reader)
            os.write(writer, json.dumps(task()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return json.loads(data)


def test_forked_child_may_not_write(pair):
    frame = np.zeros((3, 4), np.uint8)

    def task():
        outcomes = []
        for call in (
            lambda: pair.writer.step(1, 1.0, frame, thought=np.zeros(2, np.float32)),
            lambda: pair.writer.reset(frame),
            pair.writer.flush,
        ):
            try:
                call()
                outcomes.append("done")
            except mmreplay.ClosedError as error:
                outcomes.append(f"{error}")
        pair.writer.close()
        return outcomes

    for outcome in forked(task):
        assert "parent" in outcome
    pair.play(9)
    with mmreplay.open(path_of(pair)) as store:
        checks.check_store(store, pair.model)


def test_forked_child_does_not_hold_the_lock_of_its_parent(pair):
    go_reader, go = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        os.close(go)
        os.read(go_reader, 1)  # until the parent closes its end
        os._exit(0)
    try:
        with pytest.raises(mmreplay.LockedError):
            mmreplay.create(path_of(pair), append=True)
        pair.writer.close()
        pair.model.lanes[0].end_session()
        pair.reopened(mmreplay.create(path_of(pair), append=True, flush_s=0))
        pair.play(5)
    finally:
        os.close(go_reader)
        os.close(go)
        os.waitpid(pid, 0)


def test_forked_child_exits_without_waiting_for_its_parents_threads(pair):
    pair.writer.flush()
    child = multiprocessing.get_context("fork").Process(target=len, args=("",))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    child.join(300)
    assert child.exitcode == 0


def test_forked_child_samples_what_its_parent_wrote(tmp_path):
    layout = Layout(Field((3,), "uint8", "lz4", 2, 4), Field(()), {})
    with mmreplay.ReplayBuffer(
        tmp_path / "s.zarr", frame=layout.frame, action=layout.action, stack=2, flush_s=0
    ) as buffer:
        pair = Pair(buffer, layout.model(), np.random.default_rng(0))
        pair.play(30)
        model = pair.model

        def task():
            ids = buffer.sample(64).id
            return bool(np.isin(ids, model.ids()).all())

        assert forked(task)


# ---------------------------------------------------------------- wrong order


def test_step_before_the_first_reset_is_refused_and_writes_nothing(tmp_path):
    with mmreplay.create(tmp_path / "s.zarr", frame=Field((2,)), action=Field(())) as writer:
        with pytest.raises(mmreplay.SchemaError, match=r"reset\(frame\) first"):
            writer.step(0, 0.0, np.zeros(2, np.uint8))
        assert writer.rows == 0
        assert len(mmreplay.open(writer.path)) == 0


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_step_after_the_end_of_an_episode_is_refused_and_writes_nothing(pair, flag):
    pair.step(**{flag: [0]})
    rows = pair.writer.rows
    with pytest.raises(mmreplay.SchemaError, match="it has ended"):
        pair.writer.step(0, 0.0, np.zeros((3, 4), np.uint8), thought=np.zeros(2, np.float32))
    assert pair.writer.rows == rows
    pair.play(5)
    with mmreplay.open(path_of(pair)) as store:
        checks.check_store(store, pair.model)


def test_after_reopening_the_next_call_must_be_reset(pair):
    path = path_of(pair)
    pair.writer.close()
    pair.model.lanes[0].end_session()
    pair.reopened(mmreplay.create(path, append=True, flush_s=0))
    with pytest.raises(mmreplay.SchemaError, match=r"reset\(frame\) first"):
        pair.writer.step(0, 0.0, np.zeros((3, 4), np.uint8), thought=np.zeros(2, np.float32))
    pair.play(5)
    with mmreplay.open(path) as store:
        checks.check_store(store, pair.model)


def test_closed_writer_refuses_everything_but_another_close(pair):
    pair.writer.close()
    pair.writer.close()
    for call in (
        lambda: pair.writer.reset(np.zeros((3, 4), np.uint8)),
        lambda: pair.writer.step(0, 0.0, np.zeros((3, 4), np.uint8)),
        pair.writer.flush,
    ):
        with pytest.raises(mmreplay.ClosedError):
            call()


# ---------------------------------------------------------------- wrong values

GOOD = {
    "action": 1,
    "reward": 1.0,
    "next_frame": np.zeros((3, 4), np.uint8),
    "thought": np.ones(2, np.float32),
}
WRONG = {
    "frame of another shape": {"next_frame": np.zeros((4, 3), np.uint8)},
    "frame with an axis more": {"next_frame": np.zeros((1, 3, 4), np.uint8)},
    "frame of another dtype": {"next_frame": np.zeros((3, 4), np.int16)},
    "float frame past one": {"next_frame": np.full((3, 4), 1.5)},
    "float frame below zero": {"next_frame": np.full((3, 4), -0.1)},
    "frame that is none": {"next_frame": None},
    "dict for a plain frame": {"next_frame": {"a": np.zeros((3, 4), np.uint8)}},
    "action with a fraction": {"action": 1.5},
    "action of another shape": {"action": np.zeros(2, np.int64)},
    "action past the dtype": {"action": 1 << 63},
    "action that is none": {"action": None},
    "reward that is no number": {"reward": "much"},
    "reward of many": {"reward": np.zeros(2)},
    "extra of another shape": {"thought": np.zeros(3, np.float32)},
    "extra that is none": {"thought": "deep"},
    "extra that nobody declared": {"idea": 1.0},
}


@pytest.mark.parametrize("what", sorted(WRONG))
def test_wrong_value_is_refused_and_the_store_unchanged(pair, what):
    rows = pair.writer.rows
    with pytest.raises(mmreplay.SchemaError):
        pair.writer.step(**GOOD | WRONG[what])
    assert pair.writer.rows == rows
    with mmreplay.open(path_of(pair)) as store:
        checks.check_store(store, pair.model)
    pair.play(3)
    with pytest.raises(mmreplay.SchemaError):
        pair.writer.step(**GOOD | WRONG[what])
    pair.reset()  # what the refused step left in the newest row is no part of the episode's end
    with mmreplay.open(path_of(pair)) as store:
        checks.check_store(store, pair.model)


def test_missing_extra_is_refused_and_the_store_unchanged(pair):
    with pytest.raises(mmreplay.SchemaError, match="thought"):
        pair.writer.step(1, 1.0, np.zeros((3, 4), np.uint8))
    with mmreplay.open(path_of(pair)) as store:
        checks.check_store(store, pair.model)


# ---------------------------------------------------------------- wrong places


def test_a_path_that_is_taken_is_left_alone(pair):
    with pytest.raises(mmreplay.StoreExistsError, match="append=True"):
        LAYOUT.create(path_of(pair))
    pair.play(3)
    with mmreplay.open(path_of(pair)) as store:
        checks.check_store(store, pair.model)


def test_a_path_with_nothing_there_is_no_store(tmp_path):
    for call in (mmreplay.open, mmreplay.load):
        with pytest.raises(mmreplay.StoreNotFoundError):
            call(tmp_path / "nothing.zarr")
    with pytest.raises(mmreplay.StoreNotFoundError):
        mmreplay.create(tmp_path / "no" / "s.zarr", frame=Field((2,)), action=Field(()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"frame": Field((3, 5), "uint8")},
        {"frame": Field((3, 4), "int8")},
        {"action": Field((), "int32")},
        {"extras": {}},
        {"reward_dtype": "float64"},
        {"codec": "zstd"},
    ],
    ids=str,
)
def test_reopening_with_other_fields_is_refused_and_the_store_left_as_it_was(pair, change):
    path = path_of(pair)
    pair.writer.close()
    pair.model.lanes[0].end_session()
    with pytest.raises(mmreplay.SchemaError):
        mmreplay.create(path, **change, append=True)
    with mmreplay.open(path) as store:
        checks.check_store(store, pair.model)
    check_plain_zarr(path)


def test_every_error_survives_pickling(pair):
    kinds = [getattr(mmreplay, name) for name in mmreplay.__all__ if name.endswith("Error")]
    assert len(kinds) == 13
    for kind in kinds:
        back = pickle.loads(pickle.dumps(kind("what, where, expected, found")))
        assert type(back) is kind
        assert str(back) == "what, where, expected, found"
    with pytest.raises(mmreplay.InvalidIdError) as caught:
        mmreplay.open(path_of(pair)).transitions([10**9])
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
