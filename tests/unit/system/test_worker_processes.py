"""Calls made by several processes: each once, and no child left, whatever happens.

The test runner has threads, so each of these has a process of its own.
"""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmreplay.errors import CorruptStoreError
from mmreplay.system import platform, worker_processes

pytestmark = pytest.mark.skipif(not platform.LINUX, reason="forks on Linux only")

CODE = """
import errno, functools, os, signal, sys, threading, time
from mmreplay.errors import CorruptStoreError, FailedStoreError
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.system import worker_processes
from mmreplay.system.worker_processes import can_fork, run_in_processes

parent, taken = os.getpid(), []

def run(call, n_calls=8, n_processes=4):
    calls = (functools.partial(call, number) for number in range(n_calls))
    return run_in_processes(calls, taken.append, n_processes, "packing a.zarr")

def leave_to_children(pause):
    # The parent waits for what a child does.
    while os.getpid() == parent:
        pause()
        time.sleep(0.001)

def check_no_child():
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return
    raise AssertionError("a child is left")
"""


def test_each_call_is_made_once_and_in_several_processes(child):
    code = """
def call(number, pause):
    if number < 4:
        time.sleep(0.05)
    return number, os.getpid()

assert can_fork() and run(call, 20_000)
check_no_child()
numbers, pids = zip(*taken)
assert sorted(numbers) == list(range(20_000))
assert parent in pids and len(set(pids)) == 4
"""
    child(CODE + code)


def test_none_is_to_be_had(child):
    """Nothing is called then: neither a thread's fork nor one that the system refuses."""
    code = """
end = threading.Event()
thread = threading.Thread(target=end.wait)
thread.start()
assert not can_fork()
end.set()
thread.join()
assert can_fork()

def refuse():
    raise OSError(errno.EAGAIN, "no more processes")

os.fork = refuse
assert not run(lambda number, pause: 1 / 0)
assert taken == []
"""
    child(CODE + code)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ('CorruptStoreError("c.0: damaged")', "CorruptStoreError('c.0: damaged')"),
        ('EvictedError("a")', "EvictedError('a')"),
        ('PermissionError(13, "may not", "c.0")', "PermissionError(13, 'may not')"),
        ("KeyError(1)", "KeyError(1)"),
        ('type("Local", (ValueError,), {})("x")', "RuntimeError"),
    ],
)
def test_what_a_child_raises_is_raised(child, error, text):
    code = f"""
def call(number, pause):
    leave_to_children(pause)
    raise {error}

try:
    run(call)
except Exception as error:
    print(repr(error)[:40], "in call" in str(getattr(error, "__notes__", error)))
check_no_child()
"""
    shown = child(CODE + code)
    assert shown.startswith(text)
    assert shown.endswith(str("Corrupt" not in text))  # of what nobody expects, where it was


@pytest.mark.parametrize("signals", ["ignored", "handled", "default"])
def test_a_child_that_is_killed_is_an_error(child, signals):
    code = f"""
def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

signal.signal(signal.SIGCHLD, {{"ignored": signal.SIG_IGN, "handled": reap}}.get(
    {signals!r}, signal.SIG_DFL))

def call(number, pause):
    if os.getpid() != parent and number > 3:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)

try:
    run(call, 20)
except FailedStoreError as error:
    print(error)
check_no_child()
"""
    shown = child(CODE + code)
    assert shown.startswith("packing a.zarr: a process that worked on it was ended")
    assert shown.endswith("nothing is left behind: try again, with fewer workers")
    assert ("by signal 9" in shown) == (signals == "default") or signals == "handled"


def test_an_interrupt_ends_all_processes_and_children_have_no_handlers(child):
    """As Ctrl-C does it: the signal goes to each process."""
    code = """
import atexit
atexit.register(print, "the end")
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"handled\\n"))  # at once, and whole
os.setpgid(0, 0)
began = time.monotonic()

def call(number, pause):
    if number == 3:
        time.sleep(0.1)
        os.killpg(0, signal.SIGTERM)
        os.killpg(0, signal.SIGINT)
    while True:
        pause()
        time.sleep(0.001)

try:
    run(call)
except KeyboardInterrupt:
    print("interrupted")
check_no_child()
"""
    assert child(CODE + code).splitlines() == ["handled", "interrupted", "the end"]


def test_children_end_with_their_parent(tmp_path):
    code = f"""
def call(number, pause):
    open(f"{tmp_path}/{{os.getpid()}}", "w").close()
    while True:
        pause()
        time.sleep(0.001)

run(call, 100)
"""
    parent = subprocess.Popen([sys.executable, "-c", CODE + code])
    try:
        _until(lambda: len(list(tmp_path.iterdir())) == 4)
    finally:
        parent.kill()
        parent.wait()
    _until(lambda: not any(Path("/proc", one.name).exists() for one in tmp_path.iterdir()))


def _until(is_so):
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_errors_that_are_expected_are_sent_as_they_are():
    error = CorruptStoreError("c.0: damaged")
    assert worker_processes._sendable(error) is error
    assert not hasattr(error, "__notes__")
