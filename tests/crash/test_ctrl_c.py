"""Ctrl-C again and again, at any moment of any call, as it comes from a terminal.

Invariant: an interrupt costs no committed row, and later calls and the end of the process do not
hang. Signals come at moments that the clock chooses, so runs differ; what is asserted holds at any
moment.
"""

import subprocess
import sys

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from tests.support.effort import by_effort

N_INTERRUPTS = by_effort(40, 40, 100_000)

INTERRUPTS = """
import faulthandler, random, signal, sys
import numpy as np, mmreplay
from mmreplay import Field

path, kind, n_left = sys.argv[1], sys.argv[2], int(sys.argv[3])
luck, armed = random.Random(7), False

def interrupt(*_):
    global armed, n_left
    if armed:
        armed, n_left = False, n_left - 1
        raise KeyboardInterrupt

def interrupted(call):
    # Whether `call` was interrupted. Python drops an interrupt within a callback of a weak
    # reference; a call that loops looks at `armed` for that.
    global armed
    faulthandler.dump_traceback_later(60, exit=True)
    try:
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, luck.choice([3e-4, 2e-3]) * luck.random() + 1e-5)
            call()
        finally:
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    return False

def finish(call):
    # An opening or closing may take longer than any interrupt waits: the last try is left alone.
    for _ in range(4):
        if not interrupted(call):
            return
    call()

signal.signal(signal.SIGALRM, interrupt)
"""

WRITING = """
width = None if kind == "lane" else 3
given = dict(frame=Field((4,), "uint8", "raw" if kind == "raw" else "lz4", 4), lanes=width,
             action=Field((), "int64", chunk=4), capacity=600 if kind == "evicting" else None,
             flush_s=0.005, append=True)

def many(value):
    return np.array([value] * (width or 1))

def frames(row, first):
    # That of a row says which one it is, and whether it is the first one of an episode.
    out = np.full((width or 1, 4), (2 * row + first) % 251, np.uint8)
    return out if width else out[0]

def append(writer):
    row = writer.rows
    runs = np.atleast_1d(writer.running)
    again = luck.random() < 0.05
    if again or not runs.all():
        mask = ~runs if not again else np.arange(width or 1) == luck.randrange(width or 1)
        writer.reset(frames(row, 1), mask) if width else writer.reset(frames(row, 1))
        return
    ends = (np.arange(width or 1) + row) % 7 == 3
    if width:
        writer.step(many(row), many(1.0), frames(row + 1, 0), ends, many(False))
    else:
        writer.step(row, 1.0, frames(row + 1, 0), ends[0])

def write():
    global n_rows
    while armed:
        append(writer)
        n_rows = writer.rows
        if luck.random() < 0.02:
            writer.flush()

def end():
    writer.end_episodes(many(True))

def begin():
    global writer
    writer = mmreplay.create(path, **given)

n_rows, writer = 0, None
while n_left > 0:
    finish(begin)
    assert writer.rows >= n_rows, (writer.rows, n_rows)
    for _ in range(20):
        interrupted(write)
        interrupted(writer.flush)
        if width:
            interrupted(end)
        before = writer.rows, writer.n_steps
        for _ in range(6):
            append(writer)
        n_rows = writer.rows
        # Every environment takes part in each step.
        assert writer.n_steps - before[1] == (n_rows - before[0]) * (width or 1)
    finish(writer.close)
    writer = None
begin()
append(writer)
append(writer)
interrupted(write)
print(writer.rows)
"""
"""Prints how many rows there are, and leaves the store open."""

READING = """
def read():
    global epoch
    while armed:
        if epoch is None:
            epoch = data.batches(8)
        try:
            check(next(epoch))
        except StopIteration:
            epoch = None
        check(data.sample(8))

def check(batch):
    assert (batch.observation[:, -1, 0] == batch.action % 251).all()

while n_left > 0:
    data, epoch = mmreplay.load(path, stack=4, prefetch=2), None
    for _ in range(100):
        if interrupted(read):
            epoch = None
        check(data.sample(8))
        again = data.batches(8)
        for _ in range(3):
            check(next(again))
        again.close()
    finish(data.close)
data = mmreplay.load(path, stack=4, prefetch=2)
data.sample(8)
"""


def run(code, path, kind, n):
    """What a process prints in which calls are interrupted, and that ends by itself."""
    command = [sys.executable, "-c", INTERRUPTS + code, path, kind, n]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["lane", "raw", "evicting"])
def test_interrupts_lose_no_row_and_keep_no_writer_waiting(tmp_path, kind):
    path = tmp_path / "s.zarr"
    n_rows = int(run(WRITING, path, kind, N_INTERRUPTS))
    mmreplay.create(path, append=True).close()
    assert mmreplay.verify(path).sound
    with mmreplay.open(path) as store:
        (lane,) = store.lanes
        n = lane.environments
        assert store.live.rows(0) == n_rows
        assert len(store) == (n_rows - lane.first) * n
        rows, envs = np.divmod(store.ids, n)
        batch, begins = store.transitions(store.ids, stack=None), lane.resets[:].reshape(-1, n)
        first = begins[rows, envs]
        assert (batch.action == rows).all()
        assert (batch.observation == ((2 * rows + first) % 251)[:, None]).all()
        assert (batch.next_observation == ((2 * rows + 2) % 251)[:, None]).all()
        assert (batch.terminated == ((rows + envs) % 7 == 3)).all()
        ends = (batch.terminated | batch.truncated).reshape(-1, n)
        assert (ends[:-1] == begins[lane.first + 1 :]).all()
        assert ends[-1].all()


def test_interrupts_keep_no_reader_waiting(tmp_path):
    path = tmp_path / "s.zarr"
    frame = Field((4,), "uint8", "lz4", 2, 4)
    with mmreplay.create(path, frame, Field((), "int64", chunk=4), flush_s=0) as writer:
        writer.reset(np.zeros(4, np.uint8))
        for row in range(400):
            writer.step(row, 1.0, np.full(4, (row + 1) % 251, np.uint8))
    run(READING, path, "", N_INTERRUPTS)
