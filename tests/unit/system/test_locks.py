"""One writer at a time, for as long as it lives."""

import errno
import gc
import os
import subprocess
import sys
import threading

import pytest

from mmreplay.errors import FailedStoreError, LockedError, StoreNotFoundError
from mmreplay.system import locks, platform

HOLD = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def other_holder(tmp_path):
    """Another process that holds the lock of the test's folder; call it to end the process."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"

        def end():
            process.kill()
            process.wait()

        yield end
        end()


def test_another_process_is_kept_out_until_the_holder_dies(tmp_path, other_holder):
    assert locks.is_locked(tmp_path)
    with pytest.raises(LockedError, match=r"another writer holds this lane \(pid 7\)"):
        locks.DirectoryLock(tmp_path, patience_s=0, who=lambda: " (pid 7)")
    other_holder()
    assert not locks.is_locked(tmp_path)
    locks.DirectoryLock(tmp_path, who=str).release()


def test_a_lock_that_is_released_soon_is_waited_for(tmp_path):
    lock = locks.DirectoryLock(tmp_path, who=str)
    timer = threading.Timer(0.05, lock.release)
    timer.start()
    locks.DirectoryLock(tmp_path, patience_s=300, who=str).release()
    timer.join()


def test_a_lock_whose_writer_was_dropped_is_waited_for_as_long_as_it_takes(tmp_path):
    lock = locks.DirectoryLock(tmp_path, who=str)
    lock.is_abandoned = True
    timer = threading.Timer(0.2, lock.release)
    timer.start()
    locks.DirectoryLock(tmp_path, patience_s=0, who=str).release()
    timer.join()


def test_a_lock_that_only_a_cycle_keeps_is_collected(tmp_path):
    gc.disable()
    try:
        cycle: dict[str, object] = {"lock": locks.DirectoryLock(tmp_path, who=str)}
        cycle["self"] = cycle
        del cycle
        with pytest.raises(LockedError):  # who only looks in passing pays for no collection
            locks.DirectoryLock(tmp_path, patience_s=0, who=str)
        locks.DirectoryLock(tmp_path, patience_s=0.01, who=str).release()
    finally:
        gc.enable()


def test_a_forked_child_releases_the_lock_and_the_parent_keeps_it(tmp_path, child):
    code = """
import os, sys
from pathlib import Path
from mmreplay.system import locks
path = Path(sys.argv[1])
lock = locks.DirectoryLock(path, who=str)
here, there = os.pipe(), os.pipe()
if os.fork() == 0:
    os.write(here[1], b"x")
    os.read(there[0], 1)       # outlives the parent's lock
    os._exit(0)
os.read(here[0], 1)
held = locks.is_locked(path)
lock.release()
print(held, locks.is_locked(path))
os.write(there[1], b"x")
os.wait()
"""
    assert child(code, tmp_path) == "True False"


def test_a_directory_that_cannot_be_locked_at_all_is_a_failed_store(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    assert platform.fcntl is not None
    monkeypatch.setattr(platform.fcntl, "flock", flock)
    with pytest.raises(FailedStoreError, match="flock failed"):
        locks.DirectoryLock(tmp_path, who=str)


def test_a_held_lock_is_on_the_directory_that_had_the_path_when_it_was_taken(tmp_path):
    """Waiting for the lock of a directory that another one replaces."""
    old, new = tmp_path / "store", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    lock = locks.DirectoryLock(old, who=str)

    def replace():
        os.rename(old, tmp_path / "damaged")
        os.rename(new, old)
        lock.release()

    timer = threading.Timer(0.05, replace)
    timer.start()
    held = locks.DirectoryLock(old, patience_s=300, who=str)
    timer.join()
    assert locks.is_locked(old)
    assert not locks.is_locked(tmp_path / "damaged")
    held.release()


def test_a_directory_that_is_gone_is_not_locked_and_cannot_be(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "gone", tmp_path / "file"):
        assert not locks.is_locked(path)
        with pytest.raises(StoreNotFoundError, match="there is no directory here, or not any more"):
            locks.DirectoryLock(path, who=lambda: "")
