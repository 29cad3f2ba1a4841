"""Two writers and forked children: the right error, and nothing changed."""

import gc
import json
import multiprocessing
import os
import pickle
import signal
import socket
import warnings

import numpy as np
import pytest

import mmreplay
from tests.support.oracle import checks
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
