"""Several who would write the same store: each its own lane, or all but one are refused.

Invariant: no lane has two writers at once, and who is refused is told who writes.
"""

import contextlib
import operator
import os
import random
import re
import socket
import subprocess
import sys

import pytest

import mmreplay
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.oracle.disk import check_plain_zarr
from tests.support.oracle.frames import Described, Plot
from tests.support.oracle.script import with_session
from tests.support.processes import actor

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


MAKE_A_LANE = """
import sys
from pathlib import Path
import mmreplay
import numpy as np

path, name, n_rows = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
field = mmreplay.Field((4,), "int32", "lz4", 2, 4)
with mmreplay.create(path, frame=field, action=mmreplay.Field(()), lane=name) as writer:
    number = int(writer.path.name[5:])
    for row in range(n_rows):
        frame = np.full(4, 1000 * number + row, np.int32)
        writer.step(row, row, frame) if row else writer.reset(frame)
print(number, flush=True)
"""


def test_processes_that_make_the_same_store_at_once_get_a_lane_each(tmp_path):
    path = tmp_path / "s.zarr"
    command = [sys.executable, "-c", MAKE_A_LANE, str(path)]
    actors = [
        subprocess.Popen(
            [*command, f"actor-{number}", str(20 + number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for one in actors:
        assert one.stdout.readline() == "ready\n"
    outputs = []
    for one in actors:
        one.stdin.write("go\n")
        one.stdin.flush()
    for one in actors:
        outputs.append(int(one.communicate(timeout=300)[0]))
        assert one.returncode == 0
    assert sorted(outputs) == [0, 1, 2, 3]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["s.zarr"]
    check_plain_zarr(path)
    checks.check_verified(path)
    with mmreplay.open(path) as store:
        for lane, view in enumerate(store.lanes):
            number = outputs.index(lane)
            assert view.name == f"actor-{number}"
            assert view.frames[:, 0].tolist() == [1000 * lane + row for row in range(19 + number)]


KEEP_WRITING_A_LANE = """
import sys, time
import mmreplay
from tests.support.oracle.frames import Described, Plot

path, name = sys.argv[1:]
field = mmreplay.Field((6, 8), "uint8", "lz4", 2, 4)
plot = Plot(7, {"frame": Described(field)})
settings = {"capacity": 60, "flush_s": 0.002, "lane": name}
with mmreplay.create(path, frame=field, action=mmreplay.Field((), "int64"), **settings) as writer:
    lane, start = int(writer.path.name[5:]), None
    while True:
        row = writer.rows
        if start is None or (plot.begins(lane, row) and start != row):
            start = row
            writer.reset(plot.frame(lane, row, start))
            continue
        ended, cut, lost = plot.flags(lane, row)
        action, reward = plot.action(lane, row), plot.reward(lane, row)
        writer.step(action, reward, plot.frame(lane, row + 1, start), ended, cut, life_lost=lost)
        time.sleep(0.001)  # leaves the processor to the others
"""


@pytest.mark.deep
def test_writers_of_lanes_are_killed_and_come_back_under_a_reader_of_all(tmp_path):
    path, luck = tmp_path / "s.zarr", random.Random(5)
    names = ["left", "middle", "right"]
    plot = Plot(7, {"frame": Described(mmreplay.Field((6, 8), "uint8", "lz4", 2, 4))})

    def start(name):
        return subprocess.Popen([sys.executable, "-c", KEEP_WRITING_A_LANE, str(path), name])

    def wait_for(condition):
        while not condition():
            assert all(one.poll() is None for one in running.values())

    running = {name: start(name) for name in names}
    try:
        wait_for(lambda: len([*path.glob("lane-*")]) == len(names))
        with mmreplay.load(path, stack=3, seed=0) as data:
            for _ in range(by_effort(1, 4, 20)):
                name = luck.choice(names)
                running[name].kill()
                assert running[name].wait() == -9
                number = next(n for n, one in enumerate(data.store.lanes) if one.name == name)
                rows = [data.store.live.rows(n) for n in range(len(names))]
                running[name] = start(name)

                def grown(rows=rows):
                    with contextlib.suppress(mmreplay.EmptyBufferError):
                        plot.check_batch(data.sample(16), stack=3)
                    now = [data.store.live.rows(n) for n in range(len(names))]
                    assert all(map(operator.ge, now, rows))
                    return all(map(operator.gt, now, rows))

                wait_for(grown)
                assert data.store.lanes[number].name == name
    finally:
        for one in running.values():
            one.kill()
            one.wait()
    checks.check_verified(path)
