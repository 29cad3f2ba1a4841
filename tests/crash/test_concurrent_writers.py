"""Several processes with the same store: each writes a lane of its own; a forked child only reads.

Invariant: no lane has two writers at once.
"""

import contextlib
import multiprocessing
import operator
import os
import random
import time
import warnings

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from tests.support.effort import by_effort
from tests.support.oracle import checks
from tests.support.oracle.disk import check_plain_zarr
from tests.support.oracle.frames import Described, Plot
from tests.support.oracle.layout import Layout
from tests.support.oracle.pair import Pair
from tests.support.processes.forks import started


def make_a_lane(path, name, n_rows, gate):
    gate.wait()
    field = Field((4,), "int32", "lz4", 2, 4)
    with mmreplay.create(path, frame=field, action=Field(()), lane=name, flush_s=0) as writer:
        number = int(writer.path.name[5:])
        writer.reset(np.full(4, 1000 * number, np.int32))
        for row in range(1, n_rows):
            writer.step(row, row, np.full(4, 1000 * number + row, np.int32))


def test_processes_that_make_the_same_store_at_once_get_a_lane_each(tmp_path):
    path, gate = tmp_path / "s.zarr", multiprocessing.get_context("fork").Barrier(4)
    actors = [started(make_a_lane, path, f"actor-{n}", 20 + n, gate) for n in range(4)]
    for one in actors:
        one.join()
    assert [one.exitcode for one in actors] == [0] * 4
    assert sorted(one.name for one in tmp_path.iterdir()) == ["s.zarr"]
    check_plain_zarr(path)
    checks.check_verified(path)
    with mmreplay.open(path) as store:
        assert sorted(view.name for view in store.lanes) == [f"actor-{n}" for n in range(4)]
        for lane, view in enumerate(store.lanes):
            n_steps = 19 + int(view.name[-1])
            assert view.frames[:, 0].tolist() == [1000 * lane + row for row in range(n_steps)]


PLOT = Plot(7, {"frame": Described(Field((6, 8), "uint8", "lz4", 2, 4))})


def keep_writing_a_lane(path, name):
    field, settings = PLOT.frames["frame"].field, {"capacity": 60, "flush_s": 0.002, "lane": name}
    with mmreplay.create(path, frame=field, action=Field((), "int64"), **settings) as writer:
        lane, start = int(writer.path.name[5:]), None
        while True:
            row = writer.rows
            if start is None or (PLOT.begins(lane, row) and start != row):
                start = row
                writer.reset(PLOT.frame(lane, row, start))
                continue
            ended, cut, lost = PLOT.flags(lane, row)
            given = PLOT.action(lane, row), PLOT.reward(lane, row), PLOT.frame(lane, row + 1, start)
            writer.step(*given, ended, cut, life_lost=lost)
            time.sleep(0.001)  # leaves the processor to the others


@pytest.mark.deep
def test_writers_of_lanes_are_killed_and_come_back_under_a_reader_of_all(tmp_path):
    path, luck = tmp_path / "s.zarr", random.Random(5)
    names = ["left", "middle", "right"]

    def wait_for(condition):
        while not condition():
            assert all(one.is_alive() for one in running.values())

    running = {name: started(keep_writing_a_lane, path, name) for name in names}
    try:
        wait_for(lambda: len([*path.glob("lane-*")]) == len(names))
        with mmreplay.load(path, stack=3, seed=0) as data:
            for _ in range(by_effort(1, 3, 20)):
                name = luck.choice(names)
                running[name].kill()
                running[name].join()
                assert running[name].exitcode == -9
                number = next(n for n, one in enumerate(data.store.lanes) if one.name == name)
                rows = [data.store.live.rows(n) for n in range(len(names))]
                running[name] = started(keep_writing_a_lane, path, name)

                def grown(rows=rows):
                    with contextlib.suppress(mmreplay.EmptyBufferError):
                        PLOT.check_batch(data.sample(16), stack=3)
                    now = [data.store.live.rows(n) for n in range(len(names))]
                    assert all(map(operator.ge, now, rows))
                    return all(map(operator.gt, now, rows))

                wait_for(grown)
                assert data.store.lanes[number].name == name
    finally:
        for one in running.values():
            one.kill()
            one.join()
    checks.check_verified(path)


# ---------------------------------------------------------------- forked children


@contextlib.contextmanager
def forked(task):
    """A child that does a task and ends, with status 0 if its result is true."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: threads and fork
        pid = os.fork()
    if not pid:
        status = 1
        try:
            status = 0 if task() else 2
        finally:
            os._exit(status)
    try:
        yield
    finally:
        assert os.waitpid(pid, 0)[1] == 0


LAYOUT = Layout(Field((3,), "uint8", "lz4", 2, 4), Field((), chunk=11))


def test_a_forked_child_does_not_hold_the_lock_of_its_parent(tmp_path):
    path = tmp_path / "s.zarr"
    pair = Pair(LAYOUT.create(path), LAYOUT.model(), np.random.default_rng(0))
    pair.play(15)
    reader, writer = os.pipe()

    def wait_for_the_parent():
        os.close(writer)
        return os.read(reader, 1) == b""

    with forked(wait_for_the_parent):
        pair.writer.close()
        pair.reopened(mmreplay.create(path, append=True, flush_s=0))
        pair.play(5)
        os.close(writer)
    os.close(reader)
    pair.writer.close()


def test_a_forked_child_samples_what_its_parent_wrote_and_ends(tmp_path):
    with LAYOUT.create_buffer(tmp_path / "s.zarr", mmreplay.ReplayBuffer, stack=2) as buffer:
        pair = Pair(buffer, LAYOUT.model(), np.random.default_rng(0))
        pair.play(30)
        buffer.flush()  # the threads of the parent have worked, and the child waits for none
        valid = pair.model.ids()
        with forked(lambda: np.isin(buffer.sample(64).id, valid).all()):
            pass
