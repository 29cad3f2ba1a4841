"""Several who would write the same store: each its own lane, or all but one are refused.

Invariant: no lane has two writers at once, and who is refused is told who writes.
"""

import contextlib
import multiprocessing
import operator
import os
import random
import re
import socket
import time

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.oracle.disk import check_plain_zarr
from tests.support.oracle.frames import Described, Plot
from tests.support.oracle.script import with_session
from tests.support.processes import actor
from tests.support.processes.forks import started

pytestmark = pytest.mark.timeout(0 if THOROUGH else 900)


@pytest.mark.deep
def test_a_second_writer_is_told_who_the_first_is_until_that_one_is_dead(script_of):
    script = script_of("lz4", capacity=70)
    chronicle = actor.Chronicle(script)
    host = re.escape(socket.gethostname())
    with actor.Actors() as actors:
        for session in range(by_effort(1, 2, 2)):  # who is refused waits a while before
            chronicle.acknowledge(chronicle.committed)
            pid = actors.start(with_session(script, session, rows=10**9, pause_s=0.001))
            chronicle.wait_for_rows()
            told = rf"\(pid {pid} on {host}, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\)"
            with pytest.raises(mmreplay.LockedError, match=told):
                mmreplay.create(script.path, append=True)
            with pytest.raises(mmreplay.LockedError, match=told):
                mmreplay.repair(script.path)
            assert actors.kill(pid) == -9
            with mmreplay.create(script.path, append=True) as writer:
                assert writer.rows >= chronicle.committed[0]
                with pytest.raises(mmreplay.LockedError, match=rf"in this process.*{os.getpid()}"):
                    mmreplay.create(script.path, append=True)
                rows = writer.rows
            chronicle.acknowledge([rows])


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
            for _ in range(by_effort(1, 4, 20)):
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
