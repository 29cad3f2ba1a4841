"""Ctrl-C again and again, at any moment of any call, as it comes from a terminal.

Invariant: an interrupt costs no committed row, and no later call, nor the end of the process, waits
for ever. Signals come at moments that the clock chooses, so that a run does not repeat; what is
asserted holds at each.
"""

import subprocess
import sys

import numpy as np
import pytest

import mmreplay
from tests.support.effort import THOROUGH, by_effort

pytestmark = pytest.mark.timeout(0 if THOROUGH else 240)

N_INTERRUPTS = by_effort(200, 4_000, 100_000)

INTERRUPTED = """
import contextlib, faulthandler, random, signal, sys
import numpy as np, mmreplay
from mmreplay import Field

path, kind, n_left = sys.argv[1], sys.argv[2], int(sys.argv[3])
width = 3 if kind == "vector" else None
given = dict(frame=Field((4,), "uint8", "lz4", 2, 4), action=Field((), "int64", chunk=4),
             capacity=kind != "lane" and 200 or None, lanes=width, flush_s=0.005, append=True)
luck, armed = random.Random(int(sys.argv[4])), False

def interrupt(*_):
    global armed, n_left
    if armed:
        armed, n_left = False, n_left - 1
        raise KeyboardInterrupt

def interrupted(call):
    # True if `call` was interrupted.
    global armed
    faulthandler.dump_traceback_later(60, exit=True)
    try:
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, luck.choice([3e-4, 2e-3]) * luck.random() + 1e-5)
            call()
        finally:
            armed = False
    except KeyboardInterrupt:
        return True
    return False

def append(writer):
    # A row says which one it is.
    row = writer.rows
    frame = np.full(4, row % 251, np.uint8)
    if width is None:
        if writer.running:
            writer.step(row, 1.0, frame)
        else:
            writer.reset(frame)
    else:
        frames, zeros = np.tile(frame, (width, 1)), np.zeros(width, bool)
        if not writer.running.all():
            writer.reset(frames)
        writer.step([row] * width, zeros, frames, zeros, zeros)

def write(writer):
    global n_rows
    while armed:  # an interrupt within a callback of a weak reference gets lost
        append(writer)
        n_rows = writer.rows
        if luck.random() < 0.02:
            writer.flush()

signal.signal(signal.SIGALRM, interrupt)
n_rows = 0
while n_left > 0:
    writer = mmreplay.create(path, **given)
    assert writer.rows >= n_rows, (writer.rows, n_rows)
    for _ in range(100):
        interrupted(lambda: write(writer))
        for _ in range(3):
            append(writer)
        n_rows = writer.rows
    while interrupted(writer.close):
        pass
    del writer
writer = mmreplay.create(path, **given)
append(writer)
interrupted(lambda: write(writer))
print(writer.rows)
"""
"""Prints how many rows there are, and leaves the store open."""


@pytest.mark.parametrize("kind", ["lane", "evicting", "vector"])
def test_interrupts_lose_no_row_and_keep_nobody_waiting(tmp_path, kind):
    path = tmp_path / "s.zarr"
    command = [sys.executable, "-c", INTERRUPTED, path, kind, N_INTERRUPTS, 7]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    n_rows = int(done.stdout)
    mmreplay.create(path, append=True).close()
    assert mmreplay.verify(path).sound
    with mmreplay.open(path) as store:
        rows = np.arange(store.lanes[0].base, n_rows)
        assert store.live.rows(0) == n_rows
        frames = store.lanes[0].frames[rows[0] :].reshape(len(rows), -1)
        assert (frames == (rows % 251)[:, None]).all()
