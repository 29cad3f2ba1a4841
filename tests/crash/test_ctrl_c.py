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
from mmreplay import Field
from tests.support.effort import THOROUGH, by_effort

pytestmark = pytest.mark.timeout(0 if THOROUGH else 900)

N_INTERRUPTS = by_effort(100, 4_000, 100_000)
ONE_OF = by_effort(5, 1, 1)

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
    # Whether `call` was interrupted. It ends, too, if an interrupt gets lost, as it does within a
    # callback of a weak reference: `armed` tells.
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

signal.signal(signal.SIGALRM, interrupt)
"""

APPENDING = """
width = 3 if kind == "vector" else None
given = dict(frame=Field((4,), "uint8", "lz4", 2, 4), action=Field((), "int64", chunk=4),
             capacity=200 if kind != "lane" else None, lanes=width, flush_s=0.005, append=True)

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

"""

WRITING = """
def write():
    global n_rows
    while armed:
        append(writer)
        n_rows = writer.rows
        if luck.random() < 0.02:
            writer.flush()

n_rows = 0
while n_left > 0:
    writer = mmreplay.create(path, **given)
    assert writer.rows >= n_rows, (writer.rows, n_rows)
    for _ in range(100):
        interrupted(write)
        for _ in range(3):
            append(writer)
        n_rows = writer.rows
    while interrupted(writer.close):
        pass
    del writer
writer = mmreplay.create(path, **given)
append(writer)
interrupted(write)
print(writer.rows)
"""
"""Prints how many rows there are, and leaves the store open."""

EACH_MOMENT = """
import dis, itertools, sys, threading

# Where Python looks for a signal: before the instruction that comes after one of these.
AFTER = {"RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"} & dis.opmap.keys()
AFTER = {dis.opmap[name] for name in AFTER}
FILES = ("threading.py", "thread.py", "_base.py", "threads.py", "background.py", "seal.py")
before = {}

def trace(frame, event, _):
    global left
    if event == "call" and not frame.f_code.co_filename.endswith(FILES):
        return None
    frame.f_trace_opcodes, frame.f_trace_lines = True, False
    if event == "opcode":
        last, before[frame] = before.get(frame), frame.f_code.co_code[frame.f_lasti]
        if last in AFTER:
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
    return trace

given["flush_s"] = 0
writer = mmreplay.create(path, **given)
for left in itertools.count(luck.randrange(n_left), n_left):
    faulthandler.dump_traceback_later(60, exit=True)
    try:
        sys.settrace(trace)
        for _ in range(9):
            append(writer)
    except KeyboardInterrupt:
        pass
    sys.settrace(None)
    before.clear()
    for _ in range(9):
        append(writer)
    if left > 0:
        break
print(writer.rows)
"""
"""Of what hands work over; one moment of so many, in a step each."""

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
    while interrupted(data.close):
        pass
data = mmreplay.load(path, stack=4, prefetch=2)
data.sample(8)
"""


def run(code, path, kind, n):
    """What a process prints in which calls are interrupted, and that ends by itself."""
    command = [sys.executable, "-c", INTERRUPTS + code, path, kind, n]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("code", "n"), [(WRITING, N_INTERRUPTS), (EACH_MOMENT, ONE_OF)], ids=["by a clock", "in turn"]
)
@pytest.mark.parametrize("kind", ["lane", "evicting", "vector"])
def test_interrupts_lose_no_row_and_keep_no_writer_waiting(tmp_path, kind, code, n):
    path = tmp_path / "s.zarr"
    n_rows = int(run(APPENDING + code, path, kind, n))
    mmreplay.create(path, append=True).close()
    assert mmreplay.verify(path).sound
    with mmreplay.open(path) as store:
        rows = np.arange(store.lanes[0].base, n_rows)
        assert store.live.rows(0) == n_rows
        frames = store.lanes[0].frames[rows[0] :].reshape(len(rows), -1)
        assert (frames == (rows % 251)[:, None]).all()


def test_interrupts_keep_no_reader_waiting(tmp_path):
    path = tmp_path / "s.zarr"
    frame = Field((4,), "uint8", "lz4", 2, 4)
    with mmreplay.create(path, frame, Field((), "int64", chunk=4), flush_s=0) as writer:
        writer.reset(np.zeros(4, np.uint8))
        for row in range(400):
            writer.step(row, 1.0, np.full(4, (row + 1) % 251, np.uint8))
    run(READING, path, "", N_INTERRUPTS)
